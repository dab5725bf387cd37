"""An answer as it comes: written token by token, stopped by Ctrl-C."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from edgespec.decoding.generation import Generation
from edgespec.decoding.stopping import Token
from edgespec.device.energy import meter
from edgespec.device.power import read_slowdown
from edgespec.terminal.notes import PromptProgress, dim, note
from edgespec.visible import visible


@contextmanager
def interruptible(generation: Generation, *, insistent: bool = True) -> Iterator[None]:
    """Within, Ctrl-C cancels the generation, which takes effect before the next forward pass:
    KeyboardInterrupt in the middle of one would leave the models' caches in an unknown state.

    `insistent`: a second Ctrl-C does raise it, for those who will not use the models again. Where the caller
    ignores it, as shells do for what they run in the background, it stays ignored.
    """
    cancelled = False

    def cancel(signal_number: int, frame: FrameType | None) -> None:
        nonlocal cancelled
        if cancelled and insistent:
            raise KeyboardInterrupt
        cancelled = True
        generation.cancel()

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def follow(
    generation: Generation,
    progress: PromptProgress,
    write: Callable[[str], None] | None = None,
    *,
    insistent: bool = True,
) -> list[Token]:
    """Hand on the text of an answer piece by piece until it ends or is interrupted; its tokens. Energy is
    measured from the first one on, where the machine says."""
    tokens: list[Token] = []
    energy, stop = meter(), None
    try:
        with interruptible(generation, insistent=insistent):
            for token in generation:
                if energy is not None and stop is None:
                    stop = energy.start()
                progress.clear()
                tokens.append(token)
                if token.text and write:
                    write(token.text)
    finally:
        if stop is not None:
            generation.stats.joules = stop()
        progress.clear()
    return tokens


def write_stdout(text: str) -> None:
    """To stdout at once. At a terminal control characters are shown, not obeyed: a model's answer must
    not move the cursor or change the terminal."""
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_json(found: object) -> None:
    """One line of JSON to stdout, in characters that its encoding has."""
    unicode = sys.stdout.encoding.lower().replace("-", "").startswith("utf")
    write_stdout(json.dumps(found, ensure_ascii=not unicode) + "\n")


def closing_remarks(
    generation: Generation,
    n_ctx: int,
    report: bool | None,
    advice: str = "raise --ctx, or shorten the prompt",
) -> None:
    """What is to be said when an answer has ended. `report`: None is, if stderr is a terminal."""
    if generation.finish_reason == "context":
        note(f"the context of {n_ctx} tokens is full, so the answer is cut off here; {advice}")
    if report if report is not None else sys.stderr.isatty():
        print(dim(visible(generation.stats.line())), file=sys.stderr, flush=True)
        if slowed := read_slowdown():
            note(f"this board is slowed down now: {', '.join(slowed)}")
