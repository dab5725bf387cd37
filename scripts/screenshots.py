"""Pictures of the chat page, in light and dark, on a desktop and on a phone: scripts/screenshots.py FOLDER

Needs a server (edgespec serve PAIR), and Debian's packages chromium and chromium-driver. Makes, for every
kind of screen, the empty page, an answer in the making, code, tokens by origin, and the settings.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from page.browser import ChatPage, programs, start  # noqa: E402

CODE = "Write a Python function that tells whether a word is a palindrome."
COUNT = "Count from one to twenty in words, then backwards."


def take(page: ChatPage, prefix: Path) -> None:
    """Talk with the model, and take a picture of every stage."""

    def picture(name: str) -> None:
        page.chrome.save_screenshot(f"{prefix}-{name}.png")

    page.until(lambda: page.by_id("empty-pair").text.strip())
    picture("empty")
    page.say(CODE)
    page.until(lambda: len(page.answer) > 80 or not page.answering)
    picture("streaming")
    page.until(lambda: not page.answering)
    picture("code")
    page.by_id("colours").click()
    page.say(COUNT)
    page.until(lambda: len(page.answer) > 80 or not page.answering)
    picture("origins")
    page.until(lambda: not page.answering)
    page.script("document.getElementById('open-settings').click()")
    picture("settings")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("folder", type=Path, help="where to put them")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server (default: %(default)s)")
    parser.add_argument("--size", choices=("desktop", "phone"), help="of the screen (default: both)")
    options = parser.parse_args()
    found = programs()
    if found is None:
        sys.exit("Chromium and its driver are missing; on Debian: apt-get install chromium chromium-driver")
    options.folder.mkdir(parents=True, exist_ok=True)
    for size, scheme in product([options.size] if options.size else ["desktop", "phone"], ("light", "dark")):
        chrome = start(*found)
        try:
            take(ChatPage.of(chrome, options.url, size, scheme), options.folder / f"{size}-{scheme}")
        finally:
            chrome.quit()


if __name__ == "__main__":
    main()
