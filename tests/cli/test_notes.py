"""Remarks on stderr, at terminals of several kinds."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.decoding.rounds import Stats
from edgespec.terminal.answer import closing_remarks
from edgespec.terminal.notes import PromptProgress, note


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    """What a long prompt shows."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    progress = PromptProgress()
    progress(512, 1218)
    progress.clear()
    return terminal.getvalue()


def test_progress_fits_into_the_line_or_it_could_not_be_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"TERM": "xterm", "NO_COLOR": "1"}
    whole = shown(monkeypatch, **options, COLUMNS="80")
    assert whole == "\r\x1b[Kreading the prompt: 512 of 1218 tokens\r\x1b[K"
    assert shown(monkeypatch, **options, COLUMNS="20") == "\r\x1b[Kreading the prompt:\r\x1b[K"


def test_a_dumb_terminal_gets_no_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, TERM="dumb") == ""


def test_a_console_of_windows_gets_no_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    assert shown(monkeypatch, TERM="xterm") == ""
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    note("a remark")
    assert terminal.getvalue() == "edgespec: a remark\n"


def test_a_report_shows_what_names_of_files_hold_and_does_not_obey_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stats = Stats(draft_failure="bad\x1b[2J.gguf is closed")
    answer: Any = SimpleNamespace(finish_reason="stop", stats=stats)
    closing_remarks(answer, 512, report=True)
    said = capsys.readouterr().err
    assert r"bad\u001b[2J.gguf is closed" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("drafted", "accepted", "said"),
    [
        (1, 1, "mean depth 0.03 · 0.03 accepted per round (100% of drafts)"),
        (4, 0, "mean depth 0.1 · 0.0 accepted per round (0% of drafts)"),
        (95, 38, "mean depth 2.5 · 1.0 accepted per round (40% of drafts)"),
    ],
)
def test_a_report_does_not_round_the_few_drafts_there_were_to_none(
    drafted: int, accepted: int, said: str
) -> None:
    assert said in Stats(rounds=38, drafted=drafted, accepted=accepted).line()
