"""Bundles for other machines: which wheels are chosen, and what is refused."""

from __future__ import annotations

import nturl2path
import os
import shutil
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

from edgespec import ModelError, UsageError, __version__
from edgespec.bundle import models
from edgespec.bundle.bundle import Order, make
from edgespec.bundle.machine import machine
from edgespec.bundle.models import choose
from edgespec.bundle.shelf import Shelf
from edgespec.bundle.wheel import Wheel, lacking
from edgespec.convert.folder import folder_for
from edgespec.hub.progress import LogProgress

PI = "manylinux_2_31_aarch64"


def write_wheel(
    folder: Path, name: str, version: str = "1.0", tag: str = "py3-none-any", requires: Sequence[str] = ()
) -> None:
    """A wheel with nothing in it."""
    info = f"{name}-{version}.dist-info"
    lines = [f"Requires-Dist: {text}" for text in requires]
    lines += ["Provides-Extra: llama", "Provides-Extra: onnx"] if name == "edgespec" else []
    metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines])
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"{metadata}\n")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        files = [f"{info}/{file}" for file in ("METADATA", "WHEEL", "RECORD")]
        wheel.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in files))


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """Wheels as an index might have them."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    needs = [
        'llama_cpp_python; extra == "llama"',
        'backport; python_version < "3.11"',
        'for_arm; platform_machine == "aarch64"',
        'for_windows; sys_platform == "win32"',
    ]
    write_wheel(folder, "edgespec", __version__, requires=needs)
    for tag in ("manylinux_2_28_aarch64", "manylinux_2_35_aarch64", "manylinux_2_17_x86_64", "linux_x86_64"):
        version = "2.0" if tag == "manylinux_2_35_aarch64" else "1.0"
        write_wheel(folder, "llama_cpp_python", version, f"py3-none-{tag}")
    for name in ("backport", "for_arm", "pip"):
        write_wheel(folder, name)
    return folder


def wheels_for(tag: str, python: str, shelf: Path, model: Path, output: Path) -> set[str]:
    order = Order(str(model), output, machine(tag, python), "llama.cpp", (), (shelf,))
    return {wheel.name for wheel in (make(order, True, LogProgress()) / "wheels").iterdir()}


def test_wheels_are_those_of_the_other_machine_and_its_python(
    shelf: Path, model_files: Path, tmp_path: Path
) -> None:
    model = model_files / "target.gguf"
    always = {f"edgespec-{__version__}-py3-none-any.whl", "pip-1.0-py3-none-any.whl"}
    of_arm = {
        "llama_cpp_python-1.0-py3-none-manylinux_2_28_aarch64.whl",
        "for_arm-1.0-py3-none-any.whl",
    }
    old = wheels_for(PI, "3.10", shelf, model, tmp_path / "old")
    assert old == {*always, *of_arm, "backport-1.0-py3-none-any.whl"}
    intel = wheels_for("manylinux_2_17_x86_64", "3.10", shelf, model, tmp_path / "intel")
    assert "llama_cpp_python-1.0-py3-none-manylinux_2_17_x86_64.whl" in intel
    assert "llama_cpp_python-1.0-py3-none-manylinux_2_28_aarch64.whl" not in intel
    newer = wheels_for("manylinux_2_35_aarch64", "3.10", shelf, model, tmp_path / "newer")
    assert "llama_cpp_python-2.0-py3-none-manylinux_2_35_aarch64.whl" in newer
    script = (tmp_path / "old/start").read_text("utf-8")
    assert "processor=aarch64\n" in script and "python_version=3.10\n" in script


def test_a_bundle_made_on_windows_is_one_for_its_machine(
    shelf: Path, model_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There text files get other line ends, which no shell takes, and `file:` means a path with a drive."""

    def write_text(file: Path, text: str, encoding: str, newline: str = "\r\n") -> int:
        return file.write_bytes(text.replace("\n", newline).encode(encoding))

    pip = Wheel("pip", "1.0", (shelf / "pip-1.0-py3-none-any.whl").as_uri(), None, ())
    there = machine(PI, "3.10")
    with monkeypatch.context() as patch:
        patch.setattr(Shelf, "gather", lambda *_: [pip])
        patch.setattr(Path, "write_text", write_text)
        order = Order(str(model_files / "target.gguf"), tmp_path / "pi", there, "llama.cpp", (), (shelf,))
        made = make(order, True, LogProgress())
    assert not any(b"\r" in (made / name).read_bytes() for name in ("start", "README.txt", "SHA256SUMS"))
    monkeypatch.setattr(urllib.request, "url2pathname", nturl2path.url2pathname)
    wheel = Wheel("a", "1.0", "file:///C:/my%20wheels/a-1.0-py3-none-any.whl", None, ())
    assert str(wheel.here) == r"C:\my wheels\a-1.0-py3-none-any.whl"
    here = {**default_environment(), "os_name": "nt"}
    monkeypatch.setattr("edgespec.bundle.machine.default_environment", lambda: here)
    assert there.environment()["os_name"] == "posix"


