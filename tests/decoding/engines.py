"""What the tests of the generation loop share: the prompt, and output to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pair import VOCABULARY

from edgespec.decoding.engine import Request
from edgespec.decoding.generation import Engine, Generation
from edgespec.decoding.sampling import SamplerSettings

PROMPT = VOCABULARY.ids(b"s", b"t", b"a")
NO_END = SamplerSettings(logit_bias=dict.fromkeys(VOCABULARY.ends, float("-inf")))

Build = Callable[..., Engine]
"""the fixture `build`: (drafter, depth) → an engine"""


def plain(build: Build, request: Request, prompt: Sequence[int] = PROMPT) -> Generation:
    return build(None).generate(prompt, request).run()
