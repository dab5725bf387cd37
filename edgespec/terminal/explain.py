"""`edgespec explain`: a generation, round by round."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from edgespec.decoding.rounds import Round
from edgespec.options import GenerateOptions
from edgespec.terminal.answer import closing_remarks, follow, write_json
from edgespec.terminal.notes import PromptProgress
from edgespec.terminal.opening import as_prompt, open_pair
from edgespec.terminal.painting import Painter
from edgespec.terminal.prompts import pair_and_text
from edgespec.terminal.round_view import RoundView, view
from edgespec.terminal.run import result
from edgespec.visible import visible


def explain(
    prompting: Mapping[str, Any], loading: Mapping[str, Any], generating: GenerateOptions, as_json: bool
) -> bool:
    """Show the rounds on stdout; False if the user interrupted it."""
    pair, text = pair_and_text(**prompting)
    raw, greedy = prompting["raw"], generating["temperature"] == 0
    with open_pair(pair, loading, generating, raw) as runtime:
        prompt = as_prompt(runtime, text, prompting["system"], raw)
        progress, rounds = PromptProgress(), list[RoundView]()
        painter = None if as_json else Painter(Console(file=sys.stdout))

        def on_round(finished: Round) -> None:
            progress.clear()
            rounds.append(view(finished, runtime.target.tokenizer, greedy))
            if painter:
                painter.round(rounds[-1])

        if painter:
            painter.header(greedy)
        options: GenerateOptions = {**generating, "on_prompt": progress, "on_round": on_round}
        answer = runtime.stream(prompt, **options)
        tokens = follow(answer, progress)
        if painter:
            painter.summary(rounds, answer.stats.tokens)
            painter.line(visible(answer.stats.line()))
        else:
            found = result(runtime, answer, tokens, generating)
            found["rounds"] = [r.as_dict() for r in rounds]
            write_json(found)
        closing_remarks(answer, runtime.target.n_ctx, report=False)
        return answer.finish_reason != "cancelled"
