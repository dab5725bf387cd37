"""What a request may say: every field of OpenAI's two endpoints, taken, refused or known to be ignored.

These models check requests and describe them in /openapi.json. A field that asks for what the server
cannot do yet is refused unless its value asks for nothing; a field nobody knows is refused.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, cast

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function
from typing_extensions import Self

from edgespec.chat.tools import END
from edgespec.errors import BackendError, UsageError
from edgespec.grammar.constraint import json_schema
from edgespec.options import GenerateOptions, Prompt
from edgespec.server.tool_fields import Ignored, NamedTool, Strict, Tool, ToolCall

CHOICES = 128
"""answers to one request, at most"""


class _Unless:
    """Marks a field that is refused unless it is absent, null or one of these values."""

    def __init__(self, refusal: str, *harmless: JsonValue) -> None:
        self._refusal = refusal
        self._harmless = [*harmless, None]

    def _check(self, value: JsonValue) -> JsonValue:
        if not any(value == fine and type(value) is type(fine) for fine in self._harmless):
            raise PydanticCustomError("unsupported", self._refusal)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": self._harmless, "description": f"Anything else is refused: {self._refusal}."}


def _as_written(key: str) -> str:
    if not re.fullmatch(TOKEN_ID, key):
        raise PydanticCustomError(
            "token_id", "it must be a token id: up to nine digits, without a sign or leading zeros"
        )
    return key


_OLD = "it is the old name of tools and tool_choice; use those"
TOOLS = 128
"""functions offered in one request, at most"""
_NO_SOUND = "only text can be answered"
_NO_EFFORT = "models here think as much as they think; leave it out"
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]
Number = Annotated[float, Field(allow_inf_nan=False)]
TOKEN_ID = "^(0|[1-9][0-9]{0,8})$"
"""the one way to write it: of keys that mean the same token, all but the last would be lost"""
TokenId = Annotated[int, BeforeValidator(_as_written), Field(strict=False, ge=0)]
Bias = Annotated[Number, Field(ge=-100, le=100)]


class StreamOptions(Strict):
    """What a stream holds beside the answer."""

    include_usage: bool | None = None
    include_obfuscation: Ignored = None


class Extras(Strict):
    """What a stream tells of how it was generated, under `edgespec` in its chunks."""

    origins: bool | None = Field(
        None, description="Where each token came from: draft (and accepted), bonus, corrected, or plain."
    )
    stats: bool | None = Field(None, description="Counts and times so far, and everything at the end.")


class Completing(Strict):
    """The fields that both endpoints share."""

    model: str | None = Field(None, description="As /v1/models names it; without it, the one there is.")
    stream: bool | None = None
    stream_options: StreamOptions | None = Field(None, description="For streams only.")
    max_tokens: Count | None = None
    temperature: Annotated[Number, Field(ge=0, le=1000)] | None = Field(
        None, description="0 takes the most probable token. Default: 1."
    )
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(None, description="0 is off.")
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Number, Field(ge=0.01, le=100)] | None = Field(
        None, description="Logits of tokens seen are divided by it; 1 is off."
    )
    penalty_window: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        None, description="How many of the last tokens the penalties look at, the prompt's too. Default: 64."
    )
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=1024)] | None = Field(
        None,
        description="By token id; -100 bans a token.",
        json_schema_extra={"propertyNames": {"pattern": TOKEN_ID}},
    )
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = Field(
        None, description="The answer depends on it alone; the i-th choice has seed + i."
    )
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    n: Annotated[int, Field(ge=1, le=CHOICES)] | None = None
    edgespec: Extras | None = Field(None, description="For streams only.")
    user: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        for name in ("stream_options", "edgespec"):
            if getattr(self, name) is not None and not self.stream:
                raise _wrong(name, "it is for streams only; set stream to true, or leave it out")
        return self

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return self.n or 1

    def options(self, choice: int) -> GenerateOptions:
        """Of `Runtime.generate`, for the choice with this number."""
        given: dict[str, Any] = {name: getattr(self, name) for name in _PASSED_ON}
        options = {name: value for name, value in given.items() if value is not None}
        options.setdefault("temperature", 1.0)
        if self.logit_bias:
            bans = {token: -float("inf") if bias == -100 else bias for token, bias in self.logit_bias.items()}
            options["logit_bias"] = bans
        if self.seed is not None:
            options["seed"] = self.seed + choice
        return cast("GenerateOptions", options)


_PASSED_ON = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "penalty_window",
    "stop",
)


class TextPart(Strict):
    """A piece of a message."""

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: Ignored = None


class ChatMessage(Strict):
    """A turn. What clients copy from an answer into the next request is taken too, where it is empty or says
    what another field does."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description="developer is another word for system; tool: what a call came to."
    )
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = Field(
        None, description="May be missing where there are tool_calls."
    )
    reasoning_content: str | None = Field(None, description="Handed to the chat template.")
    name: Ignored = None
    parsed: Ignored = None
    """what `content` holds, as OpenAI's client reads it"""
    refusal: Annotated[JsonValue, _Unless("it cannot be told to a model here")] = None
    annotations: Annotated[JsonValue, _Unless("they cannot be told to a model here", [])] = None
    audio: Annotated[JsonValue, _Unless(_NO_SOUND)] = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=TOOLS, fail_fast=True)] | None = None
    tool_call_id: str | None = Field(
        None, description="Of the call that a message of the role tool is about."
    )
    function_call: Annotated[JsonValue, _Unless(_OLD)] = None

    def for_template(self) -> dict[str, Any]:
        """As chat templates know messages."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": text,
        }
        for name in ("reasoning_content", "tool_call_id"):
            if getattr(self, name) is not None:
                message[name] = getattr(self, name)
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return message


class JsonSchema(Strict):
    """A named JSON schema, which is enforced whether it is strict or not."""

    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    schema_: dict[str, JsonValue] | None = Field(
        None, alias="schema", description="Keywords that cannot be enforced are refused."
    )
    strict: bool | None = None
    description: Ignored = None


class ResponseFormat(Strict):
    """What an answer must be: text, a JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = Field(None, description="For the type of that name only.")

    @model_validator(mode="after")
    def _enforceable(self) -> Self:
        place = "response_format.json_schema"
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise _wrong(place, 'it goes with the type "json_schema", and that with it')
        try:
            if self.wanted is not None:
                json_schema(self.wanted)
        except UsageError as error:
            raise _wrong(f"{place}.schema", str(error).removeprefix("json_schema ")) from error
        except BackendError as error:
            raise PydanticCustomError("unsupported", str(error), {"field": "response_format"}) from error
        return self

    @property
    def wanted(self) -> dict[str, Any] | None:
        """The schema to enforce, if any."""
        if self.type == "text":
            return None
        given = None if self.json_schema is None else self.json_schema.schema_
        return {"type": "object"} if given is None else dict(given)


