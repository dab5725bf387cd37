"""Decode prompts plainly and speculatively, and with plain llama.cpp as reference where that is wanted, in
turn and in one process, so that drift of the machine cancels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

from edgespec.backends.base import Step
from edgespec.bench.passes import Model, Pass, summarize, total_bytes
from edgespec.bench.record import record
from edgespec.bench.suite import Prompt
from edgespec.bench.traces import Trace
from edgespec.decoding.generation import Generation
from edgespec.decoding.rounds import Round
from edgespec.device.energy import Stop, meter
from edgespec.drafters.draft_model import DraftModel
from edgespec.runtime import GenerateOptions, Runtime

Way = Literal["plain", "speculative", "reference"]


class Run(NamedTuple):
    """What one answer took."""

    tokens: int
    decoded: int
    """of these, the tokens that came while decoding was timed: all but the first"""
    seconds: float
    """of decoding"""
    drafting: float
    """of these, in passes of the draft model"""
    verifying: float
    """in passes of the target; the rest of the time is edgespec's own"""
    rounds: int
    drafted: int
    accepted: int
    bytes: int | None
    """of weights read by all passes; None where the models do not say"""
    joules: float | None = None
    """that the machine took meanwhile; None where it does not say"""

    @property
    def speed(self) -> float:
        """Tokens per second, decode only."""
        return self.decoded / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Compared:
    """A prompt and all that was measured with it. Figures are medians over the repeats; a ratio is the
    median of the ratios within each repeat, whose runs follow one another directly."""

    id: str
    category: str
    runs: Mapping[Way, Sequence[Run]]
    """one per repeat"""
    first_token: Mapping[Way, float]
    """seconds to the first token; speculation never delays it, so its is plain decoding's"""
    draft_reads: float
    """seconds the draft model took to read the prompt, once"""
    same_tokens: bool | None
    """whether every speculative answer was the plain one; None for random ones (no seed)"""
    rounds: Sequence[tuple[int, int]]
    """of the last speculative run: tokens drafted and accepted"""
    passes: Sequence[Pass]
    trace: Trace | None = None
    """what the draft model thinks of the greedy answer, where that was recorded"""

    def speed(self, way: Way) -> float:
        """Tokens per second, decode only."""
        return median(run.speed for run in self.runs[way])

    def speedup(self, against: Way = "plain") -> float:
        """Of decoding speculatively."""
        pairs = zip(self.runs["speculative"], self.runs[against], strict=True)
        return median(a.speed / b.speed for a, b in pairs)

    def end_to_end(self, way: Way) -> float:
        """Tokens per second from the question to the last token."""
        reading = self.first_token[way] + (self.draft_reads if way == "speculative" else 0.0)
        return median(run.tokens / (reading + run.seconds) for run in self.runs[way])

    def end_to_end_speedup(self, against: Way = "plain") -> float:
        return self.end_to_end("speculative") / self.end_to_end(against)

    def of_speculation(self, figure: Callable[[Run], float]) -> float:
        """The median of a figure over the speculative runs."""
        return median(map(figure, self.runs["speculative"]))

    @property
    def timed(self) -> bool:
        """Whether no answer was too short for that."""
        return all(run.speed > 0.0 for runs in self.runs.values() for run in runs)

    def bandwidth(self, way: Way = "speculative") -> float | None:
        """Bytes of weights read per second of decoding."""
        known = [run.bytes / run.seconds for run in self.runs[way] if run.bytes is not None and run.seconds]
        return median(known) if known else None

    def tokens_per_joule(self, way: Way = "speculative") -> float | None:
        """While decoding."""
        known = [run.decoded / run.joules for run in self.runs[way] if run.joules]
        return median(known) if known else None


class _Decoded(NamedTuple):
    """What is kept of a round: no distributions, which are large."""

    drafted: int
    accepted: int
    verify: Step
    draft_steps: Sequence[Step]


class _Watch:
    """Of an answer: its rounds, and the energy that it takes from the first of them on."""

    def __init__(self) -> None:
        self.rounds: list[_Decoded] = []
        self._meter = meter()
        self._stop: Stop | None = None

    def __call__(self, r: Round) -> None:
        if self._meter is not None and not self.rounds:
            self._stop = self._meter.start()
        self.rounds.append(_Decoded(len(r.drafted), r.accepted, r.verify, r.draft_steps))

    def joules(self) -> float | None:
        """At the end."""
        return None if self._stop is None else self._stop()


