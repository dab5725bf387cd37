"""Whether a draft model may draft for a target: token ids must mean the same bytes in both."""

from __future__ import annotations

from edgespec.backends.base import Backend
from edgespec.errors import IncompatiblePair


def check_vocabularies(target: Backend, draft: Backend, advice: str) -> None:
    """Compare the bytes of every id both models have; sizes may differ by padding rows.

    Raises IncompatiblePair naming the first differing id, both strings, and `advice`.
    """
    ours, theirs = target.tokenizer.vocabulary(), draft.tokenizer.vocabulary()
    if ours[: len(theirs)] == theirs[: len(ours)]:
        return
    id = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    raise IncompatiblePair(
        f"{draft.name} cannot draft for {target.name}: token {id} is {_show(ours[id])} in the target and "
        f"{_show(theirs[id])} in the draft. {advice}"
    )


def _show(piece: bytes) -> str:
    return repr(piece.decode("utf-8")) if _is_text(piece) else repr(piece)


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
