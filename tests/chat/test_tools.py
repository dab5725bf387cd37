"""Calls are told from what is said, wherever the text is cut into pieces; nothing that is no call is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.chat.tools import CallReader, call_form

NAMES = ("add", "get_weather", "add_all")
Calls = list[tuple[str, str]]


def read(pieces: list[str], limit: int | None = None) -> tuple[str, Calls]:
    """Everything a stream of pieces comes to: what is said, and (name, arguments) of the calls."""
    reader = CallReader(NAMES, limit)
    content, calls = "", []
    for part in [*map(reader.push, pieces), reader.finish()]:
        content += part.content
        for number, name, arguments in part.calls:
            if name is not None:
                assert number == len(calls)
                calls.append((name, ""))
            assert number == len(calls) - 1, "calls come one after the other"
            calls[-1] = (calls[-1][0], calls[-1][1] + arguments)
    assert reader.count == len(calls)
    return content, calls


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted(place % (len(text) + 1) for place in places)
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


ADD = ("add", '{"a": 1, "b": 2}')
TAGGED = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
BARE = TAGGED[12:-13]
CASES: dict[str, tuple[str, str, Calls]] = {
    "a call": (TAGGED, "", [ADD]),
    "without white space": (TAGGED.replace(" ", "").replace("\n", ""), "", [("add", '{"a":1,"b":2}')]),
    "white space around it": (f"\n {TAGGED}\n ", "", [ADD]),
    "said before": (f"Let me add.\n\n{TAGGED}", "Let me add.", [ADD]),
    "said behind": (f"{TAGGED}\nWell.", "Well.", [ADD]),
    "two calls": (f"{TAGGED}\n{TAGGED}", "", [ADD, ADD]),
    "said between": (f"{TAGGED} and {TAGGED}", "and", [ADD, ADD]),
    "two braces": ('<tool_call>{{"name": "add", "arguments": {}}}</tool_call>', "", [("add", "{}")]),
    "an outer brace too few": (TAGGED.replace("}}", "}"), "", [ADD]),
    "the end is missing": (TAGGED[:-13], "", [ADD]),
    "without tags": (BARE, "", [ADD]),
    "without tags, fenced": (f"```json\n{BARE}\n```", "", [ADD]),
    "without tags, fenced plainly": (f"```\n{BARE}\n```\n", "", [ADD]),
    "without tags, twice": (f"{BARE}\n{BARE}", "", [ADD, ADD]),
    "Llama's": ('{"name": "add", "parameters": {"a": 1, "b": 2}}', "", [ADD]),
    "Llama's with a type": ('{"type": "function", "name": "add", "parameters": {"a": 1, "b": 2}}', "", [ADD]),
    "a brace and a tag in a string": (
        '<tool_call>{"name": "add", "arguments": {"a": "}\\"} </tool_call>"}}</tool_call>!',
        "!",
        [("add", '{"a": "}\\"} </tool_call>"}')],
    ),
    "nested": (
        '<tool_call>{"name": "add_all", "arguments": {"a": {"b": [{}]}}}</tool_call>',
        "",
        [("add_all", '{"a": {"b": [{}]}}')],
    ),
    "cut off in the arguments": (TAGGED.partition(', "b"')[0], "", [("add", '{"a": 1')]),
    "arguments that do not end": (
        '<tool_call>{"name": "add", "arguments": {"a": {1 </tool_call>ok',
        "ok",
        [("add", '{"a": {1 ')],
    ),
    "cut off before the arguments": (TAGGED[:30], TAGGED[:30], []),
    "an unknown function": (TAGGED.replace("add", "rm"), TAGGED.replace("add", "rm"), []),
    "an unknown function without tags": (BARE.replace("add", "rm"), BARE.replace("add", "rm"), []),
    "no JSON": ("a <tool_call>add(1, 2)</tool_call> b", "a <tool_call>add(1, 2)</tool_call> b", []),
    "arguments that are no object": (
        '<tool_call>{"name": "add", "arguments": "1, 2"}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "1, 2"}</tool_call>',
        [],
    ),
    "a tag in a bad call": (f"<tool_call>{TAGGED}", "<tool_call>", [ADD]),
    "a bad call and a good one": (f"<tool_call>?</tool_call>\n{TAGGED}", "<tool_call>?</tool_call>", [ADD]),
    "an object in the midst of text": (f"As JSON: {BARE}", f"As JSON: {BARE}", []),
    "code": ("```json\n[1]\n```\n", "```json\n[1]\n```\n", []),
    "half a tag": ("x <tool_cal", "x <tool_cal", []),
    "less than": (" 1 < 2 <", " 1 < 2 <", []),
    "white space": (" \n", " \n", []),
    "nothing": ("", "", []),
}


@pytest.mark.parametrize(("text", "content", "calls"), CASES.values(), ids=CASES.keys())
@given(places=st.lists(st.integers(0, 200), max_size=8))
def test_calls_and_content(text: str, content: str, calls: Calls, places: list[int]) -> None:
    assert read(cut(text, places)) == (content, calls)
    assert read(list(text)) == (content, calls)


FRAGMENTS = [
    "<tool_call>", "</tool_call>", '{"name": "add", "arguments": ', '{"name":"add', "{}", "{", "}", '"', "\\",
    "\n", " ", "```json", "```", "text", "<", "[", '"parameters": ',
]  # fmt: skip


@given(
    text=st.lists(st.sampled_from(FRAGMENTS), max_size=20).map("".join),
    places=st.lists(st.integers(0, 300), max_size=12),
    limit=st.sampled_from([None, 1]),
)
def test_any_text_reads_the_same_however_it_is_cut(text: str, places: list[int], limit: int | None) -> None:
    whole = read([text], limit)
    assert read(cut(text, places), limit) == whole
    if not whole[1]:
        assert whole[0] == text, "what is no call is said"


JSON: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    calls=st.lists(
        st.tuples(st.sampled_from(NAMES), st.dictionaries(st.text(), JSON)), min_size=1, max_size=3
    ),
    said=st.text(alphabet="ab <{`\n"),
    ascii=st.booleans(),
)
def test_calls_that_a_template_would_write_are_read_back(
    calls: list[tuple[str, dict[str, object]]], said: str, ascii: bool
) -> None:
    def written(name: str, arguments: dict[str, object]) -> str:
        call = {"name": name, "arguments": arguments}
        return f"\n<tool_call>\n{json.dumps(call, ensure_ascii=ascii)}\n</tool_call>"

    content, found = read([said + "".join(written(*call) for call in calls)])
    assert content == said.rstrip()
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


def test_arguments_come_while_they_are_written() -> None:
    reader = CallReader(NAMES)
    pieces = [part for i in range(len(TAGGED)) for part in reader.push(TAGGED[i]).calls]
    assert pieces[0] == (0, "add", "")
    assert [piece.arguments for piece in pieces[1:]] == list(ADD[1])


def test_behind_the_last_call_allowed_the_answer_ends() -> None:
    assert read([f"So: {TAGGED}\n{TAGGED} and so on"], limit=1) == ("So:", [ADD])


HERMES = """{%- if tools %}{%- for tool in tools %}{{ tool | tojson }}{% endfor %}
return <tool_call>{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}</tool_call>{% endif %}"""
LLAMA = """{%- if not tools is defined %}{%- set tools = none %}{%- endif %}{%- if tools is not none %}
Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.
{%- for t in tools %}{{ t | tojson(indent=4) }}{% endfor %}{% endif %}"""


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (HERMES, "tags"),
        (LLAMA, "bare"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", None),
        ("Use the tools as {\"name\": 1, \"arguments\": 2} in <tool_call>: {{ messages[0].content }}", None),
        ("{{ tools }}<tool_call><function=name>", None),
        ("{{ tools }}[TOOL_CALLS]", None),
        ("{% broken", None),
    ],
)  # fmt: skip
def test_a_templates_text_shows_how_it_wants_calls(template: str, form: str | None) -> None:
    assert call_form(template) == form
