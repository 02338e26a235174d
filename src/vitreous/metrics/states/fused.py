"""The kernel of ``stencil``: every output reads its nine values once, with what they are multiplied by."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["launch"]

_BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _neighbours(  # type: ignore[no-untyped-def]
    values, tie, scale, other, out, channels, high, wide, MODE: tl.constexpr, TIED: tl.constexpr, BLOCK: tl.constexpr
):
    plane = tl.program_id(0).to(tl.int64)
    here = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    size = high * wide
    inside = here < size
    row, column = here // wide, here % wide
    picture = plane // channels * size
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for down in tl.static_range(-1, 2):
        for across in tl.static_range(-1, 2):
            if down != 0 or across != 0:
                weight = 1.0 / 12.0 if down != 0 and across != 0 else 1.0 / 6.0
                there = inside & (row + down >= 0) & (row + down < high)
                there = there & (column + across >= 0) & (column + across < wide)
                step = here + down * wide + across
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


def launch(mode: int, values: Tensor, tie: Tensor | None, scale: Tensor, other: Tensor | None) -> Tensor:
    """Run the kernel: 0 is ``left``, 1 ``swept``, 2 ``applied`` of ``stencil``."""
    values, scale = values.contiguous(), scale.contiguous()
    tied = scale if tie is None else tie.contiguous()
    beside = values if other is None else other.contiguous()
    out = torch.empty_like(values)
    pictures, channels, high, wide = values.shape
    grid = (pictures * channels, triton.cdiv(high * wide, _BLOCK))
    with torch.cuda.device(values.device) if values.is_cuda else nullcontext():  # Triton launches on the current one
        _neighbours[grid](
            values, tied, scale, beside, out, channels, high, wide, MODE=mode, TIED=tie is not None, BLOCK=_BLOCK
        )
    return out
