"""The results of a benchmark as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from edgespec.bench.run import Compared

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;color:#222}
table{border-collapse:collapse;width:100%}
td,th{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto}"""
WIDTH, ROW, LEFT = 900, 18, 220


def page(title: str, results: Sequence[Compared], found: Mapping[str, Any]) -> str:
    """The whole document."""
    low, high = found["interval"]
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>edgespec bench</title>
<style>{STYLE}</style><h1>edgespec bench</h1><p>{escape(title)}</p>
<p><b>{found["geomean_speedup"]:.2f} ×</b> plain decoding on the same backend, decode only
(95% interval {low:.2f} to {high:.2f}); worst prompt
{found["worst_speedup"]:.2f} × ({escape(found["worst_prompt"])}); end to end
{found["end_to_end_geomean_speedup"]:.2f} ×.</p>
<h2>By category</h2>{_categories(found["categories"])}
<h2>Speed-up by prompt</h2>{_bars(results)}
<h2>Rounds by tokens drafted</h2>{_depths(results)}
</html>"""


def _categories(categories: Mapping[str, Mapping[str, float]]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}<td>{c['prompts']}<td>{c['plain_tokens_per_second']:.1f}"
        f"<td>{c['tokens_per_second']:.1f}<td>{c['geomean_speedup']:.2f} ×<td>{c['worst_speedup']:.2f} ×"
        f"<td>{c['tokens_per_round']:.2f}<td>{c['acceptance']:.0%}"
        for name, c in categories.items()
    )
    head = (
        "<th>category<th>prompts<th>plain tok/s<th>tok/s<th>speed-up<th>worst<th>tokens/round<th>acceptance"
    )
    return f"<table><tr>{head}{rows}</table>"


def _bars(results: Sequence[Compared]) -> str:
    """Coloured by acceptance, from red (none) to green (all); a line at 1, plain decoding."""
    scale = (WIDTH - LEFT - 60) / max(1.2, *(r.speedup() for r in results))
    bars = "".join(
        f'<text x="{LEFT - 6}" y="{i * ROW + 13}" text-anchor="end">{escape(r.id[:30])}</text>'
        f'<rect x="{LEFT}" y="{i * ROW + 3}" width="{r.speedup() * scale:.1f}" height="{ROW - 5}" '
        f'fill="hsl({120 * r.of_speculation(lambda run: run.accepted / max(run.drafted, 1)):.0f} 55% 50%)"/>'
        f'<text x="{LEFT + r.speedup() * scale + 5:.1f}" y="{i * ROW + 13}">{r.speedup():.2f}</text>'
        for i, r in enumerate(sorted(results, key=lambda r: -r.speedup()))
    )
    one, bottom = LEFT + scale, len(results) * ROW
    line = f'<line x1="{one:.1f}" x2="{one:.1f}" y1="0" y2="{bottom}" stroke="#222" stroke-dasharray="3"/>'
    return f'<svg viewBox="0 0 {WIDTH} {bottom}" font-size="12">{bars}{line}</svg>'


def _depths(results: Sequence[Compared]) -> str:
    counts: dict[int, int] = {}
    for result in results:
        for depth, _ in result.rounds:
            counts[depth] = counts.get(depth, 0) + 1
    most = max(counts.values(), default=1)
    width = (WIDTH - LEFT) / (max(counts, default=0) + 1)
    bars = "".join(
        f'<rect x="{LEFT + k * width:.1f}" y="{120 - 100 * n / most:.1f}" width="{width - 3:.1f}" '
        f'height="{100 * n / most:.1f}" fill="#47a"/><text x="{LEFT + k * width:.1f}" y="134">{k}</text>'
        for k, n in sorted(counts.items())
    )
    return f'<svg viewBox="0 0 {WIDTH} 140" font-size="12">{bars}</svg>'
