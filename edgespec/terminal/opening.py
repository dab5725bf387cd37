"""Load a pair for a command, and say what is not as one might expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgespec.decoding.sampling import SamplerSettings
from edgespec.errors import UsageError
from edgespec.loading import load
from edgespec.options import GenerateOptions, Prompt, SamplingOptions, form
from edgespec.runtime import Runtime
from edgespec.terminal.notes import note
from edgespec.visible import check_unicode


def open_pair(
    pair: str | None, loading: Mapping[str, Any], generating: GenerateOptions, raw: bool = False
) -> Runtime:
    """`edgespec.load`, after checking `generating`: no need to load gigabytes for a mistyped option."""
    if raw and loading["chat_template"] is not None:
        raise UsageError("--raw uses no chat template, so --chat-template has no place; leave one out")
    sampling: dict[str, Any] = {k: v for k, v in generating.items() if k in SamplingOptions.__annotations__}
    SamplerSettings(**sampling)
    asked = form(generating)
    runtime = load(pair, **loading)
    if pair is None:
        note(f"using {describe(runtime)}, the best pair on this machine")
    if loading["draft"] == "rules" and loading["depth"] != 0 and asked is None:
        note("--draft rules drafts what a form like --json-schema forces, and there is none: plain decoding")
    wanted = loading["depth"] != 0 and loading["draft"] not in ("none", "rules")
    if wanted and runtime.drafter is None and runtime.target.capabilities.rollback:  # else it said why
        note(f"{runtime.name} has no draft: plain decoding (--draft NAME or --draft ngram speeds it up)")
    return runtime


def describe(runtime: Runtime) -> str:
    """The pair in words."""
    drafter = f" drafted by {runtime.drafter.name}" if runtime.drafter else ""
    return f"{runtime.name} ({runtime.target.name}{drafter})"


def as_prompt(runtime: Runtime, text: str, system: str | None, raw: bool) -> Prompt:
    """`text` as one message for the chat template; as it is if `raw`, or if there is no template."""
    check_unicode("the prompt", text)  # before the template, which it would be counted in
    if raw:
        return text
    if not runtime.has_chat_template:
        if system is not None:
            raise UsageError(
                f"{runtime.target.name} carries no chat template, so --system has no place; leave it out, or "
                "give one with --chat-template FILE"
            )
        note(f"{runtime.target.name} carries no chat template: the text is continued as it is")
        return text
    turns = [{"role": "user", "content": text}]
    return turns if system is None else [{"role": "system", "content": system}, *turns]
