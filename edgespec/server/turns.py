"""Who is answered when: one thread owns the models, and answers that are under way share them.

As many are under way as the runtime takes, the others wait. All of them have a turn at a time, a round or a
chunk of a prompt, in passes that they share where the target can, so that a short answer does not wait for a
long one; a request for several answers goes to the back of the queue after each. The rest of the server sees
tickets and their events only.

The thread never waits for a client: events are handed to the event loop, where a slow client's pile up
(an answer is no longer than the context), and a cancelled ticket gives its turn up before the next pass.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from threading import Condition, Thread
from time import monotonic
from typing import Any, Protocol, TypeAlias

from edgespec.backends.caches import Kept
from edgespec.chat.thinking import Said, Thinking, knows_thoughts, opens_thoughts
from edgespec.chat.tools import CallForm, call_form
from edgespec.decoding.rounds import Round, Stats
from edgespec.decoding.stopping import FinishReason, Origin, Token
from edgespec.drafters.draft_model import DraftModel
from edgespec.errors import EdgespecError, UsageError
from edgespec.options import GenerateOptions, Prompt
from edgespec.runtime import Runtime
from edgespec.server.errors import ApiError, as_api_error

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wish:
    """One answer that a request asks for."""

    prompt: Prompt
    options: GenerateOptions
    tools: Sequence[Mapping[str, Any]] = ()
    """functions that the model may call, as chat templates know them"""
    tokens: Sequence[int] | None = None
    """of the prompt; None: not known yet"""

    @property
    def is_chat(self) -> bool:
        """Whether the prompt is messages."""
        return not isinstance(self.prompt, str) and isinstance(self.prompt[0], Mapping)


@dataclass(frozen=True)
class Likely:
    """A token's bytes and its log-probability."""

    piece: bytes
    logprob: float


@dataclass(frozen=True)
class Started:
    """The prompt of the answer with this number was found good."""

    index: int


@dataclass(frozen=True)
class Piece:
    """A token of an answer; or, without `likely`, text that was held back."""

    index: int
    said: Said
    likely: Likely | None = None
    alternatives: Sequence[Likely] = ()
    origin: Origin | None = None
    stats: Stats | None = None
    """of the answer so far; its `depths` still change"""


@dataclass(frozen=True)
class Ended:
    """An answer is complete."""

    index: int
    reason: FinishReason
    stats: Stats


Event: TypeAlias = Started | Piece | Ended


class Observer(Protocol):
    """Told in the models' thread what happens."""

    def round(self, finished: Round) -> None:
        """After every round."""
        ...

    def answered(self, stats: Stats, reason: FinishReason | None) -> None:
        """After every answer; reason: None if it failed."""
        ...


class Ticket:
    """A request's place in the queue: iterate over it for its events. Raises ApiError where it fails."""

    def __init__(self, wishes: Sequence[Wish], fields: Set[str]) -> None:
        """fields: the request's, to name one of them in an error. To be made in the event loop."""
        self.wishes = deque(enumerate(wishes))
        self.cancelled = False
        self.answer: Answer | None = None
        """that is under way"""
        self._fields = fields
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | ApiError | None] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._events.get()) is not None:
            if isinstance(event, ApiError):
                raise event
            yield event

    def tell(self, event: Event | ApiError | None) -> None:
        """From any thread. None is the end."""
        with suppress(RuntimeError):  # the event loop was closed by force
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def fail(self, error: Exception) -> None:
        """From any thread."""
        self.tell(error if isinstance(error, ApiError) else as_api_error(error, self._fields))


class Answer:
    """The next answer that a ticket wishes for, in the making."""

    def __init__(self, ticket: Ticket, runtime: Runtime, on_round: Callable[[Round], None]) -> None:
        """Raises ApiError, and what `Runtime.stream` raises."""
        self._index, wish = ticket.wishes.popleft()
        self._ticket = ticket
        prompt = _tokenized(runtime, wish) if wish.tokens is None else wish.tokens
        options: GenerateOptions = {**wish.options, "on_round": on_round}
        self.generation = runtime.stream(prompt, **options)
        self._piece_of = runtime.target.tokenizer.piece
        self._thinking = _thinking(runtime, wish, prompt)
        ticket.tell(Started(self._index))

    def tell(self, released: Sequence[Token]) -> bool:
        """Say what came of a turn. Whether the answer goes on."""
        generation, ticket, thinking = self.generation, self._ticket, self._thinking
        for token in released:
            said = Said("", token.text) if thinking is None else thinking.push(token.text)
            ticket.tell(_piece(self._index, said, token, self._piece_of, copy(generation.stats)))
        if generation.finish_reason is None:
            return True
        if thinking is not None:
            ticket.tell(Piece(self._index, thinking.finish()))
        ticket.tell(Ended(self._index, generation.finish_reason, generation.stats))
        return False