class Bench:
    """A loaded pair, and plain llama.cpp beside it if given, that prompts are compared on."""

    def __init__(
        self,
        runtime: Runtime,
        options: GenerateOptions,
        repeats: int,
        reference: Runtime | None = None,
        traces: bool = False,
    ) -> None:
        """reference: with the same tokenizer. Both stay the caller's to close. traces: record them, where
        there is a draft model and answers are greedy."""
        self._runtime = runtime
        self._options = options
        self._repeats = repeats
        self._ways: dict[Way, tuple[Callable[..., Generation], Model]] = {
            "plain": (runtime.generate_plain, Model.of(runtime.target)),
            "speculative": (runtime.generate, Model.of(runtime.target)),
        }
        if reference is not None:
            self._ways["reference"] = (reference.generate_plain, Model.of(reference.target))
        self._drafter = next((d for d in runtime.drafters if isinstance(d, DraftModel)), None)
        self._draft = None if self._drafter is None else Model.of(self._drafter.backend)
        self._traces = traces and not options.get("temperature")

    def compare(self, prompt: Prompt, number: int) -> Compared:
        """Decode a prompt every way, `repeats` times. The ways are taken in turn, and the other way round
        each second time, beginning with the prompt's number: what comes first gains from it nowhere.

        First an answer of two tokens that counts for the time to the first token only, so that no way is
        the one that reads the prompt.
        """
        messages = [{"role": "user", "content": prompt.text}]
        asked = self._runtime.tokenize(messages if self._runtime.has_chat_template else prompt.text)
        short: GenerateOptions = {**self._options, "max_tokens": 2}
        first_token: dict[Way, float] = {
            way: generate(asked, **short).stats.prompt_seconds
            for way, (generate, _) in self._ways.items()
            if way != "speculative"
        }
        first_token["speculative"] = first_token["plain"]
        runs: dict[Way, list[Run]] = {way: [] for way in self._ways}
        texts: dict[Way, list[list[int]]] = {way: [] for way in self._ways}
        steps: list[tuple[str, Step]] = []
        draft_reads = 0.0
        for repeat in range(self._repeats):
            for way in list(self._ways)[:: -1 if (number + repeat) % 2 else 1]:
                generate, target = self._ways[way]
                watch = _Watch()
                answer = generate(asked, **self._options, on_round=watch)
                joules = watch.joules()
                decoded = watch.rounds[1:]  # the first round's token comes with the prompt
                runs[way].append(self._run(answer, decoded, target)._replace(joules=joules))
                texts[way].append(answer.tokens)
                steps += [(target.name, r.verify) for r in decoded]
                if self._draft is not None:
                    steps += [(self._draft.name, step) for r in decoded for step in r.draft_steps]
                if way == "speculative":
                    last = decoded
                    draft_reads = max(draft_reads, answer.stats.draft_prompt_seconds)
        random = self._options.get("temperature", 0.0) > 0.0 and self._options.get("seed") is None
        return Compared(
            prompt.id,
            prompt.category,
            runs,
            first_token,
            draft_reads,
            None if random else all(text == texts["plain"][0] for text in texts["speculative"]),
            [(r.drafted, r.accepted) for r in last],
            summarize(steps),
            self._trace(prompt, asked, texts["plain"][0]),
        )

    def _trace(self, prompt: Prompt, asked: list[int], text: list[int]) -> Trace | None:
        draft = self._drafter
        if draft is None or not self._traces or len(asked) + len(text) > draft.backend.n_ctx:
            return None
        cache = draft.caches.take(asked)
        try:
            return record(prompt.id, prompt.category, asked, text, draft.backend, cache)
        finally:
            draft.caches.release(cache)

    def _run(self, answer: Generation, decoded: Sequence[_Decoded], target: Model) -> Run:
        stats = answer.stats
        drafting = [step for finished in decoded for step in finished.draft_steps]
        read = [
            total_bytes([finished.verify for finished in decoded], target),
            total_bytes(drafting, self._draft),
        ]
        return Run(
            stats.tokens,
            stats.decode_tokens,
            stats.decode_seconds,
            sum(step.seconds for step in drafting),
            stats.verify_seconds,
            stats.rounds,
            stats.drafted,
            stats.accepted,
            None if None in read else sum(filter(None, read)),
        )
