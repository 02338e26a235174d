"""What is inside a block: which patches attend to each other, which operations run, and its weights as plain tensors.

The parameters of a plain linear layer, norm or LayerScale are what it computes with. A module with a hook, an adapter
beside its weights, a parametrization or a forward of its own may compute something else: its weights are then taken
from what it does (``f(0)``, ``f(I) - f(0)``), and it is refused unless that reproduces it on random inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn import functional as F

from vitreous.code_digest import is_external
from vitreous.errors import ModelError, one_line
from vitreous.models.description import deviations
from vitreous.models.shared_copy import rounding


class Windows(NamedTuple):
    """W windows of t places each, in the order in which the model lays them out; every patch stands at one place."""

    patches: Tensor
    """``[W, t]``: the patch of the layer's grid at each place, -1 where it is padding."""
    sees: Tensor
    """``[W, t, t]``: whether the first place may look at the second; padding neither looks nor is seen."""

    def apart(self, attention: Tensor) -> Tensor:
        """Weights ``[B W, H, t, t]`` as the model has them to ``[B, W, H, t, t]``, zero where nothing is seen.

        Half precision is widened: a product with a gradient, spread over many windows, would vanish in it.
        """
        weights = attention if attention.dtype == torch.float64 else attention.float()
        weights = weights.reshape(-1, len(self.patches), *weights.shape[1:])
        return weights.masked_fill(~self.sees.to(attention.device).unsqueeze(1), 0)

    def cut(self, row: Tensor) -> Tensor:
        """Numbers of patches ``[B, N]`` to their places ``[B, W, t]``, zero at padding."""
        return F.pad(row, (0, 1))[:, self.patches.to(row.device)]  # -1 is the zero at the end

    def paste(self, values: Tensor) -> Tensor:
        """Numbers at places ``[B, W, t]`` to their patches ``[B, N]``; those at padding are dropped."""
        flat = self.patches.flatten()
        places = flat.argsort()[int((flat < 0).sum()) :]
        return values.flatten(1)[:, places.to(values.device)]


