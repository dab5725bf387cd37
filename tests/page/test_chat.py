"""Talking with the model, as a person does it, at a desk and on a phone."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from server.conftest import Server, loader, served, turns
from waiting import until

import edgespec

from .browser import ENTER, ESCAPE, PASTE, ChatPage
from .conftest import CODE, SAID, THOUGHT
from .scripted import write_scripted

if TYPE_CHECKING:
    from selenium.webdriver import Chrome


def greedy(page: ChatPage, limit: int = 30) -> None:
    """Answers of the most probable tokens, as many as this."""
    page.script(
        "localStorage.setItem('edgespec', JSON.stringify({temperature: 0, max_tokens: arguments[0]}))", limit
    )
    page.reload()


def test_an_answer_is_the_librarys_and_a_reload_keeps_it(
    page: ChatPage, tiny: Server, library: edgespec.Runtime
) -> None:
    greedy(page)
    assert "drafted by" in page.by_id("empty-pair").text
    expected = library.generate(turns("stay"), temperature=0, max_tokens=30).text
    page.ask("stay")
    shown = page.script("return document.querySelector('.assistant .body').textContent")
    assert shown.split() == expected.split()
    assert page.by_id("title").text == "stay"
    assert "tok/s" in page.chrome.find_element("css selector", ".assistant .meta").text
    assert float(page.by_id("speed").text) > 0 and float(page.by_id("depth").text) > 0
    assert page.complaints() == []
    before = page.texts
    page.reload()
    assert page.texts == before and len(before) == 2
    page.ask("yes")
    assert len(page.texts) == 4


def test_an_answer_is_seen_while_it_comes_and_stops_when_told(
    endless_page: ChatPage, endless: Server
) -> None:
    page = endless_page
    box = page.by_id("composer").rect
    page.say("stay")
    page.until(lambda: page.answer)
    first = page.answer
    page.until(lambda: len(page.answer) > len(first))
    assert page.answering and float(page.until(lambda: page.by_id("speed").text.strip("–"))) > 0
    assert page.by_id("composer").rect == box  # nothing jumps
    page.by_id("send").click()
    page.until(lambda: not page.answering)
    assert page.announced == "Stopped"
    assert "stopped" in page.chrome.find_element("css selector", ".assistant .meta").text
    until(lambda: not endless.turns.answering)  # the server was told, too
    kept = page.answer
    page.reload()
    assert page.answer == kept


def test_an_answer_is_stopped_by_whatever_name_a_browser_knows_that(chrome: Chrome, endless: Server) -> None:
    page = ChatPage.of(chrome, endless.url)
    page.script(
        """const asked = fetch;
        window.fetch = async (path, options) => {
            const reader = (await asked(path, options)).body.getReader();
            const failed = (to) => () => to.error(new TypeError("Load failed"));
            const read = (to) => ({done, value}) => done ? to.close() : to.enqueue(value);
            return new Response(new ReadableStream({pull: (to) => reader.read().then(read(to), failed(to))}));
        };"""
    )
    page.say("stay")
    page.until(lambda: page.answer)
    page.by_id("send").click()
    page.until(lambda: not page.answering)
    assert page.announced == "Stopped" and page.all(".error") == []


def test_another_tab_shows_the_answer_grow_and_redraws_nothing_else(chrome: Chrome, endless: Server) -> None:
    page = ChatPage.of(chrome, endless.url)
    page.say("stay")
    page.until(lambda: page.answer)
    asking, address = chrome.current_window_handle, chrome.current_url
    chrome.switch_to.new_window("tab")
    try:
        chrome.get(address)
        page.until(lambda: page.answer)
        page.script("document.querySelector('.message.assistant').mine = true")
        seen = page.answer
        page.until(lambda: len(page.answer) > len(seen))
        assert page.answer.startswith(seen)
        assert page.script("return document.querySelector('.message.assistant').mine")
        assert "unfinished" in page.chrome.find_element("css selector", ".assistant .meta").text
    finally:
        chrome.close()
        chrome.switch_to.window(asking)
    page.by_id("send").click()
    page.until(lambda: not page.answering)


def test_the_next_message_leaves_what_stands_above_it_as_it_is(chrome: Chrome, scripted: Server) -> None:
    page = ChatPage.of(chrome, scripted.url)
    page.ask("stay")
    page.chrome.find_element("css selector", ".reasoning summary").click()
    page.button("Edit message").click()
    page.press(" or go")
    page.ask("yes")
    assert page.all(".thoughts")[0].text == THOUGHT
    assert page.all(".editor textarea")[0].get_property("value") == "stay or go"


def test_the_view_follows_the_answer_until_the_reader_scrolls_up(chrome: Chrome, endless: Server) -> None:
    page = ChatPage.of(chrome, endless.url)
    at_end = "const s = document.getElementById('scroller');"
    at_end += (
        "return s.scrollHeight > s.clientHeight + 200 && s.scrollHeight - s.clientHeight - s.scrollTop < 40"
    )
    page.say("stay")
    page.until(lambda: page.script(at_end))
    page.script("document.getElementById('scroller').scrollTop = 0")
    page.until(lambda: page.by_id("to-end").is_displayed())
    length = len(page.answer)
    page.until(lambda: len(page.answer) > length + 50)
    assert page.script("return document.getElementById('scroller').scrollTop") == 0
    page.by_id("to-end").click()
    page.until(lambda: page.script(at_end))
    assert not page.by_id("to-end").is_displayed()
    page.by_id("send").click()
    page.until(lambda: not page.answering)


def test_a_message_half_written_outlives_a_reload(page: ChatPage) -> None:
    """And a phone that drops the page from its memory."""
    page.by_id("input").send_keys("stay")
    page.reload()
    assert page.by_id("input").get_property("value") == "stay"
    page.by_id("send").click()
    page.until(lambda: page.texts and not page.answering)
    page.reload()
    assert page.by_id("input").get_property("value") == "" and page.texts[0] == "stay"


def test_an_answer_says_whether_the_context_ended_it_or_the_limit(chrome: Chrome, endless_file: Path) -> None:
    with served(loader(endless_file, n_ctx=256)) as server:
        page = ChatPage.of(chrome, server.url)
        page.ask("stay")
        assert "the context is full" in page.chrome.find_element("css selector", ".assistant .meta").text
        greedy(page, 3)
        page.by_id("new").click()
        page.ask("yes")
        assert "ended at the token limit" in page.chrome.find_element("css selector", ".assistant .meta").text


def test_what_is_served_is_looked_at_again_with_every_answer(desk: ChatPage) -> None:
    greedy(desk, 5)
    desk.until(lambda: "drafted by" in desk.by_id("pair").text)
    pair = desk.by_id("pair").text
    desk.script("document.getElementById('pair').textContent = 'what was served before'")
    desk.ask("stay")
    desk.until(lambda: desk.by_id("pair").text == pair)


def test_regenerating_replaces_the_last_answer(desk: ChatPage) -> None:
    page = desk
    greedy(page, 8)
    page.ask("stay")
    short = page.answer
    page.script("localStorage.setItem('edgespec', JSON.stringify({temperature: 0, max_tokens: 30}))")
    page.reload()
    page.button("Regenerate answer").click()
    page.until(lambda: not page.answering)
    assert len(page.texts) == 2 and len(page.answer) > len(short) and page.answer.startswith(short)


def test_editing_a_message_branches_off_there(desk: ChatPage, library: edgespec.Runtime) -> None:
    page = desk
    greedy(page)
    page.ask("stay")
    page.ask("yes")
    page.by_id("input").send_keys("my draft")
    page.button("Edit message", ".user:first-child").click()
    editor = page.chrome.switch_to.active_element
    assert editor.get_attribute("value") == "stay"
    editor.clear()
    editor.send_keys("my aim")
    page.chrome.find_element("css selector", ".editor .primary").click()
    page.until(lambda: len(page.texts) == 2 and not page.answering)
    expected = library.generate(turns("my aim"), temperature=0, max_tokens=30).text
    assert page.texts[0] == "my aim" and page.answer.split() == expected.split()
    assert page.by_id("input").get_attribute("value") == "my draft"
    page.button("Edit message").click()
    page.press(ESCAPE)
    assert page.texts[0] == "my aim"


def test_conversations_are_begun_renamed_deleted_and_brought_back(page: ChatPage) -> None:
    greedy(page, 5)
    page.ask("stay")
    page.open_drawer()
    page.by_id("new").click()
    assert page.texts == [] and page.by_id("empty").is_displayed()
    page.ask("yes")
    page.open_drawer()
    links = [link.text for link in page.chrome.find_elements("css selector", "#conversations a")]
    assert links == ["yes", "stay"]  # the newest first
    page.chrome.find_elements("css selector", "#conversations a")[1].click()
    page.until(lambda: page.texts and page.texts[0] == "stay")
    page.open_drawer()
    page.script("arguments[0].click()", page.button("Rename “stay”"))  # it shows when the mouse is over it
    page.press("my name", ENTER)  # the old title is selected
    assert page.by_id("title").get_attribute("textContent") == "my name"
    page.script("arguments[0].click()", page.button("Delete “my name”"))
    page.until(lambda: page.texts == [])
    page.chrome.find_element("css selector", ".toast button").click()
    page.reload()
    found = page.chrome.find_elements("css selector", "#conversations a")
    assert [link.get_attribute("textContent") for link in found] == ["yes", "my name"]


def test_tokens_are_coloured_by_origin(page: ChatPage, library: edgespec.Runtime) -> None:
    greedy(page)
    page.ask("stay")
    assert page.all(".tokens span") == []
    page.by_id("colours").click()
    expected = [t for t in library.stream(turns("stay"), temperature=0, max_tokens=30) if t.text]
    spans = page.script(
        "return [...document.querySelectorAll('.tokens span')].map(s => [s.textContent, s.className])"
    )
    assert spans == [[token.text, token.origin] for token in expected]
    colours = page.script(
        "return Object.fromEntries([...document.querySelectorAll('.tokens span')]"
        ".map(s => [s.className, getComputedStyle(s).backgroundColor]))"
    )
    assert len(set(colours.values())) == len(colours) >= 3
    assert page.by_id("legend").is_displayed()
    page.reload()
    assert len(page.all(".tokens span")) > 0  # the choice is kept, and where the tokens came from


def test_thoughts_are_folded_and_markdown_is_shown(chrome: Chrome, scripted: Server) -> None:
    page = ChatPage.of(chrome, scripted.url)
    answer = page.ask("stay")
    assert answer.startswith("Hi you <img") and THOUGHT not in answer
    thoughts = page.chrome.find_element("css selector", ".reasoning")
    assert not page.all(".thoughts")
    thoughts.find_element("css selector", "summary").click()
    assert page.all(".thoughts")[0].text == THOUGHT
    assert page.all(".markdown strong")[0].text == "you"
    assert [e.text for e in page.all("pre .hljs-keyword")] == ["def", "return"]


def test_what_a_model_writes_does_nothing_but_be_read(chrome: Chrome, scripted: Server) -> None:
    page = ChatPage.of(chrome, scripted.url)
    assert SAID.rpartition("<")[2] in page.ask("stay")
    assert page.all(".assistant img, .assistant script, .assistant [onerror], .assistant a[href]") == []
    attacks = [
        "<script>hacked = 3</script>", "<svg onload='hacked=4'>", "![x](https://example.com/pixel.png)",
        "<iframe srcdoc='<script>parent.hacked=5</script>'></iframe>", "[x](data:text/html,hi)",
        "<a href='javascript:hacked=6'>x</a>", "```html\n<img src=x onerror=hacked=7>\n```",
        "<style>body { display: none }</style>", "<form action='/v1'><button>x</button></form>",
        "| <b onclick='hacked=8'>x</b> |\n|---|\n| ![](x) |",
        "```x onload=1 class=y\n</code></pre><img src=x>\n```",
    ]  # fmt: skip
    found = page.script(
        """return import('/page/markdown.js').then(({Markdown}) => {
            const box = document.createElement('div');
            document.getElementById('messages').append(box);
            new Markdown(box).show(arguments[0]);
            const found = [...box.querySelectorAll('.block *:not(figcaption *)')];
            return found.map(e => [e.localName, ...[...e.attributes].map(a => a.name)]);
        })""",
        "\n\n".join(attacks),
    )
    foreign = {"script", "svg", "iframe", "img", "style", "form", "input", "button", "object", "embed", "b"}
    assert foreign.isdisjoint(names[0] for names in found)
    assert not any(name.startswith("on") for names in found for name in names[1:])
    assert page.script("return typeof hacked") == "undefined" and page.by_id("main").is_displayed()
    assert {url for url in page.requested() if not url.startswith(page.url)} == set()
    assert page.complaints() == []


@pytest.mark.parametrize(
    "text",
    [">" * 5000, "".join(f"{'  ' * i}- item\n" for i in range(300)), "[" * 5000],
    ids=["quotes", "lists", "links"],
)
def test_what_a_model_that_loops_writes_is_shown(desk: ChatPage, text: str) -> None:
    """Nested deeper than a browser's stack, or than it can be read again with every token."""
    shown = desk.script(
        """return import('/page/markdown.js').then(({Markdown}) => {
            const box = document.createElement('div');
            new Markdown(box).show(arguments[0]);
            return box.textContent;
        })""",
        text,
    )
    assert text in shown


