"""The controller: which drafter, and how deep, every round; plain decoding where drafting does not pay.

The rule (renewal-reward). A round is a cycle that costs seconds and yields tokens; the long-run speed
is E[tokens] / E[seconds] (renewal-reward theorem, e.g. Ross 1996, §3.6). The best attainable speed λ
satisfies max over policies of E[tokens] − λ·E[seconds] = 0, and whoever maximises that difference in
every round attains it (Dinkelbach 1967). So a second is worth λ tokens, and:

- having drafted i tokens, which are all accepted with probability P_i, draft on to the depth j > i that
  maximises  Σ_{m=i+1..j} P_m − λ·((j − i)·D + T(j + 1) − T(i + 1)),  and stop when no j makes it
  positive. All j are compared and not the next alone, since T has steps (`best_depth`);
- at the start of a round take the drafter with the largest E[tokens] − λ·E[seconds] at its best depth,
  its catching up included. With λ the larger of 1/T(1) and the best drafter's own speed, that is the
  one with the largest expected speed, and plain decoding where none is faster than 1/T(1).

P comes from acceptance.py, T and D from cost.py. Every token sampled from q is verified: who drafts is
chosen before it samples, and whether it goes on depends on tokens already drafted and on what q shows
before it is sampled from.

The rule is right on average; a promise never to be slower needs a bound as well. So a round is a bet out
of a purse: what drafting has gained in this generation over plain decoding, and RISK of the time that plain
decoding takes. A depth whose round, were everything rejected, would lose more than that is not considered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from edgespec.control.acceptance import Acceptance, Judged
from edgespec.control.cost import LONGEST, CostCurve
from edgespec.control.ledger import Ledger
from edgespec.control.policy import Choice
from edgespec.decoding.rounds import Round
from edgespec.drafters.base import GLANCE, Drafter, Node, Offer

DEEPEST = 24
"""tokens drafted in a round at most: beyond, the chance that all are accepted is not worth looking at"""
MARGIN = 0.02
"""how much faster drafting must promise to be to be taken up again: the noise of a measured speed"""
UNPAID_LAG = 2
"""tokens a drafter reads anyway in its first pass; catching up with more is an investment"""
LEAST_HORIZON = 64
"""tokens expected to follow at least, if the budget allows: over these an investment must pay off. Later,
as many as there were so far: what has lasted goes on about as long"""
RISK = 0.015
"""of plain decoding's time may be lost in a generation, at worst"""
HICCUP = 1.5
"""times what a round should have taken: beyond, the machine was busy otherwise, and the purse is not
to blame"""
GUESSES = 4
"""tokens that a draft model reads ahead at most; more are hardly ever drafted"""
STALE = 32
"""tokens after which a drafter that is not used is worth another look, if the ledger allows"""
PLAIN = ""
"""stands for plain decoding where a drafter's name may stand"""
PLAIN_STALE = 256
"""rounds after which T(1) is worth another look"""


@dataclass
class Arm:
    """A drafter as the controller sees it."""

    acceptance: Acceptance
    cost: CostCurve | None = None
    """of a draft model's passes; None: drafting is free"""
    lookup: Acceptance | None = None
    """of the lookup that guesses ahead for a draft model: it agrees with the draft model about as often as
    with the target"""

    def guesses(self) -> int:
        """How many tokens of lookup each of its passes should read ahead: each must save more time, as a
        pass that is then not needed, than it takes."""
        if self.cost is None or self.lookup is None:
            return 0
        table, agreed = self.cost.table(GUESSES + 1), 1.0
        for n in range(1, GUESSES + 1):
            agreed *= self.lookup.level
            if agreed * table[1] <= table[n + 1] - table[n]:
                return n - 1
        return GUESSES


class Plan(NamedTuple):
    """What a round with one drafter promises."""

    drafter: str
    depth: int
    tokens: float
    seconds: float
    """catching up included, as far as this round has to pay for it"""

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


class Decision(NamedTuple):
    """What was decided for a round and why: what `--explain-policy` prints."""

    drafter: str | None
    depth: int
    why: str
    plain: float
    """tokens per second of plain decoding, as estimated"""
    plans: Sequence[Plan] = ()
    guesses: int = 0
    """tokens of lookup that the draft model reads ahead"""


