"""The application: its paths, and what they do with a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import time
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgespec import __version__
from edgespec.chat.call_grammar import can_hold, may_call, must_call
from edgespec.device.memory import available_memory
from edgespec.device.power import read_slowdown
from edgespec.errors import BackendError, EdgespecError, UsageError
from edgespec.grammar.constraint import grammar
from edgespec.options import GenerateOptions
from edgespec.server.answers import Answers, ChatForm, Form, TextForm
from edgespec.server.errors import ApiError, as_api_error
from edgespec.server.exchange import ClientGone, EventStream, read_body, unless_gone
from edgespec.server.fields import ChatRequest, Completing, CompletionRequest
from edgespec.server.guard import Crowd, Guard
from edgespec.server.metrics import Counted, Metrics
from edgespec.server.openapi import describe
from edgespec.server.page import PREFIX, Page
from edgespec.server.parsing import check, read
from edgespec.server.turns import Ticket, Turns, Wish, stopping

LARGE = 1 << 15
"""characters of schemas: larger ones may take seconds, or minutes"""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """Who may send how much."""

    api_key: str | None = None
    hosts: frozenset[str] | None = None
    """names by which clients may call the server; None: any"""
    origins: Sequence[str] = ()
    """web pages that may use it (CORS)"""
    max_body: int = 4 << 20
    """bytes"""
    requests: int = 512
    """at once, whatever they ask for"""


class Service:
    """The handlers, over one pair."""

    def __init__(self, turns: Turns, metrics: Metrics, model: str, limits: Limits) -> None:
        """model: the pair's name in the API."""
        self._turns = turns
        self._metrics = metrics
        self._model = model
        self._limits = limits
        self._for_large = ThreadPoolExecutor(1)
        self._since = int(time())
        metrics.watch("edgespec_queue_length", "Requests that wait.", lambda: turns.waiting)
        metrics.watch("edgespec_answering", "Requests that are being answered.", lambda: turns.answering)
        metrics.watch("edgespec_model_loaded", "1 while the models are in memory.", lambda: turns.loaded)
        metrics.watch("edgespec_cache_bytes", "Caches of other conversations.", lambda: turns.kept.nbytes)
        metrics.watch("edgespec_cache_budget_bytes", "What they may take.", lambda: turns.about.cache_memory)
        metrics.watch("edgespec_cache_copies", "How many there are.", lambda: len(turns.kept))
        metrics.watch("edgespec_cache_evicted", "How many had to go.", lambda: turns.kept.evicted)

    async def chat(self, request: Request) -> Response:
        return await self._complete(request, ChatRequest)

    async def completions(self, request: Request) -> Response:
        return await self._complete(request, CompletionRequest)

    async def _complete(
        self, request: Request, kind: type[ChatRequest] | type[CompletionRequest]
    ) -> Response:
        try:
            return await self._completed(request, kind)
        except asyncio.CancelledError:  # the server ends, and does not wait for a slow schema, say
            raise stopping() from None  # uvicorn would log it as a failure, with a traceback

    async def _completed(
        self, request: Request, kind: type[ChatRequest] | type[CompletionRequest]
    ) -> Response:
        body = await read_body(request, self._limits.max_body)
        given, pool = await self._beside(request, None, partial(self._read, body))
        asked = await self._beside(request, pool, partial(check, kind, given))
        self._check_model(asked.model)
        form: Form = TextForm()
        if isinstance(asked, ChatRequest):
            self._check_tools(asked)
            names = [tool.function.name for tool in asked.offered]
            form = ChatForm(names, parallel_calls=asked.parallel_tool_calls is not False)
        try:
            wishes = await self._beside(request, pool, partial(self._wishes, asked))
        except EdgespecError as error:
            raise as_api_error(error, asked.model_fields_set) from error
        ticket = Ticket(wishes, asked.model_fields_set)
        answers = Answers(ticket, form, self._model, asked.choices)
        self._turns.submit(ticket)
        streaming = False
        try:
            if not asked.stream:
                return JSONResponse(await unless_gone(request.receive, answers.whole()))
            usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
            chunks = answers.chunks(usage, asked.edgespec)
            first = await unless_gone(request.receive, _next(chunks))  # an error has a status until now
            streaming = True
            return EventStream(first, chunks, lambda: self._turns.cancel(ticket))
        finally:
            if not streaming:
                self._turns.cancel(ticket)

    def _read(self, body: bytes) -> tuple[dict[str, Any], Executor | None]:
        """What a body holds, and whose threads make it out: with large schemas one at a time, so that they
        leave some to others."""
        given = read(body)
        schemas = json.dumps([given.get("response_format"), given.get("tools")])
        return given, self._for_large if len(schemas) > LARGE else None

    async def _beside(self, request: Request, pool: Executor | None, work: Callable[[], Result]) -> Result:
        """What `work` comes to in a thread. Raises ClientGone when the client leaves before."""
        return await unless_gone(request.receive, asyncio.get_running_loop().run_in_executor(pool, work))

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._model:
            message = f"there is no model {name[:100]!r} here; this server has {self._model!r}"
            raise ApiError(404, message, code="model_not_found", param="model")

    def _check_tools(self, asked: ChatRequest) -> None:
        if asked.speaks_of_tools and self._turns.about.calls is None:
            raise ApiError(
                400,
                f"the chat template of {self._turns.about.target} knows no tools, or calls them in a way "
                "that is not understood here; leave them out, or serve a model such as qwen2.5-coder",
                code="unsupported",
                param="tools" if asked.offered else "messages",
            )

    def _wishes(self, asked: Completing) -> list[Wish]:
        assert isinstance(asked, ChatRequest | CompletionRequest)
        tools: list[dict[str, Any]] = []
        form: GenerateOptions = {}
        if isinstance(asked, ChatRequest):
            tools = [tool.for_template() for tool in asked.offered]
            form = self._form(asked)
        wishes = [self._turns.tokenized(Wish(prompt, {}, tools)) for prompt in asked.prompts]
        return [
            replace(wish, options={**asked.options(i), **form})
            for wish in wishes
            for i in range(asked.choices)
        ]

    def _form(self, asked: ChatRequest) -> GenerateOptions:
        """What makes the answer a call, where it must be one, and holds it to what it opened, where it may
        be."""
        about = self._turns.about
        if about.calls is None or not asked.offered:
            return {}
        try:
            if asked.demanded:
                several = asked.parallel_tool_calls is not False
                return {"grammar": grammar(must_call(about.calls, _schemas(asked), several))}
            return {"grammar": replace(grammar(may_call(_schemas(asked), about.thinks)), free=True)}
        except (UsageError, BackendError) as error:
            needed = asked.demanded or any(tool.function.strict for tool in asked.offered)
            if isinstance(error, BackendError) and not needed:
                return {}  # without the package for it calls are what the model makes of them
            message = f"the calls cannot be made sure of: {error}"
            raise ApiError(400, message, code="unsupported", param="tools") from error

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def model(self, request: Request) -> Response:
        self._check_model(request.path_params["model"])
        return JSONResponse(self._described())

    def _described(self) -> dict[str, Any]:
        return {"id": self._model, "object": "model", "created": self._since, "owned_by": "edgespec"}

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def stats(self, request: Request) -> Response:
        turns, kept = self._turns, self._turns.kept
        about = asdict(turns.about)
        del about["pair"]  # it may be a path, which tells more about this machine than clients need to know
        return JSONResponse(
            {
                "version": __version__,
                "model": self._model,
                **about,
                "loaded": turns.loaded,
                "answering": turns.answering,
                "waiting": turns.waiting,
                "caches": {"copies": len(kept), "bytes": kept.nbytes, "evicted": kept.evicted},
                "last_decision": turns.decision,
                "available_memory": available_memory(),
                "slowed_down": await asyncio.to_thread(read_slowdown),  # it may have to ask a program
                **self._metrics.summary(),
            }
        )

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(describe(self._limits.api_key is not None))


