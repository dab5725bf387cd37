"""What is worth showing of a round: small, and independent of how it is shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from edgespec.backends.base import Tokenizer
from edgespec.decoding.rounds import Round
from edgespec.decoding.stopping import Origin

Verdict = Literal["accepted", "rejected", "not judged"]
"""not judged: drafted behind a rejected token"""


@dataclass(frozen=True)
class Drafted:
    """A drafted token and what became of it."""

    id: int
    text: str
    verdict: Verdict
    p: float | None
    """the target's probability of it; None where it was not computed or is greedy"""
    q: float | None
    """the drafter's"""


@dataclass(frozen=True)
class Added:
    """The token that the target itself adds at the end of a round."""

    id: int
    text: str
    origin: Origin
    p: float | None


@dataclass(frozen=True)
class RoundView:
    """A round, without the distributions it was judged by: those are as wide as the vocabulary."""

    drafted: list[Drafted]
    added: Added | None
    """None when an accepted token ended the generation"""
    draft_seconds: float
    verify_seconds: float
    seconds: float

    @property
    def accepted(self) -> int:
        return sum(d.verdict == "accepted" for d in self.drafted)

    @property
    def tokens(self) -> int:
        """Tokens the round yields."""
        return self.accepted + (self.added is not None)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def view(finished: Round, tokenizer: Tokenizer, greedy: bool) -> RoundView:
    """Take from a round what is to be shown of it."""
    drafted = []
    for i, node in enumerate(finished.drafted):
        verdict: Verdict = "not judged"
        if i <= finished.accepted:
            verdict = "accepted" if i < finished.accepted else "rejected"
        p = q = None
        if not greedy:
            q = 1.0 if node.q is None else node.q.prob(node.token)
            p = finished.p[i].prob(node.token) if i < len(finished.p) else None
        drafted.append(Drafted(node.token, visible_token(node.token, tokenizer), verdict, p, q))
    added = None
    if not any(tokenizer.is_end(token.id) for token in finished.emitted[:-1]):
        last = finished.emitted[-1]
        p = None if greedy else finished.p[-1].prob(last.id)
        added = Added(last.id, visible_token(last.id, tokenizer), last.origin, p)
    return RoundView(drafted, added, finished.draft_seconds, finished.verify.seconds, finished.seconds)


def visible_token(token: int, tokenizer: Tokenizer) -> str:
    """A token's text with its white space to be seen; bytes that are no whole character as \\xNN."""
    text = tokenizer.vocabulary()[token].decode("utf-8", "backslashreplace")
    shown = "".join(
        _VISIBLE.get(c, c if c.isprintable() else c.encode("unicode_escape").decode()) for c in text
    )
    return shown or f"<{token}>"


_VISIBLE = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
