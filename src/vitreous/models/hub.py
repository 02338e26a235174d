"""Whether the Hugging Face hub can be asked for a repository, known before a client tries for most of a minute."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import getproxies

from huggingface_hub import constants as hub

__all__ = ["cached", "reachable"]


def cached(repo: str) -> bool:
    """Whether something of the repository ``owner/name`` lies in the local cache."""
    return any((Path(hub.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}").glob("snapshots/*"))


def reachable(repo: str) -> bool:
    """Whether the repository is in the cache, or the hub answers and may be asked (a proxy is trusted)."""
    if cached(repo):
        return True
    if hub.HF_HUB_OFFLINE:
        return False
    if getproxies():
        return True
    try:
        socket.create_connection((urlparse(hub.ENDPOINT).hostname, 443), timeout=3).close()
    except OSError:
        return False
    return True
