"""Benchmarks: what a suite is, what is summed up, and how a run goes on where one ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgespec.bench.finished import FORMAT, Finished, lock_results, results_file
from edgespec.bench.passes import Pass, merge
from edgespec.bench.run import Way
from edgespec.bench.suite import Prompt, read_suite
from edgespec.bench.summary import interval, of_prompt, summary
from edgespec.bench.timed import Run
from edgespec.bench.traces import Guess, Trace
from edgespec.errors import EdgespecError, UsageError
from edgespec.terminal.bench import check_writable, closing_lines

from .results import compared, runs

SETTINGS = {"pair": "a", "max_tokens": 128}


def asked(id: str) -> Prompt:
    return Prompt(id, "code", "a question")


def test_a_suite_is_lines_with_turns_or_a_prompt(tmp_path: Path) -> None:
    file = tmp_path / "suite.jsonl"
    file.write_text(
        '{"id": "x", "category": "code", "turns": ["one", "two"]}\n\n{"prompt": "three", "more": null}\n'
    )
    first, second = read_suite(file)
    assert (first.id, first.category, first.text) == ("x", "code", "one")
    assert (second.id, second.category, second.text) == ("3", "all", "three")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "line 1"),
        ("nonsense", "line 1"),
        ("[" * 100_000, "line 1"),
        ('{"turns": "one"}', "line 1"),
        ('{"prompt": null}', "line 1"),
        ('{"prompt": ""}', "line 1"),
        ("\n", "no prompts"),
        ('{"id": 1, "prompt": "a"}\n{"id": "1", "prompt": "b"}', "line 2 .* has the id '1'"),
        ('{"prompt": "a", "turns": ["b"]}', "line 1 .* turns and prompt"),
        ('{"prompt": "a"}\n{"prompt": "b", "prompt": "c"}', "line 2 .* 'prompt' stands twice"),
        ('{"prompt": "a", "id": null}', "line 1 .* id is null"),
        ('{"prompt": "a\\ud800"}', "line 1 .* its text is not valid Unicode at character 2"),
        ('{"prompt": "a", "id": "\\ud800"}', "line 1 .* its id is not valid Unicode"),
        ('{"prompt": "a", "category": null}', "line 1 .* category is null"),
    ],
)
def test_what_is_no_suite_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "suite.jsonl"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_suite(file)


def test_a_suite_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "suite.jsonl"
    file.write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(UsageError, match="not UTF-8 text"):
        read_suite(file)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "suite.jsonl"
    file.write_text('{"prompt": "a"}\n', "utf-8-sig")
    assert [prompt.text for prompt in read_suite(file)] == ["a"]


def test_a_prompt_may_hold_a_line_separator(tmp_path: Path) -> None:
    file = tmp_path / "suite.jsonl"
    file.write_text('{"prompt": "a\u2028b"}\n', "utf-8")
    assert [prompt.text for prompt in read_suite(file)] == ["a\u2028b"]


def test_the_mean_is_geometric_and_the_worst_prompt_is_named() -> None:
    slow = replace(compared("b", "chat", speculative=[20.0]), same_tokens=False)
    found = summary([compared(), slow], 45e9)
    assert found["geomean_speedup"] == pytest.approx(1.0)
    assert (found["worst_speedup"], found["worst_prompt"]) == (0.5, "b")
    assert found["same_tokens"] == 0.5
    assert found["categories"]["code"]["geomean_speedup"] == pytest.approx(2.0)
    low, high = found["interval"]
    assert low <= 1.0 <= high
    assert "reference_geomean_speedup" not in found


def test_a_ratio_is_the_median_of_ratios_within_repeats_so_that_drift_cancels() -> None:
    """The machine gets three times slower from repeat to repeat; speculation is twice as fast throughout."""
    drifting = compared(plain=[10.0, 30.0, 90.0], speculative=[5.0, 15.0, 45.0])
    assert drifting.speedup() == pytest.approx(2.0)
    one_hiccup = compared(plain=[10.0, 10.0, 10.0], speculative=[5.0, 50.0, 5.0])
    assert one_hiccup.speedup() == pytest.approx(2.0)


def test_the_reference_has_ratios_of_its_own_in_all_and_by_category() -> None:
    found = summary([compared(reference=[15.0]), compared("b", "chat", reference=[5.0])], 45e9)
    assert found["reference_geomean_speedup"] == pytest.approx(3.0**0.5)
    assert (found["reference_worst_speedup"], found["reference_worst_prompt"]) == (1.0, "b")
    assert found["categories"]["code"]["reference_worst_speedup"] == pytest.approx(3.0)
    assert found["reference_end_to_end_geomean_speedup"] < found["reference_geomean_speedup"]


def test_where_plain_decoding_is_the_reference_its_ratios_stand_for_both() -> None:
    found = summary([compared()], 45e9, reference_is_plain=True)
    for key in ("geomean_speedup", "interval", "worst_speedup", "end_to_end_geomean_speedup"):
        assert found[f"reference_{key}"] == found[key]


def test_shares_of_time_and_of_bandwidth_are_of_decoding() -> None:
    found = summary([compared()], 1e9)
    assert found["draft_share"] == pytest.approx(0.3)
    assert found["verify_share"] == pytest.approx(0.6)
    assert found["python_share"] == pytest.approx(0.1)
    assert found["bytes_per_second"] == pytest.approx(2e9 / 5.0)
    assert found["bandwidth_share"] == pytest.approx(0.4)


def test_tokens_per_joule_are_of_decoding_and_compared_with_plain_decodings() -> None:
    def taking(joules: float, way: Way) -> list[Run]:
        return [run._replace(joules=joules) for run in compared().runs[way]]

    measured = replace(
        compared(), runs={"plain": taking(50.0, "plain"), "speculative": taking(25.0, "speculative")}
    )
    found = summary([measured], 45e9)
    assert (found["tokens_per_joule"], found["plain_tokens_per_joule"]) == (4.0, 2.0)
    assert "4 tokens per joule, plain decoding 2" in closing_lines(found | {"machine_measured": "today"})
    assert summary([compared()], 45e9)["tokens_per_joule"] is None


def test_where_the_system_does_not_tell_the_peak_the_report_does_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = {"machine_measured": "today"}
    said = closing_lines(summary([compared()], 45e9) | measured)
    assert any("peak memory" in line for line in said)
    monkeypatch.setattr("edgespec.bench.summary.peak_memory", lambda: None)
    found = summary([compared()], 45e9)
    assert found["peak_memory"] is None
    assert not any("peak memory" in line for line in closing_lines(found | measured))


def test_end_to_end_counts_the_prompt_and_what_the_draft_reads_of_it() -> None:
    one = compared()
    assert one.end_to_end("plain") == pytest.approx(101 / 12.0)
    assert one.end_to_end("speculative") == pytest.approx(101 / 8.0)


def test_passes_of_several_prompts_weigh_by_how_many_they_were() -> None:
    few, many = Pass("m", 5, 256, 1.0, 1), Pass("m", 5, 256, 2.0, 2)
    other = Pass("m", 5, 1024, 9.0, 1)
    assert merge([few, other, many]) == [Pass("m", 5, 256, 2.0, 3), other]


def test_the_interval_narrows_with_the_prompts_and_is_always_the_same() -> None:
    few, many = interval([1.0, 2.0] * 3), interval([1.0, 2.0] * 100)
    assert many[1] - many[0] < few[1] - few[0]
    assert interval([1.0, 2.0] * 3) == few


def test_answers_too_short_to_be_timed_are_said_to_be() -> None:
    empty = replace(compared(), runs={"plain": runs(0.0), "speculative": runs(0.0)})
    with pytest.raises(UsageError, match="max-tokens"):
        summary([empty], 45e9)
    found = summary([empty, compared("b")], 45e9)
    assert "1 answer too short to be timed, so not counted" in closing_lines(
        found | {"machine_measured": "today"}
    )
    stopped = [run._replace(tokens=0) for run in runs(5.0)]  # at a stop text that was all of it
    assert not replace(compared(), runs={"plain": stopped, "speculative": stopped}).timed
    assert of_prompt(empty)["id"] == "a"


def test_results_are_kept_prompt_by_prompt(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    wrong = Guess(9, 0.5, 0.25)
    traced = replace(
        compared("b", reference=[1.0]),
        trace=Trace("b", "code", [1], [2, 3], [Guess(2, 0.875, 0.5), wrong], [[], [Guess(-1, 0.5, 0.5)]]),
    )
    first = Finished(file, SETTINGS, 2)
    first.add(asked("a"), [compared(reference=[2.0]), compared(reference=[3.0])])
    first.add(asked("b"), [traced, compared(reference=[2.0])])
    again = Finished(file, SETTINGS, 2)
    assert again.of(asked("a")) == [compared(reference=[2.0]), compared(reference=[3.0])]
    assert again.of(asked("b")) == [traced, compared(reference=[2.0])]
    assert again.of(asked("c")) is None


def test_a_prompt_that_was_changed_is_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    Finished(file, SETTINGS).add(asked("a"), [compared()])
    assert Finished(file, SETTINGS).of(replace(asked("a"), text="another")) is None
    assert Finished(file, SETTINGS).of(replace(asked("a"), category="prose")) is None


def cut_short_by(error: BaseException) -> Callable[[Path, str, str], int]:
    """In place of Path.write_text: half of it is written."""

    def write(path: Path, text: str, encoding: str) -> int:
        path.open("w", encoding=encoding).write(text[: len(text) // 2])
        raise error

    return write


def test_a_run_killed_while_it_writes_loses_no_finished_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kept.jsonl"
    kept = Finished(file, SETTINGS)
    kept.add(asked("a"), [compared()])

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "write_text", cut_short_by(KeyboardInterrupt()))
        kept.add(asked("b"), [compared("b")])
    found = Finished(file, SETTINGS)
    assert (found.of(asked("a")), found.of(asked("b"))) == ([compared()], None)


def test_what_is_no_regular_file_is_not_replaced_by_results(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "link", "loop"):
        with pytest.raises(UsageError, match=f"{name} is no regular file"):
            results_file(str(tmp_path / name))


def test_a_folder_that_takes_no_new_files_is_named_before_hours_of_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert results_file(str(tmp_path / "new")) == (tmp_path / "new").resolve()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="cannot be written"):
        results_file(str(tmp_path / "new"))


def test_a_link_to_results_stays_one_and_their_mode_stays_too(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    kept, link, others = tmp_path / "disk" / "kept", tmp_path / "link", tmp_path / "disk" / "kept.partial"
    link.symlink_to(kept)  # which is not there yet
    others.write_text("somebody's")
    for mode in (0o600, 0o664):
        Finished(results_file(str(link)), SETTINGS).add(asked("a"), [compared()])
        kept.chmod(mode)
        Finished(results_file(str(link)), SETTINGS).add(asked("b"), [compared()])
        assert kept.stat().st_mode & 0o777 == mode
    assert link.is_symlink()
    assert Finished(kept, SETTINGS).of(asked("b")) == [compared()]
    assert others.read_text() == "somebody's"
    assert sorted(kept.parent.iterdir()) == [kept, others]


def test_results_are_kept_by_one_run_at_a_time_and_one_that_was_killed_is_not_waited_for(
    tmp_path: Path,
) -> None:
    file = tmp_path / "kept.jsonl"
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from edgespec.bench.finished import lock_results\n"
        "with lock_results(Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(file)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        try:
            assert other.stdout.readline() == b"held\n"
            with pytest.raises(UsageError, match="another run"), lock_results(file):
                pass
            with lock_results(tmp_path / "other.jsonl"):
                pass
        finally:
            other.kill()
    with lock_results(file):
        pass


def test_results_that_cannot_be_written_are_told_of_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kept.jsonl"
    kept = Finished(file, SETTINGS)
    kept.add(asked("a"), [compared()])

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", cut_short_by(OSError(28, "No space left on device")))
        with pytest.raises(EdgespecError, match=r"kept\.jsonl cannot be written: No space .* run the same"):
            kept.add(asked("b"), [compared("b")])
    assert [*tmp_path.iterdir()] == [file]
    assert Finished(file, SETTINGS).of(asked("a")) == [compared()]


@pytest.mark.parametrize("damage", [b"{}", b"[]", b'{"runs": []}', b'{"id": "b', b"\xff", b"[" * 100_000])
def test_damaged_results_are_refused(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "kept.jsonl"
    Finished(file, SETTINGS).add(asked("a"), [compared()])
    file.write_bytes(file.read_bytes() + damage)
    with pytest.raises(UsageError, match=r"kept\.jsonl is damaged"):
        Finished(file, SETTINGS)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("prompt",), None),
        (("results",), []),
        (("results", 0, "id"), 5),
        (("results", 0, "category"), None),
        (("results", 0, "runs"), {}),
        (("results", 0, "runs", "plain"), []),
        (("results", 0, "runs", "plain", 0, 0), -1),
        (("results", 0, "runs", "plain", 0, 0), 1.5),
        (("results", 0, "runs", "plain", 0, 2), "1.0"),
        (("results", 0, "runs", "plain", 0, 2), -1.0),
        (("results", 0, "runs", "plain", 0, 2), float("nan")),
        (("results", 0, "runs", "plain", 0, 2), float("inf")),
        (("results", 0, "runs", "plain", 0, 2), 10**400),
        (("results", 0, "runs", "plain", 0, 2), None),
        (("results", 0, "runs", "plain", 0, 2), True),
        (("results", 0, "runs", "speculative", 0, 5), 0),
        (("results", 0, "runs", "speculative", 0, 7), 81),
        (("results", 0, "runs", "speculative", 0, 8), "many"),
        (("results", 0, "runs", "other"), [[101, 100, 5.0, 0, 0, 25, 80, 75, None, None]]),
        (("results", 0, "first_token"), {}),
        (("results", 0, "first_token", "plain"), None),
        (("results", 0, "draft_reads"), float("nan")),
        (("results", 0, "same_tokens"), "yes"),
        (("results", 0, "rounds", 0, 1), "3"),
        (("results", 0, "passes", 0, 0), None),
        (("results", 0, "passes", 0, 4), 0),
        (
            ("results", 0, "trace"),
            {"id": "a", "category": "b", "prompt": ["x"], "text": [], "model": [], "astray": {}},
        ),
    ],
)
def test_kept_results_that_cannot_be_computed_with_are_refused(
    tmp_path: Path, place: Sequence[Any], value: object
) -> None:
    file = tmp_path / "kept.jsonl"
    Finished(file, SETTINGS).add(asked("a"), [compared()])
    head, line = file.read_text().splitlines()
    inner = found = json.loads(line)
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    file.write_text(f"{head}\n{json.dumps(found)}\n")
    with pytest.raises(UsageError, match=r"kept\.jsonl is damaged"):
        Finished(file, SETTINGS)


def test_so_are_results_of_which_a_prompt_has_too_many_or_others_than_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    kept = Finished(file, SETTINGS)
    kept.add(asked("a"), [compared()])
    kept.add(asked("b"), [compared("b")])
    with pytest.raises(UsageError, match=r"kept\.jsonl is damaged"):
        Finished(file, SETTINGS, 2)
    whole = file.read_text()
    file.write_text(whole + whole.splitlines()[-1] + "\n")
    with pytest.raises(UsageError, match=r"kept\.jsonl is damaged"):
        Finished(file, SETTINGS)
    file.write_text(whole)
    Finished(file, SETTINGS).add(asked("c"), [compared(plain=[1.0, 1.0], speculative=[1.0, 1.0])])
    with pytest.raises(UsageError, match=r"kept\.jsonl is damaged"):
        Finished(file, SETTINGS)


def test_results_of_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    Finished(file, SETTINGS).add(asked("a"), [compared()])
    with pytest.raises(UsageError, match="max_tokens 128, not 64"):
        Finished(file, {**SETTINGS, "max_tokens": 64})
    for head in ({"id": "a"}, {"format": FORMAT, "settings": 3}):
        file.write_text(json.dumps(head))
        with pytest.raises(UsageError, match="name another file"):
            Finished(file, SETTINGS)


@pytest.mark.parametrize("name", ["new.html", "old.html"])
def test_a_file_that_may_not_be_written_is_refused_before_hours_of_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "old.html").touch()
    check_writable(tmp_path / name)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="cannot be written"):
        check_writable(tmp_path / name)