class ChatRequest(Completing):
    """The body of /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: Count | None = Field(None, description="The newer name of max_tokens.")
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="Report this many alternatives to each token; needs `logprobs`."
    )
    response_format: ResponseFormat | None = Field(
        None, description="The form of the answer. The model is not told: ask it for JSON as well."
    )
    tools: Annotated[list[Tool], Field(max_length=TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = Field(None, description="false: an answer ends behind its first call.")
    functions: Annotated[JsonValue, _Unless(_OLD, [])] = None
    function_call: Annotated[JsonValue, _Unless(_OLD, "none", "auto")] = None
    modalities: Annotated[JsonValue, _Unless(_NO_SOUND, ["text"])] = None
    audio: Annotated[JsonValue, _Unless(_NO_SOUND)] = None
    reasoning_effort: Annotated[JsonValue, _Unless(_NO_EFFORT)] = None
    verbosity: Annotated[JsonValue, _Unless("models here cannot be told; leave it out")] = None
    prediction: Annotated[JsonValue, _Unless("edgespec finds drafts by itself; leave it out")] = None
    web_search_options: Annotated[JsonValue, _Unless("there is no search here")] = None
    store: Annotated[JsonValue, _Unless("nothing is stored here", False)] = None
    moderation: Annotated[JsonValue, _Unless("nothing is moderated here; leave it out")] = None
    metadata: Ignored = None
    service_tier: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None

    @model_validator(mode="after")
    def _coherent_chat(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise _wrong("top_logprobs", "it needs logprobs to be true")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise _wrong("max_completion_tokens", "max_tokens says otherwise; give one of them")
        for i, message in enumerate(self.messages):
            silent = message.content is None
            if message.tool_calls and message.role != "assistant":
                raise _wrong(f"messages.{i}.tool_calls", "only messages of the assistant have calls")
            if silent and not message.tool_calls:
                raise _wrong(
                    f"messages.{i}.content", "it is missing; only messages with tool_calls may do so"
                )
        self._check_tools()
        return self

    def _check_tools(self) -> None:
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            raise _wrong("tools", "two functions have the same name")
        form = None if self.response_format is None else self.response_format.wanted
        if form is not None and names and self.tool_choice != "none":
            raise _wrong("response_format", "it would not let the model call tools; leave one of them out")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise _wrong("tool_choice", "tools has no function of this name")
        if self.tool_choice == "required" and not names:
            raise _wrong("tool_choice", "there are no tools that could be called")

    @property
    def demanded(self) -> list[Tool]:
        """The functions of which one must be called, if so."""
        if isinstance(self.tool_choice, NamedTool):
            return [tool for tool in self.offered if tool.function.name == self.tool_choice.function.name]
        return self.offered if self.tool_choice == "required" else []

    @property
    def offered(self) -> list[Tool]:
        """The functions that the model may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def speaks_of_tools(self) -> bool:
        """Whether the chat template must know of tools."""
        return bool(self.offered) or any(m.tool_calls or m.role == "tool" for m in self.messages)

    @property
    def prompts(self) -> list[Prompt]:
        """What is to be answered: one conversation."""
        return [[message.for_template() for message in self.messages]]

    def options(self, choice: int) -> GenerateOptions:
        options = super().options(choice)
        if self.max_completion_tokens is not None:
            options["max_tokens"] = self.max_completion_tokens
        if self.logprobs:
            options["logprobs"] = self.top_logprobs or 0
        if self.response_format is not None:
            options["json_schema"] = self.response_format.wanted
        if self.offered and self.parallel_tool_calls is False:
            stop = options.get("stop") or []
            options["stop"] = [*([stop] if isinstance(stop, str) else stop), END]
        return options


Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, fail_fast=True)]
_FEW: JsonDict = {"maxItems": CHOICES}  # refused by `_not_too_many`, once it is known what the prompts are
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True, json_schema_extra=_FEW)]
IdLists = Annotated[list[Ids], Field(min_length=1, fail_fast=True, json_schema_extra=_FEW)]


