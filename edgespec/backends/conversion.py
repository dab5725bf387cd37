"""Which conversion of a GGUF file runs here: the one for our kernels, or the portable one; as draft, one
that was trimmed."""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from edgespec.backends.onnx_session import accelerator
from edgespec.convert.folder import (
    VERSION,
    Report,
    folder_for,
    is_converted,
    is_trimmed,
    read_report,
    trimmed_folder_for,
)
from edgespec.convert.origin import is_made_from
from edgespec.errors import ModelError, UsageError
from edgespec.hub.model_file import ModelFile
from edgespec.hub.onnx_folder import size_of
from edgespec.kernels import library

log = logging.getLogger(__name__)


def has_conversion(file: ModelFile) -> bool:
    """Whether there is one that runs here. If ONNX Runtime or our kernels would be needed and are not here,
    says so."""
    ours, portable = folder_for(file.path), folder_for(file.path, portable=True)
    made = [folder for folder in (ours, portable) if is_converted(folder)]
    if made and (missing := [name for name in ("onnxruntime", "onnx") if find_spec(name) is None]):
        _warn_without(made[0].name, " and ".join(missing))
        return False
    if portable in made or (made and library.unavailable() is None):
        return True
    if made:
        library.warn_unavailable(f"{ours.name} is not used")
    return False


@cache
def _warn_without(folder: str, packages: str) -> None:
    log.warning("%s is not used: there is no %s here; pip install 'edgespec[onnx]'", folder, packages)


def conversion_of(file: ModelFile, provider: str | None = None) -> Path:
    """The folder to run: the one for our kernels where they work, else the portable one, aloud. So is the
    portable one where a provider is wanted that our kernels do not compute on.

    Raises ModelError if there is none, or if it was made from another file; UsageError as `accelerator`
    does, and if there is none for the provider. Names the command to run.
    """
    ours, portable = folder_for(file.path), folder_for(file.path, portable=True)
    folder, command = ours, f"edgespec convert {file.name}"
    named = accelerator(provider)
    if not is_converted(ours):
        folder = portable
    elif named is not None:
        if not is_converted(portable):
            raise UsageError(
                f"{file.title} was converted for edgespec's kernels, which compute on the CPU; leave "
                f"--provider out, or convert it for {named}: {command} --portable"
            )
        log.warning("using %s: edgespec's kernels compute on the CPU, not on %s", portable.name, named)
        folder = portable
    elif library.unavailable() is not None:
        if not is_converted(portable):
            raise ModelError(
                f"{file.title} was converted for edgespec's kernels, which do not work here "
                f"({library.unavailable()}); convert it for others: {command} --portable"
            )
        library.warn_unavailable(f"using {portable.name}")
        folder = portable
    report = read_report(folder) if is_converted(folder) else None
    if report is None:
        raise ModelError(f"{file.title} has not been converted to ONNX yet: {command}")
    if folder == portable:
        command += " --portable"
    if not _is_of(report, file):
        raise ModelError(f"{folder.name} was made from another file; convert again: {command}")
    return folder


def trimmed_draft_of(file: ModelFile, provider: str | None = None) -> ModelFile | None:
    """The trimmed draft that was made of a GGUF file, if there is one that runs here, and on the provider;
    says why one is not used."""
    folder = trimmed_folder_for(file.path)
    report = read_report(folder) if is_trimmed(folder) else None
    if report is None:
        return None
    if library.unavailable() is not None:
        library.warn_unavailable(f"{folder.name} is not used")
        return None
    if (named := accelerator(provider)) is not None:
        log.warning("%s is not used: edgespec's kernels compute on the CPU, not on %s", folder.name, named)
        return None
    if report.version != VERSION or not _is_of(report, file):
        log.warning(
            "%s was made from another file or by another version, and is not used; make it again: "
            "edgespec trim %s",
            folder.name,
            file.name,
        )
        return None
    return ModelFile(str(folder), folder, size_of(folder), "path", folder.name, file.licence)


def _is_of(report: Report, file: ModelFile) -> bool:
    """Whether a conversion is of what the file holds; not looked into where only sizes are wanted."""
    return not file.size or is_made_from(report, file.path, file.sha256)
