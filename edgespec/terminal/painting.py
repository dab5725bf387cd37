"""Rounds in colour, or with marks where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgespec.terminal.round_view import RoundView

# kind → (style, mark without colour)
_LOOKS = {
    "accepted": ("green", "[+]"),
    "rejected": ("red strike", "[-]"),
    "corrected": ("yellow", "[>]"),
    "not judged": ("dim strike", "[ ]"),
    "bonus": ("cyan", "[*]"),
    "plain": ("", "[=]"),
}
_LEGEND = (
    ("accepted", "accepted"),
    ("rejected", "rejected"),
    ("corrected", "what replaces it"),
    ("not judged", "drafted behind a rejection"),
    ("bonus", "bonus"),
    ("plain", "without a draft"),
)
_BAR = 40


class Painter:
    """Writes to `console`, which knows whether there is colour."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._colour = console.color_system is not None and not console.no_color
        self._round = 0

    def header(self, greedy: bool) -> None:
        """One line: what the colours mean."""
        words = [self._token(kind, text) for kind, text in _LEGEND]
        odds = "" if greedy else "  (p/q): probability by target/drafter"
        self._print(Text("  ").join(words).append(f"  · space  ⏎ newline{odds}"))

    def round(self, seen: RoundView) -> None:
        """One line: what was drafted and what became of it."""
        self._round += 1
        words = []
        for d in seen.drafted:
            words.append(self._token(d.verdict, d.text, d.p, d.q))
            if d.verdict == "rejected" and seen.added:  # stands where the rejected token stood
                words.append(self._token("corrected", seen.added.text, seen.added.p))
        if seen.added and seen.added.origin != "corrected":
            words.append(self._token(seen.added.origin, seen.added.text, seen.added.p))
        line = Table.grid(padding=(0, 1))
        line.add_column(justify="right", style="dim", width=4, no_wrap=True)
        line.add_row(str(self._round), Text(" ").join(words))
        if self._console.is_terminal:
            self._console.print(line)
        else:
            self._print(Text(f"{self._round:>4} ") + Text(" ").join(words))

    def summary(self, rounds: Sequence[RoundView], answered: int) -> None:
        """How many drafts were accepted how often, and what it saved. answered: tokens of the answer, among
        which those that ended it do not count."""
        lengths = Counter(r.accepted for r in rounds if r.drafted)
        if lengths:
            most = max(lengths.values())
            self._print(Text("\naccepted tokens in a round: how often"))
            for length in range(max(len(r.drafted) for r in rounds) + 1):
                bar = ("█" if self._colour else "#") * round(_BAR * lengths[length] / most)
                self._print(Text(f"{length:>4} ").append(bar, "green").append(f" {lengths[length]}"))
        if rounds:
            tokens, passes = sum(r.tokens for r in rounds), len(rounds)
            ending = ", with what ended the answer," if tokens > answered else ""
            self.line(
                f"{tokens} tokens{ending} in {passes} passes of the target, {tokens / passes:.2f} a pass; "
                f"plain decoding needs {tokens} passes"
            )

    def line(self, text: str) -> None:
        """A plain line."""
        self._print(Text(text))

    def _token(self, kind: str, text: str, p: float | None = None, q: float | None = None) -> Text:
        style, mark = _LOOKS[kind]
        word = (
            Text("→" if kind == "corrected" else "").append(text, style)
            if self._colour
            else Text(mark + text)
        )
        odds = "" if p is None else _odds(p)
        odds = odds if q is None else f"{odds or '-'}/{_odds(q)}"
        return word.append(f"({odds})", "dim") if odds else word

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)


def _odds(probability: float) -> str:
    """Two decimals without the zero in front: .93, 1.0"""
    return "1.0" if probability >= 0.995 else f"{probability:.2f}".removeprefix("0")
