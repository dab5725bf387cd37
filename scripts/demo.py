"""What speculation gains on this machine: the same prompts, plain and with prompt lookup."""

from collections.abc import Sequence

import edgespec

TEXT = (
    "The old lighthouse keeper climbed the spiral stairs every evenning to light the lamp. From the top he "
    "could see the fishing boats come home over the dark water, and he counted them all. When the last one "
    "was in, he sat down and read his book."
)
PROMPTS = {
    "an edit (the output repeats the input)": f"Correct the spelling in this text:\n\n{TEXT}",
    "an explanation (little to look up)": "What is photosynthesis?",
}
DEPTH = 4
RUNS = 3
"""each way and in turn, of which the median counts: one alone may meet a machine that is busy for a moment"""


def main() -> None:
    with (
        edgespec.load("smollm2-135m", depth=0) as plain,
        edgespec.load("smollm2-135m", draft="ngram", depth=DEPTH) as speculative,
    ):
        for runtime in (plain, speculative):  # what only a first run costs is not compared
            runtime.generate("one two three one two", max_tokens=8)
        for title, prompt in PROMPTS.items():
            compare(title, prompt, plain, speculative)
    print(
        "\nHere the depth is fixed, to show the difference: where there is little to look up, drafts are"
        "\nrejected, which gains nothing and can cost time. --depth auto, the default, stops drafting there."
    )


def compare(title: str, prompt: str, plain: edgespec.Runtime, speculative: edgespec.Runtime) -> None:
    messages = [{"role": "user", "content": prompt}]
    runs = [[way.generate(messages, max_tokens=120) for way in (plain, speculative)] for _ in range(RUNS)]
    without, fast = sorted(runs, key=gain)[RUNS // 2]
    verdict = "the same text"
    if any(without.tokens != fast.tokens for without, fast in runs):
        verdict = "not the same text as plain: docs/exactness.md tells how to find out why"
    print(f"\n{title}\n\n> {prompt}\n\n{fast.text}\n")
    print(f"  plain        {without.stats.line()}")
    print(f"  depth {DEPTH}      {fast.stats.line()}")
    won = gain((without, fast))
    said = f"{won:.2f} x plain decoding (median of {RUNS})" if won else "not measurable on so short an answer"
    print(f"  gain         {said}, {verdict}")


def gain(run: Sequence[edgespec.Generation]) -> float:
    """Of the second answer on the first; 0 where that has a single token, and so no speed."""
    without, fast = (answer.stats.tokens_per_second for answer in run)
    return fast / without if without else 0.0


if __name__ == "__main__":
    main()
