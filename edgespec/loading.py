"""Loading a pair: what is asked for is checked, then target, drafters and controller are put together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from edgespec.backends.cache_folder import Folder
from edgespec.backends.caches import Caches, Kept
from edgespec.backends.conversion import has_conversion
from edgespec.backends.fingerprint import fingerprint
from edgespec.backends.llama_cpp import LlamaCppOptions
from edgespec.backends.loading import Settings, draft_file, open_backend
from edgespec.chat.templates import check_template
from edgespec.control.policy import FixedDepth, Policy
from edgespec.device.power import MODES, threads_for
from edgespec.drafters.base import Drafter
from edgespec.drafters.draft_model import DraftModel
from edgespec.drafters.ngram import NGram
from edgespec.errors import ModelError, UsageError
from edgespec.hub.model_file import ModelFile, Pair
from edgespec.hub.names import path_named
from edgespec.hub.onnx_folder import is_onnx
from edgespec.hub.resolve import best_installed_pair, resolve, resolve_pair
from edgespec.options import as_python
from edgespec.pairing import controlled, open_draft
from edgespec.planning import check_memory
from edgespec.runtime import Depth, Runtime
from edgespec.visible import shorten

log = logging.getLogger(__name__)

USUAL_DISK = 1 << 30
"""bytes of caches that may be saved"""
USUAL_DEPTH = 4
"""what backends are compared at where the depth changes from round to round"""


def load(
    pair: str | Path | None = None,
    *,
    draft: str | Path | None = None,
    depth: Depth = "auto",
    backend: str = "llama.cpp",
    draft_backend: str | None = None,
    provider: str | None = None,
    n_ctx: int | None = None,
    threads: int | None = None,
    kv_type: str | None = None,
    low_memory: bool = False,
    mmap: bool = True,
    gpu_layers: int | None = None,
    lora: str | Path | Sequence[str | Path] = (),
    chat_template: str | None = None,
    strict: bool = False,
    memory_check: bool = True,
    power: str = "performance",
    parallel: int = 1,
    cache_memory: int = 0,
    cache_dir: str | Path | None = None,
    cache_disk: int | None = None,
) -> Runtime:
    """Load a target with its drafter.

    pair: a catalog name ("qwen2.5-coder"), a path (of a GGUF file or of a folder with an ONNX model),
        "hf:owner/repo/file.gguf", "ollama:name" or "lmstudio:publisher/repo"; None: the best catalog
        pair on disk.
    draft: a model named likewise, "ngram" (prompt lookup), "rules" (only what a grammar forces, which the
        others begin with, too) or "none" (plain decoding); no depth goes with the last two but "auto" and
        0. None: the pair's own draft, or prompt lookup for a lone model.
    depth: tokens drafted per round; 0 is plain decoding. "auto" decides every round anew whether to
        draft, with the draft model or by lookup, and how deep, from measured costs and acceptance; with
        models that are new here it measures for some seconds first.
    backend, draft_backend: "llama.cpp", "onnx" (a GGUF model must have been converted) or "auto" (the
        faster one, measured once); the draft's is the target's unless given, and "onnx" for an ONNX model.
    provider: what ONNX Runtime computes on: "cpu" (the default), "auto", "cuda", …
    n_ctx: tokens of context; None: 4096, or what the model was trained for if that is less.
    threads, kv_type, mmap, gpu_layers, lora: see `LlamaCppOptions`; the ONNX
        backend refuses what it cannot honour. kv_type None: f16, and f32 in ONNX.
    low_memory: keep no copy of the weights in an order that llama.cpp is faster with.
    chat_template: Jinja source to use instead of the model's.
    strict: demand output bitwise equal to plain decoding; refused on backends that cannot give it.
    memory_check: refuse what cannot stay in memory, before anything is allocated (see docs/devices.md).
    power: "performance" takes a thread per big core, "balanced" half of them; "saver" takes one thread, and
        looks up where the pair would draft with a model.
    parallel: generations that may be under way at once, each in a thread of its own, taking turns on the
        models round by round, or all in one thread, sharing passes (`Runtime.step`); each has a KV cache of
        n_ctx tokens.
    cache_memory: bytes for the KV caches of conversations besides the last `parallel` ones.
    cache_dir, cache_disk: a folder that only this user can read, and how many bytes of KV caches are saved
        there when the runtime is closed (None: 1 GiB); the next one goes on from them. cache_dir None:
        nothing is saved, and no cache_disk is taken.

    Raises UsageError, ModelError (IncompatiblePair among them), NotEnoughMemory, BackendError. Nothing is
    downloaded.
    """
    depth, n_ctx, threads, gpu_layers = map(as_python, (depth, n_ctx, threads, gpu_layers))
    parallel, cache_memory, cache_disk = map(as_python, (parallel, cache_memory, cache_disk))
    numbers: dict[str, object] = {"depth": depth, "parallel": parallel, "cache_memory": cache_memory}
    optional: dict[str, object] = {"n_ctx": n_ctx, "threads": threads, "gpu_layers": gpu_layers}
    optional["cache_disk"] = cache_disk
    for name, value in {**numbers, **optional}.items():
        if name == "depth" and value == "auto":
            continue
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole or (value is None and name not in numbers)):
            raise UsageError(f"{name} is {value!r}; it must be a whole number")
    switches = {"low_memory": low_memory, "mmap": mmap, "strict": strict, "memory_check": memory_check}
    names = {"backend": backend, "draft_backend": draft_backend, "provider": provider, "power": power}
    _check_kinds(switches, bool, "True or False")
    _check_kinds({**names, "kv_type": kv_type}, str | None, "a name")
    _check_kinds({"cache_dir": cache_dir}, str | Path | None, "a path, or None")
    if parallel < 1 or min(cache_memory, cache_disk or 0) < 0:
        raise UsageError("parallel must be at least 1, and cache_memory and cache_disk 0 or more bytes")
    if cache_disk is not None and cache_dir is None:
        raise UsageError("--cache-disk limits what is saved in --cache-dir; give that, too, or leave it out")
    if provider is not None and backend == "llama.cpp" and draft_backend in (None, "llama.cpp"):
        raise UsageError("a provider is ONNX Runtime's; use it with --backend onnx, or leave it out")
    limit = LlamaCppOptions().max_rows - 1
    if depth != "auto" and not 0 <= depth <= limit:
        raise UsageError(f"depth is {depth}; it must be between 0 (plain decoding) and {limit}")
    if str(draft) in ("none", "rules") and depth not in ("auto", 0):
        why = "decodes plainly" if str(draft) == "none" else "drafts what a grammar forces"
        raise UsageError(
            f"--draft {draft} {why}, so --depth {depth} has no place; leave --depth out, or name a draft, "
            "such as --draft ngram"
        )
    _check_power(power, threads)
    if chat_template is not None:
        check_template(chat_template)
    named = _pair(str(pair) if pair is not None else None)
    wanted = named.draft if draft is None else str(draft)
    if power == "saver" and wanted not in _NO_MODEL:
        if draft is not None:
            raise UsageError("--power saver takes no draft model; leave --draft or --power out")
        wanted = "ngram"
    threads = threads if power == "performance" else threads_for(power)
    if wanted is None and depth == "auto":
        wanted = "ngram"
    settings = Settings(
        n_ctx=n_ctx,
        threads=threads,
        kv_type=kv_type,
        low_memory=low_memory,
        mmap=mmap,
        gpu_layers=gpu_layers,
        lora=_adapters(lora),
        provider=provider,
        strict=strict,
        sequences=parallel,
    )
    file, runs_on = None, draft_backend
    if wanted not in _NO_MODEL:
        file = resolve(wanted) if isinstance(wanted, str) else wanted
    if depth == 0:  # it was named, so it must exist
        file = None
    if file is not None:
        file = draft_file(file, draft_backend, backend, settings)
        runs_on = draft_backend or ("onnx" if is_onnx(file.path) else backend)
    ways = [(named.target, backend)] + ([] if file is None else [(file, runs_on or backend)])
    if provider not in (None, "auto", "cpu") and all(_stays_with_llama_cpp(*way) for way in ways):
        raise UsageError(
            f"provider {provider!r} is ONNX Runtime's, for which nothing here was converted; leave "
            f"--provider out, or convert the model first: edgespec convert {named.target.name} --portable"
        )
    if memory_check:
        check_memory(named.target, backend, file, runs_on, settings, cache_memory)
    folder = None
    if cache_dir is not None:
        budget = USUAL_DISK if cache_disk is None else cache_disk
        folder = Folder(path_named(str(cache_dir)), budget, _bits(settings))
    kept = Kept(cache_memory, folder)
    with ExitStack() as opened:  # what is loaded is freed again unless the runtime takes it over
        target = open_backend(named.target, backend, settings, USUAL_DEPTH if depth == "auto" else depth)
        opened.callback(target.close)
        if wanted not in (None, "none") and not target.capabilities.rollback:
            reason = f"{target.name} cannot speculate: {target.capabilities.reason}"
            if draft is not None:  # asked for by name: refuse rather than ignore
                raise UsageError(f"{reason}; leave --draft out")
            log.warning("%s; it decodes plainly", reason)
            wanted = None
        if draft_backend is not None and wanted in _NO_MODEL:
            raise UsageError("--draft-backend is for a draft model, and there is none; leave it out")
        model = None
        if file is not None and wanted is not None:
            loaded = open_draft(file, target, runs_on or backend, settings, _advice(named, draft))
            opened.callback(loaded.close)
            model = Caches(loaded, parallel, kept)
        drafters: list[Drafter] = []
        policy: Policy = FixedDepth(0)
        save: Callable[[], None] = _nothing
        if wanted == "rules" and depth != 0:
            policy = FixedDepth(1)
        elif wanted not in (None, "none") and depth != 0:
            if depth == "auto":
                drafters, policy, save = controlled(target, named.target, model, file, settings)
            else:
                drafters, policy = (
                    [NGram() if model is None else DraftModel(model.backend, caches=model)],
                    FixedDepth(depth),
                )
        runtime = Runtime(named.name, target, drafters, policy, depth, chat_template, save, parallel, kept)
        opened.pop_all()
        return runtime


_NO_MODEL = (None, "none", "ngram", "rules")
"""drafts that are no models"""


def _bits(settings: Settings) -> str:
    """What a KV cache depends on besides its model."""
    return repr((settings.kv_type, settings.provider, [fingerprint(path) for path in settings.lora]))


def _check_kinds(given: Mapping[str, object], kinds: Any, words: str) -> None:
    """Raise UsageError for an argument of another kind: a text, say, is true even where it says no."""
    for name, value in given.items():
        if not isinstance(value, kinds):
            raise UsageError(f"{name} is {value!r}; it must be {words}")


def _adapters(lora: str | Path | Sequence[str | Path]) -> tuple[Path, ...]:
    """The files of one or several names."""
    names = tuple(lora) if isinstance(lora, Iterable) and not isinstance(lora, str) else (lora,)
    if not all(isinstance(name, str | Path) for name in names):
        raise UsageError(f"lora is {lora!r}; it must be a path, or a list of them")
    paths = tuple(path_named(str(name)) for name in names)
    for path in paths:
        try:
            why = None if path.is_file() else "there is no such file"
        except OSError as error:  # it is where this user may not look, or its name is too long
            why = error.strerror or str(error)
        if why is not None:
            raise ModelError(f"the LoRA adapter {shorten(str(path))} cannot be read: {why}")
    return paths


def _stays_with_llama_cpp(file: ModelFile, backend: str) -> bool:
    """Whether nothing else would run the model."""
    return backend == "llama.cpp" or (
        backend == "auto" and not is_onnx(file.path) and not has_conversion(file)
    )


def _check_power(power: str, threads: int | None) -> None:
    if power not in MODES:
        raise UsageError(f"power is {power!r}; choose from {', '.join(MODES)}")
    if power != "performance" and threads is not None:
        raise UsageError(f"--power {power} says how many threads; leave it or --threads out")


def _nothing() -> None:
    pass


def _pair(name: str | None) -> Pair:
    if name is not None:
        return resolve_pair(name)
    best = best_installed_pair()
    if best is None:
        raise UsageError("no model is on this machine yet; fetch one: edgespec pull smollm2-135m")
    return best


def _advice(pair: Pair, asked: str | Path | None) -> str:
    """Which draft would fit instead."""
    if asked is not None and isinstance(pair.draft, ModelFile):
        return f"{pair.draft.title} fits (leave --draft out); so does --draft ngram"
    return "Use --draft ngram, which fits every target"
