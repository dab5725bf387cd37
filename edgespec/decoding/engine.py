"""Speculative decoding: one round, and the loop around it.

A round, in the paper's order (Leviathan et al. 2023, Alg. 1): the drafter proposes up to k tokens;
the target sees the newest token and all drafts in one pass, which yields k + 1 distributions; the
drafts are judged from left to right (verify.py); the accepted ones and one more token are emitted,
and what was rejected is dropped from the target's cache.

Knows models only through `Backend`, proposals only through `Drafter`, depth only through `Policy`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import iscoroutinefunction
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Segment
from edgespec.backends.base import Sequence as Cache
from edgespec.backends.caches import Caches
from edgespec.backends.prefix import pieces, rewind
from edgespec.control.policy import ALONE, NOBODY, Choice, Policy, propose
from edgespec.decoding.joint import Cancelled, Steps
from edgespec.decoding.rounds import Round, Stats
from edgespec.decoding.sampling import (
    Distribution,
    Sampler,
    SamplerSettings,
    log_softmax_at,
    most_probable,
)
from edgespec.decoding.stopping import Origin, Output, Token
from edgespec.decoding.verify import Coupled, Rejection, Rule, verify
from edgespec.drafters import rules
from edgespec.drafters.base import Drafter, DraftState, Node
from edgespec.errors import UsageError
from edgespec.grammar.constraint import Constraint
from edgespec.grammar.matcher import Matcher

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What to generate behind a prompt."""

    sampling: SamplerSettings = field(default_factory=SamplerSettings)
    max_tokens: int | None = None
    """None: until the model ends or the context is full"""
    stop: Sequence[str] = ()
    """strings that end the output; they are not part of it"""
    constraint: Constraint | None = None
    """the form that the output must have; it ends with "stop" once it is complete"""
    seed: int | None = None
    """None: exact in distribution; a seed: the text depends on it alone (see verify.py)"""
    logprobs: int | None = None
    """report each token's log-probability and this many alternatives"""
    on_prompt: Callable[[int, int], None] = lambda done, total: None
    """told how much of the prompt is processed, in tokens"""
    on_round: Callable[[Round], None] = lambda finished: None
    """told about every finished round"""
    on_token: Callable[[Token], None] = lambda token: None
    """told about every token of the output, in order, before it is handed out"""

    def __post_init__(self) -> None:
        for name in ("max_tokens", "seed", "logprobs"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise UsageError(f"{name} is {value!r}; it must be a whole number, or None")
        for name in ("on_prompt", "on_round", "on_token"):
            if not callable(value := getattr(self, name)):
                raise UsageError(f"{name} is {value!r}; it must be a function")
            if iscoroutinefunction(value):  # a call would do nothing
                raise UsageError(f"{name} is a coroutine function, which nobody awaits; give it a plain one")
        if not all(isinstance(text, str) for text in self.stop):
            raise UsageError(f"stop is {self.stop!r}; it must be strings")
        if self.logprobs is not None and not 0 <= self.logprobs <= 100:
            raise UsageError(f"logprobs is {self.logprobs}; it must be between 0 and 100")


class Decoding:
    """One output behind one prompt: the loop over rounds, and the round. `Generation` is its handle."""

    def __init__(
        self,
        caches: Caches,
        drafters: Sequence[Drafter],
        policy: Policy,
        prompt: Sequence[int],
        request: Request,
        chunk: int,
        grammar: Matcher | None = None,
    ) -> None:
        """caches: the target's. drafters, policy: this output's alone. chunk: how many tokens of a prompt
        are processed in one go. grammar: the request's constraint, made ready for this target and prompt."""
        self._target = target = caches.backend
        self._caches = caches
        self._cache: Cache | None = None
        self._drafters = list(drafters)
        self._to_release = tuple(drafters)
        self._chunk = chunk
        self._policy = policy
        self._request = request
        self._prompt_length = len(prompt)
        self._context = list(prompt)
        """every token so far; all but the newest are in the target's cache"""
        self._introduced: set[int] = set()
        self._cancelled = False
        self.others = ALONE
        """as expected in the pass of the next round"""
        self._output = Output(target.tokenizer, request.stop, request.max_tokens)
        self._sampler = Sampler(request.sampling, min(target.n_vocab, target.tokenizer.n_vocab))
        self._rule: Rule = (
            Rejection(np.random.default_rng()) if request.seed is None else Coupled(request.seed)
        )
        self._grammar = grammar
        self._state = DraftState(self._sampler, self._rule, self._checkpoint, grammar)
        self.stats = Stats(prompt_tokens=len(prompt))

    def _steps(self) -> Steps[None]:
        """The loop: read the prompt, then rounds until the output is complete. A turn is one step that
        computes: a chunk of the prompt or a round."""
        output = self._output
        try:
            yield from self._read_prompt()
            holds = self._target.n_ctx + 1 - self._prompt_length  # the last token is not fed
            self._policy.start(min(holds, self._request.max_tokens or holds))
            while output.finish_reason is None:
                self._checkpoint()
                if len(self._context) > self._target.n_ctx:
                    self._policy.finish(ended=False)
                    yield self._told(self._released(output.finish("context")))
                    break
                # Nobody drafts in the first round, where it would only delay the first token.
                started = perf_counter()
                first = len(self._context) == self._prompt_length
                forced, choice = ([], NOBODY) if first else self._choose()
                seconds = perf_counter() - started
                yield from self._introduce(choice)
                finished = yield from self._round(forced, choice, seconds)
                released = self._take(finished)
                self._learn(finished)
                if output.finish_reason is not None:
                    self._policy.finish(output.finish_reason == "stop")
                self._request.on_round(finished)
                yield self._told(released)
        except Cancelled:
            if len(self._context) > self._prompt_length:  # else short answers alone would count
                self._policy.finish(ended=False)
            yield self._told(self._released(output.finish("cancelled")))
        finally:
            self._leave()

    def _told(self, tokens: list[Token]) -> list[Token]:
        for token in tokens:
            self._request.on_token(token)
        return tokens

    def _read_prompt(self) -> Steps[None]:
        self._checkpoint()
        started, context = perf_counter(), self._context
        self._cache = sequence = self._caches.take(context)
        self.stats.cached_tokens = rewind(self._target, sequence, context)
        self.stats.prompt_seconds += perf_counter() - started
        # The last chunk is left to the first round, whose pass yields the first token.
        for piece in pieces(sequence, context, self._chunk, self._chunk):
            self._request.on_prompt(len(sequence), len(context))
            computed = yield piece
            self.stats.prompt_seconds += computed.seconds
            yield []
            self._checkpoint()
        self._request.on_prompt(len(sequence), len(context))

    def _round(self, forced: list[Node], choice: Choice, choosing: float) -> Steps[Round]:
        """One draft → verify → commit cycle, behind a choice that took so many seconds."""
        target, sequence, context, grammar = self._target, self._sequence, self._context, self._grammar

        # 1. Draft.
        started = perf_counter() - choosing
        drafted, drafter = forced + self._draft(choice, forced), choice.drafter
        draft_seconds = perf_counter() - started

        # 2. Verify: the target sees what it has not seen yet and all drafts, in one pass.
        unseen = context[len(sequence) :]
        tokens = [*unseen, *(n.token for n in drafted)]
        computed = yield Segment(sequence, tokens, rows=len(drafted) + 1)
        rows, judging = computed.rows, perf_counter()

        # 3. Accept from left to right, each draft against p computed with its exact prefix.
        window = self._request.sampling.penalty_window
        recent = context[-window:] if window else []
        judged_by: list[Distribution] = []

        def p_at(i: int) -> Distribution:
            before = [n.token for n in drafted[:i]]
            allowed = None if grammar is None else grammar.allowed(context + before)
            p = self._sampler.distribution(rows[i], recent + before, allowed)
            judged_by.append(p)
            return p

        ids = verify(drafted, p_at, self._rule, len(context))
        emitted = [self._token(i, id, drafted, rows[i]) for i, id in enumerate(ids)]

        # 4. Commit: rejected drafts leave the cache; the last emitted token is not in it yet.
        place = len(context)
        context += ids
        self._keep(len(context) - 1)

        likelihoods: list[float] = []
        if drafter is not None:  # what the policy learns from takes time, too, and that is counted
            judged = zip(drafted, judged_by, ids, strict=False)
            likelihoods = [self._rule.likelihood(node, p, id) for node, p, id in judged]
        done = Round(
            drafted,
            emitted,
            target.last_step,
            draft_seconds,
            draft_seconds + computed.seconds + perf_counter() - judging,
            judged_by,
            place=place,
            forced=len(forced),
            others=computed.others,
            first=computed.first,
        )
        if drafter is None:
            return done
        return replace(
            done,
            drafter=drafter.name,
            draft_steps=drafter.steps,
            hindsight=drafter.hindsight,
            likelihoods=likelihoods,
        )

    def _take(self, finished: Round) -> list[Token]:
        """Put a round's tokens into the output, one by one: a stop may lie in the middle of them."""
        started, taken, place = perf_counter(), 0, finished.place
        first = place == self._prompt_length
        released: list[Token] = []
        for token in finished.emitted:
            taken += 1
            complete = self._grammar is not None and self._grammar.complete(self._context[: place + taken])
            released += self._output.push(token, complete)
            if self._output.finish_reason is not None:
                break
        self._released(released)
        seconds = finished.seconds + perf_counter() - started
        if first:
            self.stats.prompt_seconds += seconds
            self._request.on_prompt(self._prompt_length, self._prompt_length)
        else:
            plain = self._policy.plain_seconds(finished.verify.length, finished.others)
            self.stats.add(finished, taken, seconds, plain)
            self.stats.off = self._policy.verdict
        return released

    def _learn(self, finished: Round) -> None:
        """Its time is part of decoding, or of what precedes the first token."""
        started = perf_counter()
        self._policy.observe(finished)
        seconds = perf_counter() - started
        if finished.place == self._prompt_length:
            self.stats.prompt_seconds += seconds
        else:
            self.stats.decode_seconds += seconds

    def _released(self, tokens: list[Token]) -> list[Token]:
        """Tokens that the output released. With the last of them the cache is cut to the output and given
        back, before they are handed out: they may be read when another generation has begun."""
        output = self._output
        self.stats.tokens = len(output.tokens)
        if output.finish_reason is not None:
            self._leave()
        return tokens

    def _leave(self) -> None:
        """Give the caches back: nothing more is computed."""
        try:
            if self._cache is not None:
                self._keep(self._prompt_length + len(self._output.tokens))
        finally:
            if (cache := self._cache) is not None:
                self._cache = None
                self._caches.release(cache)
            for drafter in self._to_release:
                drafter.release()
            self._to_release = ()

    @property
    def _sequence(self) -> Cache:
        assert self._cache is not None
        return self._cache

    def _choose(self) -> tuple[list[Node], Choice]:
        """What the grammar forces, and who drafts behind it, if anyone."""
        room = self._room()
        forced = [] if self._grammar is None else rules.forced(self._grammar, self._context, room)
        if room <= 0 or not (self._drafters or forced):
            return [], NOBODY
        behind = self._context + [node.token for node in forced]
        room -= len(forced)
        choice = self._policy.choose(self._drafters, behind, room, len(forced), self.others)
        return forced if choice.rules else [], choice

    def _introduce(self, choice: Choice) -> Steps[None]:
        """Before its first draft a drafter reads the prompt, chunk by chunk; timed apart from decoding."""
        drafter, context = choice.drafter, self._context
        if drafter is None or choice.look or id(drafter) in self._introduced:
            return
        self._introduced.add(id(drafter))
        with self._giving_up_on_failure(drafter):
            offer = drafter.offer(context)
            known = len(context) - (1 if offer is None else offer.lag)
            for end in (*range(known + self._chunk, len(context), self._chunk), len(context)):
                started = perf_counter()
                drafter.begin(context[:end], self._state)
                seconds = perf_counter() - started
                self.stats.draft_prompt_seconds += seconds
                self._policy.read(drafter.name, end - known, seconds)
                known = end
                if end < len(context):
                    yield []
                    self._checkpoint()

    def _draft(self, choice: Choice, forced: Sequence[Node]) -> list[Node]:
        """Tokens drafted behind the context and what is forced behind it, as many as there is room for and
        the policy wants."""
        drafted: list[Node] = []
        context = self._context + [node.token for node in forced]
        drafter = choice.drafter
        if drafter is None or drafter not in self._drafters:  # it may just have failed
            return drafted
        with self._giving_up_on_failure(drafter):
            if choice.look:
                drafter.look(context, self._state)
                return drafted
            drafter.guesses = choice.guesses
            drafter.begin(context, self._state)
            for node in propose(drafter, self._policy, self._room() - len(forced), drafted):
                if self._target.tokenizer.is_end(node.token):
                    break
                if node.q is None and not self._may_follow(context, drafted):
                    return drafted[:-1]  # only what was sampled must be verified
        return drafted

    def _may_follow(self, context: Sequence[int], drafted: Sequence[Node]) -> bool:
        return self._grammar is None or self._grammar.allows([*context, *(n.token for n in drafted)])

    @contextmanager
    def _giving_up_on_failure(self, drafter: Drafter) -> Iterator[None]:
        """A drafter that fails is given up, aloud, for the rest of this generation; what it had
        drafted so far is verified all the same."""
        try:
            yield
        except Cancelled:
            raise
        except Exception as error:
            log.warning("drafting with %s stopped: %s", drafter.name, error)
            self.stats.draft_failure = str(error) or type(error).__name__
            self._drafters.remove(drafter)

    def _room(self) -> int:
        """The largest depth that makes sense now: no drafts behind the end of the context or of the
        budget (a round emits one token more than it accepts)."""
        target, remaining = self._target, self._output.remaining
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
        target, sequence = self._target, self._sequence
        if length < len(sequence) and target.capabilities.rollback:
            target.rollback(sequence, length)

    def _checkpoint(self) -> None:
        if self.cancelled:
            raise Cancelled

    @property
    def cancelled(self) -> bool:
        """Whether no pass is to be computed any more."""
        return self._cancelled
