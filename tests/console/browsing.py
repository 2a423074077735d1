"""A real Chromium, as a person uses it; and the console as a process. Both are ended with the block."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from waiting import WAIT_S, wait_until

CONSOLE = Path(sys.executable).with_name("metad-console")
SHOTS = os.environ.get("METAD_SCREENSHOTS", "")
"""A folder for pictures of the pages; empty: they are not taken."""
_FLAGS = """
--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage
"""


class Console:
    """One ``metad-console``. ``flags``: of its command line, behind the address that it listens on."""

    def __init__(self, home: Path, *flags: str) -> None:
        self._stderr = (home / "console-stderr").open("w+")
        command = [str(CONSOLE), "--listen", "127.0.0.1:0", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._stderr, text=True, cwd=home)
        assert self.process.stdout is not None
        said = re.fullmatch(r"metad-console serves on (https?://(\S+))\n", self.process.stdout.readline())
        assert said is not None, self.stderr
        self.url, self.address = said[1], said[2]

    @property
    def stderr(self) -> str:
        self._stderr.flush()
        return Path(self._stderr.name).read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        status = self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        said = self.stderr
        self._stderr.close()
        if error is None:
            assert status == 0, said
            assert said == "", said  # no stack trace, whatever the pages met


class Browser:
    """What a person sees and does."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for flag in (*_FLAGS.split(), f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        self.at = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.quit()

    def open(self, url: str) -> None:
        self.driver.get(url)

    def looks(self, width: int, *, dark: bool) -> None:
        """Be a screen of this width, whose owner likes it dark."""
        metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        likes = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": likes})

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    @property
    def text(self) -> str:
        """What is written on the page."""
        return str(self.run("return document.body.innerText"))

    def sees(self, *texts: str) -> None:
        """Wait until all of these are on the page."""
        wait_until(lambda: all(text in self.text for text in texts), f"{texts} on {self.driver.current_url}", 60)

    def sees_no_more(self, text: str) -> None:
        wait_until(lambda: text not in self.text, f"{text!r} to be gone", 60)

    def find(self, selector: str, text: str = "") -> WebElement:
        """Wait for what is shown and begins so."""
        found: list[WebElement] = []

        def look() -> bool:
            try:
                every = self.driver.find_elements(By.CSS_SELECTOR, selector)
                found[:] = [one for one in every if one.is_displayed() and one.text.startswith(text)]
            except WebDriverException:
                return False  # the page has changed meanwhile
            return bool(found)

        wait_until(look, f"{selector} {text!r} in: {self.driver.current_url}", 60)
        return found[0]

    def press(self, text: str, within: str = "") -> None:
        """Press the button that begins so, once nothing is in front of it: a dialog takes a moment to go."""

        def pressed() -> bool:
            try:
                self.find(f"{within} button", text).click()
            except WebDriverException:
                return False
            return True

        wait_until(pressed, f"the button {text!r}", 60)

    def types(self, *keys: str) -> None:
        """Type into what has the focus."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def tab(self) -> str:
        """Press Tab; what has the focus then says so."""
        self.types(Keys.TAB)
        return str(self.run("return document.activeElement.innerText.trim()"))

    def complaints(self) -> list[str]:
        """What the browser complained about since it was asked last."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def timings(self) -> tuple[float, float]:
        """Of the page that is shown: how long the server took, and when the first paint was, milliseconds."""
        server = "return performance.getEntriesByType('navigation')[0].serverTiming[0].duration"
        paint = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        wait_until(lambda: self.run(paint) is not None, "the first paint")
        return float(self.run(server)), float(self.run(paint))

    def shot(self, name: str) -> None:
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(str(Path(SHOTS) / f"{name}.png"))
