"""Rows of text as they are printed, and the same for a terminal, Markdown, LaTeX, CSV and notebooks."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from html import escape

__all__ = ["aligned", "comma_separated", "html_rows", "latex", "markdown"]

Rows = Sequence[Sequence[str]]

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def aligned(rows: Rows) -> str:
    """Return the rows in columns of one width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def comma_separated(rows: Rows) -> str:
    """Return the rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def markdown(rows: Rows) -> str:
    """Return the rows as a table in Markdown, the first one its head."""
    head, *body = [[re.sub(r"([|\\`*_<])", r"\\\1", " ".join(cell.split())) for cell in row] for row in rows]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def latex(rows: Rows) -> str:
    """Return the rows as a ``tabular`` that needs no package, the first one its head."""
    head, *body = [" & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in row) + r" \\" for row in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def html_rows(rows: Rows, caption: str = "") -> str:
    """Return the rows for a notebook, the first one the head; every text is escaped."""
    head, *body = rows
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    rest = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    return f"<table>{title}<thead><tr>{top}</tr></thead><tbody>{rest}</tbody></table>"
