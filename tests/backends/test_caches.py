"""Which cache a context goes on from, counted in the tokens that the backend is fed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pair import VOCABULARY, load, model_path

import edgespec
from edgespec.backends.base import Backend, Logits, Segment
from edgespec.backends.caches import LITTLE, Caches, Kept
from edgespec.backends.prefix import align
from edgespec.errors import BackendError

from .texts import TOLERANCE, log_p, table

Feed = Callable[[Caches, Sequence[int]], int]


@pytest.fixture(scope="module", params=["llama.cpp", "onnx"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    folder: Path = request.getfixturevalue("model_files" if request.param == "llama.cpp" else "converted")
    with closing(load(model_path(folder, "target", request.param), n_ctx=512)) as opened:
        yield opened


def text(length: int, seed: int) -> list[int]:
    """Texts of different seeds differ from the first token on."""
    rng = np.random.default_rng(seed)
    return [seed, *rng.integers(0, len(VOCABULARY), length - 1).tolist()]


@pytest.fixture
def feed(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Feed:
    """Processes a context on one of the caches, checks the logits behind it against the closed form, and
    tells how many tokens that took."""
    fed: list[int] = []
    forward = backend.forward

    def counted(segments: Sequence[Segment]) -> Logits:
        fed.extend(len(s.tokens) for s in segments)
        return forward(segments)

    monkeypatch.setattr(backend, "forward", counted)

    def process(caches: Caches, context: Sequence[int]) -> int:
        fed.clear()
        sequence = caches.take(context)
        align(backend, sequence, context, 1, lambda *_: None)
        rows = backend.forward([Segment(sequence, context[-1:])])
        assert sequence.tokens == list(context)
        assert np.abs(log_p(rows) - table(context, 1)).max() < TOLERANCE
        caches.release(sequence)
        return sum(fed)

    return process


@pytest.fixture
def make(backend: Backend) -> Iterator[Callable[..., Caches]]:
    made: list[Caches] = []

    def caches(slots: int, budget: int = 0) -> Caches:
        made.append(Caches(backend, slots, Kept(budget)))
        return made[-1]

    yield caches
    for one in made:
        one.close()


def size(caches: Caches) -> int:
    """Bytes of a copy of what the one sequence holds."""
    [sequence] = caches.sequences
    return caches.backend.copy(sequence).nbytes


@pytest.mark.parametrize(("slots", "budget"), [(2, 0), (1, 1 << 30), (3, 1 << 30)])
def test_the_next_turn_is_fed_only_what_is_new_although_another_conversation_came_between(
    make: Any, feed: Feed, slots: int, budget: int
) -> None:
    caches = make(slots, budget)
    one, two = text(200, 1), text(150, 2)
    assert feed(caches, one) == 200
    assert feed(caches, two) == 150
    assert feed(caches, [*one, *text(20, 3)]) == 20
    assert feed(caches, [*two, *text(10, 4)]) == 10
    assert feed(caches, [*one, *text(30, 3)]) == 10


def test_without_a_budget_one_cache_forgets_the_other_conversation(make: Any, feed: Feed) -> None:
    caches = make(1)
    one = text(200, 1)
    assert [feed(caches, one), feed(caches, text(150, 2)), feed(caches, one)] == [200, 150, 200]
    assert len(caches.kept) == 0


@pytest.mark.parametrize(("slots", "budget"), [(2, 0), (1, 1 << 30)])
def test_a_new_conversation_starts_from_the_system_prompt_of_another_and_leaves_that_alone(
    make: Any, feed: Feed, slots: int, budget: int
) -> None:
    caches, system = make(slots, budget), text(120, 1)
    one, two = [*system, *text(80, 2)], [*system, *text(60, 3)]
    assert feed(caches, one) == 200
    assert feed(caches, two) == 60
    assert feed(caches, [*one, 5, 6]) == 2
    assert feed(caches, [*two, 5, 6]) == 2


def test_a_sequence_in_use_lends_its_beginning(backend: Backend, make: Any, feed: Feed) -> None:
    caches, system = make(2), text(120, 1)
    busy = caches.take([*system, *text(80, 2)])
    align(backend, busy, [*system, *text(80, 2)], 1, lambda *_: None)
    assert feed(caches, [*system, *text(60, 3)]) == 60
    assert busy.tokens == [*system, *text(80, 2)][:-1]
    with pytest.raises(BackendError, match="all 2 caches"):
        [caches.take(text(9, 9)) for _ in range(2)]


def test_copies_stay_within_the_budget_and_the_least_recently_used_goes_first(make: Any, feed: Feed) -> None:
    probe = make(1)
    feed(probe, text(100, 0))
    each = size(probe)
    caches = make(1, int(2.5 * each))
    conversations = [text(100, seed) for seed in range(1, 5)]
    for conversation in conversations:
        feed(caches, conversation)
        assert caches.kept.nbytes <= caches.kept.budget
    # The last one is in the sequence, two are copies, and the first had to go.
    assert (len(caches.kept), caches.kept.evicted) == (2, 1)
    assert feed(caches, [*conversations[1], 5]) == 1
    assert feed(caches, [*conversations[3], 5]) == 1
    assert feed(caches, [*conversations[2], 5]) == 1
    assert feed(caches, [*conversations[0], 5]) > 100 - LITTLE, "it was forgotten, and is right all the same"


def test_what_is_larger_than_the_budget_is_not_kept(make: Any, feed: Feed) -> None:
    caches = make(1, 100)
    feed(caches, text(100, 1))
    feed(caches, text(100, 2))
    assert (len(caches.kept), caches.kept.nbytes, caches.kept.evicted) == (0, 0, 0)


def test_models_share_a_budget_and_close_what_is_theirs(backend: Backend, feed: Feed) -> None:
    kept = Kept(1 << 30)
    one, two = Caches(backend, 1, kept), Caches(backend, 1, kept)
    for seed in (1, 2):
        feed(one, text(100, seed))
    assert len(kept) == 1
    one.close()
    two.close()
    assert (len(kept), kept.nbytes) == (0, 0)


def test_a_closed_runtime_keeps_no_copies(model_files: Path) -> None:
    options: Any = {"draft": model_files / "draft.gguf", "depth": 3, "cache_memory": 1 << 30}
    with edgespec.load(model_files / "target.gguf", **options) as runtime:
        for seed in (1, 2):
            runtime.generate(text(100, seed), max_tokens=4)
        assert len(runtime.kept) == 2, "the target's and the draft's"
    assert (len(runtime.kept), runtime.kept.nbytes) == (0, 0)
