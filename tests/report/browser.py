"""A headless Chromium on a page of the disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--force-device-scale-factor=1"),
)


@contextmanager
def chromium(profile: Path) -> Iterator[Chrome]:
    """A browser with a new profile. Fails with one line where the system has none."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.fail(
            "the report's tests need Chromium: apt-get install chromium chromium-driver",
            pytrace=False,
        )
    options = ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = Chrome(options=options, service=ChromeService(driver))
    try:
        made.set_script_timeout(60)
        yield made
    finally:
        made.quit()


def size(browser: Chrome, width: int, height: int = 900, *, dark: bool = False) -> None:
    """Set the window, and what the system wishes."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wish = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wish]})


def js(browser: Chrome, script: str, *arguments: Any) -> Any:
    """What a piece of script returns."""
    return browser.execute_script(f"return {script}", *arguments)
