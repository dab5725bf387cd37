"""Speculative decoding: one round, and the loop around it.

A round, in the paper's order (Leviathan et al. 2023, Alg. 1): the drafter proposes up to k tokens;
the target sees the newest token and all drafts in one pass, which yields k + 1 distributions; the
drafts are judged from left to right (verify.py); the accepted ones and one more token are emitted,
and what was rejected is dropped from the target's cache.

Knows models only through `Backend`, proposals only through `Drafter`, depth only through `Policy`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import GEN_CLOSED, GEN_RUNNING, getgeneratorstate
from threading import Event, Lock, current_thread
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Backend, Segment
from edgespec.backends.prefix import align
from edgespec.control.policy import Policy
from edgespec.decoding.rounds import Round, Stats
from edgespec.decoding.sampling import (
    Distribution,
    Sampler,
    SamplerSettings,
    log_softmax_at,
    most_probable,
)
from edgespec.decoding.stopping import FinishReason, Origin, Output, Token
from edgespec.decoding.verify import Coupled, Rejection, Rule, verify
from edgespec.drafters.base import Drafter, DraftState, Node
from edgespec.errors import ContextFull, UsageError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What to generate behind a prompt."""

    sampling: SamplerSettings = field(default_factory=SamplerSettings)
    max_tokens: int | None = None
    """None: until the model ends or the context is full"""
    stop: Sequence[str] = ()
    """strings that end the output; they are not part of it"""
    seed: int | None = None
    """None: exact in distribution; a seed: the text depends on it alone (see verify.py)"""
    logprobs: int | None = None
    """report each token's log-probability and this many alternatives"""
    on_prompt: Callable[[int, int], None] = lambda done, total: None
    """told how much of the prompt is processed, in tokens"""
    on_round: Callable[[Round], None] = lambda finished: None
    """told about every finished round"""

    def __post_init__(self) -> None:
        if self.logprobs is not None and not 0 <= self.logprobs <= 100:
            raise UsageError(f"logprobs is {self.logprobs}; it must be between 0 and 100")


class Engine:
    """A target with its KV cache, a drafter and a policy. Runs one generation at a time.

    The cache keeps its tokens between generations: a prompt that begins like the last one is not
    processed again. Target and drafter stay the caller's to close.
    """

    def __init__(self, target: Backend, drafter: Drafter | None, policy: Policy) -> None:
        self.target = target
        if drafter is not None and not target.capabilities.rollback:
            raise UsageError(f"{target.name} cannot speculate: {target.capabilities.reason}")
        self.drafter = drafter
        self.policy = policy
        self.sequence = target.open()
        self.step = Lock()
        """held while models compute"""
        self._current: Generation | None = None
        self._closed = False
        self._start = Lock()
        """held while a generation starts, so that no two do"""

    def generate(self, prompt: Sequence[int], request: Request) -> Generation:
        """Start generating behind `prompt` (token ids).

        An unfinished generation of the same thread ends. Raises UsageError while another thread's runs,
        and if the prompt is empty; ContextFull if the prompt does not fit.
        """
        if not prompt:
            raise UsageError("the prompt is empty; give some text")
        if len(prompt) > self.target.n_ctx:
            raise ContextFull(
                f"the prompt has {len(prompt)} tokens and the context holds {self.target.n_ctx}; "
                "shorten the prompt or raise --ctx"
            )
        self.refuse_callbacks("start another generation with the same runtime")
        with self._start:
            if self._closed:
                raise UsageError("the runtime is closed; load it again")
            if self._current is not None:
                self._current.give_way()
            self._current = Generation(self, prompt, request)
            return self._current

    def refuse_callbacks(self, what: str) -> None:
        """Raise UsageError inside a callback of the running generation, which would wait for itself."""
        if self._current is not None and self._current.calls_back:
            raise UsageError(f"a callback cannot {what}; it may only cancel the generation")

    def close(self) -> None:
        """End the running generation, from any thread, and wait until its models are at rest."""
        self.refuse_callbacks("close the runtime")
        with self._start:
            self._closed = True
            current = self._current
        if current is not None:
            current.cancel()
            with self.step:
                current.abandon()


class _Cancelled(Exception):
    """Unwinds from a checkpoint."""


