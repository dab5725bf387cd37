"""ONNX Runtime as a library: a model file checked and opened, its threads and its provider chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from edgespec.errors import BackendError, ModelError, UsageError

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
_LARGE = 256 << 20
_TOO_NEW = ("under development", "Unsupported model IR version", "is not a registered function/op")
"""what it says of opsets, files and operators that it does not know yet"""
LONGEST = 300
"""characters of a message of ONNX Runtime"""


@cache
def onnxruntime() -> ModuleType:
    """The package onnxruntime. Raises BackendError if it cannot be loaded."""
    try:
        import onnxruntime as module
    except ImportError as error:
        raise BackendError(
            f"the ONNX backend needs the package onnxruntime: pip install 'edgespec[onnx]' ({error})"
        ) from error
    loaded: ModuleType = module
    return loaded


def session_options(threads: int) -> Any:
    """Options for decoding: `threads` threads, which stop spinning as soon as a pass ends, so that the
    sessions of target and draft do not take cores from each other."""
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _FATAL  # errors arrive as exceptions
    options.enable_mem_pattern = False  # shapes change from pass to pass
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def open_session(
    path: Path,
    threads: int,
    provider: str | None,
    trial: Callable[[Any], None],
    adapt: Callable[[Path], bytes | None] = lambda _: None,
) -> tuple[Any, str]:
    """A session on a model file, and the name of its provider.

    provider: None is the CPU; `auto` the first installed one that passes `trial`, an inference; any
        other name forces it.
    adapt: may give a graph to load instead of the file's, with the same external data.
    Raises ModelError for files that cannot be used, UsageError for a provider that is unknown or not
    installed, BackendError for one that does not run the model.
    """
    ort = onnxruntime()
    check_files(path)
    graph = adapt(path)
    installed = [name for name, full in PROVIDERS.items() if full in ort.get_available_providers()]
    if provider not in (None, "auto", *PROVIDERS):
        raise UsageError(f"provider {provider!r} is unknown; choose from auto, {', '.join(PROVIDERS)}")
    if provider == "auto":
        for name in (name for name in _TRY_FIRST if name in installed):
            session = _try_or_none(path, graph, threads, name, trial)
            if session is not None:
                return session, name
    elif provider not in (None, "cpu"):
        assert provider is not None
        if provider not in installed:
            raise UsageError(
                f"provider {provider} is not in this build of onnxruntime, which has {', '.join(installed)}; "
                "install the package that has it, or leave --provider out"
            )
        return _try(path, graph, threads, provider, trial), provider
    return _try(path, graph, threads, "cpu", trial), "cpu"


def _try_or_none(
    path: Path, graph: bytes | None, threads: int, provider: str, trial: Callable[[Any], None]
) -> Any:
    try:
        return _try(path, graph, threads, provider, trial)
    except (BackendError, ModelError) as error:
        log.warning("provider %s is installed and does not run this model (%s)", provider, error)
        return None


def _try(path: Path, graph: bytes | None, threads: int, provider: str, trial: Callable[[Any], None]) -> Any:
    ort = onnxruntime()
    wanted = PROVIDERS[provider]
    chain = [wanted] if provider == "cpu" else [wanted, PROVIDERS["cpu"]]
    try:
        options = session_options(threads)
        if graph is not None:
            options.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", str(path.parent)
            )
        session = ort.InferenceSession(graph or str(path), options, providers=chain)
    except Exception as error:  # onnxruntime's exceptions have no common base
        if provider != "cpu":
            raise BackendError(f"provider {provider} cannot load {path.name}: {_reason(error)}") from error
        raise ModelError(f"{path} cannot be loaded: {_reason(error)}") from error
    if wanted not in session.get_providers():  # it falls back silently
        raise BackendError(f"provider {provider} did not start; its libraries or its device are missing")
    session.disable_fallback()
    try:
        trial(session)
    except Exception as error:
        if provider != "cpu":
            raise BackendError(f"provider {provider} fails on {path.name}: {_reason(error)}") from error
        if isinstance(error, ModelError | BackendError | UsageError):
            raise
        raise ModelError(f"{path} loads but does not run: {_reason(error)}") from error
    return session


def check_files(path: Path) -> None:
    """Raise ModelError if a model file is missing, damaged or newer than the runtime, or if its external
    data are missing or cut short: ONNX Runtime's own words for it are hard to read."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if size > _LARGE:  # the weights are inside: too long to parse twice
        return
    try:
        import onnx
        from onnx import TensorProto
    except ImportError:
        return
    try:
        model = onnx.load_model(str(path), load_external_data=False)
    except Exception as error:
        raise ModelError(f"{path} is not an ONNX model, or damaged ({type(error).__name__})") from error
    if not model.graph.node:
        raise ModelError(f"{path} is not an ONNX model, or damaged (it has no graph)")
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}
        location = Path(place.get("location", ""))
        if location.is_absolute() or ".." in location.parts:
            raise ModelError(f"{path.name} keeps weights outside of its folder ({location})")
        data = path.parent / location
        try:
            have = data.stat().st_size
            needed = int(place.get("offset", 0)) + int(place.get("length", 0))
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{data}, the weights of {path.name}, is missing; fetch or convert it again"
            ) from error
        if needed > have:
            raise ModelError(
                f"{data} is cut short: it has {have:,} bytes, and {tensor.name} ends at {needed:,}; "
                "fetch or convert it again"
            )


def _reason(error: Exception) -> str:
    """ONNX Runtime's message; of a long one its end, as source positions come first."""
    message = " ".join(str(error).split()) or type(error).__name__
    if len(message) > LONGEST:
        message = "…" + message[-LONGEST:]
    newer = any(sign in message for sign in _TOO_NEW)
    return f"it needs a newer onnxruntime ({message})" if newer else message
