"""Decode speed of a pair by depth, interleaved in one run, with edgespec's own share of a round.

python scripts/depths.py TARGET DRAFT SUITE.jsonl [--backend onnx] [--draft-backend onnx] [--reference GGUF]

Greedy unless told otherwise. The reference is plain llama.cpp on another file, in the same run.
"""

import resource
from pathlib import Path
from statistics import median

import click

from edgespec.backends.llama_cpp import LlamaCpp, LlamaCppOptions
from edgespec.backends.loading import Settings, open_backend
from edgespec.bench.suite import read_suite
from edgespec.chat.templates import chat_prompt
from edgespec.control.policy import FixedDepth
from edgespec.decoding.engine import Request
from edgespec.decoding.generation import Engine
from edgespec.decoding.sampling import SamplerSettings
from edgespec.drafters.draft_model import DraftModel
from edgespec.hub.resolve import resolve

REFERENCE = "reference"


@click.command(help=__doc__)
@click.argument("target")
@click.argument("draft")
@click.argument("suite", type=click.Path(exists=True, path_type=Path))
@click.option("--backend", default="llama.cpp", show_default=True)
@click.option("--draft-backend", default="llama.cpp", show_default=True)
@click.option("--reference", help="A GGUF file for plain llama.cpp.")
@click.option("--depths", default="0,2,4,8", show_default=True)
@click.option("--tokens", default=128, show_default=True)
@click.option("--repeats", default=2, show_default=True)
@click.option("--ctx", default=2048, show_default=True)
@click.option("--temperature", default=0.0, show_default=True)
@click.option("--top-k", default=0, show_default=True)
@click.option("--top-p", default=1.0, show_default=True)
def main(
    target: str,
    draft: str,
    suite: Path,
    backend: str,
    draft_backend: str,
    reference: str | None,
    depths: str,
    tokens: int,
    repeats: int,
    ctx: int,
    temperature: float,
    top_k: int,
    top_p: float,
) -> None:
    settings = Settings(n_ctx=ctx)
    target_model = open_backend(resolve(target), backend, settings, 0)
    draft_model = open_backend(resolve(draft), draft_backend, settings, 0, drafts=True)
    click.echo(f"target and draft: peak resident memory {_peak():.0f} MiB")
    pair = Engine(target_model, [DraftModel(draft_model)], FixedDepth(0))
    engines = {f"depth {k}": pair for k in depths.split(",")}
    if reference:
        plain = LlamaCpp(resolve(reference).path, LlamaCppOptions(n_ctx=ctx))
        engines = {REFERENCE: Engine(plain, [], FixedDepth(0)), **engines}
    sampling = SamplerSettings(temperature=temperature, top_k=top_k, top_p=top_p)
    first = next(iter(engines))
    for asked in read_suite(suite):
        speed: dict[str, list[float]] = {name: [] for name in engines}
        own: dict[str, list[float]] = {name: [] for name in engines}
        accepted = {}
        for _ in range(repeats):
            for name, engine in engines.items():
                engine.policy = FixedDepth(0 if name == REFERENCE else int(name.removeprefix("depth ")))
                before = draft_model.compute_seconds
                prompt = chat_prompt(engine.target, [{"role": "user", "content": asked.text}])
                stats = engine.generate(prompt, Request(sampling, max_tokens=tokens)).run().stats
                drafting = stats.draft_seconds - (draft_model.compute_seconds - before)
                drafting += stats.draft_prompt_seconds  # computed, but not while decoding
                speed[name].append(stats.tokens_per_second)
                own[name].append((stats.overhead_seconds + drafting) / max(stats.rounds, 1) * 1e3)
                accepted[name] = stats.accepted_per_round
        for name in engines:
            click.echo(
                f"{asked.id:24s} {name:9s}: {median(speed[name]):6.1f} tok/s, "
                f"{median(speed[name]) / median(speed[first]):.2f} x {first}, "
                f"{accepted[name]:.2f} accepted per round, own {median(own[name]):.2f} ms a round"
            )
    click.echo(f"peak resident memory {_peak():.0f} MiB")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
