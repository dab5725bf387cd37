"""The reference of a benchmark: plain llama.cpp on the GGUF file of the same target."""

from __future__ import annotations

from pathlib import Path

from edgespec.backends.base import Backend
from edgespec.backends.llama_cpp import LlamaCpp, LlamaCppOptions
from edgespec.backends.loading import Settings
from edgespec.backends.speed import REPEATS, known_seconds, pass_seconds
from edgespec.bench.passes import CONTEXTS, Model, Pass
from edgespec.control.policy import FixedDepth
from edgespec.convert.folder import read_report
from edgespec.convert.origin import is_made_from
from edgespec.errors import NotEnoughMemory, UsageError
from edgespec.hub.gguf_header import split_parts
from edgespec.hub.onnx_folder import is_onnx
from edgespec.hub.resolve import resolve
from edgespec.planning import check_memory
from edgespec.runtime import Runtime

RUNTIME = "llama.cpp"


def open_reference(target: Backend, threads: int | None) -> Runtime | None:
    """Load it beside a target that runs on something else; None where the target is llama.cpp's already, so
    that plain decoding is the reference.

    Raises UsageError where the target has no GGUF file, NotEnoughMemory where one model more does not fit.
    """
    if isinstance(target, LlamaCpp):
        return None
    file = _gguf_of(target.path)
    try:
        check_memory(resolve(str(file)), RUNTIME, None, None, Settings(n_ctx=target.n_ctx))
    except NotEnoughMemory as error:
        raise NotEnoughMemory(
            f"the reference does not fit beside the models already loaded; leave --reference out.\n{error}"
        ) from None
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
    if report is None or source is None or not all(part.is_file() for part in split_parts(source)):
        raise UsageError(
            f"there is no GGUF file of {path.name}, which plain llama.cpp would run as reference; leave "
            "--reference out"
        )
    if not is_made_from(report, source):
        raise UsageError(
            f"{path.name} was made from another file than {source.name} beside it; leave --reference out"
        )
    return source
