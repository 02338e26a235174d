"""A real explorer in a thread, and a plain client that can also misbehave."""

from __future__ import annotations

import base64
import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

import vitreous as vt

SCENE = {"model": "world", "picture": "scene-standard-3"}
PAIR = {"model": "world", "picture": "scene-pairs-5"}


@cache
def world(name: str = "world") -> vt.VisionModel:
    """A bundled model, loaded once for all tests of a process."""
    return vt.load(name, device="cpu")


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class Client:
    """Asks a server that runs on a port of this machine."""

    def __init__(self, server: Any) -> None:
        self.server, self.port, self.explorer = server, server.port, server.explorer

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Ask anything; a mapping or list travels as JSON."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, dict | list):
            body = json.dumps(body).encode()
            sent.setdefault("content-type", "application/json")
        connection = self.connect()
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.ask("POST", path, body, **headers)

    def fine(self, path: str, body: Any = None) -> Any:
        """Return what a question is answered with, which must be an answer."""
        answer = self.get(path) if body is None else self.post(path, body)
        assert answer.status == 200, answer
        return answer.json

    def tasks(self, *tasks: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return how each task ended."""
        events = self.events(*tasks)
        ended = {event["task"]: event for event in events if event["event"] in ("result", "error")}
        return [ended[place] for place in range(len(tasks))]

    def events(self, *tasks: Mapping[str, Any]) -> list[dict[str, Any]]:
        answer = self.post("/api/ask", {"tasks": list(tasks)})
        assert answer.status == 200, answer
        assert answer.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in answer.data.splitlines()]

    def task(self, kind: str, **more: Any) -> dict[str, Any]:
        """Return the result of one task about the usual scene."""
        (answer,) = self.tasks({**SCENE, "kind": kind, **more})
        assert answer["event"] == "result", answer
        return answer

    def raw(self, data: bytes) -> bytes:
        """Send bytes as they are and return what comes back until the end."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(data)
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
            return b"".join(parts)

    def upload(self, picture: Image.Image, name: str = "photo.png", **options: Any) -> str:
        buffer = io.BytesIO()
        picture.save(buffer, **({"format": "PNG"} | options))
        answer = self.post(f"/api/pictures?name={name}", buffer.getvalue())
        assert answer.status == 200, answer
        return str(answer.json["picture"])


@contextmanager
def served(
    *models: str,
    views: Mapping[str, vt.VisionModel] | None = None,
    runs: Mapping[str, Path] | None = None,
    host: str = "127.0.0.1",
    **more: Any,
) -> Iterator[Client]:
    """Run a server until the block ends; afterwards nothing of it may be left."""
    from vitreous.web.serve import Server, listen

    views = views or {name: world(name) for name in models or ("world",)}
    server = Server(listen(host, 0), host, views, runs or {}, **({"memory_gb": 0.25} | more))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Client(server)
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive()
        assert server.explorer.close(30)


def refused(client: Client, method: str, path: str, body: Any = None, **headers: str) -> int:
    """Ask, and return the status of a refusal, which must be one line of JSON."""
    answer = client.ask(method, path, body, **headers)
    assert answer.status >= 400, answer
    content = answer.json
    assert list(content) == ["error"]
    assert content["error"]
    assert "\n" not in content["error"]
    assert "Traceback" not in content["error"]
    return answer.status


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


def decoded(array: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """An array of the wire."""
    return np.frombuffer(base64.b64decode(array["data"]), "<f4").reshape(array["shape"])


def opened(address: str) -> Image.Image:
    """A picture of the wire."""
    head, _, data = address.partition(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def gone(*patches: int, count: int = 256) -> str:
    """Which patches are removed, for ``try``."""
    return base64.b64encode(bytes(int(place in patches) for place in range(count))).decode()


def class_probabilities(model: vt.VisionModel, picture: Image.Image) -> torch.Tensor:
    """What a model says about a picture that is cut to size."""
    return model.logits(model.preprocess.to_tensor(picture)[None])[0].softmax(dim=0)
