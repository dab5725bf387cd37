"""Bundles: made from wheels that are here, installed where there is no network, and what is refused."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
from real_models import need

from edgespec import HubError, ModelError, OfflineError, UsageError
from edgespec.bundle.bundle import Order, make
from edgespec.bundle.machine import machine, this_python
from edgespec.hub.progress import LogProgress

ROOT = Path(__file__).parents[2]
HERE = machine(None, None)


@pytest.fixture(scope="session")
def alone() -> list[str]:
    """What runs a command where there is no network but the machine itself."""
    for words in (["unshare", "--map-root-user", "--net"], ["unshare", "--net"]):
        if shutil.which("unshare") and subprocess.run([*words, "true"], capture_output=True).returncode == 0:
            return words
    if os.environ.get("CI"):
        pytest.fail("a bundle must be installed without a network, and unshare --net does not work")
    pytest.skip("unshare --net does not work here")


@pytest.fixture(scope="session")
def made(model_files: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a tiny model."""
    output = tmp_path_factory.mktemp("bundle") / "tiny"
    order = Order(str(model_files / "target.gguf"), output, HERE, "llama.cpp", (), (wheels,))
    return make(order, True, LogProgress())


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """A copy of it, whose files can be replaced."""
    shutil.copytree(made, tmp_path / "tiny", copy_function=os.link)
    return tmp_path / "tiny"


PYTHON_FIRST = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
"""the Python that the bundle is made for is found"""


