"""The plugin for `llm`, with the real package and SmolLM2."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from typing import Any

import pytest
from real_models import need
from waiting import PATIENCE

import edgespec

llm = pytest.importorskip("llm")  # does not take the oldest of our dependencies


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    name = need("smollm2-135m")
    found = llm.get_model(f"edgespec/{name}")
    yield found
    found._loaded().close()


ASKED: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


def test_an_answer_is_the_librarys(model: Any) -> None:
    with edgespec.load("smollm2-135m", draft="none") as runtime:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]
        expected = runtime.generate(messages, **ASKED)
    response = model.prompt("Name a colour.", system="Be brief.", **ASKED)
    pieces = list(response)
    assert "".join(pieces) == expected.text
    assert len(pieces) > 3
    assert (response.input_tokens, response.output_tokens) == (
        expected.stats.prompt_tokens,
        len(expected.tokens),
    )


def test_a_conversation_is_remembered(model: Any) -> None:
    chat = model.conversation()
    first = chat.prompt("My name is Ada.", **ASKED)
    first.text()
    second = chat.prompt("What is my name?", **ASKED)
    second.text()
    assert second.input_tokens > first.input_tokens + first.output_tokens


def test_an_answer_that_is_not_read_to_its_end_leaves_the_model_to_other_threads(model: Any) -> None:
    pieces = iter(model.prompt("Count to a hundred.", temperature=0, max_tokens=200))
    next(pieces)
    pieces.close()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: model.prompt("Name a colour.", **ASKED).text()).result()


def test_a_conversation_with_what_is_no_text_is_refused(model: Any) -> None:
    said = llm.Message("user", [llm.parts.TextPart("What is this?"), llm.parts.AttachmentPart()])
    with pytest.raises(llm.ModelError, match="text only"):
        model.prompt("And now?", messages=[said], **ASKED).text()


def test_options_are_taken_and_checked(model: Any) -> None:
    options = {"temperature": 1.0, "seed": 5, "top_p": 0.9, "top_k": 40, "max_tokens": 10}
    once, again = (model.prompt("Tell me a story.", **options).text() for _ in range(2))
    assert once == again
    assert model.prompt("Count to ten.", temperature=0, stop="2", max_tokens=30).text().count("2") == 0
    with pytest.raises(ValueError, match="top_p"):
        model.prompt("Hello", top_p=5)


def test_models_where_one_may_not_look_leave_llm_its_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from edgespec import llm_plugin

    def refuse() -> None:
        raise edgespec.ModelError("the models in /closed cannot be read: Permission denied")

    registered: list[object] = []
    monkeypatch.setattr(llm_plugin, "installed_pairs", refuse)
    llm_plugin.register_models(registered.append)
    assert (registered, caplog.messages) == ([], ["the models in /closed cannot be read: Permission denied"])


def test_who_has_no_home_keeps_the_other_models_of_llm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from edgespec import llm_plugin

    registered: list[object] = []
    monkeypatch.setenv("EDGESPEC_HOME", "~nobody-here/x")
    llm_plugin.register_models(registered.append)
    assert registered == []
    assert "set EDGESPEC_HOME to a folder" in caplog.text


def test_an_older_llm_keeps_its_other_models(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from edgespec import llm_plugin

    registered: list[object] = []
    monkeypatch.setitem(sys.modules, "llm.parts", None)
    llm_plugin.register_models(registered.append)
    assert (registered, caplog.messages) == (
        [],
        ["edgespec's models need llm 0.32 or newer: pip install -U llm"],
    )


def test_the_package_names_the_plugin() -> None:
    assert [point.value for point in entry_points(group="llm", name="edgespec")] == ["edgespec.llm_plugin"]


def test_without_llm_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['llm'] = None; import edgespec.llm_plugin"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode != 0
    assert "needs the package llm, 0.32 or newer: pip install -U llm" in done.stderr
