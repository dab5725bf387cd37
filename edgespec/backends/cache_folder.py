"""KV caches in a folder: what was computed survives that its models leave memory, or the machine ends.

A cache is read by the model that wrote it alone: each has a folder of its own, named after what its bits
depend on, and its own checks when it restores one. A file's name is the digest of its content, so that a
damaged one is noticed. Whatever cannot be used is forgotten, with a line in the log, and computed anew.
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b, sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import time

from edgespec.backends.base import Backend, Copy, Sequence
from edgespec.backends.fingerprint import fingerprint
from edgespec.errors import BackendError, EdgespecError, UsageError

log = logging.getLogger(__name__)

SUFFIX = ".cache"
_OWN = re.compile(r"[0-9a-f]{24}/([0-9a-f]{32}\.cache|[0-9]+\.new(\.partial)?)")
"""names of our files"""
STALE = 600
"""seconds: a file that is being saved, and did not grow for so long, is that of a process that was killed"""
_LIBRARIES = ("edgespec", "llama-cpp-python", "onnxruntime")


@dataclass(frozen=True, eq=False)
class Saved:
    """A cache in a file."""

    tokens: list[int]
    file: Path


class Folder:
    """All that is saved, of several models, within a budget of bytes: what was not used for longest goes
    first."""

    def __init__(self, path: Path, budget: int, settings: str) -> None:
        """settings: what a cache depends on besides its model. Made if missing, for this user alone. Raises
        UsageError for a folder that cannot be had, or that others can read: caches tell conversations."""
        self.path = path
        self.budget = budget
        self._settings = settings
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = path.stat().st_mode
        except OSError as error:
            raise UsageError(f"caches cannot be kept in {path}: {error.strerror}") from error
        if os.name == "posix" and mode & 0o077:
            raise UsageError(
                f"caches tell what conversations were about, and others can read {path}; name another "
                f"folder, or close this one: chmod 700 {path}"
            )
        self.shrink()

    def shelf(self, backend: Backend) -> Shelf:
        """What a model saved under these settings."""
        libraries = map(_version, _LIBRARIES)
        parts = [type(backend).__name__, fingerprint(backend.path), self._settings, *libraries]
        return Shelf(self, backend, self.path / sha256(repr(parts).encode()).hexdigest()[:24])

    def shrink(self) -> None:
        """Keep to the budget, without what a process that was killed had begun to save."""
        files = []
        for file in self._files():
            with suppress(OSError):  # another process may have removed it
                status = file.stat()
                if file.suffix != SUFFIX and time() - status.st_mtime > STALE:
                    file.unlink()
                else:
                    files.append((status.st_mtime, status.st_size, file))
        total = sum(size for _, size, _ in files)
        for _, size, file in sorted(files):
            if total <= self.budget:
                return
            try:
                file.unlink(missing_ok=True)
                total -= size
            except OSError as error:
                log.warning("%s cannot be removed: %s", file, error)

    def _files(self) -> list[Path]:
        """What was saved, or was being saved when a process was killed; not what else a user keeps there."""
        return [file for file in _found(self.path, "*/*") if _is_ours(file)]


class Shelf:
    """The caches of one model."""

    def __init__(self, folder: Folder, backend: Backend, path: Path) -> None:
        self._folder = folder
        self._backend = backend
        self._path = path
        found = map(_read_header, _found(path, f"*{SUFFIX}"))
        self.saved = [one for one in found if one is not None and len(one.tokens) <= backend.n_ctx]

    def there(self) -> list[Saved]:
        """What is saved: others that share the budget may have removed some since it was read."""
        self.saved = [one for one in self.saved if _is_there(one.file)]
        return self.saved

    def restore(self, saved: Saved, sequence: Sequence) -> None:
        """Fill a sequence with it; it stays empty where that fails."""
        try:
            if _digest(saved.file) != saved.file.stem:
                raise ValueError("it is damaged")
            self._backend.restore(sequence, saved.file)
            with suppress(OSError):  # it may be one that can only be read
                os.utime(saved.file)
            log.info("%d tokens of %s were read from %s", len(sequence), self._backend.name, saved.file)
        except (EdgespecError, OSError, ValueError, MemoryError) as error:
            log.warning("%s is of no use: %s", saved.file, error)
            self._backend.rollback(sequence, 0)
            self._forget(saved)

    def save(self, sequence: Sequence, copy: Copy | None, used: float) -> None:
        """Keep a sequence's cache, or a copy, which goes there for it, unless it alone is beyond the budget.
        What it begins with needs no file any more. used: when it was, in seconds: what was not used for
        longest goes first."""
        partial = self._path / f"{os.getpid()}{id(self)}.new"  # several runtimes may close at the same time
        try:
            if copy is not None:
                self._backend.paste(sequence, copy, len(copy.tokens))
            self._path.mkdir(mode=0o700, exist_ok=True)
            self._backend.save(sequence, partial)
            if (size := partial.stat().st_size) > self._folder.budget:  # all others would go for it, too
                raise BackendError(f"it has {size} bytes; all may have {self._folder.budget} together")
            os.utime(partial, (used, used))
            file = self._path / (_digest(partial) + SUFFIX)
            partial.replace(file)
        except (EdgespecError, OSError, MemoryError) as error:
            log.warning("a cache of %s was not saved: %s", self._backend.name, error)
            for left in _found(self._path, f"{partial.name}*"):
                with suppress(OSError):
                    left.unlink()
            return
        for old in [one for one in self.saved if one.tokens == sequence.tokens[: len(one.tokens)]]:
            self._forget(old)
        self.saved.append(Saved(list(sequence.tokens), file))
        log.info("%d tokens of %s were saved in %s", len(sequence), self._backend.name, file)
        self._folder.shrink()

    def _forget(self, saved: Saved) -> None:
        self.saved.remove(saved)
        try:
            saved.file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", saved.file, error)


def _found(folder: Path, pattern: str) -> list[Path]:
    """In a folder that cannot be reached any more, as on a drive of another machine, there is nothing."""
    try:
        return sorted(folder.glob(pattern))
    except OSError as error:
        log.warning("%s cannot be read: %s", folder, error)
        return []


def _is_there(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:
        return False


def _read_header(file: Path) -> Saved | None:
    """Both backends' files begin with a line of JSON that has the tokens."""
    try:
        with file.open("rb") as opened:
            tokens = json.loads(opened.readline(1 << 24))["tokens"]
        if not (isinstance(tokens, list) and all(isinstance(token, int) for token in tokens)):
            raise ValueError("its tokens are none")
        return Saved(tokens, file)
    except OSError as error:
        log.warning("%s cannot be read: %s", file, error.strerror)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        log.warning("%s is no saved cache: %s", file, error)
        if _is_ours(file):  # such as an empty one that a power cut left
            with suppress(OSError):
                file.unlink()
    return None


def _is_ours(file: Path) -> bool:
    return _OWN.fullmatch(f"{file.parent.name}/{file.name}") is not None


def _digest(file: Path) -> str:
    digest = blake2b(digest_size=16)
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""
