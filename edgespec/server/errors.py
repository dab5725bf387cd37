"""Refusals as HTTP clients of OpenAI's API expect them: a status, and which field is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from starlette.responses import JSONResponse, Response

from edgespec.errors import ContextFull, EdgespecError, UsageError


class ApiError(Exception):
    """A request that is answered by an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        """param: the field that is wrong. retry_after: seconds after which it may go better."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's shape."""
        kind = _KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self, headers: Mapping[str, str] = {}) -> Response:
        """Ready to be sent."""
        waits = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return JSONResponse(self.body, self.status, {**headers, **waits})


_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


def as_api_error(error: Exception, fields: Set[str]) -> ApiError:
    """What to tell a client about an exception of the runtime; `fields` are those of the request, one of
    which the message may begin with."""
    message = str(error)
    if isinstance(error, ContextFull):
        prompt = "messages" if "messages" in fields else "prompt"
        return ApiError(400, message, code="context_length_exceeded", param=prompt)
    if isinstance(error, UsageError):
        name = message.partition(" ")[0].replace("json_schema", "response_format")
        return ApiError(400, message, param=name if name in fields else None)
    if isinstance(error, EdgespecError):
        return ApiError(500, message, code="model_failed")
    if isinstance(error, MemoryError):
        return ApiError(503, "there is not enough memory", code="out_of_memory", retry_after=30)
    return ApiError(500, f"this is a bug: {type(error).__name__}: {message}", code="bug")
