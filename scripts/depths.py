"""Decode speed of a pair by depth, interleaved in one run, with edgespec's own share of a round.

python scripts/depths.py TARGET DRAFT SUITE.jsonl [--depths 0,2,4,8] [--tokens 128] [--repeats 2]
"""

import json
import resource
from pathlib import Path
from statistics import median

import click

from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.chat.templates import chat_prompt
from edgespec.control.policy import FixedDepth
from edgespec.decoding.engine import Request
from edgespec.decoding.generation import Engine
from edgespec.decoding.sampling import SamplerSettings
from edgespec.drafters.draft_model import DraftModel
from edgespec.hub.resolve import resolve


@click.command()
@click.argument("target")
@click.argument("draft")
@click.argument("suite", type=click.Path(exists=True, path_type=Path))
@click.option("--depths", default="0,2,4,8", show_default=True)
@click.option("--tokens", default=128, show_default=True)
@click.option("--repeats", default=2, show_default=True)
@click.option("--temperature", default=0.0, show_default=True)
@click.option("--top-k", default=0, show_default=True)
@click.option("--top-p", default=1.0, show_default=True)
def main(
    target: str,
    draft: str,
    suite: Path,
    depths: str,
    tokens: int,
    repeats: int,
    temperature: float,
    top_k: int,
    top_p: float,
) -> None:
    target_model, draft_model = LlamaCpp(resolve(target).path), LlamaCpp(resolve(draft).path)
    engine = Engine(target_model, [DraftModel(draft_model)], FixedDepth(0))
    sampling = SamplerSettings(temperature=temperature, top_k=top_k, top_p=top_p)
    ks = [int(k) for k in depths.split(",")]
    for line in map(json.loads, suite.read_text("utf-8").splitlines()):
        prompt = chat_prompt(target_model, [{"role": "user", "content": line["turns"][0]}])
        speed: dict[int, list[float]] = {k: [] for k in ks}
        own: dict[int, list[float]] = {k: [] for k in ks}
        accepted = {}
        for _ in range(repeats):
            for k in ks:
                engine.policy = FixedDepth(k)
                before = draft_model.compute_seconds
                stats = engine.generate(prompt, Request(sampling, max_tokens=tokens)).run().stats
                drafting = stats.draft_seconds - (draft_model.compute_seconds - before)
                drafting += stats.draft_prompt_seconds if k else 0.0  # computed, but not while decoding
                speed[k].append(stats.tokens_per_second)
                own[k].append((stats.overhead_seconds + drafting) / max(stats.rounds, 1) * 1e3)
                accepted[k] = stats.accepted_per_round
        for k in ks:
            click.echo(
                f"{line['id']:24s} depth {k}: {median(speed[k]):6.1f} tok/s, "
                f"{median(speed[k]) / median(speed[ks[0]]):.2f} x depth {ks[0]}, "
                f"{accepted[k]:.2f} accepted per round, edgespec's own {median(own[k]):.2f} ms per round"
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    click.echo(f"peak resident memory {peak:.0f} MiB")


if __name__ == "__main__":
    main()
