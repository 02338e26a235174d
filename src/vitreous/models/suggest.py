"""Which classes somebody may mean by a word that names none."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vitreous.errors import nearest

__all__ = ["suggested"]

_MOST = 5


def suggested(word: str, labels: Sequence[str]) -> str:
    """Return ``"; did you mean …?"`` with the classes that have the word in a name, or else with similar names."""
    wanted = word.strip()
    whole = re.compile(rf"(?<!\w){re.escape(wanted)}(?!\w)", re.IGNORECASE)
    found = [label.split(",")[0].strip() for label in labels if wanted and whole.search(label)]
    names = list(dict.fromkeys(found))[:_MOST]
    if not names:
        return nearest(word, {name.strip().lower() for label in labels for name in label.split(",")})
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
    return f"; did you mean {listed}?"
