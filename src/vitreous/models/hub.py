"""Whether weights can be fetched, known before a client tries for most of a minute."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import getproxies

from huggingface_hub import constants as hub

__all__ = ["answers", "cached", "reachable"]


def answers(url: str) -> bool:
    """Whether the server of an address takes connections; a proxy is trusted."""
    if getproxies():
        return True
    try:
        socket.create_connection((urlparse(url).hostname, 443), timeout=3).close()
    except OSError:
        return False
    return True


def cached(repo: str) -> bool:
    """Whether something of the hub's repository ``owner/name`` (``*`` for any) lies in the local cache."""
    return any(Path(hub.HF_HUB_CACHE).glob(f"models--{repo.replace('/', '--')}/snapshots/*"))


def reachable(repo: str) -> bool:
    """Whether a repository is in the cache, or the hub answers and may be asked."""
    return cached(repo) or (not hub.HF_HUB_OFFLINE and answers(hub.ENDPOINT))
