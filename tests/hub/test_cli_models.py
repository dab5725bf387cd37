"""The commands `pull` and `models`, as a user types them."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_hub import FakeHub

from edgespec.cli.models import models
from edgespec.cli.pull import pull
from edgespec.errors import HubError, UsageError

NAME = "hf:maker/tiny/tiny.gguf"


@pytest.fixture
def run() -> Callable[..., Result]:
    # Before click 8.2 stderr was mixed into stdout unless told otherwise.
    separate = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}

    def run(command: object, *arguments: str, typed: str | None = None) -> Result:
        return CliRunner(**separate).invoke(command, arguments, input=typed, env={"COLUMNS": "80"})  # type: ignore[arg-type]

    return run


def succeed(result: Result) -> str:
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_pull_list_remove(hub: FakeHub, store_root: Path, run: Callable[..., Result]) -> None:
    hub.add("maker/tiny/tiny.gguf", b"GGUF" + bytes(996))
    path = store_root / "maker/tiny/tiny.gguf"
    assert succeed(run(pull, NAME)).splitlines() == [str(path)]  # stdout is the path alone
    (other,) = json.loads(succeed(run(models, "--json")))["others"]
    assert other == {"name": NAME, "bytes": 1000, "origin": "store", "path": str(path)}
    assert NAME in succeed(run(models))
    declined = run(models, "rm", NAME, typed="n\n")
    assert declined.exit_code == 1
    assert path.exists()
    removed = run(models, "rm", NAME, typed="y\n")
    assert "1 kB freed" in succeed(removed) and "Left" not in removed.stderr
    assert [p for p in store_root.rglob("*") if p.is_file() and p.suffix != ".lock"] == []
    assert not (store_root / "maker").exists()
    assert isinstance(run(models, "rm", NAME, "--yes").exception, HubError)


def test_offline_flag(hub: FakeHub, run: Callable[..., Result]) -> None:
    result = run(pull, NAME, "--offline")
    assert "When online: edgespec pull" in str(result.exception)
    assert hub.requests == []


def test_the_list_fits_a_terminal_and_says_what_is_checked(run: Callable[..., Result]) -> None:
    shown = succeed(run(models))
    assert "qwen2.5-coder" in shown
    assert "1.61 GB" in shown
    assert "the Hub's" in shown
    rows = [line for line in shown.splitlines() if "GB" in line or "MB" in line]
    assert max(map(len, rows)) <= 80
    assert "…" not in "".join(rows)
    data = json.loads(succeed(run(models, "list", "--json")))
    by_name = {pair["name"]: pair for pair in data["pairs"]}
    assert by_name["qwen3-4b"]["tested"] is False
    assert by_name["qwen3-4b"]["target"]["checksum_from"] == "hub"
    assert by_name["qwen2.5-coder"]["target"]["checksum_from"] == "catalog"
    assert by_name["smollm2-135m"]["draft"] == "ngram"


def test_json_in_front_of_a_command_is_not_passed_over(run: Callable[..., Result]) -> None:
    refused = run(models, "--json", "list")
    assert refused.exit_code == 2
    assert "put it behind: edgespec models list --json" in refused.stderr


def test_inspect(write_gguf: Callable[..., Path], run: Callable[..., Result]) -> None:
    path = write_gguf()
    shown = succeed(run(models, "inspect", str(path)))
    for said in (
        "llama, 2 layers",
        "64 tokens",
        "128 at f16",
        "gpt2 (default)",
        "'</s>'",
        "{{ messages }}",
        "F16",
    ):
        assert said in shown
    data = json.loads(succeed(run(models, "inspect", str(path), "--json")))
    assert data["types"][0] == {"type": "F32", "tensors": 1, "bytes": 4096, "share": 0.8}
    assert data["chat_template"] == "{{ messages }}\nsecond line"


def test_inspect_shows_a_long_template_in_full_when_asked(tmp_path: Path, run: Callable[..., Result]) -> None:
    from gguf import GGUFWriter

    path = tmp_path / "long.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_chat_template("\n".join(f"line {i}" for i in range(30)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    shown = succeed(run(models, "inspect", str(path)))
    assert "line 7" in shown
    assert "line 29" not in shown
    assert "--full" in shown
    assert "line 29" in succeed(run(models, "inspect", str(path), "--full"))


def test_rm_refuses_what_is_not_ours(
    write_gguf: Callable[..., Path], store_root: Path, run: Callable[..., Result], tmp_path: Path
) -> None:
    outside = write_gguf()
    (store_root / "maker" / "repo").mkdir(parents=True)
    link = store_root / "maker" / "repo" / "link.gguf"
    link.symlink_to(outside)
    for name in (str(outside), str(store_root / ".." / ".." / "model.gguf"), str(link)):
        result = run(models, "rm", name, "--yes")
        assert isinstance(result.exception, HubError)
        assert "not in edgespec's own store" in str(result.exception)
    for name in ("ollama:x", "lmstudio:x/y"):
        assert "belongs to another program" in str(run(models, "rm", name, "--yes").exception)
    assert isinstance(run(models, "rm", "nonsense", "--yes").exception, UsageError)
    assert outside.exists()


def test_rm_takes_what_an_interrupted_pull_left(store_root: Path, run: Callable[..., Result]) -> None:
    folder = store_root / "maker" / "tiny"
    folder.mkdir(parents=True)
    (folder / "tiny.gguf.0123456789abcdef.part").write_bytes(bytes(2000))
    (folder / "tiny.gguf.packages.part.wheels").mkdir()
    (folder / "other.gguf").write_bytes(b"stays")
    assert "2 kB freed" in succeed(run(models, "rm", NAME, "--yes"))
    assert [p.name for p in folder.iterdir()] == ["other.gguf"]


def test_rm_counts_only_what_is_freed(hub: FakeHub, store_root: Path, run: Callable[..., Result]) -> None:
    hub.add("maker/tiny/tiny.gguf", bytes(5000))
    succeed(run(pull, NAME))
    path = store_root / "maker/tiny/tiny.gguf"
    os.link(path, store_root.parent / "second-name")  # as in the Hugging Face cache
    assert "5 kB" not in succeed(run(models, "rm", NAME, "--yes"))
    assert not path.exists()


def test_rm_keeps_a_draft_that_another_pair_uses(
    hub: FakeHub, use_catalog: Callable[[str], None], run: Callable[..., Result], store_root: Path
) -> None:
    files = "".join(
        f'[files.{n}-file]\nname = "{n}"\nsize = 4\nlicence = "MIT"\n'
        f'sources = [{{ kind = "hub", repo = "m/{n}", file = "{n}.gguf" }}]\n'
        for n in ("a", "b", "draft")
    )
    pairs = "".join(
        f'[pairs.{n}]\nabout = ""\ntarget = "{n}-file"\ndraft = "draft-file"\ntested = true\n'
        for n in ("a", "b")
    )
    use_catalog(files + pairs)
    for n in ("a", "b", "draft"):
        hub.add(f"m/{n}/{n}.gguf", n.encode() * 4)
    succeed(run(pull, "a"))
    succeed(run(pull, "b"))
    result = run(models, "rm", "a", "--yes")
    assert "Kept: draft" in result.stderr
    assert sorted(p.name for p in store_root.rglob("*.gguf")) == ["b.gguf", "draft.gguf"]
    succeed(run(models, "rm", "b", "--yes"))
    assert list(store_root.rglob("*.gguf")) == []


def test_rm_names_the_conversions_it_leaves(
    hub: FakeHub, run: Callable[..., Result], store_root: Path
) -> None:
    hub.add("maker/tiny/tiny.gguf", bytes(1000))
    succeed(run(pull, NAME))
    folder = store_root / "maker/tiny"
    for name, size in (("tiny.onnx-edgespec", 7000), ("tiny.onnx-trimmed", 3000), ("other.onnx-edgespec", 1)):
        (folder / name).mkdir()
        (folder / name / "model.onnx.data").write_bytes(bytes(size))
    result = run(models, "rm", NAME, "--yes")
    assert "1 kB freed" in succeed(result)
    (said,) = result.stderr.splitlines()
    assert f"{folder / 'tiny.onnx-edgespec'} (7 kB) and {folder / 'tiny.onnx-trimmed'} (3 kB)" in said
    assert "other" not in said
    assert {path.suffix for path in folder.iterdir()} == {".onnx-edgespec", ".onnx-trimmed"}


def test_rm_names_what_a_conversion_that_was_killed_left(
    hub: FakeHub, run: Callable[..., Result], store_root: Path
) -> None:
    hub.add("maker/tiny/tiny.gguf", bytes(1000))
    succeed(run(pull, NAME))
    left = store_root / "maker/tiny/tiny.onnx-portable.partial"
    left.mkdir()
    (left / "model.onnx.data").write_bytes(bytes(7000))
    (said,) = run(models, "rm", NAME, "--yes").stderr.splitlines()
    assert said.startswith(f"Left: {left} (7 kB), of conversions that are under way or were killed")


def test_rm_waits_for_nobody(hub: FakeHub, run: Callable[..., Result], store_root: Path) -> None:
    from edgespec.hub import store
    from edgespec.hub.catalog import hub_file

    hub.add("maker/tiny/tiny.gguf", bytes(50))
    succeed(run(pull, NAME))
    with store.locked(hub_file(NAME), None):
        assert "being pulled by another process" in str(run(models, "rm", NAME, "--yes").exception)
    assert (store_root / "maker/tiny/tiny.gguf").exists()


def named(path: Path, name: str, template: str) -> Path:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_inspect_shows_control_characters_and_obeys_none(tmp_path: Path, run: Callable[..., Result]) -> None:
    path = named(tmp_path / "bad\x1b[2J.gguf", "na\x1b]0;me\x07[bold]", "one\x1b[31m\ntwo\x9b1m")
    shown = succeed(run(models, "inspect", str(path), "--full"))
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)
    for said in ("bad\\u001b[2J.gguf", "na\\u001b]0;me\\u0007[bold]", "one\\u001b[31m\ntwo\\u009b1m"):
        assert said in shown


def test_inspect_in_a_pipe_cuts_and_pads_nothing(tmp_path: Path, run: Callable[..., Result]) -> None:
    name = "long " * 60 + "end"
    shown = succeed(run(models, "inspect", str(named(tmp_path / "model.gguf", name, "t"))))
    assert name in shown
    assert [line for line in shown.splitlines() if line != line.rstrip()] == []
