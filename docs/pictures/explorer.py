"""Draw docs/pictures/explorer.jpg: the explorer's page for a scene of the bundled world, in a real browser.

python docs/pictures/explorer.py [--out FOLDER]; needs `vitreous[web]`, playwright and a Chromium.
"""

from __future__ import annotations

import argparse
import io
import shutil
import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import vitreous as vt
from vitreous.web.serve import Server, listen

ADDRESS = "#/image?picture=scene-pairs-5"
SIZE = {"width": 1480, "height": 940}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=Path(__file__).parent)
    out = options.parse_args().out
    server = Server(listen("127.0.0.1", 0), "127.0.0.1", {"world": vt.load("world")}, {})
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        visible = photographed(server.address + ADDRESS)
    finally:
        server.stop()
        thread.join()
        server.explorer.close()
    visible.convert("RGB").save(out / "explorer.jpg", quality=88, subsampling=0, optimize=True)


def photographed(address: str) -> Image.Image:
    """The page, when all of it is there."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport=SIZE, reduced_motion="reduce")
        tab.goto(address)
        tab.wait_for_selector(".trusted .findings", timeout=120_000)
        tab.wait_for_selector(".curve polyline", timeout=120_000)
        tab.wait_for_selector(".busy", state="hidden", timeout=120_000)
        tab.wait_for_timeout(500)
        picture = tab.screenshot()
        browser.close()
    return Image.open(io.BytesIO(picture))


if __name__ == "__main__":
    main()
