"""Class activation maps on token features.

Class activation maps without gradients: channels weighted by what the model says when one is shown or removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import MapError, SpecError
from vitreous.methods.base import Attribution, LayerwiseMethod, Method, resolve_layer
from vitreous.methods.ops import dot, pad_prefix
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import check_choice
from vitreous.tracing import Activation, ActivationCache, Context, Record, Reduce, activation_value, upcast
from vitreous.tracing.runner import logits_with_patches

__all__ = [
    "AblationCAM",
    "EigenCAM",
    "EigenGradCAM",
    "FeatureMap",
    "GradCAM",
    "GradCAMElementWise",
    "GradCAMPlusPlus",
    "HiResCAM",
    "LayerCAM",
    "ScoreCAM",
    "TokenCAM",
    "XGradCAM",
    "XGradCAMPlus",
]


@dataclass(frozen=True)
class FeatureMap(Method):
    """A map made of the features F ``[B, N, C]`` of one place in one block.

    ``point=auto`` is where the model's patches last reach the class: the output of the last block's first norm in a
    class-token model. Or one of ``norm1``, ``norm2``, ``input``, ``output``.
    """

    layer: int = -1
    point: str = "auto"

    def __post_init__(self) -> None:
        check_choice("point", self.point, ("auto", "norm1", "norm2", "resid_pre", "resid_post"))

    def features(self, model: VisionModel, reduce: Reduce, grad: bool = True) -> Record:
        """Return the record of what the features of that place are reduced to."""
        point = model.cam_point if self.point == "auto" else self.point
        return Record(point, reduce, (self.layer,), grad)

    def lay_out(self, cache: ActivationCache, tokens: Tensor) -> Tensor:
        """Lay ``[B, N]`` out on the grid of that place; outputs of a stage are on the grid of the next."""
        after = self.features(cache.model, activation_value).point == "resid_post"
        return cache.tokens_to_grid(tokens, resolve_layer(cache.model, self.layer) + after)


@dataclass(frozen=True)
class TokenCAM(FeatureMap, LayerwiseMethod):
    """Features times something made of their gradient G, summed over channels before any ReLU.

    Means and sums over places run over the patches. Layer terms, for ``plus``, are taken at the block's input, and
    their channel weights see all tokens (SkipPLUS).
    """

    at_features: ClassVar[Reduce]
    at_input: ClassVar[Reduce]

    def records(self, model: VisionModel) -> list[Record]:
        return [self.features(model, type(self).at_features), self.features(model, reaches)]

    def attribution(self, cache: ActivationCache) -> Tensor:
        features, reached = self.records(cache.model)
        if not cache[reached][0].any():
            place = f"{reached.point} of block {resolve_layer(cache.model, self.layer)}"
            raise MapError(
                f"{self.info.name}: in {cache.model.name} patches do not reach the class from {place}; "
                f"use point={cache.model.cam_point}"
            )
        return cache.map(features)

    def layer_records(self, model: VisionModel, layers: Sequence[int]) -> list[Record]:
        return [Record("resid_pre", type(self).at_input, tuple(layers))]


# -- formulas ------------------------------------------------------------------------------------------


def reaches(a: Activation) -> Tensor:
    """Whether patches have any gradient; an image without one in the prefix either is no reason to complain."""
    prefix, patches = a.grad[:, : a.model.num_prefix_tokens], a.grad[:, a.model.num_prefix_tokens :]
    return (patches != 0).flatten(1).any(dim=1) | ~(prefix != 0).flatten(1).any(dim=1)


def weighted_by_patches(a: Activation) -> Tensor:
    """``sum_k mean_patches(G_k) F_k``."""
    weight = a.grad[:, a.model.num_prefix_tokens :].mean(dim=1, keepdim=True)
    return (a.value * weight).sum(dim=-1)


def weighted_by_tokens(a: Activation) -> Tensor:
    """``sum_k mean_tokens(G_k) F_k``, prefix tokens included in the mean."""
    return (a.value * a.grad.mean(dim=1, keepdim=True)).sum(dim=-1)


def weighted_by_alpha(a: Activation) -> Tensor:
    """``sum_k w_k F_k`` with the ``w_k = sum_xy alpha (G)+`` of Grad-CAM++."""
    features, g = a.value, a.grad[:, a.model.num_prefix_tokens :]
    total = features[:, a.model.num_prefix_tokens :].sum(dim=1, keepdim=True)
    alpha = g**2 / (2 * g**2 + total * g**3 + 1e-6)
    return (features * (alpha * g.relu()).sum(dim=1, keepdim=True)).sum(dim=-1)


def weighted_by_share(a: Activation) -> Tensor:
    """``sum_k w_k F_k`` with ``w_k = sum_xy G F / (sum_xy F + 1e-7)``."""
    return _weighted_mean(a.value, a.value, a.grad, a.model.num_prefix_tokens)


def weighted_by_size(a: Activation) -> Tensor:
    """``sum_k w_k F_k`` with ``w_k = sum_xy G |F| / (sum_xy |F| + 1e-7)``."""
    return _weighted_mean(a.value, a.value.abs(), a.grad, a.model.num_prefix_tokens)


def weighted_by_size_of_tokens(a: Activation) -> Tensor:
    """The same with the sums over all tokens, prefix included."""
    return _weighted_mean(a.value, a.value.abs(), a.grad, 0)


def product(a: Activation) -> Tensor:
    """``sum_k G_k F_k``; refused where it is zero by construction."""
    products = a.value * a.grad
    total, sizes = products.sum(dim=-1), products.abs().sum(dim=-1)
    if 0 < total[:, a.model.num_prefix_tokens :].abs().max() <= 1e-4 * sizes[:, a.model.num_prefix_tokens :].max():
        raise MapError(
            f"features times gradient is zero but for rounding on {a.model.name}: only a norm follows this place, and "
            "it ignores the length of a vector; use point=norm1 or norm2, or gradcam"
        )
    return total


def positive_gradient(a: Activation) -> Tensor:
    """``sum_k (G_k)+ F_k``."""
    return (a.value * a.grad.relu()).sum(dim=-1)


def positive_product(a: Activation) -> Tensor:
    """``sum_k (G_k F_k)+``."""
    return (a.value * a.grad).relu().sum(dim=-1)


def principal(a: Activation) -> Tensor:
    """The first principal component of the patches' features."""
    return _principal(a.value, a.model.num_prefix_tokens)