def _schemas(asked: ChatRequest) -> dict[str, dict[str, Any]]:
    """Of the functions' arguments. One that cannot be enforced, and need not be, stands for any object."""
    schemas = {}
    for function in (tool.function for tool in asked.demanded or asked.offered):
        schema = dict(function.parameters or {})
        if not asked.demanded and not function.strict and not can_hold(schema):
            schema = {}
        schemas[function.name] = schema
    return schemas


async def _next(chunks: AsyncIterator[dict[str, Any] | None]) -> dict[str, Any] | None:
    return await chunks.__anext__()


def application(turns: Turns, metrics: Metrics, model: str, limits: Limits) -> Starlette:
    """The ASGI application; when it ends it closes `turns`."""
    service, page = Service(turns, metrics, model, limits), Page()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        except asyncio.CancelledError:  # told twice to end; as a failure it would be logged with a traceback
            return
        turns.close()

    paths = {
        "/v1/chat/completions": ("POST", service.chat),
        "/v1/completions": ("POST", service.completions),
        "/v1/models": ("GET", service.models),
        "/v1/edgespec/stats": ("GET", service.stats),
        "/health": ("GET", service.health),
        "/metrics": ("GET", service.metrics),
        "/openapi.json": ("GET", service.openapi),
        "/v1/models/{model:path}": ("GET", service.model),
        "/": ("GET", page.respond),
        PREFIX + "{file:path}": ("GET", page.respond),
    }
    middleware = [
        Middleware(Counted, metrics=metrics, paths=frozenset(paths)),
        Middleware(Guard, key=limits.api_key, hosts=limits.hosts),
        Middleware(Crowd, limit=limits.requests),
    ]
    if limits.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(limits.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # OpenAI's client for browsers sends a dozen of its own
            expose_headers=["Retry-After"],
        )
        middleware.insert(0, cors)
    return Starlette(
        routes=[Route(path, handler, methods=[method]) for path, (method, handler) in paths.items()],
        middleware=middleware,
        exception_handlers={
            ApiError: _refused,
            ClientGone: _gone,
            HTTPException: _not_found,
            Exception: _failed,
        },
        lifespan=lifespan,
    )


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nginx's word for it; nobody reads it


def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = error.headers or {}
    allowed = " or ".join(sorted(headers.get("Allow", "").split(", ")))
    why = f"it takes {allowed} only" if allowed else error.detail
    message = f"{request.method} {request.url.path[:100]}: {why}; see /openapi.json for what there is"
    return ApiError(error.status_code, message).response(headers)


def _failed(request: Request, error: Exception) -> Response:
    return ApiError(500, f"this is a bug: {type(error).__name__}", code="bug").response()
