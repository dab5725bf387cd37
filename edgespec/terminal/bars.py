"""Progress of pulls, conversions and bundles on a terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from edgespec.hub.sizes import human
from edgespec.visible import visible


class _Amount(DownloadColumn):
    """How much is done, of tasks that count something else than bytes too."""

    def render(self, task: Task) -> Text:
        unit = task.fields["unit"]
        if unit == "bytes":
            return super().render(task)
        return Text(f"{task.completed:,.0f}/{task.total or 0:,.0f} {unit}", style="progress.download")


class _Speed(TransferSpeedColumn):
    """Of tasks that count bytes."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.fields["unit"] == "bytes" else Text()


class BarProgress:
    """Shows a pull on stderr: messages as lines, the task at hand as a bar. A context manager."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, emoji=False)
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            _Amount(),
            _Speed(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> BarProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def message(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(visible(text), markup=False, highlight=False, soft_wrap=True)

    def start(self, task: str, total: int, done: int = 0, unit: str = "bytes") -> None:
        """Replace the bar by one for the new task; where there is no terminal, say what begins."""
        if not self._console.is_terminal:
            amounts = [human(n) if unit == "bytes" else f"{n:,} {unit}" for n in (total, done)]
            self.message(f"{task} ({amounts[0]}{f', {amounts[1]} done' if done else ''})")
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(visible(task), total=total, completed=done, unit=unit)

    def advance(self, n: int) -> None:
        """Move the bar."""
        if self._task is not None:
            self._bars.advance(self._task, n)