def principal_product(a: Activation) -> Tensor:
    """The first principal component of features times gradient."""
    return _principal(a.value * a.grad, a.model.num_prefix_tokens)


def _principal(tokens: Tensor, prefix: int) -> Tensor:
    if not torch.isfinite(tokens).all():
        return tokens.sum(dim=-1)  # the decomposition cannot take it; the map is refused by name
    patches = tokens[:, prefix:]
    centred = patches - patches.mean(dim=1, keepdim=True)
    projection = _first_component(centred)
    largest = projection.gather(1, projection.abs().argmax(dim=1, keepdim=True))
    return pad_prefix(projection * largest.sign(), tokens.shape[1])


def _first_component(rows: Tensor) -> Tensor:
    """Return ``X v`` for matrices ``[B, n, C]``, v the first right singular vector, of either sign: ``[B, n]``.

    That is the first eigenvector of ``X X'`` times the root of its eigenvalue. Squaring a matrix again and again leaves
    its first eigenvector alone: thirty products in float64 tell eigenvalues apart that differ in the ninth digit, in
    a fraction of the time of a decomposition.
    """
    gram = rows.double() @ rows.double().transpose(1, 2)
    power = gram
    for _ in range(30):
        power = power / power.diagonal(dim1=1, dim2=2).sum(dim=1).clamp(min=_NONE)[:, None, None]
        power = power @ power
    column = power.diagonal(dim1=1, dim2=2).argmax(dim=1)
    vector = power[torch.arange(len(power), device=power.device), :, column]
    vector = vector / vector.norm(dim=1, keepdim=True).clamp(min=_NONE)
    size = ((gram @ vector.unsqueeze(2)).squeeze(2) * vector).sum(dim=1, keepdim=True).clamp(min=0).sqrt()
    projected: Tensor = (vector * size).to(rows.dtype)
    return projected


