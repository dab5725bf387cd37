"""What Termux needs, with Python that says it is on Android, and stubs for Termux's own programs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import PATIENCE

ROOT = Path(__file__).parents[2]
TERMUX = ROOT / "android_demo/termux"
LOAD = "from edgespec.backends.llama_library import llama; llama()"
Run = subprocess.CompletedProcess[str]


# The import of llama-cpp-python


@pytest.fixture(scope="module")
def library() -> Path:
    """The folder of a llama.cpp that is the bindings' own."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        pytest.skip("llama-cpp-python is not installed")
    if version("llama_cpp_python") not in (TERMUX / "edgespec_termux.py").read_text("utf-8"):
        pytest.skip("edgespec_termux.py does not know this version of llama-cpp-python")
    return Path(spec.origin).parent / "lib"


def on_android(code: str, library: Path | None) -> Run:
    """Run Python that takes its platform for Android's, with llama.cpp from a folder of the system."""
    kept = {name: value for name, value in os.environ.items() if name != "LLAMA_CPP_LIB_PATH"}
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{TERMUX}"}
    given = {"LLAMA_CPP_LIB_PATH": str(library)} if library else {}
    words = [sys.executable, "-c", f"import sys; sys.platform = 'android'; {code}"]
    return subprocess.run(words, env=kept | path | given, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize("own", [False, True])
def test_llama_cpp_loads_where_upstream_refuses(library: Path, own: bool) -> None:
    folder = None if own else library
    refused = on_android(LOAD, folder)
    assert "Unsupported platform" in refused.stderr
    loaded = on_android(f"import edgespec_termux; {LOAD}; print(sys.platform)", folder)
    assert (loaded.stdout, loaded.stderr) == ("android\n", "")  # for everybody else it stays what it is


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        ("t.GGML = {k: '0.9.4' for k in t.GGML}", "was made for ggml 0.9.4; this llama.cpp has"),
        ("t.GGML = {'0.3.0': '0.9.4'}", r"is not known to work with Termux's llama.cpp \(0.3.0 is\)"),
        (
            "name = 'llama_context_default_params'; layout, fields = t.DEFAULTS[name]; "
            "t.DEFAULTS[name] = (layout, (513, *fields[1:]))",
            r"was made for another llama.cpp: llama_context_default_params\(\) differs",
        ),
    ],
)
def test_a_llama_cpp_of_another_version_is_refused(library: Path, difference: str, said: str) -> None:
    refused = on_android(f"import edgespec_termux as t; {difference}; {LOAD}", library)
    assert refused.returncode == 1
    assert re.search(f"BackendError: .*does not load: .*{said}", refused.stderr.splitlines()[-1])


def test_the_processor_backend_is_loaded_where_it_is_a_plug_in() -> None:
    spec = importlib.util.spec_from_file_location("edgespec_termux", TERMUX / "edgespec_termux.py")
    assert spec and spec.loader
    shim = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shim)
    loaded: list[bytes] = []

    def load(file: bytes) -> bool:
        loaded.append(file)
        return len(loaded) == 1

    def library(backends: int) -> SimpleNamespace:
        def count() -> int:
            return backends

        return SimpleNamespace(ggml_backend_reg_count=count, ggml_backend_load=load)

    shim.load_processor_backend(library(1), "/lib")
    assert loaded == []
    shim.load_processor_backend(library(0), "/lib")
    assert loaded == [b"/lib/libggml-cpu.so"]
    with pytest.raises(RuntimeError, match=r"/lib/libggml-cpu.so.* does not load"):
        shim.load_processor_backend(library(0), "/lib")


def test_the_setup_takes_the_bindings_that_all_others_take() -> None:
    pinned = [
        re.search("^llama_cpp_python=([0-9.]+)", file.read_text("utf-8"), re.MULTILINE)
        for file in (ROOT / "scripts/setup.sh", TERMUX / "setup.sh")
    ]
    assert pinned[0] and pinned[1] and pinned[0][1] == pinned[1][1]
    assert f'"{pinned[0][1]}"' in (TERMUX / "edgespec_termux.py").read_text("utf-8")


