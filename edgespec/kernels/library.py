"""The library with our operators: where it is, whether it works here, and how a session gets them."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import edgespec.kernels

log = logging.getLogger("edgespec.onnx")

DOMAIN = "edgespec"
"""of the operators in graphs"""
ABI = 1
"""of tiles and operators: changes with what a graph may hold. Also the version of DOMAIN in graphs"""
_SUFFIX = {"darwin": ".dylib", "win32": ".dll"}


def path() -> Path:
    """Where the library is, or would be. EDGESPEC_KERNELS names another one."""
    given = os.environ.get("EDGESPEC_KERNELS")
    if given:
        return Path(given).absolute()
    name = f"libedgespec_ort{_SUFFIX.get(sys.platform, '.so')}"
    # An editable install has two folders: where it was built to, and the source.
    places = [Path(folder) / name for folder in edgespec.kernels.__path__]
    return next((place for place in places if place.is_file()), places[-1])


def unavailable() -> str | None:
    """Why our operators cannot be used here; None: they can."""
    return _probe(path())[0]


def instruction_set() -> str | None:
    """The name of the instructions that the library chose for this processor; None if it does not work."""
    return _probe(path())[1]


def register(options: Any) -> None:
    """Let a session with these options know our operators. They must not be unavailable."""
    options.register_custom_ops_library(str(path()))


def warn_unavailable(instead: str) -> None:
    """Say why our operators are not used, and what is; once per process."""
    _warn(f"edgespec's kernels do not work here ({unavailable()}); {instead}")


@cache
def _warn(message: str) -> None:
    log.warning(message)


def import_onnxruntime() -> ModuleType:
    """The package onnxruntime, which sends nothing to anybody. Raises ImportError.

    From 1.29 on, its packages for Linux and macOS otherwise report every process and model to Microsoft, and
    keep an identifier of the machine and what is still to be sent in the user's cache folder
    (github.com/microsoft/onnxruntime/pull/27379).
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when the library is loaded
    import onnxruntime

    onnxruntime.disable_telemetry_events()  # of Windows, which has its own
    loaded: ModuleType = onnxruntime
    return loaded


@cache
def _probe(library: Path) -> tuple[str | None, str | None]:
    """(why it does not work, its instruction set), one of which is None."""
    if not library.is_file():
        return f"{library} is missing", None
    try:
        loaded = ctypes.CDLL(str(library))
        abi, isa, isa_error = loaded.edgespec_abi, loaded.edgespec_isa, loaded.edgespec_isa_error
    except (OSError, AttributeError) as error:
        return f"{library} cannot be loaded: {error}", None
    if (found := abi()) != ABI:
        return f"{library} is of version {found}, not {ABI}; install edgespec again", None
    isa.restype = isa_error.restype = ctypes.c_char_p
    name = isa()
    if name is None:
        return isa_error().decode(errors="replace"), None
    try:
        onnxruntime = import_onnxruntime()
        onnxruntime.SessionOptions().register_custom_ops_library(str(library))
    except ImportError:
        return "the package onnxruntime is not installed", None
    except Exception as error:  # onnxruntime's exceptions have no common base
        return f"onnxruntime {onnxruntime.__version__} refuses {library.name}: {error}", None
    return None, name.decode()