def test_lists_keep_their_numbers_and_tables_their_columns(desk: ChatPage) -> None:
    """A list that code stands in the midst of is two to a browser."""
    found = desk.script(
        """return import('/page/markdown.js').then(({Markdown}) => {
            const box = document.createElement('div');
            new Markdown(box).show(arguments[0]);
            const all = (selector, name) => [...box.querySelectorAll(selector)].map(e => e[name]);
            return [all('ol', 'start'), all('td', 'align')];
        })""",
        "1. one\n\n```\ncode\n```\n\n2. two\n\n| a | b | c |\n|:-:|--:|---|\n| 1 | 2 | 3 |\n",
    )
    assert found == [[1, 2], ["center", "right", ""]]


def test_a_link_whose_address_comes_behind_it_becomes_one_while_the_answer_grows(desk: ChatPage) -> None:
    found = desk.script(
        """return import('/page/markdown.js').then(({Markdown}) => {
            const box = document.createElement('div'), markdown = new Markdown(box);
            markdown.show('# Title\\n\\nSee [there][1].\\n\\n');
            const heading = box.querySelector('h1');
            markdown.show('# Title\\n\\nSee [there][1].\\n\\n[1]: https://example.com/');
            const links = [...box.querySelectorAll('a')].map(e => [e.textContent, e.href]);
            return [links, heading === box.querySelector('h1')];
        })"""
    )
    assert found == [[["there", "https://example.com/"]], True]


