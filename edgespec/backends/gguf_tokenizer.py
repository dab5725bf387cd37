"""The tokenizer inside a GGUF file, by llama.cpp (which needs only the vocabulary for it)."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from threading import Lock
from typing import Any

from edgespec.backends.llama_library import llama
from edgespec.errors import UsageError

_SPACE = "▁"  # how SentencePiece writes a space
_PER_MIB = 1024
"""characters that a MiB of stack is for, which all threads have; llama.cpp has room for thrice as many"""
_RUN = re.compile(rf"(?<!\S)\S{{{_PER_MIB},}}|(?<!\s)\s{{{_PER_MIB},}}")
_LONGEST = 1 << 20
"""characters without a break that are tokenized at all"""
_starting = Lock()
"""held while the size of stacks is another than usual"""


class GGUFTokenizer:
    """`Tokenizer` on a loaded llama.cpp model, which must outlive it."""

    def __init__(self, model: Any) -> None:
        """`model`: llama.cpp's model handle; vocabulary-only models will do."""
        self._c = llama()
        self._handle = self._c.llama_model_get_vocab(model)
        self.n_vocab: int = self._c.llama_vocab_n_tokens(self._vocab)
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}
        bos, eos = self._c.llama_vocab_bos(self._vocab), self._c.llama_vocab_eos(self._vocab)
        self.bos: int | None = bos if bos >= 0 and self._c.llama_vocab_get_add_bos(self._vocab) else None
        self.bos_text, self.eos_text = self._marker(bos), self._marker(eos)

    def close(self) -> None:
        """The model is about to be freed, and its vocabulary with it."""
        self._handle = None

    @property
    def _vocab(self) -> Any:
        if self._handle is None:
            raise UsageError("the model of this tokenizer is closed; load it again")
        return self._handle

    def encode(self, text: str, *, special: bool = False, bos: bool = True) -> list[int]:
        """See `Tokenizer.encode`. Raises UsageError for text that is not valid Unicode, or that the
        vocabulary cannot spell."""
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"the text is not valid Unicode at character {error.start}") from error
        self._refuse_unspelled(text, special)
        prefix = [self.bos] if bos and self.bos is not None else []
        unbroken = self._unbroken(text)
        if not unbroken:
            return prefix + self._tokenize(data, special, len(data) + 8)
        return prefix + _with_room(unbroken, lambda: self._tokenize(data, special, len(data) + 8))

    def _unbroken(self, text: str) -> int:
        """How many characters of a text follow each other without a break, if so many that llama.cpp may run
        out of stack: regular expressions, by which it splits texts, take nested calls for each."""
        if len(text) < _PER_MIB or self._c.llama_vocab_type(self._vocab) != self._c.LLAMA_VOCAB_TYPE_BPE:
            return 0
        return max((len(run[0]) for run in _RUN.finditer(text)), default=0)

    def _refuse_unspelled(self, text: str, special: bool) -> None:
        """llama.cpp ends the process at a character that it finds neither as a token nor byte by byte."""
        known = self._characters
        if known is None:
            return
        for marker in self.markers() if special else ():
            text = text.replace(marker, "")
        for character in dict.fromkeys(text):
            spelled = _SPACE if character == " " else character
            if spelled not in known and not {_byte(byte) for byte in spelled.encode()} <= known:
                raise UsageError(
                    f"this model cannot read {character!r}: its vocabulary has neither this character nor "
                    "its bytes; leave it out"
                )

    @cached_property
    def _characters(self) -> frozenset[str] | None:
        """The tokens of a SentencePiece vocabulary that lacks some for bytes; None of all others."""
        c, vocab = self._c, self._vocab
        if c.llama_vocab_type(vocab) != c.LLAMA_VOCAB_TYPE_SPM:
            return None
        texts: set[str] = set()
        missing = {_byte(byte) for byte in range(256)}
        for token in range(self.n_vocab):
            text = c.llama_vocab_get_text(vocab, token).decode("utf-8", "replace")
            texts.add(text)
            missing.discard(text)
            if not missing:  # mostly soon: bytes come first
                return None
        return frozenset(texts)

    def _tokenize(self, data: bytes, special: bool, capacity: int) -> list[int]:
        ids = (self._c.llama_token * capacity)()
        count: int = self._c.llama_tokenize(self._vocab, data, len(data), ids, capacity, False, special)
        if count == -(2**31):
            raise UsageError("the text is too long to tokenize; split it")
        # A normaliser may make the text longer: then the count needed comes back, negative.
        return list(ids[:count]) if count >= 0 else self._tokenize(data, special, -count)

    def piece(self, token: int) -> bytes:
        known = self._pieces.get(token)
        if known is None:
            inside = 0 <= token < self.n_vocab  # at others llama.cpp would end the process
            known = self._pieces[token] = self._render(token, special=False) if inside else b""
        return known

    def _render(self, token: int, special: bool, size: int = 256) -> bytes:
        buffer = ctypes.create_string_buffer(size)  # of its own: tokenizing may happen in several threads
        length = self._c.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
        return buffer.raw[:length] if length >= 0 else self._render(token, special, -length)

    def _marker(self, token: int) -> str:
        return self._render(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def is_end(self, token: int) -> bool:
        known = self._ends.get(token)
        if known is None:
            known = self._ends[token] = bool(self._c.llama_vocab_is_eog(self._vocab, token))
        return known

    def markers(self) -> list[str]:
        return self._markers

    @cached_property
    def _markers(self) -> list[str]:
        # What llama.cpp matches in a text only when told to parse special tokens.
        special = self._c.LLAMA_TOKEN_ATTR_CONTROL | self._c.LLAMA_TOKEN_ATTR_UNKNOWN
        vocab = self._vocab
        ids = [t for t in range(self.n_vocab) if self._c.llama_vocab_get_attr(vocab, t) & special]
        return [text for t in ids if (text := self._marker(t))]

    def is_marker(self, token: int) -> bool:
        """Whether the token is more than text: a control token, or one that the model's makers added."""
        c = self._c
        more = c.LLAMA_TOKEN_ATTR_CONTROL | c.LLAMA_TOKEN_ATTR_UNKNOWN | c.LLAMA_TOKEN_ATTR_USER_DEFINED
        return bool(c.llama_vocab_get_attr(self._vocab, token) & more) or self.is_end(token)

    def vocabulary(self) -> list[bytes]:
        return self._vocabulary

    @cached_property
    def _vocabulary(self) -> list[bytes]:
        return [self._render(t, special=True) for t in range(self.n_vocab)]


def _byte(byte: int) -> str:
    """How SentencePiece calls the token of a byte."""
    return f"<0x{byte:02X}>"


def _with_room(unbroken: int, work: Callable[[], list[int]]) -> list[int]:
    """The result of work on a text with so many characters without a break, in a thread with the stack for
    it. Raises UsageError for more than can be had."""
    refused = UsageError(
        f"the text has {unbroken:,} characters without a break, too many to tokenize; break them up"
    )
    if unbroken > _LONGEST:
        raise refused
    with ThreadPoolExecutor(1) as pool:
        with _starting:
            usual = threading.stack_size((2 + unbroken // _PER_MIB) << 20)
            try:
                tokens = pool.submit(work)
            except RuntimeError as error:
                raise refused from error
            finally:
                threading.stack_size(usual)
        return tokens.result()
