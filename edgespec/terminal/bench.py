"""`edgespec bench`: a suite, plainly and speculatively."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from edgespec.backends.fingerprint import identity
from edgespec.bench.finished import Finished, lock_results, results_file
from edgespec.bench.page import page
from edgespec.bench.plots import check_installed
from edgespec.bench.reference import measured_passes, open_reference
from edgespec.bench.regret import Verdict, costs_of, judge, timed
from edgespec.bench.run import Bench, Compared
from edgespec.bench.suite import Prompt, read_suite
from edgespec.bench.summary import of_prompt, summary
from edgespec.bench.traces import Trace, load
from edgespec.control.bandwidth import known_bandwidth
from edgespec.control.controller import Controller
from edgespec.device.cores import machine
from edgespec.device.power import threads_for
from edgespec.drafters.draft_model import DraftModel
from edgespec.errors import UsageError
from edgespec.hub.names import path_named
from edgespec.hub.sizes import counted, human
from edgespec.options import GenerateOptions
from edgespec.runtime import Runtime
from edgespec.terminal.answer import write_json
from edgespec.terminal.notes import note
from edgespec.terminal.opening import describe, open_pair
from edgespec.terminal.tables import print_whole
from edgespec.visible import visible


def bench(
    pair: str | None,
    suite: str,
    loading: Mapping[str, Any],
    generating: GenerateOptions,
    repeats: int,
    reference: bool,
    as_json: bool,
    html: str | None,
    traces: str | None,
    resume: str | None,
) -> None:
    """Compare on every prompt; results so far are kept in the file `resume`, and not repeated. What may fail
    is tried first: a run takes hours."""
    prompts = read_suite(_readable(Path(suite)))
    if traces and not html:
        raise UsageError("--traces is for the plot of depth policies; add --html FILE, or leave it out")
    recorded = load(_readable(Path(traces))) if traces else []
    for file in filter(None, (html, resume)):
        check_writable(Path(file))
    kept = results_file(resume) if resume else None
    if html:
        check_installed()
    drafts = loading["draft"] or (None,)
    if len(drafts) > 1 and html:
        raise UsageError("a page shows one draft; leave --html out, or name a single --draft")
    threads = loading["threads"] or threads_for(loading["power"])
    bandwidth = known_bandwidth([threads])
    with ExitStack() as opened:
        if kept is not None:
            opened.enter_context(lock_results(kept))
        runtimes: list[Runtime] = []
        for draft in drafts:
            runtime = opened.enter_context(open_pair(pair, {**loading, "draft": draft}, generating))
            if runtimes:  # all run on the first one's target
                runtime.target.close()
            runtimes.append(runtime)
        target = runtimes[0].target
        beside = open_reference(target, threads) if reference else None
        if beside is not None:
            opened.enter_context(beside)
        common = {
            "target": target.name,
            "backend": loading["backend"],
            "reference": beside.target.name if beside else "plain decoding" if reference else None,
            "repeats": repeats,
            **{key: generating.get(key) for key in ("max_tokens", "temperature", "seed")},
        }
        settings = [
            {"draft": r.drafter.name if r.drafter else None, "depth": r.depth, **common} for r in runtimes
        ]
        loaded = {name: value for name, value in loading.items() if name != "memory_check"}
        finished = Finished(
            kept,
            {
                "machine": machine(),
                "models": [_identities(r, loading["lora"]) for r in runtimes],
                **loaded,
                **common,
                **generating,
            },
            len(runtimes),
        )
        note(_plan(runtimes, len(prompts), repeats, reference, beside))
        comparing = Bench(runtimes, generating, repeats, beside, html is not None)
        comparing.check(prompt for prompt in prompts if finished.of(prompt) is None)
        measured = _run(comparing, prompts, finished)
        found = []
        for runtime, about, results in zip(runtimes, settings, measured, strict=True):
            summed = summary(results, bandwidth.best, reference and beside is None)
            found.append(
                {"pair": describe(runtime), **about, **summed, "machine_measured": bandwidth.measured}
            )
        # Before the page, which may meet a full disk, behind hours of measuring.
        if as_json:
            whole = [
                about | {"results": list(map(of_prompt, results))}
                for about, results in zip(found, measured, strict=True)
            ]
            write_json(whole[0] if len(whole) == 1 else {"drafts": whole})
        else:
            print_whole(lambda console: _show_all(console, found))
        if html:
            (runtime,), (results,) = runtimes, measured
            curves = measured_passes(beside, threads) if beside else []
            verdicts = _verdicts(runtime, recorded or [r.trace for r in results if r.trace is not None])
            Path(html).write_text(page(found[0], results, curves, verdicts), "utf-8")


def _identities(runtime: Runtime, lora: Sequence[str]) -> list[str]:
    """Of the files, adapters included, whatever they are called."""
    drafts = [drafter.backend for drafter in runtime.drafters if isinstance(drafter, DraftModel)]
    paths = [model.path for model in (runtime.target, *drafts)]
    return [identity(path) for path in (*paths, *map(path_named, lora))]


def _readable(file: Path) -> Path:
    if not file.exists() or file.is_dir():  # a pipe can be read, too
        raise UsageError(f"there is no file {file}")
    return file


def check_writable(file: Path) -> None:
    """Raise UsageError unless it can be, as far as is known beforehand."""
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise UsageError(f"{file} cannot be written: it is a folder, or in one that is not there")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise UsageError(f"{file} cannot be written: you have no right to")


def _plan(
    runtimes: Sequence[Runtime], prompts: int, repeats: int, wanted: bool, reference: Runtime | None
) -> str:
    what = f"{counted(prompts, 'prompt')}, {counted(repeats, 'time')} each way"
    plan = f"{'; '.join(map(describe, runtimes))}, {what}"
    if reference is not None:
        return f"{plan}; reference: plain llama.cpp on {reference.target.name}"
    if wanted:
        return f"{plan}; the backend is llama.cpp, so plain decoding is the reference already: not run twice"
    return plan


def _run(bench: Bench, prompts: list[Prompt], finished: Finished) -> list[list[Compared]]:
    """All prompts, those that were not finished before for the first time; the results of each draft."""
    found = []
    for number, prompt in enumerate(prompts, 1):
        results = finished.of(prompt)
        if results is None:
            results = bench.compare(prompt, number)
            finished.add(prompt, results)
            note(f"{number} of {len(prompts)}: {prompt.id}: {'; '.join(map(_line, results))}")
        found.append(results)
    return [list(results) for results in zip(*found, strict=True)]


def _line(result: Compared) -> str:
    if not result.timed:
        return "too short to be timed"
    reference = "reference" in result.runs
    rate = result.bandwidth()
    parts = [
        f"{result.speed('speculative'):.1f} tok/s, {result.speedup():.2f} × plain",
        f"{result.speedup('reference'):.2f} × reference" if reference else "",
        f"{rate / 1e9:.1f} GB/s" if rate else "",
        "not the same tokens as plain" if result.same_tokens is False else "",
    ]
    return ", ".join(filter(None, parts))


def _verdicts(runtime: Runtime, traces: list[Trace]) -> list[Verdict] | str:
    """Of depth policies on these traces; or why there are none."""
    model = next((d for d in runtime.drafters if isinstance(d, DraftModel)), None)
    if model is None:
        return "there is no draft model, whose depth they would choose"
    if not isinstance(runtime.policy, Controller):
        return f"with --depth {runtime.depth} costs are not measured; use --depth auto"
    if not timed(traces):
        return (
            "proposals are recorded in runs with --html only, along greedy answers of several tokens "
            "(--traces FILE takes what scripts/record_traces.py recorded)"
        )
    return judge(traces, costs_of(runtime.policy, model.name))


def _show_all(console: Console, found: Sequence[Mapping[str, Any]]) -> None:
    for number, about in enumerate(found):
        if len(found) > 1:
            console.print(("\n" if number else "") + f"draft: {visible(about['draft'] or 'none')}")
        _show(console, about)


def _show(console: Console, found: Mapping[str, Any]) -> None:
    groups = {visible(name): group for name, group in found["categories"].items()} | {"all": found}
    against = {"": "plain"} | ({"reference_": "reference"} if "reference_geomean_speedup" in found else {})
    speeds = Table("", "prompts", box=None)
    for heading in (*(f"{way} tok/s" for way in against.values()), "tok/s"):
        speeds.add_column(heading, justify="right")
    for way in against.values():
        speeds.add_column(f"× {way} (worst)", justify="right")
    for name, group in groups.items():
        speeds.add_row(
            name,
            str(group["prompts"]),
            *(f"{group[f'{way}_tokens_per_second']:.1f}" for way in against.values()),
            f"{group['tokens_per_second']:.1f}",
            *(f"{group[f'{p}geomean_speedup']:.2f} ({group[f'{p}worst_speedup']:.2f})" for p in against),
        )
    console.print(speeds)
    console.print()
    shares = Table("", box=None)
    for heading in ("tokens/round", "accepted", "draft", "verify", "Python", "GB/s"):
        shares.add_column(heading, justify="right")
    for name, group in groups.items():
        rate = group["bytes_per_second"]
        shares.add_row(
            name,
            f"{group['tokens_per_round']:.2f}",
            *(f"{group[k]:.0%}" for k in ("acceptance", "draft_share", "verify_share", "python_share")),
            f"{rate / 1e9:.1f}" if rate else "",
        )
    console.print(shares)
    console.print()
    for line in closing_lines(found):
        console.print(visible(line))


def closing_lines(found: Mapping[str, Any]) -> list[str]:
    """What the table does not say."""
    lines = [_against(found, "", "plain decoding on the same backend")]
    if "reference_geomean_speedup" in found:
        lines.append(_against(found, "reference_", "the reference, plain llama.cpp on the GGUF file"))
    if found["bandwidth_share"]:
        lines.append(
            f"weights are read at {found['bytes_per_second'] / 1e9:.1f} GB/s, "
            f"{found['bandwidth_share']:.0%} of the {found['machine_bytes_per_second'] / 1e9:.1f} GB/s that "
            f"this machine reads (measured {found['machine_measured']}; "
            "edgespec probe --refresh measures again)"
        )
    if found["tokens_per_joule"] and found["plain_tokens_per_joule"]:
        lines.append(
            f"{found['tokens_per_joule']:.3g} tokens per joule, plain decoding "
            f"{found['plain_tokens_per_joule']:.3g}"
        )
    same = found["same_tokens"]
    lines.append(
        "answers are random, so they are not compared token by token (--seed makes them comparable)"
        if same is None
        else f"{same:.0%} of the answers are token for token those of plain decoding"
    )
    if found["peak_memory"] is not None:
        lines.append(f"peak memory {human(found['peak_memory'])}, of all models together")
    if found["too_short"]:
        lines.append(f"{counted(found['too_short'], 'answer')} too short to be timed, so not counted")
    return lines


def _against(found: Mapping[str, Any], prefix: str, what: str) -> str:
    low, high = found[f"{prefix}interval"]
    return (
        f"decode only, against {what}: {found[f'{prefix}geomean_speedup']:.2f} × "
        f"(95% interval {low:.2f} to {high:.2f}), worst {found[f'{prefix}worst_speedup']:.2f} × "
        f"({found[f'{prefix}worst_prompt']}); end to end "
        f"{found[f'{prefix}end_to_end_geomean_speedup']:.2f} ×; first token after "
        f"{found['plain_first_token_seconds']:.2f} s"
        + (f", there {found['reference_first_token_seconds']:.2f} s" if prefix else "")
    )
