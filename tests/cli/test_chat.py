"""The chat, with lines from a pipe and typed at a terminal."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pexpect
import platformdirs
import pytest
from waiting import PATIENCE

from edgespec import load
from edgespec.options import GenerateOptions
from edgespec.terminal.chat import Conversation
from edgespec.terminal.lines import PipedLines, _history

from .conftest import COMMAND, Edgespec, Ended

COMMANDS = "/help /reset /system /retry /save /load /stats /quit"


@pytest.fixture
def chat(edgespec: Edgespec, endless: Path) -> Any:
    def run(*entries: str, options: tuple[object, ...] = ()) -> Ended:
        words = ("chat", endless, "--draft", "ngram", "--max-tokens", 6, *options)
        return edgespec(*words, stdin="".join(f"{entry}\n" for entry in entries))

    return run


def remarks(ended: Ended, code: int = 0) -> list[str]:
    """What was said, without the greeting."""
    assert ended.code == code, ended.err
    lines = [line.removeprefix("edgespec: ") for line in ended.err.splitlines()]
    assert "/help says what you can do" in lines[0]
    return lines[1:]


def test_turns_from_a_pipe_are_answered_on_stdout_as_run_answers(
    chat: Any, edgespec: Edgespec, endless: Path
) -> None:
    once = edgespec("run", endless, "stay", "--draft", "ngram", "--max-tokens", 6)
    ended = chat("stay", "", "/quit", "never said")
    assert ended.out == once.out
    assert remarks(ended) == []


def test_a_turn_sees_those_before_it_and_reuses_their_cache(chat: Any) -> None:
    told = remarks(chat("stay", "/stats", "user", "/stats"))
    assert "(21 prompt tokens, 0 cached)" in told[0]
    assert re.fullmatch(r"context: the last answer and its prompt took \d+ of \d+ tokens", told[1])
    assert told[2] == "conversation: 2 messages"
    found = re.search(r"\((\d+) prompt tokens, (\d+) cached\)", told[3])
    assert found
    assert int(found[1]) > 40
    assert int(found[2]) >= 21


def test_a_backslash_continues_the_line(chat: Any, tmp_path: Path) -> None:
    remarks(chat("stay\\", "me\\", "", f"/save {tmp_path / 'saved'}"))
    assert json.loads((tmp_path / "saved").read_text())["messages"][0]["content"] == "stay\nme"


def test_a_mark_before_the_text_is_no_part_of_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """PowerShell and editors of Windows put it there."""
    said = "\ufeff/help\n\ufeffstay\n".encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(said)))
    source = PipedLines()
    assert [source.read() for _ in range(3)] == ["/help", "\ufeffstay", None]


def test_commands_that_are_none_are_refused_with_the_list(chat: Any) -> None:
    told = remarks(chat("/nothing", "/helpless", "/save", "/reset now"), code=1)
    assert told[0].startswith(f"there is no /nothing; there are {COMMANDS}.")
    assert told[1].startswith("there is no /helpless;")
    assert told[2] == "/save needs an argument: /save FILE"
    assert told[3] == "/reset takes no argument"


def test_help_names_every_command_and_key(chat: Any) -> None:
    told = "\n".join(remarks(chat("/help")))
    assert all(command in told for command in COMMANDS.split())
    assert all(key in told for key in ("Alt-Enter", "Esc", "backslash", "Ctrl-C", "Ctrl-D"))


def test_a_space_before_it_makes_a_command_a_turn(chat: Any, tmp_path: Path) -> None:
    remarks(chat(" /stay", f"/save {tmp_path / 'saved'}"))
    assert json.loads((tmp_path / "saved").read_text())["messages"][0]["content"] == "/stay"


def test_retry_answers_the_last_turn_anew(chat: Any, tmp_path: Path) -> None:
    file = tmp_path / "saved"
    sampled = chat("stay", "/retry", "/retry", f"/save {file}", options=("--temperature", 2))
    assert len(set(sampled.out.splitlines())) > 1
    saved = json.loads(file.read_text())["messages"]
    assert [m["role"] for m in saved] == ["user", "assistant"]
    greedy = chat("/retry", "stay", "/retry")
    told = remarks(greedy, code=1)
    assert "there is no turn to answer again; say something first" in told
    assert "expect the same answer: others come with --temperature and without --seed" in told
    half = len(greedy.out) // 2
    assert greedy.out[:half] == greedy.out[half:] != ""


def test_a_saved_conversation_goes_on_after_load(chat: Any, tmp_path: Path) -> None:
    file = tmp_path / "saved"
    first = chat("stay", "me", f"/save {file}", "stay", f"/save {file}", "/system you", "user")
    assert remarks(first)[:2] == [f"saved to {file}", f"saved to {file}"]
    saved = json.loads(file.read_text())
    assert [m["role"] for m in saved["messages"]] == ["user", "assistant"] * 3
    again = chat("/system other", f"/load {file}", "/system you", "user")
    assert remarks(again)[1:3] == [f"6 messages loaded from {file}", "system message: none"]
    assert first.out.endswith(again.out)
    assert again.out


def test_half_a_character_in_a_conversation_is_saved_as_it_was_loaded(chat: Any, tmp_path: Path) -> None:
    content = {"system": "half \udce9", "messages": []}
    (tmp_path / "first").write_text(json.dumps(content))
    remarks(chat(f"/load {tmp_path / 'first'}", f"/save {tmp_path / 'second'}"))
    assert json.loads((tmp_path / "second").read_text()) == content
    assert not list(tmp_path.glob("*.partial"))


def test_files_that_cannot_be_saved_or_loaded(chat: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    told = remarks(
        chat("stay", f"/save {other}", f"/save {tmp_path}/no/where", f"/load {other}", f"/load {tmp_path}/x"),
        code=1,
    )
    assert other.read_text() == "precious"
    assert told == [
        f"{other} exists already; choose another name",
        f"{tmp_path}/no/where cannot be written: No such file or directory",
        f"{other} is not a saved conversation",
        f"{tmp_path}/x cannot be read: No such file or directory",
    ]


def test_reset_forgets_the_turns_and_system_sets_what_stays(chat: Any) -> None:
    ended = chat("stay", "/system me", "/reset", "stay", "/system -", "/reset", "stay", "/stats")
    assert remarks(ended)[:4] == [
        "system message: me",
        "the turns are forgotten",
        "system message: none",
        "the turns are forgotten",
    ]
    assert "(21 prompt tokens" in remarks(ended)[4]


def test_leaving_out_old_turns_is_announced(chat: Any) -> None:
    told = remarks(chat(*["stay"] * 5, "/stats", options=("--ctx", 80)))
    assert told[0].startswith("the context is full: the model no longer sees the oldest 6 messages (--ctx")
    assert "conversation: 10 messages, of which the model no longer sees 6" in told[-1]


def test_what_does_not_fit_is_said_and_the_chat_goes_on(chat: Any) -> None:
    ended = chat("stay " * 40, "stay", options=("--ctx", 64))
    told = remarks(ended, code=1)  # for the one that failed
    assert len(told) == 1
    assert told[0].startswith("this turn alone has ")
    assert ended.out.strip()


def test_a_template_that_refuses_a_message_does_not_end_the_chat(chat: Any, tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.write_text(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    ended = chat("/system me", "stay", "/system -", "stay", options=("--chat-template", template))
    assert "the model's chat template refuses these messages: no system" in remarks(ended, code=1)
    assert ended.out.strip()


def test_a_model_without_a_template_cannot_chat(edgespec: Edgespec, model_files: Path) -> None:
    ended = edgespec("chat", model_files / "hopeless.gguf", "--draft", "none")
    assert ended.code == 1
    assert ended.err.count("\n") == 1
    assert "hopeless carries no chat template; give one with --chat-template FILE" in ended.err


# --- at a terminal ---


@pytest.fixture
def terminal(endless: Path, environment: dict[str, str]) -> Iterator[Any]:
    """A chat at a terminal, whose answers last until they are stopped."""
    words = ["chat", str(endless), "--draft", "none", "--ctx", "60000", "--threads", "1"]
    child = pexpect.spawn(
        COMMAND[0],
        [*COMMAND[1:], *words],
        env=environment | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},  # type: ignore[arg-type]
        encoding="utf-8",
        codec_errors="replace",
        dimensions=(40, 200),
        timeout=PATIENCE,
    )
    child.expect("/help says what you can do")
    ready(child)
    yield child
    child.close(force=True)


def ready(child: Any) -> None:
    """Wait for the prompt, and until its keys are bound."""
    child.expect(r"\x1b\[\?2004h[^>]*>[^>]*\x1b\[\?25h")  # pasting on, the prompt, the cursor shown


def test_ctrl_c_stops_the_answer_and_not_the_chat(terminal: Any, tmp_path: Path) -> None:
    for turn in ("stay", "user"):
        terminal.send(f"{turn}\r")
        terminal.expect_exact(turn)
        terminal.expect("[aeimnrstuy]{2}")
        for _ in range(30):  # some of the answer
            terminal.expect("[aeimnrstuy]")
        terminal.sendintr()
        terminal.expect("stopped")
        terminal.expect("tok/s")
        ready(terminal)
    terminal.send(f"/save {tmp_path / 'saved'}\r")
    terminal.expect("saved to")
    ready(terminal)
    terminal.send("/quit\r")
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 0
    saved = json.loads((tmp_path / "saved").read_text())["messages"]
    assert [m["role"] for m in saved] == ["user", "assistant"] * 2
    assert all(m["content"] for m in saved[1::2])


def test_editing_history_and_the_ways_out(terminal: Any, environment: dict[str, str], tmp_path: Path) -> None:
    terminal.send("never said\x03")  # Ctrl-C clears the line
    ready(terminal)
    terminal.send("/system one\x1b\rtwo\\\rthree\r")  # Alt-Enter and a backslash start a line
    terminal.expect("system message: one")
    ready(terminal)
    terminal.send("\x1b[A\x1b[A\x1b[A\r")  # up, through the three lines
    terminal.expect("system message: one")
    ready(terminal)
    terminal.send("/nothing\r")  # what fails before the user's eyes is no failure of the chat
    terminal.expect("there is no /nothing")
    ready(terminal)
    terminal.send("\x04")  # Ctrl-D
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 0
    history = Path(environment["XDG_STATE_HOME"]) / "edgespec" / "chat-history"
    assert "+/system one\n+two\n+three\n" in history.read_text()
    assert "never said" not in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs a shell that has jobs")
def test_ctrl_z_leaves_the_chat_for_the_shell_and_fg_goes_on(
    endless: Path, environment: dict[str, str]
) -> None:
    child = pexpect.spawn(
        "bash",
        ["--norc", "--noprofile", "-i"],
        env=environment | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "PS1": "shell: ", "LC_ALL": "C"},  # type: ignore[arg-type]
        encoding="utf-8",
        dimensions=(40, 200),
        timeout=PATIENCE,
    )
    child.sendline(shlex.join([*COMMAND, "chat", str(endless), "--draft", "none", "--threads", "1"]))
    child.expect("/help says what you can do")
    ready(child)
    child.send("\x1a")
    child.expect("Stopped")
    child.sendline("fg")
    ready(child)
    child.send("/quit\r")
    child.expect_exact("shell: ")
    child.sendline("exit")
    child.expect(pexpect.EOF)
    child.close()


@pytest.mark.skipif(sys.platform == "win32", reason="permissions")
def test_a_history_that_cannot_be_kept_is_said(endless: Path, environment: dict[str, str]) -> None:
    Path(environment["XDG_STATE_HOME"]).write_text("in the way")
    child = pexpect.spawn(
        COMMAND[0],
        [*COMMAND[1:], "chat", str(endless), "--draft", "none"],
        env=environment | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},  # type: ignore[arg-type]
        encoding="utf-8",
        dimensions=(40, 200),
        timeout=PATIENCE,
    )
    child.expect("what you type is not remembered")
    ready(child)
    child.send("\x04")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_what_goes_wrong_in_one_command_neither_ends_the_chat_nor_loses_it(
    endless: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(endless, draft="ngram", threads=1) as runtime:
        options: GenerateOptions = {"max_tokens": 2, "temperature": 0.0, "seed": None}
        conversation = Conversation(runtime, None, options, report=False)
        conversation.take("stay")
        for error, said in [
            (
                RecursionError("too\ndeep"),
                "this is a bug: RecursionError: too deep; the conversation is kept",
            ),
            (OSError(28, "No space left on device"), "No space left on device; the conversation is kept"),
        ]:

            def fail(*_: object, error: Exception = error) -> None:
                raise error

            monkeypatch.setattr(conversation._session, "load", fail)
            capsys.readouterr()
            conversation.take("/load file")
            assert f"edgespec: {said}" in capsys.readouterr().err
        assert conversation.failed
        conversation.take("/system \x1b[2Jme")
        assert capsys.readouterr().err == "edgespec: system message: \\u001b[2Jme\n"
        conversation.take("/stats")
        assert "conversation: 2 messages" in capsys.readouterr().err


@pytest.mark.parametrize("newer", [False, True])
def test_who_has_no_home_folder_chats_without_a_history(
    newer: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def folder(_: str) -> Path:
        if newer:
            raise RuntimeError("Could not determine home directory.")
        return Path("~/.local/state/edgespec")

    monkeypatch.setattr(platformdirs, "user_state_path", folder)
    monkeypatch.chdir(tmp_path)
    _history().append_string("stay")
    assert "not remembered: there is no home folder" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_full_disk_costs_the_history_and_not_the_chat(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    history = _history()
    (tmp_path / "edgespec" / "chat-history").unlink()
    (tmp_path / "edgespec" / "chat-history").mkdir()  # refuses to be written
    history.append_string("stay")
    assert history.get_strings() == ["stay"]


def test_a_line_that_is_no_text_does_not_end_the_chat(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    # A terminal may send bytes that are none of its encoding's; prompt_toolkit before 3.0.53 raises then.
    for line in ("half \udce9", "stay"):
        _history().append_string(line)
    assert "\n+stay\n" in (tmp_path / "edgespec" / "chat-history").read_text()
