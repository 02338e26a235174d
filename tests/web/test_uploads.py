"""What is sent to the explorer: pictures that are none, bodies that mean nothing; it answers clearly and stays up."""

from __future__ import annotations

import io
import socket
import struct
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from web_server import SCENE, Client, gone, refused

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


def test_an_upload_that_is_too_large_is_refused_before_it_is_read(client: Client) -> None:
    lines = (
        "POST /api/pictures HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        f"Content-Length: {10**12}",
        "",
        "x",
    )
    assert client.raw("\r\n".join(lines).encode()).split(b" ")[1] == b"413"


def test_what_an_upload_says_about_its_length_is_not_believed(client: Client) -> None:
    """In chunks, and without an end: it is cut off as soon as it is too much."""
    from vitreous.web.decoder import MOST_BYTES

    def chunks() -> Iterator[bytes]:
        for _ in range(MOST_BYTES // 2**20 + 8):
            yield b"\x00" * 2**20

    connection = client.connect()
    try:
        connection.request("POST", "/api/pictures", chunks(), encode_chunked=True)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server has heard enough
    else:
        assert connection.getresponse().status == 413
    finally:
        connection.close()


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG that claims a size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("width", "height"), [(10_000, 10_000), (60_000, 60_000), (2**31 - 1, 2**31 - 1), (50_000_001, 1)]
)
def test_bombs_are_refused_by_their_header(client: Client, width: int, height: int) -> None:
    assert refused(client, "POST", "/api/pictures", png(width, height)) == 413


def broken() -> dict[str, bytes]:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(buffer, "PNG")
    content = buffer.getvalue()
    return {
        "empty": b"",
        "text": b"not a picture",
        "cut": content[: len(content) // 2],
        "head": content[:20],
        "zeros": bytes(1000),
        "no pixels": png(100, 100),
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        "html": b"<html><script>alert(1)</script></html>",
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
        "pdf": b"%PDF-1.4\n",
        "zip": b"PK\x03\x04" + bytes(100),
        "pickle": b"\x80\x04\x95" + bytes(50),
        "damaged": content[:60] + bytes(60) + content[120:],
        "gif": b"GIF89a" + bytes(20),
        "tiff": b"II*\x00" + b"\xff" * 100,
    }


@pytest.mark.parametrize("kind", list(broken()))
def test_what_is_no_picture_is_refused(client: Client, kind: str) -> None:
    assert refused(client, "POST", "/api/pictures?name=x", broken()[kind]) in (413, 415)


def test_of_many_frames_the_first_is_taken(client: Client) -> None:
    frames = [Image.new("RGB", (32, 32), (entry, 0, 0)) for entry in range(0, 250, 5)]
    for form in ("GIF", "TIFF", "WEBP"):
        picture = client.upload(frames[0], format=form, save_all=True, append_images=frames[1:])
        seen = Image.open(io.BytesIO(client.get(f"/api/pictures/{picture}?model=world").data))
        assert np.asarray(seen).max() <= 8


@pytest.mark.parametrize("name", ["../../etc/passwd", "<script>", "a" * 5000, "\x00\n\r", "é\ud83d", "", "con.png"])
def test_names_of_uploads_are_only_words(client: Client, name: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    answer = client.post(f"/api/pictures?name={quote(name, errors='replace')}", buffer.getvalue())
    assert answer.status == 200
    assert len(answer.json["name"]) <= 800
    assert answer.json["name"].isprintable()
    question = {"model": "world", "picture": answer.json["picture"], "method": "ixg"}
    for form in ("png", "npy"):
        image = client.post("/api/download", {"format": form, "questions": [question]})
        assert image.status == 200
        message = image.headers["content-disposition"]
        assert message.startswith('attachment; filename="vitreous-')
        assert not set(message) & set("/\\<>\r\n\0")


BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"1e999",
    b'"x"',
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b'{"model": NaN}',
    b"\xff\xfe",
    b'{"model": "\\ud800"}',
    b'{"model": 5}',
    b'{"model": {}}',
    b'{"model": "world", "picture": ["x"]}',
    b'{"tasks": 5}',
    b'{"tasks": []}',
    b'{"tasks": {}}',
    b'{"questions": [], "format": "png"}',
    b'{"model":"world","picture":"scene-standard-3","target":1e3}',
    b'{"model":"world","picture":"scene-standard-3","target":-1}',
    b'{"model":"world","picture":"scene-standard-3","seed":99999999999999999999}',
    b'{"model":"world","picture":"scene-standard-3","output":"evil"}',
]


@pytest.mark.parametrize(
    "path", ["/api/predict", "/api/try", "/api/method", "/api/ask", "/api/download", "/api/command"]
)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:30]))
def test_bodies_that_mean_nothing(client: Client, path: str, body: bytes) -> None:
    assert refused(client, "POST", path, body, content_type="application/json") in (400, 404, 422)


