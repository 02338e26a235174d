"""Several spellings in one text."""

from __future__ import annotations

__all__ = ["split"]


def split(spellings: str) -> list[str]:
    """Cut ``a,b(c, d),e`` at the commas that are not inside brackets."""
    parts, depth, current = [], 0, ""
    for letter in spellings:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += letter
    parts.append(current.strip())
    return [part for part in parts if part]
