"""Compares speculative with plain greedy text on a pair, counting near-ties (docs/exactness.md).

python scripts/equality.py PAIR SUITE.jsonl [--prompts 20] [--tokens 128] [--depth 4]
"""

import json
from contextlib import closing
from pathlib import Path

import click
import numpy as np

import edgespec
from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.bench.equality import Equality, compare, measure_margins
from edgespec.hub.resolve import resolve


@click.command()
@click.argument("pair")
@click.argument("suite", type=click.Path(exists=True, path_type=Path))
@click.option("--prompts", default=20, show_default=True)
@click.option("--tokens", default=128, show_default=True)
@click.option("--depth", default=4, show_default=True)
def main(pair: str, suite: Path, prompts: int, tokens: int, depth: int) -> None:
    lines = [json.loads(line) for line in suite.read_text("utf-8").splitlines()]
    chosen = lines[:: max(1, len(lines) // prompts)][:prompts]  # spread over the categories
    texts = []
    with edgespec.load(pair, depth=0) as plain:
        for line in chosen:
            prompt = plain.tokenize([{"role": "user", "content": line["turns"][0]}])
            texts.append((line["id"], prompt, plain.generate(prompt, max_tokens=tokens)))
    with closing(LlamaCpp(resolve(pair).path)) as target:
        cache = target.open()
        margins = [measure_margins(target, cache, p, t.tokens, depth + 1) for _, p, t in texts]
    moved = np.concatenate([m.moved for m in margins])
    threshold = float(np.percentile(moved, 99))
    click.echo(
        f"top-2 margin, 1 against {depth + 1} tokens a pass, {moved.size} positions: it moves by "
        f"mean {moved.mean():.4f}, median {np.median(moved):.4f}, 99th percentile {threshold:.4f}, "
        f"max {moved.max():.4f}"
    )
    result = Equality(threshold)
    with edgespec.load(pair, depth=depth) as speculative:
        for (name, prompt, text), margin in zip(texts, margins, strict=True):
            before = len(result.near_ties)
            compare(prompt, text, margin, lambda p, n: speculative.generate(p, max_tokens=n), result)
            click.echo(f"{name}: {len(text.tokens)} tokens, near-ties {result.near_ties[before:]}")
    click.echo(
        f"{result.prompts} prompts, {result.tokens} tokens: {len(result.near_ties)} near-ties "
        f"(margins {[round(m, 4) for m in result.near_ties]}), {len(result.bugs)} unexplained {result.bugs}"
    )
    raise SystemExit(1 if result.bugs else 0)


if __name__ == "__main__":
    main()