def test_json_is_bounded(client: Client) -> None:
    assert refused(client, "POST", "/api/predict", {**SCENE, "more": "x" * 3_000_000}) == 413
    assert refused(client, "POST", "/api/method", {"model": "world", "spec": "a" * 1001}) == 422


@pytest.mark.parametrize(
    "task",
    [
        None,
        [],
        "x",
        {},
        {"kind": "evil"},
        {"kind": ["explain"]},
        {"kind": "explain", "target": 48},
        {"kind": "explain", "target": 4, "contrast": 10**6},
        {"kind": "explain", "method": "ixg" + "(" * 500},
        {"kind": "explain", "method": "smooth(" * 100 + "ixg" + ")" * 100},
        {"kind": "explain", "method": "a,b"},
        {"kind": "explain", "method": "\ud800"},
        {"kind": "heads", "layer": 8},
        {"kind": "heads", "layer": -1},
        {"kind": "heads", "layer": "1"},
        {"kind": "heads"},
        {"kind": "owners", "compare_classes": [1]},
        {"kind": "owners", "compare_classes": [1, 1]},
        {"kind": "owners", "compare_classes": list(range(48))},
        {"kind": "owners", "compare_classes": [1, 99]},
        {"kind": "owners", "compare_classes": "12"},
        {"kind": "curve"},
        {"kind": "curve", "map": {"shape": [16, 16], "data": "AAAA"}},
        {"kind": "curve", "map": {"shape": [10**6, 10**6], "data": "AAAA"}},
        {"kind": "curve", "map": {"shape": [-1, -4], "data": "AAAAAAAAAAAAAAAAAAAAAA=="}},
        {"kind": "curve", "map": {"shape": [1, 1], "data": "AADAfw=="}},
        {"kind": "curve", "map": {"shape": [1, 1], "data": "!!"}},
        {"kind": "curve", "map": {"shape": [3, 1], "data": "AAAAAAAAAAAAAAAA"}, "fill": "evil"},
    ],
)
def test_a_task_that_means_nothing_says_so_and_the_others_go_on(client: Client, task: Any) -> None:
    asked = {**SCENE, "kind": "explain", "method": "ixg"}
    value = {**SCENE, **task} if isinstance(task, dict) and task else task
    first, second = client.tasks(value, asked)
    assert first["event"] == "error"
    assert first["message"]
    assert "went wrong inside" not in first["message"]
    assert second["event"] == "result"


