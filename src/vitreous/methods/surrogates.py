"""Weighted linear regressions with an intercept, in float64: the surrogates' fits.

Surrogates: a linear model of what the model says about sets of patches. Its weights are the map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError, SpecError
from vitreous.methods.base import Attribution, Method
from vitreous.methods.masking import FILLS, asks_of_sets, cell_of, filling, scores_of_sets
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import check_at_least, check_choice
from vitreous.tracing import VALUES, Context, Pass
from vitreous.tracing.prng import PRNGKey

__all__ = [
    "KernelSHAP",
    "LIME",
    "lasso",
    "least_squares",
    "ridge",
]

_TINY = torch.finfo(torch.float64).tiny
_ROUNDS = 1000
_CONSTANT = 1e-20
"""The variance up to which a column does not vary but for rounding."""


def ridge(design: Tensor, scores: Tensor, weights: Tensor, alpha: float) -> Tensor:
    """Return ``argmin_m sum_s w_s (y_s - b - z_s'm)^2 + alpha |m|^2`` of each image, ``[B, n]``.

    ``design`` is ``[S, n]``, ``scores`` and ``weights`` are ``[B, S]``; the intercept b is free.
    """
    found = []
    unit = torch.eye(design.shape[1], dtype=design.dtype, device=design.device)
    for response, weight in zip(scores, weights, strict=True):
        centred, left = _centred(design, response, weight)
        weighted = centred.T * weight
        found.append(torch.linalg.solve(weighted @ centred + alpha * unit, weighted @ left))
    return torch.stack(found)


def lasso(design: Tensor, scores: Tensor, weights: Tensor, alpha: float) -> Tensor:
    """Return ``argmin_m sum_s w_s (y_s - b - z_s'm)^2 / (2 sum_s w_s) + alpha |m|_1`` of each image, ``[B, n]``."""
    found = []
    for response, weight in zip(scores, weights, strict=True):
        centred, left = _centred(design, response, weight)
        share = (weight / weight.sum().clamp(min=_TINY)).sqrt()
        found.append(_descended((centred.T * share).cpu().contiguous(), (left * share).cpu(), alpha))
    return torch.stack(found).to(design.device)


def least_squares(design: Tensor, scores: Tensor, weights: Tensor) -> Tensor:
    """Return the shortest of ``argmin_m sum_s w_s (y_s - b - z_s'm)^2``, ``[B, n]``; ``weights [S]`` serve all images.

    By a singular value decomposition, on the CPU, for torch's solvers elsewhere want more samples than unknowns.
    """
    root = weights.sqrt().unsqueeze(1)
    centred, left = _centred(design, scores.T, weights)
    fitted: Tensor = torch.linalg.lstsq((root * centred).cpu(), (root * left).cpu(), driver="gelsd").solution
    return fitted.T.to(design.device)


def _centred(design: Tensor, response: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Take the weighted means out: what is left needs no intercept."""
    share = weights / weights.sum().clamp(min=_TINY)
    return design - share @ design, response - share @ response


def _descended(columns: Tensor, response: Tensor, alpha: float) -> Tensor:
    """Return ``argmin_m |y - X m|^2 / 2 + alpha |m|_1`` by coordinate descent; ``columns`` are those of X, ``[n, S]``.

    Rounds over all coordinates alternate with rounds over those that are not zero, until a whole round moves nothing.
    """
    sizes = columns.square().sum(dim=1).tolist()
    found = [0.0] * len(sizes)
    residual = response.clone()
    still = 1e-12 * float(response.norm())

    def moved(coordinates: Sequence[int]) -> bool:
        furthest = 0.0
        for j in coordinates:
            pull = float(columns[j] @ residual) + sizes[j] * found[j]
            new = math.copysign(max(0.0, abs(pull) - alpha), pull) / sizes[j]
            step = new - found[j]
            if step:
                residual.sub_(columns[j], alpha=step)
                found[j] = new
                furthest = max(furthest, abs(step) * math.sqrt(sizes[j]))
        return furthest > still

    varying = [j for j, size in enumerate(sizes) if size > _CONSTANT]
    for _ in range(_ROUNDS):
        if not moved(varying):
            break
        active = [j for j in varying if found[j]]
        for _ in range(_ROUNDS):
            if not moved(active):
                break
    return torch.tensor(found, dtype=torch.float64)


_CERTAIN = 1e6
"""The weight of the two sets that KernelSHAP has to meet."""


@dataclass(frozen=True)
class Surrogate(Method):
    """A regression of the scores of ``samples`` sets of patches on their indicators."""

    samples: int
    fill: str
    drop: bool

    def check(self, least: int) -> None:
        """Refuse parameters that mean nothing."""
        check_at_least("samples", self.samples, least)
        check_choice("fill", self.fill, FILLS)

    @property
    def cost(self) -> tuple[float, float]:
        return self.samples, 0

    def num_forwards(self, model: VisionModel) -> float:
        return self.samples + self.drop

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return asks_of_sets(self.info.name, model, self.drop)

    def laid_out(self, context: Context, weights: Tensor) -> Attribution:
        """Return weights ``[B, n]`` on the grid, in the precision of the model."""
        like = torch.float64 if context.model.dtype == torch.float64 else torch.float32
        return Attribution(weights.to(context.inputs.device, like).reshape(-1, *context.model.grid(context.inputs)), {})


@register_method(
    "lime",
    family="perturbation",
    papers=("ribeiro2016why",),
    cost=(1000, 0),
    cost_note="samples forwards",
    presets={
        "lime_image": {
            "samples": 1000,
            "fill": "own",
            "output": "prob",
            "distance": "sets",
            "width": 0.25,
            "surrogate": "ridge",
            "alpha": 1.0,
            "include_full": True,
        },
        "captum": {
            "samples": 25,
            "fill": "zero",
            "output": "logit",
            "distance": "pixels",
            "width": 1.0,
            "surrogate": "lasso",
            "alpha": 0.01,
            "include_full": False,
        },
    },
)
@dataclass(frozen=True)
class LIME(Surrogate):
    """The weights of a linear model of the score, fitted near the image on random sets of patches.

    Every set keeps each patch with probability 1/2 (the first one all patches, with ``whole``); it counts with ``exp(-
    d^2 / (2 width^2))``, d the cosine distance between the indicators and all ones, or between the pixels of image and
    copy (``distance``: ``sets`` or ``pixels``). Weighted ``ridge`` (``sum w (y - b - z'm)^2 + alpha |m|^2``) or
    ``lasso`` (``sum w (y - b - z'm)^2 / (2 sum w) + alpha |m|_1``) with an intercept b; the map is m. The plain name
    has the settings of the authors' lime_image, spelled out by ``lime_image``, but for its segments: the patches are
    the segments here, so quickshift and the choice of the best few of its segments are left out. ``captum`` are the
    settings of Captum's Lime with patches as features; 25 samples say little about 196 patches. Hidden patches get
    their ``own`` mean colour, ``zero`` in normalised space, the ``mean`` colour of the image or a ``blur`` of it
    (``fill``); with ``drop`` their tokens are left out instead, after the position embedding. On the tokens of a
    sub-network (``plus``): ``fill=zero`` or ``mean``. ``score``: ``prob``, ``logit`` or ``logprob`` of the class. One
    collection of sets, drawn from the seed, serves all images and classes. Cost: one forward per sample.
    """

    samples: int = 1000
    fill: str = "own"
    drop: bool = False
    output: str = "prob"
    distance: str = "sets"
    width: float = 0.25
    surrogate: str = "ridge"
    alpha: float = 1.0
    include_full: bool = True

    def __post_init__(self) -> None:
        self.check(2)
        check_choice("output", self.output, VALUES)
        check_choice("distance", self.distance, ("sets", "pixels"))
        check_choice("surrogate", self.surrogate, ("ridge", "lasso"))
        if not 0 < self.width < math.inf or not 0 < self.alpha < math.inf:
            raise SpecError(f"width={self.width}, alpha={self.alpha} must be above 0")
        if self.drop and self.distance == "pixels":
            raise SpecError("distance='pixels' compares what is painted; drop=true paints nothing, use sets")

    @property
    def fixed_output(self) -> str:
        return self.output

    def compute(self, context: Context) -> Attribution:
        patches = math.prod(context.model.grid(context.inputs))
        draws = PRNGKey.of(context.seed, "lime", context.inputs.device).at(torch.arange(self.samples))
        kept = draws.uniform(patches) < 0.5
        if self.include_full:
            kept[0] = True
        key = ("lime", self.samples, self.include_full, self.fill, self.drop)
        scores = scores_of_sets(context, "lime", kept, self.fill, self.drop, self.output, key).double()
        closeness = torch.exp(-(self._distances(context, kept) ** 2) / (2 * self.width**2))
        fit = ridge if self.surrogate == "ridge" else lasso
        return self.laid_out(context, fit(kept.double(), scores, closeness, self.alpha))

    def _distances(self, context: Context, kept: Tensor) -> Tensor:
        """Return the cosine distance ``[B, S]`` of each copy; 1 from a copy of nothing but zeros."""
        sets = kept.double()
        if self.distance == "sets":
            return (1 - sets.mean(dim=1).sqrt()).expand(len(context.inputs), -1)
        if context.inputs.ndim == 3:
            sets = F.pad(sets, (context.model.num_prefix_tokens, 0), value=1.0)
        seen, filled = context.inputs.double(), filling(context, "lime", self.fill).double()
        # every copy is made of patches and of their fillings, so that a few sums per patch give all products
        own, mixed, hidden = (
            _by_patch(context, one * other) for one, other in ((seen, seen), (seen, filled), (filled, filled))
        )
        product = own @ sets.T + mixed @ (1 - sets).T
        square = own @ sets.T + hidden @ (1 - sets).T
        lengths = own.sum(dim=1, keepdim=True).sqrt() * square.clamp(min=0).sqrt()
        return 1 - product / lengths.clamp(min=1e-8)


def _by_patch(context: Context, value: Tensor) -> Tensor:
    """Sum pixels ``[B, C, H, W]`` into patches ``[B, n]``, or tokens over their width, prefix included."""
    if value.ndim == 3:
        return value.sum(dim=2)
    sides = zip(value.shape[2:], context.model.grid(context.inputs), strict=True)
    down, across = (F.one_hot(cell_of(*side)).to(value) for side in sides)
    return (down.T @ value.sum(dim=1) @ across).flatten(1)


@register_method(
    "kernel_shap",
    family="perturbation",
    papers=("lundberg2017unified",),
    cost=(2000, 0),
    cost_note="samples forwards",
    presets={"captum": {"samples": 25, "fill": "zero"}},
)
@dataclass(frozen=True)
class KernelSHAP(Surrogate):
    """Shapley values of the patches, estimated by a linear model of the score on random sets of them.

    The first two sets have all patches and none, with the weight 1,000,000; the others, with the weight 1, have k of
    the n patches with probability proportional to ``(n - 1) / (k (n - k))``, and every set of k patches is as likely as
    any other. Least squares with an intercept, as in Captum; the map is the weights of the patches. So it sums to
    ``s(all) - s(none)``, but for about ``samples`` millionths of what the linear model leaves unexplained. Take ten
    samples per patch or more: 2,000 for 196 patches. With fewer samples than patches the fit is not unique and the
    shortest one is taken (by a singular value decomposition, in float64); ``captum`` has 25 samples, as Captum if
    nothing is said. Hidden patches are ``zero`` in normalised space, get their ``own`` mean colour, the ``mean`` colour
    of the image or a ``blur`` of it (``fill``); with ``drop`` their tokens are left out instead, after the position
    embedding, which needs a model that reads its answer from a class token. On the tokens of a sub-network (``plus``):
    ``fill=zero`` or ``mean``. The value is the one that is asked for. One collection of sets, drawn from the seed,
    serves all images and classes. Cost: one forward per sample.
    """

    samples: int = 2000
    fill: str = "zero"
    drop: bool = False

    def __post_init__(self) -> None:
        self.check(3)

    def compute(self, context: Context) -> Attribution:
        patches = math.prod(context.model.grid(context.inputs))
        if patches < 2:
            raise ModelError("kernel_shap: an image of one patch has no sets of patches")
        kept = self._sets(context, patches)
        scores = scores_of_sets(context, "kernel_shap", kept, self.fill, self.drop, None, self).double()
        weights = kept.new_ones(self.samples, dtype=torch.float64)
        weights[:2] = _CERTAIN
        return self.laid_out(context, least_squares(kept.double(), scores, weights))

    def _sets(self, context: Context, patches: int) -> Tensor:
        """Return which patches each set has, ``[samples, n]``: all, none, then random ones."""
        device = context.inputs.device
        draws = PRNGKey.of(context.seed, "kernel_shap", device).at(torch.arange(self.samples))
        sizes = torch.arange(1, patches, dtype=torch.float64, device=device)
        chances = 1 / (sizes * (patches - sizes))
        ends = (chances / chances.sum()).cumsum(dim=0)
        drawn = draws.fold_in("size").uniform(1).double()
        size = 1 + (drawn >= ends[:-1]).sum(dim=1, keepdim=True)
        kept = draws.permutation(patches).argsort(dim=1) < size
        kept[0], kept[1] = True, False
        return kept
