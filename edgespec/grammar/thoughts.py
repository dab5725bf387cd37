"""A form behind thoughts: whatever a reasoning model thinks is free, and the form is that of its answer."""

from __future__ import annotations

import json
from dataclasses import replace

from edgespec.grammar.constraint import Constraint

_UP_TO_END = r"(?s:.*)<\/think>"
_LINES = r"LINES: /\n{1,4}/"
"""what models put between thoughts and answer"""


def after_thoughts(form: Constraint, begun: bool) -> Constraint:
    """begun: the prompt opened the thoughts, so the output begins within them; otherwise it may begin with
    `<think>`, or with the answer at once. An answer that has not begun yet cannot end, unless the form is
    free."""
    if form.free and not begun:
        return form  # it allows for thoughts by itself
    inner = (
        {"lark_grammar": form.source} if form.kind == "grammar" else json.loads(form.source)["grammars"][0]
    )
    thoughts = f"thoughts[lazy]: /{'' if begun else '<think>'}{_UP_TO_END}/"
    if form.free:
        unfinished = f"UNFINISHED: /(?s:.*)/ & ~/{_UP_TO_END}(?s:.*)/"
        rules = ["start: thoughts @form | UNFINISHED", thoughts, unfinished]
    else:
        start = "start: thoughts LINES? @form" if begun else "start: (thoughts LINES?)? @form"
        rules = [start, thoughts, _LINES]
    whole = {"grammars": [{"lark_grammar": "\n".join(rules)}, {**inner, "name": "form"}]}
    return replace(form, source=json.dumps(whole))
