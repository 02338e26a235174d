"""Minimal sufficient sets of parts, by enumeration."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from vitreous.world.sampling import part_table

TABLE = part_table().numpy()
P = 5  # parts


def subsets(of: Any) -> list[set[int]]:
    return [set(some) for size in range(len(of) + 1) for some in combinations(of, size)]


def smallest(label: int) -> list[set[int]]:
    def only_mine(some: set[int]) -> bool:
        rows = [k for k in range(48) if all(TABLE[k, p] == TABLE[label, p] for p in some)]
        return rows == [label]

    enough = [some for some in subsets(range(P)) if only_mine(some)]
    return [some for some in enough if not any(other < some for other in enough)]
