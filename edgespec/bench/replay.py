"""Play a policy over recorded traces: tokens per simulated second, no models, always the same result.

The simulation runs rounds as the engine does, with the real prompt lookup, a draft model that proposes
what the trace says, and a clock that a cost curve drives. Only greedy traces are played: the text is the
target's, so that every policy gets the same tokens and differs in time alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgespec.backends.base import Step
from edgespec.bench.traces import Guess, Trace
from edgespec.control import priors
from edgespec.control.acceptance import Acceptance
from edgespec.control.arms import Arm
from edgespec.control.controller import Controller
from edgespec.control.cost import CostCurve
from edgespec.control.policy import NOBODY, Policy, propose
from edgespec.decoding.rounds import Round
from edgespec.decoding.sampling import point_mass
from edgespec.decoding.stopping import Token
from edgespec.drafters.base import GLANCE, Drafter, DraftState, Hindsight, Node, Offer
from edgespec.drafters.draft_model import UNCLEAR
from edgespec.drafters.ngram import NGram

MODEL, LOOKUP = "model", "ngram"


@dataclass(frozen=True)
class Costs:
    """Seconds of passes: `verify` of the target by n, `draft` of the draft model by n; sizes between the
    known ones are interpolated, smaller ones cost as much as the smallest."""

    verify: Mapping[int, float]
    draft: Mapping[int, float]
    prompt: float = 0.0
    """seconds that the target takes to read a token of the prompt"""
    reading: float = 0.0
    """and the draft model"""

    def target(self, n: int) -> float:
        return _at(self.verify, n)

    def model(self, n: int) -> float:
        return _at(self.draft, n)


def _at(points: Mapping[int, float], n: int) -> float:
    if (known := points.get(n)) is not None:
        return known
    sizes = sorted(points)
    if len(sizes) == 1 or n < sizes[0]:
        return points[sizes[0]]
    high = next((size for size in sizes if size > n), sizes[-1])
    low = sizes[sizes.index(high) - 1]
    return points[low] + (points[high] - points[low]) * (n - low) / (high - low)


CURVES = {
    "llama.cpp, Q4_K_M": Costs(
        {1: 0.027, 2: 0.045, 3: 0.058, 4: 0.071, 6: 0.101, 8: 0.120, 12: 0.145, 16: 0.140, 17: 0.145},
        {1: 0.016, 2: 0.020, 8: 0.040, 16: 0.060, 17: 0.0625},
        prompt=0.0016,
        reading=0.0004,
    ),
    "flat kernel": Costs(
        {1: 0.021, 2: 0.021, 3: 0.022, 4: 0.024, 6: 0.027, 8: 0.031, 12: 0.043, 16: 0.052, 17: 0.0545},
        {1: 0.006, 8: 0.009, 16: 0.014, 17: 0.0147},
        prompt=0.0008,
        reading=0.0002,
    ),
}
"""measured: the 1.5B coder with its 0.5B draft on two cores of a server"""


class Clock:
    """Simulated time; costs may change while it runs."""

    def __init__(self, costs: Costs | Callable[[float], Costs]) -> None:
        self.now = 0.0
        self._costs = costs

    @property
    def costs(self) -> Costs:
        return self._costs if isinstance(self._costs, Costs) else self._costs(self.now)


@dataclass(frozen=True)
class Proposed(Node):
    """A token of a draft model, as a trace knows it."""

    entropy: float = 0.0
    """of q at temperature 1, in nats"""


class ReplayModel(Drafter):
    """The draft model of a trace."""

    name = MODEL

    def __init__(self, trace: Trace, clock: Clock, lookup: NGram) -> None:
        self._trace, self._clock, self._lookup = trace, clock, lookup
        self._read = -len(trace.prompt)  # tokens of the text in its cache; the prompt is read first

    def offer(self, context: Sequence[int]) -> Offer | None:
        return Offer(lag=self._place(context) - self._read) if self._trace.model else None

    def _place(self, context: Sequence[int]) -> int:
        return len(context) - len(self._trace.prompt)

    def introduce(self, context: Sequence[int]) -> int:
        """Read the prompt, and what followed until its first draft. Returns how many tokens that were."""
        missing = self._place(context) - 1 - self._read if self._read < 0 else 0
        self._read += missing
        return missing

    def begin(self, context: Sequence[int], state: DraftState) -> None:
        self._lookup.read(context)
        self._guessed: list[int] = []
        self._computed = 0  # q's known from the last pass and not looked at
        self._tokens: list[int] = []
        self._at = self._place(context)
        self._start = len(context)
        self._ahead = iter(self._trace.drafts(self._at))
        self._guess: Guess | None = None
        self.steps, self.hindsight = (), ()

    def look(self, context: Sequence[int], state: DraftState) -> None:
        self.begin(context, state)
        first = max(self._read, self._at - 1 - GLANCE)
        seconds = self._clock.costs.model(self._at - 1 - first)
        self._clock.now += seconds
        self.steps = (Step(self._at - 1 - first, self._start, seconds),)
        skip = UNCLEAR if first > self._read else 0
        self.hindsight = [self._seen(place) for place in range(max(0, first + 1 + skip), self._at)]

    @property
    def ready(self) -> bool:
        return self._guess is not None or self._computed > 0

    def peek(self) -> float | None:
        if self._guess is None:
            self._guess = next(self._ahead, None)
            if self._guess is None:
                return None
            if self._computed == 0:
                self._pass()
            self._computed -= 1
        return self._guess.confidence

    def _pass(self) -> None:
        """Behind a mistake the trace knows confidences and no tokens (they are −1): lookup guesses nothing
        there, and nothing it guessed before is what is drafted."""
        lag = 1 if self._tokens else self._at - self._read
        self._guessed = self._lookup.guess(self._tokens, self.guesses)
        self._computed = 1 + len(self._guessed)
        n = lag + len(self._guessed)
        seconds = self._clock.costs.model(n)
        self._clock.now += seconds
        self.steps = (*self.steps, Step(n, self._start, seconds))
        if lag > 2:
            places = range(self._at - min(lag, 33) + 1, self._at)
            self.hindsight = [self._seen(place) for place in places]

    def _seen(self, place: int) -> Hindsight:
        guess = self._trace.model[place]
        hit = float(guess.token == self._trace.text[place])
        return Hindsight(len(self._trace.prompt) + place, guess.confidence, hit)

    def extend(self) -> Node | None:
        if self.peek() is None or self._guess is None:
            return None
        guess, self._guess = self._guess, None
        if self._guessed and self._guessed.pop(0) != guess.token:
            self._guessed, self._computed = [], 0
        self._tokens.append(guess.token)
        return Proposed(guess.token, point_mass(guess.token), guess.confidence, self.name, guess.entropy)

    def settle(self, accepted: int) -> None:
        """After verification: what is in its cache and true. The last drafted token was not fed, unless as a
        guess."""
        self._read = self._at + min(accepted, len(self._tokens) - (self._computed == 0))

    def close(self) -> None:
        pass


@dataclass
class Played:
    """What a policy made of a trace."""

    tokens: int = 0
    seconds: float = 0.0
    """of decoding, from the first token on"""
    prompt_seconds: float = 0.0
    """until the first token"""
    reading_seconds: float = 0.0
    """of the draft model reading the prompt"""
    rounds: list[Round] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """After the first token; the draft model's reading counts."""
        return self.tokens / (self.seconds + self.reading_seconds)

    @property
    def end_to_end_speed(self) -> float:
        return (self.tokens + 1) / (self.prompt_seconds + self.reading_seconds + self.seconds)


