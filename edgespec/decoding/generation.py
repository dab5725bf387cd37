"""Answers as users hold them: several share an engine's models, each cancelled from any thread."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from inspect import GEN_CLOSED, getgeneratorstate
from threading import current_thread

from edgespec.backends.base import Backend, Segment
from edgespec.backends.caches import Caches, Kept
from edgespec.control.policy import Policy
from edgespec.decoding.engine import Decoding, Request
from edgespec.decoding.joint import Outcome, Pass, turn
from edgespec.decoding.stopping import FinishReason, Token
from edgespec.decoding.turnstile import Turnstile
from edgespec.drafters.base import Drafter
from edgespec.errors import BackendError, ContextFull, UsageError
from edgespec.grammar.matcher import Grammars

SHARED_CHUNK = 128
"""tokens of a prompt that are processed in one go where others may be waiting"""


class Engine:
    """A target with its KV caches, drafters and a policy, for so many generations at a time. They take turns,
    round by round; those that are stepped together share passes of the target, where it can.

    Caches keep their tokens between generations: what a prompt shares with an earlier one is not processed
    again. Target and drafters stay the caller's to close.
    """

    def __init__(
        self,
        target: Backend,
        drafters: Sequence[Drafter],
        policy: Policy,
        parallel: int = 1,
        kept: Kept | None = None,
    ) -> None:
        self.target = target
        if drafters and not target.capabilities.rollback:
            raise UsageError(f"{target.name} cannot speculate: {target.capabilities.reason}")
        self.drafters = tuple(drafters)
        self.policy = policy
        self.parallel = parallel
        self.caches = Caches(target, parallel, kept)
        self.grammars = Grammars(target.tokenizer)
        self.computing = Turnstile()
        """held while models compute"""
        self._current: list[Generation] = []
        """those that have not ended, as far as is known"""
        self._closed = False
        self._process = os.getpid()
        self._start = Turnstile()
        """held while a generation starts, so that no two do"""

    def generate(
        self,
        prompt: Sequence[int],
        request: Request,
        policy: Policy | None = None,
        drafters: Sequence[Drafter] | None = None,
    ) -> Generation:
        """Start generating behind `prompt` (token ids), under another policy than usual, and with other
        drafters, if they are given.

        With as many unfinished as may be under way, one of the same thread ends, or UsageError is raised. So
        it is if the prompt is empty, and for a constraint that this vocabulary cannot meet; ContextFull if
        the prompt does not fit.
        """
        if not prompt:
            raise UsageError("the prompt is empty; give some text")
        if len(prompt) > self.target.n_ctx:
            raise ContextFull(
                f"the prompt has {len(prompt)} tokens and the context holds {self.target.n_ctx}; "
                "shorten the prompt or raise --ctx"
            )
        self.check_caller("start another generation with the same runtime")
        with self._start:
            if self._closed:
                raise UsageError("the runtime is closed; load it again")
            self._make_room()
            policy = policy or self.policy
            if self.parallel > 1:
                policy = policy.fork()
            generation = Generation(
                self, prompt, request, policy, self.drafters if drafters is None else drafters
            )
            self._current.append(generation)
            return generation

    def step(self, generations: Sequence[Generation]) -> list[Outcome]:
        """Wait for the models, and use them for a turn of each generation, for a round or a chunk of its
        prompt. What came of each: the tokens that it released, perhaps none, or what it raised;
        StopIteration if it has ended. Raises UsageError unless they are this engine's, each there once."""
        self.check_caller("read on")
        if isinstance(generations, Generation):  # it would wait for itself
            raise UsageError("a step takes a list of answers; one alone is stepped as [answer]")
        generations = list(generations)
        if any(not isinstance(one, Generation) or one._engine is not self for one in generations):
            raise UsageError("only answers of this runtime can be stepped")
        if len(set(generations)) < len(generations):
            raise UsageError("an answer has one turn in a step; name each once")
        with self.computing:
            if self.target.capabilities.batch:
                return turn(self.target, generations)
            return [outcome for one in generations for outcome in turn(self.target, [one])]

    def _make_room(self) -> None:
        """For another generation."""
        self._current = [one for one in self._current if not one.over]
        if len(self._current) < self.parallel:
            return
        for one in self._current:
            if one.gives_way():
                self._current.remove(one)
                return
        raise UsageError(
            "another thread is generating with this runtime; wait for it, cancel it, or load a second one"
            if self.parallel == 1
            else f"{self.parallel} generations are under way already; wait for one, or cancel it"
        )

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that loaded the models. Their threads stayed there, as
        did those that held locks."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise UsageError in a forked process."""
        if self.forked:
            raise UsageError(
                "the runtime belongs to the process that this one was forked from; start processes with the "
                "method spawn, and load it there"
            )

    def check_caller(self, what: str) -> None:
        """Raise UsageError in a forked process, in a callback of a generation and in a signal handler that
        interrupts one: those would wait for themselves."""
        self.check_process()
        if self.computing.mine or self._start.mine:
            raise UsageError(f"a callback or signal handler cannot {what}; it may only cancel the generation")

    def close(self) -> None:
        """End what is under way, from any thread, and wait until the models are at rest; then close the
        target's caches."""
        self.check_caller("close the runtime")
        with self._start:
            self._closed = True
        for one in self._current:
            one.cancel()
        with self.computing:
            for one in self._current:
                one.abandon()
            self.caches.close()


