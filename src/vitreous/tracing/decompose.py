"""DecompX with its biases spread: one copy of the tokens for every source, carried through the untouched model.

The copies and the true tokens run as one batch ``[sources + 1, N, D]``, the true ones last. A function mode makes every
operation linear in the copies: norms divide by the deviation of the true tokens, attention uses their weights,
activations their gates. What a bias adds is spread over the sources, so that the copies always sum to the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from vitreous.errors import TracingError, VitreousError
from vitreous.models import VisionModel
from vitreous.tracing.attention import AttentionCall, multi_head_attention
from vitreous.tracing.memory import budget_bytes
from vitreous.tracing.rules.base import LENGTHS, OPERATIONS, RELUS, RMS_NORMS, SIGMOIDS, Call

_SMALL = 1e-12


def explicit_contributions(model: VisionModel, tokens: Tensor, layer: int, memory_gb: float | None = None) -> Tensor:
    """Return the shares ``[N, classes]`` of the tokens ``[N, D]`` that enter block ``layer`` in the logits.

    Every bias vector b is spread with weights ``|<T[i, j], b>|`` over the sources j. Cost: about N + 1 forwards from
    that block on, and N x (N + 1) x 4D numbers at once, a few times over; refused where they do not fit into memory.
    """
    count, width = tokens.shape
    need, allowed = 16 * (count + 1) * count * width * tokens.element_size(), budget_bytes(tokens.device, memory_gb)
    if need > allowed:
        raise VitreousError(
            f"{count} x {count} shares of width {width} take about {need / 2**30:.1f} GiB, more than memory="
            f"{allowed / 2**30:.1f}; allow it, or use bias=token"
        )
    model = model.shared_copy()
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(tokens.device.type, enabled=False):
        rows = torch.cat([torch.diag_embed(tokens.T).permute(2, 1, 0), tokens.clone()[None]])
        mode = _LinearInSources(model)
        for index in range(layer, model.depth):
            with mode.inside(index):
                rows = model.forward_block(index, rows)
        with mode.inside(None):
            logits = model.forward_head(rows)
    shares, truth = logits[:-1], logits[-1]
    error = (shares.sum(dim=0) - truth).abs().max()
    if not error <= 1e-2 * truth.abs().max() + 1e-4:
        raise TracingError(
            f"{model.name}: shares miss the logits by {float(error):.3g}; it adds something that is not recognised"
        )
    return shares


class _LinearInSources(TorchFunctionMode):
    """Makes what runs inside it linear in all rows of the batch but the last."""

    def __init__(self, model: VisionModel) -> None:
        super().__init__()
        self.model = model
        self.layer: int | None = None
        self.waiting = False  # before attention only values are shares: their bias is spread when they are known
        self.attention: Tensor | None = None

    def inside(self, layer: int | None) -> _LinearInSources:
        """Say that block ``layer`` (the head for ``None``) runs next."""
        self.layer, self.attention = layer, None
        self.waiting = self.model.operation_counts(layer).get("attention", 0) > 0
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = _HANDLERS.get(func) or _BY_KIND.get(OPERATIONS.get(func, ""))
        if handler is None:
            return func(*args, **(kwargs or {}))
        return handler(self, func, *args, **(kwargs or {}))

    # -- biases ----------------------------------------------------------------------------------------

    def _add(self, out: Tensor, bias: Tensor | None, dims: Sequence[int] = (-1,)) -> Tensor:
        """Add a bias to the truth, and spread it over the sources by ``|<T, b>|``."""
        if bias is not None:
            size = (out[:-1] * bias).sum(dim=tuple(dims), keepdim=True).abs()
            out[:-1] += size / (size.sum(dim=0) + _SMALL) * bias
            out[-1] += bias
        return out

    def _linear(self, func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        out: Tensor = func(input, weight)
        if self.waiting:
            if bias is not None:
                out[-1] += bias
            return out
        return self._add(out, bias)

    def _values(self, values: Tensor) -> Tensor:
        """Spread what the values ``[sources + 1, H, N, d]`` miss: their own bias, over all heads together."""
        self.waiting = False
        values = values.clone()
        missing = values[-1] - values[:-1].sum(dim=0)
        values[-1] -= missing
        return self._add(values, missing, dims=(1, 3))

    # -- what is linear once the truth is known --------------------------------------------------------

    def _layer_norm(self, func: Any, *args: Any, **kwargs: Any) -> Tensor:
        bound = Call("norm", func, args, kwargs).bind("input", "normalized_shape", "weight", "bias", "eps")
        x, weight = bound["input"], bound.get("weight")
        deviation = (x[-1].var(dim=-1, unbiased=False, keepdim=True) + bound.get("eps", 1e-5)).sqrt()
        out = (x - x.mean(dim=-1, keepdim=True)) / deviation
        return self._add(out if weight is None else out * weight, bound.get("bias"))

    def _rms_norm(
        self, func: Any, input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: Any = None
    ) -> Tensor:
        eps = torch.finfo(input.dtype).eps if eps is None else eps
        out = input / (input[-1].square().mean(dim=-1, keepdim=True) + eps).sqrt()
        scaled: Tensor = out if weight is None else out * weight
        return scaled

    def _attend(self, func: Any, *args: Any, **kwargs: Any) -> Tensor:
        query, key, value, call = AttentionCall.bind(*args, **kwargs)
        mixed: Tensor = call.weights(query[-1:], key[-1:], full=False) @ self._values(value)
        return mixed

    def _multi_head(self, func: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        linear, attend = partial(self._linear, F.linear), partial(self._attend, None)
        return multi_head_attention(self.model.name, linear, attend, *args, **kwargs)

    def _softmax(self, func: Any, scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        attention: Tensor = func(scores[-1:], *args, **kwargs).expand_as(scores)
        self.attention = attention if attention.ndim == 4 else None
        return attention

    def _matmul(self, func: Any, left: Tensor, right: Tensor) -> Tensor:
        if self.attention is not None and left.shape == self.attention.shape:
            self.attention, right = None, self._values(right)
        return func(left, right)  # type: ignore[no-any-return]

    def _activation(self, func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = func(x[-1:], *args, **kwargs)
        if self.model.operation_counts(self.layer).get("gate", 0):
            return out.expand_as(x)
        return x * (out / x[-1:]).nan_to_num_(nan=0.5)  # 0 / 0

    def _relu(self, func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x * (x[-1:] > 0)

    def _constant(self, func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return func(x[-1:], *args, **kwargs)  # type: ignore[no-any-return]


_BY_KIND: dict[str, Callable[..., Any]] = {
    "linear": _LinearInSources._linear,
    "attention": _LinearInSources._attend,
    "softmax": _LinearInSources._softmax,
    "matmul": _LinearInSources._matmul,
    "norm": _LinearInSources._layer_norm,
    "activation": _LinearInSources._activation,
}
_HANDLERS: dict[Any, Callable[..., Any]] = {  # what is not like others of its kind
    F.multi_head_attention_forward: _LinearInSources._multi_head,
    **dict.fromkeys(RMS_NORMS, _LinearInSources._rms_norm),
    **dict.fromkeys(RELUS, _LinearInSources._relu),
    **dict.fromkeys((*SIGMOIDS, *LENGTHS), _LinearInSources._constant),
}
