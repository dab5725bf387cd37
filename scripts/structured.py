"""What tokens that a schema forces are worth: tok/s of structured output with and without the rules drafter.

python scripts/structured.py smollm2-135m

Decodes the same answers plainly, with rules alone and with what else is named, in turn; tok/s is of decoding
alone, the median of the repetitions, and ratios are medians of what was measured side by side.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from statistics import median
from typing import Any

import edgespec

TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "a contact": (
        "Extract the contact: Jane Roe leads sales at Acme in Oslo; call her at 555-0132.",
        {
            "type": "object",
            "properties": {
                "full_name": {"type": "string", "maxLength": 30},
                "job_title": {"type": "string", "maxLength": 30},
                "company_name": {"type": "string", "maxLength": 30},
                "phone_number": {"type": "string", "pattern": "^[0-9]{3}-[0-9]{4}$"},
                "preferred_contact": {"enum": ["phone", "email"]},
            },
            "required": ["full_name", "job_title", "company_name", "phone_number", "preferred_contact"],
            "additionalProperties": False,
        },
    ),
    "a list of products": (
        "List three kitchen products with a price and whether they are in stock.",
        {
            "type": "object",
            "properties": {
                "products": {
                    "type": "array",
                    "minItems": 3,
                    "maxItems": 3,
                    "items": {
                        "type": "object",
                        "properties": {
                            "product_name": {"type": "string", "maxLength": 30},
                            "price": {"type": "number", "minimum": 1, "maximum": 500},
                            "in_stock": {"type": "boolean"},
                        },
                        "required": ["product_name", "price", "in_stock"],
                        "additionalProperties": False,
                    },
                }
            },
            "required": ["products"],
            "additionalProperties": False,
        },
    ),
    "free text in an object": (
        "Explain in two sentences why the sky is blue.",
        {
            "type": "object",
            "properties": {"explanation": {"type": "string", "minLength": 100, "maxLength": 250}},
            "required": ["explanation"],
            "additionalProperties": False,
        },
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pair")
    parser.add_argument("--backend", default="llama.cpp")
    parser.add_argument(
        "--draft", action="append", default=[], help="also with this drafter, which rules go ahead of"
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=120)
    given = parser.parse_args()
    with ExitStack() as opened:
        runtimes = {
            draft: opened.enter_context(edgespec.load(given.pair, draft=draft, backend=given.backend))
            for draft in ("none", "rules", *given.draft)
        }
        for task, (question, schema) in TASKS.items():
            speeds: dict[str, list[float]] = {draft: [] for draft in runtimes}
            passes: dict[str, int] = {}
            for _ in range(given.repetitions):
                for draft, runtime in runtimes.items():
                    answer = runtime.generate(
                        [{"role": "user", "content": question}],
                        json_schema=schema,
                        max_tokens=given.max_tokens,
                    )
                    speeds[draft].append(answer.stats.tokens_per_second)
                    passes[draft] = answer.stats.rounds
            print(f"{task}, {answer.stats.tokens} tokens", flush=True)
            for draft, found in speeds.items():
                ratio = median(a / b for a, b in zip(found, speeds["none"], strict=True))
                print(f"  {draft}: {median(found):.1f} tok/s, {ratio:.2f} × plain, {passes[draft]} passes")


if __name__ == "__main__":
    main()
