"""Write the tables of methods and metrics of the manual from the registries.

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

DOCS = Path(__file__).resolve().parent
PAGES = ("methods.md", "metrics.md")
SYSTEMS = {"coiba": "coiba", "iba": "coiba", "iba_star": "coiba", "tis": "tis", "var": "var"}
"""Methods that a page of their own describes."""
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def update_tables(text: str) -> str:
    """Return the text of a page with all its tables generated again."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{TABLES[match[2]](text)}\n\n{match[4]}", text)


def methods_table(text: str) -> str:
    def row(info: Any) -> Sequence[str]:
        specific = "as its base" if info.is_combinator else "yes" if info.class_specific else "no"
        paper = credit(info.papers, info.builds_on)
        return linked_name(info, text), info.family, specific, info.cost_text, info.models_text, paper

    return table(
        ("method", "family", "class-specific", "cost", "models", "paper"), map(row, built_in(vt.list_methods()))
    )


def metrics_table(text: str) -> str:
    def row(info: Any) -> Sequence[str]:
        metric, presets = info.default, ", ".join(f"`@{preset}`" for preset in info.presets)
        better = "higher" if metric.higher_is_better else "lower"
        needs = ", ".join([*(["labels"] if metric.needs_labels else []), *metric.annotation_kinds])
        shared = "one per part" if metric.needs_parts else metric.num_shared_forwards()
        costs = (str(cost or "") for cost in (metric.num_forwards(), shared, metric.num_reattributions()))
        paper = credit(info.papers, info.builds_on)
        return linked_name(info, text), info.family, better, needs, *costs, presets, paper

    head = ("metric", "family", "better", "needs", "forwards", "shared", "maps again", "presets", "paper")
    return table(head, map(row, built_in(vt.list_metrics())))


TABLES: dict[str, Callable[[str], str]] = {"methods": methods_table, "metrics": metrics_table}


def built_in(infos: Sequence[Any]) -> list[Any]:
    """Return what this package brings, without what others have registered."""
    return [info for info in infos if info.factory.__module__.startswith("vitreous.")]


def linked_name(info: Any, text: str) -> str:
    """Return the name with a link to its description, and its aliases."""
    aliases = f" ({', '.join(f'`{alias}`' for alias in info.aliases)})" if info.aliases else ""
    return f"[`{info.name}`]({link(info, text)}){aliases}"


def link(info: Any, text: str) -> str:
    if info.name in SYSTEMS:
        return f"systems/{SYSTEMS[info.name]}.md"
    pages = {"": text} | {f"metrics/{path.name}": path.read_text() for path in sorted((DOCS / "metrics").glob("*.md"))}
    for level in ("###", "##"):
        for page, page_text in pages.items():
            for heading in re.findall(rf"^{level} (.+)$", page_text, re.MULTILINE):
                if info.name in heading.split(", ") or heading.lower() in (f"{info.family}s", info.family):
                    return f"{page}#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    raise SystemExit(f"{info.name} is described nowhere on this page: give it a heading")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def main() -> None:
    for page in PAGES:
        path = DOCS / page
        path.write_text(update_tables(path.read_text()))


if __name__ == "__main__":
    main()
