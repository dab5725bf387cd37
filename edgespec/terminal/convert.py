"""`edgespec convert` in words."""

from __future__ import annotations

from pathlib import Path

from edgespec.backends.llama_library import llama
from edgespec.convert.convert import Conversion, add_quality, convert
from edgespec.convert.folder import Report
from edgespec.errors import UsageError
from edgespec.hub.onnx_folder import is_onnx
from edgespec.hub.progress import Progress
from edgespec.hub.resolve import resolve
from edgespec.terminal.notes import note


def convert_model(
    name: str, portable: bool | None, small: bool, check: str, force: bool, progress: Progress
) -> list[str]:
    """Convert the model a name stands for, check it, and say where it is. `check`: none, quick, full."""
    file = resolve(name)
    if is_onnx(file.path):
        raise UsageError(f"{file.title} is an ONNX model already")
    llama()  # it is the tokenizer, too: that it is not there is said before minutes of work
    done = convert(file.path, portable=portable, small=small, force=force, progress=progress)
    if not done.fresh:
        note(f"{file.title} was converted before; --force converts it again")
    if check != "none" and (
        done.report.quality is None or (check == "full" and not done.report.quality["full"])
    ):
        done = _check(done, file.path, check, progress)
    return [str(done.folder), *_summary(done)]


def _summary(done: Conversion) -> list[str]:
    quality = done.report.quality
    lines = [f"weights: {weights_in_words(done.report)}"]
    if quality is None:
        return lines
    for name in (name for name in quality if " vs " in name):
        q = quality[name]
        lines.append(f"{name}: same choice {q['top1']:.1%}, KL {q['kl']:.4f}, logits {q['logit']:.3f}")
    perplexity = ", ".join(f"{name} {value:.2f}" for name, value in quality["perplexity"].items())
    return [*lines, f"perplexity: {perplexity}"]


def weights_in_words(report: Report) -> str:
    """Whether they are the source's own."""
    if report.exact:
        return "those of the source, bit for bit"
    changed = sum(kind["weights"] for kind in report.weights if not kind["exact"])
    return f"{changed / sum(kind['weights'] for kind in report.weights):.0%} rounded anew, see report.json"


def _check(done: Conversion, source: Path, check: str, progress: Progress) -> Conversion:
    from edgespec.convert.quality import measure_quality, warning

    quality = measure_quality(source, done.folder, check == "full", progress)
    if (line := warning(quality, done.report.exact)) is not None:
        progress.message(line)
    return add_quality(done, quality)
