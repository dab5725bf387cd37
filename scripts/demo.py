"""What speculation gains on this machine: the same prompts, plain and with prompt lookup."""

import edgespec

TEXT = (
    "The old lighthouse keeper climbed the spiral stairs every evenning to light the lamp. From the top he "
    "could see the fishing boats come home, one after another, their lanterns like small stars on the dark "
    "water. He counted them all, and when the last one was in, he sat down and read his book."
)
PROMPTS = {
    "an edit (the output repeats the input)": f"Correct the spelling in this text:\n\n{TEXT}",
    "free writing (nothing to look up)": "Write a short story about a lighthouse.",
}
DEPTH = 4


def main() -> None:
    with (
        edgespec.load("smollm2-135m", depth=0) as plain,
        edgespec.load("smollm2-135m", draft="ngram", depth=DEPTH) as speculative,
    ):
        for title, prompt in PROMPTS.items():
            messages = [{"role": "user", "content": prompt}]
            without = plain.generate(messages, max_tokens=100)
            fast = speculative.generate(messages, max_tokens=100)
            gain = fast.stats.tokens_per_second / without.stats.tokens_per_second
            same = "the same text" if fast.tokens == without.tokens else "a near-tie decided differently"
            print(f"\n{title}\n\n{fast.text}\n")
            print(f"  plain        {without.stats.line()}")
            print(f"  depth {DEPTH}      {fast.stats.line()}")
            print(f"  gain         {gain:.2f} x plain decoding, {same}")
    print(
        "\nThe depth is fixed so far: where drafts are rejected it costs time, as the second prompt shows."
        "\nUse --depth 0 there."
    )


if __name__ == "__main__":
    main()
