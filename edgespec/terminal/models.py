"""How inventories and models look on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from edgespec.hub.gguf_info import ModelInfo
from edgespec.hub.inventory import FileState, Inventory, PairState
from edgespec.hub.sizes import human, human_count
from edgespec.terminal.tables import print_whole
from edgespec.visible import visible

_TEMPLATE_LINES = 8
_LEGEND = """
checksum  pinned: fixed in the catalog; the Hub's: the one the Hub publishes when you pull
tested    by us; what is not may still work, or turn out not to fit together
Fetch one: edgespec pull NAME"""


def print_inventory(inventory: Inventory) -> None:
    """The tables of `edgespec models`."""
    print_whole(lambda console: _print_inventory(console, inventory))


def _print_inventory(console: Console, inventory: Inventory) -> None:
    table = Table(title="Catalog", title_justify="left", box=None, padding=(0, 1, 0, 0))
    for heading in ("name", "size", "on disk", "draft", "licence", "checksum", "tested"):
        justify: JustifyMethod = "right" if heading == "size" else "left"
        table.add_column(heading, justify=justify, no_wrap=heading not in ("draft", "on disk"))
    for state in inventory.pairs:
        table.add_row(
            state.pair.name,
            human(sum(file.size or 0 for file in _states(state))),
            _on_disk(state),
            state.draft.file.key if state.draft else "prompt lookup",
            state.target.file.licence,
            _checksum(state),
            "yes" if state.pair.tested else "no",
        )
    console.print(table, highlight=False)
    if inventory.others:
        table = Table(title="\nAlso on this machine", title_justify="left", box=None)
        table.add_column("size", justify="right", no_wrap=True)
        table.add_column("name", overflow="fold")
        for model in inventory.others:
            table.add_row(human(model.size), Text(visible(model.name)))
        console.print(table, highlight=False)
    console.print(_LEGEND, highlight=False, soft_wrap=True)


def print_info(info: ModelInfo, *, full: bool = False) -> None:
    """What `edgespec models inspect` shows. `full`: the whole chat template."""
    print_whole(lambda console: _print_info(console, info, full))


def _print_info(console: Console, info: ModelInfo, full: bool) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for label, value in _facts(info):
        table.add_row(label, Text(visible(value)))
    console.print(table, highlight=False)
    table = Table(title="Weights", title_justify="left")
    for heading in ("type", "tensors", "bytes", "share"):
        table.add_column(heading, justify="left" if heading == "type" else "right")
    for kind in info.types:
        table.add_row(visible(kind.type), str(kind.tensors), f"{kind.bytes:,}", f"{kind.share:.1%}")
    console.print(table)
    if info.chat_template is None:
        console.print("Chat template: none; this model continues text.", highlight=False)
        return
    lines = info.chat_template.splitlines()
    shown = lines if full else [line[:200] for line in lines[:_TEMPLATE_LINES]]
    console.print(f"Chat template ({len(info.chat_template):,} characters):", highlight=False)
    console.print(visible("\n".join(shown)), markup=False, highlight=False, soft_wrap=True)
    if shown != lines:
        console.print("… (all of it: --full)", highlight=False)


def info_dict(info: ModelInfo) -> dict[str, Any]:
    """What `edgespec models inspect --json` prints."""
    fields = {name: getattr(info, name) for name in info.__dataclass_fields__}
    fields["files"] = [str(path) for path in info.files]
    fields["types"] = [vars(kind) for kind in info.types]
    fields["special_tokens"] = [vars(token) for token in info.special_tokens]
    return fields


def _facts(info: ModelInfo) -> list[tuple[str, str]]:
    unknown = "not stated"
    head = "the embedding table is also the output head" if info.tied else "without the embedding table"
    kv = f"{info.kv_bytes_per_token:,} at f16" if info.kv_bytes_per_token is not None else unknown
    if info.sliding_window:
        kv += f"; layers with a sliding window keep {info.sliding_window:,} tokens at most"
    facts = [
        ("file", ", ".join(str(path) for path in info.files)),
        ("size", f"{human(info.file_bytes)} ({info.file_bytes:,} bytes)"),
        ("name", info.name or unknown),
        ("architecture", f"{info.architecture}, {info.layers or '?'} layers"),
        ("parameters", f"{human_count(info.parameters)} ({info.parameters:,})"),
        ("quantization", info.quantization or unknown),
        ("weights read per token", f"{human(info.bytes_per_token)} ({head})"),
        ("context length", f"{info.context_length:,} tokens" if info.context_length else unknown),
        ("KV bytes per token", kv),
        ("tokenizer", info.tokenizer or unknown),
        ("vocabulary", f"{info.vocabulary:,} tokens" if info.vocabulary else unknown),
    ]
    facts += [(f"{token.role} token", f"{token.id} {token.text!r}") for token in info.special_tokens]
    return [*facts, ("licence", info.licence or unknown)]


def _states(state: PairState) -> list[FileState]:
    return [state.target] if state.draft is None else [state.target, state.draft]


def _on_disk(state: PairState) -> str:
    files = _states(state)
    if not all(file.on_disk for file in files):
        return "in part" if any(file.on_disk for file in files) else "no"
    return "yes" if all(file.verified for file in files) else "yes (not verified yet)"


def _checksum(state: PairState) -> str:
    pinned = all(file.checksum == "catalog" for file in _states(state))
    return "pinned" if pinned else "the Hub's"
