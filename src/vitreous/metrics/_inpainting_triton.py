"""Triton kernels of ROAD's solver: what takes several passes over the memory in torch, in one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _neighbours(  # type: ignore[no-untyped-def]
    values, tie, scale, other, out, channels, height, width, MODE: tl.constexpr, TIED: tl.constexpr, BLOCK: tl.constexpr
):
    plane = tl.program_id(0).to(tl.int64)
    here = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    size = height * width
    inside = here < size
    row, column = here // width, here % width
    picture = plane // channels * size
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for dy in tl.static_range(-1, 2):
        for dx in tl.static_range(-1, 2):
            if dy != 0 or dx != 0:
                weight = 1.0 / 12.0 if dy != 0 and dx != 0 else 1.0 / 6.0
                there = inside & (row + dy >= 0) & (row + dy < height)
                there = there & (column + dx >= 0) & (column + dx < width)
                step = here + dy * width + dx
                value = tl.load(values + plane * size + step, mask=there, other=0.0)
                if TIED:
                    value *= tl.load(tie + picture + step, mask=there, other=0.0)
                total += weight * value
    if TIED:
        total *= tl.load(tie + picture + here, mask=inside, other=0.0)
    scaled = tl.load(scale + picture + here, mask=inside, other=0.0)
    if MODE == 0:
        result = scaled * total
    elif MODE == 1:
        result = scaled * (tl.load(other + plane * size + here, mask=inside, other=0.0) + total)
    else:
        own = tl.load(values + plane * size + here, mask=inside, other=0.0)
        result = tl.load(other + picture + here, mask=inside, other=0.0) * own - scaled * total
    tl.store(out + plane * size + here, result, mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _rougher(values, on, out, channels, height, width, rows, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    plane = tl.program_id(0).to(tl.int64)
    here = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = here < rows * columns
    row, column = here // columns, here % columns
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for dy in tl.static_range(-1, 3):
        for dx in tl.static_range(-1, 3):
            weight = (3.0 if dy == 0 or dy == 1 else 1.0) * (3.0 if dx == 0 or dx == 1 else 1.0) / 16.0
            r, c = 2 * row + dy, 2 * column + dx
            there = inside & (r >= 0) & (r < height) & (c >= 0) & (c < width)
            total += weight * tl.load(values + plane * height * width + r * width + c, mask=there, other=0.0)
    scaled = tl.load(on + plane // channels * rows * columns + here, mask=inside, other=0.0)
    tl.store(out + plane * rows * columns + here, scaled * total, mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _finer(below, on, values, out, channels, height, width, rows, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    plane = tl.program_id(0).to(tl.int64)
    here = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = here < height * width
    row, column = here // width, here % width
    near, column_near = row // 2, column // 2
    far = tl.minimum(tl.maximum(near + 2 * (row % 2) - 1, 0), rows - 1)
    column_far = tl.minimum(tl.maximum(column_near + 2 * (column % 2) - 1, 0), columns - 1)
    start = below + plane * rows * columns
    top = 0.75 * tl.load(start + near * columns + column_near, mask=inside, other=0.0)
    top += 0.25 * tl.load(start + near * columns + column_far, mask=inside, other=0.0)
    bottom = 0.75 * tl.load(start + far * columns + column_near, mask=inside, other=0.0)
    bottom += 0.25 * tl.load(start + far * columns + column_far, mask=inside, other=0.0)
    scaled = tl.load(on + plane // channels * height * width + here, mask=inside, other=0.0)
    own = tl.load(values + plane * height * width + here, mask=inside, other=0.0)
    tl.store(out + plane * height * width + here, own + scaled * (0.75 * top + 0.25 * bottom), mask=inside)


def launch(mode: int, values: Tensor, tie: Tensor | None, scale: Tensor, other: Tensor | None) -> Tensor:
    """Return what ``baselines`` calls ``left`` (0), ``swept`` (1) or ``applied`` (2)."""
    values, out = values.contiguous(), torch.empty_like(values, memory_format=torch.contiguous_format)
    tied = scale if tie is None else tie
    _run(
        _neighbours,
        out,
        (values, tied, scale, values if other is None else other.contiguous()),
        values.shape[1:],
        MODE=mode,
        TIED=tie is not None,
    )
    return out


def rougher(values: Tensor, on: Tensor) -> Tensor:
    """Return ``on`` times the values restricted to its size, half as large."""
    out = values.new_empty(*values.shape[:2], *on.shape[-2:])
    _run(_rougher, out, (values.contiguous(), on), (*values.shape[1:], *on.shape[-2:]))
    return out


def finer(below: Tensor, on: Tensor, values: Tensor) -> Tensor:
    """Return the values plus ``on`` times those below, prolonged to their size."""
    out = torch.empty_like(values)
    _run(_finer, out, (below, on, values), (*values.shape[1:], *below.shape[-2:]))
    return out


def _run(kernel: Any, out: Tensor, tensors: tuple[Tensor, ...], numbers: tuple[int, ...], **constants: Any) -> None:
    planes, size = out.shape[0] * out.shape[1], out.shape[2] * out.shape[3]
    with torch.cuda.device(out.device) if out.is_cuda else nullcontext():  # Triton launches on the current one
        kernel[planes, triton.cdiv(size, _BLOCK)](*tensors, out, *numbers, **constants, BLOCK=_BLOCK)
