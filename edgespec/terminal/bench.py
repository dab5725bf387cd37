"""`edgespec bench`: a suite, plainly and speculatively."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from edgespec.bench.page import page
from edgespec.bench.run import Compared, as_lines, compare, from_lines, read_suite, summary
from edgespec.errors import UsageError
from edgespec.runtime import GenerateOptions
from edgespec.terminal.answer import write_json
from edgespec.terminal.notes import note
from edgespec.terminal.opening import describe, open_pair
from edgespec.terminal.visible import visible


def bench(
    pair: str | None,
    suite: str,
    loading: Mapping[str, Any],
    generating: GenerateOptions,
    repeats: int,
    as_json: bool,
    html: str | None,
    resume: str | None,
) -> None:
    """Compare on every prompt; results so far are kept in the file `resume`, and not repeated."""
    prompts = read_suite(_readable(Path(suite)))
    file = Path(resume) if resume else None
    results = from_lines(file.read_text("utf-8")) if file and file.is_file() else []
    done = {result.id for result in results}
    with open_pair(pair, loading, generating) as runtime:
        times = f"{repeats} time{'s' * (repeats != 1)}"
        note(f"{describe(runtime)}, {len(prompts)} prompts, {times} each way")
        for number, prompt in enumerate(prompts, 1):
            if prompt.id in done:
                continue
            results.append(compare(runtime, prompt, generating, repeats))
            note(f"{number} of {len(prompts)}: {prompt.id}: {results[-1].speedup:.2f} × plain")
            if file:
                file.write_text(as_lines(results), "utf-8")
        found = {"pair": runtime.name, "depth": runtime.depth} | summary(results)
        if html:
            Path(html).write_text(
                page(f"{describe(runtime)}, depth {runtime.depth}", results, found), "utf-8"
            )
    if as_json:
        write_json(found | {"results": [asdict(r) | {"speedup": r.speedup} for r in results]})
    else:
        _show(found, results)


def _readable(file: Path) -> Path:
    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    return file


def _show(found: Mapping[str, Any], results: list[Compared]) -> None:
    console = Console(highlight=False)
    table = Table(
        "category", "prompts", "plain tok/s", "tok/s", "speed-up", "worst", "tokens/round", box=None
    )
    for name, c in found["categories"].items():
        table.add_row(
            visible(name),
            str(c["prompts"]),
            f"{c['plain_tokens_per_second']:.1f}",
            f"{c['tokens_per_second']:.1f}",
            f"{c['geomean_speedup']:.2f} ×",
            f"{c['worst_speedup']:.2f} ×",
            f"{c['tokens_per_round']:.2f}",
        )
    console.print(table)
    low, high = found["interval"]
    console.print(
        f"decode only, against plain decoding on the same backend: {found['geomean_speedup']:.2f} × "
        f"(95% interval {low:.2f} to {high:.2f}), worst {found['worst_speedup']:.2f} × "
        f"({visible(found['worst_prompt'])}); end to end {found['end_to_end_geomean_speedup']:.2f} ×; "
        f"{found['same_tokens']:.0%} of the answers token for token as plain"
    )
