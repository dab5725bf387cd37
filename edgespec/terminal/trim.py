"""`edgespec trim` in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgespec.convert.folder import Report
from edgespec.convert.trim import trim
from edgespec.errors import UsageError
from edgespec.hub.model_file import ModelFile
from edgespec.hub.onnx_folder import is_onnx
from edgespec.hub.progress import Progress
from edgespec.hub.resolve import resolve_pair
from edgespec.hub.sizes import human
from edgespec.terminal.convert import weights_in_words
from edgespec.terminal.notes import note


def trim_model(
    name: str, keep: int, corpus: Sequence[str], small: bool, force: bool, progress: Progress
) -> list[str]:
    """Trim the model a name stands for (a pair: its draft), and say where the result is and what it has."""
    pair = resolve_pair(name)
    file = pair.draft if isinstance(pair.draft, ModelFile) else pair.target
    if is_onnx(file.path):
        raise UsageError(f"{file.title} is an ONNX model; name the GGUF file it was made from")
    files = [Path(path) for path in corpus]
    done = trim(file.path, keep=keep, corpus=files, small=small, force=force, progress=progress)
    if not done.fresh:
        note(f"{file.title} was trimmed so before; --force trims it again")
    return [str(done.folder), f"weights: {weights_in_words(done.report)}", *_head(done.report)]


def _head(report: Report) -> list[str]:
    head = report.trimmed
    assert head is not None
    kept = f"kept: {head['kept']:,} of {head['of']:,} tokens"
    if head["covered"] is not None:
        kept += f", which are {head['covered']:.2%} of the {head['corpus_tokens']:,} in the corpus"
    whole, now = head["whole_head_bytes"], head["head_bytes"]
    return [
        kept,
        f"head: {human(now)} instead of {human(whole)} to read per token ({human(whole - now)} saved)",
    ]
