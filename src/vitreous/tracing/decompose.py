"""What attention and MLP of a block add to its residual stream, compared with what becomes of it.

Blocks of a known class add the two and nothing else. A hook on a block, or a forward of its own, may do otherwise, and
what methods say of the stream would then be wrong. So it is compared where a block is not as its library built it.

Shares written out: one copy of the tokens for every source, carried through the untouched model.

The copies and the true tokens run as one batch ``[sources + 1, N, D]``, the true ones last. A function mode makes every
operation linear in the copies: norms divide by the deviation of the true tokens, attention uses their weights,
activations their gates. What a bias adds is spread over the sources, so that the copies always sum to the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from vitreous.errors import TracingError, VitreousError
from vitreous.models import VisionModel
from vitreous.tracing.intercept import OPERATIONS
from vitreous.tracing.memory import budget_bytes
from vitreous.tracing.rules import AttentionCall, weights

__all__ = [
    "Branches",
    "changed_weights",
    "explicit_contributions",
    "hook_middle",
    "refuse_without_middle",
]


class Branches:
    """Watches the two branches of one block for one forward; whoever made it removes its ``handles``."""

    def __init__(self, model: VisionModel, layer: int) -> None:
        self.view, self.layer = model, layer
        self._added: dict[str, Tensor] = {}
        self.handles = [self._hook(name, *model.branch(layer, name)) for name in ("attn", "mlp")]

    def _hook(self, name: str, module: nn.Module, gain: Tensor | None) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            added = (output if isinstance(output, Tensor) else output[0]).detach()
            self._added[name] = added if gain is None else gain.detach() * added

        return module.register_forward_hook(hook)

    def check(self, parts: Mapping[str, Tensor]) -> None:
        """Refuse a block whose ``input``, ``middle`` and ``output`` differ by something else than its branches."""
        refuse_without_middle(self.view, self.layer, parts)
        for name, start, end in (("attn", "resid_pre", "resid_mid"), ("mlp", "resid_mid", "resid_post")):
            before, after, added = parts[start], parts[end], self._added.get(name)
            size = 16 * torch.finfo(after.dtype).eps * torch.maximum(before.abs().max(), after.abs().max())
            if added is None or not (before + added - after).abs().max() <= size:
                raise TracingError(
                    f"{self.view.name}: block {self.layer} adds something else to its residual stream than attention "
                    f"and MLP ({self.view.describe_deviation(self.layer)}), so that what they add cannot be told"
                )


def hook_middle(model: VisionModel, layer: int, parts: dict[str, Tensor]) -> Any:
    """Note what lies between attention and MLP, before a user's own hook makes something else of it for the norm."""

    def hook(module: nn.Module, args: Any) -> None:
        parts["resid_mid"] = args[0].detach()

    return model.hook_point(layer, "norm2").register_forward_pre_hook(hook, prepend=True)


def refuse_without_middle(model: VisionModel, layer: int, parts: Mapping[str, Tensor]) -> None:
    """Refuse a block of which nobody saw what lies between attention and MLP."""
    if "resid_mid" not in parts:
        raise TracingError(f"{model.name}: block {layer} never runs its second norm; what enters it is not known")


def changed_weights(model: VisionModel, layer: int) -> TracingError:
    """Return the refusal of a block whose attention weights are seen before they become what they mix with."""
    return TracingError(
        f"{model.name}: block {layer} changes its attention weights after their softmax "
        f"({model.describe_deviation(layer)}), so that those that are seen are not those that mix"
    )


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
    plain = torch.autocast(tokens.device.type, enabled=False)
    model = model.shared_copy()
    with torch.inference_mode(False), torch.no_grad(), plain:
        every = torch.cat([torch.diag_embed(tokens.T).permute(2, 1, 0), tokens.clone()[None]])
        mode = _Carry(model)
        for each in range(layer, model.depth):
            with mode.inside(each):
                every = model.forward_block(each, every)
        with mode.inside(None):
            logits = model.forward_head(every)
    shares, truth = logits[:-1], logits[-1]
    error = (shares.sum(dim=0) - truth).abs().max()
    if not error <= 1e-2 * truth.abs().max() + 1e-4:
        raise TracingError(
            f"{model.name}: shares miss the logits by {float(error):.3g}; it adds something that is not recognised"
        )
    return shares


