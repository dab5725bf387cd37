"""llama.cpp as a library: found or explained, and its messages routed to `logging`."""

from __future__ import annotations

import ctypes
import logging
import os
import re
from collections import deque
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

from edgespec.errors import BackendError, UsageError

log = logging.getLogger("edgespec.llama_cpp")

_recent: deque[str] = deque(maxlen=8)
"""the latest warnings and errors, to say why a load failed"""

_ran_in: set[int] = set()
"""processes that had a model: this one, or one that it was forked from"""

_interrupts: list[KeyboardInterrupt] = []
_starting = Lock()
"""held while the library is made ready, which happens once"""


@cache
def llama() -> ModuleType:
    """The low-level bindings (llama_cpp.llama_cpp). Raises BackendError if they cannot be loaded."""
    _share_the_cores()
    try:
        from llama_cpp import llama_cpp
    except ImportError as error:
        raise BackendError(
            "the llama.cpp backend needs the package llama-cpp-python: pip install 'edgespec[llama]'"
        ) from error
    except (OSError, RuntimeError) as error:
        raise BackendError(f"llama-cpp-python is installed but does not load: {error}") from error

    with _starting:  # of two threads that load their first models at the same time, one
        if not hasattr(llama_cpp, "edgespec_log_callback"):
            _route_messages(llama_cpp)
            llama_cpp.llama_backend_init()
    module: ModuleType = llama_cpp
    return module


def _route_messages(llama_cpp: Any) -> None:
    levels = {2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
    continued = 5
    last = [logging.DEBUG]

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator, unused-ignore]
    def route(level: int, text: bytes, _: Any) -> None:
        try:
            if level != continued:
                last[0] = levels.get(level, logging.DEBUG)
            message = text.decode("utf-8", "replace").strip()
            if message and last[0] >= logging.WARNING:
                _recent.append(message)
            # Its warnings are about its own internals: for those who debug, not for users.
            log.log(min(last[0], logging.INFO), "%s", message)
        except KeyboardInterrupt as interrupt:  # cannot pass through C: kept for raise_interrupt()
            _interrupts.append(interrupt)

    llama_cpp.edgespec_log_callback = route  # the library keeps the pointer: keep the object alive
    llama_cpp.llama_log_set(route, ctypes.c_void_p(0))


def build() -> str:
    """What tells this build of the library from others, such as one for a GPU, without loading it: a digest
    of its files' names and sizes. Empty where it is not installed."""
    given = os.environ.get("LLAMA_CPP_LIB_PATH")
    if given:
        return _digest(Path(given))
    found = find_spec("llama_cpp")
    return _digest(Path(found.origin).with_name("lib")) if found is not None and found.origin else ""


@cache
def _digest(folder: Path) -> str:
    """Others' files may be in the folder, too."""
    own = [file for file in folder.glob("*") if re.search("llama|ggml", file.name) and file.is_file()]
    return sha256(repr(sorted((file.name, file.stat().st_size) for file in own)).encode()).hexdigest()[:16]


def check_process() -> None:
    """Before a model is loaded: raise UsageError in a process that was forked from one where a model ran. The
    library's threads stayed there, and a pass would wait for them for ever."""
    if _ran_in - {os.getpid()}:
        raise UsageError(
            "llama.cpp ran in the process that this one was forked from; start processes with the method "
            "spawn"
        )


def note_process() -> None:
    """Once a model is loaded, before it computes: for `check_process`."""
    _ran_in.add(os.getpid())


def _share_the_cores() -> None:
    """Let llama.cpp's OpenMP threads give a core up soon when they wait for each other.

    By default they spin for seconds' worth of instructions: with one other busy process on two cores
    decoding fell to a twentieth. 1000 rounds cost an idle machine (Zen 5) 0 to 2% and leave a quarter to a
    half of the speed beside one busy process; 4000 leave a seventh to a quarter, 400 cost 2 to 6%, and
    without any an idle machine is 1.5 to 3.5 times slower. OpenMP reads this once, so only before anything
    has loaded it.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "1000"


@cache
def amx_is_miscompiled() -> bool:
    """Whether this build would crash in its AMX kernels, which repacked weights use.

    GCC before 13 tells the optimiser that loading the tile configuration reads 8 of its 64 bytes, so
    the rest is never written. The compiler's name is in the library's .comment section.
    """
    c = llama()
    if b"AMX_INT8 = 1" not in c.llama_print_system_info():
        return False
    libraries = Path(str(c.__file__)).parent.glob("lib/*ggml-cpu*")
    makers = {int(major) for file in libraries for major in _GCC.findall(file.read_bytes())}
    return bool(makers) and max(makers) < 13


_GCC = re.compile(rb"GCC: \([^)]*\) (\d+)\.")


def raise_interrupt() -> None:
    """After a call into llama.cpp: raise the Ctrl-C that came while it reported something."""
    if _interrupts:
        _interrupts.clear()
        raise KeyboardInterrupt


def forget_messages() -> None:
    """Before an operation whose failure `recent_messages` shall explain."""
    _recent.clear()


def recent_messages() -> str:
    """What llama.cpp complained about since, or a general word."""
    return "; ".join(_recent) or "llama.cpp gave no reason"
