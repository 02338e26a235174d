"""Expected gradients: integrated gradients over many baselines, one random point of each path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import ModelError, SpellingError
from vitreous.methods.base import Answer, Method
from vitreous.methods.input_gradient import GRADIENT, needs_images, over_channels, to_map
from vitreous.methods.paths.background import Background
from vitreous.methods.readout import at_least_float32
from vitreous.methods.registry import register
from vitreous.passes import Pass, Session
from vitreous.passes.scenes import SCENES, VERSION, seen_scenes

__all__ = ["GradientShap"]

_WORDS = ("normal", "scenes")


@register(
    "gradient_shap",
    family="input",
    papers=("erion2021improving",),
    aliases=("expected_gradients",),
    cost=(50, 50),
    presets={"captum": {"samples": 5}},
)
@dataclass(frozen=True)
class GradientShap(Method):
    """Integrated gradients averaged over random baselines: expected gradients.

    ``mean_i (x_i - b_i) * grad s(b_i + t_i (x_i - b_i))``, summed over channels, with ``t_i`` uniform in [0, 1) and
    ``x_i = x + sigma n_i``, ``n_i ~ N(0, 1)`` in normalised units (0: the image itself). The baselines ``b_i`` of
    ``background="normal"`` are standard normal numbers, what a pixel is like after normalisation; of ``"scenes"``, one
    at random of the 64 rendered scenes that the bottleneck methods learn from; otherwise, one at random of images of
    your own, as in the paper, which draws from the training set: a picture or a folder of them by its path, in Python
    also a tensor ``[K, C, H, W]`` in normalised space or images as ``explain`` takes them. The method is another if
    their content is. The mean over draws sums to ``s(x) - mean s(b)``; with few samples it is far from it. Draws depend
    on the seed and the image, not on its neighbours.
    Erion et al., Nature Machine Intelligence 2021. Preset ``captum``: 5 samples. Cost: ``samples`` forwards and
    backwards. Extras: ``halves``, the means of every other sample.
    """

    samples: int = 50
    sigma: float = 0.0
    background: str | Background = "normal"
    grid = "pixel"

    def __post_init__(self) -> None:
        if self.samples < 1 or self.sigma < 0:
            raise SpellingError(f"samples={self.samples}, sigma={self.sigma} must be at least 1 and at least 0")
        given: Any = self.background
        if not isinstance(given, str | Background):
            object.__setattr__(self, "background", Background(given))
        if isinstance(given, str) and not given:
            raise SpellingError("background is empty; it takes normal, scenes, or a picture or folder of pictures")

    @property
    def cost(self) -> tuple[float, float]:
        return self.samples, self.samples

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "background": str(self.background)}

    @property
    def ingredients(self) -> dict[str, str]:
        if self.background == "normal":
            return {}
        return {"background": f"version {VERSION}" if self.background == "scenes" else self._own().digest}

    @property
    def notes(self) -> dict[str, Any]:
        return {} if self.background in _WORDS else {"baselines": str(self._own())}

    def _own(self) -> Background:
        return self.background if isinstance(self.background, Background) else Background(self.background)

    def compute(self, session: Session) -> Answer:
        inputs = at_least_float32(session.inputs)
        images = self._images(session, inputs)
        draws, shape = session.draws("gradient_shap"), inputs.shape[1:]
        sums = [torch.zeros_like(inputs), torch.zeros_like(inputs)]  # over every other sample
        at_once = max(1, session.batch // len(inputs))
        for first in range(0, self.samples, at_once):
            some = [draws.at(each) for each in range(first, min(self.samples, first + at_once))]
            times = torch.stack([each.uniform(1) for each in some], dim=1).to(inputs)
            if images is None:
                starts = torch.stack([each.named("background").normal(*shape) for each in some], dim=1).to(inputs)
            else:
                count, chosen = images
                starts = chosen(torch.stack([each.named("background").below(count) for each in some], dim=1))
            ends = inputs.unsqueeze(1)
            if self.sigma > 0:
                noise = torch.stack([each.named("noise").normal(*shape) for each in some], dim=1).to(inputs)
                ends = ends + self.sigma * noise
            way = ends - starts
            points = starts + times.view(*times.shape[:2], *[1] * len(shape)) * way
            fork = session.fork(points.flatten(0, 1).to(session.inputs.dtype), repeat=len(some))
            trace = fork.trace(Pass((GRADIENT,)))
            parts = way * at_least_float32(trace[GRADIENT][0]).view_as(way)
            sums = [each + parts[:, (first + i) % 2 :: 2].sum(dim=1) for i, each in enumerate(sums)]
        mean, *halves = (
            to_map(trace, over_channels(total / max(1, count)))
            for total, count in (
                (sums[0] + sums[1], self.samples),
                (sums[0], -(-self.samples // 2)),
                (sums[1], self.samples // 2),
            )
        )
        return Answer(mean, {"halves": torch.stack(halves, dim=1)} if self.samples > 1 else {})

    def _images(self, session: Session, like: Tensor) -> tuple[int, Callable[[Tensor], Tensor]] | None:
        """Return how many images there are to begin at, and what returns those of some numbers; None for noise."""
        if self.background == "normal":
            return None
        needs_images(f"gradient_shap(background={self.background})", session)
        if self.background != "scenes":
            own = self._own()
            return len(own), partial(own.inputs, session.view, like)
        if like.shape[1] != 3 or len(session.view.preprocess.mean) != 3:
            raise ModelError(f"gradient_shap: {session.view.name} does not take the three channels of a rendered scene")
        scenes = seen_scenes(session.view, like.shape[-2:]).to(like)
        return SCENES, lambda numbers: scenes[numbers]