class CompletionRequest(Completing):
    """The body of /v1/completions."""

    prompt: str | Ids | Texts | IdLists
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="Report this many alternatives to each token."
    )
    echo: Annotated[JsonValue, _Unless("the prompt cannot be sent back", False)] = None
    suffix: Annotated[JsonValue, _Unless("text in the middle cannot be filled in")] = None
    best_of: Annotated[JsonValue, _Unless("all choices are sent; use n", 1)] = None

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        if len(self.prompts) > CHOICES:
            raise _wrong("prompt", f"it holds {len(self.prompts)} prompts; {CHOICES} are answered at once")
        if len(self.prompts) * self.choices > CHOICES:
            raise _wrong("n", f"prompts times n must be at most {CHOICES}")
        return self

    @property
    def prompts(self) -> list[Prompt]:
        """What is to be continued."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [cast("Prompt", self.prompt)]
        return cast("list[Prompt]", self.prompt)

    def options(self, choice: int) -> GenerateOptions:
        options = super().options(choice)
        options.setdefault("max_tokens", 16)  # OpenAI's default
        if self.logprobs is not None:
            options["logprobs"] = self.logprobs
        return options


def _wrong(field: str, why: str) -> PydanticCustomError:
    """A field that is wrong beside others: `parse` reads its name from the error."""
    return PydanticCustomError("incoherent", why, {"field": field})
