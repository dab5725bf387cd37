"""Answers as users hold them: one at a time per engine, cancelled from any thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import GEN_CLOSED, GEN_RUNNING, getgeneratorstate
from threading import Lock, current_thread

from edgespec.backends.base import Backend
from edgespec.control.policy import Policy
from edgespec.decoding.engine import Decoding, Request
from edgespec.decoding.stopping import FinishReason, Token
from edgespec.drafters.base import Drafter
from edgespec.errors import ContextFull, UsageError
from edgespec.grammar.matcher import Grammars


class Engine:
    """A target with its KV cache, drafters and a policy. Runs one generation at a time.

    The cache keeps its tokens between generations: a prompt that begins like the last one is not
    processed again. Target and drafters stay the caller's to close.
    """

    def __init__(self, target: Backend, drafters: Sequence[Drafter], policy: Policy) -> None:
        self.target = target
        if drafters and not target.capabilities.rollback:
            raise UsageError(f"{target.name} cannot speculate: {target.capabilities.reason}")
        self.drafters = tuple(drafters)
        self.policy = policy
        self.sequence = target.open()
        self.grammars = Grammars(target.tokenizer)
        self.step = Lock()
        """held while models compute"""
        self._current: Generation | None = None
        self._closed = False
        self._start = Lock()
        """held while a generation starts, so that no two do"""

    def generate(self, prompt: Sequence[int], request: Request, policy: Policy | None = None) -> Generation:
        """Start generating behind `prompt` (token ids), under another policy than usual if one is given.

        An unfinished generation of the same thread ends. Raises UsageError while another thread's runs,
        if the prompt is empty, and for a constraint that this vocabulary cannot meet; ContextFull if the
        prompt does not fit.
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
            self._current = Generation(self, prompt, request, policy or self.policy)
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


class Generation(Decoding):
    """One answer in the making: iterate over it for its tokens, or `run()` it to the end.

    `text`, `tokens`, `finish_reason` and `stats` grow with it. `cancel()` may be called from any
    thread and takes effect before the next forward pass.
    """

    def __init__(self, engine: Engine, prompt: Sequence[int], request: Request, policy: Policy) -> None:
        wanted = request.constraint
        grammar = None if wanted is None else engine.grammars.matcher(wanted, len(prompt))
        super().__init__(engine.target, engine.sequence, engine.drafters, policy, prompt, request, grammar)
        self._engine = engine
        self._tokens = self._steps()
        self._thread = current_thread()

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
