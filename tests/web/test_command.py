"""``vitreous explore``: what it imports, what it prints, how it begins and ends."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from commands import run
from imports import COMMAND, loaded
from web_server import world

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


def test_help_is_light() -> None:
    assert not loaded(COMMAND, "explore", "--help") & {"torch", "fastapi", "uvicorn", "starlette", "timm", "numpy"}
    assert not loaded(COMMAND, "--help") & {"torch", "fastapi", "uvicorn", "starlette"}


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_without_the_extra_one_line_says_what_to_do(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from vitreous.cli import main; main()"
    answer = subprocess.run([sys.executable, "-c", code, "explore", "--no-browser"], capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == f"vitreous: error: the explorer needs {missing}: pip install 'vitreous[web]'\n"


def test_a_port_in_use_is_one_line_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with mock.patch("vitreous.cli.options.ModelOptions.load", side_effect=AssertionError):
            answer = run("explore", "--port", port, "--no-browser")
    assert answer.code == 2
    assert answer.err == (f"vitreous: error: --port {port} of 127.0.0.1 is in use; take another, or --port 0 for any\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid is no address of this machine"),
        (["--host", "192.0.2.1"], "--host 192.0.2.1 --port 0 cannot be used"),
        (["--checkpoint", "x.pt"], "--checkpoint is for one model"),
        (["--img-size", "32", "-m", "world", "-m", "world-shortcut"], "--img-size is for one model"),
        (["--data", "a=b", "--data", "c"], "--data c is not of the form LABEL=PATH"),
        (["nothing"], "nothing"),
        ([str(Path(__file__).parent)], "web"),
        (["-m", "no/such"], "no/such"),
    ],
)
def test_what_cannot_be_is_one_line(words: list[str], expected: str) -> None:
    answer = run("explore", "--port", "0", "--no-browser", *words)
    assert answer.code == 2
    assert expected in answer.err
    assert answer.err.count("\n") == 1


@contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "vitreous", "explore", "--port", "0", "--no-browser", "-m", "world", *words]
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quiet) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            answer = re.fullmatch(r"the explorer is at (http://\S+)\n", line)
            assert answer is not None, line
            yield process, answer[1]
        finally:
            process.kill()


@pytest.mark.skipif(os.name == "nt", reason="signals of this kind are not for Windows")
def test_ctrl_c_ends_it_cleanly_while_it_works() -> None:
    with started() as (process, address):
        port = int(address.rstrip("/").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = b'{"tasks": [{"kind": "explain", "model": "world", "picture": "scene-standard-3", "method": "rise"}]}'
        connection.request("POST", "/api/ask", body, {"content-type": "application/json"})
        response = connection.getresponse()
        while b"progress" not in response.readline():
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        connection.close()
    assert process.returncode == 130
    assert err == "vitreous: stopped: what was finished is kept\n" or err == "vitreous: stopped\n"
    assert "Traceback" not in out


def test_bound_elsewhere_the_token_is_printed() -> None:
    with started("--host", "0.0.0.0") as (_, address):
        answer = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{32})", address)
        assert answer is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(answer[1]), timeout=60)
        for token, status in (("", 403), (f"?token={answer[2]}", 200)):
            connection.request("GET", f"/api/start{token}")
            response = connection.getresponse()
            response.read()
            assert response.status == status
        connection.close()


def test_a_browser_is_opened_only_if_it_may_be() -> None:
    from vitreous.web.serve import Server, listen

    with mock.patch("webbrowser.open") as opened:
        server = Server(listen("127.0.0.1", 0), "127.0.0.1", {"world": world()}, {})
        assert not opened.called
        server.open().join(10)
        opened.assert_called_once_with(server.address)
    server.socket.close()
    assert server.explorer.close(10)