_NONE = torch.finfo(torch.float64).tiny


def _weighted_mean(features: Tensor, sizes: Tensor, gradient: Tensor, first: int) -> Tensor:
    """``sum_k w_k F_k`` with w_k the mean of the gradient over tokens ``first ..``, weighted by ``sizes``."""
    sizes, gradient = sizes[:, first:], gradient[:, first:]
    weight = (gradient * sizes).sum(dim=1, keepdim=True) / (sizes.sum(dim=1, keepdim=True) + 1e-7)
    return (features * weight).sum(dim=-1)


# -- methods -------------------------------------------------------------------------------------------


@register_method("gradcam", family="CAM", papers=("selvaraju2017gradcam",))
@dataclass(frozen=True)
class GradCAM(TokenCAM):
    """Channels weighted by their mean gradient over the patches.

    ``sum_k mean_xy(G_k) F_k``. Layer term: the same at the block's input, the mean over all tokens.
    """

    at_features = weighted_by_patches
    at_input = weighted_by_tokens


@register_method("hirescam", family="CAM", papers=("draelos2020hirescam",))
@dataclass(frozen=True)
class HiResCAM(TokenCAM):
    """Features times gradient, place by place.

    ``sum_k G_k F_k``; its layer term is that of ``ixg``. Refused where only a norm follows, which makes it zero.
    """

    at_features = product
    at_input = dot


@register_method("gradcam_pp", family="CAM", papers=("chattopadhay2018gradcampp",))
@dataclass(frozen=True)
class GradCAMPlusPlus(TokenCAM):
    """Channels weighted by their positive gradients, each place by its own share.

    ``w_k = sum_xy alpha (G)+`` with ``alpha = G^2 / (2 G^2 + (sum_xy F) G^3 + 1e-6)``, map ``sum_k w_k F_k``. The
    paper's alpha is that of an exponential of the score, with features that are not negative. After a LayerNorm they
    may be, and alpha has poles. As in released code, (G)+ is the gradient of the target itself. Layer term: the same at
    the block's input.
    """

    at_features = weighted_by_alpha
    at_input = weighted_by_alpha


@register_method("xgradcam", family="CAM", papers=("fu2020axiom",))
@dataclass(frozen=True)
class XGradCAM(TokenCAM):
    """Channels weighted by their mean gradient, places by the features.

    ``w_k = sum_xy G F / (sum_xy F + 1e-7)``, map ``sum_k w_k F_k``. Features after a LayerNorm have either sign, so the
    divisor may be close to zero: ``xgradcam_plus`` has no such trouble. Layer term: the same at the block's input.
    """

    at_features = weighted_by_share
    at_input = weighted_by_share


@register_method("xgradcam_plus", family="CAM", papers=("mehri2024skipplus", "fu2020axiom"))
@dataclass(frozen=True)
class XGradCAMPlus(TokenCAM):
    """Channels weighted by their mean gradient, places by the size of the features.

    ``w_k = sum_xy G |F| / (sum_xy |F| + 1e-7)``, map ``sum_k w_k F_k``. Layer term: the same at the block's input with
    sums over all tokens, as in SkipPLUS.
    """

    at_features = weighted_by_size
    at_input = weighted_by_size_of_tokens


@register_method("layercam", family="CAM", papers=("jiang2021layercam",))
@dataclass(frozen=True)
class LayerCAM(TokenCAM):
    """Features times positive gradient, place by place.

    ``sum_k (G_k)+ F_k``. Layer term: the same at the block's input.
    """

    at_features = positive_gradient
    at_input = positive_gradient


