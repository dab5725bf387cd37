"""Every architecture and variant: the ONNX graph against float32 arithmetic in numpy and against llama.cpp.

Weights in floats leave rounding only; quantized ones let both runtimes round activations to 8 bits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernels_here import need_kernels

from edgespec.backends.base import Backend, Segment
from edgespec.errors import ModelError

from .tiny_models import TINY, VOCABULARY, Tiny, write_tiny

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("llama_cpp")

from edgespec.backends.llama_cpp import LlamaCpp, LlamaCppOptions
from edgespec.backends.onnx import Onnx, OnnxOptions
from edgespec.convert.convert import convert
from edgespec.convert.folder import folder_for
from edgespec.convert.reference import reference_logits
from edgespec.convert.source import Source

N = 90
EXACT = 1e-4
"""largest difference of a logit (their standard deviation is about 2) where nothing is quantized"""
ROUNDED = 0.15
"""mean difference where both runtimes round activations to 8 bits; measured: 0.07 to 0.12"""
LLAMA = {"F32": 0.005, "F16": 0.005, "BF16": 0.05}
"""mean difference of llama.cpp, which attends in float16; measured: 0.003, and 0.024 for BF16"""

HALF = 0.01
"""mean difference with a cache of float16; measured: 0.001 to 0.004"""


def text() -> list[int]:
    rng = np.random.default_rng(5)
    return [int(t) for t in rng.integers(0, len(VOCABULARY), N)]


def logits(backend: Backend, cuts: list[int]) -> np.ndarray:
    sequence = backend.open()
    rows = []
    for end in cuts:
        piece = text()[len(sequence) : end]
        rows.append(backend.forward([Segment(sequence, piece, rows=len(piece))]).copy())
    backend.close()
    return np.concatenate(rows)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("portable", [False, True], ids=["ours", "portable"])
@pytest.mark.parametrize("tiny", TINY.values(), ids=TINY.keys())
def test_a_converted_model_computes_what_its_source_does(tmp_path: Path, tiny: Tiny, portable: bool) -> None:
    if not portable:
        need_kernels()
    path = write_tiny(tmp_path / "tiny.gguf", tiny)
    folder = convert(path, portable=portable).folder
    exactly = reference_logits(Source(path), text())
    options = {"n_ctx": 128, "threads": 1, "max_rows": 128}
    whole = logits(Onnx(folder, OnnxOptions(**options)), [N])
    pieces = logits(Onnx(folder, OnnxOptions(**options)), [1, 2, 5, 70, 71, N])
    theirs = logits(LlamaCpp(path, LlamaCppOptions(kv_type="f32", **options)), [N])
    if tiny.type in LLAMA:
        assert np.abs(whole - exactly).max() < EXACT
        assert np.abs(pieces - exactly).max() < EXACT
    else:
        assert np.abs(whole - exactly).mean() < ROUNDED
        assert np.abs(pieces - exactly).mean() < ROUNDED
    assert np.abs(theirs - exactly).mean() < LLAMA.get(tiny.type, ROUNDED)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_a_cache_in_float16_costs_its_rounding(tmp_path: Path, name: str) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", TINY[name])
    options = OnnxOptions(n_ctx=128, threads=1, max_rows=128, kv_type="f16")
    found = logits(Onnx(convert(path).folder, options), [1, 2, 5, 70, 71, N])
    assert np.abs(found - reference_logits(Source(path), text())).mean() < HALF


PARENTS = [-1, -1, 0, 0, 1, 4, 4, 6, 7, 8, 9, 10, 11, 12]
"""a tree with a branch longer than the window"""


@pytest.mark.parametrize("prompt", [3, 40])
def test_in_a_tree_windows_reach_as_far_back_as_in_a_chain(tmp_path: Path, prompt: int) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", TINY["gemma3"])  # a window of 8
    source = Source(path)
    backend = Onnx(convert(path).folder, OnnxOptions(n_ctx=128, threads=1, max_rows=128, tree=True))
    sequence, tokens = backend.open(), text()[: prompt + len(PARENTS)]
    before = backend.forward([Segment(sequence, tokens[:prompt], rows=prompt)]).copy()
    assert np.abs(before - reference_logits(source, tokens[:prompt])).max() < EXACT
    rows = backend.forward([Segment(sequence, tokens[prompt:], len(PARENTS), PARENTS)]).copy()
    kept: list[int] = []
    for i, row in enumerate(rows):
        kept = [i]
        while PARENTS[kept[0]] >= 0:
            kept.insert(0, PARENTS[kept[0]])
        history = [*tokens[:prompt], *(tokens[prompt + j] for j in kept)]
        assert np.abs(row - reference_logits(source, history)[-1]).max() < EXACT
    backend.keep(sequence, kept)
    for piece in (text()[:1], text()[1:6]):
        rows = backend.forward([Segment(sequence, piece, rows=len(piece))])
        assert np.abs(rows - reference_logits(source, sequence.tokens)[-len(piece) :]).max() < EXACT
    backend.close()


@pytest.mark.parametrize(
    ("portable", "became"),
    [
        (False, {("Q4_0 tiles", False), ("Q8_0 tiles", True), ("float32", True)}),
        (
            True,
            {("4 bits, blocks of 32, zero points", False), ("8 bits, blocks of 32", True), ("float32", True)},
        ),
    ],
    ids=["ours", "portable"],
)
def test_4_bit_weights_for_drafts_resemble_the_model(
    tmp_path: Path, portable: bool, became: set[tuple[str, bool]]
) -> None:
    """The embedding and the head stay as they were."""
    if not portable:
        need_kernels()
    path = write_tiny(tmp_path / "tiny.gguf", Tiny("llama", type="Q8_0"))
    exactly = reference_logits(Source(path), text())
    done = convert(path, portable=portable, small=True)
    small = logits(Onnx(done.folder, OnnxOptions(n_ctx=128, threads=1, max_rows=128)), [N])
    assert np.corrcoef(small.ravel(), exactly.ravel())[0, 1] > 0.7  # of random weights; of real ones far more
    assert {(kind["became"], kind["exact"]) for kind in done.report.weights} == became


def test_other_architectures_are_refused_by_name(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny("phi3"))
    with pytest.raises(ModelError, match=r"'phi3' cannot be converted yet\. These can: llama .*gemma3"):
        convert(path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"expert_count": 8}, "mixtures of experts"),
        ({"attention.causal": False}, "is an embedding model"),
        ({"rope.scaling.type": "longrope"}, "rope scaling 'longrope'"),
    ],
)
def test_variants_that_are_not_known_are_refused(
    tmp_path: Path, keys: dict[str, object], message: str
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny("llama", keys=keys))
    with pytest.raises(ModelError, match=message):
        convert(path)


@pytest.mark.parametrize("head", [8, 100])
def test_heads_that_no_attention_takes_are_refused_before_anything_is_written(
    tmp_path: Path, head: int
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", Tiny("llama", head=head))
    with pytest.raises(ModelError, match=rf"heads of {head} channels cannot .* --backend llama\.cpp"):
        convert(path)
    assert not folder_for(path).exists()


@pytest.mark.parametrize("head", [64, 256])
def test_strict_rows_are_the_same_in_every_bit_for_wide_heads_too(tmp_path: Path, head: int) -> None:
    """Heads wider than 128 channels are added up in another order beyond 64 tokens."""
    tiny = Tiny("gemma3", head=head, heads=2, kv_heads=1, head_norms=True, post_norms=True, tied=True)
    folder = convert(write_tiny(tmp_path / "tiny.gguf", tiny)).folder

    def rows(size: int) -> np.ndarray:
        backend = Onnx(folder, OnnxOptions(n_ctx=128, threads=1, max_rows=128, strict=True))
        return logits(backend, [*range(size, N, size), N])

    whole = rows(N)
    for size in (1, 2, 3, 5, 9, 40):
        assert np.array_equal(rows(size), whole), size
