"""Which runtime opens a model, and with which of the user's options."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.backends.base import Backend
from edgespec.backends.conversion import conversion_of, has_conversion, trimmed_draft_of
from edgespec.backends.fingerprint import identity
from edgespec.backends.llama_cpp import LlamaCpp, LlamaCppOptions
from edgespec.backends.speed import fastest
from edgespec.convert.folder import VOCABULARY, is_trimmed, read_report
from edgespec.errors import UsageError
from edgespec.hub.gguf_info import read_info
from edgespec.hub.model_file import ModelFile
from edgespec.hub.onnx_folder import is_onnx, trained_context

log = logging.getLogger(__name__)

BACKENDS = ("llama.cpp", "onnx", "auto")


@dataclass(frozen=True)
class Settings:
    """How to load a model; None leaves the choice to the backend."""

    n_ctx: int | None = None
    threads: int | None = None
    kv_type: str | None = None
    low_memory: bool = False
    mmap: bool = True
    gpu_layers: int | None = None
    lora: tuple[Path, ...] = ()
    provider: str | None = None
    strict: bool = False
    sequences: int = 1
    """KV caches that can be in use at once"""

    @property
    def conditions(self) -> str:
        """What passes cost depends on these, where they are not as usual."""
        chosen = {
            "kv": self.kv_type,
            "provider": self.provider,
            "gpu-layers": self.gpu_layers,
            "lora": "+".join(map(identity, self.lora)) or None,
            "sequences": None if self.sequences == 1 else self.sequences,
        }
        named = [f"{name}={value}" for name, value in chosen.items() if value is not None]
        named += ["low-memory"] * self.low_memory + ["strict"] * self.strict
        return " ".join(named)


def open_backend(
    file: ModelFile, backend: str, settings: Settings, depth: int, *, drafts: bool = False
) -> Backend:
    """Load a model with one of BACKENDS; `drafts`: only to draft with it.

    auto: llama.cpp for a GGUF file, ONNX Runtime for an ONNX model; of both, where a GGUF file has
        been converted, the faster one at verifying `depth` tokens, as measured here once.
    Raises UsageError for a backend that does not run such a model or cannot honour the settings, and for
    a trimmed draft that is no draft here; ModelError and BackendError as the backends do.
    """
    if not drafts and is_trimmed(file.path):
        raise UsageError(
            f"{file.path.name} can only draft: its output head has some of the tokens only. Name the model "
            f"whose answers you want, and this one with --draft {file.name}"
        )
    if backend not in BACKENDS:
        raise UsageError(f"backend {backend!r} is unknown; choose from {', '.join(BACKENDS)}")
    if backend == "auto":
        backend = choose(file, settings, depth)
    return _llama_cpp(file, settings) if backend == "llama.cpp" else _onnx(file, settings)


def draft_file(file: ModelFile, backend: str | None, target_backend: str, settings: Settings) -> ModelFile:
    """What is loaded where a model is named as draft: a trimmed one that was made of it, if it would run on
    ONNX Runtime."""
    backend = backend or target_backend
    if backend == "llama.cpp" or is_onnx(file.path):
        return file
    if backend == "auto":
        try:
            _check_onnx(replace(settings, lora=(), gpu_layers=None))
        except UsageError:
            return file
    trimmed = trimmed_draft_of(file, settings.provider)
    if trimmed is not None:
        log.warning("drafting with the trimmed %s", trimmed.title)
    return trimmed or file


def context_of(file: ModelFile) -> int | None:
    """Tokens a model was trained for, where its files say so."""
    if not is_onnx(file.path):
        return read_info(file.path).context_length
    vocabulary = file.path / VOCABULARY
    return read_info(vocabulary).context_length if vocabulary.is_file() else trained_context(file.path)


def choose(file: ModelFile, settings: Settings, depth: int) -> str:
    """What auto comes to, for `open_backend`."""
    if is_onnx(file.path):
        return "onnx"
    if not has_conversion(file):
        return "llama.cpp"
    if settings.strict:
        return "onnx"
    try:
        _check_onnx(settings)
        if settings.low_memory:
            _check_copies(conversion_of(file, settings.provider), settings)
    except UsageError:
        return "llama.cpp"
    openers: dict[str, Callable[[], Backend]] = {
        "llama.cpp": lambda: _llama_cpp(file, settings),
        "onnx": lambda: _onnx(file, settings),
    }
    name, why = fastest(file.path, openers, settings.threads, depth, settings.conditions)
    log.warning("%s runs on %s: %s", file.title, name, why)
    return name


def _check_llama_cpp(settings: Settings) -> None:
    if settings.strict:
        raise UsageError(
            "strict output is not possible with llama.cpp: it computes a token alone and in a batch with "
            "different kernels, so logits differ slightly and near-ties can flip; leave --strict out, or "
            "use --backend onnx"
        )


def _llama_cpp(file: ModelFile, settings: Settings) -> Backend:
    if is_onnx(file.path):
        raise UsageError(f"{file.title} is an ONNX model; run it with --backend onnx")
    _check_llama_cpp(settings)
    options = LlamaCppOptions(
        n_ctx=settings.n_ctx,
        threads=settings.threads,
        kv_type=settings.kv_type or "f16",
        repack=not settings.low_memory,
        mmap=settings.mmap,
        gpu_layers=settings.gpu_layers,
        lora=settings.lora,
        sequences=settings.sequences,
    )
    return LlamaCpp(file.path, options, name=file.title)


def _check_onnx(settings: Settings) -> None:
    if settings.lora:
        raise UsageError("LoRA adapters need llama.cpp; leave --lora out, or use --backend llama.cpp")
    if settings.gpu_layers:
        raise UsageError("--gpu-layers is llama.cpp's; ONNX Runtime takes --provider")
    if settings.kv_type is not None:
        from edgespec.backends.onnx_buffers import kv_type

        kv_type(settings.kv_type)
    if not settings.mmap:
        raise UsageError("--no-mmap is llama.cpp's; leave it out with ONNX models")


def _check_copies(path: Path, settings: Settings) -> None:
    if not settings.low_memory:
        return
    report = read_report(path)
    if report is None or report.portable:
        raise UsageError(
            f"{path.name} runs on ONNX Runtime's own operators, which keep a copy of the weights; leave "
            "--low-memory out, or use a conversion for edgespec's kernels, or llama.cpp"
        )


def _onnx(file: ModelFile, settings: Settings) -> Backend:
    from edgespec.backends.onnx import Onnx, OnnxOptions

    _check_onnx(settings)
    options = OnnxOptions(
        n_ctx=settings.n_ctx,
        threads=settings.threads,
        provider=settings.provider,
        strict=settings.strict,
        kv_type=settings.kv_type,
        sequences=settings.sequences,
    )
    path = file.path if is_onnx(file.path) else conversion_of(file, settings.provider)
    _check_copies(path, settings)
    return Onnx(path, options, name=file.title)
