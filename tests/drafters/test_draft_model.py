"""The draft model's cache: whatever was accepted or not, it is that of the text it drafts behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pair import DRAFT, VOCABULARY, load

from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.backends.prefix import align, common_prefix
from edgespec.decoding.sampling import Sampler, SamplerSettings
from edgespec.decoding.verify import Coupled, Rejection
from edgespec.drafters.base import DraftState
from edgespec.drafters.compatibility import check_vocabularies
from edgespec.drafters.draft_model import USUAL_LAG, DraftModel
from edgespec.drafters.ngram import NGram
from edgespec.errors import BackendError, IncompatiblePair


@pytest.fixture
def drafter(model_files: Path) -> Iterator[DraftModel]:
    model = DraftModel(load(model_files / "draft.gguf", n_ctx=128), NGram(longest=3, shortest=1))
    yield model
    model.close()


def state(rng: np.random.Generator, temperature: float = 1.0) -> DraftState:
    sampler = Sampler(SamplerSettings(temperature=temperature), len(VOCABULARY))
    return DraftState(sampler, Rejection(rng), lambda: None)


def text(length: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [VOCABULARY.bos, *rng.integers(0, len(VOCABULARY), length - 1).tolist()]


def assert_exact(drafter: DraftModel, context: Sequence[int], q_ids: np.ndarray, q: np.ndarray) -> None:
    expected = np.exp(DRAFT.log_p(context))
    np.testing.assert_allclose(q, expected[q_ids], atol=1e-4)


@pytest.mark.parametrize("guesses", [0, 1, 4])
def test_every_q_is_that_of_a_fresh_cache_whatever_happened_before(drafter: DraftModel, guesses: int) -> None:
    """Rounds as they come: nothing drafted, some accepted and one corrected, all and a bonus token."""
    drafter.guesses = guesses
    rng = np.random.default_rng(1)
    context = text(5, 1)
    for _ in range(60):
        if len(context) > 100:
            context = [*context[: int(rng.integers(1, 90))], *text(4, len(context))]
        drafter.begin(context, state(rng))
        drafted: list[int] = []
        for _ in range(int(rng.integers(0, 7))):
            node = drafter.extend()
            assert node is not None
            assert node.q is not None
            assert_exact(drafter, [*context, *drafted], node.q.ids, node.q.probs)
            drafted.append(node.token)
            fed, known = drafter.sequence.tokens, [*context, *drafted]
            assert fed[: len(known)] == known[: len(fed)]
            assert len(fed) <= len(known) + guesses
        accepted = int(rng.integers(0, len(drafted) + 1))
        context = [*context, *drafted[:accepted], int(rng.integers(0, len(VOCABULARY)))]


def test_a_cache_that_lags_far_behind_is_caught_up_before_drafting(drafter: DraftModel) -> None:
    rng = np.random.default_rng(2)
    context = text(100, 2)
    drafter.begin(context, state(rng))
    assert 100 - USUAL_LAG <= len(drafter.sequence) < 100
    node = drafter.extend()
    assert node is not None
    assert node.q is not None
    assert_exact(drafter, context, node.q.ids, node.q.probs)
    assert drafter.sequence.tokens == context


def test_catching_up_can_be_cancelled_and_resumed(drafter: DraftModel) -> None:
    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    rng = np.random.default_rng(3)
    context = text(100, 3)
    sampler = Sampler(SamplerSettings(temperature=1.0), len(VOCABULARY))
    with pytest.raises(Stop):
        drafter.begin(context, DraftState(sampler, Rejection(rng), stop))
    drafter.begin(context, state(rng))
    node = drafter.extend()
    assert node is not None
    assert node.q is not None
    assert_exact(drafter, context, node.q.ids, node.q.probs)


def test_guessing_ahead_saves_passes_and_changes_no_token(drafter: DraftModel) -> None:
    """What it drafted once stands in the text: lookup guesses it when the text comes to the same place."""
    rng = np.random.default_rng(8)
    start = text(6, 8)

    def draft(context: Sequence[int], guesses: int) -> tuple[list[int], int]:
        drafter.guesses = guesses
        drafter.begin(context, state(rng, temperature=0.0))
        nodes = [drafter.extend() for _ in range(9)]
        return [node.token for node in nodes if node], len(drafter.steps)

    first, passes = draft(start, 0)
    assert passes == 9
    again = [*start, *first, *start]
    tokens, passes = draft(again, 0)
    assert passes == 9
    assert draft(again, 4) == (tokens, 2)  # five q's with each pass


def test_what_was_sampled_is_drafted_though_the_cache_cannot_be_cut_behind_it(
    drafter: DraftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To drop it would be to choose by its value: only where lookup guessed otherwise is anything cut."""
    rng = np.random.default_rng(9)
    rollback = drafter.backend.rollback

    def broken(sequence: Any, length: int) -> None:
        rollback(sequence, 0)
        raise BackendError("it could not roll back")

    drafter.guesses = 4
    for seed in range(20):
        drafter.begin([*text(30, seed), *text(30, seed)[1:]], state(rng, temperature=50.0))
        with monkeypatch.context() as patch:
            patch.setattr(drafter.backend, "rollback", broken)
            drafted = [drafter.extend() for _ in range(4)]
        assert all(node is not None and node.q is not None for node in drafted)


