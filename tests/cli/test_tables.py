"""Tables on stdout."""

from __future__ import annotations

import pytest
from rich.console import Console
from rich.table import Table

from edgespec.terminal.tables import print_whole

NAMES = ("[code]", "[/mail]", "a:x:b", "path/[old]/model.gguf")


def test_names_are_printed_as_they_are_and_no_mark_up(capsys: pytest.CaptureFixture[str]) -> None:
    def show(console: Console) -> None:
        table = Table("category", "prompts", box=None)
        for name in NAMES:
            table.add_row(name, "1")
            console.print(f"draft: {name}")
        console.print(table)

    print_whole(show)
    out = capsys.readouterr().out
    assert all(out.count(name) == 2 for name in NAMES)


def test_in_a_pipe_no_line_is_cut_or_padded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    print_whole(lambda console: console.print(Table("x" * 300, "y", box=None)))
    [line] = capsys.readouterr().out.splitlines()
    assert line.lstrip() == f"{'x' * 300}  y"
