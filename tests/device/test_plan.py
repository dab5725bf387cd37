"""The memory plan, held against processes that really load and run the models."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from real_models import need, need_module

import edgespec
from edgespec import NotEnoughMemory, planning
from edgespec.backends.footprint import MIB, gguf_sizes, llama_cpp
from edgespec.backends.llama_cpp import LlamaCpp, LlamaCppOptions
from edgespec.backends.loading import Settings
from edgespec.device.memory import Available
from edgespec.hub import store
from edgespec.hub.catalog import RemoteFile, load_catalog
from edgespec.hub.resolve import resolve, resolve_pair
from edgespec.planning import Plan, best_plan, check_memory, plans
from edgespec.terminal.plan import parse_size

GIB = 1 << 30
PEAK = """
import json, re, sys, edgespec
path, draft, backend, n_ctx = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
depth = 0 if draft == "none" else 4
with edgespec.load(path, draft=draft, backend=backend, n_ctx=n_ctx, depth=depth) as runtime:
    runtime.generate([token % 1000 for token in range(n_ctx - 8)], max_tokens=6)
status = open("/proc/self/status").read()
print(int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) << 10)
"""
SMOLLM2, CODERS = 1024, 256
"""tokens of context; the coders take their time, and what such a token takes is seen with the other model"""
BACKENDS = ["llama.cpp", "onnx"]


def converted(folder: Path, *names: str) -> list[Path]:
    """Models beside their conversions."""
    need_module("onnxruntime")
    from edgespec.convert.convert import convert

    files = [folder / f"{number}.gguf" for number in range(len(names))]
    for file, name in zip(files, names, strict=True):
        file.symlink_to(resolve(name).path)
        convert(file, portable=False)
    return files


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    [file] = converted(tmp_path_factory.mktemp("converted"), need("smollm2-135m"))
    return file


@pytest.fixture(scope="module")
def coders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Target and draft."""
    pair = load_catalog().pairs[need("qwen2.5-coder")]
    assert isinstance(pair.draft, RemoteFile)
    files = [str(store.path_of(file)) for file in (pair.target, pair.draft)]
    return converted(tmp_path_factory.mktemp("coders"), *files)


def run(
    file: Path, draft: object, backend: str, n_ctx: int, **options: Any
) -> subprocess.CompletedProcess[str]:
    """A process that fills the context of a model, and prints what memory it took."""
    words = [sys.executable, "-c", PEAK, *map(str, (file, draft, backend, n_ctx))]
    return subprocess.run(words, capture_output=True, text=True, **options)


def plan_of(file: Path, backend: str, n_ctx: int, draft: Path | None = None) -> Plan:
    pair = resolve_pair(str(file))
    if draft is not None:
        pair = replace(pair, draft=resolve(str(draft)))
    found = plans(pair, n_ctx)
    return next(plan for plan in found if plan.backend == backend)


def check(planned: int, measured: int) -> None:
    """Within a tenth; hardly ever too little, as the kernel then ends what was not refused."""
    assert 0.97 * measured <= planned <= 1.1 * measured, (planned / MIB, measured / MIB)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_process_takes_what_was_planned_within_a_tenth(smollm2: Path, backend: str) -> None:
    check(
        plan_of(smollm2, backend, SMOLLM2).peak,
        int(run(smollm2, "none", backend, SMOLLM2, check=True).stdout),
    )


@pytest.mark.coder
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", [0, 1], ids=["1.5b", "0.5b"])
def test_so_do_the_coders_alone(coders: list[Path], model: int, backend: str) -> None:
    file = coders[model]
    check(plan_of(file, backend, CODERS).peak, int(run(file, "none", backend, CODERS, check=True).stdout))


@pytest.mark.coder
@pytest.mark.parametrize("backend", BACKENDS)
def test_so_does_the_pair(coders: list[Path], backend: str) -> None:
    target, draft = coders
    measured = int(run(target, draft, backend, CODERS, check=True).stdout)
    check(plan_of(target, backend, CODERS, draft).peak, measured)


