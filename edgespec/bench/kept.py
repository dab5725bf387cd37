"""Results kept in a file as they come, for a run that is interrupted to be gone on with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from edgespec.bench.passes import Pass
from edgespec.bench.run import Compared, Run
from edgespec.bench.traces import pack, unpack
from edgespec.errors import UsageError

FORMAT = "edgespec bench 1"


class Kept:
    """Finished prompts by id; in a file of JSON lines, if one is given: first the settings, then a line per
    prompt. The file is replaced as a whole, so that a run killed at any time leaves a good one."""

    def __init__(self, file: Path | None, settings: Mapping[str, Any]) -> None:
        """settings: what results must have in common to be compared. Raises UsageError for a file of
        others, or of something else."""
        self._file = file
        self._settings = json.loads(json.dumps(settings))
        self.results: dict[str, Compared] = {}
        if file is not None and file.is_file() and (lines := _lines(file)):
            self._check(file.name, lines[0])
            try:
                self.results = {result.id: result for result in map(_unpacked, lines[1:])}
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise UsageError(f"{file.name} is damaged; delete it, or name another file") from None

    def _check(self, name: str, line: str) -> None:
        try:
            head = json.loads(line)
            known = head["settings"] if head["format"] == FORMAT else None
        except (ValueError, KeyError, TypeError, RecursionError):
            known = None
        if known is None:
            raise UsageError(f"{name} holds no results of this version of edgespec bench; name another file")
        for key, value in self._settings.items():
            if known.get(key, value) != value:  # files of earlier versions say less
                raise UsageError(
                    f"the results in {name} were made with {key} {known.get(key)!r}, not {value!r}; "
                    "go on with the same options, or name another file"
                )

    def add(self, result: Compared) -> None:
        """A finished prompt."""
        self.results[result.id] = result
        if self._file is not None:
            lines = [{"format": FORMAT, "settings": self._settings}, *map(_packed, self.results.values())]
            partial = self._file.with_name(f"{self._file.name}.partial")
            partial.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
            partial.replace(self._file)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"{file.name} is damaged, or no text; name another file") from None


def _packed(result: Compared) -> dict[str, Any]:
    trace = None if result.trace is None else pack(result.trace)
    return asdict(replace(result, trace=None)) | {"trace": trace}


def _unpacked(line: str) -> Compared:
    found = json.loads(line)
    found["runs"] = {way: [Run(*run) for run in runs] for way, runs in found["runs"].items()}
    found["rounds"] = [(drafted, accepted) for drafted, accepted in found["rounds"]]
    found["passes"] = [Pass(*kind) for kind in found["passes"]]
    found["trace"] = None if found["trace"] is None else unpack(found["trace"])
    return Compared(**found)
