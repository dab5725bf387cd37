"""ONNX Runtime as a library: a model file checked and opened, its threads and its provider chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from edgespec.backends.onnx_files import read_graph
from edgespec.backends.onnx_tiles import check_kernels, uses_kernels
from edgespec.convert.folder import remedy
from edgespec.errors import BackendError, ModelError, UsageError
from edgespec.kernels import library

log = logging.getLogger("edgespec.onnx")

PROVIDERS: Mapping[str, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "qnn": "QNNExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "nnapi": "NnapiExecutionProvider",
    "xnnpack": "XnnpackExecutionProvider",
}
"""What runs a graph: names for people → ONNX Runtime's. `auto` tries them."""
_TRY_FIRST = ("cuda", "coreml", "qnn")
_FATAL = 4
_TOO_NEW = ("under development", "Unsupported model IR version", "is not a registered function/op")
"""what it says of opsets, files and operators that it does not know yet"""
LONGEST = 300
"""characters of a message of ONNX Runtime"""


@cache
def onnxruntime() -> ModuleType:
    """The package onnxruntime. Raises BackendError if it cannot be loaded."""
    try:
        return library.import_onnxruntime()
    except ImportError as error:
        raise BackendError(
            f"the ONNX backend needs the package onnxruntime: pip install 'edgespec[onnx]' ({error})"
        ) from error


def session_options(threads: int) -> Any:
    """Options for decoding with `threads` threads."""
    ort = onnxruntime()
    options = ort.SessionOptions()
    _set_threads(options, threads)
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _FATAL  # errors arrive as exceptions
    options.enable_mem_pattern = False  # shapes change from pass to pass
    return options


def _set_threads(options: Any, threads: int) -> None:
    """A pool for each session, which sleeps as soon as a pass ends: target and draft take turns, so one of
    the pools is always asleep. The pool that all sessions can share would spin between passes too (through
    all of a gap of 20 ms), cannot be told not to, and has one size for all models of the process."""
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.force_spinning_stop", "1")


def open_session(
    path: Path,
    threads: int,
    provider: str | None,
    trial: Callable[[Any], None],
    adapt: Callable[[Path], bytes | None] = lambda _: None,
) -> tuple[Any, str]:
    """A session on a model file, and the name of its provider.

    provider: None is the CPU; `auto` the first installed one that passes `trial`, an inference; any
        other name forces it. Our kernels compute on the CPU: a graph with them is not tried elsewhere.
    adapt: may give a graph to load instead of the file's, with the same external data.
    Raises ModelError for files that cannot be used, UsageError for a provider that is unknown, not
    installed or not for such a graph, BackendError for one that does not run the model.
    """
    named = accelerator(provider)
    kernels = _needs_kernels(path)
    if kernels and named is not None:
        raise UsageError(
            f"{path.parent.name} was converted for edgespec's kernels, which compute on the CPU; leave "
            f"--provider out, or convert its source again for {named}: edgespec convert NAME --portable"
        )
    opening = _Opening(path, adapt(path), kernels, threads, trial)
    if named is not None:
        return _try(opening, named), named
    if provider == "auto" and not kernels:
        installed = _installed()
        for name in (name for name in _TRY_FIRST if name in installed):
            session = _try_or_none(opening, name)
            if session is not None:
                return session, name
    return _try(opening, "cpu"), "cpu"


def accelerator(provider: str | None) -> str | None:
    """The provider a user insists on, if it is not the CPU. Raises UsageError if it is unknown or not
    installed."""
    if provider not in (None, "auto", *PROVIDERS):
        raise UsageError(f"provider {provider!r} is unknown; choose from auto, {', '.join(PROVIDERS)}")
    if provider in (None, "auto", "cpu"):
        return None
    installed = _installed()
    if provider not in installed:
        raise UsageError(
            f"provider {provider} is not in this build of onnxruntime, which has {', '.join(installed)}; "
            "install the package that has it, or leave --provider out"
        )
    return provider


def _installed() -> list[str]:
    available = onnxruntime().get_available_providers()
    return [name for name, full in PROVIDERS.items() if full in available]


@dataclass(frozen=True)
class _Opening:
    """A model to be opened."""

    path: Path
    graph: bytes | None
    """to be loaded instead of the file's"""
    kernels: bool
    """whether it has our operators"""
    threads: int
    trial: Callable[[Any], None]

    def session(self, providers: list[str]) -> Any:
        """Raises whatever onnxruntime raises."""
        options = session_options(self.threads)
        if self.kernels:
            library.register(options)
        if self.graph is not None:
            options.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", str(self.path.parent)
            )
        model = self.graph or str(self.path)
        return onnxruntime().InferenceSession(model, options, providers=providers)


def _needs_kernels(path: Path) -> bool:
    """Whether a model has our operators. Raises ModelError for files that cannot be used."""
    model = read_graph(path)
    if model is None or not uses_kernels(model):
        return False
    check_kernels(model, remedy(path.parent))
    if (why := library.unavailable()) is not None:
        raise ModelError(
            f"{path.parent.name} was converted for edgespec's kernels, which do not work here ({why}); "
            "convert its source again with edgespec convert --portable"
        )
    return True


def _try_or_none(opening: _Opening, provider: str) -> Any:
    try:
        return _try(opening, provider)
    except (BackendError, ModelError) as error:
        log.warning("provider %s is installed and does not run this model (%s)", provider, error)
        return None


def _try(opening: _Opening, provider: str) -> Any:
    path = opening.path
    wanted = PROVIDERS[provider]
    chain = [wanted] if provider == "cpu" else [wanted, PROVIDERS["cpu"]]
    try:
        session = opening.session(chain)
    except Exception as error:  # onnxruntime's exceptions have no common base
        if provider != "cpu":
            raise BackendError(f"provider {provider} cannot load {path.name}: {_reason(error)}") from error
        raise ModelError(f"{path} cannot be loaded: {_reason(error)}") from error
    if wanted not in session.get_providers():  # it falls back silently
        raise BackendError(f"provider {provider} did not start; its libraries or its device are missing")
    session.disable_fallback()
    try:
        opening.trial(session)
    except Exception as error:
        if provider != "cpu":
            raise BackendError(f"provider {provider} fails on {path.name}: {_reason(error)}") from error
        if isinstance(error, ModelError | BackendError | UsageError):
            raise
        raise ModelError(f"{path} loads but does not run: {_reason(error)}") from error
    return session


def _reason(error: Exception) -> str:
    """ONNX Runtime's message; of a long one its end, as source positions come first."""
    message = " ".join(str(error).split()) or type(error).__name__
    if len(message) > LONGEST:
        message = "…" + message[-LONGEST:]
    newer = any(sign in message for sign in _TOO_NEW)
    return f"it needs a newer onnxruntime ({message})" if newer else message
