"""Whatever goes wrong is one line on stderr, and an exit code."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from waiting import PATIENCE

from edgespec.backends.llama_cpp import KV_TYPES
from edgespec.cli.commands import main
from edgespec.cli.run import run

from .conftest import COMMAND, Edgespec

Ended = Callable[[list[object]], tuple[int, str, str]]
Failed = Callable[[list[object]], tuple[int, str]]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    """Exit code, stdout and stderr of a command; in this process, which is quicker."""

    def run(words: list[object]) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
        with pytest.raises(SystemExit) as exit:
            main.main([str(word) for word in words], prog_name="edgespec")
        assert isinstance(exit.value.code, int)
        return exit.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def failed(ended: Ended) -> Failed:
    """Exit code and the one line on stderr."""

    def run(words: list[object]) -> tuple[int, str]:
        code, out, err = ended(words)
        assert out == ""
        assert err.startswith("edgespec: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1, err
        return code, err

    return run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--depth", "x"], "'x' is neither a whole number nor auto"),
        (["--depth", 33], "depth is 33; it must be between 0 (plain decoding) and 32"),
        (["--depth", -1], "depth is -1"),
        (["--depth", 4], "--draft none decodes plainly, so --depth 4 has no place; leave --depth out"),
        (["--temperature", -1], "temperature is -1.0; it must be 0 (greedy) or between 0.001 and 1000"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--top-k", -1], "--top-k is -1"),
        (["--top-p", 0], "--top-p is 0.0; it must be above 0"),
        (["--min-p", 2], "--min-p is 2.0"),
        (["--repetition-penalty", 0], "--repetition-penalty is 0.0"),
        (["--penalty-window", -1], "--penalty-window is -1"),
        (["--max-tokens", 0], "'--max-tokens': 0 is not in the range"),
        (["--ctx", 0], "'--ctx': 0 is not in the range"),
        (["--ctx", 5000], "a context of 5000 tokens was asked for; target takes 1 to 1024"),
        (["--threads", 0], "'--threads': 0 is not in the range"),
        (["--kv-type", "q3"], "'q3' is not one of"),
        (["--logit-bias", "4:3"], "'4:3' is not a token id, an equals sign and a number"),
        (["--logit-bias", "4=1", "--logit-bias", "4=2"], "token 4 is named twice"),
        (["--logit-bias", "25=1"], "--logit-bias names token 25; this model's ids end at 24"),
        (["--stop", ""], "a stop text is empty"),
        (["--logprobs", 3], "with --json only"),
        (["--logprobs", 101, "--json"], "'--logprobs': 101 is not in the range"),
        (["--backend", "onnxx"], "backend 'onnxx' is unknown"),
        (["--strict"], "strict output is not possible with llama.cpp"),
        (["--chat-template", "nowhere"], "nowhere cannot be read: No such file"),
        (["--raw", "--system", "me"], "--system has no place"),
        (["--raw", "--chat-template", __file__], "--chat-template has no place"),
        (["--file", "nowhere"], "nowhere cannot be read: No such file"),
        (["--file", "/dev/null"], "there is no text in /dev/null"),
        (["--file", "-"], "there is no text on stdin"),
        (["--system", "me\udcff"], "--system is not valid Unicode at character 3"),
        (["--file", "a", "--file", "b"], "'--file': it is given 2 times"),
        (["--file", "-", "--file", "-"], "'--file': it is given 2 times"),
        (["more"], "3 arguments, where [PAIR] PROMPT were expected; put the prompt in quotes"),
        (["--no-such"], "No such option"),
        (["--gpu-layers", -1], "'--gpu-layers': -1 is not in the range"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    failed: Failed, model_files: Path, options: list[object], message: str
) -> None:
    code, line = failed(["run", model_files / "target.gguf", "stay", "--draft", "none", *options])
    assert code == 2
    assert message in line


def test_a_mistyped_option_is_said_before_models_are_loaded(failed: Failed, tmp_path: Path) -> None:
    assert "temperature is -1" in failed(["run", tmp_path / "no.gguf", "stay", "--temperature", -1])[1]
    assert "depth is 33" in failed(["run", tmp_path / "no.gguf", "stay", "--depth", 33])[1]


def test_half_a_character_in_a_prompt_is_counted_in_the_prompt(failed: Failed, model_files: Path) -> None:
    """And not in what a template makes of it."""
    code, line = failed(["run", model_files / "target.gguf", "stay\udcff", "--draft", "none"])
    assert (code, line) == (2, "edgespec: the prompt is not valid Unicode at character 5\n")


def test_prompts_that_are_none(failed: Failed, model_files: Path, tmp_path: Path) -> None:
    target = model_files / "target.gguf"
    for words, message in [
        ([target, ""], "the prompt is empty"),
        ([target], "the prompt is empty"),  # an empty stdin
        ([target, "--file", tmp_path / "none"], "none cannot be read: No such file"),
        ([target, "-", "--file", "-"], "stdin can be read once"),
        (["stay stay", "--file", tmp_path / "none"], "none cannot be read: No such file"),
        ([target, "--file", target], "target.gguf is not UTF-8 text"),
        ([target, "--file", "/dev/zero"], "/dev/zero has more than 64 MB"),
        ([target, "stay", "--json-schema", "/dev/zero"], "/dev/zero has more than 64 MB"),
    ]:
        code, line = failed(["run", *words])
        assert code == 2
        assert message in line


def test_a_byte_order_mark_is_no_part_of_a_prompt_or_a_schema(
    ended: Ended, model_files: Path, tmp_path: Path
) -> None:
    for name, text in (("marked", "stay"), ("plain", "stay"), ("schema", '{"enum": [1]}')):
        (tmp_path / name).write_text(text, "utf-8" if name == "plain" else "utf-8-sig")
    options = ["--draft", "none", "--max-tokens", 8]
    marked, plain = (
        ended(["run", model_files / "target.gguf", "--file", tmp_path / name, *options])
        for name in ("marked", "plain")
    )
    assert marked == plain
    assert marked[0] == 0
    schema = ["--json-schema", tmp_path / "schema"]
    assert "JSON" not in ended(["run", model_files / "target.gguf", "stay", *options, *schema])[2]


@pytest.mark.parametrize("option", ["--html", "--traces", "--resume"])
def test_an_empty_name_is_not_taken_for_none(failed: Failed, option: str) -> None:
    code, line = failed(["bench", "smollm2-135m", "--suite", "none.jsonl", option, ""])
    assert code == 2
    assert f"'{option}': the name is empty" in line


def test_models_that_are_none(failed: Failed, model_files: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes((model_files / "target.gguf").read_bytes()[:5000])
    target = model_files / "target.gguf"
    for words, expected, message in [
        (["smollm2", "stay"], 2, "Did you mean"),
        ([tmp_path / "no.gguf", "stay"], 1, "There is no file"),
        ([broken, "stay"], 1, "broken.gguf"),
        ([target, "stay", "--draft", model_files / "incompatible.gguf"], 1, "'m'"),
        ([target, "stay", "--ctx", 8, "--draft", "none"], 1, "shorten the prompt or raise --ctx"),
    ]:
        code, line = failed(["run", *words])
        assert (code, message in line) == (expected, True), line


def test_wrong_words_anywhere_are_one_line(failed: Failed) -> None:
    assert failed(["--no-such"])[0] == 2
    assert failed(["no-such"]) == (2, "edgespec: No such command 'no-such'. (see edgespec --help)\n")
    assert failed(["pull"])[0] == 2
    assert failed(["chat", "--depth", "99"])[0] == 2
    assert failed(["explain", "a", "b", "c"])[0] == 2


def test_a_bug_is_one_line_and_a_traceback_only_with_debug(
    failed: Failed, ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    def buggy(**_: object) -> None:
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr(run, "callback", buggy)
    code, line = failed(["run", "stay"])
    assert code == 1
    assert "a bug: RuntimeError: first second (to see where, run: edgespec --debug …)" in line
    code, _, err = ended(["--debug", "run", "stay"])
    assert code == 1
    assert "Traceback" in err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (PermissionError(13, "Permission denied", "some/file"), "some/file: Permission denied"),
        (OSError(), "OSError"),
        (MemoryError(), "there is not enough memory; use a smaller model"),
    ],
)
def test_what_the_machine_refuses_is_no_bug(
    failed: Failed, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def refused(**_: object) -> None:
        raise error

    monkeypatch.setattr(run, "callback", refused)
    code, line = failed(["run", "stay"])
    assert code == 1
    assert line.startswith(f"edgespec: {said}")


def test_on_windows_a_reader_that_is_gone_is_not_told_of_as_an_invalid_argument(
    ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(**_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(run, "callback", written)
    assert ended(["run", "stay"]) == (1, "", "edgespec: Invalid argument\n")
    monkeypatch.setattr(sys, "platform", "win32")
    assert ended(["run", "stay"]) == (1, "", "")


def test_an_interrupt_anywhere_is_130(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "callback", interrupted)
    assert ended(["run", "stay"])[0] == 130


def test_an_interrupt_at_a_question_is_130_too(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> str:
        raise KeyboardInterrupt

    def asking(**_: object) -> None:
        click.confirm("Sure?", abort=True, err=True)

    monkeypatch.setattr("click.termui.visible_prompt_func", interrupted)
    monkeypatch.setattr(run, "callback", asking)
    assert ended(["run", "stay"])[0] == 130
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "n")
    code, _, err = ended(["run", "stay"])
    assert (code, err.endswith("edgespec: aborted\n")) == (1, True)


def test_on_windows_words_are_taken_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """click would put files in the place of a pattern there, and values in that of variables."""
    monkeypatch.setattr("click.core.os", SimpleNamespace(**{**vars(os), "name": "nt"}))
    monkeypatch.setenv("SIZE", "2GB")
    monkeypatch.setattr(sys, "argv", ["edgespec", "plan", "--memory", "$SIZE"])
    with pytest.raises(SystemExit) as exit:
        main.main(prog_name="edgespec")
    assert exit.value.code == 2
    assert "'$SIZE' is not a size" in capsys.readouterr().err


def test_help_offers_the_kv_types_there_are() -> None:
    option = next(p for p in run.params if p.name == "kv_type")
    assert list(option.type.choices) == list(KV_TYPES)  # type: ignore[attr-defined]


def test_help_is_quick_because_it_imports_nothing_heavy(edgespec: Edgespec) -> None:
    found = edgespec("--help", PYTHONPROFILEIMPORTTIME="1")
    assert all(name in found.out for name in ("run", "chat", "explain", "pull", "models"))
    imported = {line.rpartition("|")[2].strip() for line in found.err.splitlines()}
    assert "edgespec.cli.run" in imported
    assert not imported & {"numpy", "llama_cpp", "jinja2", "rich", "prompt_toolkit", "gguf"}


CLOSED = (
    ("run MODEL - <&-", 2, "edgespec: the prompt is empty; give some text\n"),
    ("chat MODEL <&-", 0, "/help says what you can do"),
    ("run MODEL stay >&-", 1, "edgespec: stdout is closed, so there is nowhere to write to\n"),
    ("models >&-", 1, "edgespec: stdout is closed, so there is nowhere to write to\n"),
    ("--help >&-", 1, "edgespec: stdout is closed, so there is nowhere to write to\n"),
    ("models >&- <&-", 1, "edgespec: stdout is closed, so there is nowhere to write to\n"),
    ("run MODEL stay --max-tokens 2 2>&-", 0, ""),
)
FULL = "edgespec: No space left on device\n"
FULL_DISK = (
    ("run MODEL stay --max-tokens 2 >/dev/full", 1, FULL),
    ("models >/dev/full", 1, FULL),
    ("models --json >/dev/full", 1, FULL),
    ("--help >/dev/full", 1, FULL),
)


@pytest.mark.parametrize(("words", "code", "said"), CLOSED + FULL_DISK)
def test_streams_that_are_closed_or_full_are_no_bug(
    environment: dict[str, str], endless: Path, words: str, code: int, said: str
) -> None:
    line = f"{shlex.join(COMMAND)} {words.replace('MODEL', shlex.quote(str(endless)))}"
    if words.startswith(("run", "chat")):
        line += " --threads 1 --draft none"
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, env=environment, timeout=PATIENCE
    )
    assert (done.returncode, "a bug" in done.stderr) == (code, False), done.stderr
    assert done.stderr.endswith(said) or said in done.stderr
    assert done.stderr.count("\n") <= 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_remarks_that_cannot_be_written_do_not_cost_the_answer(
    environment: dict[str, str], endless: Path, unbuffered: str
) -> None:
    words = ["run", str(endless), "stay", "--max-tokens", "4", "--threads", "1", "--draft", "none"]
    asked = shlex.join([*COMMAND, *words, "--explain-policy", "--report"])
    told, lost = (
        subprocess.run(
            ["sh", "-c", line],
            capture_output=True,
            env=environment | {"PYTHONUNBUFFERED": unbuffered},
            timeout=PATIENCE,
        )
        for line in (asked, f"{asked} 2>/dev/full")
    )
    assert told.stdout
    assert told.stderr
    assert (lost.returncode, lost.stdout, lost.stderr) == (0, told.stdout, b"")


def test_an_interrupt_during_imports_is_quiet(environment: dict[str, str]) -> None:
    # Importing click is where most of the first tenth of a second goes.
    program = (
        "import sys, os, signal\n"
        "class Press:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'click': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Press())\n"
        "sys.argv = ['edgespec', '--version']\n"
        "from edgespec.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize("command", ["convert", "trim"])
def test_commands_that_need_a_package_name_it(environment: dict[str, str], command: str) -> None:
    program = (
        "import sys\n"
        "sys.modules['onnx'] = None\n"
        f"sys.argv = ['edgespec', '{command}', 'smollm2-135m']\n"
        "from edgespec.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "edgespec: converting needs the package onnx: pip install 'edgespec[onnx]'" in done.stderr


def test_names_of_files_are_shown_and_not_obeyed(failed: Failed, tmp_path: Path) -> None:
    (tmp_path / "bad\x1b[2J.gguf").touch()
    code, line = failed(["run", tmp_path / "no\x1b[31m.gguf", "stay"])
    assert code == 1
    assert "no\\u001b[31m.gguf" in line
    assert "The folder has: bad\\u001b[2J.gguf" in line


def test_a_schema_nested_too_deeply_is_refused(failed: Failed, tmp_path: Path) -> None:
    (schema := tmp_path / "schema.json").write_text("[" * 100_000)
    code, message = failed(["run", "smollm2-135m", "hi", "--json-schema", schema])
    assert code == 2
    assert "nested too deeply" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"items": {"type": "null", "type": "array"}}', "'type' stands twice in one object"),
        ("null", "holds null, which is no JSON schema"),
        ("[1]", "--json-schema is a list; it must be an object"),
        ('{"not": {}}', "--json-schema cannot be enforced, at the top: Unimplemented"),
    ],
)
def test_a_file_that_is_no_schema_is_refused_and_not_passed_over(
    failed: Failed, tmp_path: Path, text: str, said: str
) -> None:
    (schema := tmp_path / "schema.json").write_text(text)
    code, message = failed(["run", "smollm2-135m", "hi", "--json-schema", schema])
    assert code == 2
    assert said in message
