"""A plugin for the `llm` command and library (llm.datasette.io): the installed pairs as its models.

llm -m edgespec/smollm2-135m "Name a colour." -o temperature 0.8
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from threading import Lock
from typing import Any

try:
    import llm
except ImportError as error:
    raise ImportError(
        "edgespec's plugin for llm needs the package llm, 0.32 or newer: pip install -U llm"
    ) from error

from pydantic import Field

from edgespec.errors import EdgespecError
from edgespec.hub.resolve import installed_pairs
from edgespec.loading import load
from edgespec.runtime import Runtime

log = logging.getLogger(__name__)


class Pair(llm.Model):
    """An installed pair. It is loaded for the first prompt, and stays in memory."""

    can_stream = True

    class Options(llm.Options):
        """As of `Runtime.generate`."""

        max_tokens: int | None = Field(None, ge=1, description="End after so many tokens.")
        temperature: float | None = Field(None, ge=0, description="0, the default: the most probable token.")
        top_p: float | None = Field(None, gt=0, le=1, description="Of the most probable, this share.")
        top_k: int | None = Field(None, ge=0, description="The most probable so many; 0 is off.")
        min_p: float | None = Field(None, ge=0, le=1, description="This share of the best, at least.")
        repetition_penalty: float | None = Field(None, gt=0, description="Divides logits of tokens seen.")
        presence_penalty: float | None = Field(None, description="Off the logits of tokens seen.")
        frequency_penalty: float | None = Field(None, description="Off them, each time they were seen.")
        seed: int | None = Field(None, description="The answer depends on it alone.")
        stop: str | None = Field(None, description="A text that ends the answer.")

    def __init__(self, pair: str) -> None:
        """pair: its name in the catalog."""
        self.model_id = f"edgespec/{pair}"
        self._pair = pair
        self._loading = Lock()
        self._runtime: Runtime | None = None

    def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.Response, conversation: llm.Conversation | None
    ) -> Iterator[str]:
        """The answer, token by token."""
        runtime = self._loaded()
        answer = runtime.stream(self._asked(prompt, runtime), **prompt.options.model_dump(exclude_none=True))
        try:
            for token in answer:
                yield token.text
        finally:  # whoever reads no further shall not be in the way of other threads
            answer.cancel()
        response.set_usage(input=answer.stats.prompt_tokens, output=answer.stats.tokens)

    def _loaded(self) -> Runtime:
        with self._loading:
            if self._runtime is None:
                self._runtime = load(self._pair)
                atexit.register(self._runtime.close)  # which keeps what was measured
            return self._runtime

    def _asked(self, prompt: llm.Prompt, runtime: Runtime) -> Any:
        from llm.parts import ReasoningPart, TextPart

        parts = [part for message in prompt.messages for part in message.parts]
        if not all(isinstance(part, TextPart | ReasoningPart) for part in parts):  # another model's turns
            raise llm.ModelError(f"{self.model_id} reads text only: no attachments, and no calls of tools")
        messages = [
            {
                "role": message.role,
                "content": "".join(part.text for part in message.parts if isinstance(part, TextPart)),
            }
            for message in prompt.messages
        ]
        if runtime.has_chat_template:
            return messages
        if [message["role"] for message in messages] != ["user"]:
            raise llm.ModelError(f"{self.model_id} continues text: it takes one prompt, and nothing else")
        return messages[0]["content"]


@llm.hookimpl
def register_models(register: Callable[[llm.Model], None]) -> None:
    """Called by llm. What is in the way of our models is not in the way of its others."""
    if find_spec("llm.parts") is None:
        log.warning("edgespec's models need llm 0.32 or newer: pip install -U llm")
        return
    try:
        pairs = installed_pairs()
    except EdgespecError as error:
        log.warning("%s", error)
        return
    for pair in pairs:
        register(Pair(pair.name))
