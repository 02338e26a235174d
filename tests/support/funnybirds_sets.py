"""Minimal sufficient sets of parts, by enumeration."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from vitreous.world.sampling import part_table

TABLE = part_table().numpy()
P = 5  # parts


def subsets(of: Any) -> list[set[int]]:
    return [set(combination) for size in range(len(of) + 1) for combination in combinations(of, size)]


def smallest(label: int) -> list[set[int]]:
    def only_mine(parts: set[int]) -> bool:
        rows = [k for k in range(48) if all(TABLE[k, p] == TABLE[label, p] for p in parts)]
        return rows == [label]

    enough = [selection for selection in subsets(range(P)) if only_mine(selection)]
    return [subset for subset in enough if not any(other < subset for other in enough)]
