"""Write the tables of methods and metrics in README and manual from the registries.

    python docs/tables.py

A table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``; a test fails when one is stale.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import vitreous as vt
from vitreous.registry import credit

ROOT = Path(__file__).resolve().parent.parent
METRICS = ROOT / "docs" / "metrics"
PAGES = ("README.md", "docs/methods.md", "docs/metrics.md")
_SYSTEMS = {"coiba": "coiba", "iba": "coiba", "iba_star": "coiba", "tis": "tis", "var": "var"}
"""Methods that a page of their own describes."""
_BLOCK = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def written(text: str, page: str) -> str:
    """Return the text of a page with all its tables made anew."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{TABLES[found[2]](text, page)}\n\n{found[4]}", text)


def _methods(text: str, page: str) -> str:
    def row(info: Any) -> Sequence[str]:
        specific = "as its base" if info.is_combinator else "yes" if info.class_specific else "no"
        paper = credit(info.papers, info.builds_on)
        return _name(info, text, page), info.family, specific, info.cost_text, info.models_text, paper

    head = ("method", "family", "class-specific", "cost", "models", "paper")
    return _table(head, map(row, _own(vt.list_methods())))


def _metrics(text: str, page: str) -> str:
    def row(info: Any) -> Sequence[str]:
        metric, presets = info.default, ", ".join(f"`@{preset}`" for preset in info.presets)
        better = "higher" if metric.higher_is_better else "lower"
        needs = ", ".join([*(["labels"] if metric.needs_labels else []), *metric.annotation_kinds])
        shared = "one per part" if metric.needs_parts else metric.num_shared_forwards()
        costs = (str(each or "") for each in (metric.num_forwards(), shared, metric.num_reattributions()))
        paper = credit(info.papers, info.builds_on)
        return _name(info, text, page), info.family, better, needs, *costs, presets, paper

    head = ("metric", "family", "better", "needs", "forwards", "shared", "maps again", "presets", "paper")
    return _table(head, map(row, _own(vt.list_metrics())))


def _families(text: str, page: str) -> str:
    families: dict[str, list[str]] = {}
    for info in _own(vt.list_metrics()):
        families.setdefault(info.family, []).append(f"`{info.name}`")
    return _table(("family", "metrics"), [(family, ", ".join(names)) for family, names in families.items()])


TABLES: dict[str, Callable[[str, str], str]] = {"methods": _methods, "metrics": _metrics, "families": _families}


def _own(infos: Sequence[Any]) -> list[Any]:
    """What this package brings, without what others have registered."""
    return [info for info in infos if info.factory.__module__.startswith("vitreous.")]


def _name(info: Any, text: str, page: str) -> str:
    """The name; in the manual with a link to where it is described, and its aliases."""
    if not page.startswith("docs/"):
        return f"`{info.name}`"
    aliases = f" ({', '.join(f'`{alias}`' for alias in info.aliases)})" if info.aliases else ""
    return f"[`{info.name}`]({_place(info, text)}){aliases}"


def _place(info: Any, text: str) -> str:
    if info.name in _SYSTEMS:
        return f"systems/{_SYSTEMS[info.name]}.md"
    if getattr(info, "refuses", False):
        return "#refused"
    pages = {"": text} | {f"metrics/{path.name}": path.read_text() for path in sorted(METRICS.glob("*.md"))}
    for level in ("###", "##"):
        for page, told in pages.items():
            for heading in re.findall(rf"^{level} (.+)$", told, re.MULTILINE):
                if info.name in heading.split(", ") or heading.lower() in (f"{info.family}s", info.family):
                    return f"{page}#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    raise SystemExit(f"{info.name} is described nowhere on this page: give it a heading")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def main() -> None:
    for page in PAGES:
        path = ROOT / page
        path.write_text(written(path.read_text(), page))


if __name__ == "__main__":
    main()