@register_method("gradcam_elementwise", family="CAM", papers=("gildenblat2021pytorch",))
@dataclass(frozen=True)
class GradCAMElementWise(TokenCAM):
    """Positive products of features and gradient, place by place.

    ``sum_k (G_k F_k)+``, never negative. Layer term: the same at the block's input.
    """

    at_features = positive_product
    at_input = positive_product


@register_method("eigencam", family="CAM", papers=("muhammad2020eigencam",), class_specific=False, cost=(1, 0))
@dataclass(frozen=True)
class EigenCAM(FeatureMap, LayerwiseMethod):
    """The first principal component of the patches' features, whatever the class.

    F of the patches as a matrix hw x C, centred, times its first right singular vector. The sign of that vector is
    arbitrary: here the largest absolute value of the map is positive, in the released code it is as it comes. Layer
    term: the same of the block's input.
    """

    has_conventional_sign = True

    def records(self, model: VisionModel) -> list[Record]:
        return [self.features(model, principal, grad=False)]

    def attribution(self, cache: ActivationCache) -> Tensor:
        return cache.map(*self.records(cache.model))

    def layer_records(self, model: VisionModel, layers: Sequence[int]) -> list[Record]:
        return [Record("resid_pre", principal, tuple(layers), grad=False)]


@register_method("eigengradcam", family="CAM", papers=("gildenblat2021pytorch", "muhammad2020eigencam"))
@dataclass(frozen=True)
class EigenGradCAM(TokenCAM):
    """The first principal component of features times gradient.

    ``G * F`` of the patches as a matrix hw x C, centred, times its first right singular vector; the largest absolute
    value of the map is positive, so the sign says nothing about the class. Layer term: the same at the block's input.
    """

    has_conventional_sign = True
    at_features = principal_product
    at_input = principal_product


@dataclass(frozen=True)
class ScoredCAM(FeatureMap):
    """``sum_k w_k F_k`` with one weight per channel, each from a forward of its own."""

    def num_forwards(self, model: VisionModel) -> float:
        return 1 + model.embed_dim

    def records(self, model: VisionModel) -> list[Record]:
        return [self.features(model, activation_value, grad=False)]

    def channels_of(self, cache: ActivationCache) -> Tensor:
        """Return the channels ``[B, C, h, w]`` of the patches."""
        tokens = upcast(cache[self.records(cache.model)[0]][0]).transpose(1, 2)
        maps = self.lay_out(cache, tokens.flatten(0, 1))
        return maps.reshape(*tokens.shape[:2], *maps.shape[1:])