@pytest.fixture
def control_group() -> Iterator[Callable[[int], Callable[[], None]]]:
    """Makes a control group with so many bytes of memory, and what a process calls to enter it."""
    own = next(
        (line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), ""
    )
    parent = Path("/sys/fs/cgroup/memory") / own.rpartition(":")[2].strip("/")
    group = parent / f"edgespec-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(GIB))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")

    def limited(size: int) -> Callable[[], None]:
        (group / "memory.limit_in_bytes").write_text(str(size))
        return lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None

    yield limited
    group.rmdir()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_fits_by_the_plan_is_not_killed_in_a_control_group_of_that_size(
    smollm2: Path, backend: str, control_group: Callable[[int], Callable[[], None]]
) -> None:
    needed = plan_of(smollm2, backend, SMOLLM2).needed
    done = run(smollm2, "none", backend, SMOLLM2, preexec_fn=control_group(round(0.7 * needed)))
    assert done.returncode == 1
    assert "the control group has" in done.stderr
    done = run(smollm2, "none", backend, SMOLLM2, preexec_fn=control_group(round(1.03 * needed)))
    assert done.returncode == 0, done.stderr


def test_the_items_are_what_llama_cpp_says_it_allocates(caplog: pytest.LogCaptureFixture) -> None:
    path = resolve(need("smollm2-135m")).path
    with caplog.at_level(logging.DEBUG, logger="edgespec.llama_cpp"):
        LlamaCpp(path, LlamaCppOptions(n_ctx=1024)).close()
    said = {
        part: float(line.split("=")[1].split()[0]) * MIB
        for line in caplog.messages
        for part in ("Mapped model", "KV", "compute")
        if f"{part} buffer size =" in line
    }
    planned = llama_cpp(gguf_sizes(path), 1024)
    assert planned.weights + planned.spare == pytest.approx(said["Mapped model"], rel=0.01)
    assert planned.kv == pytest.approx(said["KV"], rel=0.01)
    assert planned.buffers == pytest.approx(said["compute"], rel=0.05)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GB", 2 * 10**9), ("900MiB", 900 << 20), (" 1.5 g", 15 * 10**8), ("1TB", 10**12), ("2 tib", 2 << 40)],
)
def test_a_limit_is_written_in_any_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_with_less_memory_the_caches_precision_goes_first_then_the_draft_model_then_the_context() -> None:
    found = plans(load_catalog().pairs["llama3.2-3b"])
    chosen, limit = [], 100 * GIB
    while (plan := best_plan(found, limit)) is not None:
        chosen.append((plan.draft is not None, plan.kv_type, plan.n_ctx))
        limit = plan.needed - 1
    assert chosen[:5] == [
        (True, "f16", 4096),
        (True, "q8_0", 4096),
        (False, "f16", 4096),
        (False, "q8_0", 4096),
        (False, "f16", 2048),
    ]


