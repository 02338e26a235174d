"""Clients that send half of something, or read half of it: they are left after a while, and nobody waits for them."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from PIL import Image

from web_server import SCENE, Client, served, until

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

HEAD = b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
STALLED = {
    "nothing": b"",
    "half a line": b"GET /api/st",
    "half a head": b"GET /api/start HTTP/1.1\r\nHost: localhost\r\nX-Half:",
    "no body": HEAD + b"Content-Length: 100\r\n\r\n",
    "half a body": HEAD + b'Content-Length: 100\r\n\r\n{"model": ',
    "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n40\r\n{",
    "half an upload": b"POST /api/pictures HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n"
    + bytes(90_000),
    "a body that nobody reads": b"GET /api/start HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n",
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served() as answer:
        yield answer
        assert answer.get("/api/start").status == 200, "it is not up any more"


@contextmanager
def opened(client: Client, data: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
        connection.sendall(data)
        yield connection


def photo() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.web import app, connections

    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(app, "BODY_SECONDS", 0.5)
    monkeypatch.setattr(app, "SILENCE", 0.3)


@pytest.mark.parametrize("kind", STALLED)
def test_half_a_request_is_not_waited_for(client: Client, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)
    with opened(client, STALLED[kind]) as stalled:
        while stalled.recv(65536):  # an answer that says why, perhaps; then the end
            pass


@pytest.mark.parametrize("kind", ["nothing", "half a head", "half a body", "a body that nobody reads"])
def test_a_byte_from_time_to_time_does_not_help(client: Client, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)
    with opened(client, STALLED[kind]) as dripping:
        dripping.settimeout(0.05)
        for _ in range(1000):
            try:
                if not dripping.recv(65536):
                    break
            except TimeoutError:
                pass
            except OSError:
                break
            try:
                dripping.sendall(b"x")
            except OSError:
                break
        else:
            pytest.fail("it is still open")


def test_whoever_does_not_read_is_left(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.web import connections

    monkeypatch.setattr(connections, "READ_SECONDS", 0.3)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        deaf.connect(("127.0.0.1", client.port))
        # more than both ends have room for: four megabytes each as a rule
        deaf.sendall(b"GET /static/image.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        name = deaf.getsockname()
        until(lambda: any(connection.client == name for connection in client.server.server.server_state.connections))
        until(lambda: all(connection.client != name for connection in client.server.server.server_state.connections))
    assert client.get("/api/start").status == 200


def test_an_honest_client_is_answered_while_many_stall(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far more connections than there may be, and more half requests than may be answered at once."""
    from vitreous.web import connections, security

    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 64)
    monkeypatch.setattr(security, "MOST_ACTIVE", 16)
    kinds = list(STALLED.values())
    with ExitStack() as stalled:
        for place in range(400):
            stalled.enter_context(opened(client, kinds[place % len(kinds)]))
        assert client.get("/api/start").status == 200
        assert client.post("/api/predict", SCENE).status == 200
        assert client.post("/api/pictures?name=x", photo()).status == 200
        assert client.task("explain", method="generic")
        assert len(client.server.server.server_state.connections) < 200


def test_streams_and_long_answers_outlive_the_deadlines(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.web import connections

    shorten(monkeypatch)
    monkeypatch.setattr(connections, "READ_SECONDS", 0.3)
    tasks = [{**SCENE, "kind": "explain", "method": "rise(masks=60)", "seed": seed} for seed in range(2)]
    assert [task["event"] for task in client.tasks(*tasks)] == ["result"] * len(tasks)


def test_a_slow_and_steady_upload_arrives(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than a body may without any of it arriving, and more than fits into the first part."""
    shorten(monkeypatch)
    data = photo()
    head = f"POST /api/pictures HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    with opened(client, head.encode()) as slow:
        for start in range(0, len(data), 20_000):
            slow.sendall(data[start : start + 20_000])
            time.sleep(0.05)
        answer = b""
        while part := slow.recv(65536):
            answer += part
    assert b" 200 " in answer
    assert b'"width":400' in answer
