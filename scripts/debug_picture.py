"""Make `docs/debug.png`: the debug page with the session of the demo.

Run it when the demo or the page changes: `python -m scripts.debug_picture`. It needs Chromium.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from playwright.sync_api import sync_playwright

from weakincentives.debug import SnapshotStore
from weakincentives.debug.server import DebugServer

TARGET = Path(__file__).parents[1] / "docs" / "debug.png"


def main() -> None:
    """Play the demo, serve its session and take the picture."""
    with TemporaryDirectory() as directory:
        place = Path(directory) / "demo"
        command = [sys.executable, "-m", "weakincentives", "demo", "--keep", str(place)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        server = DebugServer(SnapshotStore(place / "session"))
        thread = Thread(target=server.serve)
        thread.start()
        try:
            take_picture(server.address.url)
        finally:
            server.stop()
            thread.join()


def take_picture(url: str) -> None:
    """Save what a browser shows of the page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1200, "height": 720})
        page.goto(url)
        page.wait_for_selector("body[data-ready][data-listed]")
        page.screenshot(path=TARGET)
        browser.close()


if __name__ == "__main__":
    main()
