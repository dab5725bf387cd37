"""The Android app: what can be said of it without a phone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from page.browser import ChatPage
from page.conftest import chrome
from selenium.webdriver import Chrome
from server.conftest import Server, tiny
from waiting import PATIENCE

__all__ = ["chrome", "tiny"]

APP = Path(__file__).parents[2] / "android_demo/app"
TOOLS = ("smali", "aapt", "zipalign", "apksigner", "keytool")
SERVER = "http://127.0.0.1:8765/"


@pytest.fixture(scope="module")
def apk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The app for a server on port 8765."""
    missing = [program for program in TOOLS if shutil.which(program) is None]
    if missing:
        reason = f"{', '.join(missing)} not found; android_demo/app/build.sh says what to install"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("apk")
    out = folder / "edgespec.apk"
    done = run(APP / "build.sh", out, PORT="8765", KEYSTORE=str(folder / "debug.keystore"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}\n" and (folder / "debug.keystore").is_file()
    return out


def run(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=os.environ | variables, capture_output=True, text=True, timeout=PATIENCE)


def test_it_is_signed_for_all_phones_that_it_is_for(apk: Path) -> None:
    done = run("apksigner", "verify", "--verbose", "--min-sdk-version", "24", apk)
    assert done.returncode == 0, done.stderr
    assert "Verified using v2 scheme (APK Signature Scheme v2): true" in done.stdout


def test_it_asks_for_the_network_and_nothing_else(apk: Path) -> None:
    badging = run("aapt", "dump", "badging", apk).stdout
    assert re.findall("uses-permission.*: name='(.*?)'", badging) == ["android.permission.INTERNET"]
    assert "sdkVersion:'24'" in badging and "targetSdkVersion:'34'" in badging
    assert "launchable-activity: name='org.edgespec.chat.MainActivity'" in badging


def test_only_what_is_sent_to_the_phone_itself_may_be_unencrypted(apk: Path) -> None:
    network = run("aapt", "dump", "xmltree", apk, "res/xml/network.xml").stdout
    allowed = re.findall(r"cleartextTrafficPermitted=\(type 0x12\)(0x\w+)", network)
    assert [int(flag, 16) != 0 for flag in allowed] == [False, True]  # in general, for the domains
    assert re.findall('C: "(.*)"', network) == ["127.0.0.1"]
    manifest = run("aapt", "dump", "xmltree", apk, "AndroidManifest.xml").stdout
    assert "usesCleartextTraffic" not in manifest and "networkSecurityConfig" in manifest


def test_text_can_be_shared_into_it(apk: Path) -> None:
    manifest = run("aapt", "dump", "xmltree", apk, "AndroidManifest.xml").stdout
    assert '"android.intent.action.SEND"' in manifest and '"text/plain"' in manifest


def test_its_server_is_the_one_it_was_built_for(apk: Path) -> None:
    with zipfile.ZipFile(apk) as files:
        for name in ("classes.dex", "assets/offline.html"):
            content = files.read(name)
            assert SERVER.encode() in content and b"@SERVER@" not in content


@pytest.mark.parametrize("port", ["80", "70000", "08000", "8000/x"])
def test_a_port_that_no_app_can_serve_on_is_refused(apk: Path, tmp_path: Path, port: str) -> None:
    done = run(APP / "build.sh", tmp_path / "bad.apk", PORT=port)
    assert (done.returncode, done.stderr) == (1, f"error: PORT is {port}, not one of 1024 to 65535\n")


def offline_page(chrome: Chrome, folder: Path, server: str) -> ChatPage:
    """What the app shows where nothing answers."""
    file = folder / "offline.html"
    file.write_text((APP / "assets/offline.html").read_text("utf-8").replace("@SERVER@", server), "utf-8")
    chrome.get("about:blank")
    return ChatPage(chrome, file.as_uri())


def test_without_a_server_it_says_what_to_do_and_goes_on_when_there_is_one(
    chrome: Chrome, tmp_path: Path
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler, bind_and_activate=False) as server:
        server.server_bind()  # and does not listen
        address = f"http://127.0.0.1:{server.server_port}/"
        page = offline_page(chrome, tmp_path, address)
        page.complaints()  # what was before is not about us
        chrome.get(f"{page.url}#{address}#share=1%20%2B%201")
        assert "edgespec is not running" in page.by_id("words").text
        assert "android_demo/termux/setup.sh" in page.by_id("words").text
        page.until(page.complaints)  # it has looked
        assert chrome.current_url.startswith("file:")
        server.server_activate()
        Thread(target=server.serve_forever, daemon=True).start()
        page.until(lambda: chrome.current_url == f"{address}#share=1%20%2B%201")  # by itself
        chrome.get("about:blank")
        server.shutdown()


def test_it_goes_nowhere_but_to_its_server(chrome: Chrome, tiny: Server, tmp_path: Path) -> None:
    page = offline_page(chrome, tmp_path, f"{tiny.url}/")
    chrome.get(f"{page.url}#https://elsewhere.example/")
    page.by_id("retry").click()
    page.until(lambda: chrome.current_url.startswith(tiny.url))
    page.ready()
    assert chrome.current_url == f"{tiny.url}/"
