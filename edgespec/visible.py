"""Text of others (files, models) in messages and on the user's terminal."""

from __future__ import annotations

from edgespec.errors import UsageError

_SHOWN = {c: f"\\u{c:04x}" for c in (*range(0x20), *range(0x7F, 0xA0)) if chr(c) not in "\n\t"}


def visible(text: str) -> str:
    """Control characters are shown, not obeyed: a text must not move the cursor or change the terminal."""
    return text.translate(_SHOWN)


def one_line(text: str) -> str:
    """As `visible`, with spaces for line ends."""
    return visible(" ".join(text.splitlines()))


def shorten(name: str) -> str:
    """A name to be repeated in a message; of one too long to be a name, both ends."""
    return name if len(name) <= 120 else f"{name[:60]}…{name[-30:]}"


def check_unicode(what: str, text: str) -> None:
    """Raise UsageError for half a character, as words of another encoding hold: no tokenizer takes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is not valid Unicode at character {error.start + 1}") from None
