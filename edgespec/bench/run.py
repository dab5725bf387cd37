"""Decode prompts plainly and speculatively, and with plain llama.cpp as reference where that is wanted, in
turn and in one process, so that drift of the machine cancels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Literal

from edgespec.bench.passes import Model, Pass, summarize
from edgespec.bench.record import record
from edgespec.bench.suite import Prompt
from edgespec.bench.timed import Run, Timed, Watch
from edgespec.bench.traces import Trace
from edgespec.decoding.generation import Generation
from edgespec.drafters.draft_model import DraftModel
from edgespec.errors import ContextFull
from edgespec.options import GenerateOptions
from edgespec.runtime import Runtime

Way = Literal["plain", "speculative", "reference"]


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
        return all(run.speed > 0.0 and run.tokens > 0 for runs in self.runs.values() for run in runs)

    def bandwidth(self, way: Way = "speculative") -> float | None:
        """Bytes of weights read per second of decoding."""
        known = [run.bytes / run.seconds for run in self.runs[way] if run.bytes is not None and run.seconds]
        return median(known) if known else None

    def tokens_per_joule(self, way: Way = "speculative") -> float | None:
        """While decoding."""
        known = [run.decoded / run.joules for run in self.runs[way] if run.joules]
        return median(known) if known else None


class _Rival:
    """What decodes speculatively: drafters, on the target that all share."""

    def __init__(self, target: Runtime, runtime: Runtime) -> None:
        self.generate = partial(target.generate_as, runtime)
        self.drafter = next((d for d in runtime.drafters if isinstance(d, DraftModel)), None)
        self.model = None if self.drafter is None else Model.of(self.drafter.backend)


class Bench:
    """Loaded drafts of one target, and plain llama.cpp beside it if given, that prompts are compared on."""

    def __init__(
        self,
        runtimes: Sequence[Runtime],
        options: GenerateOptions,
        repeats: int,
        reference: Runtime | None = None,
        traces: bool = False,
    ) -> None:
        """runtimes: of one pair with several drafts; everything runs on the first one's target. reference:
        with the same tokenizer. All stay the caller's to close. traces: record them, where there is a draft
        model and answers are greedy."""
        self._runtime = runtimes[0]
        self._options = options
        self._repeats = repeats
        self._rivals = [_Rival(self._runtime, runtime) for runtime in runtimes]
        self._target = Model.of(self._runtime.target)
        self._reference = reference
        self._traces = traces and not options.get("temperature")

    def check(self, prompts: Iterable[Prompt]) -> None:
        """Raise ContextFull for the first that does not fit: a run takes hours."""
        for prompt in prompts:
            try:
                fits = len(self._tokens(prompt)) <= self._runtime.target.n_ctx
            except ContextFull:
                fits = False
            if not fits:
                raise ContextFull(
                    f"the prompt {prompt.id} does not fit into the context of {self._runtime.target.n_ctx} "
                    "tokens; take it out of the suite or raise --ctx"
                )

    def _tokens(self, prompt: Prompt) -> list[int]:
        messages = [{"role": "user", "content": prompt.text}]
        return self._runtime.tokenize(messages if self._runtime.has_chat_template else prompt.text)

    def compare(self, prompt: Prompt, number: int) -> list[Compared]:
        """Decode a prompt every way, `repeats` times; a result for each draft. The ways are taken in turn,
        and the other way round each second time, beginning with the prompt's number: what comes first gains
        from it nowhere. Plain decoding stands in the middle of the drafts.

        First an answer of two tokens that counts for the time to the first token only, so that no way is
        the one that reads the prompt.
        """
        asked = self._tokens(prompt)
        plain, reference = Timed(self._target), None
        ways: list[tuple[Callable[..., Generation], Timed]] = [(self._runtime.generate_plain, plain)]
        drafted = [Timed(self._target, rival.model) for rival in self._rivals]
        rivals = [(rival.generate, timed) for rival, timed in zip(self._rivals, drafted, strict=True)]
        middle = len(rivals) // 2
        ways = [*rivals[:middle], *ways, *rivals[middle:]]
        if self._reference is not None:
            reference = Timed(Model.of(self._reference.target))
            ways.append((self._reference.generate_plain, reference))
        short: GenerateOptions = {**self._options, "max_tokens": 2}
        for generate, timed in ways:
            if timed not in drafted:
                timed.first_token = generate(asked, **short).stats.prompt_seconds
        for repeat in range(self._repeats):
            for generate, timed in ways[:: -1 if (number + repeat) % 2 else 1]:
                watch = Watch()
                answer = generate(asked, **self._options, on_round=watch)
                timed.add(answer, watch)
        return [
            self._compared(prompt, asked, plain, timed, rival.drafter, reference)
            for timed, rival in zip(drafted, self._rivals, strict=True)
        ]

    def _compared(
        self,
        prompt: Prompt,
        asked: list[int],
        plain: Timed,
        timed: Timed,
        drafter: DraftModel | None,
        reference: Timed | None,
    ) -> Compared:
        ways: dict[Way, Timed] = {"plain": plain, "speculative": timed}
        if reference is not None:
            ways["reference"] = reference
        random = self._options.get("temperature", 0.0) > 0.0 and self._options.get("seed") is None
        timed.first_token = plain.first_token
        return Compared(
            prompt.id,
            prompt.category,
            {way: found.runs for way, found in ways.items()},
            {way: found.first_token for way, found in ways.items()},
            timed.draft_reads,
            None if random else all(text == plain.texts[0] for text in timed.texts),
            [(r.drafted, r.accepted) for r in timed.last],
            summarize(step for found in ways.values() for step in found.steps),
            self._trace(prompt, asked, plain.texts[0], drafter),
        )

    def _trace(
        self, prompt: Prompt, asked: list[int], text: list[int], draft: DraftModel | None
    ) -> Trace | None:
        if draft is None or not self._traces or len(text) < 2:  # it takes no time to decode
            return None
        if len(asked) + len(text) > draft.backend.n_ctx:
            return None
        cache = draft.caches.take(asked)
        try:
            return record(prompt.id, prompt.category, asked, text, draft.backend, cache)
        finally:
            draft.caches.release(cache)
