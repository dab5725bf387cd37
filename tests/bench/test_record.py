"""What is recorded of a draft model is what it drafts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pair import VOCABULARY, load

from edgespec.bench.record import record
from edgespec.control.policy import FixedDepth
from edgespec.decoding.engine import Request
from edgespec.decoding.generation import Engine
from edgespec.decoding.rounds import Round
from edgespec.decoding.sampling import SamplerSettings
from edgespec.drafters.draft_model import DraftModel

PROMPT = VOCABULARY.ids(b"s", b"t", b"a")


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_trace_holds_what_the_draft_model_proposes_under_the_same_seed(
    model_files: Path, temperature: float
) -> None:
    target, drafter = load(model_files / "target.gguf"), DraftModel(load(model_files / "draft.gguf"))
    sampling = SamplerSettings(temperature, logit_bias=dict.fromkeys(VOCABULARY.ends, float("-inf")))
    rounds: list[Round] = []
    engine = Engine(target, [drafter], FixedDepth(3))
    try:
        request = Request(sampling, max_tokens=40, seed=5, on_round=rounds.append)
        text = engine.generate(PROMPT, request).run().tokens
        trace = record("a", "b", PROMPT, text, drafter.backend, drafter.backend.open(), sampling, seed=5)
    finally:
        engine.close()
        drafter.close()
        target.close()
    drafted = [(r.place - len(PROMPT), r.drafted) for r in rounds if r.drafted]
    assert len(drafted) > 5
    for place, nodes in drafted:
        guesses = list(trace.drafts(place))[: len(nodes)]
        assert guesses[0].token == nodes[0].token
        found = [(g.token, pytest.approx(g.confidence, abs=1e-4)) for g in guesses if g.token >= 0]
        assert [(n.token, n.confidence) for n in nodes][: len(found)] == found
