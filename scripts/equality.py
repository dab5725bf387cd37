"""Compares speculative with plain greedy text on a pair (docs/exactness.md).

python scripts/equality.py TARGET SUITE.jsonl [--draft DRAFT] [--backend onnx] [--prompts 20] [--tokens 128]

Where a token's logits do not depend on its pass, every token must be the same. Elsewhere near-ties are
counted, and anything else is a bug.
"""

from contextlib import closing
from pathlib import Path

import click
import numpy as np

import edgespec
from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.bench.equality import Equality, Margins, compare, measure_margins
from edgespec.bench.suite import read_suite
from edgespec.decoding.generation import Generation
from edgespec.hub.resolve import resolve


@click.command(help=__doc__)
@click.argument("target")
@click.argument("suite", type=click.Path(exists=True, path_type=Path))
@click.option("--draft")
@click.option("--backend", default="llama.cpp", show_default=True)
@click.option("--prompts", default=20, show_default=True)
@click.option("--tokens", default=128, show_default=True)
@click.option("--depth", default="4", show_default=True, help="A number or auto.")
def main(
    target: str, suite: Path, draft: str | None, backend: str, prompts: int, tokens: int, depth: str
) -> None:
    found = read_suite(suite)
    chosen = found[:: max(1, len(found) // prompts)][:prompts]  # spread over the categories
    texts = []
    with edgespec.load(target, backend=backend, depth=0) as plain:
        exact = plain.target.capabilities.row_invariant
        for asked in chosen:
            prompt = plain.tokenize([{"role": "user", "content": asked.text}])
            texts.append((asked.id, prompt, plain.generate(prompt, max_tokens=tokens)))
    margins = None if exact else _margins(target, texts, 5 if depth == "auto" else int(depth) + 1)
    k = "auto" if depth == "auto" else int(depth)
    accepted = rounds = different = 0
    with edgespec.load(target, draft=draft, backend=backend, depth=k) as speculative:
        result = Equality(0.0 if margins is None else _threshold(margins))
        for i, (name, prompt, text) in enumerate(texts):
            if margins is None:
                again = speculative.generate(prompt, max_tokens=tokens)
                same = again.tokens == text.tokens
                different += not same
                result.prompts += 1
                result.tokens += len(text.tokens)
                accepted += again.stats.accepted
                rounds += again.stats.rounds
                click.echo(f"{name}: {len(text.tokens)} tokens, {'the same' if same else 'DIFFERENT'}")
            else:
                before = len(result.near_ties)
                compare(prompt, text, margins[i], lambda p, n: speculative.generate(p, max_tokens=n), result)
                click.echo(f"{name}: {len(text.tokens)} tokens, near-ties {result.near_ties[before:]}")
    click.echo(f"{result.prompts} prompts, {result.tokens} tokens: ", nl=False)
    if margins is None:
        click.echo(f"{different} texts differ; {accepted} drafted tokens accepted in {rounds} rounds")
    else:
        ties = [round(m, 4) for m in result.near_ties]
        click.echo(f"{len(ties)} near-ties (margins {ties}), {len(result.bugs)} unexplained {result.bugs}")
    raise SystemExit(1 if result.bugs or different else 0)


def _margins(target: str, texts: list[tuple[str, list[int], Generation]], n: int) -> list[Margins]:
    with closing(LlamaCpp(resolve(target).path)) as backend:
        cache = backend.open()
        return [measure_margins(backend, cache, prompt, text.tokens, n) for _, prompt, text in texts]


def _threshold(margins: list[Margins]) -> float:
    moved = np.concatenate([m.moved for m in margins])
    threshold = float(np.percentile(moved, 99))
    click.echo(
        f"top-2 margin, a token alone against several a pass, {moved.size} positions: it moves by "
        f"mean {moved.mean():.4f}, median {np.median(moved):.4f}, 99th percentile {threshold:.4f}, "
        f"max {moved.max():.4f}"
    )
    return threshold


if __name__ == "__main__":
    main()
