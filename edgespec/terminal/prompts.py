"""From what stands on the command line to a pair and a prompt."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Sequence
from typing import BinaryIO

from edgespec.errors import UsageError
from edgespec.hub.names import exists, kind_of, path_named, unknown
from edgespec.hub.onnx_folder import is_onnx
from edgespec.hub.sizes import human
from edgespec.terminal.notes import note
from edgespec.visible import shorten

MOST = 64_000_000
"""bytes of text that are read"""
_CALLED_SO = re.compile(r"([\w.:/\\~@+-]*[\w/\\])?", re.ASCII)
"""what a model could be called: a word without the marks that end a sentence"""
PROMPT_MISSING = "no prompt: give it as an argument (in quotes), with --file, or on stdin"


def pair_and_text(
    words: Sequence[str], file: str | None, system: str | None, raw: bool
) -> tuple[str | None, str]:
    """The pair, if one is named, and the prompt's text.

    One word is the prompt, unless it names a model: then the prompt is on stdin. A prompt of - also
    is, and so is a file of -. What a file holds stands behind a prompt that is given too, as a paragraph of
    its own. The final newline that shells and editors add is dropped, except where `raw` asks for the
    text as it is.
    """
    if raw and system is not None:
        raise UsageError("--raw continues the text as it is, so --system has no place; leave one out")
    if len(words) > 2:
        raise UsageError(
            f"{len(words)} arguments, where [PAIR] PROMPT were expected; put the prompt in quotes"
        )
    pair, word = _told_apart(words, file is not None)
    if word == file == "-":
        raise UsageError("PROMPT and --file are both -, and stdin can be read once; give one of them")
    parts = []
    if word is not None:
        parts.append(_stdin(raw, asked=True) if word == "-" else word)
    if file is not None:
        parts.append(_stdin(raw, asked=True) if file == "-" else _without_newline(read_text(file), raw))
        if not parts[-1].strip() and not raw:
            raise UsageError(f"there is no text {'on stdin' if file == '-' else f'in {shorten(file)}'}")
    if not parts:
        parts.append(_stdin(raw))
    elif "-" not in (word, file) and _something_on_stdin():
        note("what is on stdin is not read; --file - puts it behind the prompt")
    text = ("" if raw else "\n\n").join(parts)
    if not text.strip() and not raw:
        raise UsageError("the prompt is empty; give some text")
    return pair, text


def _told_apart(words: Sequence[str], file: bool) -> tuple[str | None, str | None]:
    """Pair and prompt; with a file, a single word is a prompt only if no model could be called so: of a name
    that is mistyped no prompt is made."""
    if len(words) == 2:
        return words[0], words[1]
    word = next(iter(words), None)
    if word is None or (word != "-" and _names_model(word)):
        return word, None
    if word == "-" or not file or not _CALLED_SO.fullmatch(word):
        return None, word
    if kind_of(word) == "unknown" and not exists(path_named(word)):
        raise UsageError(f"{unknown(word)} If it is the prompt, put the pair before it.")
    return word, None


def read_text(file: str) -> str:
    """A text file's content. Raises UsageError if it cannot be read as UTF-8, or is longer than MOST."""
    try:
        with path_named(file).open("rb") as opened:
            return _text(opened, shorten(file))
    except OSError as error:
        raise UsageError(f"{shorten(file)} cannot be read: {error.strerror}") from error


def _text(opened: BinaryIO, name: str) -> str:
    content = opened.read(MOST + 1)
    if len(content) > MOST:
        raise UsageError(f"{name} has more than {human(MOST)}, which is no text for a model")
    try:
        return content.decode("utf-8-sig")  # some editors begin a file with a mark that is not text
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text (byte {error.start})") from error


def _stdin(raw: bool, asked: bool = False) -> str:
    if sys.stdin.isatty() and not asked:
        raise UsageError(PROMPT_MISSING)
    return _without_newline(_text(sys.stdin.buffer, "what is on stdin"), raw)


def _something_on_stdin() -> bool:
    """Whether a pipe or a file has something to read there, as far as can be seen without reading it."""
    if sys.platform == "win32":
        return False
    import fcntl
    import termios

    try:
        stdin = sys.stdin.fileno()
        found = os.fstat(stdin)
        if stat.S_ISREG(found.st_mode):
            return os.lseek(stdin, 0, os.SEEK_CUR) < found.st_size
        if not stat.S_ISFIFO(found.st_mode):
            return False
        return any(fcntl.ioctl(stdin, termios.FIONREAD, bytes(4)))
    except OSError:
        return False


def _without_newline(text: str, raw: bool) -> str:
    return text if raw else text.removesuffix("\n").removesuffix("\r")


def _is_model(word: str) -> bool:
    """Whether it is the path of a file, or of a folder with an ONNX model."""
    path = path_named(word)
    try:
        return path.is_file() or (path.is_dir() and is_onnx(path))
    except OSError:  # too long for a name, or where one may not look
        return False


def _names_model(word: str) -> bool:
    kind = kind_of(word)
    if kind in ("path", "unknown"):
        named = word.lower().endswith((".gguf", ".onnx")) and " " not in word
        return named or (kind == "path" and _is_model(word))
    return not any(c.isspace() for c in word)
