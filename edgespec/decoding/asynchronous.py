"""Answers for asyncio: computed in a thread of the runtime, read in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from types import TracebackType
from typing import TypeAlias
from weakref import finalize

from typing_extensions import Self

from edgespec.decoding.generation import Generation
from edgespec.decoding.rounds import Stats
from edgespec.decoding.stopping import FinishReason, Token
from edgespec.errors import UsageError

Start: TypeAlias = Callable[[], Generation]


class AsyncGeneration:
    """One answer in the making: `async for` over it for its tokens.

    It begins when it is first read, after those that were begun before it, and then goes on at the models'
    pace, however slowly it is read. It is cancelled, before the next forward pass, by `cancel()`, by
    `aclose()` or the end of an `async with` block, when the task that waits for a token is cancelled, and
    when nothing refers to it any more.

    `text` and `tokens` are what was read so far; `finish_reason`, `stopped_by` and `stats` are known at the
    end. To be read in one event loop: in another UsageError is raised, and `aclose()` works all the same.
    `cancel` may be called from any thread.
    """

    def __init__(self, start: Start, pool: Executor) -> None:
        """start: starts the generation; called in a thread of `pool`."""
        self._start = start
        self._pool = pool
        self._work: _Work | None = None
        self._over = False
        self.text = ""
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stopped_by: str | None = None
        self.stats = Stats()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Token:
        if self._over:
            raise StopAsyncIteration
        if self._work is None:
            self._work = _Work(self._start, self._pool)
            finalize(self, self._work.cancel).atexit = False
        try:
            result = await self._work.next()
        except asyncio.CancelledError:
            self._work.cancel()
            raise
        if self._over:  # another task has closed it meanwhile
            raise StopAsyncIteration
        if isinstance(result, Token):
            self.text += result.text
            self.tokens.append(result.id)
            return result
        self._end(result)
        raise result if isinstance(result, BaseException) else StopAsyncIteration

    def _end(self, result: Generation | BaseException | None) -> None:
        self._over = True
        if isinstance(result, Generation):
            self.finish_reason, self.stopped_by = result.finish_reason, result.stopped_by
            self.stats = result.stats
        elif result is None:
            self.finish_reason = "cancelled"

    def cancel(self) -> None:
        """Stop before the next forward pass; the tokens that are there already can still be read."""
        if self._work is None:
            self._end(None)
        else:
            self._work.cancel()

    async def aclose(self) -> None:
        """Cancel, and wait until the models are at rest. Tokens that were not read are dropped."""
        self.cancel()
        if self._work is not None and self._work.elsewhere and not self._over:
            await self._work.ended()
            self._end(None)
        while not self._over:
            assert self._work is not None
            result = await self._work.next()
            if not (self._over or isinstance(result, Token)):
                self._end(result)
                self.finish_reason, self.stopped_by = "cancelled", None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _Work:
    """What the thread does. It does not know the reader, so that one who forgets it is noticed."""

    def __init__(self, start: Start, pool: Executor) -> None:
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._generation: Generation | None = None
        self._cancelled = False
        self._results: asyncio.Queue[Token | Generation | BaseException | None] = asyncio.Queue()
        """tokens, and then the finished generation (None if it never began), or what it raised"""
        try:
            self._future = pool.submit(self._run)
        except RuntimeError as error:
            raise UsageError("the runtime is closed; load it again") from error

    @property
    def elsewhere(self) -> bool:
        """Whether it began in another event loop than the one that runs: its results do not come here."""
        return asyncio.get_running_loop() is not self._loop

    async def ended(self) -> None:
        """Wait until the thread is done, in any event loop."""
        await asyncio.wait([asyncio.wrap_future(self._future)])

    async def next(self) -> Token | Generation | BaseException | None:
        """The next result. Behind the last one there is None, for other tasks that wait: one may close what
        another reads. Raises UsageError in another event loop."""
        if self.elsewhere:
            raise UsageError("an answer is read in the event loop that it began in; ask anew in this one")
        result = await self._results.get()
        if not isinstance(result, Token):
            self._results.put_nowait(None)
        return result

    def cancel(self) -> None:
        """From any thread."""
        self._cancelled = True
        if self._future.cancel():  # it waits for its turn
            self._tell(None)
        elif self._generation is not None:
            self._generation.cancel()

    def _run(self) -> None:
        try:
            generation = self._generation = self._start()
            if self._cancelled:
                generation.cancel()
            for token in generation:
                self._tell(token)
            self._tell(generation)
        except BaseException as error:
            self._tell(error)

    def _tell(self, result: Token | Generation | BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._results.put_nowait, result)
        except RuntimeError:  # the loop is closed: nobody will read
            self._cancelled = True
            if self._generation is not None:
                self._generation.cancel()
