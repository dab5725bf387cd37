"""What fits into memory: a plan for each pair, and the refusal of a load that would not."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgespec.backends.conversion import conversion_of, has_conversion, trimmed_draft_of
from edgespec.backends.footprint import (
    RUNTIME,
    Footprint,
    Sizes,
    converted_sizes,
    estimated_sizes,
    gguf_sizes,
    llama_cpp,
    onnx,
    trimmed_ids,
)
from edgespec.backends.llama_library import llama
from edgespec.backends.loading import Settings
from edgespec.backends.onnx_files import weights_of
from edgespec.convert.folder import PORTABLE_SUFFIX, is_converted
from edgespec.device.memory import find_available, resident_memory
from edgespec.errors import BackendError, ModelError, NotEnoughMemory, UsageError
from edgespec.hub import store
from edgespec.hub.catalog import CatalogPair, RemoteFile
from edgespec.hub.model_file import ModelFile, Pair
from edgespec.hub.onnx_folder import is_onnx, model_in
from edgespec.hub.sizes import human

DEFAULT_CONTEXT = 4096
SHORTEST = 512
"""tokens of context below which a plan does not go"""
CHOICES = (("onnx", "f32"), ("onnx", "f16"), ("llama.cpp", "f16"), ("llama.cpp", "q8_0"))
"""backend and type of the KV cache: what is given up first comes first"""


@dataclass(frozen=True)
class Plan:
    """One way to run a pair, and what it takes. Bytes."""

    pair: str
    backend: str
    n_ctx: int
    kv_type: str
    drafter: str
    """`ngram`, or the draft model's name"""
    target: Footprint
    draft: Footprint | None
    runtime: int
    estimated: bool
    """a file is not on this machine: its sizes are the catalog's"""

    @property
    def needed(self) -> int:
        """What must stay in memory for full speed."""
        return self.runtime + self.target.needed + (self.draft.needed if self.draft else 0)

    @property
    def peak(self) -> int:
        """What is in memory where there is plenty."""
        return self.runtime + self.target.peak + (self.draft.peak if self.draft else 0)

    @property
    def options(self) -> str:
        """What asks for it on the command line."""
        drafter = " --draft ngram" if self.draft is None else ""
        return f"--backend {self.backend} --ctx {self.n_ctx} --kv-type {self.kv_type}{drafter}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "needed": self.needed, "peak": self.peak, "options": self.options}

    def items(self) -> list[tuple[str, int]]:
        """What it consists of, in words."""
        found = []
        for role, part in (("target", self.target), ("draft", self.draft)):
            if part is not None:
                found += [(f"{role}: {name}", size) for name, size in _parts(part) if size]
        return [*found, ("Python and libraries", self.runtime)]


def _parts(part: Footprint) -> Iterator[tuple[str, int]]:
    yield "weights, mapped", part.weights
    yield "weights, private copies", part.copies
    yield "KV cache", part.kv
    yield "buffers", part.buffers
    yield "tokenizer", part.tokenizer


def plans(pair: CatalogPair | Pair, n_ctx: int | None = None) -> list[Plan]:
    """All ways to run a pair on this machine, best first: with its draft model before without, fast backends
    before slow ones, long contexts before short ones. n_ctx: that context only.

    Raises UsageError for a longer context than the model takes, and for a target of which too little is
    known; ModelError for a damaged file.
    """
    targets = dict(_sizes(pair.target, draft=False))
    draft = pair.draft if pair.draft != "ngram" else None
    drafts = dict(_sizes(draft, draft=True)) if draft is not None else {}
    if not targets:
        raise UsageError(
            f"there is no plan for {pair.name}: of an ONNX model made by others only the size of its files "
            f"is known, {human(pair.target.size or 0)}"
        )
    trained = max(sizes.context for sizes, *_ in targets.values())
    if n_ctx is not None and not 1 <= n_ctx <= trained:
        raise UsageError(f"a context of {n_ctx} tokens was asked for; {pair.name} takes 1 to {trained}")
    contexts = [n_ctx] if n_ctx is not None else _halved(min(DEFAULT_CONTEXT, trained))
    estimated = isinstance(pair, CatalogPair) and not all(map(store.present, pair.files))

    def plan(context: int, drafted: bool, backend: str, kv_type: str) -> Plan:
        one = _footprint(*targets[backend], context, kv_type)
        two = _footprint(*drafts[backend], context, kv_type) if drafted else None
        name = draft.name if drafted and draft is not None else "ngram"
        return Plan(pair.name, backend, context, kv_type, name, one, two, RUNTIME[backend], estimated)

    return [
        plan(context, drafted, backend, kv_type)
        for context in contexts
        for drafted in (True, False)
        for backend, kv_type in CHOICES
        if backend in targets and (not drafted or backend in drafts)
    ]


def best_plan(found: Sequence[Plan], available: int) -> Plan | None:
    """The first that fits."""
    return next((plan for plan in found if plan.needed <= available), None)