class _Carry(TorchFunctionMode):
    """Makes what runs inside it linear in all rows of the batch but the last."""

    def __init__(self, model: VisionModel) -> None:
        super().__init__()
        self.view = model
        self.layer: int | None = None
        self.waiting = False  # before attention only values are shares: their bias is spread when they are known
        self.attention: Tensor | None = None

    def inside(self, layer: int | None) -> _Carry:
        """Say that block ``layer`` (the head for ``None``) runs next."""
        self.layer, self.attention = layer, None
        self.waiting = self.view.operation_counts(layer).get("attention", 0) > 0
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

    def _layer_norm(
        self,
        func: Any,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
        *_: Any,
    ) -> Tensor:
        deviation = (input[-1].var(dim=-1, unbiased=False, keepdim=True) + eps).sqrt()
        out = (input - input.mean(dim=-1, keepdim=True)) / deviation
        return self._add(out if weight is None else out * weight, bias)

    def _rms_norm(
        self, func: Any, input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: Any = None
    ) -> Tensor:
        eps = torch.finfo(input.dtype).eps if eps is None else eps
        out = input / (input[-1].square().mean(dim=-1, keepdim=True) + eps).sqrt()
        scaled: Tensor = out if weight is None else out * weight
        return scaled

    def _attend(
        self,
        func: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if enable_gqa:
            repeats = query.shape[-3] // key.shape[-3]
            key, value = (x.repeat_interleave(repeats, dim=-3) for x in (key, value))
        attention = weights(query[-1:], key[-1:], AttentionCall(attn_mask, is_causal, scale), full=False)
        mixed: Tensor = attention @ self._values(value)
        return mixed

    def _multi_head(
        self,
        func: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        embed_dim_to_check: int,
        num_heads: int,
        in_proj_weight: Tensor,
        in_proj_bias: Tensor | None,
        bias_k: Tensor | None,
        bias_v: Tensor | None,
        add_zero_attn: bool,
        dropout_p: float,
        out_proj_weight: Tensor,
        out_proj_bias: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
        given = zip((query, key, value), in_proj_weight.chunk(3), biases, strict=True)
        parts = [self._linear(F.linear, x.transpose(0, 1), weight, bias) for x, weight, bias in given]
        q, k, v = (part.reshape(*part.shape[:2], num_heads, -1).transpose(1, 2) for part in parts)
        mixed = self._attend(None, q, k, v).transpose(1, 2).flatten(2)
        return self._linear(F.linear, mixed, out_proj_weight, out_proj_bias).transpose(0, 1), None

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
        if self.view.operation_counts(self.layer).get("gate", 0):
            return out.expand_as(x)
        return x * (out / x[-1:]).nan_to_num_(nan=0.5)  # 0 / 0

    def _relu(self, func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x * (x[-1:] > 0)

    def _constant(self, func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return func(x[-1:], *args, **kwargs)  # type: ignore[no-any-return]


_BY_KIND: dict[str, Callable[..., Any]] = {
    "linear": _Carry._linear,
    "attention": _Carry._attend,
    "softmax": _Carry._softmax,
    "matmul": _Carry._matmul,
    "norm": _Carry._layer_norm,
    "activation": _Carry._activation,
}
_HANDLERS: dict[Any, Callable[..., Any]] = {  # what is not like others of its kind
    F.multi_head_attention_forward: _Carry._multi_head,
    **dict.fromkeys((F.rms_norm, torch.rms_norm), _Carry._rms_norm),
    **dict.fromkeys((F.relu, torch.relu, Tensor.relu), _Carry._relu),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, Tensor.sigmoid), _Carry._constant),
    **dict.fromkeys((torch.norm, Tensor.norm, torch.linalg.vector_norm), _Carry._constant),
}
