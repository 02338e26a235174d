"""Surrogates: a linear model of what the model says about sets of patches. Its weights are the map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError, SpecError
from vitreous.methods import masking
from vitreous.methods.base import Attribution, Method
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import choice, number
from vitreous.tracing import VALUES, Context, Record, upcast
from vitreous.tracing.prng import PRNGKey

_TINY = torch.finfo(torch.float64).tiny
_ROUNDS = 1000
_CONSTANT = 1e-20
"""The variance up to which a column does not vary but for rounding."""

# -- weighted linear regressions with an intercept, in float64 ---------------------------------------------


def ridge(design: Tensor, scores: Tensor, weights: Tensor, alpha: float) -> Tensor:
    """Return ``argmin_m sum_s w_s (y_s - b - z_s'm)^2 + alpha |m|^2`` of each image, ``[B, n]``.

    ``design`` is ``[S, n]``, ``scores`` and ``weights`` are ``[B, S]``; the intercept b is free.
    """
    solutions = []
    unit = torch.eye(design.shape[1], dtype=design.dtype, device=design.device)
    for response, weight in zip(scores, weights, strict=True):
        centred, residual = _centred(design, response, weight)
        weighted = centred.T * weight
        solutions.append(torch.linalg.solve(weighted @ centred + alpha * unit, weighted @ residual))
    return torch.stack(solutions)


def lasso(design: Tensor, scores: Tensor, weights: Tensor, alpha: float) -> Tensor:
    """Return ``argmin_m sum_s w_s (y_s - b - z_s'm)^2 / (2 sum_s w_s) + alpha |m|_1`` of each image, ``[B, n]``."""
    solutions = []
    for response, weight in zip(scores, weights, strict=True):
        centred, residual = _centred(design, response, weight)
        share = (weight / weight.sum().clamp(min=_TINY)).sqrt()
        solutions.append(_coordinate_descent((centred.T * share).cpu().contiguous(), (residual * share).cpu(), alpha))
    return torch.stack(solutions).to(design.device)


def least_squares(design: Tensor, scores: Tensor, weights: Tensor) -> Tensor:
    """Return the shortest of ``argmin_m sum_s w_s (y_s - b - z_s'm)^2``, ``[B, n]``; ``weights [S]`` serve all images.

    By a singular value decomposition, on the CPU, for torch's solvers elsewhere want more samples than unknowns.
    """
    root = weights.sqrt().unsqueeze(1)
    centred, residual = _centred(design, scores.T, weights)
    solution: Tensor = torch.linalg.lstsq((root * centred).cpu(), (root * residual).cpu(), driver="gelsd").solution
    return solution.T.to(design.device)


def _centred(design: Tensor, response: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Take the weighted means out: what is left needs no intercept."""
    share = weights / weights.sum().clamp(min=_TINY)
    return design - share @ design, response - share @ response


def _coordinate_descent(columns: Tensor, response: Tensor, alpha: float) -> Tensor:
    """Return ``argmin_m |y - X m|^2 / 2 + alpha |m|_1`` by coordinate descent; ``columns`` are those of X, ``[n, S]``.

    Rounds over all coordinates alternate with rounds over those that are not zero, until a whole round moves nothing.
    """
    sizes = columns.square().sum(dim=1).tolist()
    solution = [0.0] * len(sizes)
    residual = response.clone()
    tolerance = 1e-12 * float(response.norm())

    def moves(coordinates: Sequence[int]) -> bool:
        furthest = 0.0
        for j in coordinates:
            slope = float(columns[j] @ residual) + sizes[j] * solution[j]
            value = math.copysign(max(0.0, abs(slope) - alpha), slope) / sizes[j]
            step = value - solution[j]
            if step:
                residual.sub_(columns[j], alpha=step)
                solution[j] = value
                furthest = max(furthest, abs(step) * math.sqrt(sizes[j]))
        return furthest > tolerance

    varying = [j for j, size in enumerate(sizes) if size > _CONSTANT]
    for _ in range(_ROUNDS):
        if not moves(varying):
            break
        active = [j for j in varying if solution[j]]
        for _ in range(_ROUNDS):
            if not moves(active):
                break
    return torch.tensor(solution, dtype=torch.float64)


# -- methods -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Surrogate(Method):
    """A regression of the scores of ``samples`` sets of patches on their indicators."""

    samples: int
    fill: str
    drop: bool

    def num_forwards(self, model: VisionModel) -> float:
        return self.samples + self.drop

    def records(self, model: VisionModel) -> list[Record]:
        return masking.token_records(model, self.info.name, self.drop)

    def to_map(self, context: Context, weights: Tensor) -> Attribution:
        """Return weights ``[B, n]`` on the grid, in the precision of the model."""
        grid = context.model.grid(context.inputs)
        return Attribution(weights.to(upcast(context.inputs)).reshape(-1, *grid), {})


_LIME_IMAGE = {"samples": 1000, "fill": "own", "output": "prob", "distance": "sets", "width": 0.25}
_CAPTUM = {"samples": 25, "fill": "zero", "output": "logit", "distance": "pixels", "width": 1.0}


@register_method(
    "lime",
    family="perturbation",
    papers=("ribeiro2016why",),
    cost=("samples", 0),
    cost_note="samples forwards",
    presets={
        "lime_image": {**_LIME_IMAGE, "surrogate": "ridge", "alpha": 1.0, "include_full": True},
        "captum": {**_CAPTUM, "surrogate": "lasso", "alpha": 0.01, "include_full": False},
    },
)
@dataclass(frozen=True)
class LIME(Surrogate):
    r"""The weights of a linear model of the score, fitted near the image on random sets of patches.

    .. math::
        M = \arg\min_m \min_b \sum_i w_i (y_i - b - z_i^\top m)^2 + \alpha \lVert m \rVert^2, \qquad
        w_i = \exp\left(-\frac{d_i^2}{2 \omega^2}\right)

    with :math:`z_i` the indicators of the patches that set i keeps, each with probability 1/2, and :math:`y_i` the
    score of the image with only these. With a lasso: :math:`\sum_i w_i (y_i - b - z_i^\top m)^2 / (2 \sum_i w_i) +
    \alpha \lVert m \rVert_1`.

    Parameters
    ----------
    samples : int, default 1000
        How many sets.
    fill : {"own", "zero", "mean", "blur"}, default "own"
        What hidden patches become: their own mean colour, zero in normalised space, the mean colour of the image or a
        blur of it. On the tokens of a sub-network (``plus``): ``"zero"`` or ``"mean"``.
    drop : bool, default False
        Leave their tokens out instead, after the position embedding.
    output : {"prob", "logit", "logprob"}, default "prob"
        The score of the class.
    distance : {"sets", "pixels"}, default "sets"
        What d is: the cosine distance between the indicators and all ones, or between the pixels of image and copy.
    width : float, default 0.25
        The width :math:`\omega` of the neighbourhood.
    surrogate : {"ridge", "lasso"}, default "ridge"
        The regression.
    alpha : float, default 1.0
        Its penalty.
    include_full : bool, default True
        Whether the first set has all patches.

    Notes
    -----
    The plain name has the settings of the authors' lime_image, spelled out by ``@lime_image``, but for its segments:
    the patches are the segments here, so quickshift and the choice of the best few of its segments are left out.
    ``@captum`` are the settings of Captum's Lime with patches as features; 25 samples say little about 196 patches. One
    collection of sets, drawn from the seed, serves all images and classes. Cost: one forward per sample.

    References
    ----------
    Ribeiro et al., "'Why Should I Trust You?': Explaining the Predictions of Any Classifier", KDD 2016.

    Examples
    --------
    >>> vt.explain(model, image, "lime(samples=8)").map.shape
    torch.Size([16, 16])
    """

    samples: int = number(1000, "[2, inf)")
    fill: str = choice("own", *masking.FILLS)
    drop: bool = False
    output: str = choice("prob", *VALUES)
    distance: str = choice("sets", "pixels")
    width: float = number(0.25, "(0, inf)")
    surrogate: str = choice("ridge", "lasso")
    alpha: float = number(1.0, "(0, inf)")
    include_full: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drop and self.distance == "pixels":
            raise SpecError("distance='pixels' compares what is painted; drop=true paints nothing, use sets")

    def compute(self, context: Context) -> Attribution:
        patches = math.prod(context.model.grid(context.inputs))
        key = PRNGKey.of(context.seed, "lime", context.inputs.device).at(torch.arange(self.samples))
        visible = key.uniform(patches) < 0.5
        if self.include_full:
            visible[0] = True
        shared = ("lime", self.samples, self.include_full, self.fill, self.drop)
        scores = masking.score_subsets(context, "lime", visible, self.fill, self.drop, self.output, shared).double()
        weights = torch.exp(-(self._distances(context, visible) ** 2) / (2 * self.width**2))
        fit = ridge if self.surrogate == "ridge" else lasso
        return self.to_map(context, fit(visible.double(), scores, weights, self.alpha))

    def _distances(self, context: Context, visible: Tensor) -> Tensor:
        """Return the cosine distance ``[B, S]`` of each copy; 1 from a copy of nothing but zeros."""
        sets = visible.double()
        if self.distance == "sets":
            return (1 - sets.mean(dim=1).sqrt()).expand(len(context.inputs), -1)
        if context.inputs.ndim == 3:
            sets = F.pad(sets, (context.model.num_prefix_tokens, 0), value=1.0)
        inputs, filled = context.inputs.double(), masking.fill_inputs(context, "lime", self.fill).double()
        # every copy is made of patches and of their fillings, so that a few sums per patch give all products
        own, mixed, hidden = (
            _patch_sums(context, one * other) for one, other in ((inputs, inputs), (inputs, filled), (filled, filled))
        )
        product = own @ sets.T + mixed @ (1 - sets).T
        square = own @ sets.T + hidden @ (1 - sets).T
        lengths = own.sum(dim=1, keepdim=True).sqrt() * square.clamp(min=0).sqrt()
        return 1 - product / lengths.clamp(min=1e-8)


def _patch_sums(context: Context, value: Tensor) -> Tensor:
    """Sum pixels ``[B, C, H, W]`` into patches ``[B, n]``, or tokens over their width, prefix included."""
    if value.ndim == 3:
        return value.sum(dim=2)
    sides = zip(value.shape[2:], context.model.grid(context.inputs), strict=True)
    rows, columns = (F.one_hot(masking.side_cells(*side)).to(value) for side in sides)
    return (rows.T @ value.sum(dim=1) @ columns).flatten(1)


_EXACT_WEIGHT = 1e6  # of the two sets that KernelSHAP has to meet


@register_method(
    "kernel_shap",
    family="perturbation",
    papers=("lundberg2017unified",),
    cost=("samples", 0),
    cost_note="samples forwards",
    presets={"captum": {"samples": 25, "fill": "zero"}},
)
@dataclass(frozen=True)
class KernelSHAP(Surrogate):
    r"""Shapley values of the patches, estimated by a linear model of the score on random sets of them.

    .. math::
        M = \arg\min_m \min_b \sum_i w_i (y_i - b - z_i^\top m)^2, \qquad
        P(|z_i| = k) \propto \frac{n - 1}{k (n - k)}

    The first two sets have all n patches and none, with the weight 1,000,000; the others have the weight 1, and every
    set of k patches is as likely as any other. So the map sums to s(all) - s(none), but for about ``samples``
    millionths of what the linear model leaves unexplained.

    Parameters
    ----------
    samples : int, default 2000
        How many sets. Take ten per patch or more: 2,000 for 196 patches. ``@captum`` has 25, as Captum by default.
    fill : {"own", "zero", "mean", "blur"}, default "zero"
        What hidden patches become: their own mean colour, zero in normalised space, the mean colour of the image or a
        blur of it. On the tokens of a sub-network (``plus``): ``"zero"`` or ``"mean"``.
    drop : bool, default False
        Leave their tokens out instead, after the position embedding, which needs a model that reads its answer from a
        class token.

    Notes
    -----
    Least squares with an intercept, as in Captum. With fewer samples than patches the fit is not unique and the
    shortest one is taken (by a singular value decomposition, in float64). The output is the one that is asked for. One
    collection of sets, drawn from the seed, serves all images and classes. Cost: one forward per sample.

    References
    ----------
    Lundberg and Lee, "A Unified Approach to Interpreting Model Predictions", NeurIPS 2017.

    Examples
    --------
    >>> vt.explain(model, image, "kernel_shap(samples=8)").map.shape
    torch.Size([16, 16])
    """

    samples: int = number(2000, "[3, inf)")
    fill: str = choice("zero", *masking.FILLS)
    drop: bool = False

    def compute(self, context: Context) -> Attribution:
        patches = math.prod(context.model.grid(context.inputs))
        if patches < 2:
            raise ModelError("kernel_shap: an image of one patch has no sets of patches")
        visible = self._draw_sets(context, patches)
        scores = masking.score_subsets(context, "kernel_shap", visible, self.fill, self.drop, key=self).double()
        weights = visible.new_ones(self.samples, dtype=torch.float64)
        weights[:2] = _EXACT_WEIGHT
        return self.to_map(context, least_squares(visible.double(), scores, weights))

    def _draw_sets(self, context: Context, patches: int) -> Tensor:
        """Return which patches each set has, ``[samples, n]``: all, none, then random ones."""
        device = context.inputs.device
        key = PRNGKey.of(context.seed, "kernel_shap", device).at(torch.arange(self.samples))
        sizes = torch.arange(1, patches, dtype=torch.float64, device=device)
        probabilities = 1 / (sizes * (patches - sizes))
        ends = (probabilities / probabilities.sum()).cumsum(dim=0)
        size = 1 + (key.fold_in("size").uniform(1).double() >= ends[:-1]).sum(dim=1, keepdim=True)
        visible = key.permutation(patches).argsort(dim=1) < size
        visible[0], visible[1] = True, False
        return visible
