"""One request and its client: reading a body within limits, noticing that the client is gone, and
streaming to it without waiting for it forever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edgespec.server.errors import ApiError

READ_SECONDS = 30.0
"""a body must have come after these"""
QUIET_SECONDS = 10.0
"""after these a stream says that it is alive"""
STALLED_SECONDS = 60.0
"""a client that takes nothing for these is given up"""

Result = TypeVar("Result")
Chunk: TypeAlias = dict[str, Any] | None


class ClientGone(Exception):
    """Nobody is there to be answered."""


async def read_body(request: Request, limit: int) -> bytes:
    """The body. Raises ApiError if it is no JSON by its type, has more than `limit` bytes, or does not
    come; ClientGone."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a foreign web page could send other types without being asked
        raise ApiError(
            415, "send the body with Content-Type: application/json", code="unsupported_media_type"
        )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(limit)
    try:
        return await asyncio.wait_for(_receive(request.receive, limit), READ_SECONDS)
    except asyncio.TimeoutError:
        raise ApiError(408, "the body did not come in time; send it at once", code="timeout") from None


async def _receive(receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(limit: int) -> ApiError:
    message = (
        f"the body has more than {limit} bytes; shorten it, or start the server with a larger --max-body"
    )
    return ApiError(413, message, code="body_too_large")


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """What `work` comes to. Raises ClientGone, and cancels it, when the client leaves before."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        working.cancel()
        gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Chunks as server-sent events. `done` is called when nobody reads them any more."""

    media_type = "text/event-stream"

    def __init__(self, first: Chunk, chunks: AsyncIterator[Chunk], done: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._chunks = chunks
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._stream(gone, send)
        except (asyncio.TimeoutError, OSError):
            pass  # the client takes nothing, or is gone
        finally:
            gone.cancel()
            self._done()

    async def _stream(self, gone: asyncio.Future[None], send: Send) -> None:
        async def tell(text: str, more: bool = True) -> None:
            message = {"type": "http.response.body", "body": text.encode(), "more_body": more}
            await asyncio.wait_for(send(message), STALLED_SECONDS)

        await tell(_event(self._first))
        following = asyncio.ensure_future(self._next())
        try:
            while True:
                either: set[asyncio.Future[Any]] = {following, gone}
                await asyncio.wait(either, timeout=QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return
                if not following.done():
                    await tell(_event(None))
                    continue
                await tell(_event(following.result()))
                following = asyncio.ensure_future(self._next())
        except StopAsyncIteration:
            await tell("data: [DONE]\n\n", more=False)
        except ApiError as error:
            await tell(_event(error.body), more=False)
        finally:
            following.cancel()

    async def _next(self) -> Chunk:
        return await self._chunks.__anext__()


def _event(chunk: Chunk) -> str:
    """A comment where there is nothing to say."""
    if chunk is None:
        return ": working\n\n"
    # In ASCII: clients that read it by lines may end these at U+2028, or at others that JSON lets stand.
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n"
