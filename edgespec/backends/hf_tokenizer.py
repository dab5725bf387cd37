"""The tokenizer beside an ONNX model of others: tokenizer.json, by the `tokenizers` package."""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from edgespec.errors import BackendError, ModelError, UsageError
from edgespec.hub.onnx_folder import GENAI, read_json

_SPACE = "▁"  # how SentencePiece writes a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class HFTokenizer:
    """`Tokenizer` on a folder with tokenizer.json, for byte-level BPE and SentencePiece vocabularies."""

    def __init__(self, home: Path) -> None:
        """Raises ModelError if there is none, or of a kind whose tokens are no pieces of text."""
        try:
            import tokenizers
        except ImportError as error:
            raise BackendError(
                "ONNX models of others need the package tokenizers: pip install 'edgespec[onnx]'"
            ) from error
        file = home / "tokenizer.json"
        if not file.is_file():
            raise ModelError(f"{home} has no tokenizer.json; fetch it from where the model came from")
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(file))
            about = json.loads(self._tokenizer.to_str())
            self._tokenizer.no_truncation()  # files may ask for it, and texts would be cut silently
            self._tokenizer.no_padding()
        except Exception as error:  # the package raises bare exceptions
            raise ModelError(f"{file} is damaged, or needs a newer tokenizers package ({error})") from error
        self._encoding = Lock()
        """between setting how to encode and doing so no other thread may set it"""
        self._bytes_of = _spelling(about, file)
        self._added = {token["id"]: token for token in about.get("added_tokens", [])}
        self.n_vocab: int = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        config = (
            read_json(home / "tokenizer_config.json") if (home / "tokenizer_config.json").is_file() else {}
        )
        self.bos_text, self.eos_text = _text(config.get("bos_token")), _text(config.get("eos_token"))
        self.bos = self._bos(config)
        self._ends = {self._tokenizer.token_to_id(self.eos_text), *_end_ids(home)} - {None}
        self.chat_template = _template(home, config)

    def _bos(self, config: dict[str, Any]) -> int | None:
        """The BOS token, if texts begin with it."""
        id: int | None = self._tokenizer.token_to_id(self.bos_text) if self.bos_text else None
        if id is None:
            return None
        first = self._tokenizer.encode("a", add_special_tokens=True).ids[:1]
        return id if first == [id] or config.get("add_bos_token") is True else None

    def encode(self, text: str, *, special: bool = False, bos: bool = True) -> list[int]:
        """See `Tokenizer.encode`. Raises UsageError for text that is not valid Unicode."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"the text is not valid Unicode at character {error.start}") from error
        with self._encoding:
            self._tokenizer.encode_special_tokens = not special  # markers as ordinary text
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self.bos, *ids] if bos and self.bos is not None else ids

    def piece(self, token: int) -> bytes:
        added = self._added.get(token)
        if added is not None and added["special"]:
            return b""
        return self.vocabulary()[token] if 0 <= token < self.n_vocab else b""

    def is_end(self, token: int) -> bool:
        return token in self._ends

    def markers(self) -> list[str]:
        return [token["content"] for token in self._added.values() if token["special"] and token["content"]]

    def vocabulary(self) -> list[bytes]:
        return self._vocabulary

    @cached_property
    def _vocabulary(self) -> list[bytes]:
        pieces = [b""] * self.n_vocab
        for text, id in self._tokenizer.get_vocab(with_added_tokens=True).items():
            pieces[id] = text.encode() if id in self._added else self._bytes_of(text)
        return pieces


def _spelling(about: dict[str, Any], file: Path) -> Any:
    """How the tokens of this vocabulary spell bytes, by its decoder."""
    decoder = about.get("decoder") or {}
    steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return _byte_level
    if kinds & {"Metaspace", "ByteFallback"} or _SPACE in json.dumps(decoder, ensure_ascii=False):
        return _sentencepiece
    raise ModelError(
        f"{file} has a decoder of type {decoder.get('type')}; edgespec reads byte-level BPE and SentencePiece"
    )


def _byte_table() -> dict[str, int]:
    """GPT-2's way to write bytes in text: printable ones as they are, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_table()


def _byte_level(text: str) -> bytes:
    if all(c in _BYTES for c in text):
        return bytes(_BYTES[c] for c in text)
    return text.encode()


def _sentencepiece(text: str) -> bytes:
    if byte := _BYTE.fullmatch(text):
        return bytes([int(byte[1], 16)])
    return text.replace(_SPACE, " ").encode()


def _text(token: Any) -> str:
    """A token of tokenizer_config.json: a text, or an object with one."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _end_ids(home: Path) -> set[int]:
    """Ids that end a generation, wherever the files say so."""
    places = [("generation_config.json", []), ("config.json", []), (GENAI, ["model"])]
    found: set[int] = set()
    for name, keys in places:
        if not (home / name).is_file():
            continue
        ids = read_json(home / name, *keys).get("eos_token_id")
        found |= {id for id in (ids if isinstance(ids, list) else [ids]) if isinstance(id, int)}
    return found


def _template(home: Path, config: dict[str, Any]) -> str | None:
    """The chat template: a file of its own, or an entry of tokenizer_config.json."""
    file = home / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"{file} cannot be read: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
