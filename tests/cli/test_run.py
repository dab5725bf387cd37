from __future__ import annotations

import io
import os
import signal
import subprocess
from pathlib import Path

import pexpect
import pytest
from waiting import PATIENCE

from edgespec.errors import UsageError
from edgespec.hub import store
from edgespec.hub.catalog import load_catalog
from edgespec.terminal.answer import write_stdout
from edgespec.terminal.prompts import pair_and_text

from .conftest import COMMAND, Edgespec, Ended

PROMPT = "yes, user stay"


def test_the_answer_goes_to_stdout_and_remarks_to_stderr(
    edgespec: Edgespec, pair: list[object], model_files: Path
) -> None:
    asked = ("run", *pair, PROMPT, "--max-tokens", 12, "--depth", 2)
    quiet, told = edgespec(*asked), edgespec(*asked, "--report")
    assert (quiet.code, told.code) == (0, 0)
    assert quiet.err == ""
    assert quiet.out == told.out
    assert quiet.out.endswith("\n")
    assert told.err.count("\n") == 1
    assert "tok/s" in told.err
    assert "accepted per round" in told.err
    json = edgespec(*asked, "--json").json
    assert quiet.out.removesuffix("\n") == json["text"].removesuffix("\n")


def test_an_answer_that_the_encoding_of_stdout_has_not(edgespec: Edgespec, pair: list[object]) -> None:
    def ascii_only(*options: object) -> Ended:
        bytes_of_é = ("--logit-bias", "15=50", "--logit-bias", "16=50")
        words = ("run", *pair, PROMPT, "--max-tokens", 12, *bytes_of_é, *options)
        return edgespec(*words, PYTHONUTF8="0", PYTHONIOENCODING="ascii")

    shown, found = ascii_only(), ascii_only("--json")
    assert (shown.code, shown.err) == (0, "")
    assert "?" in shown.out
    assert set(found.json["text"]) & {"é", "\ufffd"}
    assert found.json["text"].encode("ascii", "replace").decode() + "\n" == shown.out


def test_a_terminal_is_not_told_what_to_do_by_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\tb\n\x1b]0;title\x07 \x9b2J \x7f é"

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    write_stdout(text)
    assert terminal.getvalue() == "a\tb\n\\u001b]0;title\\u0007 \\u009b2J \\u007f é"
    monkeypatch.setattr("sys.stdout", pipe := io.StringIO())
    write_stdout(text)
    assert pipe.getvalue() == text


def test_json_is_one_object_with_everything(edgespec: Edgespec, pair: list[object]) -> None:
    ended = edgespec(
        "run", *pair, PROMPT, "--json", "--max-tokens", 7, "--seed", 3, "--logprobs", 2, "--depth", 4
    )
    found = ended.json
    assert ended.out.count("\n") == 1
    assert found["pair"] == str(pair[0])
    assert (found["target"], found["draft"], found["depth"]) == ("target", "draft", 4)
    assert (found["seed"], found["stopped_by"]) == (3, None)
    assert found["finish_reason"] == "length"
    assert len(found["tokens"]) == 7 == found["stats"]["tokens"]
    assert found["stats"]["drafted"] > 0
    assert [entry["id"] for entry in found["logprobs"]] == found["tokens"]
    assert "".join(entry["text"] for entry in found["logprobs"]) == found["text"]
    for entry in found["logprobs"]:
        assert entry["logprob"] == entry["top"][0][1]  # greedy: the chosen token is the most probable
        assert entry["top"][0][1] > entry["top"][1][1]


def test_json_says_what_slows_the_board_down_and_what_energy_it_took(
    edgespec: Edgespec, endless: Path, tmp_path: Path
) -> None:
    """A program in the place of a Raspberry Pi's, with figures that are made up."""
    board = tmp_path / "board/vcgencmd"
    board.parent.mkdir()
    board.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = get_throttled ]; then echo throttled=0x5; fi\n'
        'if [ "$1" = pmic_read_adc ]; then echo "VDD_CORE_A current(7)=2A VDD_CORE_V volt(15)=0.5V"; fi\n'
    )
    board.chmod(0o755)
    words = ("run", endless, "stay", "--draft", "none", "--max-tokens", 2000, "--json", "--report")
    ended = edgespec(*words, PATH=f"{board.parent}:{os.environ['PATH']}")
    found = ended.json
    assert found["slowed_down"] == ["under-voltage", "throttled"]
    assert found["stats"]["joules"] > 0
    assert "tokens per joule" in ended.err
    elsewhere = edgespec(*words[:-2], "--json").json
    assert elsewhere["slowed_down"] == []


