"""A headless Chromium that opens a page, spoken to through chromedriver with the standard library alone."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.request import Request, urlopen

ANSWER_TIMEOUT = 60.0
PHONE = (390, 844)
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage")


def find_chromium() -> tuple[str, str] | None:
    """Where the browser and its driver are; None where one of them is missing."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Chromium:
    """One browser with one page; use it in a `with` statement."""

    def __init__(self, browser: str, driver: str) -> None:
        self._driver = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._session = ""
        try:
            self._address = f"http://127.0.0.1:{self._port()}"
            options = {"binary": browser, "args": [*ARGUMENTS, "--window-size=1200,900"]}
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self._session = f"/session/{made['sessionId']}"
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and its driver."""
        try:
            if self._session:
                self._ask("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(timeout=10)
            assert self._driver.stdout is not None
            self._driver.stdout.close()

    def _port(self) -> int:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                return int(found[1])
        raise RuntimeError("chromedriver ended before it listened")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._address + path, data, {"Content-Type": "application/json"}, method=method)
        with urlopen(request, timeout=ANSWER_TIMEOUT) as answer:
            return json.load(answer)["value"]

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def open(self, page: Path | str) -> None:
        """Open a file or an address; returns after its load event."""
        address = page if isinstance(page, str) else page.resolve().as_uri()
        self._ask("POST", f"{self._session}/url", {"url": address})

    def wait_for(self, code: str) -> Any:
        """What the promise of this JavaScript comes to."""
        answered = "const done = arguments[arguments.length - 1];"
        return self._ask(
            "POST", f"{self._session}/execute/async", {"script": f"{answered} {code}.then(done)", "args": []}
        )

    def script(self, code: str) -> Any:
        """What this JavaScript returns in the page."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": code, "args": []})

    def scheme(self, name: str) -> None:
        """Have the page believe that the user prefers "light" or "dark"."""
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screen(self, width: int, height: int, *, phone: bool = False) -> None:
        """The size of the screen, in pixels of CSS."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )

    def shot(self, path: Path) -> Path:
        """A picture of the whole page, as PNG."""
        taken = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))
        return path

    def load_seconds(self) -> float:
        """From the start of the navigation to the end of the load event."""
        timing = self.script("return performance.getEntriesByType('navigation')[0].toJSON()")
        return float(timing["loadEventEnd"]) / 1000

    def log(self, kind: str) -> list[dict[str, Any]]:
        """What came since the last time: "browser" is the console, "performance" the protocol's events."""
        return list(self._ask("POST", f"{self._session}/se/log", {"type": kind}))

    def requests(self) -> list[str]:
        """The addresses that the page asked for since the last time."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