def best_depth(
    reach: float, chain: Sequence[float], costs: Sequence[float], verify: Sequence[float], i: int, rate: float
) -> tuple[int, float]:
    """The depth j ≥ i that maximises Σ_{m=i+1..j} P_m − λ·(cost of drafting + T(j+1) − T(i+1)), and that
    maximum; (i, 0) if stopping is best.

    reach: P_i. chain: conditional acceptance of the tokens i+1, i+2, …; costs: seconds to draft each.
    verify: T(n) by n. rate: λ.
    """
    depth, best, tokens, seconds = i, 0.0, 0.0, -verify[i + 1]
    for j, (accept, cost) in enumerate(zip(chain, costs, strict=True), i + 1):
        reach *= accept
        tokens += reach
        seconds += cost
        gain = tokens - rate * (seconds + verify[j + 1])
        if gain > best:
            depth, best = j, gain
    return depth, best


class Controller:
    """Implements `Policy` by the rule above."""

    def __init__(self, target: CostCurve, arms: Mapping[str, Arm], ledger: Ledger | None = None) -> None:
        """arms: by the drafters' names; a drafter without an arm is never chosen."""
        self.target = target
        self.arms = dict(arms)
        self.ledger = Ledger() if ledger is None else ledger
        self._drafter: Drafter | None = None
        self._probing = False
        self._verify: list[float] = []
        self._rate = 0.0
        self._off = False
        self._plain_age = 0
        self.start(None)

    def start(self, budget: int | None) -> None:
        self._budget, self._made = budget, 0
        self._gained, self._room = 0.0, 0
        self.decision = Decision(
            None, 0, "the first token comes with the prompt", 1.0 / self.target.seconds(1)
        )
        self._off = False
        self._ages = dict.fromkeys(self.arms, 0)
        self._emitted: dict[int, float] = {}
        self._foreseen: dict[str, tuple[int, float]] = {}
        for arm in self.arms.values():
            arm.acceptance.start()

    def fork(self) -> Controller:
        found = [a for arm in self.arms.values() for a in (arm.acceptance, arm.lookup) if a is not None]
        forks = {id(acceptance): acceptance.fork() for acceptance in found}  # arms may have one in common
        arms = {
            name: replace(
                arm,
                acceptance=forks[id(arm.acceptance)],
                lookup=None if arm.lookup is None else forks[id(arm.lookup)],
            )
            for name, arm in self.arms.items()
        }
        return Controller(self.target, arms, self.ledger)

    # --- the round ---

    def choose(
        self, drafters: Sequence[Drafter], context: Sequence[int], room: int, forced: int = 0
    ) -> Choice:
        room = min(room, DEEPEST)
        # What is forced is drafted anyway: all that is compared here comes on top of its cost.
        table = self.target.table(forced + room + 1, len(context))
        self._verify = [seconds - table[forced + 1] + table[1] for seconds in table[forced:]]
        plain = 1.0 / self._verify[1]
        offers = {d.name: offer for d in drafters if d.name in self.arms and (offer := d.offer(context))}
        self._foreseen = {
            name: (offer.token, offer.confidences[0])
            for name, offer in offers.items()
            if offer.token is not None
        }
        plans = [self._plan(name, offer, room, len(context)) for name, offer in offers.items()]
        best = max(plans, key=lambda plan: plan.speed, default=None)
        self._rate = max(plain, best.speed) if best else plain
        wanted = best is not None and best.speed > plain * (1.0 + MARGIN * self._off)
        chosen, why = (best, "pays") if wanted else (None, self._why_not(best, plain))
        look = self._probe(plans, chosen)
        if look == PLAIN:
            chosen, why = None, "probe"
        elif look is not None:
            chosen, why = None, f"probe: {look} looks back at the last tokens"
        self._probing = look is not None
        self._off = not wanted
        arm = self.arms[chosen.drafter] if chosen else None
        self.decision = Decision(
            chosen.drafter if chosen else None,
            chosen.depth if chosen else 0,
            why,
            plain,
            plans,
            arm.guesses() if arm else 0,
        )
        wanted_name = chosen.drafter if chosen else look
        drafter = next((d for d in drafters if d.name == wanted_name), None)
        self._room = self._affordable(room, arm.cost.seconds(1) if arm and arm.cost else 0.0, 0.0)
        self._drafter = drafter
        look_back = chosen is None and drafter is not None
        return Choice(drafter, look_back, guesses=self.decision.guesses)

    def wants_more(self, drafted: Sequence[Node]) -> bool:
        decision, i = self.decision, len(drafted)
        if decision.drafter is None:
            return False
        if i == 0 or self.arms[decision.drafter].cost is None:  # or all was known when it was chosen
            return i < decision.depth
        if self._drafter is not None and self._drafter.ready:
            return i < self._room
        return self._goes_on(drafted, None)

    def keeps(self, drafted: Sequence[Node], confidence: float) -> bool:
        drafter = self.decision.drafter
        if drafter is None or self.arms[drafter].cost is None:
            return True
        return self._goes_on(drafted, confidence)

    def _goes_on(self, drafted: Sequence[Node], confidence: float | None) -> bool:
        """Whether any depth beyond `drafted` is worth its time. confidence: of the next token, whose q
        is then already paid for."""
        assert self.decision.drafter is not None
        arm, i = self.arms[self.decision.drafter], len(drafted)
        reach, sure = 1.0, [node.confidence for node in drafted]
        for c in sure:
            reach *= arm.acceptance.now(c)
        steps = self._room - i
        if steps <= 0:
            return False
        costs = [0.0 if arm.cost is None else arm.cost.seconds(1)] * steps
        if confidence is None:
            chain = arm.acceptance.ahead(steps, sure)
        else:
            chain = [arm.acceptance.now(confidence)]
            chain += arm.acceptance.ahead(steps - 1, [*sure, confidence])
            costs[0] = 0.0
        return best_depth(reach, chain, costs, self._verify, i, self._rate)[0] > i

    # --- what a round with a drafter promises ---

    def _plan(self, name: str, offer: Offer, room: int, length: int) -> Plan:
        arm, verify = self.arms[name], self._verify
        if arm.cost is None:
            chain = [arm.acceptance.now(c) for c in offer.confidences[: self._affordable(room, 0.0, 0.0)]]
            return _fastest(name, chain, 0.0, 0.0, verify)
        each = arm.cost.seconds(1, length)
        usual = arm.cost.seconds(min(offer.lag, UNPAID_LAG), length) - each
        catch_up = arm.cost.seconds(max(offer.lag, 1), length) - each
        chain = arm.acceptance.ahead(self._affordable(room, each, usual))
        plan = _fastest(name, chain, each, usual, verify)
        if (beyond := catch_up - usual) <= 0.0:
            return plan
        paid = usual + beyond * min(1.0, plan.tokens / self._horizon())
        return _fastest(name, chain, each, paid, verify)

    def _affordable(self, room: int, each: float, first: float) -> int:
        """The depth up to which a round of which nothing is accepted stays within the purse."""
        verify = self._verify
        limit = verify[1] + self._gained + RISK * verify[1] * (self._made + LEAST_HORIZON)
        for j in range(1, room + 1):
            if first + j * each + verify[j + 1] > limit:
                return j - 1
        return room

    def _horizon(self) -> float:
        ahead = max(LEAST_HORIZON, self._made)
        return float(ahead if self._budget is None else max(1, min(ahead, self._budget - self._made)))

    def _why_not(self, best: Plan | None, plain: float) -> str:
        if best is None:
            return "off: nothing to draft from"
        return (
            f"off: {best.drafter} promises {best.speed:.1f} tok/s "
            f"({self._level(best.drafter):.0%} accepted), plain decoding {plain:.1f}"
        )

    def _level(self, name: str) -> float:
        return self.arms[name].acceptance.level

    # --- looking again at what is not used ---

    def _probe(self, plans: Sequence[Plan], chosen: Plan | None) -> str | None:
        """Whom to look at in this round without drafting (PLAIN: at plain decoding), if that is due and
        the ledger can pay for it."""
        if chosen is not None:
            loss = self._verify[1] - 1.0 / self._rate
            return PLAIN if self._plain_age > PLAIN_STALE and self.ledger.can_pay(loss) else None
        for plan in plans:
            cost = self.arms[plan.drafter].cost
            if cost is None or self._ages[plan.drafter] < STALE:
                continue
            if self.ledger.can_pay(cost.seconds(min(STALE, GLANCE))):
                return plan.drafter
        return None

    # --- learning ---

    def observe(self, finished: Round) -> None:
        emitted = len(finished.emitted)
        self._made += emitted
        if finished.drafter is not None:
            forced, length = min(finished.forced, emitted - 1), finished.verify.length
            plain = (emitted - forced - 1) * self.target.seconds(1, length)
            plain += self.target.seconds(forced + 1, length)
            self._gained += plain - min(finished.seconds, HICCUP * self._expected(finished))
        lost = finished.seconds - emitted / self._rate if self._probing else 0.0
        self.ledger.add(finished.seconds, lost)
        self._probing = False
        self._observe_costs(finished)
        self._observe_acceptance(finished)
        self._plain_age = self._plain_age + 1 if finished.drafted else 0
        for name in self._ages:
            self._ages[name] = 0 if name == finished.drafter else self._ages[name] + emitted

    def _expected(self, finished: Round) -> float:
        """What a round should have taken, in seconds."""
        step, arm = finished.verify, self.arms.get(finished.drafter or "")
        cost = arm.cost if arm else None
        drafts = sum(cost.seconds(s.n, s.length) for s in finished.draft_steps) if cost else 0.0
        return self.target.seconds(step.n, step.length) + drafts

    def _observe_costs(self, finished: Round) -> None:
        step = finished.verify
        if step.n <= DEEPEST + 1:
            self.target.observe(step.n, step.length, finished.seconds - finished.draft_seconds)
        arm = self.arms.get(finished.drafter or "")
        if arm is not None and arm.cost is not None:
            for step in finished.draft_steps:
                if step.n <= LONGEST:
                    arm.cost.observe(step.n, step.length, step.seconds)

    def _observe_acceptance(self, finished: Round) -> None:
        for i, p in enumerate(finished.p):
            self._emitted[finished.place + i] = p.prob(finished.emitted[i].id)
        while len(self._emitted) > 2 * LONGEST:
            del self._emitted[next(iter(self._emitted))]  # the oldest
        behind = finished.p[finished.forced :]
        for name, (token, confidence) in self._foreseen.items():
            if name != finished.drafter and behind:  # what it would have proposed costs nothing to judge
                self.arms[name].acceptance.look_back([Judged(confidence, behind[0].prob(token))])
        arm = self.arms.get(finished.drafter or "")
        if arm is None:
            return
        # A token y ~ p would have been drafted with probability q(y) and accepted with Σ min(p, q), of
        # which min(1, q(y) / p(y)) is an unbiased sample.
        arm.acceptance.look_back(
            [
                Judged(seen.confidence, min(1.0, seen.q / said))
                for seen in finished.hindsight
                if (said := self._emitted.get(seen.place, 0.0)) > 0.0
            ]
        )
        judged = zip(
            finished.drafted[finished.forced :], finished.likelihoods[finished.forced :], strict=False
        )
        arm.acceptance.observe([Judged(node.confidence, likely) for node, likely in judged])

    # --- what people are told ---

    def plain_seconds(self, length: int) -> float | None:
        """What a token costs plainly behind `length`, as estimated."""
        return self.target.seconds(1, length)

    @property
    def verdict(self) -> str | None:
        """Why drafting is off, if it is."""
        return self.decision.why if self.decision.why.startswith("off") else None

    def explain(self) -> str:
        made = self.decision
        plans = [
            f"{p.drafter} {p.speed:.1f} tok/s at depth {p.depth} ({self._level(p.drafter):.0%} accepted)"
            for p in made.plans
        ]
        what = f"{made.drafter}, depth {made.depth} and on" if made.drafter else "plain"
        if made.guesses:
            what += f", reading {made.guesses} tokens of lookup ahead"
        return f"{what}: {made.why}; expected: plain {made.plain:.1f} tok/s, " + ", ".join(
            plans or ["no drafter"]
        )


def _fastest(name: str, chain: Sequence[float], each: float, first: float, verify: Sequence[float]) -> Plan:
    """The depth ≥ 1 of the largest expected speed, at `each` second per drafted token and `first` more."""
    reach, tokens, seconds = 1.0, 1.0, first
    fastest, best = 0.0, (1, 1.0, math.inf)
    for j, accept in enumerate(chain, 1):
        reach *= accept
        tokens += reach
        seconds += each
        total = seconds + verify[j + 1]
        if tokens > fastest * total:
            fastest, best = tokens / total, (j, tokens, total)
    return Plan(name, *best)
