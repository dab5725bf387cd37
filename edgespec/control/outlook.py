"""What the next round with each drafter promises, which promises count, and what it may lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgespec.control.arms import Arm
from edgespec.control.cost import LONGEST, CostCurve
from edgespec.control.lengths import CAUTION, Lengths
from edgespec.control.plans import Plan, fastest, stakes
from edgespec.control.policy import ALONE, Others
from edgespec.control.purse import Purse
from edgespec.drafters.base import Offer

UNPAID_LAG = 2
"""tokens a drafter reads anyway in its first pass; catching up with more is an investment"""
ENDLESS = 4096
"""tokens that follow at most where no budget says so"""
TOO_DEAR = "a wrong draft would cost more than may be lost now"
POOR_ODDS = f"what it may save is not {CAUTION:g} times what it may lose"


class Outlook:
    """Of one generation."""

    def __init__(
        self, target: CostCurve, arms: Mapping[str, Arm], lengths: Lengths, budget: int | None
    ) -> None:
        self._target, self._arms, self._lengths, self._budget = target, arms, lengths, budget
        self.purse = Purse()
        self.prompt = 0
        """its tokens"""
        self.verify: list[float] = []
        """T(n) by n, for this round"""
        self.begin(1, 0, 0, ALONE)

    def begin(self, room: int, length: int, forced: int, others: Others) -> None:
        """A round in which up to `room` tokens may be drafted behind `length`. What is forced and what others
        have in the same pass is read anyway: what is compared here comes on top of its cost, and T(1) is this
        answer's share."""
        anyway = min(forced + others.tokens, LONGEST - room - 1)
        table = self._target.table(anyway + room + 1, length)
        table[1] = self._target.plainly(1, length)
        share = self.share(others, length)
        first = table[anyway + 1]
        self.verify = [seconds - first + share for seconds in table[anyway:]]
        self._dearest = max(self.verify)

    def plan(self, name: str, offer: Offer, room: int, length: int) -> Plan:
        arm, verify = self._arms[name], self.verify
        if arm.cost is None:
            return self._known(name, [arm.acceptance.now(c) for c in offer.confidences[:room]])
        each = arm.cost.seconds(1, length)
        usual = arm.cost.seconds(min(offer.lag, UNPAID_LAG), length) - each
        chain = arm.acceptance.ahead(room)
        depth = self.affordable(room, each, usual)
        plan = fastest(name, chain[:depth] or chain, each, usual, verify)
        if depth == 0:
            plan = plan._replace(barred=TOO_DEAR)
        if offer.lag <= UNPAID_LAG:
            return plan
        reading = max(0.0, arm.reading(offer.lag, length, self._target) - usual - each)
        # What it gains later is no longer bounded by the purse of now.
        later = plan if depth == room else fastest(name, chain, each, usual, verify)
        return plan._replace(reading=reading, later=later.speed)

    def _known(self, name: str, chain: list[float]) -> Plan:
        """Of a drafter whose proposals are known without computing."""
        depth = self.affordable(len(chain), 0.0, 0.0)
        plan = fastest(name, chain[:depth] or chain, 0.0, 0.0, self.verify)
        if depth == 0:
            return plan._replace(barred=TOO_DEAR)
        # Before drafting has gained what is at stake, a lost token weighs as much as CAUTION gained ones.
        if self.purse.gained < self.verify[plan.depth + 1] - self.verify[1]:
            saved, lost = stakes(chain, plan.depth, self.verify)
            if saved < CAUTION * lost:
                return plan._replace(barred=POOR_ODDS)
        return plan

    def best(self, plans: Sequence[Plan]) -> tuple[Plan | None, str]:
        """The fastest plan that is neither barred nor ruled out by what it must read first, and what speaks
        for it, or against drafting."""
        plain = self.plain
        ranked = sorted(plans, key=lambda plan: -plan.speed)
        barred = [plan for plan in ranked if plan.barred and plan.speed > plain]
        able = [plan for plan in ranked if plan not in barred]
        reasons = [f"off: {p.drafter} promises {p.speed:.1f} tok/s, but {p.barred}" for p in barred]
        for plan, next_best in zip(able, [*able[1:], None], strict=False):
            if plan.speed <= plain:
                reasons.append(
                    f"off: {plan.drafter} promises {plan.speed:.1f} tok/s "
                    f"({self.level(plan.drafter):.0%} accepted), plain decoding {plain:.1f}"
                )
                return plan, reasons[0]
            otherwise = max(plain, next_best.speed) if next_best else plain
            if plan.reading == 0.0 or self._earns_back(plan, otherwise):
                return plan, "pays"
            reasons.append(
                f"off: {plan.drafter} would read for {plan.reading:.1f} s first; the answer is not expected "
                "to be long enough to earn that back"
            )
        return None, reasons[0] if reasons else "off: nothing to draft from"

    def _earns_back(self, plan: Plan, otherwise: float) -> bool:
        """Whether what a plan reads first is worth its time, to who decodes at `otherwise` tokens per second
        without it."""
        made, saved = self.purse.made, 1.0 / otherwise - 1.0 / plan.later
        ahead = ENDLESS if self._budget is None else max(0, self._budget - made)
        return plan.reading < saved * ahead and self._lengths.earns_back(
            self.prompt, made, plan.reading / saved, ahead
        )

    def affordable(self, room: int, each: float, first: float) -> int:
        """The depth up to which a round of which nothing is accepted stays within the purse. What takes no
        time to draft is known without computing."""
        verify = self.verify
        limit = verify[1] + self.purse.holds(verify[1], known=each == 0.0)
        if first + room * each + self._dearest <= limit:
            return room
        for j in range(1, room + 1):
            if first + j * each + verify[j + 1] > limit:
                return j - 1
        return room

    def level(self, name: str) -> float:
        return self._arms[name].acceptance.level

    @property
    def plain(self) -> float:
        """Tokens per second of plain decoding."""
        return 1.0 / self.verify[1]

    def share(self, others: Others, length: int) -> float:
        """Seconds of a plain round as its share of a pass beside others."""
        return self._target.plainly(others.tokens + 1, length) / (others.generations + 1)

    def forgo(self, expected: float, accepted: float) -> None:
        """Note a token that was not drafted and might have been."""
        if len(self.verify) < 3:  # there was no room for it behind what was forced
            return
        plain, dearer = self.verify[1], self.verify[2] - self.verify[1]
        if expected * plain > dearer:
            self.purse.on_paper(accepted * plain - dearer)
