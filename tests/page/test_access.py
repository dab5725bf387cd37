"""For everyone and everywhere: by keyboard, with a screen reader, on a phone, without the server."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from server.conftest import Server, loader, served

from .browser import ENTER, ESCAPE, TAB, ChatPage
from .conftest import THINKS
from .scripted import write_scripted

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

AXE = (Path(__file__).parent / "axe.min.js").read_text("utf-8")


def violations(page: ChatPage) -> list[tuple[str, Any]]:
    """What axe finds wrong, and where."""
    page.script(AXE)
    found = page.script("return axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
    return [(rule["id"], [node["target"] for node in rule["nodes"]]) for rule in found]


def test_everything_works_by_keyboard_alone(chrome: Chrome, endless: Server) -> None:
    page = ChatPage.of(chrome, endless.url)
    assert page.chrome.switch_to.active_element == page.by_id("input")
    page.press("stay", ENTER)
    page.until(lambda: page.answer)
    assert page.announced == "Answering" and page.answering
    page.press(ESCAPE)
    page.until(lambda: not page.answering)
    assert page.announced == "Stopped"
    page.press("yes", TAB)
    assert page.chrome.switch_to.active_element == page.by_id("send")
    outline = page.script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    page.press(ENTER)  # sends
    page.until(lambda: page.answering and page.answer)
    page.press(ENTER)  # the same button stops
    page.until(lambda: not page.answering)
    names = set()
    for _ in range(40):
        page.press(TAB)
        focused = page.chrome.switch_to.active_element
        names.add(focused.get_attribute("aria-label") or focused.text)
    wanted = {
        "New conversation",
        "Settings",
        "stay",
        "Rename “stay”",
        "Delete “stay”",
        "Copy message",
        "Edit message",
    }
    assert {*wanted, "Regenerate answer", "Token origins", "Copy answer"} <= names


def test_who_skips_to_the_message_box_stays_in_the_conversation(chrome: Chrome, scripted: Server) -> None:
    page = ChatPage.of(chrome, scripted.url)
    page.ask("stay")
    before = page.texts
    page.script("document.querySelector('.skip').focus()")
    page.press(ENTER)
    assert page.chrome.switch_to.active_element == page.by_id("input")
    page.reload()  # goes where the address says
    assert page.texts == before


def test_the_focus_stays_in_the_list_while_it_is_written_anew(chrome: Chrome, scripted: Server) -> None:
    page = ChatPage.of(chrome, scripted.url)
    page.ask("stay")
    page.script("document.querySelector('#conversations a').focus()")
    page.script("document.getElementById('colours').click()")
    assert page.chrome.switch_to.active_element.text == "stay"


def test_assistive_technology_finds_nothing_wrong(chrome: Chrome, scripted: Server, size: str) -> None:
    page = ChatPage.of(chrome, scripted.url, size, scheme="light" if size == "desktop" else "dark")
    assert violations(page) == []
    page.ask("stay")
    assert violations(page) == []
    page.by_id("colours").click()
    page.button("Edit message").click()
    assert violations(page) == []
    page.open_drawer()
    page.by_id("open-settings").click()
    assert violations(page) == []


def test_all_controls_can_be_touched(chrome: Chrome, scripted: Server) -> None:
    page = ChatPage.of(chrome, scripted.url, "phone")
    page.ask("stay")
    for opener in (None, "open-sidebar", "open-settings"):
        if opener:
            page.by_id(opener).click()
            page.settle()
        small = page.script(
            "const all = 'button, input:not([type=radio]), textarea, nav a, summary';"
            "return [...document.querySelectorAll(all)]"
            ".filter(e => e.checkVisibility({visibilityProperty: true}))"
            ".map(e => [e.getAttribute('aria-label') ?? e.textContent, e.getBoundingClientRect()])"
            ".filter(([, box]) => box.width < 44 || box.height < 44)"
            ".map(([name, box]) => [name, box.width, box.height])"
        )
        assert small == []
    wide = page.script("return document.documentElement.scrollWidth")
    assert wide == 390


def test_the_drawer_has_the_focus_as_soon_as_it_opens(chrome: Chrome, endless: Server) -> None:
    page = ChatPage.of(chrome, endless.url, "phone")
    page.say("stay")
    page.until(lambda: page.answer)
    page.by_id("open-sidebar").click()
    assert page.chrome.switch_to.active_element == page.by_id("close-sidebar")
    page.settle()
    page.press(ESCAPE)  # closes it, and does not stop the answer
    page.settle()
    assert page.chrome.switch_to.active_element == page.by_id("open-sidebar")
    assert page.by_id("open-sidebar").get_attribute("aria-expanded") == "false" and page.answering
    page.by_id("send").click()
    page.until(lambda: not page.answering)


def test_the_message_box_fits_its_text_when_a_phone_is_turned(chrome: Chrome, scripted: Server) -> None:
    page = ChatPage.of(chrome, scripted.url, "phone")
    box = page.by_id("input")
    box.send_keys("as long as several lines are " * 5)
    upright = box.size["height"]
    page.has_screen(844, 390, phone=True)
    page.until(lambda: box.size["height"] < upright)


def test_the_colours_follow_the_system_unless_they_are_chosen(chrome: Chrome, scripted: Server) -> None:
    def background() -> str:
        return str(page.script("return getComputedStyle(document.body).backgroundColor"))

    page = ChatPage.of(chrome, scripted.url, scheme="dark")
    dark = background()
    page.by_id("open-settings").click()
    page.script("arguments[0].click()", page.chrome.find_element("css selector", "input[value=light]"))
    light = background()
    assert light != dark
    page.reload()
    assert background() == light
    assert background() == str(
        ChatPage.of(chrome, scripted.url, scheme="light").script(
            "return getComputedStyle(document.body).backgroundColor"
        )
    )


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_the_page_opens_without_the_server_and_says_so(chrome: Chrome, tmp_path: Path, size: str) -> None:
    file = write_scripted(tmp_path / "scripted.gguf", "yes", " it is")
    with served(loader(file, chat_template=THINKS)) as server:
        page = ChatPage.of(chrome, server.url, size)
        assert page.ask("stay") == "yes it is"
        page.script("return navigator.serviceWorker.ready.then(() => true)")
        page.until(lambda: page.script("return navigator.serviceWorker.controller !== null"))
        kept = page.script(
            "return caches.keys().then(async names => [names, (await (await caches.open(names[0])).keys())"
            ".map(r => new URL(r.url).pathname)])"
        )
    assert len(kept[0]) == 1 and "/page/app.js" in kept[1]
    assert not any(path.startswith(("/v1", "/health", "/metrics")) for path in kept[1])
    page.load()
    page.until(lambda: page.by_id("banner").is_displayed())
    assert "cannot be reached" in page.by_id("banner-text").text
    page.script("document.querySelector('#conversations a').click()")
    page.until(lambda: page.texts == ["stay", "yes it is"])
    page.say("yes")
    page.until(lambda: page.all(".error"))
    assert "edgespec serve" in page.all(".error")[0].text
    assert page.texts[:3] == ["stay", "yes it is", "yes"]


class NobodyThere(BaseHTTPRequestHandler):
    """A proxy without the server behind it."""

    def do_GET(self) -> None:
        self.send_error(502)

    do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""


def test_the_page_opens_where_a_proxy_says_that_no_server_is_there(chrome: Chrome, tmp_path: Path) -> None:
    file = write_scripted(tmp_path / "scripted.gguf", "yes")
    with served(loader(file)) as server:
        page = ChatPage.of(chrome, server.url)
        page.script("return navigator.serviceWorker.ready.then(() => true)")
        page.until(lambda: page.script("return navigator.serviceWorker.controller !== null"))
    port = int(server.url.rpartition(":")[2])
    with ThreadingHTTPServer(("127.0.0.1", port), NobodyThere) as proxy:
        Thread(target=proxy.serve_forever).start()
        try:
            page.load()
            page.until(lambda: page.by_id("banner").is_displayed())
            assert "cannot be reached" in page.by_id("banner-text").text
            page.say("stay")
            page.until(lambda: page.all(".error"))
            assert "cannot be reached" in page.all(".error")[0].text
        finally:
            proxy.shutdown()


def test_it_can_be_installed(chrome: Chrome, scripted: Server) -> None:
    page = ChatPage.of(chrome, scripted.url)
    page.script("return navigator.serviceWorker.ready.then(() => true)")
    manifest = chrome.execute_cdp_cmd("Page.getAppManifest", {})
    assert manifest["errors"] == [] and manifest["url"] == f"{scripted.url}/page/manifest.webmanifest"
    assert chrome.execute_cdp_cmd("Page.getInstallabilityErrors", {})["installabilityErrors"] in (
        [],
        [{"errorId": "in-incognito", "errorArguments": []}],
    )


def test_only_the_server_is_asked(chrome: Chrome, scripted: Server) -> None:
    page = ChatPage.of(chrome, scripted.url)
    page.ask("stay")
    requested = page.requested()
    assert f"{scripted.url}/v1/chat/completions" in requested
    assert {url for url in requested if not url.startswith((scripted.url, "data:"))} == set()
    assert page.complaints() == []


def test_keys_that_end_a_conversion_neither_send_nor_stop(chrome: Chrome, endless: Server) -> None:
    """Who writes Japanese confirms words with Enter and takes them back with Escape. Safari tells of that
    Enter when the composition has ended, by its number alone."""
    page = ChatPage.of(chrome, endless.url)

    def convert(selector: str, key: str) -> None:
        page.script(
            "for (const how of [{isComposing: true}, {keyCode: 229}]) document.querySelector(arguments[0])"
            ".dispatchEvent(new KeyboardEvent('keydown', {key: arguments[1], bubbles: true, ...how}))",
            selector,
            key,
        )

    page.by_id("input").send_keys("stay")
    convert("#input", "Enter")
    assert page.texts == [] and page.by_id("input").get_property("value") == "stay"
    page.press(ENTER)
    page.until(lambda: page.answer)
    convert("#input", "Escape")
    page.script("arguments[0].click()", page.button("Rename “stay”"))
    convert("#conversations input", "Enter")
    assert page.chrome.switch_to.active_element.get_attribute("aria-label") == "Title"
    page.press(ESCAPE)
    page.script("arguments[0].click()", page.button("Edit message"))  # the answer moves it
    convert(".editor textarea", "Escape")
    assert page.all(".editor") and page.answering
    page.press(ESCAPE)
    assert not page.all(".editor") and page.answering
    page.by_id("send").click()
    page.until(lambda: not page.answering)


SHOWN = """return import('/page/markdown.js').then(({Markdown}) => {
    const make = (name, className, dir) => Object.assign(document.createElement(name), {className, dir});
    const item = make('li', 'message', ''), box = make('div', 'body markdown', arguments[1]);
    item.append(box);
    document.getElementById('messages').append(item);
    new Markdown(box).show(arguments[0]);
"""
"""the beginning of a script that shows Markdown in a message"""


def test_hebrew_stands_on_the_right_and_the_code_in_it_on_the_left(chrome: Chrome, scripted: Server) -> None:
    page = ChatPage.of(chrome, scripted.url)
    page.by_id("input").send_keys("שלום")
    assert page.script("return getComputedStyle(document.getElementById('input')).direction") == "rtl"
    found = page.script(
        SHOWN + "return [...box.querySelectorAll('li, code, pre')]"
        ".map(e => [e.localName, getComputedStyle(e).direction])})",
        "- שלום `f(x)`\n\n```\nf(x)\n```",
        "auto",
    )
    assert found == [["li", "rtl"], ["code", "ltr"], ["pre", "ltr"], ["code", "ltr"]]
    indented = page.script("return getComputedStyle(document.querySelector('.markdown ul')).paddingRight")
    assert indented == "24px"


def test_a_wide_table_scrolls_and_does_not_break_its_words(chrome: Chrome, scripted: Server) -> None:
    page = ChatPage.of(chrome, scripted.url, "phone")
    row = "| considerable " * 6 + "|\n"
    wide = page.script(
        SHOWN + "const {scrollWidth, clientWidth} = box.querySelector('.wide');"
        "return [scrollWidth > clientWidth, clientWidth < 390]})",
        row + "|---" * 6 + "|\n" + row,
        "",
    )
    assert wide == [True, True]


def test_where_a_system_forces_colours_lines_tell_what_tints_did(chrome: Chrome, scripted: Server) -> None:
    page = ChatPage.of(chrome, scripted.url)
    forced = {"features": [{"name": "forced-colors", "value": "active"}]}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", forced)
    styles = "return [...document.querySelectorAll(arguments[0])].map(e => getComputedStyle(e)[arguments[1]])"
    assert page.script(styles, "#composer", "outlineStyle") == ["solid"]  # the box in it has the focus
    assert "none" not in page.script(styles, "#legend i", "borderBottomStyle")
    before = page.script(styles, "#colours", "backgroundColor")
    page.by_id("colours").click()
    page.settle()
    assert page.script(styles, "#colours", "backgroundColor") != before


def test_all_of_a_conversation_is_printed_and_no_controls(chrome: Chrome, scripted: Server) -> None:
    page = ChatPage.of(chrome, scripted.url, "phone")
    for _ in range(3):
        page.ask("stay")
    cut = "const s = document.getElementById('scroller'); return s.scrollHeight > s.clientHeight"
    assert page.script(cut)
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not page.script(cut) and page.all("button, textarea") == []
    height = page.script("return document.documentElement.scrollHeight")
    assert height >= page.script("return document.getElementById('messages').scrollHeight")
