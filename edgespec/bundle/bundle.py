"""Making a bundle: everything is gathered beside its place, and gets its name when it is complete."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.bundle.machine import Machine
from edgespec.bundle.models import Bundled, Models, choose, needs_llama
from edgespec.bundle.shelf import Shelf
from edgespec.bundle.texts import readme, start_script
from edgespec.bundle.wheel import Wheel, sizes
from edgespec.errors import HubError, ModelError, UsageError
from edgespec.hub import store
from edgespec.hub.progress import Progress
from edgespec.hub.sizes import human

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Order:
    """What to bundle."""

    pair: str
    output: Path
    """the folder to make; of an archive, the file"""
    machine: Machine
    backend: str
    """llama.cpp or onnx"""
    extras: tuple[str, ...]
    """of edgespec's, beyond those that the models take"""
    wheels: tuple[Path, ...] = ()
    """folders with wheels of the user's"""
    archive: bool = False


def make(order: Order, offline: bool, progress: Progress) -> Path:
    """Make the bundle; its folder or archive.

    Raises UsageError for what cannot be bundled, ModelError for models that are not here or not as needed,
    OfflineError and HubError where wheels cannot be had or the disk has no room. Nothing is left then.
    """
    output = order.output.absolute()
    _refuse_existing(output)
    if not output.parent.is_dir():
        raise UsageError(f"There is no folder {output.parent} to make {output.name} in.")
    for folder in order.wheels:
        if not folder.is_dir():
            raise UsageError(f"--wheels {folder}: there is no such folder")
    extras = ["onnx"] if order.backend == "onnx" else []
    if needs_llama(order.pair, order.backend):  # looks for the models, before anything is built or fetched
        extras.append("llama")
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as temporary:
        made = _make(order, [*extras, *order.extras], Path(temporary), offline, progress)
        _refuse_existing(output)  # it took a while
        made.rename(output)
    return output


def _make(order: Order, extras: Sequence[str], temporary: Path, offline: bool, progress: Progress) -> Path:
    built, folder = temporary / "built", temporary / order.output.name.removesuffix(".tar")
    built.mkdir()
    shelf = Shelf(order.machine, order.wheels, built, offline, progress)
    wheels = shelf.gather(extras)
    models = choose(order.pair, order.backend, kernels=_kernels(wheels))
    _announce(wheels, models, order, progress)
    (folder / "wheels").mkdir(parents=True)
    shelf.fetch(wheels, folder / "wheels")
    sums: dict[str, str] = {}
    for model in models.all:
        sums |= _copy(model, folder, progress)
    pip = next(wheel.file for wheel in wheels if wheel.name == "pip")
    _write(folder / "start", start_script(order.machine, order.backend, models, extras, pip))
    (folder / "start").chmod(0o755)
    _write(folder / "README.txt", readme(order.pair, order.machine, models))
    for file in [folder / "start", folder / "README.txt", *(folder / "wheels").iterdir()]:
        sums[file.relative_to(folder).as_posix()] = store.sha256_of(file)
    lines = [f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items())]
    _write(folder / "SHA256SUMS", "".join(lines))
    return _pack(folder, progress) if order.archive else folder


def _write(file: Path, text: str) -> None:
    """With the line ends that shells take: the bundle may be made on Windows, for another machine."""
    file.write_text(text, "utf-8", newline="\n")


def _refuse_existing(output: Path) -> None:
    if output.exists() or output.is_symlink():
        raise UsageError(f"{output} is there already, and is not overwritten; name another, or delete it")


def _kernels(wheels: Sequence[Wheel]) -> bool:
    """Whether edgespec's wheel has them: then it is for one kind of machine."""
    return not any(wheel.name == "edgespec" and wheel.file.endswith("-any.whl") for wheel in wheels)


def _announce(wheels: Sequence[Wheel], models: Models, order: Order, progress: Progress) -> None:
    """Say what will be fetched and what the bundle takes. Raises HubError if there is no room for it."""
    known = sizes(wheels)
    remote = {wheel.name: size for wheel, size in zip(wheels, known, strict=True) if not wheel.here}
    fetched = sum(size or 0 for size in remote.values())
    if remote:
        unknown = list(remote.values()).count(None)
        more = f", and {unknown} of a size that the index does not tell" if unknown else ""
        progress.message(
            f"Fetching {len(remote)} wheels ({human(fetched)}{more}): {', '.join(sorted(remote))}."
        )
    for model in models.all:
        progress.message(f"Model: {model.title}, {human(model.size)}, licence: {model.licence}.")
        if model.notice:
            progress.message(model.notice)
    whole = sum(size or 0 for size in known) + sum(model.size for model in models.all)
    # pip keeps a second copy of what it fetches for a moment; an archive is made of the folder.
    needed = whole + max(fetched, whole if order.archive else 0)
    place = order.output.absolute().parent
    free = shutil.disk_usage(place).free
    if needed > free:
        raise HubError(
            f"Not enough room for the bundle: {human(needed)} needed, {human(free)} free in {place}. Free "
            "some, or name an --output on a larger disk."
        )
    progress.message(f"The bundle takes {human(whole)}, and is for {order.machine}.")


def _copy(model: Bundled, folder: Path, progress: Progress) -> dict[str, str]:
    """Copy a model's files; the checksums of what was copied, by place. Raises ModelError if one is not
    what was verified."""
    progress.start(f"copying {model.title}", model.size)
    sums = {}
    for name, source in model.files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with source.open("rb") as reader, place.open("wb") as writer:
            while chunk := reader.read(_CHUNK):
                digest.update(chunk)
                writer.write(chunk)
                progress.advance(len(chunk))
        sums[name] = digest.hexdigest()
        if model.sha256 not in (None, sums[name]):
            raise ModelError(f"{source} is not the file it was when it was verified; pull it again")
    return sums


def _pack(folder: Path, progress: Progress) -> Path:
    """One file of the folder, not compressed: what is in it is already."""
    archive = folder.with_name(f"{folder.name}.tar")
    progress.message(f"Packing {archive.name}.")
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, folder.name)
    return archive
