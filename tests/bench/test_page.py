"""The page of a benchmark, as a browser gets it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from real_models import need_module

from edgespec.bench.page import page
from edgespec.bench.regret import Verdict
from edgespec.bench.summary import summary

from .results import compared

SETTINGS = {
    "pair": "pair & draft",
    "depth": "auto",
    "reference": "target.gguf",
    "repeats": 5,
    "max_tokens": 128,
    "temperature": 0.0,
}
VERDICTS = [Verdict("edgespec's controller", 2.0, 1.1, 2), Verdict("plain decoding", 1.0, 0.6, 2)]


class Parsed(HTMLParser):
    """Tags with their attributes, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def html() -> str:
    """With a name that must be escaped, and one that matplotlib would take for a formula."""
    need_module("matplotlib")
    results = [
        compared("<script>", "$ca", reference=[12.0]),
        compared("b", "t$", reference=[8.0]),
        compared("c", "code", reference=[8.0], speculative=[11.0]),
    ]
    return page(SETTINGS | summary(results, 45e9), results, (), VERDICTS)


def test_it_needs_nothing_else(html: str) -> None:
    for tag, attributes in Parsed(html).tags:
        assert tag not in ("script", "link", "img", "iframe", "object")
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;"))
    assert not re.search(r"https?:|@import|url\((?!#)", html)


def test_names_are_escaped(html: str) -> None:
    text = Parsed(html).text
    for name in ("pair & draft", "<script>", "$ca", "t$"):
        assert name in text


def test_it_has_every_plot(html: str) -> None:
    parsed = Parsed(html)
    assert [tag for tag, _ in parsed.tags].count("svg") == 5
    for title in ("by category", "by prompt", "Depth over time", "What a pass costs", "Depth policies"):
        assert title in parsed.text
    assert "along 2 answers" in " ".join(parsed.text.split())


def test_its_plots_take_the_colours_of_the_page_in_light_and_dark(html: str) -> None:
    assert "prefers-color-scheme: dark" in html
    used = set(re.findall(r"var\((--\w+)\)", html))
    assert used <= set(re.findall(r"(--\w+):", html))
    assert "#0102" not in html
    assert not re.search(r"(fill|stroke): ?(#000000|#ffffff|black|white)", html)


def test_it_says_what_the_table_says(html: str) -> None:
    text = " ".join(Parsed(html).text.split())
    for said in (
        "× reference",
        "end to end",
        "of the memory bandwidth",
        "memory at the peak",
        "the same answers",
    ):
        assert said in text
    for heading in ("draft", "verify", "Python", "GB/s", "same tokens"):
        assert heading in text


@pytest.mark.parametrize("changed", [{"repeats": 1}, {"reference": None}])
def test_without_reference_or_replay_it_says_less(changed: dict[str, Any]) -> None:
    need_module("matplotlib")
    results = [compared()]
    text = Parsed(page(SETTINGS | changed | summary(results, 45e9), results, (), "there is no draft")).text
    assert "× reference" not in text
    assert "Not shown: there is no draft." in text


def test_a_peak_that_nobody_knows_is_not_shown() -> None:
    need_module("matplotlib")
    results = [compared()]
    found = SETTINGS | summary(results, 45e9) | {"peak_memory": None}
    text = Parsed(page(found, results, (), "there is no draft")).text
    assert "at the peak" not in text
