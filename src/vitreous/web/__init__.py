"""The explorer: a page on this machine to look at explanations, and the small server behind it.

Data walks through it in one direction: ``security`` looks at every request before anyone else, ``app`` knows the
addresses, ``jobs`` runs what takes long, one after the other, ``handlers`` and their neighbours do the work with the
public API, ``schemas`` say what travels to and from a browser. Nothing is kept on disk.
"""

from __future__ import annotations

from vitreous.errors import VitreousError, one_line

__all__ = ["Refused"]


class Refused(VitreousError):
    """A request that is answered with a status of its own."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(one_line(text))
        self.status = status
