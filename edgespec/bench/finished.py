"""Results kept in a file as they come, for a run that is interrupted to be gone on with."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

from edgespec.bench.passes import Pass
from edgespec.bench.run import Compared
from edgespec.bench.suite import Prompt
from edgespec.bench.timed import Run
from edgespec.bench.traces import pack, unpack
from edgespec.errors import EdgespecError, UsageError
from edgespec.hub import store

FORMAT = "edgespec bench 2"


class Finished:
    """Finished prompts with their results, one for each draft; in a file of JSON lines, if one is given:
    first the settings, then a line per prompt. The file is replaced as a whole, so that a run killed at any
    time leaves a good one."""

    def __init__(self, file: Path | None, settings: Mapping[str, Any]) -> None:
        """settings: what results must have in common to be compared. Raises UsageError for a file of
        others, or of something else."""
        self._file = file
        self._settings = json.loads(json.dumps(settings))
        self._results: dict[str, list[Compared]] = {}
        """by `_key`: of a prompt that was changed since nothing is known"""
        if file is not None and file.is_file() and (lines := _lines(file)):
            self._check(file.name, lines[0])
            try:
                self._results = dict(map(_unpacked, lines[1:]))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise UsageError(f"{file.name} is damaged; delete it, or name another file") from None

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
    return found["prompt"], list(map(_unpacked_result, found["results"]))


def _unpacked_result(found: dict[str, Any]) -> Compared:
    found["runs"] = {way: [Run(*run) for run in runs] for way, runs in found["runs"].items()}
    found["rounds"] = [(drafted, accepted) for drafted, accepted in found["rounds"]]
    found["passes"] = [Pass(*kind) for kind in found["passes"]]
    found["trace"] = None if found["trace"] is None else unpack(found["trace"])
    return Compared(**found)
