"""See and steer every functional call of an unmodified model, through torch's own override protocol.

``OpInterceptor`` is a ``TorchFunctionMode``: inside its ``with`` block every torch function call of the forward arrives
here first. It hands attention to the layer's tap, lets rules take the place of the operations they are for, counts what
is steered, and lets everything else through. The model is a shared copy whose weights are constants, so that no weight
gradient is ever computed or accumulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from vitreous.errors import TracingError
from vitreous.tracing.attention import AttentionCall, AttentionTap, multi_head_attention
from vitreous.tracing.plan import CompiledPass, Recorder
from vitreous.tracing.rules import Call
from vitreous.tracing.rules.base import CASTS, LAYER_NORMS, OPERATIONS, is_carrier, keeps_values, to_float64

_GATED = (F.gelu, F.silu)


class OpInterceptor(TorchFunctionMode):
    """The functional calls of one forward. Nothing is decided here that the plan could decide."""

    def __init__(self, plan: CompiledPass, recorder: Recorder) -> None:
        super().__init__()
        self.plan, self.model, self.recorder = plan, plan.model, recorder
        self.layer: int | None = None
        self.tap: AttentionTap | None = None  # None in the embedding
        self._counts: Counter[str] = Counter()
        self._has_gate = False
        self._written: Tensor | None = None  # attention that the model writes out, until it meets its values
        self._mixing: Tensor | None = None  # the same after casts and dropout: what values must be multiplied with
        self._has_begun = False

    @property
    def place(self) -> str:
        """Where the forward is, in words."""
        if self.tap is None:
            return "the embedding"
        return "the head" if self.layer is None else f"block {self.layer}"

    @contextmanager
    def inside(self, layer: int | None) -> Iterator[None]:
        """Say that a block (the head for ``None``) runs now; compare what was seen with what is declared."""
        self.layer, self.tap = layer, self.plan.taps[layer]
        self._has_gate = layer in self.plan.gated_layers
        self._counts.clear()
        place = self.place
        try:
            yield
        finally:
            self.layer = self.tap = self._written = self._mixing = None
        for kind, expected in self.plan.expected_counts[layer].items():
            if self._counts[kind] != expected:
                raise TracingError(
                    f"{self.model.name}: saw {self._counts[kind]} {kind} calls in {place}, expected {expected}; "
                    "the model computes it in a way that is not recognised"
                )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_mixing = bool(args) and args[0] is self._mixing
        if self.plan.is_relevance:  # relevance is walked in float64, and so is the forward before it
            args, kwargs = to_float64(args), {name: to_float64(value) for name, value in kwargs.items()}
        kind = OPERATIONS.get(func)
        if kind is not None:
            return self._operation(kind, func, args, kwargs, is_mixing)
        out = self._plain(func, args, kwargs)
        if is_mixing and keeps_values(func):
            self._mixing = out
        return out

    def _operation(self, kind: str, func: Any, args: Any, kwargs: Any, is_mixing: bool) -> Any:
        if kind in ("linear", "conv") and self._embeds():
            kind = "embedding"
        if self.tap is None:  # before the first block attention is nobody's, and counts nowhere
            return self.steer(kind, func, args, kwargs)
        if kind == "matmul":
            return self.matmul(func, args, kwargs, is_mixing)
        handler = _HANDLERS.get(kind)
        return self.steer(kind, func, args, kwargs) if handler is None else handler(self, func, args, kwargs)

    def _embeds(self) -> bool:
        """Whether a layer makes the embedding: each before the first block, or the very first of the network."""
        if self.model.has_patch_embedding:
            return self.tap is None
        is_first, self._has_begun = not self._has_begun, True
        return is_first

    def steer(self, kind: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation, or the rule that stands for it, and see what its bias does."""
        rule = self.plan.rules.get(kind)
        if rule is None:
            out = self._plain(func, args, kwargs)
        else:
            self._counts[kind] += 1
            out = rule(Call(kind, func, args, kwargs, self.model, self.layer))
        if self.plan.has_biases and (kind == "linear" or func in LAYER_NORMS):
            index = 2 if kind == "linear" else 3
            layer = self.layer if self.layer is not None else 0 if self.tap is None else self.model.depth
            self.recorder.note_bias(layer, out, kwargs.get("bias", args[index] if len(args) > index else None))
        return out

    def _plain(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Let a function through; in a walk of relevance only one that moves it, as any other makes it a gradient.

        There, what is in float64 stays so, whatever the model casts to.
        """
        out = func(*args, **kwargs)
        if not self.plan.is_relevance:
            return out
        if getattr(func, "__name__", "") in CASTS and isinstance(out, Tensor) and out.is_floating_point():
            return args[0]
        results = (out, *(out if isinstance(out, list | tuple) else ()))
        if not is_carrier(func) and any(isinstance(value, Tensor) and value.requires_grad for value in results):
            name = getattr(func, "__name__", str(func))
            raise TracingError(f"{self.model.name}: no rule says how relevance passes {name} in {self.place}")
        return out

    def _activation(self, func: Any, args: Any, kwargs: Any) -> Any:
        return self.steer("gate" if self._has_gate and func in _GATED else "activation", func, args, kwargs)

    # -- attention -------------------------------------------------------------------------------------

    def _attention(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is not F.multi_head_attention_forward:
            return self._attend(func, args, kwargs)

        def linear(*args: Any) -> Any:
            return self.steer("linear", F.linear, args, {})

        def attend(*args: Any) -> Any:
            return self._attend(F.scaled_dot_product_attention, args, {})

        return multi_head_attention(self.model.name, linear, attend, *args, **kwargs)

    def _attend(self, func: Any, args: Any, kwargs: Any) -> Any:
        tap = self.tap
        assert tap is not None
        strategy = None
        if tap.forward or tap.backward:
            q, k, v, call = AttentionCall.bind(*args, **kwargs)
            strategy = tap.backward if torch.is_grad_enabled() and v.requires_grad else tap.forward
        if strategy is None or not tap.by_parts or strategy != tap.backward:  # by parts, its softmax is counted
            self._counts["attention"] += 1
        return func(*args, **kwargs) if strategy is None else strategy(tap, self, q, k, v, call)

    def softmax(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A softmax of scores is attention that the model writes out; others (over classes, say) are left alone."""
        scores = args[0] if args else kwargs["input"]
        if scores.ndim < 3:
            return self.steer("softmax", func, args, kwargs) if self.plan.is_relevance else func(*args, **kwargs)
        tap = self.tap
        assert tap is not None
        self._counts["attention"] += 1
        rule = self.plan.rules.get("softmax")
        call = Call("softmax", func, args, kwargs, self.model, self.layer)
        attention = call.run() if rule is None else rule(call)
        if tap.patch:
            attention = tap.patched(self, attention)
        else:
            self.recorder.note("attn_weights", tap.layer, attention)
        self._written = self._mixing = attention
        return attention

    def matmul(self, func: Any, args: Any, kwargs: Any, is_mixing: bool = True) -> Any:
        """The product that follows a written-out attention, perhaps cast or dropped out, shows the values."""
        left, right = args[:2]
        if self.layer is not None and self._written is not None and left.shape == self._written.shape:
            tap = self.plan.taps[self.layer]
            if not is_mixing and (self.plan.patches or tap.weights or tap.blocks):
                raise TracingError(
                    f"{self.model.name}: {self.place} changes its attention weights after their softmax "
                    f"({self.model.describe_deviation(self.layer)}), so that those that are seen are not those that mix"
                )
            self.recorder.note("attn_values", self.layer, right)
            self.recorder.note_attention(self.layer, self._written, right)
            self._written = self._mixing = None
        return self.steer("matmul", func, args, kwargs)


_HANDLERS: dict[str, Callable[[OpInterceptor, Any, Any, Any], Any]] = {
    "attention": OpInterceptor._attention,
    "softmax": OpInterceptor.softmax,
    "activation": OpInterceptor._activation,
}