def check_memory(
    target: ModelFile,
    backend: str,
    draft: ModelFile | None,
    draft_backend: str | None,
    settings: Settings,
    cache_memory: int = 0,
) -> None:
    """Raise NotEnoughMemory if models that are about to be loaded cannot stay in memory, with as many bytes
    of caches of earlier conversations. Of what computes on a GPU nothing is known, so it is not checked; of
    ONNX models made by others only the weights count. For the backend `auto` the one that takes least counts.
    """
    if settings.provider not in (None, "cpu") or _on_gpu(target, backend, settings):
        return
    parts, runtimes = [], []
    for role, file, named in (("target", target, backend), ("draft", draft, draft_backend or backend)):
        if file is None:
            continue
        choices = [named]
        if named == "auto":
            choices = ["onnx"] if is_onnx(file.path) else ["llama.cpp", *["onnx"] * has_conversion(file)]
        ways = [(part, way) for way in choices if way in RUNTIME and (part := _loaded(file, way, settings))]
        if not ways:  # it cannot be loaded; who tries says why
            return
        least, runs_on = min(ways, key=lambda way: way[0].needed)
        parts.append((f"{role} {file.title}", least))
        runtimes.append(RUNTIME[runs_on])
    needed = max(0, max(runtimes) - resident_memory()) + sum(part.needed for _, part in parts) + cache_memory
    available = find_available()
    if needed > available.bytes:
        gc.collect()  # a runtime that was dropped, and not closed, is freed now
        available = find_available()
    if needed <= available.bytes:
        return
    lines = [f"  {who}: {', '.join(f'{n} {human(s)}' for n, s in _parts(part) if s)}" for who, part in parts]
    if cache_memory:
        lines.append(f"  caches of earlier conversations: {human(cache_memory)}")
    raise NotEnoughMemory(
        f"{target.title} would take {human(needed)}, and {available.source} has "
        f"{human(available.bytes)} left; nothing was loaded.\n"
        + "\n".join(lines)
        + f"\nSee what fits: edgespec plan {target.name}. A smaller --ctx, a smaller --kv-type"
        + (", a smaller --parallel" if settings.sequences > 1 else "")
        + (", a smaller --cache-memory" if cache_memory else "")
        + (" or --draft ngram" if draft else "")
        + " may do; --no-memory-check goes on anyway"
    )


def _on_gpu(file: ModelFile, backend: str, settings: Settings) -> bool:
    if backend == "onnx" or is_onnx(file.path) or settings.gpu_layers == 0:
        return False  # llama.cpp need not even be here
    return bool(llama().llama_supports_gpu_offload())


def _loaded(file: ModelFile, backend: str, settings: Settings) -> Footprint | None:
    """What a file takes on a backend, with all its caches; None if it cannot be known."""
    found = _with_one_cache(file, backend, settings)
    return None if found is None else replace(found, kv=found.kv * settings.sequences)


def _with_one_cache(file: ModelFile, backend: str, settings: Settings) -> Footprint | None:
    try:
        if backend == "llama.cpp":
            sizes = gguf_sizes(file.path)
            n_ctx = min(settings.n_ctx or DEFAULT_CONTEXT, sizes.context)
            return llama_cpp(sizes, n_ctx, settings.kv_type or "f16", not settings.low_memory, settings.mmap)
        folder = file.path if is_onnx(file.path) else conversion_of(file)
        if not is_converted(folder):
            return Footprint(0, _weights(folder), 0, 0, 0)
        sizes = converted_sizes(folder)
        return _onnx(folder, sizes, min(settings.n_ctx or DEFAULT_CONTEXT, sizes.context), settings.kv_type)
    except (ModelError, BackendError, UsageError, OSError, KeyError):
        return None


def _weights(path: Path) -> int:
    """Bytes of the weights of an ONNX model made by others, whose folder may have it in other precisions too.
    Raises ModelError as `weights_of` does."""
    model = model_in(path) if path.is_dir() else path
    return 0 if model is None else sum(file.stat().st_size for file in weights_of(model))


def _onnx(folder: Path, sizes: Sizes, n_ctx: int, kv_type: str | None) -> Footprint:
    return onnx(sizes, n_ctx, kv_type or "f32", folder.name.endswith(PORTABLE_SUFFIX), trimmed_ids(folder))


def _sizes(file: ModelFile | RemoteFile, draft: bool) -> Iterator[tuple[str, tuple[Sizes, Path | None]]]:
    """Of a model, by the backends that can run it here; with the folder of a conversion."""
    if isinstance(file, RemoteFile):
        if not store.present(file):
            yield "llama.cpp", (estimated_sizes(file), None)
            return
        file = ModelFile(file.key, store.path_of(file), 0, "store", file.name)
    if not is_onnx(file.path):
        yield "llama.cpp", (gguf_sizes(file.path), None)
    folder = file.path if is_onnx(file.path) else None
    if folder is None and draft and (trimmed := trimmed_draft_of(file)) is not None:
        folder = trimmed.path
    if folder is None and has_conversion(file):
        folder = conversion_of(file)
    if folder is not None and is_converted(folder):
        yield "onnx", (converted_sizes(folder), folder)


def _footprint(sizes: Sizes, folder: Path | None, n_ctx: int, kv_type: str) -> Footprint:
    n_ctx = min(n_ctx, sizes.context)
    if folder is None:
        return llama_cpp(sizes, n_ctx, kv_type)
    return _onnx(folder, sizes, n_ctx, kv_type)


def _halved(n_ctx: int) -> list[int]:
    found = [n_ctx]
    while found[-1] > SHORTEST:
        found.append(max(SHORTEST, found[-1] // 2))
    return found
