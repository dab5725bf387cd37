"""What edgespec does about llama.cpp builds that would crash or hog the processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import PATIENCE

from edgespec.backends import llama_library


def build(folder: Path, compiler: bytes, features: bytes) -> SimpleNamespace:
    """A stand-in for the bindings of a llama.cpp that `compiler` has built."""
    (folder / "lib").mkdir()
    (folder / "lib/libggml-cpu.so.0").write_bytes(b"\x7fELF...\0GCC: (Debian) " + compiler + b"\0...")
    return SimpleNamespace(__file__=str(folder / "llama_cpp.py"), llama_print_system_info=lambda: features)


@pytest.mark.parametrize(
    ("compiler", "features", "miscompiled"),
    [
        (b"12.2.0", b"AVX512 = 1 | AMX_INT8 = 1 | ", True),
        (b"13.1.0", b"AVX512 = 1 | AMX_INT8 = 1 | ", False),
        (b"12.2.0", b"AVX512 = 1 | ", False),
    ],
)
def test_amx_code_of_old_compilers_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: bytes, features: bytes, miscompiled: bool
) -> None:
    monkeypatch.setattr(llama_library, "llama", lambda: build(tmp_path, compiler, features))
    llama_library.amx_is_miscompiled.cache_clear()
    try:
        assert llama_library.amx_is_miscompiled() is miscompiled
    finally:
        llama_library.amx_is_miscompiled.cache_clear()


@pytest.mark.parametrize(
    ("chosen", "becomes"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_waiting_threads_give_up_the_core_unless_the_user_says_otherwise(
    chosen: dict[str, str], becomes: str | None
) -> None:
    code = (
        "import os; from edgespec.backends.llama_library import llama; llama();"
        "print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept | chosen, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(becomes)


def test_two_threads_that_load_their_first_models_at_once_leave_the_messages_one_receiver() -> None:
    """Nothing else keeps it alive, and the library would call what is gone."""
    library = llama_library.llama()
    receiver = library.edgespec_log_callback
    assert llama_library.llama.__wrapped__() is library  # as the second thread does, which found nothing kept
    assert library.edgespec_log_callback is receiver


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_a_load_that_failed_forked_processes_may_load(model_files: Path, tmp_path: Path) -> None:
    whole = model_files / "target.gguf"
    (half := tmp_path / "half.gguf").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    code = f"""
import os, pathlib, signal
from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.errors import EdgespecError
try:
    LlamaCpp(pathlib.Path({str(half)!r}))
except EdgespecError:
    child = os.fork()
    if child == 0:
        signal.alarm({int(PATIENCE)})
        LlamaCpp(pathlib.Path({str(whole)!r})).close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print("loaded")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.stdout == "loaded\n", done.stderr
