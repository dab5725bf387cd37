"""The ONNX backend on converted models: what a pass gives, and what a cache holds."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pair import TARGET, VOCABULARY, load
from real_models import need_module

need_module("onnxruntime")
onnx = need_module("onnx")

from edgespec.backends import onnx_converted  # noqa: E402
from edgespec.backends.base import Segment  # noqa: E402
from edgespec.backends.onnx import Onnx  # noqa: E402
from edgespec.backends.onnx_model import Feed  # noqa: E402
from edgespec.backends.prefix import align  # noqa: E402
from edgespec.convert.folder import read_report  # noqa: E402
from edgespec.errors import BackendError, ContextFull, UsageError  # noqa: E402

TOLERANCE = 1e-4
"""of a log-probability; measured: 2e-5, for tokens of probability 1e-13"""


@pytest.fixture(scope="module")
def backend(folder: Path) -> Iterator[Onnx]:
    backend: Onnx = load(folder, tree=True, max_rows=64)
    yield backend
    backend.close()


def text(length: int, seed: int = 0) -> list[int]:
    rng = np.random.default_rng(seed)
    return [VOCABULARY.bos, *rng.integers(0, len(VOCABULARY), length - 1).tolist()]


def log_p(rows: np.ndarray) -> np.ndarray:
    wide = rows.astype(np.float64)
    return wide - np.logaddexp.reduce(wide, axis=-1, keepdims=True)


def table(tokens: Sequence[int], rows: int) -> np.ndarray:
    return np.array([TARGET.log_p(tokens[: i + 1]) for i in range(len(tokens) - rows, len(tokens))])


def feed(backend: Onnx, tokens: Sequence[int], size: int) -> np.ndarray:
    """All rows, `size` tokens a pass, in a sequence of its own."""
    sequence = backend.open()
    rows = []
    for i in range(0, len(tokens), size):
        piece = tokens[i : i + size]
        rows.append(backend.forward([Segment(sequence, piece, rows=len(piece))]).copy())
    backend.close(sequence)
    return np.concatenate(rows)


@pytest.mark.parametrize("options", [{}, {"strict": True}, {"tree": True}], ids=str)
def test_logits_are_the_tables(folder: Path, options: dict[str, bool]) -> None:
    backend: Onnx = load(folder, max_rows=64, **options)
    tokens = text(200)
    for size in (64, 1, 2, 7):
        assert np.abs(log_p(feed(backend, tokens, size)) - table(tokens, 200)).max() < TOLERANCE
    backend.close()


@pytest.mark.parametrize("options", [{}, {"strict": True}, {"tree": True}], ids=str)
def test_a_cache_of_half_the_size_holds_the_same_numbers_where_they_are_short(
    folder: Path, options: dict[str, bool]
) -> None:
    backend: Onnx = load(folder, max_rows=64, kv_type="f16", **options)
    tokens = text(200)
    for size in (64, 1, 7):
        assert np.abs(log_p(feed(backend, tokens, size)) - table(tokens, 200)).max() < TOLERANCE
    sequence = backend.open()
    backend.forward([Segment(sequence, tokens[:50])])
    cache = backend._open[sequence.id].cache
    assert {array.dtype for array in cache.arrays(50).values()} == {np.dtype(np.float16)}
    backend.close()


def test_kv_types_that_are_not_to_be_had_are_refused(folder: Path) -> None:
    for kv_type, message in (
        ("q8_0", "need scales known in advance"),
        ("q4", "'q4' is unknown; choose from"),
    ):
        with pytest.raises(UsageError, match=message):
            load(folder, kv_type=kv_type)


@pytest.mark.parametrize("conversion", ["folder", "portable"])
def test_a_row_is_the_same_in_every_bit_whatever_is_in_the_pass(
    conversion: str, request: pytest.FixtureRequest
) -> None:
    backend: Onnx = load(request.getfixturevalue(conversion), strict=True, max_rows=64)
    assert backend.capabilities.row_invariant
    tokens = text(130)
    rows = feed(backend, tokens, 2)
    for size in (1, *range(3, 17), 31, 64):
        assert np.array_equal(feed(backend, tokens, size), rows), size
    backend.close()


def test_rows_of_trees_may_depend_on_the_pass(backend: Onnx, folder: Path) -> None:
    assert not backend.capabilities.row_invariant
    with pytest.raises(UsageError, match="strict output is of chains"):
        load(folder, tree=True, strict=True)


def test_only_the_rows_asked_for_are_given(backend: Onnx) -> None:
    sequence, tokens = backend.open(), text(30)
    assert backend.forward([Segment(sequence, tokens[:10], rows=0)]).shape == (0, len(VOCABULARY))
    rows = backend.forward([Segment(sequence, tokens[10:], rows=3)])
    assert np.abs(log_p(rows) - table(tokens, 3)).max() < TOLERANCE
    backend.close(sequence)


def test_rollback_forgets(backend: Onnx) -> None:
    sequence, tokens = backend.open(), text(40)
    backend.forward([Segment(sequence, text(40, seed=9))])
    backend.rollback(sequence, 1)
    rows = backend.forward([Segment(sequence, tokens[1:], rows=39)])
    assert np.abs(log_p(rows) - table(tokens, 39)).max() < TOLERANCE
    backend.close(sequence)


def test_a_shared_beginning_is_used_again(backend: Onnx) -> None:
    sequence = backend.open()
    backend.forward([Segment(sequence, text(50))])
    longer = [*text(50)[:45], *text(20, seed=3)[1:]]
    assert align(backend, sequence, longer, 8, lambda *_: None) == 45
    rows = backend.forward([Segment(sequence, longer[len(sequence) :])])
    assert np.abs(log_p(rows) - table(longer, 1)).max() < TOLERANCE
    backend.close(sequence)


def test_sequences_do_not_see_each_other(backend: Onnx) -> None:
    a, b = backend.open(), backend.open()
    one, two = text(20, seed=1), text(25, seed=2)
    backend.forward([Segment(a, one[:10], rows=0), Segment(b, two[:10], rows=0)])
    rows = backend.forward([Segment(a, one[10:], rows=2), Segment(b, two[10:], rows=3)])
    assert np.abs(log_p(rows[:2]) - table(one, 2)).max() < TOLERANCE
    assert np.abs(log_p(rows[2:]) - table(two, 3)).max() < TOLERANCE
    backend.close(a)
    backend.close(b)


TREE = [-1, -1, 0, 0, 1, 4, 4]


def path_to(i: int, parents: Sequence[int]) -> list[int]:
    return [] if i < 0 else [*path_to(parents[i], parents), i]


@pytest.mark.parametrize("kept", [[], [0], [0, 3], [1, 4, 5], [1, 4, 6]], ids=str)
def test_a_tree_gives_each_branch_its_own_continuation(backend: Onnx, kept: list[int]) -> None:
    check_tree(backend, kept)


def test_trees_work_with_a_cache_of_half_the_size(folder: Path) -> None:
    backend: Onnx = load(folder, tree=True, max_rows=64, kv_type="f16")
    check_tree(backend, [1, 4, 6])
    backend.close()


def check_tree(backend: Onnx, kept: list[int]) -> None:
    sequence, prompt = backend.open(), text(12)
    tokens = text(len(TREE) + 1, seed=4)[1:]
    backend.forward([Segment(sequence, prompt, rows=0)])
    rows = backend.forward([Segment(sequence, tokens, rows=len(tokens), parents=TREE)]).copy()
    for i, row in enumerate(rows):
        history = [*prompt, *(tokens[j] for j in path_to(i, TREE))]
        assert np.abs(log_p(row) - TARGET.log_p(history)).max() < TOLERANCE
    backend.keep(sequence, kept)
    assert sequence.tokens == [*prompt, *(tokens[i] for i in kept)]
    after = text(6, seed=5)[1:]
    rows = backend.forward([Segment(sequence, after, rows=5)])
    assert np.abs(log_p(rows) - table([*prompt, *(tokens[i] for i in kept), *after], 5)).max() < TOLERANCE
    backend.close(sequence)


def test_trees_must_make_sense(backend: Onnx, converted: Path) -> None:
    sequence = backend.open()
    with pytest.raises(UsageError, match="feed the prompt first"):
        backend.forward([Segment(sequence, [1, 2], parents=[-1, -1])])
    backend.forward([Segment(sequence, text(5))])
    with pytest.raises(UsageError, match="each before its child"):
        backend.forward([Segment(sequence, [1, 2], parents=[-1, 1])])
    backend.forward([Segment(sequence, [1, 2, 3], parents=[-1, 0, -1])])
    with pytest.raises(UsageError, match="keep a path"):
        backend.forward([Segment(sequence, [1])])
    with pytest.raises(UsageError, match="no path"):
        backend.keep(sequence, [0, 2])
    with pytest.raises(UsageError, match="only a path"):
        backend.rollback(sequence, 6)
    backend.rollback(sequence, 5)
    backend.forward([Segment(sequence, [1])])
    backend.close(sequence)
    chains: Onnx = load(converted / "target.onnx-edgespec")
    assert not chains.capabilities.tree
    with pytest.raises(UsageError, match="chains only"):
        chains.forward([Segment(chains.open(), [1], parents=[-1])])
    chains.close()


def test_of_a_chain_a_beginning_is_kept(backend: Onnx) -> None:
    sequence, tokens = backend.open(), text(20)
    backend.forward([Segment(sequence, tokens[:15])])
    backend.forward([Segment(sequence, tokens[15:])])
    with pytest.raises(UsageError, match="only a beginning"):
        backend.keep(sequence, [1])
    backend.keep(sequence, [0, 1])
    assert sequence.tokens == tokens[:17]
    backend.close(sequence)


def test_hidden_states_are_what_the_head_multiplies(backend: Onnx) -> None:
    from closed_form import build

    assert backend.capabilities.hidden
    sequence = backend.open()
    rows = backend.forward([Segment(sequence, text(20), rows=4)])
    hidden = backend.hidden["final"]
    assert hidden.shape == (4, 128) and backend.hidden["0"].shape == (4, 128)
    assert np.allclose(hidden @ build(TARGET).weights["output"].T, rows, atol=1e-4)
    backend.close(sequence)


def test_a_saved_cache_goes_on_as_if_never_saved(backend: Onnx, tmp_path: Path) -> None:
    sequence, other, tokens = backend.open(), backend.open(), text(60)
    backend.forward([Segment(sequence, tokens[:50])])
    backend.save(sequence, tmp_path / "cache")
    backend.forward([Segment(other, text(33, seed=8))])
    backend.restore(other, tmp_path / "cache")
    assert other.tokens == tokens[:50]
    rows = [backend.forward([Segment(s, tokens[50:], rows=10)]).copy() for s in (sequence, other)]
    assert np.array_equal(*rows)
    backend.close(sequence)
    backend.close(other)


def test_saved_caches_that_do_not_fit_are_refused(
    backend: Onnx, folder: Path, converted: Path, tmp_path: Path
) -> None:
    sequence, file = backend.open(), tmp_path / "cache"
    backend.forward([Segment(sequence, text(50))])
    backend.save(sequence, file)
    other: Onnx = load(converted / "draft.onnx-edgespec")
    with pytest.raises(BackendError, match="another model"):
        other.restore(other.open(), file)
    other.close()
    half: Onnx = load(folder, tree=True, kv_type="f16")
    with pytest.raises(BackendError, match="saved with other settings"):
        half.restore(half.open(), file)
    half.close()
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(BackendError, match="damaged"):
        backend.restore(sequence, file)
    file.write_bytes(whole.replace(b'"tokens": [', b'"tokens": [1, ', 1))
    with pytest.raises(BackendError, match="damaged"):
        backend.restore(sequence, file)
    file.write_bytes(b"nonsense\n" + whole)
    with pytest.raises(BackendError, match="not a saved cache"):
        backend.restore(sequence, file)
    backend.close(sequence)


def test_caches_are_not_mixed_between_conversions_of_a_file(portable: Path, tmp_path: Path) -> None:
    file = tmp_path / "cache"
    saving: Onnx = load(portable)
    sequence = saving.open()
    saving.forward([Segment(sequence, text(50))])
    saving.save(sequence, file)
    saving.close()
    report = read_report(portable)
    assert report is not None
    copy = Path(shutil.copytree(portable, tmp_path / "copy"))
    for change, options in (
        ({"small": True}, {}),
        ({"portable": False}, {}),
        ({"trimmed": {"kept": 1}}, {}),
        ({}, {"strict": True}),
        ({}, {"tree": True}),
    ):
        replace(report, **change).save(copy)
        with pytest.raises(BackendError, match="another model"):
            restored(copy, file, options)
    report.save(copy)
    assert restored(copy, file, {}) == text(50)


def restored(folder: Path, file: Path, options: dict[str, bool]) -> list[int]:
    """The tokens of a saved cache, if it fits a model."""
    with closing(load(folder, **options)) as backend:
        sequence = backend.open()
        backend.restore(sequence, file)
        return list(sequence.tokens)


def test_passes_that_are_impossible_are_refused(folder: Path) -> None:
    backend: Onnx = load(folder, n_ctx=16, max_batch=8, max_rows=4, sequences=1)
    sequence = backend.open()
    for tokens, rows, message in (
        ([], 0, "0 tokens"),
        ([0] * 9, 1, "9 tokens"),
        ([0] * 8, 5, "5 rows"),
        ([0, 99], 1, "ids"),
        ([0], 2, "2 rows of 1"),
    ):
        with pytest.raises(UsageError, match=message):
            backend.forward([Segment(sequence, tokens, rows=rows)])
    backend.forward([Segment(sequence, [0] * 8)])
    backend.forward([Segment(sequence, [0] * 8)])
    with pytest.raises(ContextFull, match="17 tokens do not fit"):
        backend.forward([Segment(sequence, [0])])
    with pytest.raises(BackendError, match="close one first"):
        backend.open()
    with pytest.raises(UsageError, match="cannot roll back"):
        backend.rollback(sequence, 17)
    backend.close(sequence)
    with pytest.raises(UsageError, match="closed"):
        backend.forward([Segment(sequence, [0])])
    backend.close()
    backend.close()
    with pytest.raises(BackendError, match="load it again"):
        backend.open()


def test_the_whole_context_can_be_filled_one_by_one(folder: Path) -> None:
    backend: Onnx = load(folder, n_ctx=16, strict=True)
    tokens = text(16)
    assert np.abs(log_p(feed(backend, tokens, 1)) - table(tokens, 16)).max() < TOLERANCE
    backend.close()


def test_a_cache_there_is_no_memory_for_is_told_and_its_place_stays_free(
    portable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Onnx = load(portable, sequences=1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(onnx_converted, "growing_zeros", full)
        with pytest.raises(BackendError, match="no memory for a cache of 512 tokens"):
            backend.open()
    backend.close(backend.open())
    backend.close()


def test_a_failing_pass_leaves_the_sequences_as_before(
    backend: Onnx, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, tokens = backend.open(), backend.open(), text(20)
    backend.forward([Segment(a, tokens[:10]), Segment(b, tokens[:10])])
    model = backend._model
    run = model._pass

    def fail_second(feeds: Sequence[Feed], at: int) -> None:
        if feeds[0].cache is backend._open[b.id].cache:
            raise RuntimeError("out of memory")
        run(feeds, at)

    monkeypatch.setattr(model, "_pass", fail_second)
    with pytest.raises(BackendError, match="out of memory"):
        backend.forward([Segment(a, [1, 2, 3]), Segment(b, [1, 2, 3])])
    monkeypatch.undo()
    for s in (a, b):
        assert s.tokens == tokens[:10]
        rows = backend.forward([Segment(s, tokens[10:], rows=10)])
        assert np.abs(log_p(rows) - table(tokens, 10)).max() < TOLERANCE
        backend.close(s)
