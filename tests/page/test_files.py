"""What the server sends of the page, before any browser sees it."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from server.conftest import Server, loader, served
from starlette.requests import Request

from edgespec.server.page import FOLDER, Page

from .scripted import write_scripted

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]


def worker(folder: Path) -> str:
    """The script of the service worker."""
    request = Request({"type": "http", "path": "/page/sw.js", "headers": [], "method": "GET", "server": None})
    return bytes(asyncio.run(Page(folder).respond(request)).body).decode()


def test_the_page_and_its_files_forbid_everything_foreign(tiny: Server) -> None:
    for path in ("/", "/page/app.js", "/page/style.css", "/page/sw.js", "/page/icon.svg"):
        response = tiny.http.get(path)
        assert response.status_code == 200
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';") and "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
    assert "<script>" not in tiny.http.get("/").text and " onclick" not in tiny.http.get("/").text


def test_a_file_is_not_sent_again_until_it_changes(tiny: Server) -> None:
    tag = tiny.http.get("/page/app.js").headers["etag"]
    again = tiny.http.get("/page/app.js", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path", ["/page/", "/page/nothing.js", "/page/../page.py", "/page/vendor/vendor.toml"]
)
def test_other_files_are_not_served(tiny: Server, path: str) -> None:
    response = httpx.get(httpx.URL(tiny.url).copy_with(raw_path=path.encode()), trust_env=False)
    assert response.status_code == 404


def test_the_page_needs_no_key_and_the_api_does(tmp_path: Path) -> None:
    file = write_scripted(tmp_path / "scripted.gguf", "yes")
    with served(loader(file), api_key="sesame") as server:
        for path, status in {"/": 200, "/page/app.js": 200, "/v1/edgespec/stats": 401, "/page": 401}.items():
            assert httpx.get(server.url + path, trust_env=False).status_code == status


@pytest.mark.parametrize("name", ["style.css", "sw.js", "vendor/marked.esm.js", "icon-512.png"])
def test_the_service_worker_changes_with_any_file(folder: Path, name: str) -> None:
    before = worker(folder)
    assert before == worker(FOLDER)
    (folder / name).write_bytes((folder / name).read_bytes() + b"\n")
    assert worker(folder) != before


def test_libraries_of_others_are_as_they_were_published() -> None:
    vendor = FOLDER / "vendor"
    listed = tomllib.loads((vendor / "vendor.toml").read_text("utf-8"))["file"]
    assert {entry["name"] for entry in listed} == {f.name for f in vendor.iterdir() if "js" in f.suffix}
    for entry in listed:
        assert sha256((vendor / entry["name"]).read_bytes()).hexdigest() == entry["sha256"]
        assert (vendor / entry["licence_file"]).is_file()
