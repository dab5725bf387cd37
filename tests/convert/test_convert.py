"""What a conversion leaves on disk, when it is done again, and how faults are told."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec.errors import EdgespecError, ModelError, UsageError

from .tiny_models import TINY, YARN, Tiny, write_tiny

pytest.importorskip("onnx")

from onnx import load_model

from edgespec.convert import convert as module
from edgespec.convert.convert import convert
from edgespec.convert.folder import DATA, MODEL, VOCABULARY, Report, folder_for, read_report
from edgespec.convert.origin import changed_at, checksum, is_made_from


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny.gguf", Tiny("llama", type="Q4_1"))


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize(
    ("portable", "name", "form"),
    [
        (False, "tiny.onnx-edgespec", ("Q4_1 tiles", True)),
        (True, "tiny.onnx-portable", ("8 bits, blocks of 32, zero points", False)),
    ],
)
def test_the_folder_is_complete_by_itself(
    model: Path, portable: bool, name: str, form: tuple[str, bool]
) -> None:
    done = convert(model, portable=portable)
    assert done.fresh and done.folder == model.parent / name
    assert names(done.folder) == ["model.onnx", "model.onnx.data", "report.json", "tree.onnx", "vocab.gguf"]
    report = json.loads((done.folder / "report.json").read_text())
    assert report["source"] == "tiny.gguf" and len(report["source_sha256"]) == 64
    became = {kind["type"]: (kind["became"], kind["exact"]) for kind in report["weights"]}
    assert became == {"Q4_1": form, "F32": ("float32", True)} and report["portable"] == portable
    header = gguf.GGUFReader(done.folder / "vocab.gguf")
    assert not header.tensors and "tokenizer.ggml.tokens" in header.fields


@pytest.mark.parametrize(("head", "op"), [(1024, "Attention"), (1040, "GroupQueryAttention")])
def test_heads_too_wide_for_our_attention_are_onnx_runtimes(tmp_path: Path, head: int, op: str) -> None:
    file = write_tiny(tmp_path / "tiny.gguf", Tiny("llama", head=head, heads=1, kv_heads=1, layers=1))
    graph = load_model(convert(file, portable=False).folder / MODEL, load_external_data=False).graph
    assert [node.op_type for node in graph.node if "Attention" in node.op_type] == [op]


def test_what_was_converted_is_not_converted_again(model: Path) -> None:
    first = convert(model)
    assert not convert(model).fresh
    os.utime(model)  # another time, the same bytes
    assert not convert(model).fresh
    assert convert(model, small=True).fresh
    assert convert(model, small=True, hidden=(1,)).fresh
    assert convert(model, force=True).fresh
    write_tiny(model, Tiny("llama", type="Q4_1"), seed=1)
    again = convert(model)
    assert again.fresh and again.report.source_sha256 != first.report.source_sha256


def test_another_version_converts_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(model)
    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    assert convert(model).fresh


@pytest.mark.parametrize("damage", ["no weights", "cut weights", "changed weights", "graph", "no vocabulary"])
def test_what_is_damaged_is_converted_again(model: Path, damage: str) -> None:
    first = convert(model)
    data = first.folder / DATA
    if damage == "no weights":
        data.unlink()
    elif damage == "cut weights":
        os.truncate(data, data.stat().st_size // 2)
    elif damage == "changed weights":
        with data.open("r+b") as file:
            file.seek(data.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
    elif damage == "graph":
        (first.folder / MODEL).write_bytes(b"no graph")
    else:
        (first.folder / VOCABULARY).unlink()
    assert convert(model).fresh
    assert not convert(model).fresh


def test_what_was_converted_before_there_were_checksums_is_kept(model: Path) -> None:
    done = convert(model)
    assert set(done.report.sha256) == {MODEL, "tree.onnx", DATA, VOCABULARY}
    replace(done.report, sha256={}).save(done.folder)
    assert not convert(model).fresh


def test_an_interrupted_conversion_leaves_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_vocabulary", interrupt)
    with pytest.raises(KeyboardInterrupt):
        convert(model)
    assert names(model.parent) == ["home", "tiny.gguf"]


def test_an_interrupted_conversion_leaves_the_one_before(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = convert(model).report
    monkeypatch.setattr(module, "write_vocabulary", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(ModelError, match="disk full"):
        convert(model, force=True)
    assert read_report(folder_for(model)) == before


def test_the_conversion_before_is_replaced_though_it_cannot_be_deleted(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, remove = convert(model).folder, shutil.rmtree

    def in_use(path: Path, ignore_errors: bool = False) -> None:
        """As of a network drive where another process reads the weights."""
        if not (path / VOCABULARY).exists():
            return remove(path, ignore_errors=ignore_errors)
        (path / VOCABULARY).unlink()
        if not ignore_errors:
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        return None

    monkeypatch.setattr(module.shutil, "rmtree", in_use)
    assert convert(model, force=True).fresh
    assert not convert(model).fresh
    assert (folder / VOCABULARY).is_file()


def test_a_full_disk_is_told_before_anything_is_written(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelError, match="not enough room"):
        convert(model)
    assert names(model.parent) == ["home", "tiny.gguf"]


def test_the_weights_are_on_the_disk_before_the_folder_has_its_name(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    folder = folder_for(model, portable=True)

    def fsync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name  # noqa: PTH115
        synced.append((name, folder.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    convert(model, portable=True)
    assert {(name, False) for name in names(folder)} <= {*synced}
    assert synced[-1] == (model.parent.name, True)


def test_a_folder_is_written_by_one_process_whatever_links_lead_there(model: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(model.parent)
    refused = pytest.raises(ModelError, match="is being written by another process")
    with module._locked(folder_for(model)), refused, module._locked(folder_for(link / model.name)):
        pass


def test_a_folder_that_is_a_link_is_made_again_where_it_leads(model: Path, tmp_path: Path) -> None:
    """Such as to a larger disk."""
    folder, disk = convert(model).folder, tmp_path / "disk"
    disk.mkdir()
    folder.rename(disk / "converted")
    folder.symlink_to(disk / "converted")
    for _ in range(2):
        assert convert(model, force=True).fresh
    assert not convert(model).fresh
    assert [path.name for path in disk.iterdir()] == ["converted"]
    assert folder.is_symlink()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_path_that_onnx_runtime_could_not_open_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    folder = tmp_path / os.fsdecode(b"mod\xe8les")
    folder.mkdir()
    file = write_tiny(folder / "tiny.gguf", Tiny("llama"))
    with pytest.raises(ModelError, match="no valid Unicode"):
        convert(file)
    assert [path.name for path in folder.iterdir()] == ["tiny.gguf"]


def test_what_a_killed_attempt_left_does_not_take_the_room_of_the_next(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = folder_for(model).with_name(folder_for(model).name + ".partial")
    left.mkdir()

    def usage(_: Path) -> object:
        return type("Usage", (), {"free": 10 if left.exists() else 1 << 40})

    monkeypatch.setattr(module.shutil, "disk_usage", usage)
    assert convert(model, portable=False).fresh


def test_a_source_that_changes_meanwhile_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write = convert(model).report, module.write_vocabulary

    def change(*arguments: Any) -> None:
        write(*arguments)
        os.utime(model, (1, 1))

    monkeypatch.setattr(module, "write_vocabulary", change)
    with pytest.raises(ModelError, match=r"tiny\.gguf changed while it was converted"):
        convert(model, force=True)
    assert read_report(folder_for(model)) == before


@pytest.mark.parametrize("part", [1, 2])
def test_a_conversion_of_a_split_model_is_not_used_with_another_part(tmp_path: Path, part: int) -> None:
    parts = [tmp_path / f"tiny-0000{i}-of-00002.gguf" for i in (1, 2)]
    for i, path in enumerate(parts):
        path.write_bytes(bytes(100 + i))
    report = Report(
        version=3,
        name="tiny",
        source=parts[0].name,
        source_sha256=checksum(parts),
        source_bytes=201,
        source_mtime_ns=changed_at(parts),
        small=False,
        hidden=None,
        licence=None,
        weights=[],
    )
    report.save(tmp_path)
    assert is_made_from(report, parts[0])
    parts[part - 1].write_bytes(b"x" * (99 + part))
    os.utime(parts[part - 1], (1, 1))
    assert not is_made_from(report, parts[0])


def test_layers_that_do_not_exist_are_refused(model: Path) -> None:
    with pytest.raises(UsageError, match="there are 0 to 1"):
        convert(model, hidden=(2,))


def test_scales_that_are_no_numbers_are_refused(model: Path) -> None:
    tensor = next(t for t in gguf.GGUFReader(model).tensors if t.name == "blk.1.ffn_up.weight")
    with model.open("r+b") as file:
        file.seek(int(tensor.data_offset))
        file.write(np.array([np.nan], "<f2").tobytes())
    with pytest.raises(
        ModelError, match=r"damaged: tensor blk\.1\.ffn_up\.weight holds infinite values or NaN"
    ):
        convert(model)


def test_a_file_cut_short_is_refused(model: Path) -> None:
    with model.open("r+b") as file:
        file.truncate(model.stat().st_size - 100)
    with pytest.raises(ModelError, match="damaged or cut short"):
        convert(model)


def test_tokens_that_repeat_are_refused(model: Path) -> None:
    """llama.cpp, whose tokenizer converted models use, would end the process."""
    data = model.read_bytes()
    one, other = (len(t).to_bytes(8, "little") + t for t in (b"m", b"n"))
    assert data.count(one) == data.count(other) == 1
    model.write_bytes(data.replace(one, other))
    with pytest.raises(ModelError, match=r"its token \d+, 'n', is there twice"):
        convert(model)


@pytest.mark.parametrize(
    ("tiny", "keys", "message"),
    [
        (Tiny("llama", layers=1), {"block_count": 2}, "damaged|lacks the tensor blk.1"),
        (Tiny("llama"), {"embedding_length": 65}, "shape"),
        (Tiny("llama"), {"attention.head_count_kv": 0}, "head_count_kv is 0"),
        (Tiny("llama"), {"context_length": 0}, "context_length is 0"),
        (Tiny("llama"), {"attention.head_count": 3}, "share|head_count_kv"),
        (Tiny("llama"), {"block_count": 1 << 31}, "block_count is 2147483648"),
        (Tiny("llama"), {"feed_forward_length": 1 << 30}, "feed_forward_length"),
        (Tiny("qwen3"), {}, "lacks the tensor blk.0.attn_q_norm"),
        (Tiny("llama", head_norms=True), {}, "tensors beyond the usual ones"),
    ],
)
def test_absurd_headers_are_refused(tmp_path: Path, tiny: Tiny, keys: dict[str, int], message: str) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", tiny)
    reader = gguf.GGUFReader(path, "r+")
    for key, value in keys.items():
        found = reader.get_field(f"llama.{key}")
        assert found is not None
        found.parts[found.data[0]][0] = value
    reader.data.flush()
    with pytest.raises(ModelError, match=message):
        convert(path)


Places = Sequence[tuple[int, int]]
"""(offset, bytes) of values in a file"""

FUZZED = (
    Tiny("qwen2", layers=1, biases=True, type="Q4_0"),
    Tiny("llama", layers=1, type="Q4_1", divisors=True, keys=YARN),
    replace(
        TINY["gemma3"], layers=1, type="Q8_0", keys={**TINY["gemma3"].keys, "final_logit_softcapping": 3.0}
    ),
)
FUZZ = int(os.environ.get("EDGESPEC_FUZZ", "0"))
"""files to try, other ones every time; 0: the same few"""
ODD_INTEGERS = [0, 1, 3, 31, 255, *(1 << bits for bits in (16, 31, 40)), (1 << 31) - 1, (1 << 64) - 1]
ODD_FLOATS = np.array([0, -1, 1e-38, 1e38, np.inf, -np.inf, np.nan])
ODD = [value.to_bytes(8, "little") for value in ODD_INTEGERS]
ODD += [value.tobytes().ljust(8, b"\0") for dtype in ("<f4", "<f8") for value in ODD_FLOATS.astype(dtype)]


def header_places(path: Path) -> Places:
    """Where the lengths, types and values of a header and its list of tensors are."""
    reader = gguf.GGUFReader(path)
    start = reader.data.ctypes.data
    fields = [*reader.fields.values(), *(tensor.field for tensor in reader.tensors)]
    parts = [part for field in fields for part in field.parts[:64]]  # the beginning of long lists will do
    return [(part.ctypes.data - start, part.nbytes) for part in parts if part.nbytes]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[bytes, Places]]:
    folder = tmp_path_factory.mktemp("fuzz")
    files = [write_tiny(folder / f"{i}.gguf", tiny) for i, tiny in enumerate(FUZZED)]
    return [(file.read_bytes(), header_places(file)) for file in files]


@settings(
    max_examples=FUZZ or 150,
    derandomize=not FUZZ,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    which=st.integers(0, len(FUZZED) - 1),
    values=st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from(ODD) | st.binary(min_size=8, max_size=8)), max_size=3
    ),
    flips=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=8),
    cut=st.just(1.0) | st.floats(0.2, 1),
    portable=st.booleans(),
)
def test_a_corrupt_file_converts_or_is_refused_in_words(
    tmp_path: Path,
    healthy: list[tuple[bytes, Places]],
    which: int,
    values: list[tuple[float, bytes]],
    flips: list[tuple[float, int]],
    cut: float,
    portable: bool,
) -> None:
    """Values of the header become odd ones, bytes anywhere become others, and the end may be missing."""
    whole, places = healthy[which]
    data = bytearray(whole)
    for where, value in values:
        offset, size = places[int(where * (len(places) - 1))]
        data[offset : offset + min(size, 8)] = value[:size]
    for where, byte in flips:
        data[int(where * (len(data) - 1))] = byte
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(data[: int(cut * len(data))])
    try:
        convert(path, portable=portable, force=True)
    except EdgespecError as error:
        assert "fuzz" in str(error)
    assert not list(tmp_path.glob("*.partial"))