@pytest.mark.parametrize("sampling", [(), ("--temperature", 0.9, "--seed", 5)], ids=["greedy", "seeded"])
def test_speculative_output_equals_plain_output(
    edgespec: Edgespec, pair: list[object], model_files: Path, sampling: tuple[object, ...]
) -> None:
    def tokens(*more: object) -> list[int]:
        words = ("run", *pair, PROMPT, "--json", "--max-tokens", 80, "--logit-bias", "22=-inf")
        return list(edgespec(*words, "--logit-bias", "24=-inf", *sampling, *more).json["tokens"])

    plain = tokens("--depth", 0)
    assert len(plain) == 80
    assert tokens("--depth", 4) == plain
    assert tokens("--depth", 9, "--draft", "ngram") == plain
    assert tokens() == plain


def test_the_prompt_may_come_from_a_file_or_stdin(
    edgespec: Edgespec, pair: list[object], tmp_path: Path
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT + "\n")
    options = ("--max-tokens", 9, "--json")

    def found(*words: object, stdin: str = "") -> tuple[list[int], int]:
        json = edgespec("run", *pair, *words, *options, stdin=stdin).json
        return json["tokens"], json["stats"]["prompt_tokens"]

    expected = found(PROMPT)
    for words, stdin in [
        (("--file", file), ""),
        (("-",), PROMPT + "\n"),
        (("--file", "-"), PROMPT + "\n"),
        ((), PROMPT),  # one word, which names a model: the prompt is in the pipe
    ]:
        assert found(*words, stdin=stdin) == expected


