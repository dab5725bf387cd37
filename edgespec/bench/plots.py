"""The plots of a benchmark's page: inline SVG whose colours follow the page, in light and in dark.

Drawn by matplotlib, whose text stays text. It knows no CSS variables: it draws with stand-in colours, which
are replaced in its output.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgespec.bench.passes import Pass, merge
from edgespec.bench.regret import OURS, Verdict
from edgespec.bench.run import Compared, Way
from edgespec.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, LINE = "#010203", "#010204"
SERIES = ("#010205", "#010206", "#010207", "#010208", "#010209", "#01020a")
COLOURS = {INK: "currentColor", LINE: "var(--line)"} | {
    stand_in: f"var(--series{i})" for i, stand_in in enumerate(SERIES)
}
ACCEPTED = ("#d1495b", "#d99a2b", "#2a9d8f")
"""from none to all; seen on light and on dark paper, and by the colour-blind"""
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "edgespec",
    "text.parse_math": False,  # names of others may hold dollars
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "grid.color": LINE,
    "axes.edgecolor": LINE,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}
WIDTH = 4.6
"""inches"""
SEEN = 3
"""passes of a kind at least, to be drawn"""


def check_installed() -> None:
    """Raises UsageError without matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError("--html needs matplotlib: pip install 'edgespec[bench]'; or leave it out") from None


def cost_curves(passes: Sequence[Pass]) -> str:
    """Milliseconds of a pass by the tokens fed, per model and context."""
    kinds: dict[tuple[str, int], list[Pass]] = {}
    for p in merge(passes):
        if p.seen >= SEEN:
            kinds.setdefault((p.model, p.context), []).append(p)
    models = list(dict.fromkeys(model for model, _ in kinds))
    styles: dict[str, list[str]] = {model: ["-", "--", ":", "-."] for model in models}

    def draw(axes: Axes) -> None:
        for (model, context), found in kinds.items():
            style = styles[model].pop(0) if styles[model] else "-."
            axes.plot(
                [p.n for p in found],
                [1000 * p.seconds for p in found],
                style,
                marker="o",
                markersize=3,
                color=SERIES[models.index(model) % len(SERIES)],
                label=f"{model}, context ≤ {context}",
            )
        axes.set(xlabel="tokens in a pass", ylabel="ms", ylim=(0, None))
        axes.figure.legend(loc="outside upper left")

    return _figure(draw, 2.6 + 0.17 * len(kinds))


def speedups(found: Mapping[str, Any]) -> str:
    """Per category: the geometric mean with its interval, and the worst prompt."""
    categories = {**found["categories"], "all": found}
    against = {"": "plain"}
    if "reference_geomean_speedup" in found:
        against["reference_"] = "reference"

    def draw(axes: Axes) -> None:
        for i, (prefix, name) in enumerate(against.items()):
            places = [-row + 0.2 * (len(against) - 1) * (1 - 2 * i) for row in range(len(categories))]
            means = [group[f"{prefix}geomean_speedup"] for group in categories.values()]
            low, high = zip(*(group[f"{prefix}interval"] for group in categories.values()), strict=True)
            worst = [group[f"{prefix}worst_speedup"] for group in categories.values()]
            axes.hlines(places, low, high, color=SERIES[i], linewidth=3, alpha=0.5)
            axes.plot(means, places, "o", color=SERIES[i], label=f"× {name}")
            axes.plot(worst, places, "x", color=SERIES[i], label="worst prompt")
        _mark_one(axes)
        axes.set_yticks([-row for row in range(len(categories))], list(categories))
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="speed-up, decode only", ylim=(-len(categories) + 0.4, 0.6))
        axes.figure.legend(loc="outside upper left", ncols=2)

    return _figure(draw, 1.0 + 0.2 * len(against) + 0.36 * len(categories))


