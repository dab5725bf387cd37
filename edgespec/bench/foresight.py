"""What foresight would add: decoders that know more and more of a recorded text, up to all of it.

The steps between them tell where a controller's speed is lost: to caution, to what it has yet to learn of a
text, to drafts whose fate nothing foretells, to the rounds that follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from edgespec.bench.replay import LOOKUP, MODEL, NO_STATE, Costs, Played, ours, play
from edgespec.bench.traces import Trace
from edgespec.control.acceptance import BINS, POSITIONS, Acceptance, Cell, Judged, Prior, bin_of
from edgespec.control.arms import GUESSES
from edgespec.control.controller import DEEPEST, Controller
from edgespec.control.lengths import Lengths
from edgespec.control.plans import best_depth
from edgespec.control.policy import ALONE, Choice, Others
from edgespec.control.purse import Purse
from edgespec.drafters.base import Drafter, Node
from edgespec.drafters.ngram import NGram

Option = tuple[int, float]
"""tokens that a round yields, and the seconds it takes"""
NOTHING = Prior([0.0] * BINS, typical=0.0)


def clairvoyant(trace: Trace, costs: Costs) -> Played:
    """The fastest decoding of a trace by one who knows the text: dynamic programming over places, with the
    choice of drafter and depth in every round, never drafting what will be rejected; the draft model reads
    the prompt at once or never. (Its catching up is taken to be free, which only makes the bound higher.)"""

    def planned(rounds: Sequence[Sequence[Option]]) -> float:
        left = [0.0] * (len(trace.text) + 1)
        for at in reversed(range(1, len(trace.text))):
            left[at] = min(seconds + left[at + tokens] for tokens, seconds in rounds[at])
        return left[1]

    return _with_or_without_model(trace, costs, planned)


def round_by_round(trace: Trace, costs: Costs) -> Played:
    """The same by one who knows of a round, before it begins, how far each drafter will be right, and nothing
    of the rounds behind it: it takes what gains most at the speed that it reaches in the end."""

    def greedy(rounds: Sequence[Sequence[Option]]) -> float:
        spent, rate = 0.0, 1.0 / costs.target(1)
        for _ in range(8):  # Dinkelbach's iteration
            at, spent = 1, 0.0
            while at < len(trace.text):
                tokens, seconds = max(rounds[at], key=lambda option: option[0] - rate * option[1])
                at, spent = at + tokens, spent + seconds
            rate = (len(trace.text) - 1) / spent
        return spent

    return _with_or_without_model(trace, costs, greedy)


def _with_or_without_model(
    trace: Trace, costs: Costs, decode: Callable[[Sequence[Sequence[Option]]], float]
) -> Played:
    tokens, reading = len(trace.text) - 1, costs.reading * len(trace.prompt)
    without = Played(tokens, decode(_options(replace(trace, model=()), costs)))
    if not trace.model:
        return without
    with_model = Played(tokens, decode(_options(trace, costs)), reading_seconds=reading)
    return max(with_model, without, key=lambda played: played.speed)


def _options(trace: Trace, costs: Costs) -> list[list[Option]]:
    """For each place of the text, the rounds that draft nothing wrong."""
    runs = [0, *_right(_looked_up(trace), trace)]
    rounds: list[list[Option]] = [[]]
    for at in range(1, len(trace.text)):
        options = [(k + 1, costs.target(k + 1)) for k in range(runs[at] + 1)]
        spent, read, ahead = 0.0, 0, min(GUESSES, runs[at])
        for k, guess in enumerate(trace.drafts(at), 1):
            if at + k >= len(trace.text) or guess.token != trace.text[at + k - 1]:
                break
            if read > ahead:  # another pass, which reads ahead as far as lookup guesses right
                spent, read, ahead = spent + costs.model(read), 0, min(GUESSES, runs[at + k - 1])
            read += 1
            options.append((k + 1, spent + costs.model(read) + costs.target(k + 1)))
        rounds.append(options)
    return rounds


def _looked_up(trace: Trace) -> Iterable[list[Node]]:
    """What lookup proposes at each place, behind the first."""
    lookup = NGram()
    for at in range(1, len(trace.text)):
        lookup.begin([*trace.prompt, *trace.text[:at]], NO_STATE)
        proposed = (lookup.extend() for _ in range(len(trace.text) - 1 - at))
        yield [node for node in proposed if node is not None]


def _right(proposed: Iterable[Sequence[Node]], trace: Trace) -> list[int]:
    """How many of each place's proposals the text begins with."""
    runs = []
    for at, nodes in enumerate(proposed, 1):
        wrong = (i for i, node in enumerate(nodes) if node.token != trace.text[at + i])
        runs.append(next(wrong, len(nodes)))
    return runs


class _Rates(Acceptance):
    """Acceptance as it was in one text on average, by place in the round; it does not change."""

    def __init__(self, rounds: Sequence[Sequence[Judged]]) -> None:
        """rounds: all that a drafter could have proposed at each place, up to its first mistake."""
        super().__init__(NOTHING)
        self._mean = _mean(0.0, (token for judged in rounds for token in judged))
        self._places = [_mean(0.0, (j[i] for j in rounds if len(j) > i)) for i in range(DEEPEST)]

    def now(self, confidence: float) -> float:
        return self._mean

    def ahead(self, steps: int, drafted: Sequence[float] = ()) -> list[float]:
        return [self._places[min(len(drafted) + i, DEEPEST - 1)] for i in range(steps)]

    def observe(self, judged: Sequence[Judged]) -> None:
        pass

    look_back = observe


