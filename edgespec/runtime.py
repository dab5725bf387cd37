"""The embedding API: a loaded pair that answers prompts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from threading import RLock
from types import TracebackType
from typing import Any, Literal, NoReturn, TypeAlias, cast
from weakref import finalize

import numpy as np
from typing_extensions import Self, Unpack

from edgespec.backends.base import Backend
from edgespec.backends.caches import Kept
from edgespec.chat.session import ChatSession
from edgespec.chat.templates import Message, chat_prompt
from edgespec.chat.thinking import knows_thoughts, opens_thoughts
from edgespec.control.policy import FixedDepth, Policy
from edgespec.decoding.asynchronous import AsyncGeneration
from edgespec.decoding.engine import Request
from edgespec.decoding.generation import Engine, Generation
from edgespec.decoding.joint import Outcome
from edgespec.drafters.base import Drafter
from edgespec.errors import ContextFull, UsageError
from edgespec.grammar.thoughts import after_thoughts
from edgespec.options import GenerateOptions, Prompt, request_of
from edgespec.visible import shorten

Depth: TypeAlias = int | Literal["auto"]


class Runtime:
    """A loaded pair. `parallel` generations at a time; `close()` or a with-block frees the models.

    Starting one more ends an unfinished one of the same thread; where all are other threads', UsageError is
    raised. `Generation.cancel` may be called from any thread. For asyncio there are `astream`, `agenerate`
    and `aclose()`, or an async with-block.
    """

    def __init__(
        self,
        name: str,
        target: Backend,
        drafters: Sequence[Drafter],
        policy: Policy,
        depth: Depth,
        chat_template: str | None = None,
        save: Callable[[], None] = lambda: None,
        parallel: int = 1,
        kept: Kept | None = None,
    ) -> None:
        """Takes over `target` and `drafters`: closing the runtime closes them, after `save`. See `load`.

        Raises UsageError for a trimmed draft as target.
        """
        if target.capabilities.drafts_only:
            raise UsageError(f"{target.name} can only draft: its output head has some of the tokens only")
        self.name = name
        self.target = target
        self.drafters = tuple(drafters)
        self.policy = policy
        self.depth: Depth = depth if drafters else 0
        self._chat_template = chat_template
        self.parallel = parallel
        self._engine = Engine(target, drafters, policy, parallel, kept)
        self._pool = ThreadPoolExecutor(parallel, "edgespec")
        """answers asyncio's requests, so many at a time; its threads start with the first"""
        self._tokenizing = RLock()
        """held while the tokenizer is used, which another thread might close"""
        # A runtime that is dropped without close() must not keep gigabytes; a generation still in use
        # keeps the engine, and with it the models.
        self._free = finalize(self._engine, _close, os.getpid(), target, self.drafters, save)
        self._free.atexit = False

    @property
    def kept(self) -> Kept:
        """The KV caches of earlier conversations."""
        return self._engine.caches.kept

    @property
    def drafter(self) -> Drafter | None:
        """The draft model, or what drafts where there is none."""
        return self.drafters[0] if self.drafters else None

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """Start an answer; iterate over it for its tokens. Options as of `generate`."""
        return self._engine.generate(*self._asked(prompt, options))

    def step(self, answers: Sequence[Generation]) -> list[Outcome]:
        """A turn of each of this runtime's unfinished answers, in passes of the target that they share where
        it can; what came of each. Instead of iterating over them. See `Engine.step`."""
        return self._engine.step(answers)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """Answer `prompt` to the end; `text`, `tokens`, `finish_reason` and `stats` hold the result.

        prompt: text to continue, messages for the chat template, or token ids.
        max_tokens: None is until the model ends or the context is full.
        temperature (0 = greedy), top_k, top_p, min_p, repetition_penalty, presence_penalty,
            frequency_penalty, penalty_window, logit_bias: see `SamplerSettings`.
        stop: strings that end the output.
        json_schema, regex, grammar: the form of the output, one of the three: JSON of a schema (a
            dictionary), text that a regular expression matches, or text of a Lark or GBNF grammar (or what
            `edgespec.grammar.constraint.grammar` made of it). With finish_reason "stop" it has that form,
            unless a stop string ended it; otherwise it is cut off. What a model thinks aloud before is free.
        seed: the output depends on it alone, not on drafter or depth (near-ties aside, where the
            backend's logits depend on the number of tokens in a pass); without one it is random
            where temperature > 0.
        logprobs: report log-probabilities and this many alternatives per token.
        on_prompt(done, total), on_round(round), on_token(token): progress, called in the generating
            thread and not awaited; they may cancel the generation and nothing else of the runtime's.

        Raises UsageError, ContextFull, BackendError; ModelError where messages meet no chat template, or one
        that fails.
        """
        return self.stream(prompt, **options).run()

    def generate_plain(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """As `generate`, without drafting: what speculation is compared with."""
        return self._engine.generate(*self._asked(prompt, options), FixedDepth(0)).run()

    def generate_as(self, other: Runtime, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """As `generate`, with another runtime's drafters and policy on this one's target: to compare drafts,
        with nothing else that differs. Raises UsageError unless both have the same target."""
        if other.target.path != self.target.path:
            raise UsageError(
                f"{other.name} drafts for {other.target.name}, not for {self.target.name}; load both with "
                "the same target"
            )
        asked = self._asked(prompt, options)
        return self._engine.generate(*asked, other.policy, other.drafters).run()

    def _asked(self, prompt: Prompt, options: Mapping[str, Any]) -> tuple[list[int], Request]:
        tokens, request = self.tokenize(prompt), request_of(options)
        if (wanted := request.constraint) is not None:
            with self._tokenizing:
                begun = opens_thoughts(tokens, self.target.tokenizer)
            if begun or (not isinstance(prompt, str) and knows_thoughts(self.chat_template)):
                request = replace(request, constraint=after_thoughts(wanted, begun))
        return tokens, request

    def astream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncGeneration:
        """An answer for asyncio: `async for` over it for its tokens. Options as of `generate`; callbacks
        are called in a thread of the runtime. `parallel` take turns, more wait.

        Errors of `generate` are raised when it is read.
        """
        self._engine.check_process()  # a fork has no threads that would answer
        return AsyncGeneration(lambda: self.stream(prompt, **options), self._pool)

    async def agenerate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncGeneration:
        """As `generate`, for asyncio: cancelling the task cancels the generation."""
        async with self.astream(prompt, **options) as answer:
            async for _ in answer:
                pass
        return answer

    def chat(self, system: str | None = None) -> ChatSession:
        """A conversation that remembers its turns."""
        return ChatSession(self, system)

    def tokenize(self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The token ids a prompt stands for.

        tools: functions that the chat template tells the model of, as OpenAI's API describes them; for
        messages.

        Raises UsageError, ContextFull and ModelError as `generate` does.
        """
        self._engine.check_process()  # before it waits for who held the tokenizer when it was forked
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
            raise UsageError(
                f"a prompt is text, a list of messages, or a list of token ids, not {type(prompt).__name__}"
            )
        if isinstance(prompt, str):
            with self._tokenizing:
                self._refuse_endless(prompt)
                return self.target.tokenizer.encode(prompt)
        if all(isinstance(part, Mapping) for part in prompt):
            messages = cast("Sequence[Message]", prompt)
            with self._tokenizing:
                self._refuse_endless(*(str(message.get("content")) for message in messages), *map(str, tools))
                return chat_prompt(self.target, messages, self._chat_template, tools)
        width = self.target.tokenizer.n_vocab
        for token in prompt:
            if isinstance(token, bool) or not isinstance(token, int | np.integer) or not 0 <= token < width:
                raise UsageError(
                    f"{shorten(repr(token))} is no token id of {self.target.name}, which go to {width - 1}, "
                    "and no message, which is a dictionary"
                )
        return [int(token) for token in cast("Sequence[int]", prompt)]

    def _refuse_endless(self, *texts: str) -> None:
        """Tokenizing takes long on megabytes that cannot fit anyway: every token has a longest text."""
        n_ctx, size = self.target.n_ctx, sum(map(len, texts))
        if size > 32 * n_ctx:
            longest = max(map(len, self.target.tokenizer.vocabulary()))
            if size > longest * n_ctx:
                raise ContextFull(
                    f"the prompt has {size} characters, and the context of {n_ctx} tokens cannot hold them; "
                    "shorten the prompt or raise --ctx"
                )

    @property
    def chat_template(self) -> str | None:
        """The one that messages are written with."""
        return self.target.chat_template if self._chat_template is None else self._chat_template

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be answered."""
        return self.chat_template is not None

    def close(self) -> None:
        """End a running generation and free everything. Safe to call twice and from any thread. Raises
        UsageError in a callback, and in a signal handler that interrupts a generation. In a forked process it
        does nothing: what that inherited is not its own to free."""
        if self._engine.forked:
            return
        self._engine.close()
        self._pool.shutdown()  # what waits there is refused
        with self._tokenizing:
            self._free()

    async def aclose(self) -> None:
        """As `close`, without holding up the event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a runtime cannot be copied or pickled, as its models are in this process; load it where it is "
            "needed"
        )


def _close(process: int, target: Backend, drafters: Sequence[Drafter], save: Callable[[], None]) -> None:
    if os.getpid() != process:  # a fork that drops what it inherited
        return
    with ExitStack() as freed:  # all of them, though something fails
        freed.callback(target.close)
        for drafter in drafters:
            freed.callback(drafter.close)
        save()