@pytest.mark.parametrize("removed", [None, 5, "", "!", gone(count=255), gone(count=257), "Ag" * 2 + "=="])
def test_patches_that_mean_nothing(client: Client, removed: Any) -> None:
    assert refused(client, "POST", "/api/try", {**SCENE, "removed": removed}) == 422
    assert refused(client, "POST", "/api/try", {**SCENE, "removed": gone(), "target": 48}) == 422
    assert refused(client, "POST", "/api/try", {**SCENE, "removed": gone(), "fill": "/etc/passwd"}) == 422


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100 + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        b"POST /api/ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /api/ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
    ids=range(7),
)
def test_what_is_no_http(client: Client, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
    assert client.get("/api/start").status == 200


# -- pictures that take a decoder long or much -----------------------------------------------------------


def jpeg_of_many_scans(side: int, scans: int) -> bytes:
    """A progressive JPEG whose last scan, which changes nothing, comes again and again."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), 128).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + b"\xff\xd9"


def animation(form: str) -> bytes:
    """Frames of which only the first is looked at."""
    buffer = io.BytesIO()
    frames = [Image.new("RGB", (600, 600), (shade, 0, 0)) for shade in range(120)]
    options = {"compression": "tiff_deflate"} if form == "TIFF" else {}
    frames[0].save(buffer, form, save_all=True, append_images=frames[1:], **options)
    return buffer.getvalue()


def test_a_picture_that_takes_long_to_decode_is_refused_and_holds_nobody_up(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitreous.web import decoder

    monkeypatch.setattr(decoder, "DEADLINE", 1.0)
    bomb = jpeg_of_many_scans(4000, 20_000)  # a hundred seconds
    with ThreadPoolExecutor(4) as several:
        answer = [several.submit(refused, client, "POST", "/api/pictures", bomb) for _ in range(4)]
        while not all(entry.done() for entry in answer):
            assert client.get("/api/start").status == 200
            assert client.post("/api/predict", SCENE).status == 200
    assert [entry.result() for entry in answer] == [422] * 4
    monkeypatch.undo()
    assert client.upload(Image.new("RGB", (32, 32)))


def test_a_picture_that_unpacks_to_gigabytes_beside_its_pixels_is_refused(client: Client) -> None:
    assert refused(client, "POST", "/api/pictures", zlib_bomb()) in (413, 415)
    assert client.upload(Image.new("RGB", (32, 32)))


def zlib_bomb() -> bytes:
    """A PNG of a few pixels with a gigabyte of text and of an image profile."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packer = zlib.compressobj(9)
    zeros = b"".join([packer.compress(bytes(2**20)) for _ in range(1024)] + [packer.flush()])
    connection = png(2, 2, bytes(14))
    return connection[:33] + chunk(b"iCCP", b"x\0\0" + zeros) + chunk(b"zTXt", b"x\0\0" + zeros) + connection[33:]


@pytest.mark.parametrize("form", ["GIF", "WEBP", "TIFF", "PNG"])
def test_a_long_animation_is_its_first_frame(client: Client, form: str) -> None:
    answer = client.post("/api/pictures", animation(form))
    assert (answer.status, answer.json["width"], answer.json["height"]) == (200, 600, 600)


@pytest.mark.parametrize(("mode", "form"), [("RGB", "JPEG"), ("RGBA", "PNG"), ("F", "TIFF"), ("CMYK", "TIFF")])
def test_the_largest_ordinary_pictures_are_decoded(mode: str, form: str) -> None:
    """Fifty million pixels fit into the memory and the time that a decoder has."""
    from vitreous.web.decoder import MOST_PIXELS, Decoder

    buffer = io.BytesIO()
    options = {"compression": "tiff_deflate"} if form == "TIFF" else {}
    Image.new(mode, (10_000, MOST_PIXELS // 10_000)).save(buffer, form, **options)
    decoder = Decoder()
    try:
        assert decoder.decode(buffer.getvalue()).size == (10_000, MOST_PIXELS // 10_000)
    finally:
        decoder.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the memory of a process has no bound")
def test_a_picture_that_takes_more_memory_than_allowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.errors import VitreousError
    from vitreous.web import decoder

    buffer = io.BytesIO()
    Image.new("RGB", (10_000, 5_000)).save(buffer, "JPEG")
    monkeypatch.setattr(decoder, "MOST_MEMORY", 600 * 2**20)
    small = decoder.Decoder()
    try:
        assert small.decode(png(2, 2, bytes(14))).size == (2, 2)
        with pytest.raises(VitreousError, match="more memory than there is for one"):
            small.decode(buffer.getvalue())
        assert small.decode(png(2, 2, bytes(14))).size == (2, 2)
    finally:
        small.close()


def test_a_decoder_that_dies_is_replaced(client: Client) -> None:
    for _, decoder in client.explorer.decoders:
        decoder._process.kill()
    statuses = {client.post("/api/pictures", png(2, 2, bytes(14))).status for _ in range(6)}
    assert statuses <= {200, 415}
    assert client.upload(Image.new("RGB", (32, 32)))


def test_a_decoder_does_not_import_what_lies_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitreous.web.decoder import Decoder

    (tmp_path / "PIL.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    decoder = Decoder()
    try:
        assert decoder.decode(png(2, 2, bytes(14))).size == (2, 2)
    finally:
        decoder.close()
