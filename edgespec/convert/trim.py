"""A draft with a smaller output head, made of a GGUF model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgespec.backends.vocabulary_model import VocabularyModel
from edgespec.convert.convert import Conversion, convert
from edgespec.convert.head import choose_head
from edgespec.convert.source import Source
from edgespec.errors import ModelError
from edgespec.hub.progress import LogProgress, Progress
from edgespec.kernels import library

KEEP = 32_000


def trim(
    path: Path,
    *,
    keep: int = KEEP,
    corpus: Sequence[Path] = (),
    small: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Conversion:
    """Convert a GGUF model for our kernels, with an output head of `keep` rows: a drafter, never a target.

    corpus: text files; the rows of their most frequent tokens are kept. See `choose_head`.
    small, force: as of `convert`.

    Raises as `convert` and `choose_head` do, and ModelError where our kernels do not work.
    """
    if (why := library.unavailable()) is not None:
        raise ModelError(
            f"trimmed drafts are for edgespec's kernels, which do not work here ({why}); "
            "draft with the whole model"
        )
    progress = progress or LogProgress()
    source = Source(path)
    vocabulary = VocabularyModel(source.path)
    try:
        head = choose_head(vocabulary.tokenizer, source.decoder.vocabulary, keep, corpus, progress)
    finally:
        vocabulary.close()
    return convert(path, portable=False, small=small, head=head, force=force, progress=progress)
