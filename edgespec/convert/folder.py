"""The folder a conversion leaves beside its source, and the report in it that says what it is."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgespec.hub.gguf_header import split_names

VERSION = 3
"""of the converter; models converted by another are converted again"""
SUFFIX, PORTABLE_SUFFIX, TRIMMED_SUFFIX = ".onnx-edgespec", ".onnx-portable", ".onnx-trimmed"
MODEL, TREE, DATA, VOCABULARY, REPORT = (
    "model.onnx",
    "tree.onnx",
    "model.onnx.data",
    "vocab.gguf",
    "report.json",
)
PARTIAL = ".partial"
"""behind the name of a folder that is still being written, or was when a process was killed"""
UNFINISHED = (PARTIAL, f".old{PARTIAL}")
"""behind the names of the new folder and of the one that is put aside for it"""
HEAD = "head.npy"
"""of a trimmed draft: the ids whose rows its output head has, int32, ascending"""


@dataclass(frozen=True)
class Report:
    """What was converted from what, and how good it is."""

    version: int
    """of the converter"""
    name: str
    """for people"""
    source: str
    """file name of the GGUF"""
    source_sha256: str
    source_bytes: int
    source_mtime_ns: int
    """so that an unchanged source need not be hashed again"""
    small: bool
    hidden: list[int] | None
    licence: str | None
    weights: list[dict[str, Any]]
    """per ggml type: what it became, how many weights, whether exactly"""
    portable: bool = True
    """made for standard operators; False: for our kernels"""
    trimmed: dict[str, Any] | None = None
    """of a trimmed draft: what its head has, and what that is worth; see convert/head.py"""
    quality: dict[str, Any] | None = None
    sha256: dict[str, str] = field(default_factory=dict)
    """of every other file of the folder; none from earlier converters"""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether all weights are the source's own, bit for bit."""
        return all(kind["exact"] for kind in self.weights)

    def save(self, folder: Path) -> None:
        """Write it into the folder, whole or not at all."""
        partial = folder / f"{REPORT}.partial"
        partial.write_text(json.dumps(asdict(self), indent=2) + "\n", "utf-8")
        partial.replace(folder / REPORT)


def folder_for(source: Path, portable: bool = False) -> Path:
    """Where the conversion of a GGUF file for our kernels lies, or the one for standard operators (any
    part of a split file may be named)."""
    return _beside(source, PORTABLE_SUFFIX if portable else SUFFIX)


def trimmed_folder_for(source: Path) -> Path:
    """Where the trimmed draft made of a GGUF file lies."""
    return _beside(source, TRIMMED_SUFFIX)


def folders_of(source: Path) -> list[Path]:
    """What was made of a GGUF file and lies beside it."""
    return [folder for folder in _folders_for(source) if folder.is_dir()]


def unfinished_of(source: Path) -> list[Path]:
    """What is being made of it, or was when a process was killed; the next attempt deletes that."""
    places = (folder.with_name(folder.name + end) for folder in _folders_for(source) for end in UNFINISHED)
    return [place for place in places if place.is_dir()]


def _folders_for(source: Path) -> tuple[Path, ...]:
    return folder_for(source), folder_for(source, portable=True), trimmed_folder_for(source)


def _beside(source: Path, suffix: str) -> Path:
    first = source.with_name(split_names(source.name)[0])
    return first.with_name(first.stem + suffix)


def read_report(folder: Path) -> Report | None:
    """The report of a finished conversion; None if there is none that this version understands."""
    try:
        return Report(**json.loads((folder / REPORT).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def is_converted(folder: Path) -> bool:
    """Whether a folder is a conversion of ours."""
    return folder.is_dir() and (folder / REPORT).is_file() and (folder / MODEL).is_file()


def is_trimmed(folder: Path) -> bool:
    """Whether a folder is a trimmed draft."""
    report = read_report(folder) if is_converted(folder) else None
    return report is not None and report.trimmed is not None


def remedy(folder: Path, usual: str = "convert it again") -> str:
    """What to do about a damaged model: `usual`, and for a trimmed draft the command that makes it."""
    report = read_report(folder)
    if not folder.name.endswith(TRIMMED_SUFFIX) and (report is None or report.trimmed is None):
        return usual
    source = folder.with_name(report.source if report else folder.name.removesuffix(TRIMMED_SUFFIX) + ".gguf")
    return f"make it again: edgespec trim {source}"
