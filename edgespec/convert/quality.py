"""How good a converted model is: teacher-forced on a short text, against llama.cpp on the same GGUF.

The text is the beginning of Lewis Carroll's Alice's Adventures in Wonderland (1865), in the public
domain. What llama.cpp differs from itself by, feeding one token at a time instead of many, is measured
along: both runtimes round activations to 8 bits, so no two ways of computing agree better than that.

The first token is reported apart. Some models give it activations hundreds of times larger than any
others, and llama.cpp, which rounds those of a K-quant in blocks of 256, may get its logits quite wrong
(Qwen2.5-Coder-1.5B: 5 nats from float32 arithmetic, edgespec's kernels 0.01). Only a prompt of one token
would notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Backend, Logits, Segment
from edgespec.backends.llama_cpp import LlamaCpp, LlamaCppOptions
from edgespec.backends.onnx import Onnx, OnnxOptions
from edgespec.convert.reference import reference_logits
from edgespec.convert.source import Source
from edgespec.hub.gguf_info import read_info
from edgespec.hub.progress import Progress

TOKENS = 256
PASS = 32
WARN_KL, WARN_TOP1 = 0.02, 0.95
"""A conversion is suspicious beyond these, unless llama.cpp differs from itself by as much."""
LEVEL, NOTHING = 2.0, 1e-3
"""times the KL divergence of llama.cpp from itself, and nats on top: suspicious beyond them if the weights
are the source's own"""

Floats = NDArray[np.float64]


def measure_quality(source: Path, folder: Path, full: bool, progress: Progress) -> dict[str, Any]:
    """Compare a conversion with its source. `full`: both also with float32 arithmetic.

    The result holds, for each comparison `a vs b`: `top1` (share of positions with the same most
    probable token), `kl` (mean KL divergence of b from a, nats), `logit` (mean absolute difference of
    logits), `kl_first` (of the first token, which the others leave out); and for each of them the
    perplexity on the text.
    """
    n = min(TOKENS, (read_info(source).context_length or TOKENS + 1) - 1)
    with_llama = LlamaCpp(source, LlamaCppOptions(n_ctx=n + 1, max_batch=n, max_rows=n, kv_type="f32"))
    try:
        tokens = with_llama.tokenizer.encode(_text())[:n]
        progress.start("checking with llama.cpp", 2 * len(tokens), unit="tokens")
        rows = {
            "llama.cpp": _logits(with_llama, tokens, n, progress),
            "llama.cpp token by token": _logits(with_llama, tokens, 1, progress),
        }
    finally:
        with_llama.close()
    progress.start("checking with ONNX Runtime", len(tokens), unit="tokens")
    with_onnx = Onnx(folder, OnnxOptions(n_ctx=n + 1, max_batch=PASS, max_rows=PASS))
    try:
        rows["onnx"] = _logits(with_onnx, tokens, PASS, progress)
    finally:
        with_onnx.close()
    pairs = [("llama.cpp", "onnx"), ("llama.cpp", "llama.cpp token by token")]
    if full:
        model = Source(source)
        progress.start("checking in float32", model.bytes)
        rows["float32"] = reference_logits(model, tokens, progress.advance)
        pairs += [("float32", "onnx"), ("float32", "llama.cpp")]
    quality: dict[str, Any] = {"text": "sample.txt", "tokens": len(tokens), "full": full}
    quality["perplexity"] = {name: _perplexity(logits, tokens) for name, logits in rows.items()}
    for a, b in pairs:
        quality[f"{b} vs {a}"] = compare(rows[a], rows[b])
    return quality


def warning(quality: dict[str, Any], exact: bool) -> str | None:
    """One line if the conversion differs from its source by more than it should. `exact`: it holds the
    source's own weights."""
    ours, floor = quality["onnx vs llama.cpp"], quality["llama.cpp token by token vs llama.cpp"]
    most = LEVEL * floor["kl"] + NOTHING if exact else max(WARN_KL, 2 * floor["kl"])
    if ours["kl"] <= most and ours["top1"] >= min(WARN_TOP1, floor["top1"] - 0.02):
        return None
    return (
        f"the converted model differs from its source: the same most probable token at {ours['top1']:.1%} of "
        f"positions, KL divergence {ours['kl']:.3f} (llama.cpp against itself: {floor['top1']:.1%}, "
        f"{floor['kl']:.3f})"
    )


def compare(a: Logits, b: Logits) -> dict[str, float]:
    """top1, kl and logit of two runs over the same text of two tokens or more; see `measure_quality`."""
    kl = []
    for x, y in zip(a, b, strict=True):
        p, q = _log_softmax(x), _log_softmax(y)
        kl.append(float(np.sum(np.exp(p) * (p - q))))
    difference = a[1:].astype(np.float64) - b[1:]
    return {
        "top1": float(np.mean(a[1:].argmax(axis=-1) == b[1:].argmax(axis=-1))),
        "kl": float(np.mean(kl[1:])),
        "kl_first": kl[0],
        "logit": float(np.mean(np.abs(difference))),
        "logit_max": float(np.max(np.abs(difference))),
    }


def _text() -> str:
    return files("edgespec.convert").joinpath("sample.txt").read_text("utf-8")


def _logits(backend: Backend, tokens: Sequence[int], n: int, progress: Progress) -> Logits:
    """float32 [tokens, vocabulary], n tokens a pass."""
    sequence = backend.open()
    rows = []
    for i in range(0, len(tokens), n):
        piece = tokens[i : i + n]
        rows.append(backend.forward([Segment(sequence, piece, rows=len(piece))]).copy())
        progress.advance(len(piece))
    backend.close(sequence)
    return np.concatenate(rows)


def _perplexity(logits: Logits, tokens: Sequence[int]) -> float:
    losses = [-_log_softmax(row)[token] for row, token in zip(logits[:-1], tokens[1:], strict=True)]
    return float(np.exp(np.mean(losses)))


def _log_softmax(row: NDArray[np.float32]) -> Floats:
    wide = row.astype(np.float64)
    wide -= wide.max()
    result: Floats = wide - np.log(np.sum(np.exp(wide)))
    return result
