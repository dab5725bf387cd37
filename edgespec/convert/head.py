"""Which rows the output head of a trimmed draft keeps.

A draft reads its whole head for every token, and most of a large vocabulary is hardly ever drafted. What
is not in the head cannot be drafted: that costs acceptance, never quality. Kept are the markers, whatever
is needed to spell anything, and of the rest what is most frequent in a corpus, or, where it tells little
or there is none, the lowest ids: those of a BPE vocabulary are in the order of its merges, so the first
ones are the most frequent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.gguf_tokenizer import GGUFTokenizer
from edgespec.errors import UsageError
from edgespec.hub.progress import Progress

PIECE = 1 << 16
"""characters that are tokenized at once"""


@dataclass(frozen=True)
class Head:
    """Rows of an output head, and how they were chosen."""

    ids: NDArray[np.int32]
    """ascending"""
    corpus: tuple[str, ...] = ()
    """names of the files whose tokens were counted"""
    tokens: int = 0
    """in the corpus"""
    covered: int = 0
    """of these, those whose row is kept"""

    def about(self) -> dict[str, object]:
        """For the report."""
        return {
            "ids_sha256": hashlib.sha256(self.ids.astype("<i4").tobytes()).hexdigest(),
            "corpus": list(self.corpus),
            "corpus_tokens": self.tokens,
            "covered": self.covered / self.tokens if self.tokens else None,
        }


def choose_head(
    tokenizer: GGUFTokenizer, vocabulary: int, keep: int, corpus: Sequence[Path], progress: Progress
) -> Head:
    """The `keep` ids of a model with `vocabulary` rows whose rows stay.

    Raises UsageError for a `keep` that is too small for what is indispensable or leaves nothing to trim,
    and for a corpus that is no text or has none; OSError for files that cannot be read.
    """
    known = min(vocabulary, tokenizer.n_vocab)
    needed = [t for t in range(known) if tokenizer.is_marker(t) or len(tokenizer.piece(t)) == 1]
    if not len(needed) < keep < known:
        raise UsageError(
            f"{keep:,} rows cannot be kept: this model has {known:,} tokens, of which {len(needed):,} are "
            f"markers and single bytes, which all stay; choose a number between {len(needed) + 1:,} and "
            f"{known - 1:,}"
        )
    counts = np.zeros(known, np.int64)
    for file in corpus:
        progress.start(f"counting the tokens of {file.name}", file.stat().st_size)
        for text in _pieces(file):
            counts += np.bincount(tokenizer.encode(text, bos=False), minlength=known)[:known]
            progress.advance(len(text.encode()))
    if corpus and not counts.any():
        raise UsageError(f"there is no text in {', '.join(map(str, corpus))}; name other files")
    total = int(counts.sum())
    expected = counts / max(1, total) + _by_rank(known)
    expected[needed] = np.inf
    ids = np.sort(np.argsort(-expected, kind="stable")[:keep]).astype(np.int32)
    covered = int(counts[ids].sum())
    return Head(ids, tuple(file.name for file in corpus), total, covered)


def _by_rank(n: int) -> NDArray[np.float64]:
    """How frequent ids are without a corpus, by Zipf's law. It weighs as much as the corpus, so that what
    is rare in one that is small, or unlike what will be generated, does not replace low ids."""
    shares: NDArray[np.float64] = 1 / (np.arange(n) + 10.0)
    return shares / float(shares.sum())


def _pieces(file: Path) -> Iterator[str]:
    """The text of a file, cut between lines where there are any."""
    rest = ""
    with file.open(encoding="utf-8", newline="") as text:
        while True:
            try:
                read = text.read(PIECE)
            except UnicodeDecodeError as error:
                raise UsageError(f"{file} is not a text file in UTF-8; a corpus must be") from error
            if not read:
                yield rest
                return
            rest += read
            cut = rest.rfind("\n") + 1 or len(rest)
            yield rest[:cut]
            rest = rest[cut:]
