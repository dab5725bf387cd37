"""Tokens → text as it streams: bytes of a character may be spread over several tokens."""

from __future__ import annotations

import codecs


class IncrementalText:
    """Decodes UTF-8 piece by piece; bytes that may still become a character are held back."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, piece: bytes) -> str:
        """The characters that `piece` completes."""
        return self._decoder.decode(piece)

    @property
    def incomplete(self) -> bool:
        """Whether bytes of an unfinished character are held."""
        return bool(self._decoder.getstate()[0])

    def flush(self) -> str:
        """What the held bytes come to at the end: U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)
