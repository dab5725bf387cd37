"""The wheel that the build makes of the source distribution, in an environment with nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from pair import TARGET

ROOT = Path(__file__).parents[2]
SDIST = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
STEPS = 24
PROMPT = [b"y", b"e", b"s", b" ", b"st", b"a", b"y"]
"""tokens of a text"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """EDGESPEC_WHEEL, or one made here without native kernels, as compiling them takes minutes."""
    if given := os.environ.get("EDGESPEC_WHEEL"):
        return Path(given).absolute()
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-c", SDIST, folder], cwd=ROOT, check=True, capture_output=True)
    [source] = folder.glob("edgespec-*.tar.gz")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation"]
    environment = os.environ | {"EDGESPEC_NATIVE": "0"}
    subprocess.run([*build, "-w", folder, source], env=environment, check=True, capture_output=True)
    [made] = folder.glob("edgespec-*.whl")
    return made


@pytest.fixture(scope="module")
def clean(wheel: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with this wheel and what it needs, from no network."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, symlinks=True)
    install = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--no-index"]
    what = ["--find-links", wheels, "--no-compile", f"edgespec[llama,onnx] @ {wheel.as_uri()}"]
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*install, *what], env=outside, check=True, capture_output=True)
    return folder / "bin"


def test_it_holds_what_the_program_reads_and_no_sources(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for file in (
        "hub/catalog.toml",
        "server/page/index.html",
        "bench/page.html",
        "bundle/start.sh",
        "py.typed",
    ):
        assert f"edgespec/{file}" in names
    kernels = [name for name in names if name.endswith((".so", ".dylib"))]
    assert (not kernels) == wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in names if name.endswith((".cpp", ".h")) or name.startswith("tests/")]


@pytest.mark.parametrize("backend", ["llama.cpp", "onnx"])
def test_in_a_clean_environment_it_says_what_the_tables_of_the_model_say(
    clean: Path, model_files: Path, tmp_path: Path, backend: str
) -> None:
    files = [tmp_path / f"{name}.gguf" for name in ("target", "draft")]
    environment = {"HOME": str(tmp_path), "EDGESPEC_HOME": str(tmp_path / "home"), "PATH": os.defpath}

    def edgespec(*words: object) -> str:
        command = [clean / "edgespec", *map(str, words)]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for file in files:
        file.symlink_to(model_files / file.name)
        if backend == "onnx":
            edgespec("convert", file, "--check", "none")
    target, draft = files
    words = (
        target,
        b"".join(PROMPT).decode(),
        "--draft",
        draft,
        "--depth",
        3,
        "--backend",
        backend,
        "--threads",
        1,
    )
    found = json.loads(edgespec("run", *words, "--raw", "--max-tokens", STEPS, "--json"))
    history = TARGET.vocabulary.ids(*PROMPT)
    expected: list[int] = []
    while len(expected) < min(STEPS, len(found["tokens"])):
        expected.append(int(np.argmax(TARGET.log_p([*history, *expected]))))
    assert found["tokens"] == expected and len(expected) > 3
    assert found["stats"]["accepted"] > 0
