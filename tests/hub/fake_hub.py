"""A local HTTP server that answers like the Hugging Face Hub, and misbehaves on request."""

from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from waiting import PATIENCE

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Request:
    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class FakeHub:
    """`files` maps owner/repo/file to content. The Hub proper redirects to the host `localhost`,
    which plays the content network."""

    files: dict[str, bytes] = field(default_factory=dict)
    gated: dict[str, str] = field(default_factory=dict)
    """owner/repo → the token that may read it"""
    private: dict[str, str] = field(default_factory=dict)
    announced: dict[str, str | None] = field(default_factory=dict)
    """checksums to announce instead of the true ones"""
    broken: dict[str, int] = field(default_factory=dict)
    """owner/repo → an HTTP status to answer everything with"""
    cut_after: int | None = None
    """bytes after which the next transfer is cut off, once"""
    stall_after: int | None = None
    """bytes after which transfers wait for `go`"""
    go: threading.Event = field(default_factory=threading.Event)
    requests: list[Request] = field(default_factory=list)

    def add(self, name: str, content: bytes) -> str:
        self.files[name] = content
        return hashlib.sha256(content).hexdigest()

    def downloads(self) -> list[Request]:
        return [r for r in self.requests if r.method == "GET" and r.path.startswith("/cdn/")]

    def start(self) -> None:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub._answer(self)

            def do_GET(self) -> None:
                hub._answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.go.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        headers = handler.headers
        self.requests.append(
            Request(handler.command, handler.path, headers.get("Range"), headers.get("Authorization"))
        )
        if handler.path.startswith("/cdn/"):
            self._transfer(handler, handler.path.removeprefix("/cdn/"))
            return
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", handler.path)
        if not match:
            self._refuse(handler, 404, "")
            return
        repo, revision, file = match.groups()
        authorization = headers.get("Authorization")
        name = f"{repo}/{file}"
        if repo in self.broken:
            self._refuse(handler, self.broken[repo], "")
        elif repo in self.gated and authorization != f"Bearer {self.gated[repo]}":
            self._refuse(handler, 403 if authorization else 401, "GatedRepo")
        elif repo in self.private and authorization != f"Bearer {self.private[repo]}":
            self._refuse(handler, 401, "RepoNotFound")
        elif not any(known.startswith(f"{repo}/") for known in self.files):
            self._refuse(handler, 401 if not authorization else 404, "RepoNotFound")
        elif revision not in ("main", COMMIT):
            self._refuse(handler, 404, "RevisionNotFound")
        elif name not in self.files:
            self._refuse(handler, 404, "EntryNotFound")
        else:
            content = self.files[name]
            etag = self.announced.get(name, hashlib.sha256(content).hexdigest())
            handler.send_response(302)
            handler.send_header("Location", f"http://localhost:{self.port}/cdn/{name}")
            handler.send_header("X-Repo-Commit", COMMIT)
            handler.send_header("X-Linked-Size", str(len(content)))
            handler.send_header("X-Linked-Etag", f'"{etag}"')
            handler.send_header("Content-Length", "0")
            handler.end_headers()

    def _refuse(self, handler: BaseHTTPRequestHandler, status: int, code: str) -> None:
        handler.send_response(status)
        if code:
            handler.send_header("X-Error-Code", code)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    def _transfer(self, handler: BaseHTTPRequestHandler, name: str) -> None:
        content = self.files[name]
        start = 0
        if asked := handler.headers.get("Range"):
            start = int(asked.removeprefix("bytes=").split("-")[0])
        handler.send_response(206 if asked else 200)
        if asked:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        at = start
        try:
            if self.cut_after is not None and at < self.cut_after:
                handler.wfile.write(content[at : self.cut_after])
                self.cut_after = None
                handler.close_connection = True
                handler.connection.close()
                return
            if self.stall_after is not None and at < self.stall_after:
                handler.wfile.write(content[at : self.stall_after])
                handler.wfile.flush()
                at = self.stall_after
                self.go.wait(2 * PATIENCE)  # longer than whoever looks at it meanwhile
            handler.wfile.write(content[at:])
        except OSError:
            handler.close_connection = True
