"""The 25 tokens the closed-form models speak.

Small, yet awkward where real vocabularies are: pieces of several characters, a piece that starts
with a space, text that can be tokenized in two ways ("s"+"t" or "st"), single bytes that only
together make a character, two tokens that end a generation, and control tokens with no text.

The letters are those of "user", "assistant" and "system", so that a chat template can be encoded.
The lone bytes build é (C3 A9), ì (C3 AC), € (E2 82 AC), ₩ (E2 82 A9), 𩂬 (F0 A9 82 AC) and others,
and also sequences that are not valid UTF-8 at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

LETTERS = tuple(bytes([letter]) for letter in b"aeimnrstuy")
SPACES = (b" ", b"\n")
MERGES = ((b"s", b"t"), (b"e", b"r"), (b" ", b"a"))
LONE_BYTES = tuple(bytes([byte]) for byte in (0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0))
BOS, EOS, TURN, TURN_END = "<|bos|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"


@dataclass(frozen=True)
class Vocabulary:
    """Ids 0 … len(pieces)-1 are text, then come the control tokens, then unused padding rows."""

    pieces: tuple[bytes, ...] = (*LETTERS, *SPACES, *(a + b for a, b in MERGES), *LONE_BYTES)
    controls: tuple[str, ...] = (BOS, EOS, TURN, TURN_END)
    padding: int = 0
    merges: tuple[tuple[bytes, bytes], ...] = MERGES

    def __len__(self) -> int:
        return len(self.pieces) + len(self.controls) + self.padding

    @property
    def bos(self) -> int:
        return self.marker(BOS)

    @property
    def eos(self) -> int:
        return self.marker(EOS)

    @property
    def ends(self) -> frozenset[int]:
        """Ids that end a generation: the end of text and the end of a turn."""
        return frozenset({self.marker(EOS), self.marker(TURN_END)})

    @property
    def never(self) -> tuple[int, ...]:
        """Ids a model does not generate: BOS, the start of a turn, padding rows."""
        first_padding = len(self.pieces) + len(self.controls)
        return (self.marker(BOS), self.marker(TURN), *range(first_padding, len(self)))

    def marker(self, text: str) -> int:
        """Id of the control token with this text."""
        return len(self.pieces) + self.controls.index(text)

    def id(self, piece: bytes) -> int:
        """Id of the token with these bytes."""
        return self.pieces.index(piece)

    def ids(self, *pieces: bytes) -> list[int]:
        """Ids of the tokens with these bytes, after BOS: a prompt."""
        return [self.bos, *map(self.id, pieces)]

    def piece(self, token: int) -> bytes:
        """The bytes a token adds to a text; none for control tokens and padding."""
        return self.pieces[token] if token < len(self.pieces) else b""

    def text(self, tokens: Iterable[int]) -> bytes:
        """The bytes of a sequence of tokens."""
        return b"".join(map(self.piece, tokens))

    def renamed(self, token: int, piece: bytes) -> Vocabulary:
        """The same ids, but one text token stands for other bytes: an incompatible tokenizer."""
        pieces = (*self.pieces[:token], piece, *self.pieces[token + 1 :])
        kept = tuple(pair for pair in self.merges if {*pair, b"".join(pair)} <= set(pieces))
        return replace(self, pieces=pieces, merges=kept)

    def padded(self, rows: int) -> Vocabulary:
        """The same tokens and `rows` unused ones after them: still a compatible tokenizer."""
        return replace(self, padding=self.padding + rows)