def test_a_title_ends_with_no_half_of_an_emoji(desk: ChatPage) -> None:
    title = desk.script(
        """return import("/page/conversation.js").then(({create, say}) => {
            const conversation = create("");
            say(conversation, arguments[0]);
            return conversation.title;
        })""",
        "a" * 98 + "😀😀😀",
    )
    assert title == "a" * 98 + "😀…"


def test_the_server_is_sent_what_the_settings_say(desk: ChatPage, library: edgespec.Runtime) -> None:
    page = desk

    def field(name: str, text: str) -> None:
        page.by_id(f"s-{name}").clear()
        page.by_id(f"s-{name}").send_keys(text)

    page.open_drawer()
    page.by_id("open-settings").click()
    field("system", "st is my name")
    field("temperature", "0.5")
    field("seed", "7")
    field("max_tokens", "20")
    field("top_p", "3")
    assert "Not used" in page.by_id("s-top_p-error").text
    page.button("Close the settings").click()
    messages = [{"role": "system", "content": "st is my name"}, *turns("stay")]
    expected = library.generate(messages, temperature=0.5, seed=7, max_tokens=20).text
    page.ask("stay")
    shown = page.script("return document.querySelector('.assistant .body').textContent")
    assert shown.split() == expected.split()


def test_settings_that_another_tab_saved_are_kept(desk: ChatPage) -> None:
    page, chrome = desk, desk.chrome
    first = chrome.current_window_handle
    chrome.switch_to.new_window("tab")
    try:
        page.load()
        page.script("return import('/page/store.js').then(s => (s.settings.seed = 7, s.saveSettings()))")
    finally:
        chrome.close()
        chrome.switch_to.window(first)
    page.until(lambda: page.script("return import('/page/store.js').then(s => s.settings.seed === 7)"))
    page.by_id("colours").click()
    saved = page.script("return JSON.parse(localStorage.getItem('edgespec'))")
    assert (saved["seed"], saved["coloured"]) == (7, True)


