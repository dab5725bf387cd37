"""What a name that a user gives may mean, and what to say when it means nothing."""

from __future__ import annotations

import difflib
import errno
from pathlib import Path
from typing import Literal

from edgespec.errors import UsageError
from edgespec.hub.catalog import CatalogPair, RemoteFile, hub_file, load_catalog
from edgespec.hub.gguf_header import split_names
from edgespec.visible import shorten

_COMPARED = 100  # characters; finding close matches takes time with the square of the length

Kind = Literal["pair", "file", "hf", "ollama", "lmstudio", "path", "unknown"]


def kind_of(name: str) -> Kind:
    """What sort of name this is; decided by its form and the catalog, not by what exists."""
    catalog = load_catalog()
    if name in catalog.pairs:
        return "pair"
    if name in catalog.files:
        return "file"
    if name.startswith("hf:"):
        return "hf"
    if name.startswith("ollama:"):
        return "ollama"
    if name.startswith("lmstudio:"):
        return "lmstudio"
    if "/" in name or "\\" in name or name.lower().endswith(".gguf"):
        return "path"
    return "unknown"


def pair_named(name: str) -> CatalogPair:
    """The catalog's pair of that name. Raises UsageError with close matches."""
    catalog = load_catalog()
    if name not in catalog.pairs:
        raise unknown(name)
    return catalog.pairs[name]


def remote_files(name: str) -> tuple[RemoteFile, ...]:
    """The files a pair, a file of the catalog or an hf: name stands for (all parts of a split one).

    Raises UsageError for a name of another sort.
    """
    catalog = load_catalog()
    kind = kind_of(name)
    if kind == "pair":
        return catalog.pairs[name].files
    if kind == "file":
        return (catalog.files[name],)
    if kind == "hf":
        folder, slash, last = name.rpartition("/")
        return tuple(hub_file(f"{folder}{slash}{part}") for part in split_names(last))
    if kind == "unknown":
        raise unknown(name)
    if kind == "path" and not exists(path_named(name)):
        raise UsageError(
            f"{shorten(name)} is neither a file here nor a name that can be pulled; a file on the Hub is "
            "named hf:owner/repo/file.gguf."
        )
    if kind == "path":
        raise UsageError(f"{shorten(name)} is a path on this machine, not a name; there is nothing to pull.")
    raise UsageError(f"{shorten(name)} would be a model of another program; pull it with that program.")


def path_named(name: str) -> Path:
    """The path a user means by a name; ~ is a home folder, if it is anybody's."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def exists(path: Path) -> bool:
    """Whether there is such a file or folder; there is none of a name too long for one."""
    try:
        return path.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def unknown(name: str) -> UsageError:
    """The error for a name nobody knows."""
    catalog = load_catalog()
    if not name.strip():
        return UsageError("The name of the model is empty. edgespec models lists the names there are.")
    close = difflib.get_close_matches(name.lower()[:_COMPARED], catalog.names(), n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(close)}?" if close else "edgespec models lists the names there are."
    return UsageError(
        f"No model is named {shorten(name)!r}. {hint} A file is named by its path, or as "
        "hf:owner/repo/file.gguf, ollama:name or lmstudio:publisher/repo."
    )
