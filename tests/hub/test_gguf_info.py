"""Describing GGUF files: right numbers for sound ones, ModelError and no hang for damaged ones."""

from __future__ import annotations

import time
from array import array as Offsets  # noqa: N812
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edgespec.errors import ModelError
from edgespec.hub.gguf_header import Strings, read_header
from edgespec.hub.gguf_info import SpecialToken, read_info

Write = Callable[..., Path]


def test_the_numbers_of_a_small_model(write_gguf: Write) -> None:
    info = read_info(write_gguf())
    assert (info.name, info.architecture, info.licence) == ("Tiny", "llama", "mit")
    assert info.parameters == 8 * 32 + 32 * 32 + 8 * 32
    assert [(t.type, t.tensors, t.bytes) for t in info.types] == [("F32", 1, 4096), ("F16", 2, 1024)]
    assert sum(t.share for t in info.types) == pytest.approx(1)
    assert not info.tied
    assert info.bytes_per_token == 4096 + 512  # the embedding table is not read
    assert (info.context_length, info.layers, info.vocabulary) == (64, 2, 8)
    assert info.kv_bytes_per_token == 2 * 2 * (8 + 8) * 2  # layers, heads, key + value, f16
    assert info.tokenizer == "gpt2 (default)"
    assert info.special_tokens == (SpecialToken("bos", 0, "<s>"), SpecialToken("eos", 1, "</s>"))
    assert info.chat_template == "{{ messages }}\nsecond line"


def test_an_embedding_table_that_is_also_the_head_is_read(write_gguf: Write) -> None:
    info = read_info(write_gguf(tied=True))
    assert info.tied
    assert info.bytes_per_token == 4096 + 512


def test_of_experts_those_used_are_read(write_gguf: Write) -> None:
    plain = read_info(write_gguf("plain.gguf")).bytes_per_token
    assert read_info(write_gguf("moe.gguf", experts=4)).bytes_per_token == plain + 8 * 32 * 4


@pytest.mark.parametrize("keys", [{"full_attention_interval": 2}, {"attention.shared_kv_layers": 1}])
def test_layers_without_keys_and_values_of_their_own_take_no_cache(
    write_gguf: Write, keys: dict[str, int]
) -> None:
    """Of hybrids those with states, and those that use another layer's."""
    whole = read_info(write_gguf("whole.gguf")).kv_bytes_per_token
    part = read_info(write_gguf("part.gguf", **keys)).kv_bytes_per_token
    assert whole is not None and part is not None and 2 * part == whole


def test_the_header_agrees_with_the_gguf_package(write_gguf: Write) -> None:
    path = write_gguf()
    ours, theirs = read_header(path), GGUFReader(path)
    assert [(t.name, t.type, t.bytes, t.offset) for t in ours.tensors] == [
        (t.name, t.tensor_type.name, t.n_bytes, t.data_offset) for t in theirs.tensors
    ]
    for key, value in ours.metadata.items():
        expected = theirs.fields[key].contents()
        assert (list(value) if isinstance(expected, list) else value) == expected
    tokens = ours.metadata["tokenizer.ggml.tokens"]
    assert (tokens[2], tokens[-1], tokens[:2]) == ("ü", "t4", ["<s>", "</s>"])