def test_what_cannot_fit_is_refused_with_its_plan_before_anything_is_allocated() -> None:
    file = resolve(need("smollm2-135m")).path
    source = f"""
import resource, edgespec, edgespec.planning
from edgespec.device.memory import resident_memory
before = resident_memory()
limit = 300 << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    edgespec.load({str(file)!r}, draft="none")
except edgespec.NotEnoughMemory as error:
    print(error)
    assert resident_memory() - before < 60 << 20
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert "ulimit -v has" in done.stdout
    for item in ("weights, mapped", "KV cache", "buffers", "tokenizer", "edgespec plan", "--no-memory-check"):
        assert item in done.stdout


def test_one_may_go_on_all_the_same(model_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "find_available", lambda: Available(1 * MIB, "the machine"))
    file = model_files / "target.gguf"
    with pytest.raises(NotEnoughMemory) as refused:
        edgespec.load(file)
    assert "--parallel" not in str(refused.value)
    with pytest.raises(NotEnoughMemory, match="a smaller --parallel"):
        edgespec.load(file, parallel=2)
    edgespec.load(file, memory_check=False, draft="none").close()


def test_a_runtime_that_was_dropped_is_freed_before_another_is_refused(
    model_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = model_files / "target.gguf"
    runtime = edgespec.load(file, draft="ngram", depth=2, threads=1, n_ctx=256)
    runtime.generate("stay", max_tokens=3)
    target = runtime.target
    del runtime  # it is in a circle with its answer, so only the collector finds it
    left = iter([1 * MIB, 8 * GIB])
    monkeypatch.setattr(planning, "find_available", lambda: Available(next(left), "the machine"))
    edgespec.load(file, draft="none", threads=1, n_ctx=256).close()
    with pytest.raises(edgespec.BackendError, match="is closed"):
        target.open()


def test_caches_of_earlier_conversations_are_counted(
    model_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "find_available", lambda: Available(1000 * MIB, "the machine"))
    file = model_files / "target.gguf"
    edgespec.load(file, draft="none", n_ctx=256).close()
    with pytest.raises(NotEnoughMemory, match=r"conversations: 2.00 GB(.|\n)*a smaller --cache-memory"):
        edgespec.load(file, draft="none", n_ctx=256, cache_memory=2 * 10**9)


def test_of_an_onnx_model_made_by_others_too_little_is_known(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(bytes(1000))
    with pytest.raises(edgespec.UsageError, match=r"no plan for .*made by others"):
        plans(resolve_pair(str(tmp_path)))


@pytest.mark.parametrize("name", ["", "onnx/model.onnx"], ids=["folder", "file"])
def test_of_an_onnx_model_in_several_precisions_the_one_that_runs_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    onnx = need_module("onnx")
    values = [onnx.helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, [1]) for value in "xy"]
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    (tmp_path / "onnx").mkdir()
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph([node], "g", values[:1], values[1:])),
        tmp_path / "onnx" / "model.onnx",
    )
    with (tmp_path / "onnx" / "model_fp16.onnx").open("wb") as other:
        other.truncate(8 * GIB)
    monkeypatch.setattr(planning, "find_available", lambda: Available(1 * GIB, "the machine"))
    check_memory(resolve(str(tmp_path / name)), "onnx", None, None, Settings())


def test_of_a_model_file_what_else_lies_beside_it_is_not_counted(tmp_path: Path) -> None:
    for name, size in (("model.onnx", 1), ("model.onnx.data", 20), ("other.onnx", 300), ("a/b.bin", 4000)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    assert resolve(str(tmp_path / "model.onnx")).size == 21
    assert resolve(str(tmp_path)).size == 4321


def test_the_command_says_which_pairs_fit(capsys: pytest.CaptureFixture[str]) -> None:
    from edgespec.terminal.plan import plan

    plan(None, "900MB", None, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["limit"] == {"bytes": 900_000_000, "source": "--memory"}
    assert found["plans"]["smollm2-135m"]["needed"] < 900_000_000
    assert found["plans"]["qwen3-4b"] is None


def test_pairs_that_take_no_context_as_long_are_not_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    from edgespec.terminal.plan import plan

    plan(None, "8GB", 16_384, as_json=False)
    assert re.search("^smollm2-135m +takes no such context$", capsys.readouterr().out, re.MULTILINE)
    plan(None, "8GB", 16_384, as_json=True)
    found = json.loads(capsys.readouterr().out)["plans"]
    assert (found["smollm2-135m"], found["qwen2.5-coder"]["n_ctx"]) == (None, 16_384)


@pytest.mark.parametrize(
    "way", [{"COLUMNS": "80", "FORCE_COLOR": "1"}, {"COLUMNS": "40"}], ids=["terminal", "pipe"]
)
def test_no_name_is_cut_off_at_80_columns_nor_in_a_pipe(way: dict[str, str]) -> None:
    words = [sys.executable, "-m", "edgespec", "plan", "--memory", "900MB"]
    ended = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ | way)
    for pair in load_catalog().pairs:
        assert f"\n{pair} " in ended.stdout
    assert "…" not in ended.stdout
    assert ended.stderr == ""  # as nothing is loaded, nobody drafts with anything


def test_options_to_be_copied_stand_in_one_line_of_80_columns() -> None:
    words = [sys.executable, "-m", "edgespec", "plan", need("smollm2-135m")]
    way = {"COLUMNS": "80", "FORCE_COLOR": "1"}
    ended = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ | way)
    assert "\n--backend llama.cpp --ctx 4096 --kv-type q8_0 --draft ngram " in ended.stdout


@pytest.mark.parametrize("size", ["much", "2GX", "-1GB", "", "2", "2B", "9" * 400 + "GB"])
def test_a_limit_that_is_no_size_is_refused(size: str) -> None:
    from edgespec.terminal.plan import plan

    with pytest.raises(edgespec.UsageError, match="with its unit, like 2GB or 900MiB"):
        plan(None, size, None, as_json=True)
