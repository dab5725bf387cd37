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

The rule is right on average; a promise never to be slower needs bounds as well. So a round is a bet out of a
purse (purse.py): a depth whose round, were everything rejected, would lose more than it holds is not
considered. And a draft model that lags far behind, most of all behind a prompt that it has never seen, reads
only when the answer is expected to be long enough to earn that back (lengths.py); until then lookup and plain
decoding go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from edgespec.control.arms import Arm, Evidence, forked
from edgespec.control.cost import LONGEST, CostCurve
from edgespec.control.ledger import Ledger
from edgespec.control.lengths import Lengths
from edgespec.control.outlook import Outlook
from edgespec.control.plans import Plan, best_depth
from edgespec.control.policy import ALONE, Choice, Others
from edgespec.decoding.rounds import Round
from edgespec.drafters.base import GLANCE, Drafter, Node

DEEPEST = 24
"""tokens drafted in a round at most: beyond, the chance that all are accepted is not worth looking at"""
MARGIN = 0.02
"""how much faster drafting must promise to be to be taken up again: the noise of a measured speed"""
HICCUP = 1.5
"""times what a round should have taken: beyond, the machine was busy otherwise or the process stopped, and
neither the purse nor the ledger is to blame"""
STALE = 32
"""tokens after which a drafter that is not used is worth another look, if the ledger and the purse allow"""
PLAIN = ""
"""stands for plain decoding where a drafter's name may stand"""
NOT_ASKED = "nothing can be drafted: no token may follow the next one, or no drafter is left"
"""what is said of a round behind the first in which the controller was not asked"""
PLAIN_STALE = 256
"""rounds after which T(1) is worth another look"""


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