def test_a_split_model_is_one_model(write_gguf: Write, tmp_path: Path) -> None:
    whole = read_info(write_gguf("whole.gguf"))
    for i in (1, 2):
        write_gguf(f"split-0000{i}-of-00002.gguf")
    info = read_info(tmp_path / "split-00002-of-00002.gguf")
    assert [path.name for path in info.files] == ["split-00001-of-00002.gguf", "split-00002-of-00002.gguf"]
    assert info.parameters == 2 * whole.parameters
    (tmp_path / "split-00001-of-00002.gguf").unlink()
    with pytest.raises(ModelError, match=r"part 1, .*split-00001-of-00002\.gguf, is missing"):
        read_info(tmp_path / "split-00002-of-00002.gguf")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds only 0 bytes"),
        (b"GGUF\3\0\0\0", "holds only 8 bytes"),
        (b"<html>" + bytes(40), "is not a GGUF model"),
        (b"GGUF\1\0\0\0" + bytes(40), "has GGUF version 1"),
        (b"GGUF\0\0\0\3" + bytes(40), "big-endian"),
        (b"GGUF\3\0\0\0" + b"\xff" * 40, "it claims 18446744073709551615 metadata keys"),
        (b"GGUF\3\0\0\0" + bytes(40), "does not name its architecture"),
    ],
)
def test_what_is_not_a_model(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=said):
        read_info(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot be read"):
        read_info(tmp_path / "none.gguf")


def test_a_model_without_its_last_byte_is_cut_short(write_gguf: Write) -> None:
    path = write_gguf()
    tail = read_header(path).tensors[-1]
    with path.open("r+b") as file:
        file.truncate(tail.offset + tail.bytes - 1)
    with pytest.raises(ModelError, match=r"cut short"):
        read_info(path)


def test_a_quantization_newer_than_the_gguf_package(write_gguf: Write) -> None:
    path = write_gguf()
    plain = read_info(path)
    data = bytearray(path.read_bytes())
    at = data.index(b"blk.0.attn_q.weight") + len("blk.0.attn_q.weight") + 4 + 2 * 8
    assert data[at : at + 4] == number(0, 4)  # F32
    data[at] = 250
    path.write_bytes(data)
    info = read_info(path)
    assert [(t.type, t.tensors, t.bytes) for t in info.types] == [
        ("unknown (type 250)", 1, 4096),
        ("F16", 2, 1024),
    ]
    assert info.bytes_per_token == plain.bytes_per_token
    with path.open("r+b") as file:
        file.truncate(read_header(path).tensors[1].offset - 1)
    with pytest.raises(ModelError, match="cut short"):
        read_info(path)


def number(n: int, size: int) -> bytes:
    return n.to_bytes(size, "little")


def start(tensors: int, keys: int) -> bytes:
    return b"GGUF" + number(3, 4) + number(tensors, 8) + number(keys, 8)


def array(item: int, count: int) -> bytes:
    return start(0, 1) + number(1, 8) + b"a" + number(9, 4) + number(item, 4) + number(count, 8)


@pytest.mark.parametrize(
    "head",
    [
        *(array(8, count) for count in (2**63, 2**40, 2**25)),  # strings
        *(array(4, count) for count in (2**63, 2**40)),  # numbers
        array(9, 2**40),  # arrays
        start(0, 2**16),  # keys
        start(2**16, 0),  # tensors
        start(1, 0) + number(0, 8) + number(2**32 - 1, 4),  # dimensions
    ],
    ids=[
        "strings",
        "strings-",
        "strings--",
        "numbers",
        "numbers-",
        "arrays",
        "keys",
        "tensors",
        "dimensions",
    ],
)
def test_an_absurd_count_neither_hangs_nor_fills_memory(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(head)
    with path.open("r+b") as file:
        file.truncate(1 << 28)  # sparse zeros: room for a long walk
    started = time.thread_time()  # of this thread alone, however busy the machine
    with pytest.raises(ModelError):
        read_info(path)
    assert time.thread_time() - started < 3


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("fuzz") / "model.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(8)
    writer.add_head_count(2)
    writer.add_head_count_kv([2])
    writer.add_token_list(["a", "b", "c"])
    writer.add_token_scores([0.0, 1.0, 2.0])
    writer.add_eos_token_id(1)
    writer.add_tensor("token_embd.weight", np.ones((3, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@settings(
    max_examples=300,
    deadline=2000,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    cut=st.one_of(st.none(), st.integers(0, 700)),
    flips=st.lists(st.tuples(st.integers(0, 700), st.integers(1, 255)), max_size=4),
)
@example(cut=None, flips=[])
def test_damage_is_a_model_error_or_harmless(
    sound: bytes, tmp_path: Path, cut: int | None, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(sound)
    for at, mask in flips:
        data[at % len(data)] ^= mask
    path = tmp_path / "x.gguf"
    path.write_bytes(data[: len(data) if cut is None else cut])
    try:
        info = read_info(path)
    except ModelError as error:
        assert str(path) in str(error)
    else:
        assert info.bytes_per_token >= 0


def test_every_truncation_is_noticed(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(sound)
    tensor = read_header(path).tensors[0]
    for length in range(tensor.offset + tensor.bytes):
        path.write_bytes(sound[:length])
        with pytest.raises(ModelError):
            read_info(path)


@given(st.lists(st.text("a\0b", max_size=3).map(str.encode), max_size=6))
def test_the_first_string_that_was_there_before_is_found(strings: list[bytes]) -> None:
    entries = [number(len(string), 8) + string for string in strings]
    offsets = Offsets("Q", [sum(map(len, entries[:i])) for i in range(len(entries))])
    read = [string.partition(b"\0")[0] for string in strings]
    before = [i for i, text in enumerate(read) if text and text in read[:i]]
    assert Strings(b"".join(entries), offsets).repeated() == next(iter(before), None)
