"""Lets llama-cpp-python load Termux's llama.cpp; setup.sh installs it beside that, and has it imported.

Two things are in the way. Python says `sys.platform == "android"` there, which llama-cpp-python refuses; and
the bindings repeat llama.cpp's C structures, which change from version to version, while Termux's package has
a version of its own: with another one, fields would silently mean something else.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import version
from types import ModuleType, SimpleNamespace
from typing import Any

GGML = {"0.3.36": "0.25.3"}
"""the version of ggml that each known version of llama-cpp-python was made for"""

DEFAULTS: dict[str, tuple[str, tuple[object, ...]]] = {
    "llama_model_default_params": (
        "@PP5iPPPP6?",
        (0, 0, -1, 1, -1, 1, 0, 0, 0, 0, 0, False, False, True, False, False, False),
    ),
    "llama_context_default_params": (
        "@7I7i6fIfPP2iPP6?PNP",
        (
            *(512, 2048, 512, 1, 0, 0, 1, 4, 4, 0, -1, -1, -1, -1),
            *(0.0, 0.0, -1.0, -1.0, -1.0, -1.0, 0, -1.0),
            *(0, 0, 1, 1, 0, 0, False, True, True, True, True, False, 0, 0, 0),
        ),
    ),
}
"""the structures that the bindings pass to llama.cpp, and what their library fills in"""

REMEDY = "Build llama.cpp for the bindings instead: android_demo/termux/setup.sh --build"


class _Large(ctypes.Structure):
    """Room for a structure that turned out longer than expected."""

    _fields_ = (("bytes", ctypes.c_ubyte * 4096),)


def check(library: ctypes.CDLL) -> None:
    """Raise RuntimeError if this llama.cpp is not the one the installed bindings were made for.

    A field that was only added at the end of a structure, within one version of ggml, is not noticed.
    """
    bindings = version("llama_cpp_python")
    if bindings not in GGML:
        known = ", ".join(GGML)
        raise RuntimeError(
            f"llama-cpp-python {bindings} is not known to work with Termux's llama.cpp ({known} is)"
        )
    found = "an older one"
    if hasattr(library, "ggml_version"):
        library.ggml_version.restype = ctypes.c_char_p
        found = library.ggml_version().decode()
    if found != GGML[bindings]:
        raise RuntimeError(
            f"llama-cpp-python {bindings} was made for ggml {GGML[bindings]}; "
            f"this llama.cpp has {found}. {REMEDY}"
        )
    for name, (layout, expected) in DEFAULTS.items():
        function = getattr(library, name)
        function.restype = _Large
        fields = struct.unpack_from(layout, bytes(function().bytes))
        function.restype = ctypes.c_int  # the bindings set theirs
        if fields != expected:
            raise RuntimeError(
                f"llama-cpp-python {bindings} was made for another llama.cpp: {name}() differs. {REMEDY}"
            )


def load_processor_backend(library: ctypes.CDLL, folder: str) -> None:
    """Termux builds llama.cpp's backends as plug-ins, which nobody else loads. Only the processor's."""
    library.ggml_backend_reg_count.restype = ctypes.c_size_t
    if library.ggml_backend_reg_count():
        return
    load = library.ggml_backend_load
    load.argtypes, load.restype = [ctypes.c_char_p], ctypes.c_void_p
    file = f"{folder}/libggml-cpu.so"
    if not load(file.encode()):
        raise RuntimeError(f"{file}, llama.cpp's processor backend, does not load")


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        """Run the module that loads libraries, telling it alone that this is Linux."""
        super().exec_module(module)
        names: Any = module
        names.sys = SimpleNamespace(**{**vars(sys), "platform": "linux"})
        load = names.load_shared_library

        def load_checked(name: str, folder: os.PathLike[str]) -> ctypes.CDLL:
            library: ctypes.CDLL = load(name, folder)
            # Without the variable it is the library that was built with the bindings.
            if name == "llama" and "LLAMA_CPP_LIB_PATH" in os.environ:
                check(library)
                load_processor_backend(library, os.fspath(folder))
            return library

        names.load_shared_library = load_checked


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "llama_cpp._ctypes_extensions":
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            return None
        spec.loader = _Loader(fullname, spec.origin)
        return spec


if sys.platform == "android":
    sys.meta_path.insert(0, _Finder())
