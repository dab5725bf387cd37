"""What a request may say about tools: functions of the client's program that the model may ask it to call."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic_core import from_json

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
Ignored: TypeAlias = Annotated[JsonValue, Field(description="Taken and ignored: it changes no answer.")]


class Strict(BaseModel):
    """No field but those named, no text where a number belongs."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Function(Strict):
    """A function that is offered."""

    name: Name
    description: str | None = None
    parameters: dict[str, JsonValue] | None = Field(None, description="A JSON schema of its arguments.")
    strict: bool | None = None


class Tool(Strict):
    """A tool; there are no others than functions."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """As chat templates know tools."""
        return self.model_dump(exclude={"function": {"strict"}}, exclude_none=True)


class FunctionName(Strict):
    """A function, by its name."""

    name: Name


class NamedTool(Strict):
    """The function that must be called."""

    type: Literal["function"]
    function: FunctionName


class Call(Strict):
    """What the model asked for."""

    name: str
    arguments: str = Field(description="JSON, as the model wrote it.")
    parsed_arguments: Ignored = None
    """the same, as OpenAI's client reads it"""


class ToolCall(Strict):
    """A call in an earlier answer."""

    id: str
    type: Literal["function"]
    function: Call
    index: Ignored = None
    """as streams have it, and OpenAI's client keeps it"""

    def for_template(self) -> dict[str, Any]:
        """Templates write the arguments down as JSON themselves."""
        arguments: Any = self.function.arguments
        with suppress(ValueError):  # which is raised for what is nested too deeply, too
            arguments = from_json(arguments)
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.function.name, "arguments": arguments},
        }
