"""GGUF files that Ollama keeps: manifests name them, blobs hold them."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from edgespec.errors import ModelError, UsageError
from edgespec.hub.model_file import ModelFile
from edgespec.hub.names import path_named
from edgespec.visible import shorten

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MODEL = "application/vnd.ollama.image.model"
_ADAPTER = "application/vnd.ollama.image.adapter"


def find(name: str) -> ModelFile:
    """The model that Ollama calls `name[:tag]`; the tag is `latest` unless given.

    Raises ModelError when Ollama does not have it, or not as one GGUF file.
    """
    if not name:
        raise UsageError("ollama: needs the name of a model behind it, such as ollama:llama3.2.")
    wanted = name if ":" in name.rsplit("/", 1)[-1] else f"{name}:latest"
    known = dict(_manifests())
    if wanted not in known:
        have = f"It has: {', '.join(sorted(known))}." if known else "No models of Ollama were found."
        raise ModelError(f"Ollama has no model {shorten(wanted)} on this machine. {have}")
    return _model(wanted, known[wanted])


def list_models() -> list[ModelFile]:
    """The GGUF models that Ollama has; those it keeps in other forms are left out."""
    models = []
    for name, manifest in sorted(dict(_manifests()).items()):
        with contextlib.suppress(ModelError):
            models.append(_model(name, manifest))
    return models


def _roots() -> Iterator[Path]:
    if folder := os.environ.get("OLLAMA_MODELS"):
        yield path_named(folder)
    yield path_named("~/.ollama/models")
    yield Path("/usr/share/ollama/.ollama/models")  # of the system service


def _manifests() -> Iterator[tuple[str, Path]]:
    """Names and manifests, the same name from an earlier folder last, so that it wins in a dict."""
    for root in reversed(list(_roots())):
        folder = root / "manifests"
        try:
            paths = [path for path in folder.rglob("*") if path.is_file()]
        except OSError:  # another user's folder
            continue
        for path in paths:
            parts = path.relative_to(folder).parts
            if len(parts) == 4 and not parts[-1].startswith("."):
                yield _name(*parts), path


def _name(host: str, owner: str, name: str, tag: str) -> str:
    if owner == "library":
        return f"{name}:{tag}"
    # Ollama's own users are named without a host, models from elsewhere with it.
    return f"{owner}/{name}:{tag}" if "ollama" in host else f"{host}/{owner}/{name}:{tag}"


def _model(name: str, manifest: Path) -> ModelFile:
    try:
        layers = json.loads(manifest.read_text("utf-8"))["layers"]
        digests = {layer["mediaType"]: layer["digest"] for layer in layers}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"Ollama's manifest {manifest} cannot be read: {error!r}.") from error
    digest = digests.get(_MODEL)
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ModelError(f"Ollama keeps {name} in a form other than GGUF.")
    blob = _blob(manifest, digest)
    if _ADAPTER in digests:
        raise ModelError(
            f"Ollama's {name} is a model with a LoRA adapter, and would be loaded without it. Name the base "
            f"model by its path if you mean that: {blob}"
        )
    try:
        size = blob.stat().st_size
        with blob.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"Ollama's file for {name}, {blob}, cannot be read: {error.strerror}.") from error
    if magic != b"GGUF":
        raise ModelError(f"Ollama keeps {name} in a form other than GGUF.")
    return ModelFile(f"ollama:{name}", blob, size, "ollama", name)


def _blob(manifest: Path, digest: str) -> Path:
    root = next(parent for parent in manifest.parents if parent.name == "manifests").parent
    return root / "blobs" / digest.replace(":", "-")