def shifted_windows(
    grid: Sequence[int],
    window: Sequence[int],
    shift: Sequence[int],
    padded_first: bool = True,
    hidden: Tensor | None = None,
) -> Windows:
    """Return the windows of a grid that is rolled by ``-shift`` and padded at its lower and right end to whole windows.

    ``padded_first`` tells which happens before the other. Rolling brings patches of opposite edges into one window: as
    in all libraries, the last window of an axis is parted ``shift`` places from its end, and its parts do not see
    each other. ``hidden`` ``[W, t, t]`` says what is not seen instead, where a model has a mask of its own; a mask of
    fewer windows is repeated.
    """
    index = torch.arange(grid[0] * grid[1]).view(*grid)
    sides = [-(-side // size) * size for side, size in zip(grid, window, strict=True)]
    missing = (0, sides[1] - grid[1], 0, sides[0] - grid[0])
    rolled = [-by for by in shift]
    if padded_first:
        index = F.pad(index, missing, value=-1).roll(rolled, dims=(0, 1))
    else:
        index = F.pad(index.roll(rolled, dims=(0, 1)), missing, value=-1)
    patches = _cut(index, window)
    if hidden is None:
        rows, columns = (_parts(*axis) for axis in zip(sides, window, shift, strict=True))
        parts = _cut(3 * rows[:, None] + columns, window)
        hidden = parts[:, :, None] != parts[:, None]
    real, hidden = patches >= 0, hidden[torch.arange(len(patches)) % len(hidden)]
    return Windows(patches, ~hidden & real[:, :, None] & real[:, None])


def _parts(side: int, window: int, shift: int) -> Tensor:
    place = torch.arange(side)
    return (place >= side - window).long() + (place >= side - shift).long() if shift else torch.zeros_like(place)


def _cut(laid: Tensor, window: Sequence[int]) -> Tensor:
    height, width = laid.shape
    apart = laid.view(height // window[0], window[0], width // window[1], window[1])
    return apart.transpose(1, 2).reshape(-1, window[0] * window[1])


_EXACT = {torch.bfloat16: 5e-2, torch.float64: 1e-8}
"""How far a module may be from the weights that are taken for it, in parts of the largest output, if not as usual."""


class UnverifiedError(ModelError):
    """No weights were found that do what a module does."""


@dataclass(frozen=True)
class Norm:
    """A LayerNorm (``centred``) or an RMSNorm, ``weight * (x - mean) / deviation + bias``."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    centred: bool

    @classmethod
    def of(cls, module: Any, width: int | None = None) -> Norm | None:
        """Read a module; ``None`` for one that does nothing. ``width`` is that of its input, where it may be odd."""
        if module is None or (isinstance(module, nn.Identity) and is_plain(module)):
            return None
        norms = [m for m in module.modules() if isinstance(m, nn.LayerNorm) or "rms" in type(m).__name__.lower()]
        if not norms:
            raise ModelError(f"{type(module).__name__} is neither a LayerNorm nor an RMSNorm")
        inner: Any = norms[0]
        centred, eps = isinstance(inner, nn.LayerNorm), inner.eps or torch.finfo(torch.float32).eps
        if module is inner and is_plain(module):
            weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
            return cls(_constant(weight), _constant(bias), eps, centred)
        return cls._measured(module, eps, centred, width or inner.weight.numel())

    @classmethod
    def _measured(cls, module: Any, eps: float, centred: bool, width: int) -> Norm:
        """Take bias, gain and eps from what the norm does: at zero, at numbers of size one, and at small ones.

        With v the variance of x, ``f(t x) - b`` is ``g t x / sqrt(t^2 v + eps)``.
        """
        like, small = _first_parameter(module), 1e-3
        signs = torch.ones(width)
        signs[1::2] = -1
        (bias, one, other), _ = _both(module, torch.stack([0 * signs, signs, small * signs]).to(like))
        x = cls(None, None, 0.0, centred).centre(signs.to(like))
        variance = x.square().mean()
        size = (one - bias).square().sum()
        if size > 0:
            ratio = (other - bias).square().sum() / size
            eps = max(0.0, float(small**2 * variance * (1 - ratio) / (ratio - small**2)))
        norm = cls((one - bias) * (variance + eps).sqrt() / x, bias, eps, centred)
        _check(module, "a LayerNorm or RMSNorm", norm, x)
        return norm

    def centre(self, x: Tensor) -> Tensor:
        """Take the mean of every vector away, where this norm does."""
        return x - x.mean(dim=-1, keepdim=True) if self.centred else x

    def deviation(self, x: Tensor) -> Tensor:
        """What every vector is divided by: ``[..., 1]``."""
        return (self.centre(x).square().mean(dim=-1, keepdim=True) + self.eps).sqrt()

    def linear(self, x: Tensor) -> Tensor:
        """``weight * (x - mean)``: the part that is linear once the deviation is a constant."""
        x = self.centre(x)
        return x if self.weight is None else x * self.weight.to(x.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        out = self.linear(x) / self.deviation(x)
        return out if self.bias is None else out + self.bias.to(x.dtype)


class Weights(NamedTuple):
    """How the values that attention moves reach the residual stream of a pre-norm block.

    ``attn = projection @ inner(concat_h A_h V_h) + bias`` and ``mlp = scale * MLP(norm2(.))``, both as they are added.
    """

    norm1: Norm
    projection: Tensor
    """Attention's output projection ``[D, H * d]``, LayerScale included."""
    inner: Norm | None
    """A norm of what all heads bring, before the projection."""
    norm2: Norm
    scale: Tensor | None
    """LayerScale of the MLP ``[D]``."""

    @classmethod
    def of(
        cls, norm1: Any, projection: Any, norm2: Any, *, inner: Any = None, scales: tuple[Any, Any] = (None, None)
    ) -> Weights:
        """Put modules and the two LayerScales together, each of which is a vector, a module or nothing.

        A ``projection`` that the model reads instead of running it is given as the weight itself.
        """
        if isinstance(projection, nn.Linear) and is_plain(projection):
            projection = projection.weight
        weight = projection.detach() if isinstance(projection, Tensor) else affine(projection)[0]
        width = len(weight)
        first, second = (_scale(scale, weight) for scale in scales)
        outer = Norm.of(norm1, width), Norm.of(norm2, width)
        if outer[0] is None or outer[1] is None:
            raise ModelError("a block without its norms has no shares")
        between = None if _is_identity(inner, weight) else Norm.of(inner, weight.shape[1])
        return cls(outer[0], weight if first is None else first[:, None] * weight, between, outer[1], second)


def is_plain(module: nn.Module) -> bool:
    """Whether a module and all inside it are as their libraries built them, so that parameters tell what it does."""
    return not deviations(module)


def affine(module: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the matrix ``[out, in]`` and the bias of a module that is affine in each token, or refuse it.

    ``bias = f(0)`` and ``weight = f(I) - f(0)``; random tokens, in two arrangements, must give what these do.
    """
    sizes = [size for part in module.modules() if isinstance(size := getattr(part, "in_features", None), int)]
    if not sizes:
        raise UnverifiedError(f"{type(module).__name__} does not say how wide its inputs are (in_features)")
    width, like = sizes[0], _first_parameter(module)
    _, rows = _both(module, torch.cat([torch.zeros(1, width), torch.eye(width)]).to(like))
    bias, weight = rows[0], (rows[1:] - rows[0]).T.contiguous()
    _check(module, "linear", lambda x: x @ weight.T + bias, weight[0])
    return weight, bias


@contextmanager
def merged(model: nn.Module, paths: Iterable[str]) -> Iterator[list[Any]]:
    """Inside, each affine part of a shared copy is one plain linear layer: an adapter beside a layer, a hook on it.

    Rules of relevance belong to operations: a layer with an adapter would be three of them, and be explained otherwise
    than the same layer after merging. ``paths`` lead to what is not plain; what is not affine stays as it is. Yields
    what was merged.
    """
    swapped = list[tuple[dict[str, Any], str, nn.Module]]()
    try:
        for path in sorted(paths):
            above, _, name = path.rpartition(".")
            try:
                parent = model.get_submodule(above)
            except AttributeError:  # inside one that is merged by now
                continue
            module = parent._modules.get(name)
            if module is None or isinstance(parent, nn.MultiheadAttention) or not _may_be_linear(module):
                continue
            try:
                weight, bias = affine(module)
            except ModelError:
                continue
            with torch.device("meta"):
                layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.weight, layer.bias = (nn.Parameter(values, requires_grad=False) for values in (weight, bias))
            swapped.append((parent._modules, name, module))
            parent._modules[name] = layer
        yield swapped
    finally:
        for modules, name, module in reversed(swapped):
            modules[name] = module


def _may_be_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer, or holds some and nothing of a library that is not linear."""
    harmless = (nn.Linear, nn.Dropout, nn.Identity, nn.ModuleDict, nn.ModuleList, nn.ParameterDict, nn.ParameterList)
    parts = list(module.modules())
    return any(isinstance(part, nn.Linear) for part in parts) and all(
        isinstance(part, harmless) or is_external(type(part)) for part in parts
    )


def _scale(scale: Any, projection: Tensor) -> Tensor | None:
    """Return the gains of a LayerScale beside this projection; ``None`` for one that does nothing."""
    if scale is None or isinstance(scale, Tensor):
        return _constant(scale)
    if is_plain(scale):
        return _constant(getattr(scale, "gamma", getattr(scale, "lambda1", None)))
    width = len(projection)
    (zero, one), _ = _both(scale, torch.stack([torch.zeros(width), torch.ones(width)]).to(projection))
    gains = torch.sub(one, zero)
    _check(scale, "a gain of each channel", lambda x: x * gains + zero, gains)
    return gains


def _is_identity(module: Any, projection: Tensor) -> bool:
    """Whether nothing stands before a projection, or something that says so, and then must do nothing."""
    if module is None or not isinstance(module, nn.Identity):
        return module is None
    if not is_plain(module):
        _check(module, "an identity", lambda x: x, projection[0])
    return True


def _both(module: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a module makes of rows ``[n, D]`` one by one and all in one image; none of it is watched."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        try:
            alone, together = module(rows[:, None])[:, 0], module(rows[None])[0]
        except Exception as error:  # a forward or a hook of the user's own can fail anywhere
            reason = one_line(f"{type(error).__name__}: {error}")[:200]
            raise UnverifiedError(f"{_described(module)} cannot be run on its own ({reason})") from error
    return alone, together


def _check(module: Any, what: str, function: Callable[[Tensor], Tensor], like: Tensor) -> None:
    """Refuse a module that is not this function of random vectors, each like this one."""
    noise = torch.randn(16, len(like), generator=torch.Generator().manual_seed(0)).to(like)
    expected = function(noise)
    for output in _both(module, noise):
        tolerance = _EXACT.get(output.dtype, rounding(output.dtype, output.device.type))
        bound = tolerance * max(float(output.abs().max()), 1e-6)
        if output.shape != expected.shape or not float((output - expected).abs().max()) <= bound:
            raise UnverifiedError(f"{_described(module)} does not compute what is {what}: no weights tell what it does")


def _described(module: nn.Module) -> str:
    path, why = next(iter(deviations(module).items()), ("", ""))
    return f"{type(module).__name__} with {why}" + (f" at {path}" if path else "")


def _first_parameter(module: nn.Module) -> Tensor:
    parameter = next(module.parameters(), None)
    if parameter is None:
        raise UnverifiedError(f"{_described(module)} has no parameters that tell where and how it computes")
    return parameter.detach()


def _constant(parameter: object) -> Tensor | None:
    return parameter.detach() if isinstance(parameter, Tensor) else None


# -- operations --------------------------------------------------------------------------------------------

NODES = {
    "attention": (
        "Softmax", "SafeSoftmax", "ScaledDotProductFlashAttention", "ScaledDotProductFlashAttentionForCpu",
        "ScaledDotProductEfficientAttention", "ScaledDotProductCudnnAttention",
    ),
    "activation": (
        "Relu", "Gelu", "Silu", "Sigmoid", "Hardswish", "Hardsigmoid", "Hardtanh", "Mish", "Elu", "LeakyRelu", "Prelu",
        "PreluKernel", "Softplus", "Tanh", "Celu",
    ),
    "norm": ("NativeLayerNorm", "NativeGroupNorm", "FusedRmsNorm", "LinalgVectorNorm", "Norm"),
}  # fmt: skip
"""Operations by the names that autograd gives them: counted without the override that rules are found by."""
_BY_HAND = {"activation": ("Erf", "Erfc", "Exp", "Log", "Log1p"), "norm": ("Var", "VarMean", "Std", "StdMean", "Rsqrt")}
"""What nobody recognises, so that it must not go unnoticed."""


def graph_nodes(start: Any, without: Any = None) -> dict[Any, None]:
    """Return the nodes of an autograd graph that can be reached, with one of them taken out."""
    nodes, waiting = dict[Any, None](), [start]
    while waiting:
        node = waiting.pop()
        if node is not None and node is not without and node not in nodes:
            nodes[node] = None
            waiting += [following for following, _ in node.next_functions]
    return nodes


def operations_in(output: Tensor) -> list[str]:
    """Return the names of all operations in the graph of an output."""
    return [node.name().partition("Backward")[0] for node in graph_nodes(output.grad_fn)]


def count_operations(output: Tensor, by_hand: bool = False) -> dict[str, int]:
    """Count attention, norms and activations in the graph of an output.

    With ``by_hand`` also what may be one of them, written out: functions with a backward of their own among it. A pass
    that steers the backward does not meet these, and is then refused.
    """
    names = operations_in(output)
    tables = (NODES, _BY_HAND) if by_hand else (NODES,)
    counts = {kind: sum(name in table.get(kind, ()) for table in tables for name in names) for kind in NODES}
    if by_hand:
        counts["activation"] += sum(isinstance(node, BackwardCFunction) for node in graph_nodes(output.grad_fn))
    return counts
