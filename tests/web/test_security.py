"""Who may ask the explorer, and what can be reached: names, origins, tokens, headers, files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from PIL import Image

from web_server import SCENE, Client, refused, served

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Client]:
    with served(host="0.0.0.0") as answer:
        yield answer


# -- who may ask -----------------------------------------------------------------------------------------


def test_it_listens_on_this_machine_alone(client: Client) -> None:
    assert client.server.socket.getsockname()[0] == "127.0.0.1"
    assert client.server.token is None
    assert client.server.address == f"http://127.0.0.1:{client.port}/"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "localhost.",
        "[::2]",
        "10.0.0.1",
        "",
    ],
)
def test_a_rebound_name_is_refused(client: Client, host: str) -> None:
    assert refused(client, "GET", "/api/start", host=host) in (400, 403)
    assert refused(client, "GET", "/", host=host) in (400, 403)
    assert refused(client, "GET", "/static/common.js", host=host) in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1", "[::1]:8017", "LocalHost:1"])
def test_this_machine_has_several_names(client: Client, host: str) -> None:
    """Any port: it may be forwarded from elsewhere."""
    assert client.get("/api/start", host=host).status == 200


def test_two_hosts_or_none_are_refused(client: Client) -> None:
    for hosts in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
        entry = client.raw(b"GET /api/start HTTP/1.1\r\n" + hosts + b"Connection: close\r\n\r\n")
        assert entry.split(b" ")[1] == b"400"


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1", "file://"]
)
def test_other_origins_are_refused(client: Client, origin: str) -> None:
    assert refused(client, "POST", "/api/predict", SCENE, origin=origin) == 403
    assert refused(client, "POST", "/api/pictures", b"x", origin=origin) == 403
    assert refused(client, "OPTIONS", "/api/predict", origin=origin, access_control_request_method="POST") == 403


def test_the_page_itself_may_ask(client: Client) -> None:
    own = f"http://127.0.0.1:{client.port}"
    assert client.post("/api/predict", SCENE, origin=own, sec_fetch_site="same-origin").status == 200


@pytest.mark.parametrize("point", ["cross-site", "same-site"])
def test_pages_of_other_sites_cannot_even_embed_a_picture(client: Client, point: str) -> None:
    assert refused(client, "GET", "/api/pictures/scene-standard-3", sec_fetch_site=point) == 403
    assert client.get("/", sec_fetch_site=point).status == 200  # a link may lead here


def test_no_header_of_another_origin_is_ever_sent(client: Client) -> None:
    for answer in (client.get("/api/start"), client.ask("OPTIONS", "/api/ask"), client.get("/nothing")):
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_json_that_a_form_could_send_is_refused(client: Client) -> None:
    body = json.dumps(SCENE).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert refused(client, "POST", "/api/predict", body, content_type=kind) == 415


# -- the token -------------------------------------------------------------------------------------------


def test_bound_elsewhere_it_asks_for_its_token(guarded: Client) -> None:
    token = guarded.server.token
    assert len(token) >= 30
    assert guarded.server.address.endswith(f"/?token={token}")
    for path in ("/", "/api/start", "/api/pictures/scene-standard-3", "/api/runs/x", "/nothing"):
        assert refused(guarded, "GET", path) == 403
        assert refused(guarded, "GET", f"{path}?token=") == 403
        assert refused(guarded, "GET", f"{path}?token={token[:-1]}") == 403
        assert refused(guarded, "GET", f"{path}?token={token.upper()}x") == 403
        assert refused(guarded, "GET", path, x_vitreous_token=token + "a") == 403
    assert refused(guarded, "POST", "/api/predict", SCENE) == 403
    assert refused(guarded, "POST", "/api/pictures", b"x" * 100) == 403
    assert guarded.get(f"/?token={token}").status == 200
    assert guarded.get("/api/start", x_vitreous_token=token).status == 200
    assert guarded.get(f"/api/pictures/scene-standard-3?token={token}").status == 200
    assert guarded.post("/api/predict", SCENE, x_vitreous_token=token).status == 200


def test_the_token_does_not_open_other_origins(guarded: Client) -> None:
    token = guarded.server.token
    assert refused(guarded, "GET", "/api/start", x_vitreous_token=token, origin="http://evil.example") == 403


def test_odd_tokens(guarded: Client) -> None:
    for token in ("%00", "%ff%fe", "a" * 5000, "ü".encode().decode("latin-1")):
        assert refused(guarded, "GET", f"/api/start?token={quote(token)}") == 403
    assert refused(guarded, "GET", "/api/start?" + "&".join("token=a" for _ in range(100))) == 400


# -- headers ---------------------------------------------------------------------------------------------


def test_every_answer_has_the_same_guards(client: Client) -> None:
    answers = [
        client.get("/"),
        client.get("/static/common.js"),
        client.get("/api/start"),
        client.get("/favicon.ico"),
        client.get("/api/pictures/scene-standard-3"),
        client.get("/nothing"),
        client.ask("DELETE", "/api/start"),
        client.get("/api/start", host="evil.example"),
        client.post("/api/predict", b"{", content_type="application/json"),
        client.post("/api/pictures", b"no picture"),
        client.post("/api/ask", {"tasks": [{**SCENE, "kind": "explain", "method": "ixg"}]}),
        client.post("/api/download", {"format": "npy", "questions": [{**SCENE, "method": "ixg"}]}),
    ]
    for result in answers:
        policy = result.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert result.headers["x-content-type-options"] == "nosniff"
        assert result.headers["referrer-policy"] == "no-referrer"
        assert result.headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in result.headers
    assert {answer.headers["cache-control"] for answer in answers[2:]} == {"no-store"}


def test_there_are_no_pages_that_fetch_from_elsewhere(client: Client) -> None:
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert refused(client, "GET", path) == 404


# -- what can be reached ---------------------------------------------------------------------------------

UP = [
    "../app.py",
    "..%2fapp.py",
    "..%252fapp.py",
    "%2e%2e/app.py",
    "..\\app.py",
    "..%5capp.py",
    "/etc/passwd",
    "%2fetc%2fpasswd",
]


@pytest.mark.parametrize(
    "name", [*UP, ".", "..", "", "common.js/", "common.js%00", "COMMON.JS", "nothing.js", "__init__.py"]
)
def test_only_files_of_the_page_are_served(client: Client, name: str) -> None:
    assert refused(client, "GET", f"/static/{name}") == 404


@pytest.mark.parametrize(
    "name",
    [
        *UP,
        "scene-standard-",
        "scene-standard-01",
        "scene-standard--1",
        "scene-standard-9999999999",
        "scene-evil-1",
        "p-" + "0" * 16,
        "p-../../etc",
    ],
)
def test_only_pictures_are_pictures(client: Client, name: str) -> None:
    assert refused(client, "GET", f"/api/pictures/{name}?model=world") == 404
    if "/" not in name:
        assert refused(client, "POST", "/api/predict", {"model": "world", "picture": name}) == 404


@pytest.mark.parametrize("model", ["", "timm/vit_base_patch16_224", "/etc/passwd", "../world", "world\x00", "WORLD"])
def test_only_models_of_the_start_are_models(client: Client, model: str) -> None:
    assert refused(client, "POST", "/api/predict", {**SCENE, "model": model}) == 404
    (answer,) = client.tasks({**SCENE, "model": model, "kind": "explain", "method": "ixg"})
    assert answer["event"] == "error"


def test_spellings_read_no_files(client: Client, tmp_path: Path) -> None:
    secret = tmp_path / "secret.safetensors"
    secret.write_bytes(b"secret")
    for text in (
        f'coiba(stats="{secret}")',
        f"smooth(iba(stats='{secret}'), samples=2)",
        'iba_star(stats="/dev/zero")',
        f'gradient_shap(background="{tmp_path}")',
    ):
        (answer,) = client.tasks({**SCENE, "kind": "explain", "method": text})
        assert answer["event"] == "error"
        assert "reads no files" in answer["message"]
        assert not client.fine("/api/method", {"model": "world", "spec": text})["ok"]


def test_nothing_is_written_and_nobody_else_is_asked(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where it was started nor in the cache: whatever is opened for writing is seen, and every connection."""
    written: list[str] = []
    asked: list[str] = []
    watching = True

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            written.append(str(arguments[0]))
        if watching and event in ("socket.connect", "socket.getaddrinfo"):
            asked.append(str(arguments[1][0] if event == "socket.connect" else arguments[0]))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    sys.addaudithook(hear)
    client.upload(Image.new("RGB", (40, 40), "red"))
    client.task("explain", method="generic", seed=99)
    client.post("/api/download", {"format": "html", "questions": [{**SCENE, "method": "generic"}]})
    assert list(tmp_path.iterdir()) == []
    assert [entry for entry in written if entry != os.devnull] == []
    assert set(asked) == {"127.0.0.1"}
    (tmp_path / "file").write_text("")
    watching = False
    assert written[-1] == str(tmp_path / "file")


def test_there_are_no_other_doors(client: Client) -> None:
    """No websocket, no other verb."""
    upgrade = {
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-key": "x" * 22 + "==",
        "sec-websocket-version": "13",
    }
    assert client.ask("GET", "/api/ask", **{k.replace("-", "_"): v for k, v in upgrade.items()}).status >= 400
    for verb in ("PUT", "DELETE", "PATCH", "TRACE", "HEAD"):
        assert client.ask(verb, "/api/start").status == 405
