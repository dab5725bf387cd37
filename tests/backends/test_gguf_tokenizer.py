"""The tokenizers inside GGUF files where llama.cpp would end the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import pytest
from closed_form.gguf_file import _add_tokenizer
from pair import VOCABULARY
from real_models import need_module

need_module("llama_cpp")

from edgespec.backends.gguf_tokenizer import GGUFTokenizer  # noqa: E402
from edgespec.backends.vocabulary_model import VocabularyModel  # noqa: E402
from edgespec.errors import UsageError  # noqa: E402

PIECES = ["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def write_sentencepiece(path: Path, pieces: Sequence[str]) -> Path:
    kinds = gguf.TokenType
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
    types += [kinds.BYTE if piece in BYTES else kinds.NORMAL for piece in pieces[3:]]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*pieces])
    writer.add_token_scores([-float(i) for i in range(len(pieces))])
    writer.add_token_types(types)
    return finished(writer, path)


def finished(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with path.open("ab") as file:
        file.write(bytes(4096))
    return path


@pytest.fixture
def without_bytes(tmp_path: Path) -> Iterator[GGUFTokenizer]:
    model = VocabularyModel(write_sentencepiece(tmp_path / "vocab.gguf", PIECES))
    yield model.tokenizer
    model.close()


def test_what_a_vocabulary_without_bytes_cannot_spell_is_refused(without_bytes: GGUFTokenizer) -> None:
    assert without_bytes.encode("a b", bos=False) == [6, 3, 5]
    for text in ("aé", "\n", "a<s>"):
        with pytest.raises(UsageError, match=r"cannot read .*neither this character nor its bytes"):
            without_bytes.encode(text)


def test_markers_are_not_spelled(without_bytes: GGUFTokenizer) -> None:
    assert without_bytes.encode("<s>a", special=True, bos=False) == [1, 6]


def test_what_is_no_token_is_spelled_in_bytes(tmp_path: Path) -> None:
    model = VocabularyModel(write_sentencepiece(tmp_path / "vocab.gguf", [*PIECES, *BYTES]))
    first = len(PIECES)
    assert model.tokenizer.encode("é", bos=False) == [3, first + 0xC3, first + 0xA9]
    model.close()


@pytest.mark.parametrize("token", [-1, len(PIECES), 1 << 30])
def test_what_is_no_token_adds_no_text(without_bytes: GGUFTokenizer, token: int) -> None:
    assert without_bytes.piece(token) == b"" and not without_bytes.is_end(token)


class Splitting(gguf.GGUFWriter):
    """A vocabulary that llama.cpp splits by regular expressions of the standard library."""

    def add_tokenizer_pre(self, pre: str) -> None:
        super().add_tokenizer_pre("gpt-4o")


@pytest.fixture
def splitting(tmp_path: Path) -> Iterator[GGUFTokenizer]:
    writer = Splitting(tmp_path / "vocab.gguf", "llama")
    _add_tokenizer(writer, VOCABULARY)
    model = VocabularyModel(finished(writer, tmp_path / "vocab.gguf"))
    yield model.tokenizer
    model.close()


@pytest.mark.parametrize("piece", [b"s", b" "])
def test_a_long_text_without_a_break_is_tokenized(splitting: GGUFTokenizer, piece: bytes) -> None:
    """With the stack of usual threads llama.cpp would end the process here."""
    text = f"a{piece.decode() * 60_000}m\n"
    assert b"".join(map(splitting.piece, splitting.encode(text, bos=False))) == text.encode()


def test_a_thread_with_little_stack_tokenizes_such_a_text(splitting: GGUFTokenizer) -> None:
    """As threads have that Python starts on Windows, or with musl."""
    usual = threading.stack_size(1 << 20)
    with ThreadPoolExecutor(1) as pool:
        encoded = pool.submit(splitting.encode, "s" * 4_000, bos=False)
        threading.stack_size(usual)
        assert b"".join(map(splitting.piece, encoded.result())) == b"s" * 4_000


def test_a_text_without_a_break_that_takes_too_much_memory_is_refused(splitting: GGUFTokenizer) -> None:
    with pytest.raises(UsageError, match="2,000,000 characters without a break"):
        splitting.encode("s" * 2_000_000)