# The script


@pytest.fixture
def setup(tmp_path: Path) -> Callable[..., Run]:
    """Run setup.sh in what it takes for Termux. What it calls is written to the file `calls`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    calls = f"echo \"${{0##*/}} $*\" >>'{tmp_path}/calls'"
    environment = tmp_path / "venv"

    def stub(path: Path, body: str) -> None:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    for name in ("pkg", "apt-get", "apt-cache", "dpkg-query", "termux-wake-lock", "termux-wake-unlock"):
        stub(programs / name, calls)
    stub(programs / "uname", "echo ${MACHINE:-aarch64}")
    stub(
        programs / "python",
        f"""{calls}
case "$*" in
  --version) echo Python 3.13.0 ;;
  "-m venv"*) mkdir -p '{environment}/bin'; touch '{environment}/pyvenv.cfg'
    cp "$0" '{tmp_path}/edgespec' '{environment}/bin' ;;
  *"llama()") [ ! -e '{tmp_path}/other' ] || {{ echo "BackendError: another version" >&2; exit 1; }} ;;
  *sysconfig*) echo '{environment}' ;;
esac""",
    )
    stub(tmp_path / "edgespec", f"{calls}; echo \"library: $LLAMA_CPP_LIB_PATH\" >>'{tmp_path}/calls'")

    def run(*words: str, **variables: str) -> Run:
        kept = {n: v for n, v in os.environ.items() if n not in ("LLAMA_CPP_LIB_PATH", "TERMUX_VERSION")}
        given = {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "EDGESPEC_VENV": str(environment),
            "TERMUX_VERSION": "0.118",
            "PREFIX": "/usr",
        }
        script = TERMUX / "setup.sh"
        return subprocess.run(
            ["bash", script, *words],
            env=kept | given | variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    return run


def lines(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


def test_it_installs_once_and_serves_with_the_phone_kept_awake(
    setup: Callable[..., Run], tmp_path: Path
) -> None:
    for install in (True, False):
        (tmp_path / "calls").write_text("")
        done = setup("--no-open", "some-pair", "--port", "8001", "--threads=3")
        assert done.returncode == 0, done.stderr
        assert "http://127.0.0.1:8001/" in done.stderr
        called = lines(tmp_path)
        assert called[-4:] == [
            "termux-wake-lock ",
            "edgespec serve some-pair --port 8001 --threads=3",
            "library: /usr/lib",
            "termux-wake-unlock ",
        ]
        assert any(re.search(r"^pkg install -y .*\bllama-cpp\b", line) for line in called) == install
        assert "edgespec pull some-pair" in called
    assert (tmp_path / "venv/edgespec_termux.pth").read_text() == "import edgespec_termux\n"


def test_another_llama_cpp_is_refused_before_anything_is_served(
    setup: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "other").touch()
    done = setup("--no-open")
    assert done.returncode == 1
    assert "error: BackendError: another version" in done.stderr
    assert not [line for line in lines(tmp_path) if "edgespec" in line.split()[0] or "wake" in line]
    (tmp_path / "other").unlink()
    assert setup("--no-open", "--build").returncode == 0
    assert "library: " in lines(tmp_path)  # its own


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"TERMUX_VERSION": ""}, "this is not Termux"),
        ({"MACHINE": "armv8l"}, "needs a 64-bit Arm system, and this is armv8l"),
    ],
)
def test_where_it_cannot_work_it_changes_nothing(
    setup: Callable[..., Run], tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    done = setup(**variables)
    assert done.returncode == 1 and said in done.stderr
    assert not (tmp_path / "calls").exists()


def test_a_folder_with_other_things_in_it_is_not_made_a_virtual_environment(
    setup: Callable[..., Run], tmp_path: Path
) -> None:
    """Making one clears the folder."""
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/letter").touch()
    done = setup("--no-open")
    assert done.returncode == 1
    assert f"error: {tmp_path}/venv is a folder with other things in it" in done.stderr
    assert [path.name for path in (tmp_path / "venv").iterdir()] == ["letter"]
