"""Wheels of what is installed here, so that tests can install it elsewhere without a network."""

from __future__ import annotations

import sysconfig
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import edgespec
from edgespec.hub.catalog import catalog_path
from edgespec.kernels import library

PACKAGE = Path(edgespec.__file__).parent
NOT_IN_A_WHEEL = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")


def build(folder: Path, *wanted: str) -> Path:
    """Wheels of the distributions that these requirements name, and of all that they need."""
    folder.mkdir()
    pending, done = [Requirement(name) for name in wanted], set()
    while pending:
        needed = pending.pop()
        found = distribution(needed.name)
        for extra in {"", *needed.extras} - {extra for name, extra in done if name == found.name}:
            done.add((found.name, extra))
            requirements = [Requirement(text) for text in found.requires or ()]
            pending += [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": extra})]
    for name in {name for name, _ in done}:
        pack(distribution(name), folder)
    return folder


def pack(installed: Distribution, folder: Path) -> None:
    """One wheel, not compressed."""
    records = [file for file in installed.files or () if file.suffix != ".pyc" and ".." not in file.parts]
    [info] = {file.parts[0] for file in records if file.parts[0].endswith(".dist-info")}
    files = {str(file): Path(str(installed.locate_file(file))) for file in records}
    tag = tag_of(installed)
    if canonicalize_name(installed.name) == "edgespec":  # is installed as a link to its source
        files = {name: path for name, path in files.items() if name.startswith(info)} | own_files()
        tag = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    with zipfile.ZipFile(folder / f"{info.removesuffix('.dist-info')}-{tag}.whl", "w") as wheel:
        names = []
        for name, path in files.items():
            if path.is_file() and path.name not in NOT_IN_A_WHEEL:
                wheel.write(path, name)
                names.append(name)
        wheel.writestr(f"{info}/RECORD", "".join(f'"{name}",,\n' for name in [*names, f"{info}/RECORD"]))


def tag_of(installed: Distribution) -> str:
    """What it is for, as in the name of a wheel."""
    text = installed.read_text("WHEEL") or ""
    tags = [line.removeprefix("Tag:").strip() for line in text.splitlines() if line.startswith("Tag:")]
    parts = zip(*(tag.split("-") for tag in tags), strict=True)
    return "-".join(".".join(dict.fromkeys(part)) for part in parts)


def own_files() -> dict[str, Path]:
    """edgespec's, as its build would take them."""
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    found = {f"edgespec/{path.relative_to(PACKAGE).as_posix()}": path for path in files}
    found["edgespec/hub/catalog.toml"] = catalog_path()
    if library.path().is_file():
        found[f"edgespec/kernels/{library.path().name}"] = library.path()
    return found
