"""Where a chat's lines come from: typed at a terminal with editing and history, or a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Protocol

import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from edgespec.errors import UsageError
from edgespec.terminal.notes import note


class Lines(Protocol):
    """A source of what the user says."""

    typed: bool
    """by somebody who sees what becomes of it"""

    def read(self) -> str | None:
        """The next entry, of one or several lines; None at the end."""
        ...


def lines() -> Lines:
    """Typed lines at a terminal, else those of stdin."""
    return TypedLines() if sys.stdin.isatty() and sys.stdout.isatty() else PipedLines()


class PipedLines:
    """Lines of stdin; one that ends with a backslash is continued by the next."""

    typed = False

    def __init__(self) -> None:
        self._encoding = "utf-8-sig"  # some programs begin a text with a mark that is not part of it

    def read(self) -> str | None:
        entry = ""
        while line := sys.stdin.buffer.readline():
            try:
                text = line.decode(self._encoding).rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UsageError("a line on stdin is not UTF-8 text") from error
            self._encoding = "utf-8"
            if not text.endswith("\\"):
                return entry + text
            entry += text[:-1] + "\n"
        return entry.removesuffix("\n") or None


class TypedLines:
    """Lines typed at a terminal. Ctrl-C clears the line, Ctrl-D on an empty one ends, Ctrl-Z suspends."""

    typed = True

    def __init__(self) -> None:
        self._prompt: PromptSession[str] = PromptSession(
            "> ",
            history=_history(),
            multiline=True,
            prompt_continuation="  ",
            key_bindings=_keys(),
            enable_suspend=True,
        )

    def read(self) -> str | None:
        try:
            return self._prompt.prompt()
        except KeyboardInterrupt:
            return ""
        except EOFError:
            return None


def _keys() -> KeyBindings:
    """Enter sends, unless the line ends with a backslash; Alt-Enter (or Esc, Enter) starts a line."""
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def start_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


def _history() -> History:
    """What was typed in earlier chats; only its user may read it."""
    try:
        folder = platformdirs.user_state_path("edgespec")
    except RuntimeError:  # of a newer platformdirs; an older one leaves ~ as it is
        folder = Path("~")
    if str(folder).startswith("~"):
        note("what you type is not remembered: there is no home folder to keep it in")
        return InMemoryHistory()
    file = folder / "chat-history"
    try:
        _create_private(file)
    except OSError as error:
        note(f"what you type is not remembered: {file} cannot be written ({error.strerror})")
        return InMemoryHistory()
    return _Forgiving(str(file))


class _Forgiving(FileHistory):
    """Goes on when the disk is full or a line no text: one that is not remembered must not end the chat."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError, UnicodeError):
            super().store_string(string)


def _create_private(file: Path) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
    file.chmod(0o600)
