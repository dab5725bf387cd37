"""Options that several commands share.

Each decorator adds a family of options and hands them to the command as one dictionary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeAlias

import click

from edgespec.objects import each_once
from edgespec.visible import check_unicode

Command: TypeAlias = Callable[..., None]


def _biases(context: click.Context, option: click.Parameter, given: Sequence[str]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for text in given:
        token, _, bias = text.partition("=")
        try:
            id, value = int(token), float(bias)
        except ValueError:
            message = f"{text!r} is not a token id, an equals sign and a number, such as 42=-5"
            raise click.BadParameter(message, context, option) from None
        if id in biases:
            raise click.BadParameter(f"token {id} is named twice", context, option)
        biases[id] = value
    return biases


def _text(context: click.Context, option: click.Parameter, path: str | None) -> str | None:
    from edgespec.terminal.prompts import read_text

    return None if path is None else read_text(path)


def _json(context: click.Context, option: click.Parameter, path: str | None) -> Any:
    text = _text(context, option, path)
    if text is None:
        return None
    try:
        found = json.loads(text, object_pairs_hook=each_once)
    except ValueError as error:
        raise click.BadParameter(f"{path} is not valid JSON: {error}", context, option) from None
    except RecursionError:
        raise click.BadParameter(f"{path} is nested too deeply; flatten it", context, option) from None
    if found is None:  # which would stand for no schema at all
        raise click.BadParameter(f"{path} holds null, which is no JSON schema", context, option)
    return found


def named(context: click.Context, option: click.Parameter, path: str | None) -> str | None:
    """What a path must be where leaving the option out is another wish: an empty one, as of a variable that
    is not set, would be taken for that."""
    if path == "":
        raise click.BadParameter("the name is empty; name a file", context, option)
    return path


def unicode(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """What a text for the model must be."""
    if text is not None:
        check_unicode(str(option.opts[0]), text)
    return text


def _once(context: click.Context, option: click.Parameter, given: Sequence[str]) -> str | None:
    if len(given) > 1:
        message = f"it is given {len(given)} times, and one file is read; put the texts into one"
        raise click.BadParameter(message, context, option)
    return next(iter(given), None)


def _not_empty(context: click.Context, option: click.Parameter, texts: Sequence[str]) -> Sequence[str]:
    if not all(texts):
        raise click.BadParameter("a stop text is empty", context, option)
    return texts


class _Depth(click.ParamType):  # type: ignore[type-arg]
    name = "depth"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        if value == "auto":
            return value
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a whole number nor auto", param, context)


_WHO_DRAFTS = (
    "What drafts: a model (named like PAIR), ngram (looks the text itself up), rules (only what a form such "
    "as --json-schema forces, with which the others begin, too), or none. Without it: what belongs to the "
    "pair."
)
_DRAFT = click.option("--draft", metavar="NAME", help=_WHO_DRAFTS)
_DRAFTS = click.option(
    "--draft",
    metavar="NAME",
    multiple=True,
    help=_WHO_DRAFTS + " May be repeated: all are compared with the same plain runs.",
)

_LOADING = (
    click.option(
        "--depth", type=_Depth(), default="auto", show_default=True, metavar="N",
        help="Tokens to draft per round; 0 decodes plainly; auto decides every round who drafts, and how "
        "deep, and drafts nothing where it does not pay.",
    ),
    click.option(
        "--backend", default="llama.cpp", show_default=True, metavar="NAME",
        help="What runs the models: llama.cpp; onnx, which takes ONNX models and converted GGUF ones "
        "(edgespec convert); or auto, which measures once which is faster.",
    ),
    click.option(
        "--draft-backend", metavar="NAME",
        help="What runs the draft model. Default: as --backend; onnx for an ONNX model.",
    ),
    click.option(
        "--provider", metavar="NAME",
        help="What ONNX Runtime computes on: cpu (the default), cuda, …; auto tries those installed.",
    ),
    click.option(
        "--ctx", "n_ctx", type=click.IntRange(min=1), metavar="N",
        help="Tokens of context. Default: 4096, or what the model was trained for if that is less.",
    ),
    click.option(
        "--threads", type=click.IntRange(min=1), metavar="N",
        help="Compute threads. Default: one per physical (big) core.",
    ),
    click.option(
        "--power", type=click.Choice(["performance", "balanced", "saver"]), default="performance",
        show_default=True,
        help="performance: a thread per big core. balanced: half of them. saver: one thread, and look-up in "
        "the text instead of a draft model.",
    ),
    click.option(
        "--kv-type", type=click.Choice(["f16", "q8_0", "f32"]),
        help="Precision of the KV cache; f16 takes half the memory of f32, and q8_0, which only llama.cpp "
        "has, a quarter. Default: f16; f32 with ONNX.",
    ),
    click.option(
        "--gpu-layers", type=click.IntRange(min=0), metavar="N",
        help="Layers to put on the GPU. Default: all if this build has a GPU.",
    ),
    click.option(
        "--lora", type=click.Path(), multiple=True, metavar="FILE",
        help="A LoRA adapter (GGUF) for the target; may be repeated.",
    ),
    click.option(
        "--low-memory", is_flag=True,
        help="Keep no copy of the weights in an order that llama.cpp is faster with (625 MB of a 1.5B model "
        "at Q4_K_M). Edgespec's own kernels never need one; ONNX Runtime's operators do, and refuse this.",
    ),
    click.option(
        "--mmap/--no-mmap", default=True, show_default=True, help="Map the model file rather than read it."
    ),
    click.option(
        "--memory-check/--no-memory-check", default=True, show_default=True,
        help="Refuse to load what cannot stay in memory; edgespec plan says what can.",
    ),
    click.option(
        "--chat-template", callback=_text, metavar="FILE",
        help="A Jinja chat template to use instead of the model's.",
    ),
    click.option(
        "--strict", is_flag=True,
        help="Demand output bitwise equal to plain decoding; refused where the backend cannot.",
    ),
)  # fmt: skip

_GENERATING = (
    click.option(
        "--temperature", type=float, default=0.0, show_default=True, metavar="T",
        help="0 takes the most probable token; 1 samples from the model's distribution.",
    ),
    click.option("--top-k", type=int, default=0, metavar="K", help="Sample from the K most probable tokens."),
    click.option(
        "--top-p", type=float, default=1.0, metavar="P",
        help="Sample from the fewest tokens that hold this much probability.",
    ),
    click.option(
        "--min-p", type=float, default=0.0, metavar="P",
        help="Sample from tokens with at least this fraction of the best one's probability.",
    ),
    click.option(
        "--repetition-penalty", type=float, default=1.0, metavar="X",
        help="Divide the logits of tokens seen before; 1 is off.",
    ),
    click.option(
        "--presence-penalty", type=float, default=0.0, metavar="X",
        help="Lower the logits of tokens seen before.",
    ),
    click.option(
        "--frequency-penalty", type=float, default=0.0, metavar="X",
        help="Lower the logits of tokens by this for each time they were seen.",
    ),
    click.option(
        "--penalty-window", type=int, default=64, show_default=True, metavar="N",
        help="How many of the last tokens the penalties look at.",
    ),
    click.option(
        "--logit-bias", multiple=True, callback=_biases, metavar="ID=BIAS",
        help="Add BIAS to the logit of token ID; may be repeated.",
    ),
    click.option(
        "--seed", type=int, metavar="N",
        help="Make sampling reproducible; the text is then the same at every depth.",
    ),
    click.option(
        "--stop", multiple=True, callback=_not_empty, metavar="TEXT",
        help="End before this text; may be repeated.",
    ),
)  # fmt: skip


_FORMING = (
    click.option(
        "--json-schema", callback=_json, metavar="FILE", help="Answer with JSON of the schema in this file.",
    ),
    click.option(
        "--regex", metavar="REGEX", help="Answer with a text that this regular expression matches.",
    ),
    click.option(
        "--grammar", callback=_text, metavar="FILE",
        help="Answer with a text of the grammar in this file: Lark or GBNF.",
    ),
)  # fmt: skip


def loading(command: Command) -> Command:
    """Options of `edgespec.load`, handed over as `loading`."""
    return _family("loading", (_DRAFT, *_LOADING), command)


def loading_several(command: Command) -> Command:
    """As `loading`, with any number of drafts."""
    return _family("loading", (_DRAFTS, *_LOADING), command)


def generating(max_tokens: int | None) -> Callable[[Command], Command]:
    """Options of `Runtime.generate`, handed over as `generating`; the default of --max-tokens."""
    limit = click.option(
        "--max-tokens", type=click.IntRange(min=1), default=max_tokens, show_default=True, metavar="N",
        help="End after N tokens." + ("" if max_tokens else " Default: when the model ends, or the context."),
    )  # fmt: skip
    return lambda command: _family("generating", (limit, *_GENERATING), command)


def forming(command: Command) -> Command:
    """The form that the answer must have, handed over as `forming`."""
    return _family("forming", _FORMING, command)


def prompting(command: Command) -> Command:
    """Where the prompt comes from, handed over as `prompting`."""
    return _family(
        "prompting",
        (
            click.argument("words", nargs=-1, metavar="[PAIR] PROMPT"),
            click.option(
                "--file",
                type=click.Path(),
                multiple=True,
                callback=_once,
                metavar="FILE",
                help="Read the prompt from one file (UTF-8), or what stands behind PROMPT; - is stdin.",
            ),
            click.option("--system", callback=unicode, metavar="TEXT", help="The system message."),
            click.option("--raw", is_flag=True, help="Continue the text as it is, without a chat template."),
        ),
        command,
    )


def report(command: Command) -> Command:
    """Whether to say how it went."""
    option = click.option(
        "--report/--no-report", default=None,
        help="Say on stderr how fast it was. Default: if stderr is a terminal.",
    )  # fmt: skip
    return option(command)


def explain_policy(command: Command) -> Command:
    """Whether to say what was decided."""
    option = click.option(
        "--explain-policy", is_flag=True,
        help="Say on stderr, for each round, who drafted how deep and why.",
    )  # fmt: skip
    return option(command)


def _family(name: str, options: Sequence[Callable[[Command], Command]], command: Command) -> Command:
    def collected(**given: Any) -> None:
        command(**{name: {key: given.pop(key) for key in keys}}, **given)

    others = _parameters(command)
    decorated: Command = wraps(command)(collected)
    for option in reversed(options):
        decorated = option(decorated)
    keys = [p.name for p in _parameters(decorated) if p not in others]
    return decorated


def _parameters(command: Command) -> list[click.Parameter]:
    """What click's decorators have noted so far."""
    return list(command.__dict__.get("__click_params__", ()))