@dataclass(frozen=True)
class About:
    """What is served; known while the models are unloaded, too."""

    pair: str
    target: str
    draft: str | None
    depth: int | str
    n_ctx: int
    calls: CallForm | None
    """how the chat template wants tools to be called; None: it does not know of any"""
    thinks: bool
    """the chat template shows that the model thinks aloud"""
    target_bytes: int
    draft_bytes: int
    """weights that a pass of the target, and of the draft model, reads"""
    parallel: int
    """requests that are answered at once"""
    cache_memory: int
    """bytes that the caches of other conversations may take"""

    @staticmethod
    def of(runtime: Runtime) -> About:
        target, drafter = runtime.target, runtime.drafter
        return About(
            pair=runtime.name,
            target=target.name,
            draft=drafter.name if drafter else None,
            depth=runtime.depth,
            n_ctx=target.n_ctx,
            calls=call_form(runtime.chat_template or ""),
            thinks=knows_thoughts(runtime.chat_template),
            target_bytes=target.weight_bytes,
            draft_bytes=drafter.backend.weight_bytes if isinstance(drafter, DraftModel) else 0,
            parallel=runtime.parallel,
            cache_memory=runtime.kept.budget,
        )


class Turns:
    """The queue and the thread. All methods may be called from any thread."""

    def __init__(
        self,
        load: Callable[[], Runtime],
        observer: Observer,
        *,
        queue: int,
        idle_unload: float | None = None,
    ) -> None:
        """Loads the models, and takes them over. Raises what `load` raises.

        queue: how many requests may wait, besides those that are answered. idle_unload: seconds without
        a request after which the models leave memory until the next one; None: never.
        """
        self._load = load
        self._observer = observer
        self._room = queue
        self._idle = idle_unload
        self._changed = Condition()
        """guards all below"""
        self._waiting: deque[Ticket] = deque()
        self._answered: list[Ticket] = []
        self._stopping = False
        self._runtime: Runtime | None = load()
        self.about = About.of(self._runtime)
        self.decision = ""
        """the policy's last, in words"""
        self._thread = Thread(target=self._work, name="edgespec-turns", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def answering(self) -> int:
        """Requests that are being answered."""
        return len(self._answered)

    @property
    def loaded(self) -> bool:
        """Whether the models are in memory."""
        return self._runtime is not None

    @property
    def kept(self) -> Kept:
        """The caches of other conversations."""
        runtime = self._runtime
        return Kept() if runtime is None else runtime.kept

    def tokenized(self, wish: Wish) -> Wish:
        """The same with its prompt's tokens, so that the models' thread need not stop for them; as it is
        while the models are not in memory. Raises ApiError, and what `Runtime.tokenize` raises."""
        runtime = self._runtime
        try:
            return wish if runtime is None else replace(wish, tokens=_tokenized(runtime, wish))
        except Exception:
            if self._runtime is runtime:
                raise
            return wish  # the models left memory just now

    def submit(self, ticket: Ticket) -> None:
        """Queue a request. Raises ApiError when the queue is full, or the server is about to end."""
        with self._changed:
            if self._stopping:
                raise stopping()
            free = self.about.parallel - len(self._answered)
            if len(self._waiting) >= self._room + free:
                raise ApiError(
                    429,
                    f"{len(self._waiting)} requests are waiting already; try again later",
                    code="queue_full",
                    retry_after=1 + len(self._waiting),
                )
            self._waiting.append(ticket)
            self._changed.notify()

    def cancel(self, ticket: Ticket) -> None:
        """Nobody wants the rest of it: if it waits it leaves the queue, if it is being answered that
        stops before the next pass."""
        with self._changed:
            ticket.cancelled = True
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            if ticket.answer is not None:
                ticket.answer.generation.cancel()

    def refuse(self) -> None:
        """From now on, and whatever waits; what is being answered goes on."""
        with self._changed:
            self._stopping = True
            for ticket in self._waiting:
                ticket.fail(stopping())
            self._waiting.clear()
            self._changed.notify()

    def cut_off(self) -> None:
        """End what is being answered."""
        for ticket in list(self._answered):
            self.cancel(ticket)

    def close(self) -> None:
        """End everything and free the models. Safe to call twice."""
        self.refuse()
        self.cut_off()
        self._thread.join()

    def _work(self) -> None:
        while self._admit():
            begun: list[tuple[Ticket, Answer]] = []
            for ticket in list(self._answered):
                with self._failing(ticket):
                    begun.append((ticket, ticket.answer or self._begin(ticket)))
            if not begun:
                continue
            try:
                outcomes = self._loaded().step([answer.generation for _, answer in begun])
            except Exception as error:  # the thread must live on
                outcomes = [error] * len(begun)
            for (ticket, answer), outcome in zip(begun, outcomes, strict=True):
                with self._failing(ticket):
                    if isinstance(outcome, Exception):
                        raise outcome
                    if not answer.tell(outcome):
                        self._leave(ticket)
        self._unload()

    @contextmanager
    def _failing(self, ticket: Ticket) -> Iterator[None]:
        """What is raised within fails the ticket and nothing else."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, EdgespecError | ApiError):
                log.exception("a request failed")
            ticket.wishes.clear()
            ticket.fail(error)
            self._leave(ticket)

    def _admit(self) -> bool:
        """Let in who waits, as far as there is room; wait for the first. False: it is time to end."""
        with self._changed:
            idle_since = monotonic()
            while not self._waiting and not self._answered:
                if self._stopping:
                    return False
                left = None
                if self._idle is not None and self.loaded:
                    left = idle_since + self._idle - monotonic()
                    if left <= 0:
                        self._changed.release()  # nobody who asks now shall wait for that
                        try:
                            self._unload()
                        finally:
                            self._changed.acquire()
                        continue
                self._changed.wait(left)
            while self._waiting and len(self._answered) < self.about.parallel:
                self._answered.append(self._waiting.popleft())
            return True

    def _begin(self, ticket: Ticket) -> Answer:
        """A ticket's next answer."""
        answer = Answer(ticket, self._loaded(), self._observer.round)
        with self._changed:
            ticket.answer = answer
            if ticket.cancelled:
                answer.generation.cancel()
        return answer

    def _leave(self, ticket: Ticket) -> None:
        """An answer has ended, or could not begin: make room for the next."""
        if ticket.answer is not None:
            generation = ticket.answer.generation
            with _surviving("an answer could not be counted"):
                self._observer.answered(generation.stats, generation.finish_reason)
            with _surviving("an answer's caches could not be given back"):
                generation.abandon()  # if what failed was not the generation, it still has them
            with _surviving("a decision could not be put into words"):
                self.decision = generation.policy.explain()
        with self._changed:
            self._answered.remove(ticket)
            ticket.answer = None
            if not ticket.wishes:
                ticket.tell(None)
            elif self._stopping:
                ticket.fail(stopping())
            elif not ticket.cancelled:
                self._waiting.append(ticket)

    def _unload(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            with _surviving("the models could not be closed"):
                runtime.close()

    def _loaded(self) -> Runtime:
        if self._runtime is None:
            try:
                self._runtime = self._load()
            except (EdgespecError, OSError, MemoryError) as error:
                why = str(error) or "there is not enough memory"
                message = f"the model cannot be loaded again: {why}"
                raise ApiError(503, message, code="model_unavailable", retry_after=30) from error
        return self._runtime


def _thinking(runtime: Runtime, wish: Wish, prompt: Sequence[int]) -> Thinking | None:
    """What takes thoughts out of the answer, for models whose chat template knows of such."""
    if not wish.is_chat or not knows_thoughts(runtime.chat_template):
        return None
    return Thinking(begun=opens_thoughts(prompt, runtime.target.tokenizer))


@contextmanager
def _surviving(failure: str) -> Iterator[None]:
    """What is raised within is logged: the models' thread must live on."""
    try:
        yield
    except Exception:
        log.exception(failure)


def _tokenized(runtime: Runtime, wish: Wish) -> list[int]:
    """Raises ApiError for a prompt that cannot be one, ContextFull."""
    field = "messages" if wish.is_chat else "prompt"
    if wish.is_chat and not runtime.has_chat_template:
        raise ApiError(
            400,
            f"{runtime.target.name} carries no chat template; use /v1/completions, or start the server "
            "with --chat-template FILE",
            param="messages",
        )
    try:
        prompt = runtime.tokenize(wish.prompt, wish.tools)
    except UsageError as error:
        raise ApiError(400, str(error), param=field) from error
    if not prompt:
        raise ApiError(400, "the prompt is empty; give some text", param=field)
    return prompt


def _piece(index: int, said: Said, token: Token, piece_of: Callable[[int], bytes], so_far: Stats) -> Piece:
    if token.logprob is None:
        return Piece(index, said, origin=token.origin, stats=so_far)
    alternatives = [Likely(piece_of(id), logprob) for id, logprob in token.top_logprobs]
    likely = Likely(piece_of(token.id), token.logprob)
    return Piece(index, said, likely, alternatives, token.origin, so_far)


def stopping() -> ApiError:
    """The refusal of a server that was told to end."""
    return ApiError(503, "the server is about to end", code="shutting_down", retry_after=10)