class _Fixed(Cell):
    """A cell of a table that is known already."""

    @property
    def mean(self) -> float:
        return self.prior

    def add(self, value: float) -> None:
        pass


class _Fitted(Acceptance):
    """The real acceptance model, whose tables are what they would be if it knew this text: what is left for
    it to learn is how the last few tokens differ from them."""

    def __init__(self, rounds: Sequence[Sequence[Judged]]) -> None:
        """rounds: as above."""
        super().__init__(NOTHING)
        tokens = [token for judged in rounds for token in judged]
        usual = _mean(0.0, tokens)
        followed = [
            [(before, token) for j in rounds for before, token in zip(j[i:], j[i + 1 : end], strict=False)]
            for i, end in ((0, 2), (1, None))
        ]
        self._now = [
            _Fixed(_mean(usual, (t for t in tokens if bin_of(t.confidence) == i))) for i in range(BINS)
        ]
        self._next = [
            [_Fixed(_mean(usual, (t for b, t in pairs if bin_of(b.confidence) == i))) for i in range(BINS)]
            for pairs in followed
        ]
        places = [(j[i] for j in rounds if len(j) > i) for i in range(POSITIONS - 1)]
        deep = (t for j in rounds for t in j[POSITIONS - 1 :])
        self._place = [_Fixed(_mean(usual, found)) for found in (*places, deep)]


def _mean(usual: float, tokens: Iterable[Judged]) -> float:
    found = [token.accepted for token in tokens]
    return fmean(found) if found else usual


class _Known(Lengths):
    """The budget is the length."""

    def earns_back(self, prompt: int, made: int, needed: float, ahead: int) -> bool:
        return needed < ahead


class _Bottomless(Purse):
    def holds(self, plain: float, known: bool = False) -> float:
        return math.inf


class _Fearless(Controller):
    """Bets what it likes: it has nothing to promise."""

    def start(self, budget: int | None) -> None:
        super().start(budget)
        self._outlook.purse = _Bottomless()


class _Peeking(_Fearless):
    """Knows of a token of the draft model, once its q is computed, whether it is right."""

    trace: Trace

    def choose(
        self,
        drafters: Sequence[Drafter],
        context: Sequence[int],
        room: int,
        forced: int = 0,
        others: Others = ALONE,
    ) -> Choice:
        self._at = len(context) - len(self.trace.prompt)
        return super().choose(drafters, context, room, forced, others)

    def _goes_on(self, drafted: Sequence[Node], confidence: float | None) -> bool:
        place, steps = self._at + len(drafted), self._room - len(drafted)
        if steps <= 0 or (confidence is not None and not self._right(place)):
            return False
        arm = self.arms[MODEL]
        assert arm.cost is not None
        sure = [node.confidence for node in drafted]
        chain, costs = arm.acceptance.ahead(steps, sure), [arm.cost.seconds(1)] * steps
        if confidence is not None:
            chain = [1.0, *arm.acceptance.ahead(steps - 1, [*sure, confidence])]
            costs[0] = 0.0
        return best_depth(1.0, chain, costs, self._outlook.verify, len(drafted), self._rate)[0] > len(drafted)

    def _right(self, place: int) -> bool:
        return self.trace.model[place].token == self.trace.text[place]


def fearless(costs: Costs) -> Controller:
    """Ours, told how long the answer is, and not careful."""
    return _like(ours(costs), _Fearless)


def _like(policy: Controller, kind: type[_Fearless]) -> _Fearless:
    return kind(policy.target, policy.arms, policy.ledger, _Known())


def told(
    trace: Trace, costs: Costs, kind: type[_Rates | _Fitted], decoder: type[_Fearless] = _Fearless
) -> Controller:
    """Ours, told the acceptance of each drafter in this text."""
    policy = _like(ours(costs), decoder)
    if isinstance(policy, _Peeking):
        policy.trace = trace
    end = len(trace.text)
    model = [
        _judged([Node(g.token, None, g.confidence) for g in trace.drafts(at)][: end - at], trace, at)
        for at in range(1, end if trace.model else 1)
    ]
    looked_up = [_judged(nodes, trace, at) for at, nodes in enumerate(_looked_up(trace), 1)]
    policy.arms[MODEL].acceptance = kind(model)
    policy.arms[LOOKUP].acceptance = policy.arms[MODEL].lookup = kind(looked_up)
    return policy


def _judged(nodes: Sequence[Node], trace: Trace, at: int) -> list[Judged]:
    """Up to the first mistake."""
    found: list[Judged] = []
    for node, token in zip(nodes[:DEEPEST], trace.text[at:], strict=False):
        found.append(Judged(node.confidence, float(node.token == token)))
        if node.token != token:
            break
    return found


KNOWLEDGE: dict[str, Callable[[Trace, Costs], Played]] = {
    "how often each drafter is right in this text, by place, and nothing learned on the way": (
        lambda trace, costs: play(trace, told(trace, costs, _Rates), costs)
    ),
    "the same by how sure it is, and what is learned on the way": (
        lambda trace, costs: play(trace, told(trace, costs, _Fitted), costs)
    ),
    "and, of each token of the draft model, whether it is right, once it is computed": (
        lambda trace, costs: play(trace, told(trace, costs, _Fitted, _Peeking), costs)
    ),
    "how far each drafter will be right, before each round": round_by_round,
    "all": clairvoyant,
}
"""what is known of each text before it is decoded, more and more of it"""
