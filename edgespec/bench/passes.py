"""What forward passes of a benchmark cost: which model's, of how many tokens, behind how long a context."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from edgespec.backends.base import Backend, Step
from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.backends.onnx_files import read_graph
from edgespec.hub.gguf_info import read_info
from edgespec.hub.onnx_folder import is_onnx, model_in

CONTEXTS = (256, 1024, 4096, 16384, 65536)
"""passes are sorted by the first of these that their context does not exceed"""
OF_SOME_ROWS = {"Gather", "GatherBlockQuantized", "Attention", "GroupQueryAttention", "RotaryEmbedding"}
"""operators that read a few rows of their tables: of embeddings, of angles"""


@dataclass(frozen=True)
class Model:
    """A loaded model, as far as its passes are concerned."""

    name: str
    bytes_per_pass: int | None
    """of weights; None where the files do not say"""

    @staticmethod
    def of(backend: Backend) -> Model:
        runtime = "llama.cpp" if isinstance(backend, LlamaCpp) else "ONNX Runtime"
        return Model(f"{backend.name}, {runtime}", bytes_per_pass(backend.path))


class Pass(NamedTuple):
    """Passes of one kind: their median seconds."""

    model: str
    n: int
    """tokens fed"""
    context: int
    """one of CONTEXTS"""
    seconds: float
    seen: int
    """how often"""


def bytes_per_pass(path: Path) -> int | None:
    """Bytes of weights that a pass of one token reads from memory. Keys and values are not counted."""
    if not is_onnx(path):
        return read_info(path).bytes_per_token
    file = model_in(path) if path.is_dir() else path
    graph = read_graph(file) if file is not None else None
    if graph is None:
        return None
    readers = defaultdict(set)
    for node in graph.graph.node:
        for name in node.input:
            readers[name].add(node.op_type)
    total = 0
    for tensor in graph.graph.initializer:
        if not readers[tensor.name] <= OF_SOME_ROWS:
            place = {entry.key: entry.value for entry in tensor.external_data}
            total += int(place.get("length", len(tensor.raw_data)))
    return total


def summarize(steps: Iterable[tuple[str, Step]]) -> list[Pass]:
    """Single passes (model, step), by kind."""
    seconds: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for model, step in steps:
        context = next((c for c in CONTEXTS if step.length <= c), CONTEXTS[-1])
        seconds[model, step.n, context].append(step.seconds)
    return [Pass(*kind, median(found), len(found)) for kind, found in sorted(seconds.items())]


def merge(passes: Iterable[Pass]) -> list[Pass]:
    """Passes of several prompts, by kind: the median over prompts, each as often as it had such passes."""
    found: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for p in passes:
        found[p.model, p.n, p.context] += [p.seconds] * p.seen
    return [Pass(*kind, median(seconds), len(seconds)) for kind, seconds in sorted(found.items())]


def total_bytes(steps: Sequence[Step], model: Model | None) -> int | None:
    """Bytes of weights these passes of a model read; None where that is not known."""
    if not steps:
        return 0
    return len(steps) * model.bytes_per_pass if model and model.bytes_per_pass is not None else None
