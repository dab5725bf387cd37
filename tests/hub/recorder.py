"""A Progress that remembers."""

from __future__ import annotations


class Recorder:
    def __init__(self) -> None:
        self.messages: list[str] = []
        self.tasks: list[tuple[str, int, int]] = []
        self.advanced = 0

    def message(self, text: str) -> None:
        self.messages.append(text)

    def start(self, task: str, total: int, done: int = 0, unit: str = "bytes") -> None:
        self.tasks.append((task, total, done))
        self.advanced = done

    def advance(self, n: int) -> None:
        self.advanced += n
