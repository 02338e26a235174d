"""The papers behind methods and metrics: what ``vitreous cite`` prints. They stand in ``papers.json``, one key each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAPERS", "Paper"]


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


def _read() -> dict[str, Paper]:
    entries = json.loads(Path(__file__).with_name("papers.json").read_text(encoding="utf-8"))
    return {entry["key"]: Paper(**entry) for entry in entries}


PAPERS: dict[str, Paper] = _read()
