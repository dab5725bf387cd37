"""What is kept of a round, and the sums over a generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from edgespec.backends.base import Step
from edgespec.control.policy import ALONE, Others
from edgespec.decoding.sampling import Distribution
from edgespec.decoding.stopping import Token
from edgespec.drafters.base import Hindsight, Node


@dataclass(frozen=True)
class Round:
    """One draft → verify → commit cycle."""

    drafted: Sequence[Node]
    emitted: Sequence[Token]
    """accepted drafts and one more: the correction or the bonus token"""
    verify: Step
    """the target's forward pass, with all that others had in it"""
    draft_seconds: float
    seconds: float
    """draft, verify, accept and commit"""
    p: Sequence[Distribution] = ()
    """the target's distribution that each emitted token was judged by or drawn from"""
    drafter: str | None = None
    """who drafted, or was asked to"""
    draft_steps: Sequence[Step] = ()
    """the drafter's forward passes"""
    hindsight: Sequence[Hindsight] = ()
    """what the drafter's reading showed about earlier tokens"""
    likelihoods: Sequence[float] = ()
    """of each judged draft: the accept rule's probability where it has one, else the outcome"""
    place: int = 0
    """where in the context the first emitted token stands"""
    forced: int = 0
    """the first of the drafted tokens, which the grammar forced"""
    others: Others = ALONE
    """in the same pass"""
    first: bool = True
    """of the rounds that share the pass; what is counted by passes is counted with this one"""

    @property
    def accepted(self) -> int:
        """Drafted tokens accepted."""
        return len(self.emitted) - 1


@dataclass
class Stats:
    """Counts and times of one generation. Decoding is timed from the first token to the last; a pass that
    several generations share counts for each of them."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """prompt tokens whose keys and values were still there"""
    prompt_seconds: float = 0.0
    """computing until the first token; what other generations took in between is not in it"""
    draft_prompt_seconds: float = 0.0
    """the drafter reading the prompt; not part of decoding"""
    tokens: int = 0
    """tokens of the output"""
    decode_seconds: float = 0.0
    decode_tokens: int = 0
    """tokens that came in decode_seconds: all but the first, an end token and a stop string's included"""
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_passes: int = 0
    """the draft model's forward passes"""
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    draft_failure: str | None = None
    """why the drafter was given up, if it was"""
    plain_seconds: float | None = None
    """what plain decoding would have taken for decode_tokens, as the cost model estimates"""
    off: str | None = None
    """why nothing was drafted in the end, where the controller decided so"""
    joules: float | None = None
    """that the machine took from the first token to the last, where somebody measured it"""
    depths: dict[int, int] = field(default_factory=dict)
    """rounds by number of tokens drafted"""

    def add(self, finished: Round, taken: int, seconds: float, plain: float | None) -> None:
        """Count a decode round, of whose tokens `taken` were used before a stop, and which took
        `seconds` with everything; plain: what one token would have cost plainly, if that is known."""
        if plain is not None:
            self.plain_seconds = (self.plain_seconds or 0.0) + plain * taken
        self.rounds += 1
        self.decode_tokens += taken
        self.decode_seconds += seconds
        self.drafted += len(finished.drafted)
        self.accepted += finished.accepted
        self.draft_passes += len(finished.draft_steps)
        self.draft_seconds += finished.draft_seconds
        self.verify_seconds += finished.verify.seconds
        self.depths[len(finished.drafted)] = self.depths.get(len(finished.drafted), 0) + 1

    @property
    def tokens_per_second(self) -> float:
        """Decode speed."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def end_to_end_tokens_per_second(self) -> float:
        """All tokens of the output over all the time: prompt, the drafter's reading of it, decoding."""
        seconds = self.prompt_seconds + self.draft_prompt_seconds + self.decode_seconds
        return self.tokens / seconds if seconds else 0.0

    @property
    def accepted_per_round(self) -> float:
        return self.accepted / self.rounds if self.rounds else 0.0

    @property
    def acceptance(self) -> float:
        """Share of the drafted tokens that were accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_depth(self) -> float:
        """Tokens drafted per round, plain rounds included."""
        return self.drafted / self.rounds if self.rounds else 0.0

    @property
    def estimated_speedup(self) -> float | None:
        """Against plain decoding, as the cost model estimates what that would have taken."""
        if self.plain_seconds is None or not self.decode_seconds:
            return None
        return self.plain_seconds / self.decode_seconds

    @property
    def tokens_per_joule(self) -> float | None:
        """While decoding; None where energy was not measured."""
        return self.decode_tokens / self.joules if self.joules else None

    @property
    def overhead_seconds(self) -> float:
        """Time spent in edgespec's own code while decoding."""
        return self.decode_seconds - self.draft_seconds - self.verify_seconds

    def as_dict(self) -> dict[str, object]:
        """Everything above, for JSON."""
        derived = (
            "tokens_per_second",
            "end_to_end_tokens_per_second",
            "accepted_per_round",
            "acceptance",
            "mean_depth",
            "estimated_speedup",
            "tokens_per_joule",
            "overhead_seconds",
        )
        return asdict(self) | {name: getattr(self, name) for name in derived}

    def line(self) -> str:
        """One line for people."""
        parts = [f"{self.tokens} tokens", f"{self.tokens_per_second:.1f} tok/s"]
        if self.drafted:
            if self.estimated_speedup is not None:
                parts.append(f"{self.estimated_speedup:.2f} × plain (estimate)")
            parts += [
                f"{self.rounds} rounds of mean depth {_in_short(self.mean_depth)}",
                f"{_in_short(self.accepted_per_round)} accepted per round ({self.acceptance:.0%} of drafts)",
                f"draft {self.draft_seconds:.2f} s, verify {self.verify_seconds:.2f} s",
            ]
        else:
            parts.append("plain decoding")
        if self.off:
            parts.append(self.off)
        first = f"first token after {self.prompt_seconds:.2f} s"
        parts.append(f"{first} ({self.prompt_tokens} prompt tokens, {self.cached_tokens} cached)")
        if self.draft_prompt_seconds >= 0.01:
            parts.append(f"draft read the prompt in {self.draft_prompt_seconds:.2f} s")
        parts.append(f"{self.end_to_end_tokens_per_second:.1f} tok/s end to end")
        if self.tokens_per_joule is not None:
            parts.append(f"{self.tokens_per_joule:.3g} tokens per joule")
        if self.draft_failure:
            parts.append(f"drafting stopped: {self.draft_failure}")
        return " · ".join(parts)


def _in_short(mean: float) -> str:
    """With a decimal, or two where one would be 0.0: few is not none."""
    return f"{mean:.2f}" if 0.0 < mean < 0.05 else f"{mean:.1f}"