def by_prompt(results: Sequence[Compared]) -> str:
    """All prompts, slowest first."""
    beside = all("reference" in r.runs for r in results)
    against: tuple[Way, ...] = ("plain", "reference") if beside else ("plain",)

    def draw(axes: Axes) -> None:
        for i, way in enumerate(against):
            found = sorted(r.speedup(way) for r in results)
            axes.plot(found, "o", markersize=4, color=SERIES[i], label=f"× {way}")
        axes.axhline(1.0, color=INK, linewidth=0.8, linestyle="--")
        axes.set(xlabel="prompts, slowest first", ylabel="speed-up", ylim=(0, None), xticks=[])
        axes.legend(loc="lower right")

    return _figure(draw, 2.6)


def depths(results: Mapping[str, Compared]) -> str:
    """Tokens drafted, round by round, coloured by the share that was accepted; by title."""

    def draw(panels: Sequence[Axes]) -> None:
        from matplotlib.colors import LinearSegmentedColormap
        from matplotlib.ticker import MaxNLocator

        colours = LinearSegmentedColormap.from_list("accepted", ACCEPTED)
        for axes, (title, result) in zip(panels, results.items(), strict=True):
            rounds, at = [], 0
            for depth, accepted in result.rounds:
                rounds.append((at, depth, accepted / max(depth, 1)))
                at += accepted + 1
            plain = [place for place, depth, _ in rounds if not depth]
            axes.plot(plain, [0] * len(plain), "o", markersize=3, markerfacecolor="none", markeredgecolor=INK)
            drafted = [found for found in rounds if found[1]]
            xs, ys, shares = zip(*drafted, strict=True) if drafted else ((), (), ())
            shown = axes.scatter(xs, ys, c=shares, cmap=colours, vmin=0.0, vmax=1.0, s=14)
            axes.set_title(title)
            axes.set(ylabel="depth", ylim=(-0.6, max(4, *ys) + 0.6 if ys else 4))
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set(xlabel="tokens so far")
        axes.figure.colorbar(shown, ax=list(panels), label="accepted", ticks=[0, 0.5, 1], aspect=40)

    return _panels(draw, 0.5 + 1.35 * len(results), len(results))


def regret(verdicts: Sequence[Verdict]) -> str:
    """Speed of each policy; edgespec's stands out."""

    def draw(axes: Axes) -> None:
        rows = range(len(verdicts))
        colours = [SERIES[0] if v.policy == OURS else LINE for v in verdicts]
        axes.barh(rows, [v.speedup for v in verdicts], color=colours, height=0.7)
        for row, v in zip(rows, verdicts, strict=True):
            axes.text(v.speedup, row, f" {v.speedup:.2f} × ({v.share - 1:+.0%})", va="center", fontsize=8)
        _mark_one(axes)
        axes.set_yticks(rows, [v.policy for v in verdicts])
        axes.grid(visible=False)
        axes.set(xlabel="× plain, simulated", xlim=(0, 1.35 * max(v.speedup for v in verdicts)))
        axes.invert_yaxis()

    return _figure(draw, 0.6 + 0.26 * len(verdicts))


def _mark_one(axes: Axes) -> None:
    axes.axvline(1.0, color=INK, linewidth=0.8, linestyle="--")


def _figure(draw: Callable[[Axes], None], height: float) -> str:
    """What `draw` puts on axes, as an element of a page."""
    return _panels(lambda panels: draw(panels[0]), height, 1)


def _panels(draw: Callable[[Sequence[Axes]], None], height: float, count: int) -> str:
    """The same, of `count` axes below one another."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure: Figure = Figure((WIDTH, height), layout="constrained")
        draw(list(figure.subplots(count, squeeze=False)[:, 0]))
        file = io.StringIO()
        none = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=none)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"|(?<=<g) id="[^"]*"', "", svg)
    svg = re.sub(r'(?<=<svg) ([^>]*?)(width|height)="[^"]*"([^>]*?)(width|height)="[^"]*"', r" \1\3", svg)
    return re.sub("|".join(COLOURS), lambda found: COLOURS[found[0]], svg)
