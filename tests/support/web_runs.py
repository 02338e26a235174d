"""A run with two data sets whose numbers are written by hand and whose pictures are real, and a server for it."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.benchmark.data import Options
from vitreous.benchmark.protocol import DataSpec, EvaluationSpec, ModelSpec, Protocol, Published
from vitreous.benchmark.run import BenchmarkRun
from vitreous.benchmark.store import Store
from vitreous.benchmark.unit_file import pack_unit
from vitreous.benchmark.units import Unit

METRICS = ("deletion(steps=4)", "gini", "token_deletion_aopc")
METHODS = {"<i>mine</i>": "rollout", "generic": "generic", "tis": "tis", "saliency": "saliency"}
ALL = (*METHODS, "random", "constant", "centre")
CLASSES = 5
SIDES = {"saliency": 8}


def share(*words: Any) -> float:
    """A number from 0 to 1 that only depends on some words."""
    digest = hashlib.blake2b(repr(words).encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


def score(picture: str, method: str, metric: str) -> float:
    """What a metric says; now and then nothing."""
    if method == "tis" and share(picture, "lost") < 0.2:
        return float("nan")
    return round(share(method, metric) + 0.2 * share(picture, method, metric), 6)


def confidence(picture: str) -> float:
    return round(0.3 + 0.7 * share(picture, "sure"), 6)


def predicted(picture: str) -> int:
    return int(share(picture, "said") * CLASSES)


def right(picture: str) -> bool:
    return share(picture, "right") < 0.7


def map_of(picture: str, method: str) -> np.ndarray[Any, Any]:
    side = SIDES.get(method, 4)
    values = [[share(picture, method, row, column) for column in range(side)] for row in range(side)]
    return np.array(values, np.float32) - (0.5 if method == "generic" else 0.0)


def protocol(images: int = 12) -> Protocol:
    return Protocol(
        name="mine",
        title="A run & its <script>alert(1)</script>",
        models=(ModelSpec("world", "world"),),
        data=DataSpec("world", label="test", images=images, split="test"),
        also=(DataSpec("world", label="train", images=6, split="train", metrics=("gini",)),),
        evaluation=EvaluationSpec(METRICS, reference="generic"),
        methods=METHODS,
        published=(Published("gini", "world", "generic", data="test", value=0.25, printed=25.0),),
    )


def arrays(unit: Unit) -> dict[str, Any]:
    """What a unit holds, by its own definitions above."""
    content: dict[str, Any] = {}
    for i, method in enumerate(unit.methods):
        if not unit.is_scoring:
            content[f"maps/{i}"] = np.stack([map_of(image, method) for image in unit.images])
            content[f"rows/{i}/given"] = np.arange(len(unit.images), dtype=np.int32)
            continue
        content[f"flags/{i}/given"] = np.array([method == "constant" for _ in unit.images], np.int64)
        for j, metric in enumerate(unit.metrics):
            content[f"parts/{i}/{j}"] = np.array([[score(image, method, metric)] for image in unit.images])
            if metric == METRICS[0]:
                content[f"curve/{i}/{j}/0/deletion/x"] = np.linspace(0, 1, 5)
                lines = [np.linspace(1, score(image, method, metric), 5) for image in unit.images]
                content[f"curve/{i}/{j}/0/deletion/y"] = np.stack(lines)
    sure = np.array([confidence(image) for image in unit.images])
    if not unit.is_scoring:
        return {**content, "classes/given": np.array([predicted(image) for image in unit.images])}
    chance = np.where([right(image) for image in unit.images], sure, sure / 10)
    return {**content, "confidence/pred": sure, "confidence/label": chance}


def planned(folder: Path) -> Store:
    """A run of which nothing is done."""
    BenchmarkRun(protocol(), folder, Options(device="cpu")).prepare()
    return Store(folder)


def done(store: Store, unit: Unit, **more: Any) -> None:
    """Write what a unit found; ``more`` is said about it."""
    with store.claim(unit.id) as mine:
        assert mine
        info: dict[str, Any] = {"images": list(unit.images), "unreadable": {}, "seconds": 1.0}
        store.put(unit.id, pack_unit(arrays(unit), {"unit": unit.to_json(), "explaining": 1.0, **info, **more}))


def finished_run(folder: Path) -> Path:
    """A run of which everything is done."""
    store = planned(folder)
    for plan in store.plans():
        for unit in plan.units:
            done(store, unit)
    return folder


class Client:
    """Asks a server on this machine."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def raw(self, path: str) -> tuple[int, bytes, str]:
        try:
            with urllib.request.urlopen(self.address + path, timeout=60) as answer:
                return answer.status, answer.read(), answer.headers["content-type"]
        except urllib.error.HTTPError as error:
            return error.code, error.read(), error.headers["content-type"]

    def get(self, path: str, **query: Any) -> tuple[int, Any]:
        parameters = urllib.parse.urlencode(query, doseq=True)
        status, content, _ = self.raw(f"/api/runs{path}" + (f"?{parameters}" if parameters else ""))
        return status, json.loads(content)

    def fine(self, path: str, **query: Any) -> Any:
        status, content = self.get(path, **query)
        assert status == 200, content
        return content


@contextmanager
def served(runs: Mapping[str, Path], **more: Any) -> Iterator[Client]:
    """The addresses of runs alone, without the rest of the explorer."""
    import uvicorn

    from vitreous.web.app import new_app
    from vitreous.web.run_view import RunFolder

    app = new_app({name: RunFolder(folder, **more) for name, folder in runs.items()})
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    try:
        yield Client(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(10)
