"""`edgespec run`: one prompt, one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgespec.decoding.generation import Generation
from edgespec.decoding.stopping import Token
from edgespec.device.power import read_slowdown
from edgespec.options import GenerateOptions
from edgespec.runtime import Runtime
from edgespec.terminal.answer import closing_remarks, follow, write_json, write_stdout
from edgespec.terminal.notes import PromptProgress, policy_notes
from edgespec.terminal.opening import as_prompt, open_pair
from edgespec.terminal.prompts import pair_and_text


def run(
    prompting: Mapping[str, Any],
    loading: Mapping[str, Any],
    generating: GenerateOptions,
    as_json: bool,
    report: bool | None,
    explain_policy: bool = False,
) -> bool:
    """Answer on stdout; False if the user interrupted it."""
    pair, text = pair_and_text(**prompting)
    raw = prompting["raw"]
    with open_pair(pair, loading, generating, raw) as runtime:
        progress = PromptProgress()
        prompt = as_prompt(runtime, text, prompting["system"], raw)
        options: GenerateOptions = {**generating, "on_prompt": progress}
        if explain_policy:
            options["on_round"] = policy_notes(runtime.policy)
        answer = runtime.stream(prompt, **options)
        tokens = follow(answer, progress, None if as_json else write_stdout)
        if as_json:
            write_json(result(runtime, answer, tokens, generating))
        elif not answer.text.endswith("\n"):
            write_stdout("\n")
        closing_remarks(answer, runtime.target.n_ctx, report)
        return answer.finish_reason != "cancelled"


def result(
    runtime: Runtime, answer: Generation, tokens: list[Token], generating: GenerateOptions
) -> dict[str, object]:
    """The answer and how it came about, for machines."""
    found: dict[str, object] = {
        "text": answer.text,
        "tokens": answer.tokens,
        "finish_reason": answer.finish_reason,
        "stopped_by": answer.stopped_by,
        "pair": runtime.name,
        "target": runtime.target.name,
        "draft": runtime.drafter.name if runtime.drafter else None,
        "depth": runtime.depth,
        "seed": generating["seed"],
        "stats": answer.stats.as_dict(),
        "slowed_down": list(read_slowdown()),
    }
    if generating.get("logprobs") is not None:
        found["logprobs"] = [
            {"id": t.id, "text": t.text, "logprob": t.logprob, "top": [list(pair) for pair in t.top_logprobs]}
            for t in tokens
        ]
    return found