NO_STATE: Any = None


def play(
    trace: Trace,
    policy: Policy,
    costs: Costs | Callable[[float], Costs],
    keep: bool = False,
    budget: int | None = None,
) -> Played:
    """Decode a trace under `policy`. The first token comes with the prompt; edgespec's own time, the same
    for all policies, is not counted. costs: fixed, or by simulated time. keep: the rounds, too. budget:
    tokens that were allowed, as the policy is told; by default those of the text, which was then cut off."""
    clock = Clock(costs)
    lookup = NGram()
    model = ReplayModel(trace, clock, lookup)
    drafters: list[Drafter] = [model, lookup] if trace.model else [lookup]
    prompt_seconds = clock.costs.prompt * len(trace.prompt)
    played = Played(prompt_seconds=prompt_seconds)
    policy.start(budget or len(trace.text))
    first = Step(len(trace.prompt), 0, prompt_seconds)
    told, p = Token(trace.text[0], "", "plain"), point_mass(trace.text[0])
    policy.observe(Round([], [told], first, 0.0, prompt_seconds, [p], place=len(trace.prompt)))
    at = 1
    while at < len(trace.text):
        context = [*trace.prompt, *trace.text[:at]]
        room = len(trace.text) - at - 1
        started = clock.now
        drafted: list[Node] = []
        drafter, look, _, guesses = policy.choose(drafters, context, room) if room > 0 else NOBODY
        if drafter is not None and look:
            drafter.look(context, NO_STATE)
        elif drafter is not None:
            if drafter is model and (read := model.introduce(context)):
                seconds = read * clock.costs.reading
                played.reading_seconds += seconds
                policy.read(model.name, read, seconds)
            drafter.guesses = guesses
            drafter.begin(context, NO_STATE)
            list(propose(drafter, policy, room, drafted))
        draft_seconds = clock.now - started
        verified = clock.costs.target(len(drafted) + 1)
        clock.now += verified
        accepted = 0
        while accepted < len(drafted) and drafted[accepted].token == trace.text[at + accepted]:
            accepted += 1
        emitted = trace.text[at : at + accepted + 1]
        if drafter is model and model.steps and not look:
            model.settle(accepted)
        done = Round(
            drafted,
            [Token(id, "", "plain") for id in emitted],
            Step(len(drafted) + 1, len(context) - 1, verified),
            draft_seconds,
            clock.now - started,
            [point_mass(id) for id in emitted],
            drafter.name if drafter else None,
            drafter.steps if drafter else (),
            drafter.hindsight if drafter else (),
            [float(i < accepted) for i in range(min(len(drafted), accepted + 1))],
            len(context),
        )
        policy.observe(done)
        at += len(emitted)
        played.tokens += len(emitted)
        if keep:
            played.rounds.append(done)
    policy.finish(budget is not None and len(trace.text) < budget)
    played.seconds = clock.now
    return played


def ours(costs: Costs) -> Controller:
    """The real controller as it meets a new pair: calibrated for these costs, nothing known of acceptance."""
    sizes = (1, 2, 3, 4, 5, 8)
    draft = CostCurve({n: costs.model(n) for n in sizes})
    lookup = Acceptance(priors.LOOKUP)
    arms = {
        MODEL: Arm(Acceptance(priors.MODEL), draft, lookup),
        LOOKUP: Arm(lookup),
    }
    return Controller(CostCurve({n: costs.target(n) for n in sizes}), arms)
