"""The chat page: static files of this package, sent to browsers with a policy that lets nothing else in.

The page is the same for everyone and holds no secrets, so it needs no key; what it asks the API for does.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "page"
PREFIX = "/page/"
WORKER = "sw.js"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}
"""files of other types are not served"""
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; object-src 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify edgespec",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Page:
    """The files, read once."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {
            PREFIX + path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.suffix in _TYPES
        }
        self._files["/"] = self._files.pop(PREFIX + "index.html")
        self._files[PREFIX + WORKER] = self._worker(self._files.pop(PREFIX + WORKER))
        self._tags = {path: f'"{sha256(content).hexdigest()[:24]}"' for path, content in self._files.items()}

    def _worker(self, source: bytes) -> bytes:
        """The service worker, told what to keep and which version of it that is."""
        version = sha256(source)
        for path, content in self._files.items():
            version.update(f"{path} {len(content)} ".encode() + content)
        files = json.dumps(list(self._files))
        text = source.decode().replace("{{version}}", version.hexdigest()[:16]).replace("{{files}}", files)
        return text.encode()

    async def respond(self, request: Request) -> Response:
        """A file. Raises HTTPException where there is none."""
        path = request.url.path
        if path not in self._files:
            raise HTTPException(404)
        headers = {**_HEADERS, "ETag": self._tags[path]}
        if path == PREFIX + WORKER:
            headers["Service-Worker-Allowed"] = "/"
        if request.headers.get("if-none-match") == self._tags[path]:
            return Response(status_code=304, headers=headers)
        kind = _TYPES[Path(path).suffix or ".html"]
        return Response(self._files[path], headers=headers, media_type=kind)
