"""Who may ask: those with the key; without one, programs on this machine, but no web page they show. And how
many at once."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from edgespec.server.errors import ApiError
from edgespec.server.page import PREFIX

OPEN = frozenset({"/", "/health"})
"""paths that need no key; nor do the files of the chat page"""


class Guard:
    """ASGI middleware that refuses strangers."""

    def __init__(self, app: ASGIApp, key: str | None, hosts: frozenset[str] | None) -> None:
        """key: what a request must carry; None: nothing. hosts: the names under which a request may have
        found us, None for any: a page can make its own name mean this machine (DNS rebinding)."""
        self._app = app
        self._key = None if key is None else key.encode()
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(Headers(scope=scope), scope["path"])):
            headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
            await refusal.response(headers)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers, path: str) -> ApiError | None:
        if self._hosts is not None and _without_port(headers.get("host", "")) not in self._hosts:
            message = (
                "this server answers to the name of its machine only; to publish it, start it with a key"
            )
            return ApiError(403, message, code="foreign_host")
        if self._key is None or path in OPEN or path.startswith(PREFIX):
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Headers are Latin-1; compare the bytes that were sent. Constant time, whatever is equal.
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self._key):
            return None
        message = "the API key is missing or wrong; send it as: Authorization: Bearer KEY"
        return ApiError(401, message, code="invalid_api_key")


class Crowd:
    """ASGI middleware that refuses requests beyond so many at once. Connections on which nobody asks for
    anything do not count, as they would for uvicorn: strangers could keep everyone out with them."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._here = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._here >= self._limit:
            message = f"{self._here} requests are here already; try again later"
            await ApiError(503, message, code="overloaded", retry_after=1).response()(scope, receive, send)
            return
        self._here += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._here -= 1


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()
