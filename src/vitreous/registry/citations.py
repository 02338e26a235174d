"""The papers behind methods and metrics: what ``vitreous cite`` prints, one entry each in ``citations.json``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Paper:
    """A reference."""

    key: str
    authors: str
    title: str
    venue: str
    year: int

    def __str__(self) -> str:
        first = self.authors.split(" and ")[0].split(",")[0]
        others = " et al." if " and " in self.authors else ""
        return f"{first}{others}, {self.venue} {self.year}"

    def bibtex(self) -> str:
        fields = {"author": self.authors, "title": f"{{{self.title}}}", "booktitle": self.venue, "year": self.year}
        body = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
        return f"@inproceedings{{{self.key},\n{body}\n}}"


_ENTRIES = json.loads(Path(__file__).with_name("citations.json").read_text(encoding="utf-8"))
PAPERS: dict[str, Paper] = {entry["key"]: Paper(**entry) for entry in _ENTRIES}


def find_papers(papers: Iterable[str | Paper]) -> tuple[Paper, ...]:
    """Return papers by their keys; a ``Paper`` of one's own is returned as it is."""
    return tuple(PAPERS[paper] if isinstance(paper, str) else paper for paper in papers)


def credit(papers: Sequence[Paper], builds_on: Sequence[Paper]) -> str:
    """Say in a few words who proposed something, or what it builds on; nothing where there is neither."""
    return str(papers[0]) if papers else f"builds on {builds_on[0]}" if builds_on else ""
