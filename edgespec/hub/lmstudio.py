"""GGUF files that LM Studio keeps, as publisher/repo/file.gguf."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgespec.errors import ModelError, UsageError
from edgespec.hub.gguf_header import split_parts
from edgespec.hub.model_file import ModelFile
from edgespec.hub.names import path_named
from edgespec.visible import shorten


def find(name: str) -> ModelFile:
    """The model `publisher/repo` or `publisher/repo/file.gguf`.

    Raises ModelError when LM Studio does not have it, or several files fit.
    """
    if not name:
        raise UsageError("lmstudio: needs a model behind it, such as lmstudio:publisher/repo.")
    models = list_models()
    name = name.removesuffix(".gguf")
    fit = [
        model
        for model in models
        if (own := model.name.removeprefix("lmstudio:").removesuffix(".gguf")) == name
        or own.startswith(f"{name}/")
    ]
    if len(fit) == 1:
        return fit[0]
    if fit:
        raise ModelError(f"LM Studio has several models there; say which: {', '.join(m.name for m in fit)}.")
    have = f"It has: {', '.join(m.name for m in models)}." if models else "No models of LM Studio were found."
    raise ModelError(f"LM Studio has no model {shorten(name)} on this machine. {have}")


def list_models() -> list[ModelFile]:
    """The GGUF models that LM Studio has. Of a split one the first part stands for all."""
    found: dict[str, ModelFile] = {}
    for root in _roots():
        for path in _files(root):
            parts = split_parts(path)
            if path != parts[0] or path.name.lower().startswith("mmproj"):
                continue  # a further part, or the vision half of a model
            name = f"lmstudio:{path.relative_to(root).as_posix()}"
            size = sum(part.stat().st_size for part in parts if part.is_file())
            found.setdefault(name, ModelFile(name, path, size, "lmstudio", path.stem))
    return [found[name] for name in sorted(found)]


def _roots() -> tuple[Path, Path]:
    return path_named("~/.lmstudio/models"), path_named("~/.cache/lm-studio/models")


def _files(root: Path) -> Iterator[Path]:
    try:
        for path in root.glob("*/*/*.gguf"):  # a Mac puts ._x.gguf beside x.gguf on exFAT
            if path.is_file() and not path.name.startswith("."):
                yield path
    except OSError:
        return
