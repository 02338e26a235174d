"""Class activation maps: channels of features weighted by something made of their gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vitreous.errors import MapError
from vitreous.methods import ops
from vitreous.methods.base import LayerwiseMethod, Method
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import choice
from vitreous.tracing import Activation, ActivationCache, Record, Reduce, activation_value, resolve_layer


@dataclass(frozen=True)
class FeatureMap(Method):
    """A map made of the features F ``[B, N, C]`` of one place in one block.

    ``point="auto"`` is where the model's patches last reach the class: the output of the last block's first norm in a
    class-token model.
    """

    layer: int = -1
    point: str = choice("auto", "norm1", "norm2", "resid_pre", "resid_post")

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

    Means and sums over places run over the patches. Maps of a layer, for ``plus``, are taken at the block's input, and
    their channel weights see all tokens (SkipPLUS).
    """

    at_features: ClassVar[Reduce]

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


def _weighted_mean(features: Tensor, sizes: Tensor, gradient: Tensor, first: int) -> Tensor:
    """``sum_k w_k F_k`` with w_k the mean of the gradient over tokens ``first ..``, weighted by ``sizes``."""
    sizes, gradient = sizes[:, first:], gradient[:, first:]
    weight = (gradient * sizes).sum(dim=1, keepdim=True) / (sizes.sum(dim=1, keepdim=True) + 1e-7)
    return (features * weight).sum(dim=-1)


# -- methods -------------------------------------------------------------------------------------------


@register_method("gradcam", family="CAM", papers=("selvaraju2017gradcam",))
@dataclass(frozen=True)
class GradCAM(TokenCAM):
    r"""Channels weighted by their mean gradient over the patches.

    .. math:: M_{xy} = \sum_k \overline{G_k} \, F_{kxy}, \qquad \overline{G_k} = \frac{1}{n} \sum_{xy} G_{kxy}

    of features F and their gradient G. The map of a layer, for ``plus``, is the same at the block's input, the mean
    over all tokens.

    Parameters
    ----------
    layer : int, default -1
        The block.
    point : {"auto", "norm1", "norm2", "resid_pre", "resid_post"}, default "auto"
        Where the features are read; ``"auto"`` is where the model's patches last reach the class.

    Notes
    -----
    One forward and one backward.

    References
    ----------
    Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", ICCV 2017.

    Examples
    --------
    >>> vt.explain(model, image, "gradcam").map.shape
    torch.Size([16, 16])
    """

    at_features = weighted_by_patches
    reduce = weighted_by_tokens


@register_method("hirescam", family="CAM", papers=("draelos2020hirescam",))
@dataclass(frozen=True)
class HiResCAM(TokenCAM):
    r"""Features times gradient, place by place.

    .. math:: M_{xy} = \sum_k G_{kxy} F_{kxy}

    Its map of a layer is that of ``ixg``. Refused where only a norm follows, which makes it zero.

    Parameters
    ----------
    layer : int, default -1
        The block.
    point : {"auto", "norm1", "norm2", "resid_pre", "resid_post"}, default "auto"
        Where the features are read; ``"auto"`` is where the model's patches last reach the class.

    Notes
    -----
    One forward and one backward.

    References
    ----------
    Draelos and Carin, "Use HiResCAM instead of Grad-CAM for faithful explanations of convolutional neural networks",
    arXiv 2020.

    Examples
    --------
    >>> vt.explain(model, image, "hirescam").map.shape
    torch.Size([16, 16])
    """

    at_features = product
    reduce = ops.dot


@register_method("gradcam_pp", family="CAM", papers=("chattopadhay2018gradcampp",))
@dataclass(frozen=True)
class GradCAMPlusPlus(TokenCAM):
    r"""Channels weighted by their positive gradients, each place by its own share.

    .. math:: M_{xy} = \sum_k w_k F_{kxy}, \quad w_k = \sum_{xy} \alpha_{kxy} G_{kxy}^+, \quad
        \alpha = \frac{G^2}{2 G^2 + (\sum_{xy} F) G^3 + 10^{-6}}

    The map of a layer, for ``plus``, is the same at the block's input.

    Parameters
    ----------
    layer : int, default -1
        The block.
    point : {"auto", "norm1", "norm2", "resid_pre", "resid_post"}, default "auto"
        Where the features are read; ``"auto"`` is where the model's patches last reach the class.

    Notes
    -----
    The paper's alpha is that of an exponential of the score, with features that are not negative. After a LayerNorm
    they may be, and alpha has poles. As in released code, the gradient is that of the target itself. One forward and
    one backward.

    References
    ----------
    Chattopadhay et al., "Grad-CAM++: Generalized Gradient-Based Visual Explanations for Deep Convolutional Networks",
    WACV 2018.

    Examples
    --------
    >>> vt.explain(model, image, "gradcam_pp").map.shape
    torch.Size([16, 16])
    """

    at_features = weighted_by_alpha
    reduce = weighted_by_alpha