class Generation(Decoding):
    """One answer in the making: iterate over it for its tokens, or `run()` it to the end.

    `text`, `tokens`, `finish_reason` and `stats` grow with it. `cancel()` may be called from any
    thread and takes effect before the next forward pass.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Sequence[int],
        request: Request,
        policy: Policy,
        drafters: Sequence[Drafter],
    ) -> None:
        wanted = request.constraint
        grammar = None if wanted is None else engine.grammars.matcher(wanted, len(prompt))
        largest = engine.target.max_batch
        chunk = largest if engine.parallel == 1 else min(SHARED_CHUNK, largest)
        own = [drafter.fork() for drafter in drafters]
        super().__init__(engine.caches, own, policy, prompt, request, chunk, grammar)
        self.policy = policy
        self._engine = engine
        self._steps_left = self._steps()
        self._wanted: Segment | None = None
        """what it waits for"""
        self._behind = 0
        """tokens that were in the cache when it asked for that"""
        self.share = 0
        """tokens that it has in the pass of this turn; as long as that is not known, of the last one"""
        self._ready: deque[Token] = deque()
        self._thread = current_thread()

    def __iter__(self) -> Iterator[Token]:
        return self

    def __next__(self) -> Token:
        self._engine.check_caller("read on")
        while True:
            with suppress(IndexError):  # empty, perhaps since another thread ended the generation just now
                return self._ready.popleft()
            self._ready.extend(self.step())

    def step(self) -> list[Token]:
        """A turn of this one alone: see `Engine.step`. Raises StopIteration when it has ended. Instead of
        iterating, not besides."""
        [outcome] = self._engine.step([self])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def ask(self) -> Segment | list[Token]:
        """Begin a turn: what it wants the target to compute; or the tokens it released, if nothing. Asks the
        same again if that was not used, since the turn was interrupted or the pass failed."""
        self._thread = current_thread()
        if self._wanted is not None:
            return self._ask_again(self._wanted)
        wanted = next(self._steps_left)
        if isinstance(wanted, Segment):
            self._wanted, self._behind = wanted, len(wanted.sequence)
        self.share = 0 if self._wanted is None else len(self._wanted.tokens)
        return wanted

    def _ask_again(self, wanted: Segment) -> Segment | list[Token]:
        """Behind the same tokens as before, or the answer would be another text's."""
        sequence = wanted.sequence
        try:
            if len(sequence) > self._behind:  # it was computed, but others were interrupted in using the pass
                self._target.rollback(sequence, self._behind)
            if len(sequence) < self._behind:
                raise BackendError(
                    f"the cache of {self._target.name} was lost in a pass that failed; ask anew"
                )
        except BackendError as error:
            return self.end(error)
        return wanted

    def go_on(self, computed: Pass) -> list[Token]:
        """Use the pass it asked for; the tokens it released."""
        self._wanted = None
        return _released(self._steps_left.send(computed))

    def end(self, why: Exception) -> list[Token]:
        """The pass it asked for is not to be had: raises `why`, or takes it for the end."""
        self._wanted = None
        return _released(self._steps_left.throw(why))

    def run(self) -> Generation:
        """Generate to the end."""
        for _ in self:
            pass
        return self

    def cancel(self) -> None:
        """Stop before the next forward pass; what was generated so far is the output."""
        self._cancelled = True  # no lock: a signal handler may come in between, and cancel, too

    def abandon(self) -> None:
        """End here and now, between two tokens."""
        if self.finish_reason is None:
            self._output.finish("cancelled")
            self._ready.clear()
        self._wanted = None
        self._steps_left.close()
        self._leave()  # if it had not begun

    @property
    def over(self) -> bool:
        """Whether it has ended, or failed."""
        return self.finish_reason is not None or getgeneratorstate(self._steps_left) == GEN_CLOSED

    def gives_way(self) -> bool:
        """Another generation wants to start: end, unless this one is another thread's."""
        foreign = self._thread is not current_thread() and self._thread.is_alive()
        if foreign and not self.cancelled:
            return False
        with self._engine.computing:  # a cancelled one may be in its last pass
            self.abandon()
        return True

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


def _released(tokens: Segment | list[Token]) -> list[Token]:
    assert not isinstance(tokens, Segment)  # a turn has one pass
    return tokens
