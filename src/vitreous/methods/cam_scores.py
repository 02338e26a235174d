"""Class activation maps by other means: principal components, and what the model says without a channel or with one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.methods import masking, ops
from vitreous.methods.base import Attribution, LayerwiseMethod
from vitreous.methods.cam import FeatureMap, TokenCAM
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import number
from vitreous.tracing import Activation, ActivationCache, Context, Record, activation_value, resolve_layer, upcast
from vitreous.tracing.runner import logits_with_patches


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
    return ops.pad_prefix(projection * largest.sign(), tokens.shape[1])


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


@register_method("eigencam", family="CAM", papers=("muhammad2020eigencam",), class_specific=False, cost=(1, 0))
@dataclass(frozen=True)
class EigenCAM(FeatureMap, LayerwiseMethod):
    r"""The first principal component of the patches' features, whatever the class.

    .. math:: M = (F - \bar F) \, v_1

    with F of the patches as a matrix hw x C and :math:`v_1` its first right singular vector, once centred. The map of a
    layer, for ``plus``, is the same of the block's input.

    Parameters
    ----------
    layer : int, default -1
        The block.
    point : {"auto", "norm1", "norm2", "resid_pre", "resid_post"}, default "auto"
        Where the features are read; ``"auto"`` is where the model's patches last reach the class.

    Notes
    -----
    The sign of that vector is arbitrary: here the largest absolute value of the map is positive, in the released code
    it is as it comes. One forward.

    References
    ----------
    Muhammad and Yeasin, "Eigen-CAM: Class Activation Map using Principal Components", IJCNN 2020.

    Examples
    --------
    >>> vt.explain(model, image, "eigencam").map.shape
    torch.Size([16, 16])
    """

    has_conventional_sign = True
    reduce = principal
    grad = False

    def records(self, model: VisionModel) -> list[Record]:
        return [self.features(model, principal, grad=False)]

    def attribution(self, cache: ActivationCache) -> Tensor:
        return cache.map(*self.records(cache.model))


@register_method("eigengradcam", family="CAM", papers=("gildenblat2021pytorch", "muhammad2020eigencam"))
@dataclass(frozen=True)
class EigenGradCAM(TokenCAM):
    r"""The first principal component of features times gradient.

    .. math:: M = (G \odot F - \overline{G \odot F}) \, v_1

    of the patches as a matrix hw x C, with :math:`v_1` its first right singular vector, once centred. The map of a
    layer, for ``plus``, is the same at the block's input.

    Parameters
    ----------
    layer : int, default -1
        The block.
    point : {"auto", "norm1", "norm2", "resid_pre", "resid_post"}, default "auto"
        Where the features are read; ``"auto"`` is where the model's patches last reach the class.

    Notes
    -----
    The largest absolute value of the map is positive, so the sign says nothing about the class. One forward and one
    backward.

    References
    ----------
    Gildenblat and others, "PyTorch library for CAM methods", GitHub 2021.
    Muhammad and Yeasin, "Eigen-CAM: Class Activation Map using Principal Components", IJCNN 2020.

    Examples
    --------
    >>> vt.explain(model, image, "eigengradcam").map.shape
    torch.Size([16, 16])
    """

    has_conventional_sign = True
    at_features = principal_product
    reduce = principal_product


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
    r"""Channels weighted by the score of the image seen through each of them.

    .. math:: M_{xy} = \sum_k w_k F_{kxy}, \qquad w = \mathrm{softmax}_k \, s(x \odot u(F_k))

    where u enlarges a channel to the image (bilinear, corners aligned), then min-max with 1e-8.

    Parameters
    ----------
    layer : int, default -1
        The block.
    point : {"auto", "norm1", "norm2", "resid_pre", "resid_post"}, default "auto"
        Where the features are read; ``"auto"`` is where the model's patches last reach the class.
    channels : int, optional
        Only so many channels, those that vary most over the patches: faster, and not in the paper.

    Notes
    -----
    As in released code no baseline is subtracted; the paper has the increase of confidence. On the tokens of a
    sub-network (``plus``) the masks scale the patches' tokens. One forward per channel and one more.

    References
    ----------
    Wang et al., "Score-CAM: Score-Weighted Visual Explanations for Convolutional Neural Networks", CVPR Workshops 2020.

    Examples
    --------
    >>> vt.explain(model, image, "scorecam(channels=8)").map.shape
    torch.Size([16, 16])
    """

    channels: int | None = number(None, "[1, inf)")

    def num_forwards(self, model: VisionModel) -> float:
        return 1 + min(model.embed_dim, self.channels or model.embed_dim)

    def compute(self, context: Context) -> Attribution:
        features = self.channels_of(self.record(context))
        if self.channels is not None and self.channels < features.shape[1]:
            best = features.flatten(2).std(dim=2).topk(self.channels).indices
            features = features[torch.arange(len(best), device=best.device)[:, None], best]

        def seen_through(start: int, stop: int) -> Tensor:
            return self._masked(context, features[:, start:stop])

        scores = [
            copies.target.score(copies.logits).reshape(len(features), -1)
            for copies, _, _ in context.batched_copies(seen_through, features.shape[1])
        ]
        weights = torch.cat(scores, dim=1).softmax(dim=1).to(features)
        return Attribution(torch.einsum("bk,bkhw->bhw", weights, features), {})

    def _masked(self, context: Context, features: Tensor) -> Tensor:
        """Return the inputs ``[B, k, ...]`` behind these masks ``[B, k, h, w]``."""
        masks = F.interpolate(features, size=masking.masked_size(context), mode="bilinear", align_corners=True)
        low, top = masks.amin(dim=(2, 3), keepdim=True), masks.amax(dim=(2, 3), keepdim=True)
        masks = (masks - low) / (top - low + 1e-8)
        return masking.mask_inputs(context.model, upcast(context.inputs).unsqueeze(1), masks)


@register_method("ablationcam", family="CAM", papers=("desai2020ablationcam",), cost=(768, 0), cost_note="C forwards")
@dataclass(frozen=True)
class AblationCAM(ScoredCAM):
    r"""Channels weighted by how much the score falls without them.

    .. math:: M_{xy} = \sum_k w_k F_{kxy}, \qquad w_k = \frac{s - s_k}{s}

    with :math:`s_k` the score without channel k. The map of a layer, for ``plus``, is the same at the block's input.

    Parameters
    ----------
    layer : int, default -1
        The block.
    point : {"auto", "norm1", "norm2", "resid_pre", "resid_post"}, default "auto"
        Where the features are read; ``"auto"`` is where the model's patches last reach the class.

    Notes
    -----
    The paper sets channel k to zero. Here, as in released code, that is so only if the smallest feature of the image is
    exactly zero; otherwise, always after a LayerNorm, all tokens get that minimum less 1e7 (less 100 in float16, which
    holds no more). Such a number drowns everything else in the block, so :math:`s_k` hardly depends on the image.
    Dividing by s turns the map where s is negative, and magnifies rounding where it is near zero. One forward per
    channel, from the block on, and one whole one.

    References
    ----------
    Desai and Ramaswamy, "Ablation-CAM: Visual Explanations for Deep Convolutional Network via Gradient-free
    Localization", WACV 2020.

    Examples
    --------
    >>> vt.get_method("ablationcam").num_forwards(model)
    193
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
        (tokens,), layer = cache[below], resolve_layer(context.model, self.layer)
        rows = torch.arange(len(tokens) * channels, device=tokens.device)

        def logits(start: int, stop: int) -> Tensor:
            without = {layer: Without(rows[start:stop] % channels)}
            inputs = tokens[rows[start:stop] // channels]
            return logits_with_patches(context.model, inputs, layer, features.point, without)

        return masking.score_rows(context, rows // channels, logits).reshape(len(tokens), channels)


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
