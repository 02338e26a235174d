"""Running the explorer: an address of this machine, a server on it, a browser in front of it."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import secrets
import socket
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn

import vitreous as vt
from vitreous import io as disk
from vitreous.benchmark.store import Store
from vitreous.errors import VitreousError
from vitreous.web.app import Explorer, create_app
from vitreous.web.connections import BACKLOG, TimedProtocol
from vitreous.web.security import LOOPBACK


class Server:
    """A server on a socket that listens already. ``address`` is what to open in a browser.

    ``host`` is what the socket was asked for, ``data`` where the pictures of runs are, ``load_options`` what the models
    were loaded with.
    """

    def __init__(
        self,
        listener: socket.socket,
        host: str,
        models: Mapping[str, vt.VisionModel],
        runs: Mapping[str, Path],
        memory_gb: float | None = None,
        load_options: Mapping[str, Any] | None = None,
        data: str | Mapping[str, str] | None = None,
    ) -> None:
        self.socket = listener
        name, self.port = listener.getsockname()[:2]
        ip = ipaddress.ip_address(name.partition("%")[0])
        host = "127.0.0.1" if ip.is_unspecified else host  # what listens everywhere is here too
        host = f"[{host}]" if ":" in host else host
        self.token = None if ip.is_loopback else secrets.token_urlsafe(24)
        self.address = f"http://{host}:{self.port}/" + ("" if self.token is None else f"?token={self.token}")
        self.explorer = Explorer(models, runs, memory_gb, load_options, data)
        names = [*LOOPBACK, host.lower()] if ip.is_loopback else None
        guard = create_app(self.explorer, self.token, names)
        options: dict[str, Any] = {
            "http": TimedProtocol,
            "backlog": BACKLOG,
            "proxy_headers": False,  # nobody stands before it, so no header may say who asks
            "server_header": False,
            "log_config": None,  # what goes wrong is logged by the guard
            "log_level": "error",
            "access_log": False,  # addresses may hold the token
            "timeout_graceful_shutdown": 1,
        }
        self.server = uvicorn.Server(uvicorn.Config(guard, lifespan="off", **options))

    def run(self) -> None:
        """Answer until told to stop: by a signal, or by ``stop`` from another thread."""
        try:
            asyncio.run(self._serve())
        finally:
            self.socket.close()

    async def _serve(self) -> None:
        watch = asyncio.create_task(self._watch())
        await self.server.serve(sockets=[self.socket])
        await watch

    async def _watch(self) -> None:
        """Drop all work as soon as the end is near: streams that still wait for something would hold it up."""
        while not self.server.should_exit:
            await asyncio.sleep(0.1)
        self.explorer.drop()

    def stop(self) -> None:
        """Let ``run`` return soon."""
        self.server.should_exit = True

    def open(self) -> threading.Thread:
        """Show the page in the browser of this machine, which may take its time."""
        thread = threading.Thread(target=webbrowser.open, args=(self.address,), daemon=True)
        thread.start()
        return thread


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there, or say in one line why it cannot."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise VitreousError(f"--host {host} is no address of this machine: {error}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name != "nt":  # there it would share a port that is taken
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if port and error.errno == errno.EADDRINUSE:
            raise VitreousError(f"--port {port} of {host} is in use; take another, or --port 0 for any") from None
        raise VitreousError(f"--host {host} --port {port} cannot be used: {error.strerror}") from None
    return listener


def named_runs(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the folders of runs by a name each, for addresses; refuse what is no run."""
    runs: dict[str, Path] = {}
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        Store.open(folder)
        base = disk.safe_name(folder.name)
        names = (base, *(f"{base}-{count}" for count in range(2, len(folders) + 2)))
        runs[next(name for name in names if name not in runs)] = folder
    return runs