def test_under_a_seed_hindsight_is_whether_a_token_would_have_been_drafted(drafter: DraftModel) -> None:
    """The noise of its place is known: how probable it was under q promises more than the seed keeps."""
    sampler = Sampler(SamplerSettings(temperature=1.0), len(VOCABULARY))
    seeded, start = DraftState(sampler, Coupled(7), lambda: None), text(8, 10)
    drafter.begin(start, seeded)
    drafted = [node.token for node in (drafter.extend() for _ in range(4)) if node is not None]
    other = (drafted[3] + 1) % len(VOCABULARY)
    drafter.backend.rollback(drafter.sequence, 0)
    drafter.look([*start, *drafted[:3], other, start[0]], seeded)
    found = {seen.place: seen.q for seen in drafter.hindsight}
    assert [found[place] for place in range(8, 12)] == [1.0, 1.0, 1.0, 0.0]


def test_it_drafts_to_the_end_of_its_context_and_no_further(drafter: DraftModel) -> None:
    rng = np.random.default_rng(4)
    context = text(126, 4)
    drafter.begin(context, state(rng))
    assert [drafter.extend() is None for _ in range(5)] == [False, False, False, True, True]
    drafter.begin(text(129, 4), state(rng))
    assert drafter.extend() is None
    drafter.begin(context[:20], state(rng))
    node = drafter.extend()
    assert node is not None
    assert node.q is not None
    assert_exact(drafter, context[:20], node.q.ids, node.q.probs)


def test_it_never_drafts_padding_rows(drafter: DraftModel) -> None:
    rng = np.random.default_rng(5)
    assert drafter.backend.n_vocab == len(VOCABULARY) + 6
    for seed in range(20):
        drafter.begin(text(10, seed), state(rng, temperature=50.0))
        for _ in range(5):
            node = drafter.extend()
            assert node is not None
            assert node.token < len(VOCABULARY)


def test_closing_frees_the_model_it_owns(model_files: Path) -> None:
    drafter = DraftModel(load(model_files / "draft.gguf"))
    drafter.close()
    drafter.close()
    assert drafter.backend._model is None


# --- compatibility ---


def test_a_vocabulary_with_padding_rows_is_compatible(target: LlamaCpp, draft: LlamaCpp) -> None:
    check_vocabularies(target, draft, "advice")
    check_vocabularies(draft, target, "advice")


def test_another_meaning_of_an_id_is_refused_with_both_strings_and_advice(
    target: LlamaCpp, model_files: Path
) -> None:
    other = load(model_files / "incompatible.gguf")
    with pytest.raises(IncompatiblePair) as caught:
        check_vocabularies(target, other, "Use --draft ngram")
    assert str(caught.value) == (
        f"incompatible.gguf cannot draft for target.gguf: token {VOCABULARY.id(b'm')} is 'm' in the target "
        "and 'o' in the draft. Use --draft ngram"
    )
    other.close()


# --- prefixes ---


def test_common_prefixes_are_found_wherever_the_texts_part() -> None:
    for length in (0, 1, 2, 7, 33):
        a = list(range(length))
        assert common_prefix(a, a) == length
        assert common_prefix(a, [*a, 5]) == length
        assert common_prefix([*a, 5], a) == length
        for place in range(length):
            assert common_prefix(a, [*a[:place], -1, *a[place + 1 :]]) == place
            assert common_prefix(a, [*a[:place], *[-1] * (length - place)]) == place


def test_an_answer_that_is_over_keeps_no_index_of_its_text(drafter: DraftModel) -> None:
    fork = drafter.fork()
    fork.guesses = 2
    fork.begin(text(30, 1), state(np.random.default_rng(1)))
    assert fork._lookup is not None and fork._lookup._behind
    fork.release()
    assert not fork._lookup._behind


@pytest.mark.parametrize("leave", [1, 4, 16])
@pytest.mark.parametrize(("cached", "wanted"), [(0, 50), (30, 50), (50, 50), (50, 30), (49, 50), (20, 1)])
def test_aligning_leaves_a_prefix_that_lacks_at_least_one_and_at_most_so_many(
    model_files: Path, leave: int, cached: int, wanted: int
) -> None:
    backend = load(model_files / "target.gguf", max_batch=8)
    sequence = backend.open()
    tokens = text(60, 6)
    other = [*tokens[:25], *text(30, 7)[1:]]
    for old, new in ((tokens[:cached], tokens[:wanted]), (other[:cached], tokens[:wanted])):
        backend.rollback(sequence, 0)
        if old:
            align(backend, sequence, [*old, 0], 1, lambda *_: None)
        shared = common_prefix(sequence.tokens, new)
        calls: list[tuple[int, ...]] = []
        reused = align(backend, sequence, new, leave, lambda *call, calls=calls: calls.append(call))
        assert reused == min(shared, len(new) - 1)
        assert 1 <= len(new) - len(sequence) <= max(leave, len(new) - reused if reused else leave)
        assert sequence.tokens == new[: len(sequence)]
        assert [total for _, total in calls] == [len(new)] * len(calls)
        assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    backend.close()
