"""Run lengths of masks, as COCO writes them: down the columns, first outside, then inside, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from vitreous.data.truth import Array

__all__ = ["mask_of_runs", "runs_of_text"]


def mask_of_runs(counts: str | Sequence[int], size: tuple[int, int]) -> Array:
    """Return the mask ``[H, W]`` of a list of run lengths, or of a text that packs one."""
    runs = runs_of_text(counts) if isinstance(counts, str) else [int(each) for each in counts]
    high, wide = size
    if any(run < 0 for run in runs) or sum(runs) != high * wide:
        raise ValueError(f"runs of {sum(runs)} pixels in an image of {high} x {wide}")
    flat = np.zeros(high * wide, bool)
    ends = list(accumulate(runs))
    for start, stop in zip(ends[::2], ends[1::2], strict=False):
        flat[start:stop] = True
    return np.asarray(flat.reshape(wide, high).T)


def runs_of_text(text: str) -> list[int]:
    """Unpack run lengths.

    Each character holds 6 bits, counted from ``0``: five of the number, the lowest first, and one that says that more
    follow. The highest of the last five is the sign. From the fourth number on, each is the difference to the run two
    before it.
    """
    runs: list[int] = []
    value, shift = 0, 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64:
            raise ValueError(f"{letter!r} is no letter of packed run lengths")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value, shift = 0, 0
    if shift:
        raise ValueError("packed run lengths end in the middle of a number")
    return runs
