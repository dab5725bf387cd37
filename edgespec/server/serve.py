"""`edgespec serve`: from options to a server that runs until it is told to end."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from edgespec.backends.llama_loading import DEFAULT_CONTEXT
from edgespec.device.memory import total_memory
from edgespec.errors import ModelError, UsageError
from edgespec.hub.gguf_info import read_info
from edgespec.hub.names import kind_of
from edgespec.hub.resolve import resolve_pair
from edgespec.loading import load
from edgespec.server.app import Limits, application
from edgespec.server.metrics import Metrics
from edgespec.server.turns import About, Turns

log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1", "localhost")
USUAL_PARALLEL = 4
USUAL_CACHE = 1024
"""MB"""
_ORIGIN = re.compile(r"(?!http://.*:80$|https://.*:443$)[a-z][a-z0-9+.-]*://(?:(?![/?#@*A-Z])[!-~])+")
"""as browsers name them: whatever is written otherwise would never match"""
KEEP_ALIVE = 60
"""seconds that an idle connection stays open: longer than clients keep it (httpx, so OpenAI's, too: 5), lest
one is closed while a request is on its way"""
OPEN_MAX = 10240
"""files that a process may have open on a Mac, which names infinity and refuses it"""


@dataclass(frozen=True)
class Serving:
    """Options of the server itself."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: any that is free"""
    name: str | None = None
    """the model's, in the API; None: as the pair is called"""
    api_key: str | None = None
    no_key: bool = False
    """strangers may use a server that others can reach"""
    origins: Sequence[str] = ()
    queue: int = 16
    parallel: int | None = None
    """requests answered at once; None: USUAL_PARALLEL, or as many as memory allows"""
    cache_memory: int | None = None
    """MB for caches of earlier conversations; None: USUAL_CACHE, or what memory allows"""
    cache_dir: str | None = None
    """where caches are saved when models leave memory; None: nowhere"""
    cache_disk: int | None = None
    """MB that may be saved there; None: as many as `load` takes"""
    max_body: int = 4 << 20
    idle_unload: float | None = None
    grace: float = 10.0
    """seconds that answers have to end by themselves when the server is told to end"""


def serve(
    pair: str, loading: Mapping[str, Any], serving: Serving, ready: Callable[[str, About], None]
) -> None:
    """Serve a pair until SIGINT or SIGTERM. `ready` is told the address once requests are taken.

    loading: options of `edgespec.load`. Raises UsageError for an address that cannot be had or would let
    strangers in, and what `load` raises.
    """
    _check(serving)
    listening = _bind(serving.host, serving.port)  # first, as it takes less time to fail than loading does
    with listening:
        metrics = Metrics()
        parallel, cache_memory = _parallel(pair, loading, serving), _cache_memory(serving)
        turns = Turns(
            lambda: load(
                pair,
                **loading,
                parallel=parallel,
                cache_memory=cache_memory,
                cache_dir=serving.cache_dir,
                cache_disk=None if serving.cache_disk is None else serving.cache_disk << 20,
            ),
            metrics,
            queue=serving.queue,
            idle_unload=serving.idle_unload,
        )
        try:
            port = listening.getsockname()[1]
            host = f"[{serving.host}]" if ":" in serving.host else serving.host
            app = application(turns, metrics, serving.name or _name(pair), _limits(serving))
            config = uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=int(serving.grace) + 5,
                ws="none",
            )
            server = _Server(
                config, turns, serving.grace, lambda: ready(f"http://{host}:{port}", turns.about)
            )
            server.run(sockets=[listening])
        finally:
            turns.close()


