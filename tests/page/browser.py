"""The chat page as a person has it before them: real Chromium, without a window."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait
from waiting import PATIENCE

SIZES = {"desktop": (1280, 800), "phone": (390, 844)}


def programs() -> tuple[str, str] | None:
    """Chromium and its driver, where both are installed."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return (chromium, driver) if chromium and driver else None


def start(chromium: str, driver: str) -> Chrome:
    """A browser with a profile of its own. End it with `quit()`."""
    options = ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Chrome(options, ChromeService(driver))


@dataclass
class ChatPage:
    """The page of a server, and what is done with it."""

    chrome: Chrome
    url: str

    @classmethod
    def of(cls, chrome: Chrome, url: str, size: str = "desktop", scheme: str = "light") -> ChatPage:
        """Open it as somebody who has never been there, on a screen of this size."""
        width, height = SIZES[size]
        phone = size == "phone"
        chrome.execute_script("try { sessionStorage.clear() } catch {}")  # below that stays
        chrome.get("about:blank")
        chrome.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
        page = cls(chrome, url)
        page.has_screen(width, height, phone)
        chrome.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": phone})
        colours = [{"name": "prefers-color-scheme", "value": scheme}]
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": colours})
        for log in ("browser", "performance"):
            chrome.get_log(log)  # what was before is not about us
        page.load()
        return page

    def has_screen(self, width: int, height: int, phone: bool) -> None:
        """From now on."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def load(self) -> None:
        """Go there, or there again."""
        self.chrome.get(self.url)
        self.ready()

    def reload(self) -> None:
        self.chrome.refresh()
        self.ready()

    def ready(self) -> None:
        self.until(lambda: self.script("return document.body.dataset.ready"))

    def open_drawer(self) -> None:
        """The list of conversations, and what stands with it; on a desktop it is there anyway."""
        if self.by_id("open-sidebar").is_displayed():
            self.settle()
            self.by_id("open-sidebar").click()
            self.settle()

    def settle(self) -> None:
        """Wait for what is still moving."""
        self.until(lambda: not self.script("return document.getAnimations().length"))

    def script(self, source: str, *arguments: Any) -> Any:
        return self.chrome.execute_script(source, *arguments)

    def until(self, true: Callable[[], Any]) -> Any:
        """Wait for what happens in the page."""
        return WebDriverWait(self.chrome, PATIENCE, poll_frequency=0.05).until(lambda _: true())

    def by_id(self, name: str) -> WebElement:
        return self.chrome.find_element(By.ID, name)

    def all(self, selector: str) -> list[WebElement]:
        """What is to be seen of these."""
        return [e for e in self.chrome.find_elements(By.CSS_SELECTOR, selector) if e.is_displayed()]

    def button(self, name: str, within: str = "body") -> WebElement:
        """The last button with this accessible name."""
        return self.chrome.find_elements(By.CSS_SELECTOR, f'{within} button[aria-label="{name}"]')[-1]

    def press(self, *keys: str) -> None:
        """On whatever has the focus."""
        self.chrome.switch_to.active_element.send_keys(*keys)

    def say(self, text: str) -> None:
        """Write a message and send it."""
        self.by_id("input").send_keys(text)
        self.by_id("send").click()

    def ask(self, text: str) -> str:
        """The answer to a message, once it is complete."""
        self.say(text)
        self.until(lambda: not self.answering)
        return self.answer

    @property
    def answering(self) -> bool:
        return self.by_id("send").get_attribute("aria-label") == "Stop"

    @property
    def answer(self) -> str:
        """The last answer, as far as it has come."""
        return str(self.chrome.find_elements(By.CSS_SELECTOR, ".assistant .body")[-1].text)

    @property
    def texts(self) -> list[str]:
        """All messages."""
        return [str(e.text) for e in self.chrome.find_elements(By.CSS_SELECTOR, ".message .body")]

    @property
    def announced(self) -> str:
        """What a screen reader said last."""
        return str(self.by_id("announcer").get_attribute("textContent"))

    def requested(self) -> set[str]:
        """All addresses that were asked for since the page was opened."""
        entries = [json.loads(entry["message"])["message"] for entry in self.chrome.get_log("performance")]
        sent = (entry for entry in entries if entry["method"] == "Network.requestWillBeSent")
        return {entry["params"]["request"]["url"] for entry in sent}

    def complaints(self) -> list[str]:
        """What the browser has against the page since it was opened: errors, violations of its policy."""
        return [e["message"] for e in self.chrome.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]


ENTER, TAB, ESCAPE, PASTE = Keys.ENTER, Keys.TAB, Keys.ESCAPE, Keys.CONTROL + "v"
