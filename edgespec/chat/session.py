"""A conversation: its turns, what of it still fits into the context, saving and loading."""

from __future__ import annotations

import json
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import Unpack

from edgespec.decoding.generation import Generation
from edgespec.errors import ContextFull, UsageError
from edgespec.options import GenerateOptions, request_of

if TYPE_CHECKING:
    from edgespec.runtime import Runtime


class ChatSession:
    """Turns with one runtime. What a turn shares with the one before is not processed again.

    When the context fills up, the oldest turns are left out of the prompt: `left_out` counts their
    messages, so that it can be announced. They stay in `messages`.
    """

    def __init__(self, runtime: Runtime, system: str | None = None) -> None:
        self._runtime = runtime
        self.system = system
        self._messages: list[dict[str, str]] = []
        self._answer: Generation | None = None
        self.left_out = 0

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns so far, {"role", "content"}, without the system prompt; an answer that is still
        being generated, or was cancelled, counts with the text it has."""
        answer = [] if self._answer is None else [{"role": "assistant", "content": self._answer.text}]
        return self._messages + answer

    def stream(self, text: str, **options: Unpack[GenerateOptions]) -> Generation:
        """Say `text`; iterate over the result for the answer's tokens. Options as of
        `Runtime.generate`. Raises ContextFull when not even this turn alone fits."""
        return self._answer_to([*self.messages, {"role": "user", "content": text}], options)

    def send(self, text: str, **options: Unpack[GenerateOptions]) -> Generation:
        """Say `text` and wait for the whole answer."""
        return self.stream(text, **options).run()

    def retry(self, **options: Unpack[GenerateOptions]) -> Generation:
        """Answer the last turn anew. Raises UsageError when there is none."""
        messages = self.messages
        while messages and messages[-1]["role"] == "assistant":
            messages.pop()
        if not messages:
            raise UsageError("there is no turn to answer again; say something first")
        return self._answer_to(messages, options)

    def _answer_to(self, messages: list[dict[str, str]], options: GenerateOptions) -> Generation:
        wanted = request_of({"max_tokens": options.get("max_tokens")})  # refuses what is no number
        start, prompt = self._fitting(messages, wanted.max_tokens)
        answer = self._runtime.stream(prompt, **options)
        self._messages, self._answer, self.left_out = messages, answer, start
        return answer

    def _fitting(self, messages: list[dict[str, str]], max_tokens: int | None) -> tuple[int, list[int]]:
        """The first message that still fits with all after it, and the prompt's tokens.

        An answer needs `max_tokens` of room; without a budget, a quarter of the context. When turns
        must go, so many go that half the context is free: then the prompt begins the same way for
        several turns, and its cache can be used again.
        """
        n_ctx = self._runtime.target.n_ctx
        room = n_ctx // 4 if max_tokens is None else min(max_tokens, n_ctx // 2)
        turns = [i for i, m in enumerate(messages) if m["role"] == "user" and i > self.left_out]
        prompt = self._fitted(messages[self.left_out :], n_ctx - room)
        if prompt is not None:
            return self.left_out, prompt
        # The fewer turns, the fewer tokens; a conversation that was loaded may have thousands of turns.
        fits = bisect_left(turns, True, key=lambda i: self._fitted(messages[i:], n_ctx // 2) is not None)
        start = turns[min(fits, len(turns) - 1)] if turns else self.left_out
        prompt = self._prompt(messages[start:])
        if len(prompt) >= n_ctx:
            raise ContextFull(
                f"this turn alone has {len(prompt)} tokens and the context holds {n_ctx}; shorten it, or "
                "raise --ctx"
            )
        return start, prompt

    def _fitted(self, messages: list[dict[str, str]], room: int) -> list[int] | None:
        """The prompt's tokens, unless they are more than there is room for."""
        try:
            prompt = self._prompt(messages)
        except ContextFull:  # it has so many characters that it was not even tokenized
            return None
        return prompt if len(prompt) <= room else None

    def _prompt(self, messages: list[dict[str, str]]) -> list[int]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return self._runtime.tokenize(system + messages)

    def reset(self) -> None:
        """Forget the turns; the system prompt stays."""
        self._messages, self._answer, self.left_out = [], None, 0

    def save(self, file: str | Path) -> None:
        """Write the conversation as JSON. The file appears whole or not at all; then UsageError is raised."""
        file = Path(file)
        content = {"system": self.system, "messages": self.messages}
        partial = file.with_name(file.name + ".partial")
        try:
            text = json.dumps(content, ensure_ascii=False, indent=1)
            partial.write_text(text, "utf-8", "backslashreplace")  # which is how JSON writes half a character
            partial.replace(file)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            raise UsageError(f"{file} cannot be written: {error.strerror}") from error

    def load(self, file: str | Path) -> None:
        """Replace the conversation by a saved one. Raises UsageError for a file that is none."""
        file = Path(file)
        try:
            content = json.loads(file.read_text("utf-8"))
            system = content["system"]
            turns = [{"role": m["role"], "content": m["content"]} for m in content["messages"]]
            texts = [text for turn in turns for text in turn.values()]
            whole = all(isinstance(text, str) for text in texts) and isinstance(system, str | None)
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(f"{file} is not a saved conversation") from error
        if not whole or {turn["role"] for turn in turns} - {"user", "assistant"}:
            raise UsageError(f"{file} is not a saved conversation: it has turns that are not text of the two")
        self.reset()
        self.system, self._messages = system, turns