class Generation:
    """One answer in the making: iterate over it for its tokens, or `run()` it to the end.

    `text`, `tokens`, `finish_reason` and `stats` grow with it. `cancel()` may be called from any
    thread and takes effect before the next forward pass.
    """

    def __init__(self, engine: Engine, prompt: Sequence[int], request: Request) -> None:
        target = engine.target
        self._engine = engine
        self._request = request
        self._prompt_length = len(prompt)
        self._context = list(prompt)
        """every token so far; all but the newest are in the target's cache"""
        self._drafter = engine.drafter
        self._introduced = False
        self._cancel = Event()
        self._output = Output(target.tokenizer, request.stop, request.max_tokens)
        self._sampler = Sampler(request.sampling, min(target.n_vocab, target.tokenizer.n_vocab))
        self._rule: Rule = (
            Rejection(np.random.default_rng()) if request.seed is None else Coupled(request.seed)
        )
        self._state = DraftState(self._sampler, self._rule, self._checkpoint)
        self._tokens = self._generate()
        self._thread = current_thread()
        self.stats = Stats(prompt_tokens=len(prompt))

    def _generate(self) -> Generator[Token, None, None]:
        """The loop: read the prompt, then rounds until the output is complete."""
        engine, output = self._engine, self._output
        try:
            self._read_prompt()
            while output.finish_reason is None:
                if len(self._context) > engine.target.n_ctx:
                    yield from self._released(output.finish("context"))
                    break
                finished = self._round()
                released = self._take(finished)
                engine.policy.observe(finished)
                self._request.on_round(finished)
                yield from released
        except _Cancelled:
            yield from self._released(output.finish("cancelled"))

    def _take(self, finished: Round) -> list[Token]:
        """Put a round's tokens into the output, one by one: a stop may lie in the middle of them."""
        started, taken = perf_counter(), 0
        first = len(self._context) - len(finished.emitted) == self._prompt_length
        released: list[Token] = []
        for token in finished.emitted:
            taken += 1
            released += self._output.push(token)
            if self._output.finish_reason is not None:
                break
        self._released(released)
        seconds = finished.seconds + perf_counter() - started
        if first:
            self.stats.prompt_seconds += seconds
            self._request.on_prompt(self._prompt_length, self._prompt_length)
        else:
            self.stats.add(finished, taken, seconds)
        return released

    def _released(self, tokens: list[Token]) -> list[Token]:
        """Tokens that the output released. With the last of them the cache is cut to the output,
        before they are handed out: they may be read when another generation has begun."""
        output = self._output
        self.stats.tokens = len(output.tokens)
        if output.finish_reason is not None:
            self._keep(self._prompt_length + len(output.tokens))
        return tokens

    def _read_prompt(self) -> None:
        started = perf_counter()
        engine = self._engine

        def between_chunks(done: int, total: int) -> None:
            self._checkpoint()
            self._request.on_prompt(done, total)

        # The last chunk is left to the first round, whose pass yields the first token.
        self.stats.cached_tokens = align(
            engine.target, engine.sequence, self._context, engine.target.max_batch, between_chunks
        )
        self.stats.prompt_seconds += perf_counter() - started
        self._request.on_prompt(len(engine.sequence), len(self._context))

    def _round(self) -> Round:
        """One draft → verify → commit cycle."""
        self._checkpoint()
        target, sequence, context = self._engine.target, self._engine.sequence, self._context
        first = len(context) == self._prompt_length

        # 1. Draft, except in the first round, where it would only delay the first token.
        if not first:
            self._introduce_drafter()
        started = perf_counter()
        drafted = [] if first else self._draft()
        draft_seconds = perf_counter() - started

        # 2. Verify: the target sees what it has not seen yet and all drafts, in one pass.
        unseen = context[len(sequence) :]
        tokens = [*unseen, *(n.token for n in drafted)]
        rows = target.forward([Segment(sequence, tokens, rows=len(drafted) + 1)])

        # 3. Accept from left to right, each draft against p computed with its exact prefix.
        window = self._request.sampling.penalty_window
        recent = context[-window:] if window else []
        judged_by: list[Distribution] = []

        def p_at(i: int) -> Distribution:
            p = self._sampler.distribution(rows[i], [*recent, *(n.token for n in drafted[:i])])
            judged_by.append(p)
            return p

        ids = verify(drafted, p_at, self._rule, len(context))
        emitted = [self._token(i, id, drafted, rows[i]) for i, id in enumerate(ids)]

        # 4. Commit: rejected drafts leave the cache; the last emitted token is not in it yet.
        context += ids
        self._keep(len(context) - 1)

        seconds = perf_counter() - started
        return Round(drafted, emitted, target.last_step, draft_seconds, seconds, judged_by)

    def _introduce_drafter(self) -> None:
        """Before its first draft the drafter reads the prompt; timed apart from decoding."""
        if self._drafter is None or self._introduced or not self._may_draft():
            return
        self._introduced = True
        started = perf_counter()
        with self._giving_up_on_failure(self._drafter):
            self._drafter.begin(self._context, self._state)
        self.stats.draft_prompt_seconds = perf_counter() - started

    def _draft(self) -> list[Node]:
        """Tokens drafted behind the context, as many as there is room for and the policy wants."""
        drafted: list[Node] = []
        policy, drafter, room = self._engine.policy, self._drafter, self._room()
        if drafter is None or not self._may_draft():
            return drafted
        with self._giving_up_on_failure(drafter):
            drafter.begin(self._context, self._state)
            while len(drafted) < room and policy.wants_more(drafted):
                node = drafter.extend()
                if node is None:
                    break
                drafted.append(node)
                if self._engine.target.tokenizer.is_end(node.token):
                    break
        return drafted

    def _may_draft(self) -> bool:
        return self._room() > 0 and self._engine.policy.wants_more([])

    @contextmanager
    def _giving_up_on_failure(self, drafter: Drafter) -> Iterator[None]:
        """A drafter that fails is given up, aloud, for the rest of this generation; what it had
        drafted so far is verified all the same."""
        try:
            yield
        except _Cancelled:
            raise
        except Exception as error:
            log.warning("drafting with %s stopped: %s", drafter.name, error)
            self.stats.draft_failure = str(error) or type(error).__name__
            self._drafter = None

    def _room(self) -> int:
        """The largest depth that makes sense now: no drafts behind the end of the context or of the
        budget (a round emits one token more than it accepts)."""
        target, remaining = self._engine.target, self._output.remaining
        room = min(target.n_ctx - len(self._context), target.max_rows - 1, target.max_batch - 1)
        return room if remaining is None else min(room, remaining - 1)

    def _token(self, i: int, id: int, drafted: Sequence[Node], row: NDArray[np.float32]) -> Token:
        """The i-th emitted token of a round; its text is filled in by `Output`."""
        origin: Origin = "plain"
        if drafted:
            accepted = i < len(drafted) and drafted[i].token == id
            origin = "draft" if accepted else "bonus" if i == len(drafted) else "corrected"
        alternatives = self._request.logprobs
        if alternatives is None:
            return Token(id, "", origin)
        row = row[: self._sampler.n_vocab]
        top = most_probable(row, alternatives)
        logprob, *top_logprobs = log_softmax_at(row, [id, *top])
        return Token(id, "", origin, logprob, tuple(zip(top, top_logprobs, strict=True)))

    def _keep(self, length: int) -> None:
        """Drop everything behind the first `length` tokens from the target's cache."""
        target, sequence = self._engine.target, self._engine.sequence
        if length < len(sequence) and target.capabilities.rollback:
            target.rollback(sequence, length)

    def _checkpoint(self) -> None:
        if self._cancel.is_set():
            raise _Cancelled

    def __iter__(self) -> Iterator[Token]:
        return self

    def __next__(self) -> Token:
        self._engine.refuse_callbacks("read on")
        with self._engine.step:
            self._thread = current_thread()
            return next(self._tokens)

    def run(self) -> Generation:
        """Generate to the end."""
        for _ in self:
            pass
        return self

    def cancel(self) -> None:
        """Stop before the next forward pass; what was generated so far is the output."""
        self._cancel.set()

    @property
    def calls_back(self) -> bool:
        """Whether we are inside one of this generation's own callbacks."""
        running = getgeneratorstate(self._tokens) == GEN_RUNNING
        return running and self._thread is current_thread()

    def abandon(self) -> None:
        """End here and now, between two tokens."""
        if self.finish_reason is None:
            self._output.finish("cancelled")
        self._tokens.close()

    def give_way(self) -> None:
        """Another generation wants to start. Raises UsageError if this one is another thread's."""
        if self.finish_reason is not None or getgeneratorstate(self._tokens) == GEN_CLOSED:  # or failed
            return
        foreign = self._thread is not current_thread() and self._thread.is_alive()
        if foreign and not self._cancel.is_set():
            raise UsageError(
                "another thread is generating with this runtime; wait for it, cancel it, or load a second one"
            )
        with self._engine.step:  # a cancelled one may be in its last pass
            self.abandon()

    @property
    def text(self) -> str:
        """The output so far."""
        return self._output.text

    @property
    def tokens(self) -> list[int]:
        """Ids of the output so far, without the end token."""
        return self._output.tokens

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None while it runs."""
        return self._output.finish_reason

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended it, if one did."""
        return self._output.stopped_by