class _Server(uvicorn.Server):
    """Tells when it is there, and lets answers end before it does."""

    def __init__(self, config: uvicorn.Config, turns: Turns, grace: float, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._turns = turns
        self._grace = grace
        self._ready = ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = -math.inf
        """when it was last said that there are too many connections"""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._trouble)
        _raise_connections()
        try:
            await super().startup(sockets)
        except OSError as error:  # another process began to listen there while the models were loaded
            host, port, *_ = sockets[0].getsockname() if sockets else ("", 0)
            raise _cannot_listen(host, port, error) from error
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._turns.refuse()
        cut = asyncio.get_running_loop().call_later(self._grace, self._turns.cut_off)
        await super().shutdown(sockets)
        cut.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.force_exit and self._loop is not None:  # Python 3.12 would wait for streams even so
            self._loop.call_soon_threadsafe(self._turns.cut_off)

    def _trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """asyncio tells of a connection that cannot be accepted with a traceback, thousands of times a
        second; and on Windows of clients that went away, as they may."""
        error = context.get("exception")
        if isinstance(error, ConnectionError):
            return
        if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
            loop.default_exception_handler(context)
        elif loop.time() > self._told + 60:
            self._told = loop.time()
            log.warning("there are too many connections; more must wait until some are closed")


def _raise_connections() -> None:
    """As many as this user may have; usually a process begins with fewer."""
    with suppress(ImportError, ValueError, OSError):  # not on Windows
        import resource

        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = max(now, min(most, OPEN_MAX)) if sys.platform == "darwin" else most
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _check(serving: Serving) -> None:
    if serving.api_key is not None and serving.no_key:
        raise UsageError(
            "a key and --no-key contradict each other; leave one out (EDGESPEC_API_KEY is a key)"
        )
    if serving.host not in LOOPBACK and serving.api_key is None and not serving.no_key:
        raise UsageError(
            f"{serving.host} can be reached from other machines, so a key is needed: --api-key KEY or "
            "EDGESPEC_API_KEY (or, if anyone may use the server, --no-key)"
        )
    if serving.api_key is not None and not (serving.api_key.isascii() and serving.api_key.isprintable()):
        raise UsageError("the API key has characters that HTTP cannot send; use letters, digits and signs")
    if serving.api_key is not None and (not serving.api_key or serving.api_key != serving.api_key.strip()):
        raise UsageError("the API key is empty, or has blanks around it, which HTTP drops; give one without")
    if serving.name is not None and not serving.name.strip():
        raise UsageError("--name is empty; give the model a name, or leave it out")
    for origin in serving.origins:
        if not _ORIGIN.fullmatch(origin):
            raise UsageError(
                f"--cors-origin {origin} is no origin; write it as browsers do, in small letters, without a "
                "path or the usual port: http://localhost:3000. Pages of all origins cannot be let in"
            )
    for option, seconds in (("--grace", serving.grace), ("--idle-unload", serving.idle_unload)):
        if seconds is not None and not math.isfinite(seconds):
            raise UsageError(f"{option} is {seconds}; it must be a number of seconds")


def _limits(serving: Serving) -> Limits:
    hosts = None
    if serving.api_key is None and serving.host in LOOPBACK:
        hosts = frozenset({"localhost", "127.0.0.1", "[::1]"})
    return Limits(serving.api_key, hosts, serving.origins, serving.max_body)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            if sys.platform != "win32":  # where it would let several servers listen at one address
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(host, port, error) from error
    return listening


def _cannot_listen(host: str, port: int, error: OSError | UnicodeError) -> UsageError:
    why = error.strerror if isinstance(error, OSError) else "that cannot be a machine's name"
    return UsageError(
        f"the server cannot listen on {host}, port {port}: {why}; choose another --port, or another --host"
    )


def _parallel(pair: str, loading: Mapping[str, Any], serving: Serving) -> int:
    """How many contexts of keys and values fit into an eighth of the memory."""
    if serving.parallel is not None:
        return serving.parallel
    try:
        model = read_info(resolve_pair(pair).target.path)
    except (ModelError, OSError):  # an ONNX model
        return USUAL_PARALLEL
    context = loading.get("n_ctx") or min(DEFAULT_CONTEXT, model.context_length or DEFAULT_CONTEXT)
    each = 2 * context * (model.kv_bytes_per_token or 0)  # at 32 bits, as in ONNX
    return max(1, min(USUAL_PARALLEL, total_memory() // 8 // max(each, 1)))


def _cache_memory(serving: Serving) -> int:
    """In bytes."""
    if serving.cache_memory is not None:
        return serving.cache_memory << 20
    return min(USUAL_CACHE << 20, total_memory() // 16)


def _name(pair: str) -> str:
    """A path tells more about this machine than clients need to know."""
    return Path(pair).stem if kind_of(pair) in ("path", "unknown") else pair
