"""Occlusion: how much the score falls when a window of the image is hidden."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.errors import ModelError, SpellingError
from vitreous.methods.base import Answer, Method
from vitreous.methods.perturbation.copies import scores_of_copies
from vitreous.methods.perturbation.sets import asks_of_sets, filling, scores_of_sets
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import Pass, Session
from vitreous.words import at_least, check_choice

__all__ = ["Occlusion", "spans"]


@register(
    "occlusion",
    family="perturbation",
    papers=("zeiler2014visualizing",),
    cost=(197, 0),
    cost_note="1 F + one per window",
    presets={"pair": {"window": 15, "stride": 1, "fill": "zero", "overlap": "sum"}},
)
@dataclass(frozen=True)
class Occlusion(Method):
    """How much the score falls when a patch, or a window of the image, is hidden.

    ``s(x) - s(x without the window)``. As it stands the windows are the patches, one each, and the map has one value
    per patch. With a ``window`` (pixels; 0: a patch) or ``stride`` (0: the window) windows slide over the image, the
    last of a row cut off at the border, and every pixel gets the mean over the windows that cover it, as in Captum;
    ``overlap=sum`` adds them up, and ``pair`` are the settings of PAIR's library: 15 pixels, one by one, summed. Hidden
    pixels are ``zero`` in normalised space (the mean colour of the training set), the ``mean`` colour of the image or a
    ``blur`` of it (``fill``). With ``drop`` the patch's token leaves the sequence instead, picked after the position
    embedding: nothing is painted, and no position seen that has no content. On the tokens of a sub-network (``plus``)
    hidden patches are zero or mean tokens. The value is the one that is asked for. Cost: one forward, and one per
    window: 196 patches of 224 pixels, 44,100 windows for ``pair``.
    """

    window: int = 0
    stride: int = 0
    fill: str = "zero"
    drop: bool = False
    overlap: str = "mean"

    def __post_init__(self) -> None:
        check_choice("fill", self.fill, ("zero", "mean", "blur"))
        check_choice("overlap", self.overlap, ("mean", "sum"))
        at_least("window", self.window, 0)
        at_least("stride", self.stride, 0)
        if self.stride > self.window > 0:
            raise SpellingError(f"stride={self.stride} is larger than window={self.window}: pixels would be left out")
        if self.drop and not self._patches:
            raise SpellingError(f"drop=true leaves out patches; window={self.window}, stride={self.stride} are pixels")

    @property
    def _patches(self) -> bool:
        return self.window == self.stride == 0

    @property
    def grid(self) -> str:  # type: ignore[override]
        return "token" if self._patches else "pixel"

    @property
    def cost(self) -> tuple[float, float]:
        return self._count((224, 224), (14, 14)), 0

    def forwards(self, view: View) -> float:
        return self._count(view.preprocess.size, view.grid())

    def _count(self, size: tuple[int, int], grid: tuple[int, int]) -> float:
        if self._patches:
            return 1 + math.prod(grid)
        return 1 + math.prod(len(spans(side, *self._step(side, cells))) for side, cells in zip(size, grid, strict=True))

    def _step(self, side: int, cells: int) -> tuple[int, int]:
        """Return window and stride along a side."""
        window = self.window or side // cells
        stride = self.stride or window
        if window > side:
            raise ModelError(f"occlusion: window={window} is larger than the image, {side} pixels")
        if stride > window:
            raise ModelError(f"occlusion: stride={stride} is larger than a patch of {window} pixels")
        return window, stride

    def asks(self, view: View) -> tuple[Pass, ...]:
        return asks_of_sets("occlusion", view, self.drop) or (Pass(),)

    def compute(self, session: Session) -> Answer:
        whole = session.target.score(session.logits)
        grid, inputs = session.view.grid(session.inputs), session.inputs
        if self._patches:
            kept = ~torch.eye(math.prod(grid), dtype=torch.bool)
            scores = scores_of_sets(session, "occlusion", kept, self.fill, self.drop, None, self)
            return Answer((whole[:, None] - scores).reshape(-1, *grid), {})
        if inputs.ndim != 4:
            raise ModelError("occlusion: window and stride are pixels, and the inputs of a sub-network are tokens")
        sides = zip(inputs.shape[2:], grid, strict=True)
        down, across = (spans(side, *self._step(side, cells)).to(inputs.device) for side, cells in sides)
        filled = filling(session, "occlusion", self.fill)

        def make(images: Tensor, copies: Tensor) -> Tensor:
            rows, columns = copies // len(across), copies % len(across)
            hidden = down[rows][:, None, :, None] & across[columns][:, None, None, :]
            return torch.where(hidden, filled[images], inputs[images])

        scores = scores_of_copies(session, len(down) * len(across), make, None, self)
        falls = (whole[:, None] - scores).reshape(-1, len(down), len(across))
        total = down.T.to(falls) @ falls @ across.to(falls)
        if self.overlap == "sum":
            return Answer(total, {})
        return Answer(total / (down.sum(dim=0)[:, None] * across.sum(dim=0)), {})


def spans(size: int, window: int, stride: int) -> Tensor:
    """Return which places ``[windows, size]`` of a side each window covers; the last may end beyond the border."""
    starts = torch.arange(1 + math.ceil((size - window) / stride)).unsqueeze(1) * stride
    places = torch.arange(size)
    return (places >= starts) & (places < starts + window)