class Controller:
    """Implements `Policy` by the rule above."""

    def __init__(
        self,
        target: CostCurve,
        arms: Mapping[str, Arm],
        ledger: Ledger | None = None,
        lengths: Lengths | None = None,
    ) -> None:
        """arms: by the drafters' names; a drafter without an arm is never chosen."""
        self.target = target
        self.arms = dict(arms)
        self.ledger = Ledger() if ledger is None else ledger
        self.lengths = Lengths() if lengths is None else lengths
        self.start(None)

    def start(self, budget: int | None) -> None:
        self._outlook = Outlook(self.target, self.arms, self.lengths, budget)
        self._evidence = Evidence(self.arms)
        self._drafter: Drafter | None = None
        self._rate, self._room = 0.0, 0
        self._off = self._probing = self._asked = self._unasked = False
        self._ages = dict.fromkeys(self.arms, 0)
        why = "the first token comes with the prompt"
        self.decision = Decision(None, 0, why, self._outlook.plain)
        for arm in self.arms.values():
            arm.acceptance.start()

    def fork(self) -> Controller:
        return Controller(self.target, forked(self.arms), self.ledger, self.lengths)

    # --- the round ---

    def choose(
        self,
        drafters: Sequence[Drafter],
        context: Sequence[int],
        room: int,
        forced: int = 0,
        others: Others = ALONE,
    ) -> Choice:
        self._asked, self._unasked = True, False
        outlook, length, room = self._outlook, len(context), min(room, DEEPEST)
        outlook.begin(room, length, forced, others)
        plain = outlook.plain
        offers = {d.name: offer for d in drafters if d.name in self.arms and (offer := d.offer(context))}
        self._evidence.foresee(offers)
        plans = [outlook.plan(name, offer, room, length) for name, offer in offers.items()]
        best, why = outlook.best(plans)
        self._rate = max(plain, best.speed) if best else plain
        wanted = best is not None and best.speed > plain * (1.0 + MARGIN * self._off)
        chosen = best if wanted else None
        self._off = not wanted
        look = self._probe(plans, chosen)
        if look is not None:
            chosen, why = None, f"probe: {look} looks back at the last tokens" if look else "probe"
        self._probing = look is not None
        who, arm = (chosen.drafter, self.arms[chosen.drafter]) if chosen else (look, None)
        self._drafter = next((d for d in drafters if d.name == who), None) if who else None
        guesses = arm.guesses() if arm else 0
        cost = arm.cost if arm else None  # what is free is not thought over while it is drafted
        self._room = outlook.affordable(room, cost.seconds(1), 0.0) if cost else 0
        name, depth = (chosen.drafter, chosen.depth) if chosen else (None, 0)
        self.decision = Decision(name, depth, why, plain, plans, guesses)
        return Choice(self._drafter, chosen is None and self._drafter is not None, guesses=guesses)

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
        return best_depth(reach, chain, costs, self._outlook.verify, i, self._rate)[0] > i

    # --- looking again at what is not used ---

    def _probe(self, plans: Sequence[Plan], chosen: Plan | None) -> str | None:
        """Whom to look at in this round without drafting (PLAIN: at plain decoding), if that is due and
        the ledger and the purse can pay for it."""
        outlook = self._outlook
        if chosen is not None:
            loss = 1.0 / outlook.plain - 1.0 / self._rate
            return PLAIN if self.ledger.plain_age > PLAIN_STALE and self.ledger.can_pay(loss) else None
        for plan in plans:
            cost = self.arms[plan.drafter].cost
            waits = plan.speed > outlook.plain  # to be let: it is good enough, as far as is known
            if cost is None or waits or self._ages[plan.drafter] < STALE:
                continue
            seconds = cost.seconds(min(STALE, GLANCE))
            if self.ledger.can_pay(seconds) and seconds <= outlook.purse.holds(1.0 / outlook.plain):
                return plan.drafter
        return None

    # --- learning ---

    def observe(self, finished: Round) -> None:
        emitted, length = len(finished.emitted), finished.verify.length
        outlook, took = self._outlook, min(finished.seconds, HICCUP * self._expected(finished))
        self._unasked, self._asked = not self._asked and outlook.purse.made > 0, False
        outlook.prompt = outlook.prompt or finished.place
        outlook.purse.made += emitted
        if finished.drafter is not None:
            forced, others = min(finished.forced, emitted - 1), finished.others
            plain = (emitted - forced - 1) * outlook.share(others, length)
            plain += self.target.plainly(others.tokens + forced + 1, length)
            outlook.purse.gained += plain - took
        own = took - finished.others.generations * outlook.share(finished.others, length)
        self.ledger.add(own, own - emitted / self._rate if self._probing else 0.0)
        self._probing = False
        self._observe_costs(finished)
        idle = self._evidence.idle(finished)
        for name, judged in idle.items():
            outlook.forgo(self.arms[name].acceptance.now(judged.confidence), judged.accepted)
        self._evidence.take(finished, idle)
        seen = finished.verify.n == finished.others.tokens + 1  # and not the pass that ends the prompt
        self.ledger.plain_age = 0 if seen else self.ledger.plain_age + 1
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
        prompt = step.n - finished.others.tokens > len(finished.drafted) + 1  # no logits but the last token's
        if finished.first and not (prompt and step.n <= LONGEST):
            self.target.observe(step.n, step.length, finished.seconds - finished.draft_seconds)
        arm = self.arms.get(finished.drafter or "")
        if arm is not None and arm.cost is not None:
            for step in finished.draft_steps:
                arm.cost.observe(step.n, step.length, step.seconds)

    def read(self, drafter: str, tokens: int, seconds: float) -> None:
        arm = self.arms.get(drafter)
        if arm is not None and arm.cost is not None and tokens > LONGEST:
            arm.cost.observe(tokens, 0, seconds)

    def finish(self, ended: bool) -> None:
        self.lengths.add(self._outlook.prompt, self._outlook.purse.made, ended)

    # --- what people are told ---

    def plain_seconds(self, length: int, others: Others = ALONE) -> float | None:
        """What a token costs plainly behind `length`, as estimated."""
        return self.target.plainly(others.tokens + 1, length)

    @property
    def verdict(self) -> str | None:
        """Why drafting is off, if it is."""
        return self.decision.why if self.decision.why.startswith("off") else None

    def explain(self) -> str:
        made, level = self.decision, self._outlook.level
        plans = [
            f"{p.drafter} {p.speed:.1f} tok/s at depth {p.depth} ({level(p.drafter):.0%} accepted)"
            for p in made.plans
        ]
        what = f"{made.drafter}, depth {made.depth} and on" if made.drafter else "plain"
        if made.guesses:
            what += f", reading {made.guesses} tokens of lookup ahead"
        before = f"plain: {NOT_ASKED}; before: " if self._unasked else ""
        return f"{before}{what}: {made.why}; expected: plain {made.plain:.1f} tok/s, " + ", ".join(
            plans or ["no drafter"]
        )
