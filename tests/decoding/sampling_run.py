"""Many generations with the closed-form pair, counted: what the exactness tests judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from pair import VOCABULARY, load, model_path

from edgespec.backends.base import Backend
from edgespec.backends.caches import Caches
from edgespec.control.policy import FixedDepth, Policy
from edgespec.decoding import engine as engine_module
from edgespec.decoding.engine import Request
from edgespec.decoding.generation import Engine, Generation
from edgespec.decoding.sampling import SamplerSettings
from edgespec.decoding.verify import Rejection
from edgespec.drafters.base import Drafter, Node
from edgespec.drafters.draft_model import DraftModel
from edgespec.drafters.ngram import NGram
from edgespec.grammar.constraint import regex

from .expected import END
from .policies import Controlled, Erratic


class UntilVowel(FixedDepth):
    """Drafts on until a vowel was drafted: depth depends on the values drafted, which is allowed."""

    def wants_more(self, drafted: Sequence[Node]) -> bool:
        vowels = {VOCABULARY.id(v) for v in (b"a", b"e", b"i")}
        return super().wants_more(drafted) and not (drafted and drafted[-1].token in vowels)


class WhileSure(FixedDepth):
    """Drafts on while the probability of what was just drafted is high: allowed as well."""

    def wants_more(self, drafted: Sequence[Node]) -> bool:
        sure = all(n.q is None or n.q.prob(n.token) > 0.3 for n in drafted)
        return super().wants_more(drafted) and sure


@dataclass(frozen=True)
class Case:
    """A way to generate: what is sampled, how it is drafted, behind which prompt."""

    options: Mapping[str, Any]
    depth: int = 2
    max_tokens: int = 4
    drafter: str = "draft"
    """"draft", "ngram", "hopeless", "draft<ngram", or several of them with a plus between; empty: nobody"""
    policy: type[FixedDepth] | type[Controlled] | type[Erratic] = FixedDepth
    seeded: bool = False
    runtime: str = "llama.cpp"
    draft_runtime: str = "llama.cpp"
    prompt: Sequence[int] = tuple(VOCABULARY.ids(b"s", b"t", b"a"))
    regex: str | None = None
    """the form of the continuation"""
    together: int = 1
    """generations that share passes: when one ends, the next begins"""


@dataclass
class Sample:
    """Continuations with their counts, and what speculation did in them."""

    counts: Counter[tuple[int, ...]] = field(default_factory=Counter)
    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: Sample) -> Sample:
        return Sample(
            self.counts + other.counts,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
        )


@cache
def backend(folder: Path, name: str, runtime: str) -> Backend:
    """One loaded model per process."""
    model: Backend = load(model_path(folder, name, runtime))
    return model


@cache
def drafter(folder: Path, name: str, runtime: str, together: int) -> Drafter:
    lookup = NGram(longest=3, shortest=1)
    if name == "ngram":
        return lookup
    name, _, ahead = name.partition("<")  # a draft model for which lookup guesses ahead
    draft = load(model_path(folder, name, runtime))
    return DraftModel(draft, lookup if ahead else None, Caches(draft, together))


def finished(engine: Engine, prompt: Sequence[int], requests: Sequence[Request]) -> Iterator[Generation]:
    """Generate behind a prompt for each request, as many together as may be."""
    left, under_way = iter(requests), []
    while True:
        under_way += [engine.generate(prompt, r) for r in islice(left, engine.parallel - len(under_way))]
        if not under_way:
            return
        for outcome in engine.step(under_way):
            if isinstance(outcome, Exception):
                raise outcome
        yield from (one for one in under_way if one.over)
        under_way = [one for one in under_way if not one.over]


def sample(
    folder: Path, case: Case, n: int, seed: int, rule: Callable[[np.random.Generator], Any] = Rejection
) -> Sample:
    """Generate `n` times. Unseeded generations share one random stream, which `seed` starts; seeded
    ones have the seeds from `seed` on."""
    target = backend(folder, "target", case.runtime)
    drafters = [
        drafter(folder, name, case.draft_runtime, case.together) for name in case.drafter.split("+") if name
    ]
    policy: Policy = Controlled(drafters) if case.policy is Controlled else case.policy(case.depth)
    engine = Engine(target, drafters, policy, case.together)
    stream = np.random.default_rng(seed)
    settings = SamplerSettings(**case.options)
    form = None if case.regex is None else regex(case.regex)
    found = Sample()
    try:
        with mock.patch.object(engine_module, "Rejection", lambda _: rule(stream)):
            requests = [
                Request(
                    settings,
                    max_tokens=case.max_tokens,
                    seed=seed + i if case.seeded else None,
                    constraint=form,
                )
                for i in range(n)
            ]
            for generation in finished(engine, case.prompt, requests):
                end = [END] if generation.finish_reason == "stop" else []
                # A grammar that is complete ends it without an end token, whose probability is 1.
                found.counts[(*generation.tokens, *end)[: case.max_tokens]] += 1
                found.drafted += generation.stats.drafted
                found.accepted += generation.stats.accepted
    finally:
        engine.close()
    return found
