"""The exactness of test_exact_distribution.py under a grammar: p is the target's distribution over the tokens
with which a text of the language can go on, renormalised before anything else is done to it.

The languages here are finite and listed by hand, so that what may follow is known without the engine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pytest
from pair import TARGET, VOCABULARY

from .expected import chi_square, joint
from .policies import Controlled, Erratic
from .sampling_run import Case, Sample, sample
from .test_exact_distribution import workers  # noqa: F401

SAMPLES = 800
FALSE_ALARM = 1e-4
TEXT_TOKENS = range(len(VOCABULARY.pieces))


@dataclass(frozen=True)
class Language:
    """A regular expression, and every text that it matches."""

    regex: str
    texts: Collection[str]
    spelled: Mapping[bytes, bytes] = field(default_factory=dict)
    """where the next bytes are forced and tokens could spell them in several ways: by the text before them
    the one allowed token, with which the tokenizer would begin"""

    def allowed(self, continuation: Sequence[int]) -> set[int]:
        """The tokens that may follow, among them all that end a text where it may end."""
        before = VOCABULARY.text(continuation)
        if before in self.spelled:
            return {VOCABULARY.id(self.spelled[before])}
        texts = [text.encode() for text in self.texts]
        going_on = {t for t in TEXT_TOKENS if any(x.startswith(before + VOCABULARY.piece(t)) for x in texts)}
        return going_on | (set(VOCABULARY.ends) if before in texts else set())


def every(*parts: Sequence[str]) -> list[str]:
    """Every text made of one of each."""
    return ["".join(choice) for choice in product(*parts)]


# "st" and "er" are tokens besides "s", "t", "e" and "r"; é and ì are two tokens each.
FREE = Language(
    "(s|st|ta|é|ì)[aest]{1,2}(er|y)?",
    every(["s", "st", "ta", "é", "ì"], [*"aest", *every("aest", "aest")], ["", "er", "y"]),
)
FORCED = Language(
    "(tim|nim)(ast|mier)[ey]{1,2}",
    every(["tim", "nim"], ["ast", "mier"], [*"ey", *every("ey", "ey")]),
    {b"tima": b"st", b"nima": b"st", b"timmi": b"er", b"nimmi": b"er"},
)
PLAIN = {"temperature": 1.0}

CASES = {
    "a draft model, penalties, and filters, which choose among what is allowed": (
        FREE,
        Case(
            {"temperature": 1.2, "top_k": 5, "top_p": 0.95, "min_p": 0.03, "repetition_penalty": 1.3}, depth=3
        ),
    ),
    "prompt lookup, whose proposals the grammar may forbid": (
        FREE,
        Case(PLAIN, drafter="ngram", depth=4, prompt=tuple(VOCABULARY.ids(*[b"s", b"t", b"a", b"e"] * 3))),
    ),
    "rules alone": (FORCED, Case(PLAIN, drafter="", depth=1, max_tokens=8)),
    "rules, then a draft model": (FORCED, Case(PLAIN, depth=2, max_tokens=8)),
    "the controller": (FORCED, Case(PLAIN, drafter="draft+ngram", policy=Controlled, max_tokens=8)),
    "whatever a policy may do": (
        FORCED,
        Case(PLAIN, drafter="draft+ngram+hopeless", policy=Erratic, max_tokens=8),
    ),
    "seeded, over seeds": (FORCED, Case({"temperature": 1.2}, seeded=True, max_tokens=8)),
}


@pytest.mark.parametrize(("language", "case"), CASES.values(), ids=CASES.keys())
def test_texts_have_the_exact_distribution_of_the_grammar(
    workers: ProcessPoolExecutor,  # noqa: F811
    model_files: Path,
    language: Language,
    case: Case,
) -> None:
    constrained = Case(**vars(case) | {"regex": language.regex})
    parts = [
        workers.submit(sample, model_files, constrained, SAMPLES // 2, seed) for seed in (10**6, 2 * 10**6)
    ]
    found: Sample = parts[0].result() + parts[1].result()
    exact = joint(TARGET, case.prompt, case.max_tokens, case.options, language.allowed)
    p_value = chi_square(found.counts, exact)
    print(f"p = {p_value:.3g}; {found.accepted} of {found.drafted} drafts accepted; {len(exact)} texts")
    assert p_value > FALSE_ALARM
    assert found.accepted > SAMPLES / 5
    if language is FREE:
        assert found.drafted - found.accepted > SAMPLES / 20
