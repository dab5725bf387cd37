"""The folder of pulled models. A file that bears its final name is complete and verified.

Beside each file lies a small record of its checksum, size and modification time, so that it need
not be hashed again while those stay the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import filelock
import platformdirs

from edgespec.errors import EdgespecError, HubError, ModelError, UsageError
from edgespec.hub.catalog import RemoteFile
from edgespec.hub.names import path_named
from edgespec.hub.progress import Progress
from edgespec.hub.sizes import human

_CHUNK = 1 << 20
# After the name of the file that is being pulled; see hub_source and packages_source.
_STAGING = re.compile(r"\.([0-9a-f]{16}|cached|packages)\.part(\.json(\.new)?|\.wheels)?")

_log = logging.getLogger("edgespec.hub")


@dataclass(frozen=True)
class Record:
    """What was verified about a file."""

    sha256: str
    checksum_from: str
    """`catalog` or `hub`: who vouches for the checksum"""
    size: int
    mtime_ns: int


def home() -> Path:
    """The models folder: `$EDGESPEC_HOME/models`, or the user's data folder. It need not exist. Raises
    UsageError where nobody has a home and none is given."""
    base = os.environ.get("EDGESPEC_HOME")
    try:
        folder = path_named(base) if base else platformdirs.user_data_path("edgespec")
    except RuntimeError:  # of a newer platformdirs; an older one leaves ~ as it is
        folder = Path("~")
    if str(folder).startswith("~"):
        raise UsageError(f"there is no home {folder} to keep models in; set EDGESPEC_HOME to a folder")
    return folder.absolute() / "models"


def path_of(file: RemoteFile) -> Path:
    """Where a pulled file lies, whether it is there or not."""
    return home() / file.hub.repo / file.hub.file


def installed(file: RemoteFile) -> Record | None:
    """The record of a file that is on disk unchanged since it was verified, else None. Cheap."""
    path = path_of(file)
    record = _read_record(path)
    if record is None or file.sha256 not in (None, record.sha256) or not _unchanged(path, record):
        return None
    return record


def present(file: RemoteFile) -> bool:
    """Whether a file is on disk that is verified, or of the right size and for `check` to verify. Cheap."""
    path = path_of(file)
    if installed(file):
        return True
    return path.is_file() and (file.sha256 is None or path.stat().st_size == file.size)


def check(file: RemoteFile) -> Record | None:
    """As `installed`, but a file whose record is missing or out of date is hashed.

    Raises ModelError when what bears the file's name is something else.
    """
    record = installed(file)
    path = path_of(file)
    if record is not None or not path.is_file():
        return record
    old = _read_record(path)
    expected = file.sha256 or (old.sha256 if old else None)
    found = sha256_of(path)
    if found != expected:
        raise ModelError(
            f"{path} is not the file it was when it was verified (sha256 {found[:12]}…, expected "
            f"{(expected or 'unknown')[:12]}…). Fetch it again: edgespec pull {file.key}"
        )
    record = _record(path, file, found)
    try:
        _write_record(path, record)
    except OSError as error:  # a folder that is only to be read: next time it is hashed again
        _log.debug("the record of %s cannot be written: %s", path, error)
    return record


def accept(staged: Path, file: RemoteFile, expected: str, progress: Progress) -> Record:
    """Give a completely fetched file its final name if its checksum is the expected one.

    Otherwise the staged file is deleted and HubError raised.
    """
    size = staged.stat().st_size
    progress.start(f"verifying {file.name}", size)
    found = sha256_of(staged, progress)
    if found != expected:
        staged.unlink()
        raise HubError(
            f"{file.name}: what was fetched is not the file it should be (sha256 {found[:12]}…, expected "
            f"{expected[:12]}…, {size:,} bytes). It has been deleted; pull again, and if this stays so "
            "the source has changed: please report it."
        )
    final = path_of(file)
    final.parent.mkdir(parents=True, exist_ok=True)
    # A file that bears its name is complete after a power cut too, so the data goes to the disk first.
    sync(staged)
    # The record first: a crash in between leaves a record without a file, never an unverified file.
    record = _record(staged, file, found)
    _write_record(final, record)
    staged.replace(final)
    with contextlib.suppress(OSError):  # some file systems have no such thing
        sync(final.parent)
    for left in staging(final):  # of attempts with another source or version
        _delete(left)
    return record


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            if progress:
                progress.advance(len(chunk))
    return digest.hexdigest()


@contextlib.contextmanager
def locked(file: RemoteFile, progress: Progress | None) -> Iterator[None]:
    """Hold the lock of a file, across processes. Without `progress`, HubError if another holds it."""
    name = "--".join([*file.hub.repo.split("/"), *file.hub.file.split("/")])
    folder = home() / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / f"{name}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        if progress is None:
            raise HubError(f"{file.name} is being pulled by another process; wait for it.") from None
        progress.message(f"Another process is pulling {file.name}; waiting for it.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def locked_path(use: str, path: Path, taken: EdgespecError) -> Iterator[None]:
    """Hold the lock of what is written there, across processes, whatever links lead there; raise `taken` if
    another process holds it. The system lets it go when its process ends, however that is."""
    folder = home() / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    lock = filelock.FileLock(folder / f"{use}-{key}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise taken from None
    try:
        yield
    finally:
        lock.release()


def require_room(needed: int, what: str) -> None:
    """Raise HubError if the disk of the models folder has less than `needed` bytes free."""
    folder = home()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise HubError(
            f"Not enough room for {what}: {human(needed)} needed, {human(free)} free in {folder}. Free "
            "some, or set EDGESPEC_HOME to a folder on a larger disk."
        )


def remove(path: Path) -> int:
    """Delete a file of the store, its record and what an interrupted pull left of it; bytes freed.

    Raises HubError for a path outside the store.
    """
    root = home().resolve()
    if root not in path.resolve().parents:
        raise HubError(f"{path} is not in edgespec's own store ({root}); delete it yourself if you mean it.")
    freed = 0
    for file in [path, record_path(path), *staging(path)]:
        freed += _delete(file)
    folder = path.parent
    while folder.resolve() != root and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
    return freed


def record_path(path: Path) -> Path:
    """Where the record of a file lies."""
    return path.with_name(path.name + ".verified.json")


def staging(path: Path) -> list[Path]:
    """What interrupted pulls of a file left."""
    if not path.parent.is_dir():
        return []
    return [
        file
        for file in path.parent.iterdir()
        if file.name.startswith(path.name) and _STAGING.fullmatch(file.name, len(path.name))
    ]


def _delete(path: Path) -> int:
    if path.is_dir():
        freed = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        shutil.rmtree(path)
        return freed
    if not path.exists():
        return 0
    stat = path.stat()
    path.unlink()
    return stat.st_size if stat.st_nlink == 1 else 0  # its other name, in the Hub's cache, keeps it


def _unchanged(path: Path, record: Record) -> bool:
    try:
        stat = path.stat()
    except OSError:
        return False
    return stat.st_size == record.size and stat.st_mtime_ns == record.mtime_ns


def _read_record(path: Path) -> Record | None:
    try:
        return Record(**json.loads(record_path(path).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # missing or damaged: the file is hashed again


def _record(path: Path, file: RemoteFile, sha256: str) -> Record:
    """Of a file that is `file`, wherever it lies."""
    stat = path.stat()
    return Record(sha256, "catalog" if file.sha256 else "hub", stat.st_size, stat.st_mtime_ns)


def _write_record(path: Path, record: Record) -> None:
    target = record_path(path)
    temporary = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(asdict(record)), "utf-8")
        temporary.replace(target)
    except BaseException:  # a full disk, most likely
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Have a file's data, or a folder's names, reach the disk."""
    try:
        descriptor = os.open(path, os.O_RDWR)  # Windows does it only for those who may write
    except OSError:  # a folder, or what may only be read
        descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