def start(bundle: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    script = ["sh", str(bundle / "start"), *words]
    return subprocess.run(
        script,
        env=os.environ | PYTHON_FIRST | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def replace(file: Path, change: Callable[[str], str]) -> None:
    text = change(file.read_text("utf-8"))
    file.unlink()
    file.write_text(text, "utf-8")


def documented() -> list[list[str]]:
    """The commands of docs/offline.md: here, and there."""
    page = (ROOT / "docs/offline.md").read_text("utf-8")
    return [shlex.split(line) for line in re.findall(r"^```sh\n(.*)\n```", page, re.MULTILINE)]


def test_the_documented_bundle_is_installed_and_answers_without_a_network(
    alone: list[str], wheels: Path, tmp_path: Path
) -> None:
    need("smollm2-135m")
    [bundling, starting] = (
        [word.replace("/media/usb", str(tmp_path)) for word in words] for words in documented()
    )
    command = [sys.executable, "-m", *bundling, "--wheels", str(wheels)]
    done = subprocess.run(
        command, env=os.environ | {"EDGESPEC_OFFLINE": "1"}, capture_output=True, text=True, cwd=ROOT
    )
    folder = tmp_path / "smollm2"
    assert (done.returncode, done.stdout) == (0, f"{folder}\n"), done.stderr
    assert "SmolLM2" in done.stderr and "Apache-2.0" in done.stderr
    assert "Apache-2.0" in (folder / "README.txt").read_text("utf-8")

    env = os.environ | PYTHON_FIRST
    first = subprocess.run([*alone, *starting], env=env, capture_output=True, text=True, cwd=ROOT)
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip() and "setting up" in first.stderr
    there = subprocess.run(
        [folder / "venv/bin/python", "-I", "-c", "import edgespec; print(edgespec.__file__)"],
        capture_output=True,
        text=True,
    )
    assert there.stdout.startswith(str(folder / "venv"))

    moved = folder.rename(tmp_path / "moved elsewhere")
    words = [word.replace(str(folder), str(moved)) for word in starting]
    second = subprocess.run([*alone, *words], env=env, capture_output=True, text=True)
    assert (second.returncode, second.stdout) == (0, first.stdout), second.stderr
    assert "setting up" not in second.stderr
    assert start(moved, "check").returncode == 0


def test_every_file_of_a_bundle_has_its_checksum(made: Path) -> None:
    named = {line.split("  ")[1] for line in (made / "SHA256SUMS").read_text("utf-8").splitlines()}
    files = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()}
    assert files - named == {"SHA256SUMS"} and not named - files
    assert {"start", "README.txt", "models/target/target.gguf"} < named
    assert [path.name for path in made.parent.iterdir()] == ["tiny"]


def test_a_changed_file_is_found_before_anything_is_installed(bundle: Path) -> None:
    model = bundle / "models/target/target.gguf"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.unlink()
    model.write_bytes(content)
    ended = start(bundle, "run", "stay")
    assert ended.returncode == 1
    assert "not what they were" in ended.stderr and "target.gguf" in ended.stderr
    assert not (bundle / "venv").exists()


@pytest.mark.parametrize(
    ("line", "variables", "said"),
    [
        (f"processor={HERE.processor}>processor=riscv64", {}, f"for {HERE.system} on riscv64, and this is"),
        (f"python_version={HERE.python}>python_version=3.99", {}, "is for Python 3.99 .64 bits., which"),
        ("", {"PYTHON": "/bin/false"}, f"PYTHON is /bin/false, which is not a 64-bit Python {HERE.python}"),
    ],
)
def test_another_machine_or_python_is_refused(
    bundle: Path, line: str, variables: dict[str, str], said: str
) -> None:
    if line:
        before, after = line.split(">")
        replace(bundle / "start", lambda text: text.replace(before, after))
        assert after in (bundle / "start").read_text("utf-8")
    ended = start(bundle, "chat", **variables)
    assert ended.returncode == 1 and re.search(said, ended.stderr), ended.stderr
    assert not (bundle / "venv").exists()


@pytest.mark.parametrize(
    ("python", "line", "said"),
    [
        ("#!/bin/sh\nexit 1\n", "", "PYTHON is /bin/false, which is not a 64-bit Python"),
        (None, "processor=riscv64", f"for {HERE.system} on riscv64, and this is"),
    ],
)
def test_what_was_set_up_elsewhere_or_for_another_python_is_not_run(
    bundle: Path, python: str | None, line: str, said: str
) -> None:
    """Such as by the system's next release, or in a folder that came from another machine."""
    venv = bundle / "venv/bin/python"
    venv.parent.mkdir(parents=True)
    if python is None:
        venv.symlink_to(sys.executable)
    else:
        venv.write_text(python)
        venv.chmod(0o755)
    (bundle / "venv/complete").touch()
    if line:
        replace(bundle / "start", lambda text: text.replace(f"processor={HERE.processor}", line))
    ended = start(bundle, "run", "stay", PYTHON="/bin/false")
    assert ended.returncode == 1 and said in ended.stderr, ended.stderr
    assert (bundle / "venv/complete").exists()  # it is replaced by what runs only


def test_an_unknown_command_is_answered_with_those_there_are(bundle: Path) -> None:
    ended = start(bundle, "pull")
    assert ended.returncode == 1 and "sh start serve" in ended.stderr and not ended.stdout
    assert "sh start serve" in start(bundle, "help").stdout


def test_an_archive_holds_the_folder(model_files: Path, wheels: Path, made: Path, tmp_path: Path) -> None:
    tiny = str(model_files / "target.gguf")
    order = Order(tiny, tmp_path / "tiny.tar", HERE, "llama.cpp", (), (wheels,), archive=True)
    with tarfile.open(make(order, True, LogProgress())) as tar:
        assert {name for name in tar.getnames() if tar.getmember(name).isfile()} == {
            f"tiny/{path.relative_to(made).as_posix()}" for path in made.rglob("*") if path.is_file()
        }
        assert tar.getmember("tiny/start").mode & 0o111


def test_nothing_is_overwritten(made: Path, model_files: Path, wheels: Path) -> None:
    order = Order(str(model_files / "target.gguf"), made, HERE, "llama.cpp", (), (wheels,))
    with pytest.raises(UsageError, match="is there already"):
        make(order, True, LogProgress())
    assert (made / "start").is_file()


def test_what_is_missing_is_named_and_leaves_nothing_behind(
    model_files: Path, wheels: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few"
    few.mkdir()
    tiny = str(model_files / "target.gguf")
    output = tmp_path / "out" / "tiny"
    output.parent.mkdir()

    def refused(error: type[Exception], said: str, **changes: object) -> None:
        given = {"pair": tiny, "backend": "llama.cpp", "wheels": (few,), **changes}
        with pytest.raises(error, match=said):
            make(Order(output=output, machine=HERE, extras=(), **given), True, LogProgress())  # type: ignore[arg-type]
        assert not list(output.parent.iterdir())

    refused(UsageError, "there is no such folder", wheels=(tmp_path / "nowhere",))
    refused(ModelError, "There is no file", pair=f"{tiny}.not")
    refused(OfflineError, "Building edgespec's own wheel .* offline is asked for")
    [own] = wheels.glob("edgespec-*.whl")
    os.link(own, few / own.name)
    refused(OfflineError, "no wheel of llama-cpp-python in --wheels.*pip wheel --no-deps llama-cpp-python")
    [llama] = wheels.glob("llama_cpp_python-*.whl")
    os.link(llama, few / llama.name)
    refused(HubError, "Not all that edgespec needs is a wheel in --wheels.*No matching distribution found")
    other = f"{model_files}/incompatible.gguf"
    refused(ModelError, "edgespec convert", backend="onnx", wheels=(wheels,), pair=other)


def test_room_for_all_of_it_is_asked_for(
    model_files: Path, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 1_000_000))
    order = Order(str(model_files / "target.gguf"), tmp_path / "tiny", HERE, "llama.cpp", (), (wheels,))
    with pytest.raises(HubError, match=r"Not enough room for the bundle: .* 1 MB free"):
        make(order, True, LogProgress())
    assert not list(tmp_path.iterdir())


def test_this_python_is_the_default() -> None:
    assert this_python() == ".".join(map(str, sys.version_info[:2])) == HERE.python
