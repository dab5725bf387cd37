"""The reference of a benchmark: plain llama.cpp on the GGUF file of the same target."""

from __future__ import annotations

from pathlib import Path

from edgespec.backends.base import Backend
from edgespec.backends.llama_cpp import LlamaCpp, LlamaCppOptions
from edgespec.backends.speed import REPEATS, known_seconds, pass_seconds
from edgespec.bench.passes import CONTEXTS, Model, Pass
from edgespec.control.policy import FixedDepth
from edgespec.convert.folder import read_report
from edgespec.device.memory import available_memory
from edgespec.errors import UsageError
from edgespec.hub.gguf_info import read_info
from edgespec.hub.onnx_folder import is_onnx
from edgespec.hub.sizes import human
from edgespec.runtime import Runtime

RUNTIME = "llama.cpp"


def open_reference(target: Backend, threads: int | None) -> Runtime | None:
    """Load it beside a target that runs on something else; None where the target is llama.cpp's already, so
    that plain decoding is the reference.

    Raises UsageError where the target has no GGUF file, or memory does not allow one model more.
    """
    if isinstance(target, LlamaCpp):
        return None
    file = _gguf_of(target.path)
    _check_memory(file, target.n_ctx)
    backend = LlamaCpp(file, LlamaCppOptions(n_ctx=target.n_ctx, threads=threads))
    pass_seconds(file, RUNTIME, backend, threads)  # now, as the runtime takes its only sequence
    return Runtime(file.stem, backend, (), FixedDepth(0), 0)


def measured_passes(reference: Runtime, threads: int | None) -> list[Pass]:
    """Its cost curve, of which plain decoding shows a single point."""
    seconds = known_seconds(reference.target.path, RUNTIME, threads) or {}
    name = Model.of(reference.target).name
    return [Pass(name, n, CONTEXTS[0], found, REPEATS) for n, found in seconds.items()]


def _gguf_of(path: Path) -> Path:
    """What an ONNX model was converted from."""
    if not is_onnx(path):
        return path
    report = read_report(path)
    source = path.with_name(report.source) if report else None
    if report is None or source is None or not source.is_file():
        raise UsageError(
            f"there is no GGUF file of {path.name}, which plain llama.cpp would run as reference; leave "
            "--reference out"
        )
    if source.stat().st_size != report.source_bytes:
        raise UsageError(
            f"{path.name} was made from another file than {source.name} beside it; leave --reference out"
        )
    return source


def _check_memory(file: Path, n_ctx: int) -> None:
    """All weights are read in every pass: a model that is not in memory as a whole is measured from disk."""
    info = read_info(file)
    needed = info.file_bytes + (info.kv_bytes_per_token or 0) * n_ctx
    available = available_memory()
    if needed > available:
        raise UsageError(
            f"the reference, {file.name} with llama.cpp, takes {human(needed)} beside the models already "
            f"loaded, and {human(available)} are free; leave --reference out, or lower --ctx"
        )
