"""A real browser for tests: Chromium, driven over its driver's WebDriver protocol (W3C)."""

import base64
import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from tests import servers

DRIVER: Final = shutil.which("chromedriver")
BROWSER: Final = shutil.which("chromium") or shutil.which("google-chrome")
_ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"
"""Key of an element's id in the protocol's JSON."""


@dataclass(frozen=True, slots=True)
class Browser:
    """One window."""

    client: httpx.Client
    session: str

    def _call(self, method: str, path: str, document: object = None) -> Any:
        response = self.client.request(method, f"{self.session}/{path}", json=document)
        value = response.json()["value"]
        assert response.status_code == 200, value
        return value

    def open(self, url: str) -> None:
        self._call("POST", "url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """The value that the script returns; a promise is awaited."""
        return self._call("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def type(self, selector: str, text: str) -> None:
        found = self._call("POST", "element", {"using": "css selector", "value": selector})
        self._call("POST", f"element/{found[_ELEMENT]}/value", {"text": text})

    def press(self, key: str) -> None:
        """Press one key, wherever the focus is."""
        strokes = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        keyboard = {"type": "key", "id": "keyboard", "actions": strokes}
        self._call("POST", "actions", {"actions": [keyboard]})

    def wait_for_text(self, text: str) -> None:
        servers.wait_until(lambda: text in self.text(), what=f"browser shows {text!r}")

    def errors(self) -> list[str]:
        """What the browser has logged as errors since the last call."""
        logged = self._call("POST", "se/log", {"type": "browser"})
        return [each["message"] for each in logged if each["level"] == "SEVERE"]

    def development_tools(self, command: str, **parameters: object) -> Any:
        """The result of a command of Chromium's development tools."""
        return self._call("POST", "goog/cdp/execute", {"cmd": command, "params": parameters})

    def save_picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", "screenshot")))


@contextlib.contextmanager
def browser(width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """A headless browser; ended with its driver."""
    assert DRIVER is not None
    assert BROWSER is not None
    port = servers.free_port()
    driver = subprocess.Popen(
        [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    flags = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    options = {"binary": BROWSER, "args": [*flags, f"--window-size={width},{height}"]}
    capabilities = {
        "browserName": "chrome",
        "goog:chromeOptions": options,
        "goog:loggingPrefs": {"browser": "ALL"},
    }
    url = f"http://127.0.0.1:{port}/session"
    try:
        with httpx.Client(trust_env=False, timeout=120) as client:
            servers.wait_until(lambda: _is_up(client, port), what="chromedriver ready")
            document = {"capabilities": {"alwaysMatch": capabilities}}
            session = client.post(url, json=document).json()["value"]["sessionId"]
            try:
                yield Browser(client, f"{url}/{session}")
            finally:
                client.delete(f"{url}/{session}")
    finally:
        servers.end_process(driver)


def _is_up(client: httpx.Client, port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return bool(client.get(f"http://127.0.0.1:{port}/status").json()["value"]["ready"])
    return False