@register_method("xgradcam", family="CAM", papers=("fu2020axiom",))
@dataclass(frozen=True)
class XGradCAM(TokenCAM):
    r"""Channels weighted by their mean gradient, places by the features.

    .. math:: M_{xy} = \sum_k w_k F_{kxy}, \qquad w_k = \frac{\sum_{xy} G_{kxy} F_{kxy}}{\sum_{xy} F_{kxy} + 10^{-7}}

    The map of a layer, for ``plus``, is the same at the block's input.

    Parameters
    ----------
    layer : int, default -1
        The block.
    point : {"auto", "norm1", "norm2", "resid_pre", "resid_post"}, default "auto"
        Where the features are read; ``"auto"`` is where the model's patches last reach the class.

    Notes
    -----
    Features after a LayerNorm have either sign, so the divisor may be close to zero: ``xgradcam_plus`` has no such
    trouble. One forward and one backward.

    References
    ----------
    Fu et al., "Axiom-based Grad-CAM: Towards Accurate Visualization and Explanation of CNNs", BMVC 2020.

    Examples
    --------
    >>> vt.explain(model, image, "xgradcam").map.shape
    torch.Size([16, 16])
    """

    at_features = weighted_by_share
    reduce = weighted_by_share


@register_method("xgradcam_plus", family="CAM", papers=("mehri2024skipplus", "fu2020axiom"))
@dataclass(frozen=True)
class XGradCAMPlus(TokenCAM):
    r"""Channels weighted by their mean gradient, places by the size of the features.

    .. math:: M_{xy} = \sum_k w_k F_{kxy}, \qquad
        w_k = \frac{\sum_{xy} G_{kxy} |F_{kxy}|}{\sum_{xy} |F_{kxy}| + 10^{-7}}

    The map of a layer, for ``plus``, is the same at the block's input with sums over all tokens, as in SkipPLUS.

    Parameters
    ----------
    layer : int, default -1
        The block.
    point : {"auto", "norm1", "norm2", "resid_pre", "resid_post"}, default "auto"
        Where the features are read; ``"auto"`` is where the model's patches last reach the class.

    Notes
    -----
    One forward and one backward.

    References
    ----------
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", CVPR Workshops 2024.
    Fu et al., "Axiom-based Grad-CAM: Towards Accurate Visualization and Explanation of CNNs", BMVC 2020.

    Examples
    --------
    >>> vt.explain(model, image, "xgradcam_plus").map.shape
    torch.Size([16, 16])
    """

    at_features = weighted_by_size
    reduce = weighted_by_size_of_tokens


@register_method("layercam", family="CAM", papers=("jiang2021layercam",))
@dataclass(frozen=True)
class LayerCAM(TokenCAM):
    r"""Features times positive gradient, place by place.

    .. math:: M_{xy} = \sum_k G_{kxy}^+ F_{kxy}

    The map of a layer, for ``plus``, is the same at the block's input.

    Parameters
    ----------
    layer : int, default -1
        The block.
    point : {"auto", "norm1", "norm2", "resid_pre", "resid_post"}, default "auto"
        Where the features are read; ``"auto"`` is where the model's patches last reach the class.

    Notes
    -----
    One forward and one backward.

    References
    ----------
    Jiang et al., "LayerCAM: Exploring Hierarchical Class Activation Maps for Localization", IEEE TIP 2021.

    Examples
    --------
    >>> vt.explain(model, image, "layercam").map.shape
    torch.Size([16, 16])
    """

    at_features = positive_gradient
    reduce = positive_gradient


@register_method("gradcam_elementwise", family="CAM", papers=("gildenblat2021pytorch",))
@dataclass(frozen=True)
class GradCAMElementWise(TokenCAM):
    r"""Positive products of features and gradient, place by place.

    .. math:: M_{xy} = \sum_k (G_{kxy} F_{kxy})^+

    The map of a layer, for ``plus``, is the same at the block's input.

    Parameters
    ----------
    layer : int, default -1
        The block.
    point : {"auto", "norm1", "norm2", "resid_pre", "resid_post"}, default "auto"
        Where the features are read; ``"auto"`` is where the model's patches last reach the class.

    Notes
    -----
    One forward and one backward.

    References
    ----------
    Gildenblat and others, "PyTorch library for CAM methods", GitHub 2021.

    Examples
    --------
    >>> vt.explain(model, image, "gradcam_elementwise").map.shape
    torch.Size([16, 16])
    """

    at_features = positive_product
    reduce = positive_product
