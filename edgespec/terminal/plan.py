"""`edgespec plan`: what fits into memory."""

from __future__ import annotations

import json
import re

from rich.console import Console
from rich.table import Table

from edgespec.device.memory import find_available, resident_memory
from edgespec.errors import UsageError
from edgespec.hub.catalog import CatalogPair, load_catalog
from edgespec.hub.model_file import Pair
from edgespec.hub.names import kind_of, pair_named
from edgespec.hub.resolve import resolve_pair
from edgespec.hub.sizes import human
from edgespec.planning import Plan, best_plan, plans
from edgespec.terminal.answer import write_stdout
from edgespec.terminal.tables import print_whole
from edgespec.visible import visible

_NARROW = (0, 1, 0, 0)
"""between columns, so that a row fits into a line of 80"""


def plan(name: str | None, memory: str | None, n_ctx: int | None, as_json: bool) -> None:
    """Show what fits."""
    found = find_available()
    limit, source = found.bytes + resident_memory(), found.source
    if memory is not None:
        limit, source = parse_size(memory), "--memory"
    pairs: list[CatalogPair | Pair] = [*load_catalog().pairs.values()]
    if name is not None:
        pairs = [pair_named(name) if kind_of(name) == "pair" else resolve_pair(name)]
    ways = {pair.name: plans(pair, n_ctx) if name or _takes(pair, n_ctx) else [] for pair in pairs}
    chosen = {pair: best_plan(found, limit) for pair, found in ways.items()}
    if as_json:
        result: dict[str, object] = {
            "limit": {"bytes": limit, "source": source},
            "plans": {pair: plan.as_dict() if plan else None for pair, plan in chosen.items()},
        }
        if name is not None:
            result["ways"] = [way.as_dict() for found in ways.values() for way in found]
        write_stdout(json.dumps(result) + "\n")
        return

    def show(console: Console) -> None:
        console.print(f"memory: {human(limit)} ({source})")
        if name is None:
            _show_all(console, ways, chosen)
        else:
            ((found_ways, best),) = ((ways[pair], chosen[pair]) for pair in ways)
            _show_one(console, found_ways, best, limit)

    print_whole(show)


def parse_size(text: str) -> int:
    """Bytes of a size such as 2GB, 900MiB or 1.5g. Raises UsageError."""
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d+)?)\s*([KMGT]I?)B?\s*", text.upper())
    if match is None:
        raise UsageError(f"{text!r} is not a size; write it with its unit, like 2GB or 900MiB")
    base = 1024 if match[2].endswith("I") else 1000
    return int(float(match[1]) * base ** ("KMGT".index(match[2][0]) + 1))


def _takes(pair: CatalogPair | Pair, n_ctx: int | None) -> bool:
    return n_ctx is None or not isinstance(pair, CatalogPair) or n_ctx <= pair.target.shape["context"]


def _show_all(console: Console, ways: dict[str, list[Plan]], chosen: dict[str, Plan | None]) -> None:
    headings = ("pair", "needs", "weights", "KV", "backend", "context", "KV type", "draft")
    table = Table(*headings, box=None, padding=_NARROW)
    table.columns[0].overflow = "fold"
    for pair, plan in chosen.items():
        if not ways[pair]:
            table.add_row(pair, "", "takes no such context")
            continue
        if plan is None:
            least = min(way.needed for way in ways[pair])
            table.add_row(pair, human(least), "does not fit")
            continue
        parts = [part for part in (plan.target, plan.draft) if part]
        table.add_row(
            pair,
            human(plan.needed) + (" (*)" if plan.estimated else ""),
            human(sum(part.weights + part.copies for part in parts)),
            human(sum(part.kv for part in parts)),
            plan.backend,
            str(plan.n_ctx),
            plan.kv_type,
            "model" if plan.draft else "ngram",
        )
    console.print(table)
    console.print("needs: what must stay in memory for full speed. (*) estimated: not on this machine.")


def _show_one(console: Console, ways: list[Plan], best: Plan | None, limit: int) -> None:
    shown = best or min(ways, key=lambda way: way.needed)
    items = Table(show_header=False, box=None)
    for item, size in shown.items():
        items.add_row(item, human(size))
    items.add_row("needed for full speed", human(shown.needed))
    items.add_row("in memory where there is plenty", human(shown.peak))
    console.print(f"{'run with' if best else 'does not fit; the least is with'}: {shown.options}")
    console.print(items)
    table = Table("way", "drafts with", "needs", "", box=None, padding=_NARROW)
    table.columns[0].no_wrap = True  # to be copied
    table.columns[1].overflow = "fold"
    for way in ways:
        table.add_row(
            way.options, visible(way.drafter), human(way.needed), "fits" if way.needed <= limit else ""
        )
    console.print(table)