def test_a_key_is_asked_for_and_kept_and_the_message_tried_again(chrome: Chrome, tmp_path: Path) -> None:
    file = write_scripted(tmp_path / "scripted.gguf", "yes")
    with served(loader(file), api_key="sesame") as server:
        page = ChatPage.of(chrome, server.url)
        page.until(lambda: page.by_id("settings").is_displayed())
        page.button("Close the settings").click()  # whoever closes them
        page.by_id("open-settings").click()  # finds the field there again
        page.by_id("s-key").send_keys("open —", ENTER)  # which no header can hold
        page.until(lambda: "API key" in page.by_id("banner-text").text)
        assert not page.by_id("settings").is_displayed()
        page.say("stay")
        page.until(lambda: page.all(".error"))
        page.chrome.find_element("css selector", ".error button").click()
        page.by_id("s-key").clear()
        page.by_id("s-key").send_keys("sesame", ENTER)
        page.until(lambda: not page.by_id("banner").is_displayed())
        _, again = page.all(".error button")
        again.click()
        page.until(lambda: page.answer == "yes" and not page.answering)
        assert page.all(".error") == []
        assert page.ask("stay") == "yes"
        page.reload()
        assert page.ask("stay") == "yes"


def test_a_full_queue_is_told_in_words_and_can_be_tried_again(chrome: Chrome, endless: Server) -> None:
    page = ChatPage.of(chrome, endless.url)
    endless.gate.open.clear()  # one is answered, two wait
    short = ("/v1/completions", {"prompt": "stay", "max_tokens": 1})
    others = [Thread(target=endless.post, args=short) for _ in range(3)]
    for other in others:
        other.start()
    until(lambda: endless.turns.waiting == 2)
    page.say("stay")
    page.until(lambda: page.all(".error"))
    assert "busy" in page.all(".error")[0].text and "Try again in" in page.all(".error")[0].text
    page.until(lambda: page.announced == "")  # the error is an alert
    endless.gate.open.set()
    for other in others:
        other.join()
    page.chrome.find_element("css selector", ".error button").click()
    page.until(lambda: page.answer)
    assert page.all(".error") == []
    page.by_id("send").click()
    page.until(lambda: not page.answering)


