"""What speculation gains on this machine: the same prompts, plain and with prompt lookup."""

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
    without = plain.generate(messages, max_tokens=120)
    fast = speculative.generate(messages, max_tokens=120)
    verdict = "the same text"
    if fast.tokens != without.tokens:
        verdict = "not the same text as plain: docs/exactness.md tells how to find out why"
    print(f"\n{title}\n\n> {prompt}\n\n{fast.text}\n")
    print(f"  plain        {without.stats.line()}")
    print(f"  depth {DEPTH}      {fast.stats.line()}")
    print(f"  {gain(without.stats, fast.stats)}, {verdict}")


def gain(without: edgespec.Stats, fast: edgespec.Stats) -> str:
    """In words; an answer of a single token has no speed."""
    if not without.tokens_per_second:
        return "gain         not measurable on so short an answer"
    return f"gain         {fast.tokens_per_second / without.tokens_per_second:.2f} x plain decoding"


if __name__ == "__main__":
    main()
