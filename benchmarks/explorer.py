"""How long the explorer takes to answer: the page, a prediction, maps, the slider; the latter also while it works.

Run ``python benchmarks/explorer.py``. Server and client share this machine; the model is the bundled one. Every
question is new, so that nothing is answered from memory. ``--browser /usr/bin/chromium`` measures the first paint too.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import random
import re
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import vitreous as vt
from vitreous.web.serve import Server, listen

GOALS = {"page": 1.0, "first paint": 1.0, "prediction": 1.0, "map": 1.0, "try": 0.3}
PICTURE = "scene-standard-{}"


class Client:
    """Asks, over a new connection each time."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str, body: Any = None) -> bytes:
        verb, data = ("GET", None) if body is None else ("POST", json.dumps(body).encode())
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request(verb, path, data, {"content-type": "application/json"})
        response = connection.getresponse()
        read = response.read()
        connection.close()
        assert response.status == 200, read[:300]
        return read

    def page(self) -> None:
        """The page, all that it is made of, and what it asks for first."""
        waiting, seen = ["/"], set()
        while waiting:
            path = waiting.pop()
            text = self.ask(path).decode(errors="replace")
            seen.add(path)
            named = re.findall(r'(?:src|href)="(/static/[\w.-]+)"', text)
            named += [f"/static/{item}" for item in re.findall(r'from "\./([\w.-]+)"', text)]
            waiting += [item for item in dict.fromkeys(named) if item not in seen and item not in waiting]
        self.ask("/api/start")

    def predict(self, number: int) -> None:
        self.ask("/api/predict", {"model": "world", "picture": PICTURE.format(1000 + number)})

    def map(self, method: str, number: int) -> None:
        task = {"kind": "explain", "model": "world", "picture": PICTURE.format(3), "method": method, "seed": 7 + number}
        assert b'"result"' in self.ask("/api/ask", {"tasks": [task]})

    def remove(self, number: int) -> None:
        gone = random.Random(number).choices((0, 1), k=256)
        asked = {"model": "world", "picture": PICTURE.format(3), "removed": base64.b64encode(bytes(gone)).decode()}
        self.ask("/api/try", {**asked, "target": 1})


def timed(work: Callable[[int], object], rounds: int) -> list[float]:
    work(10**6)  # the first time, the model is verified
    result = []
    for number in range(rounds):
        began = time.perf_counter()
        work(number)
        result.append(time.perf_counter() - began)
    return result


def painted(browser: str, address: str, rounds: int) -> list[float]:
    from playwright.sync_api import sync_playwright

    script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    result = []
    with sync_playwright() as play:
        opened = play.chromium.launch(
            executable_path=browser, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        for _ in range(rounds):
            page = opened.new_page()
            page.goto(address)
            page.wait_for_function(script)
            result.append(page.evaluate(script) / 1000)
            page.close()
        opened.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--browser", help="a Chromium, to measure the first paint")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()

    server = Server(listen("127.0.0.1", 0), "127.0.0.1", {"world": vt.load("world", device="cpu")}, {})
    running = threading.Thread(target=server.run)
    running.start()
    try:
        client, rounds = Client(server.port), options.rounds
        seconds = {"page": timed(lambda number: client.page(), rounds)}
        if options.browser:
            seconds["first paint"] = painted(options.browser, server.address, max(3, rounds // 6))
        seconds["prediction"] = timed(client.predict, rounds)
        for method in ("generic", "gradcam", "skipplus(decompx)", "quick"):
            seconds[f"map: {method}"] = timed(lambda number, method=method: client.map(method, number), rounds)  # type: ignore[misc]
        seconds["try"] = timed(client.remove, rounds)
        long = threading.Thread(target=lambda: _ignore(lambda: Client(server.port).map("rise", 0)), daemon=True)
        long.start()
        while server.explorer.long.num_jobs == 0:
            time.sleep(0.01)
        seconds["try, while it works on a long map"] = timed(client.remove, rounds)
    finally:
        server.stop()
        running.join()
        server.explorer.close(60)
    print(f"{torch.get_num_threads()} threads, {rounds} rounds, in milliseconds")
    print(f"{'':36}{'median':>8}{'worst':>8}{'goal':>8}")
    for name, second in seconds.items():
        goal = GOALS[re.split("[:,]", name)[0]]
        middle, worst = statistics.median(second), max(second)
        print(f"{name:36}{1000 * middle:8.0f}{1000 * worst:8.0f}{1000 * goal:8.0f}{'' if worst <= goal else '  over'}")
    if options.out:
        options.out.write_text(json.dumps(seconds, indent=1))


def _ignore(work: Callable[[], object]) -> None:
    try:
        work()
    except (AssertionError, OSError, http.client.HTTPException):
        return  # it was stopped, as it should be


if __name__ == "__main__":
    main()
