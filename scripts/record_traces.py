"""Record traces of a suite for policy replay (edgespec/bench/traces.py).

python scripts/record_traces.py TARGET DRAFT SUITE.jsonl OUT.jsonl.gz [--tokens 128] [--temperature 0.7];
DRAFT may be "none".
"""

from collections.abc import Iterator
from pathlib import Path

import click

from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.bench.record import record
from edgespec.bench.suite import read_suite
from edgespec.bench.traces import Trace, save
from edgespec.chat.templates import chat_prompt
from edgespec.control.policy import FixedDepth
from edgespec.decoding.engine import Request
from edgespec.decoding.generation import Engine
from edgespec.decoding.sampling import SamplerSettings
from edgespec.hub.resolve import resolve


@click.command()
@click.argument("target")
@click.argument("draft")
@click.argument("suite", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--tokens", default=128, show_default=True)
@click.option("--temperature", default=0.0, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(target: str, draft: str, suite: Path, out: Path, tokens: int, temperature: float, seed: int) -> None:
    sampling = SamplerSettings(temperature=temperature)
    target_model = LlamaCpp(resolve(target).path)
    draft_model = None if draft == "none" else LlamaCpp(resolve(draft).path)
    cache = None if draft_model is None else draft_model.open()
    engine = Engine(target_model, (), FixedDepth(0))

    def traces() -> Iterator[Trace]:
        for asked in read_suite(suite):
            prompt = chat_prompt(target_model, [{"role": "user", "content": asked.text}])
            text = engine.generate(prompt, Request(sampling, max_tokens=tokens, seed=seed)).run().tokens
            if draft_model is None or cache is None:
                yield Trace(asked.id, asked.category, prompt, text)
            else:
                yield record(asked.id, asked.category, prompt, text, draft_model, cache, sampling, seed)
            click.echo(f"{asked.id}: {len(text)} tokens")

    save(traces(), out)


if __name__ == "__main__":
    main()