@register_method("scorecam", family="CAM", papers=("wang2020scorecam",), cost=(768, 0), cost_note="C forwards")
@dataclass(frozen=True)
class ScoreCAM(ScoredCAM):
    """Channels weighted by the score of the image seen through each of them.

    ``w = softmax_k s(x * u(F_k))``, map ``sum_k w_k F_k``; u enlarges to the image (bilinear, corners aligned), then
    min-max with 1e-8. As in released code no baseline is subtracted; the paper has the increase of confidence.
    On the tokens of a sub-network (``plus``) the masks scale the patches' tokens. ``channels=n`` takes only the n
    channels that vary most over the patches: faster, and not in the paper.
    Cost: one forward per channel and one more.
    """

    channels: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels is not None and self.channels < 1:
            raise SpecError(f"channels={self.channels} must be at least 1")

    def num_forwards(self, model: VisionModel) -> float:
        return 1 + min(model.embed_dim, self.channels or model.embed_dim)

    def compute(self, context: Context) -> Attribution:
        features = self.channels_of(self.record(context))
        if self.channels is not None and self.channels < features.shape[1]:
            best = features.flatten(2).std(dim=2).topk(self.channels).indices
            features = features[torch.arange(len(best), device=best.device)[:, None], best]
        at_once = max(1, context.batch // len(features))
        scores = torch.cat([self._scores(context, part) for part in torch.split(features, at_once, 1)], dim=1)
        return Attribution(torch.einsum("bk,bkhw->bhw", scores.softmax(dim=1).to(features), features), {})

    def _scores(self, context: Context, features: Tensor) -> Tensor:
        """Return the scores ``[B, k]`` of the images behind these masks."""
        inputs = upcast(context.inputs)
        size = context.inputs.shape[-2:] if inputs.ndim == 4 else context.model.grid(context.inputs)
        masks = F.interpolate(features, size=size, mode="bilinear", align_corners=True)
        low, high = masks.amin(dim=(2, 3), keepdim=True), masks.amax(dim=(2, 3), keepdim=True)
        masks = (masks - low) / (high - low + 1e-8)
        if inputs.ndim == 4:
            seen = (inputs.unsqueeze(1) * masks.unsqueeze(2)).flatten(0, 1)
        else:
            factor = F.pad(masks.flatten(2), (context.model.num_prefix_tokens, 0), value=1.0)
            seen = (inputs.unsqueeze(1) * factor.unsqueeze(3)).flatten(0, 1)
        fork = context.with_inputs(seen, repeat=features.shape[1])
        return fork.target.score(fork.logits).reshape(len(features), -1)


@register_method("ablationcam", family="CAM", papers=("desai2020ablationcam",), cost=(768, 0), cost_note="C forwards")
@dataclass(frozen=True)
class AblationCAM(ScoredCAM):
    """Channels weighted by how much the score falls without them.

    ``w_k = (s - s_k) / s``, map ``sum_k w_k F_k``. The paper sets channel k to zero. Here, as in released code, that is
    so only if the smallest feature of the image is exactly zero; otherwise, always after a LayerNorm, all tokens get
    that minimum less 1e7 (less 100 in float16, which holds no more). Such a number drowns everything else in the
    block, so s_k hardly depends on the image. Dividing by s turns the map where s is negative, and magnifies rounding
    where it is near zero. Layer term: the same at the block's input. Cost: one forward per channel, from the block on,
    and one whole one.
    """

    def at_layer(self, model: VisionModel, layer: int) -> AblationCAM:
        return replace(self, layer=layer, point="resid_pre")

    def records(self, model: VisionModel) -> list[Record]:
        return [*super().records(model), Record("resid_pre", activation_value, (self.layer,), grad=False)]

    def compute(self, context: Context) -> Attribution:
        cache = self.record(context)
        features = self.channels_of(cache)
        score = context.target.score(cache.logits).unsqueeze(1)
        weights = (score - self._scores(context, cache, features.shape[1])) / score
        return Attribution(torch.einsum("bk,bkhw->bhw", weights.to(features), features), {})

    def _scores(self, context: Context, cache: ActivationCache, channels: int) -> Tensor:
        """Return the scores ``[B, C]`` without each channel; the blocks below are not run again."""
        features, below = self.records(context.model)
        (tokens,), target = cache[below], context.target.repeat(channels)
        layer = resolve_layer(context.model, self.layer)

        def part(start: int, stop: int) -> Tensor:
            rows = torch.arange(start, stop, device=tokens.device)
            without = Without(rows % channels)
            with torch.no_grad():
                logits = logits_with_patches(
                    context.model, tokens[rows // channels], layer, features.point, {layer: without}
                )
            if context.on_progress is not None:
                context.on_progress(stop - start)
            return target.slice_images(start, stop).score(logits)

        scores = context.batching.run(part, len(tokens) * channels)
        return torch.cat(scores).reshape(len(tokens), channels)


@dataclass(frozen=True, eq=False)
class Without:
    """Remove one channel of each image from a value ``[B, ..., C]``."""

    channels: Tensor

    def __call__(self, value: Tensor) -> Tensor:
        low = value.flatten(1).amin(dim=1)
        below = 1e7 if torch.finfo(value.dtype).max > 1e15 else 100.0
        instead = torch.where(low == 0, low, low - below).reshape(-1, *[1] * (value.ndim - 1))
        gone = F.one_hot(self.channels, value.shape[-1]).bool()
        return torch.where(gone.reshape(len(gone), *[1] * (value.ndim - 2), -1), instead, value)
