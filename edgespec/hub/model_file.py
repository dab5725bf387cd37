"""What a name resolves to: files on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Origin = Literal["store", "path", "ollama", "lmstudio"]


@dataclass(frozen=True)
class ModelFile:
    """A model on this machine, ready to be loaded."""

    name: str
    """how users name it"""
    path: Path
    """the file, or the first part of a split one"""
    size: int
    """bytes, of all parts"""
    origin: Origin
    """`store`: pulled and verified by edgespec"""
    title: str
    """for people"""
    licence: str | None = None
    sha256: str | None = None
    """where it was verified"""


@dataclass(frozen=True)
class Pair:
    """A target with its drafter."""

    name: str
    target: ModelFile
    draft: ModelFile | Literal["ngram"] | None
    """None: nothing known that drafts for this target"""
