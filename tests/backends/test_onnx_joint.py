"""Several sequences in one pass of the ONNX backend: each gets, in every bit, what it would get alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from convert.tiny_models import TINY, Tiny, write_tiny
from kernels_here import need_kernels
from pair import load
from real_models import need, need_module

need_module("onnxruntime")
need_module("onnx")

from edgespec.backends.base import Backend, Segment, Sequence  # noqa: E402
from edgespec.backends.onnx import Onnx  # noqa: E402
from edgespec.convert.convert import convert  # noqa: E402
from edgespec.errors import BackendError  # noqa: E402
from edgespec.hub.resolve import resolve  # noqa: E402

MODELS = {
    "llama": Tiny("llama", type="Q8_0", tied=True),
    "qwen2": Tiny("qwen2", type="Q8_0", biases=True),
    "gemma3": replace(TINY["gemma3"], type="Q8_0"),  # windows of 8
}
SEQUENCES, CONTEXT = 4, 200


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    need_kernels()
    home = tmp_path_factory.mktemp("joint")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_HOME", str(home))
        return {
            name: convert(write_tiny(home / f"{name}.gguf", tiny), portable=False).folder
            for name, tiny in MODELS.items()
        }


@pytest.fixture
def backend(folders: dict[str, Path]) -> Iterator[Onnx]:
    with closing(loaded(folders["llama"])) as backend:
        yield backend


def loaded(folder: Path, **options: object) -> Onnx:
    defaults = {"n_ctx": CONTEXT, "sequences": SEQUENCES, "max_rows": 256}
    backend: Onnx = load(folder, **defaults | options)
    return backend


def alone(backend: Backend, tokens: list[int], rows: int) -> np.ndarray:
    """The last rows of a text, in passes of its own."""
    sequence = backend.open()
    for i in range(0, len(tokens) - rows, backend.max_batch):
        backend.forward(
            [Segment(sequence, tokens[i : min(i + backend.max_batch, len(tokens) - rows)], rows=0)]
        )
    logits = backend.forward([Segment(sequence, tokens[-rows:], rows=rows)]).copy()
    backend.close(sequence)
    return logits


def check(joint: Backend, apart: Backend, segments: list[Segment]) -> None:
    """One pass of `joint` gives what `apart` gives each of them."""
    before = [list(s.sequence.tokens) for s in segments]
    logits = joint.forward(segments).copy()
    assert joint.last_step.length == sum(map(len, before))
    at = 0
    for tokens, s in zip(before, segments, strict=True):
        assert s.sequence.tokens == [*tokens, *s.tokens]
        if s.rows:
            assert np.array_equal(logits[at : at + s.rows], alone(apart, s.sequence.tokens, s.rows))
        at += s.rows
    assert len(logits) == at


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_pass_of_several_sequences_gives_each_what_it_gets_alone(
    folders: dict[str, Path], name: str, kv_type: str
) -> None:
    """Whatever happened to them in between, and with any number of threads."""
    random = Random(f"{name} {kv_type}")
    with (
        closing(loaded(folders[name], kv_type=kv_type, threads=2)) as joint,
        closing(loaded(folders[name], kv_type=kv_type, sequences=1)) as apart,
    ):
        assert joint.capabilities.batch and joint.capabilities.row_invariant
        live = [joint.open() for _ in range(SEQUENCES)]
        for _ in range(30):
            change(random, joint, live)
            segments = []
            for sequence in random.sample(live, random.randint(1, len(live))):
                n = min(random.choice([1, 1, 2, 5, 70]), CONTEXT - len(sequence))
                if n:
                    rows = random.randint(0, min(n, 6))
                    segments.append(Segment(sequence, some_tokens(random, joint, n), rows))
            if segments:
                check(joint, apart, segments)


def some_tokens(random: Random, backend: Backend, n: int) -> list[int]:
    return [random.randrange(backend.n_vocab) for _ in range(n)]


def change(random: Random, backend: Onnx, live: list[Sequence]) -> None:
    """Something that happens to sequences between passes."""
    i, j = random.sample(range(len(live)), 2)
    sequence, other = live[i], live[j]
    kind = random.choice(["rollback", "paste", "close", "nothing"])
    if kind == "rollback":
        backend.rollback(sequence, random.randint(0, len(sequence)))
    elif kind == "paste":
        backend.paste(sequence, backend.copy(other), random.randint(0, len(other)))
    elif kind == "close":
        backend.close(sequence)
        backend.close(other)
        live[j], live[i] = backend.open(), backend.open()  # perhaps in each other's place


def test_a_pass_may_be_longer_than_what_attention_takes_at_a_time(backend: Onnx) -> None:
    random = Random(0)
    a, b, c = (backend.open() for _ in range(3))
    tokens = some_tokens(random, backend, 150)
    segments = [Segment(a, tokens, rows=150), Segment(b, tokens[:1]), Segment(c, tokens[:100], rows=1)]
    check(backend, backend, segments)


def test_sequences_that_are_restored_join_a_pass(backend: Onnx, tmp_path: Path) -> None:
    a, b = backend.open(), backend.open()
    backend.forward([Segment(a, [*range(20)] * 2), Segment(b, [*range(7)])])
    backend.save(a, tmp_path / "cache")
    backend.restore(b, tmp_path / "cache")
    check(backend, backend, [Segment(b, [5, 6], rows=2), Segment(a, [7], rows=1)])


def test_a_pass_that_fails_leaves_all_as_they_were(backend: Onnx, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = backend.open(), backend.open()
    backend.forward([Segment(a, [*range(10)]), Segment(b, [*range(20)])])
    model = backend._model
    assert model is not None
    run = model.run

    def fail(feeds: object) -> None:
        run(feeds)  # type: ignore[arg-type]
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model, "run", fail)
    with pytest.raises(BackendError, match="out of memory"):
        backend.forward([Segment(a, [1, 2, 3]), Segment(b, [4])])
    monkeypatch.undo()
    assert (len(a), len(b)) == (10, 20)
    check(backend, backend, [Segment(a, [4, 5], rows=2), Segment(b, [6], rows=1)])


def test_a_slot_that_was_in_use_is_taken_before_one_whose_memory_never_was(backend: Onnx) -> None:
    first = backend.open()
    backend.close(first)
    assert backend.open().id == first.id


@pytest.mark.parametrize("options", [{"tree": True}, {"strict": True}], ids=str)
def test_where_passes_cannot_be_shared_segments_follow_one_another(
    converted: Path, options: dict[str, bool]
) -> None:
    """Trees, and strictness of a model that is not row-invariant by itself."""
    with closing(loaded(converted / "target.onnx-edgespec", **options)) as backend:
        assert not backend.capabilities.batch
        a, b = backend.open(), backend.open()
        backend.forward([Segment(a, [1, 2, 3]), Segment(b, [4])])
        rows = backend.forward([Segment(a, [5, 6], rows=2), Segment(b, [7, 8], rows=2)]).copy()
        for tokens, got in (([1, 2, 3, 5, 6], rows[:2]), ([4, 7, 8], rows[2:])):
            assert np.allclose(got, alone(backend, tokens, 2), atol=1e-4)


def test_a_real_model_gives_each_sequence_what_it_gets_alone() -> None:
    need_kernels()
    folder = convert(resolve(need("smollm2-135m")).path, portable=False).folder
    random = Random(2)
    with closing(loaded(folder, n_ctx=1024, threads=None)) as backend:
        sequences = [backend.open() for _ in range(3)]
        for sizes in ((3, 130, 300), (1, 1, 1), (1, 4, 9), (2, 1, 70)):
            segments = [
                Segment(sequence, some_tokens(random, backend, n), rows=min(n, 9))
                for sequence, n in zip(sequences, sizes, strict=True)
            ]
            check(backend, backend, segments)
            backend.rollback(sequences[1], len(sequences[1]) - 1)
