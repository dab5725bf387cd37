"""Results kept in a file as they come, for a run that is interrupted to be gone on with."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

from edgespec.bench.passes import Pass
from edgespec.bench.run import Compared
from edgespec.bench.suite import Prompt
from edgespec.bench.timed import Run
from edgespec.bench.traces import Trace, pack, unpack
from edgespec.errors import EdgespecError, UsageError
from edgespec.hub import store

FORMAT = "edgespec bench 2"


class Finished:
    """Finished prompts with their results, one for each draft; in a file of JSON lines, if one is given:
    first the settings, then a line per prompt. The file is replaced as a whole, so that a run killed at any
    time leaves a good one."""

    def __init__(self, file: Path | None, settings: Mapping[str, Any], drafts: int = 1) -> None:
        """settings: what results must have in common to be compared. drafts: results of a prompt. Raises
        UsageError for a file of others, or of something else."""
        self._file = file
        self._settings = json.loads(json.dumps(settings))
        self._results: dict[str, list[Compared]] = {}
        """by `_key`: of a prompt that was changed since nothing is known"""
        if file is not None and file.is_file() and (lines := _lines(file)):
            self._check(file.name, lines[0])
            try:
                self._results = dict(map(_unpacked, lines[1:]))
                whole = len(self._results) == len(lines) - 1 and _alike(self._results.values(), drafts)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                whole = False
            if not whole:
                raise UsageError(f"{file.name} is damaged; delete it, or name another file")

    def of(self, prompt: Prompt) -> list[Compared] | None:
        """What was measured with it; None if it has not been yet."""
        return self._results.get(_key(prompt))

    def _check(self, name: str, line: str) -> None:
        try:
            head = json.loads(line)
            known = head["settings"] if head["format"] == FORMAT else None
        except (ValueError, KeyError, TypeError, RecursionError):
            known = None
        if not isinstance(known, dict):
            raise UsageError(f"{name} holds no results of this version of edgespec bench; name another file")
        for key, value in self._settings.items():
            if known.get(key) != value:
                raise UsageError(
                    f"the results in {name} were made with {key} {known.get(key)!r}, not {value!r}; "
                    "go on with the same options, or name another file"
                )

    def add(self, prompt: Prompt, results: list[Compared]) -> None:
        """A finished prompt. Raises EdgespecError where the file cannot be written; it is what it was."""
        self._results[_key(prompt)] = results
        if self._file is not None:
            head = {"format": FORMAT, "settings": self._settings}
            lines = [head, *(_packed(key, found) for key, found in self._results.items())]
            _replace(self._file, "".join(json.dumps(line) + "\n" for line in lines))


def results_file(name: str) -> Path:
    """Where results of this name are kept: links stay, and lead there. Raises UsageError for what would not
    survive being replaced, as a device or a pipe."""
    file = Path(os.path.realpath(name))
    if os.path.lexists(file) and not file.is_file():
        raise UsageError(f"{name} is no regular file, and results would take its place; name another file")
    if not os.access(file.parent, os.W_OK):
        raise UsageError(f"{name} cannot be written: its folder takes no new files, one of which replaces it")
    return file


def lock_results(file: Path) -> AbstractContextManager[None]:
    """For one run: of two, each would replace the file by what it knows. Raises UsageError in the other."""
    taken = UsageError(
        f"another run of edgespec bench keeps results in {file}; wait for it, or name another file"
    )
    return store.locked_path("bench", file, taken)


def _replace(file: Path, text: str) -> None:
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        partial.touch()
        if file.exists():
            shutil.copymode(file, partial)
        partial.write_text(text, "utf-8")
        partial.replace(file)
    except OSError as error:
        raise EdgespecError(
            f"{file} cannot be written: {error.strerror or error}; once it can be, run the same again, "
            "which goes on behind what is in it"
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink()


def _key(prompt: Prompt) -> str:
    return hashlib.sha256(json.dumps(astuple(prompt)).encode()).hexdigest()[:16]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"{file.name} is damaged, or no text; name another file") from None


def _packed(key: str, results: list[Compared]) -> dict[str, Any]:
    return {"prompt": key, "results": list(map(_packed_result, results))}


def _packed_result(result: Compared) -> dict[str, Any]:
    trace = None if result.trace is None else pack(result.trace)
    return asdict(replace(result, trace=None)) | {"trace": trace}


def _unpacked(line: str) -> tuple[str, list[Compared]]:
    found = json.loads(line)
    results = list(map(_unpacked_result, found["results"]))
    if not (isinstance(found["prompt"], str) and all(map(_sound, results))):
        raise ValueError
    return found["prompt"], results


def _unpacked_result(found: dict[str, Any]) -> Compared:
    found["runs"] = {way: [Run(*run) for run in runs] for way, runs in found["runs"].items()}
    found["rounds"] = [(drafted, accepted) for drafted, accepted in found["rounds"]]
    found["passes"] = [Pass(*kind) for kind in found["passes"]]
    found["trace"] = None if found["trace"] is None else unpack(found["trace"])
    return Compared(**found)


def _alike(found: Iterable[Sequence[Compared]], drafts: int) -> bool:
    """Whether each prompt has a result for each draft, and all of them have the same runs."""
    found = list(found)
    shapes = [
        {way: len(runs) for way, runs in result.runs.items()} for results in found for result in results
    ]
    return all(len(results) == drafts for results in found) and all(shape == shapes[0] for shape in shapes)


def _sound(result: Compared) -> bool:
    """Whether it can be computed with, as what was measured here can."""
    ways, repeats = result.runs.keys(), {len(runs) for runs in result.runs.values()}
    trace = result.trace
    return (
        all(isinstance(text, str) for text in (result.id, result.category))
        and {"plain", "speculative"} <= ways <= {"plain", "speculative", "reference"}
        and len(repeats) == 1
        and 0 not in repeats
        and all(_sound_run(run) for runs in result.runs.values() for run in runs)
        and result.first_token.keys() == ways
        and all(map(_is_amount, (*result.first_token.values(), result.draft_reads)))
        and (result.same_tokens is None or isinstance(result.same_tokens, bool))
        and all(_is_count(n) for pair in result.rounds for n in pair)
        and all(map(_sound_pass, result.passes))
        and (trace is None or _sound_trace(trace))
    )


def _sound_run(run: Run) -> bool:
    return (
        all(map(_is_count, (run.tokens, run.decoded, run.rounds, run.drafted, run.accepted)))
        and all(map(_is_amount, (run.seconds, run.drafting, run.verifying)))
        and all(known is None or _is_amount(known) for known in (run.bytes, run.joules))
        and run.accepted <= run.drafted
        and (run.rounds > 0 or run.decoded == 0)
    )


def _sound_pass(kind: Pass) -> bool:
    return (
        isinstance(kind.model, str)
        and all(_is_count(n) and n > 0 for n in (kind.n, kind.context, kind.seen))
        and _is_amount(kind.seconds)
    )


def _sound_trace(trace: Trace) -> bool:
    guesses = [*trace.model, *(guess for path in trace.astray for guess in path)]
    return (
        all(isinstance(text, str) for text in (trace.id, trace.category))
        and all(map(_is_count, (*trace.prompt, *trace.text)))
        and len(trace.model) in (0, len(trace.text))
        and all(_is_amount(n) for guess in guesses for n in (guess.confidence, guess.entropy))
    )


def _is_count(found: object) -> bool:
    return type(found) is int and _is_amount(found)


def _is_amount(found: object) -> bool:
    """Finite, not negative, and not so large that what is computed with it is not finite."""
    return type(found) in (int, float) and 0 <= found < 1e18  # type: ignore[operator]