def test_text_that_another_app_shares_waits_in_the_message_box(page: ChatPage, tiny: Server) -> None:
    page.ask("stay")
    shared = "1 + 1 = 2 & 100 %\n<b>naïve</b>"
    address = f"{tiny.url}/#share={quote(shared, safe='')}"
    page.script("location.href = arguments[0]", address)  # what an app does that is open already
    page.until(lambda: page.by_id("input").get_property("value"))
    assert page.by_id("input").get_property("value") == shared
    assert page.texts == [] and not page.answering and page.script("return location.hash") == ""
    page.script("location.href = arguments[0]", f"{tiny.url}/#share=%FFmore")  # not UTF-8
    page.until(lambda: "more" in page.by_id("input").get_property("value"))
    assert page.by_id("input").get_property("value") == f"{shared}\n\ufffdmore"
    page.by_id("send").click()
    page.until(lambda: not page.answering)
    assert page.texts[0].startswith("1 + 1 = 2 & 100 %") and len(page.texts) == 2
    page.chrome.get("about:blank")
    page.chrome.get(address)  # and one that is started for it
    page.ready()
    assert page.by_id("input").get_property("value") == shared and page.texts == []
    assert page.complaints() == []


def test_what_is_copied_over_plain_http_keeps_its_lines(chrome: Chrome, scripted: Server) -> None:
    """Browsers have no `navigator.clipboard` for a server that is another machine's."""
    page = ChatPage.of(chrome, scripted.url)
    page.script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.ask("stay")
    button = page.button("Copy answer")
    button.click()
    page.until(lambda: page.announced == "Copied")
    assert page.chrome.switch_to.active_element == button
    page.by_id("input").send_keys(PASTE)
    assert CODE in page.by_id("input").get_property("value")
    page.script("document.execCommand = () => false")
    button.click()
    page.until(lambda: "did not allow copying" in page.by_id("toasts").text)


def test_where_a_browser_may_store_nothing_the_model_answers(chrome: Chrome, scripted: Server) -> None:
    """As in Firefox with all cookies blocked."""
    forbidden = """for (const name of ['BroadcastChannel', 'indexedDB', 'localStorage'])
        Object.defineProperty(window, name, {get() { throw new DOMException('no', 'SecurityError'); }});"""
    early = chrome.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": forbidden})
    try:
        page = ChatPage.of(chrome, scripted.url)
        assert "does not keep" in page.by_id("toasts").text
        assert page.ask("stay").startswith("Hi you")
    finally:
        chrome.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", early)


def test_conversations_are_kept_again_after_the_browser_closed_their_database(
    chrome: Chrome, scripted: Server
) -> None:
    """It does so on phones that slept, and where somebody clears its data."""
    page = ChatPage.of(chrome, scripted.url)
    page.ask("stay")
    store = {"origin": scripted.url, "storageTypes": "indexeddb"}
    chrome.execute_cdp_cmd("Storage.clearDataForOrigin", store)
    page.ask("yes")
    before = page.texts
    assert len(before) == 4 and page.by_id("toasts").text == ""
    page.reload()
    assert page.texts == before