def test_a_file_or_stdin_may_stand_behind_the_prompt(
    edgespec: Edgespec, pair: list[object], tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("say\n")
    options = ("--max-tokens", 9, "--json")

    def found(*words: object, stdin: str = "") -> tuple[list[int], int]:
        json = edgespec("run", *pair, *words, *options, stdin=stdin).json
        return json["tokens"], json["stats"]["prompt_tokens"]

    expected = found("stay\n\nsay")
    assert found("stay", "--file", file) == expected
    assert found("stay", "--file", "-", stdin="say\n") == expected
    assert found("-", "--file", file, stdin="stay\n") == expected


def test_a_word_beside_a_file_is_a_model_and_several_are_a_prompt(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("say")
    assert pair_and_text(("no/such/model",), str(file), None, False) == ("no/such/model", "say")
    assert pair_and_text(("What is this?",), str(file), None, False) == (None, "What is this?\n\nsay")
    assert pair_and_text(("What is this? ",), str(file), None, True) == (None, "What is this? say")


@pytest.mark.parametrize("word", ["この文章を要約してください。", "Summarize:", "Résume", "TL;DR"])
def test_a_word_that_no_model_could_be_called_is_a_prompt_beside_a_file(word: str, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("say")
    assert pair_and_text((word,), str(file), None, False) == (None, f"{word}\n\nsay")


@pytest.mark.parametrize(
    ("word", "hint"),
    [("smollm2-135n", "Did you mean smollm2-135m"), ("Summarize", "No model is named 'Summarize'")],
)
def test_a_word_that_may_be_a_mistyped_model_is_refused_beside_a_file(
    word: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"{hint}.*If it is the prompt, put the pair before it"):
        pair_and_text((word,), str(tmp_path), None, False)


def test_what_waits_on_stdin_unread_is_told(edgespec: Edgespec, endless: Path, tmp_path: Path) -> None:
    words = ("run", endless, "stay", "--draft", "ngram", "--max-tokens", 3)
    assert edgespec(*words, stdin="").err == ""
    assert "what is on stdin is not read; --file -" in edgespec(*words, stdin="say").err
    assert edgespec(*words, "--file", "-", stdin="say").err == ""


def test_raw_continues_the_text_as_it_is(edgespec: Edgespec, model_files: Path) -> None:
    words = ("run", model_files / "target.gguf", "--draft", "none", "--json", "--max-tokens", 1)

    def prompt_tokens(text: str, *more: object, stdin: str = "") -> int:
        return int(edgespec(*words, text, *more, stdin=stdin).json["stats"]["prompt_tokens"])

    assert prompt_tokens("stay", "--raw") == 1 + len(("st", "a", "y"))  # BOS and the text
    assert prompt_tokens("-", "--raw", stdin="stay\n") == 1 + len(("st", "a", "y", "\n"))
    templated = prompt_tokens("stay")
    assert templated > 10
    assert prompt_tokens("stay", "--system", "me") > templated


def test_a_model_without_a_template_completes_and_says_so(edgespec: Edgespec, model_files: Path) -> None:
    model = model_files / "hopeless.gguf"
    ended = edgespec("run", model, "stay", "--draft", "none", "--max-tokens", 3)
    assert ended.code == 0
    assert ended.err == "edgespec: hopeless carries no chat template: the text is continued as it is\n"
    raw = edgespec("run", model, "stay", "--draft", "none", "--max-tokens", 3, "--raw")
    assert (raw.out, raw.err) == (ended.out, "")
    refused = edgespec("run", model, "stay", "--draft", "none", "--system", "me")
    assert refused.code == 2
    assert "carries no chat template" in refused.err


def test_a_model_without_a_draft_says_that_it_decodes_plainly(edgespec: Edgespec, endless: Path) -> None:
    words = ("run", endless, "stay", "--max-tokens", 3)
    assert "has no draft: plain decoding" in edgespec(*words, "--depth", 4).err
    assert "no draft" not in edgespec(*words).err  # auto looks the text itself up
    assert edgespec(*words, "--draft", "none").err == ""
    assert edgespec(*words, "--depth", 0).err == ""


def test_the_rules_drafter_without_a_form_says_that_it_has_nothing_to_draft(
    edgespec: Edgespec, endless: Path
) -> None:
    words = ("run", endless, "stay", "--draft", "rules", "--max-tokens", 3)
    assert "forces, and there is none: plain decoding" in edgespec(*words).err
    assert edgespec(*words, "--regex", "[a-z ]*").err == ""
    assert edgespec(*words, "--depth", 0).err == ""


def test_without_a_pair_the_best_on_disk_is_used_and_named(
    edgespec: Edgespec, endless: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", environment["EDGESPEC_HOME"])
    file = load_catalog().pairs["smollm2-135m"].target
    path = store.path_of(file)
    path.parent.mkdir(parents=True)
    path.write_bytes(endless.read_bytes())
    assert file.sha256
    store._write_record(path, store._record(path, file, file.sha256))  # as if pulled and verified
    ended = edgespec("run", "stay stay stay", "--max-tokens", 5)
    assert ended.code == 0
    assert "edgespec: using smollm2-135m (" in ended.err
    assert edgespec("run", "smollm2-135m", "--max-tokens", 5, stdin="stay stay stay").err == ""


def test_a_full_context_is_said_with_what_to_do(edgespec: Edgespec, endless: Path) -> None:
    ended = edgespec("run", endless, "stay", "--draft", "ngram", "--ctx", 64)
    assert ended.code == 0
    assert ended.err == (
        "edgespec: the context of 64 tokens is full, so the answer is cut off here; raise --ctx, or shorten "
        "the prompt\n"
    )


def test_a_stop_text_ends_the_output_before_it(edgespec: Edgespec, endless: Path) -> None:
    words = ("run", endless, "stay", "--draft", "ngram", "--json", "--max-tokens", 200)
    whole = edgespec(*words).json["text"]
    stop = whole[20:22]
    found = edgespec(*words, "--stop", "no such", "--stop", stop).json
    assert found["text"] == whole[: whole.index(stop)]
    assert (found["finish_reason"], found["stopped_by"]) == ("stop", stop)


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_ends_it_with_what_there_is(endless: Path, environment: dict[str, str], as_json: bool) -> None:
    words = ["run", str(endless), "stay", "--draft", "none", "--ctx", "60000", "--threads", "1", "--report"]
    with subprocess.Popen(
        [*COMMAND, "--debug", *words, *(["--json", "--explain-policy"] if as_json else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout and process.stderr
        start = b""
        if as_json:  # nothing is printed before the end but what is said of every round
            next(line for line in process.stderr if b"no draft" in line)
        else:
            start = process.stdout.read(100)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert b"tok/s" in err
    if as_json:
        assert b'"finish_reason": "cancelled"' in out
    else:
        assert (start + out).endswith(b"\n")


def test_a_closed_pipe_ends_it_quietly(endless: Path, environment: dict[str, str]) -> None:
    words = ["run", str(endless), "stay", "--draft", "none", "--ctx", "60000", "--threads", "1"]
    with subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(timeout=PATIENCE) == 1
        assert process.stderr.read() == b""


def test_reading_a_long_prompt_is_shown_on_a_terminal(endless: Path, environment: dict[str, str]) -> None:
    words = ["run", str(endless), "stay " * 300, "--max-tokens", "3", "--threads", "1", "--draft", "none"]
    child = pexpect.spawn(
        COMMAND[0],
        [*COMMAND[1:], *words],
        env=environment,  # type: ignore[arg-type]
        encoding="utf-8",
        codec_errors="replace",
        timeout=PATIENCE,
    )
    child.expect(r"\r\x1b\[K.*reading the prompt: 512 of 1218 tokens")
    child.expect_exact("\r\x1b[K")  # cleared before the answer
    child.expect("tok/s")  # the report is the default at a terminal
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert "reading the prompt" not in child.before


def test_a_long_prompt_with_a_slash_is_no_file_name() -> None:
    text = "and/or " + "x" * 5000
    assert pair_and_text((text,), None, None, False) == (None, text)


def test_a_prompt_that_begins_like_a_path_where_one_may_not_look_is_a_prompt() -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    text = "/etc/secret/key: what is that?"
    with pytest.MonkeyPatch.context() as patch:
        for question in ("exists", "is_file", "is_dir"):
            patch.setattr(Path, question, refuse)
        found = pair_and_text((text,), None, None, False)
    assert found == (None, text)


def test_a_folder_with_an_onnx_model_names_it_and_the_prompt_is_on_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.onnx").touch()
    for word in (str(tmp_path), str(tmp_path / "model.onnx"), "model.onnx"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"stay\n")))
        assert pair_and_text((word,), None, None, False) == (word, "stay")