def test_without_kernels_a_portable_conversion_is_asked_for(
    shelf: Path, converted: Path, tmp_path: Path
) -> None:
    order = Order(str(converted / "target.gguf"), tmp_path / "pi", machine(PI, None), "onnx", (), (shelf,))
    with pytest.raises(ModelError, match=r"edgespec convert .*target.gguf --portable"):
        make(order, True, LogProgress())


def test_kernels_in_the_wheel_take_the_usual_conversion(shelf: Path, converted: Path, tmp_path: Path) -> None:
    (shelf / f"edgespec-{__version__}-py3-none-any.whl").unlink()
    needs = ['llama_cpp_python; extra == "llama"']
    write_wheel(shelf, "edgespec", __version__, "py3-none-linux_aarch64", needs)
    order = Order(str(converted / "target.gguf"), tmp_path / "pi", machine(PI, None), "onnx", (), (shelf,))
    made = make(order, True, LogProgress())
    assert (made / "models/target/target.onnx-edgespec/model.onnx").is_file()
    assert "model=models/target/target.onnx-edgespec\n" in (made / "start").read_text("utf-8")


def test_a_conversion_of_another_file_or_by_another_version_is_not_packed(
    converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(shutil.copy(converted / "target.gguf", tmp_path))
    folder = Path(shutil.copytree(folder_for(converted / "target.gguf"), folder_for(file)))
    assert folder / "model.onnx" in choose(str(file), "onnx", True).target.files.values()
    with monkeypatch.context() as patch:
        patch.setattr(models, "VERSION", models.VERSION + 1)
        with pytest.raises(ModelError, match="has not been converted to ONNX yet"):
            choose(str(file), "onnx", True)
    with file.open("r+b") as opened:
        opened.seek(-2, os.SEEK_END)
        opened.write(b"\1\1")
    os.utime(file, (1, 1))
    with pytest.raises(ModelError, match="has not been converted to ONNX yet"):
        choose(str(file), "onnx", True)


def test_conditions_hold_for_the_machine_and_extras_that_are_asked_for() -> None:
    wheels = [
        Wheel("a", "1.0", "", None, ('b>=2; python_version >= "3.13"', 'c[x]; extra == "more"')),
        Wheel("b", "1.0", "", None, ()),
        Wheel("c", "1.0", "", None, ('d<3; extra == "x" and platform_system == "Darwin"', 'e; extra == "y"')),
    ]
    mac, linux = machine("macosx_13_0_arm64", "3.13"), machine(PI, "3.10")
    assert lacking(wheels, Requirement("a"), linux.environment()) == set()
    assert lacking(wheels, Requirement("a[more]"), linux.environment()) == set()
    assert lacking(wheels, Requirement("a[more]"), mac.environment()) == {"b>=2", "d<3"}


@pytest.mark.parametrize(
    ("tag", "python", "said"),
    [
        ("win_amd64", "3.11", "not of the form manylinux_2_31_aarch64"),
        ("linux_aarch64", "3.11", "not of the form"),
        ("manylinux_2_5_aarch64", "3.11", "glibc 2.17 is the oldest"),
        (PI, "3.9", "3.9 is not a version that edgespec runs on"),
        (PI, "311", "311 is not a version"),
    ],
)
def test_machines_that_bundles_are_not_made_for_are_refused(tag: str, python: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        machine(tag, python)
