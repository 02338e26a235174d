"""See and steer every functional call of an unmodified model, through torch's own override protocol.

``Observer`` is a ``TorchFunctionMode``: inside its ``with`` block every torch function call of the forward arrives here
first. It hands out the attention, lets rules take the place of the operations they are for, and lets everything else
through. The model is a twin whose weights are constants, so that no weight gradient is ever computed or accumulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from vitreous.errors import TracingError
from vitreous.models import VisionModel
from vitreous.tracing.decompose import Branches, changed_weights, hook_middle, refuse_without_middle
from vitreous.tracing.intercept import CASTS, OPERATIONS, gives_back, is_carrier, tensors_in, wide, written_out
from vitreous.tracing.records import GLOBAL_POINTS, Activation, ActivationCache, Block, Patch, Record, upcast
from vitreous.tracing.rules import Attend, AttentionCall, AttentionRule, Call, Composite, weights

__all__ = ["Observer"]

_INSIDE = ("norm1", "attn", "norm2", "mlp")
_WEIGHED = ("pool_weights", "window_weights", *GLOBAL_POINTS)
_LAYER_NORMS = (F.layer_norm, torch.layer_norm)


class Observer(TorchFunctionMode):
    """Watches one forward; what it is asked to keep goes to ``self.trace``, which may be changed between backwards."""

    def __init__(
        self,
        model: VisionModel,
        keeps: Sequence[Record],
        rules: Composite,
        cache: ActivationCache | None,
        changes: Mapping[int, Patch] | None = None,
    ) -> None:
        super().__init__()
        self.view, self.rules = model, rules
        if cache is not None:
            self.trace = cache
        self.changes = changes or {}
        self.leaves: list[Tensor] = []
        """Changed weights whose gradient is wanted: the backward must be told of them."""
        self.records = keeps
        self.layer: int | None = None  # the block now running; None inside embed
        self.pooling = False
        self.seen: Counter[str] = Counter()
        self._attention: Tensor | None = None
        self._mixing: Tensor | None = None  # the same after casts and dropout: what values must be multiplied with
        self._parts: dict[str, Tensor] = {}  # of the block now running, for those who want it whole
        self._branches: Branches | None = None  # what attention and MLP of that block add, where that is compared
        self._biases = any(keep.point == "biases" for keep in keeps)
        self._steered = dict(rules.table)
        self._strict = rules.propagates == "relevance"
        self._begun = False  # whether a layer has run

    @property
    def needed(self) -> bool:
        """Whether calls must be seen or changed: to steer, or to show attention or change it."""
        return bool(self.rules) or bool(self.changes) or any(keep.point in _WEIGHED for keep in self.records)

    # -- places the runner tells about -----------------------------------------------------------------

    @contextmanager
    def inside(self, layer: int | None) -> Iterator[None]:
        """Say that block ``layer`` (the head for ``None``) runs now; compare what was seen with what is declared."""
        self.layer, self.pooling = layer, layer is None
        self.seen.clear()
        handles = [] if layer is None else self._hook(layer)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self.layer, self.pooling, self._attention, self._mixing = None, False, None, None
        self._check(layer)

    def note(self, point: str, layer: int, value: Tensor) -> None:
        """Keep what was asked for at this place: now, or with its gradient when the backward comes by."""
        for keep in self._wanted(point, layer):
            if keep.grad:
                self._when_gradient(keep, layer, value)
            else:
                self._store(keep, layer, value.detach())
        if point in ("resid_pre", "resid_post"):  # what leaves a block enters the next one, or the head
            place = layer + (point == "resid_post")
            for keep in self._wanted("biases", place):
                self.trace.start_bias_sum(keep, place, value.detach())
        if point == "resid_pre":
            self._parts = {"resid_pre": value.detach()}
        elif point == "resid_post":
            self._parts["resid_post"] = value.detach()
            if self._branches is not None:
                self._branches.check(self._parts)
            if "attn_weights" in self._parts:
                for keep in self._wanted("block", layer):
                    if not keep.grad:
                        self._store_block(keep, layer, self._parts, None)
            self._parts, self._branches = {}, None

    def _store(self, keep: Record, layer: int, value: Tensor, gradient: Tensor | None = None) -> None:
        slope = None if gradient is None or not keep.grad else self._seen(keep.point, gradient, layer)
        activation = Activation(self._seen(keep.point, value, layer), slope, self.view, layer)
        self.trace.store(keep, layer, keep.reduce(activation))

    def _store_block(self, keep: Record, layer: int, parts: dict[str, Tensor], gradient: Tensor | None) -> None:
        refuse_without_middle(self.view, layer, parts)
        rest = {name: upcast(self._seen("block", part)) for name, part in parts.items() if name != "attn_weights"}
        weights = self._seen("block", parts["attn_weights"])
        self.trace.store(keep, layer, keep.reduce(Block(weights, gradient, self.view, layer, **rest)))

    def _when_gradient(self, keep: Record, layer: int, value: Tensor) -> None:
        if not value.requires_grad:
            raise TracingError(f"{keep.point} of layer {layer} does not reach the target: it has no gradient")
        kept = value.detach()  # a hook that knew the value itself would be a circle, and outlive the pass
        version = kept._version

        def hook(gradient: Tensor) -> None:
            if kept._version != version:
                raise TracingError(f"{keep.point} of layer {layer} was changed in place after it was recorded")
            self._store(keep, layer, kept, gradient)

        value.register_hook(hook)  # type: ignore[no-untyped-call]

    def _seen(self, point: str, value: Tensor, layer: int = 0) -> Tensor:
        """Lay out a grid ``[B, h, w, D]`` as tokens; see a float64 model in float64, whatever it casts to inside."""
        if point in _INSIDE and value.ndim == 4:
            value = value.flatten(1, 2)
        if point == "window_weights" and (windows := self.view.windows(layer)) is not None:
            value = windows.apart(value)
        return value.double() if self.view.dtype == torch.float64 else value

    def _wanted(self, point: str, layer: int) -> list[Record]:
        points = ("attn_weights", "window_weights") if point == "attn_weights" else (point,)
        return [keep for keep in self.records if keep.point in points and layer in keep.layers]

    def _hook(self, layer: int) -> list[Any]:
        handles = []
        for point in _INSIDE:
            if self._wanted(point, layer):

                def hook(module: nn.Module, args: Any, output: Any, point: str = point) -> None:
                    self.note(point, layer, output if isinstance(output, Tensor) else output[0])

                handles.append(self.view.hook_point(layer, point).register_forward_hook(hook))
        if self._wanted("block", layer):
            handles.append(hook_middle(self.view, layer, self._parts))
            if not self.view.is_standard(layer):
                self._branches = Branches(self.view, layer)
                handles += self._branches.handles
        return handles

    def _check(self, layer: int | None) -> None:
        """Hold the operations that someone asked for against those that the adapter declares."""
        if layer is None and not self.view.has_known_head:
            return
        declared = self.view.operation_counts(layer)
        kinds = [kind for kind in self.rules.kinds if kind in _COUNTED]
        points = ("pool_weights",) if layer is None else ("attn_weights", "block")
        if not kinds and any(self._wanted(point, layer or 0) for point in points):
            kinds = ["attention"]
        place = "the head" if layer is None else f"block {layer}"
        for kind in kinds:
            seen, expected = self.seen[kind], declared.get(kind, 0)
            if seen != expected:
                raise TracingError(
                    f"{self.view.name}: saw {seen} {kind} calls in {place}, expected {expected}; "
                    "the model computes it in a way that is not recognised"
                )

    # -- the override ----------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        of_attention = self._mixing is not None and bool(args) and args[0] is self._mixing
        if self._strict:  # relevance is walked in float64, and so is the forward before it
            args, kwargs = wide(args), {name: wide(each) for name, each in kwargs.items()}
        kind = OPERATIONS.get(func)
        if kind is None:
            out = func(*args, **kwargs) if not self._strict else self._carried(func, args, kwargs)
            if of_attention and gives_back(func):
                self._mixing = out
            return out
        before = self.layer is None and not self.pooling
        if kind in ("linear", "conv") and self._embeds(before):
            kind = "embedding"
        if before:
            return self._steer(kind, func, args, kwargs)
        if kind == "attention":
            attend = self._multi_head if func is F.multi_head_attention_forward else self._attend
            return attend(func, *args, **kwargs)
        if kind == "softmax":
            return self._softmax(func, args, kwargs)
        if kind == "matmul":
            return self._matmul(func, args, kwargs, of_attention)
        if kind == "activation" and self.view.operation_counts(self.layer).get("gate", 0) and func in (F.gelu, F.silu):
            kind = "gate"
        return self._steer(kind, func, args, kwargs)

    def _embeds(self, before: bool) -> bool:
        """Whether a layer makes the embedding: each before the first block, or the very first of the network."""
        if self.view.has_patch_embedding:
            return before
        first, self._begun = not self._begun, True
        return first

    def _steer(self, kind: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation, or the rule that stands for it, and see what its bias does."""
        rule = self._steered.get(kind)
        if rule is None:
            out = func(*args, **kwargs) if not self._strict else self._carried(func, args, kwargs)
        else:
            self.seen[kind] += 1
            out = rule(Call(kind, func, args, kwargs, self.view, self.layer))
        if self._biases and (kind == "linear" or func in _LAYER_NORMS):
            place = 2 if kind == "linear" else 3
            self._biased(out, kwargs.get("bias", args[place] if len(args) > place else None))
        return out

    def _carried(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Let a function through that only moves relevance; any other would turn it into a gradient.

        What is in float64 stays so, whatever the model casts to.
        """
        out = func(*args, **kwargs)
        if getattr(func, "__name__", "") in CASTS and isinstance(out, Tensor) and out.is_floating_point():
            return args[0]
        flows = any(isinstance(each, Tensor) and each.requires_grad for each in (out, *tensors_in(out)))
        if flows and not is_carrier(func):
            place = "the head" if self.pooling else "the embedding" if self.layer is None else f"block {self.layer}"
            name = getattr(func, "__name__", str(func))
            raise TracingError(f"{self.view.name}: no rule says how relevance passes {name} in {place}")
        return out

    # -- attention -------------------------------------------------------------------------------------

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
        """``scaled_dot_product_attention``: left alone unless someone asked, or a rule is there for it."""
        self.seen["attention"] += 1
        point, layer = ("pool_weights", 0) if self.pooling else ("attn_weights", self.layer or 0)
        keeps = self._wanted(point, layer)
        values, blocks = ([] if self.pooling else self._wanted(name, layer) for name in ("attn_values", "block"))
        rule = self._steered.get("attention")
        inner = rule is None and ("softmax" in self._steered or "matmul" in self._steered)
        flows = torch.is_grad_enabled() and value.requires_grad
        change = None if self.layer is None else self.changes.get(self.layer)
        if not (change or keeps or values or blocks or (flows and (rule is not None or inner or self._strict))):
            more = {"enable_gqa": True} if enable_gqa else {}
            return func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **more)  # type: ignore[no-any-return]
        if enable_gqa:
            repeats = query.shape[-3] // key.shape[-3]
            key, value = (x.repeat_interleave(repeats, dim=-3) for x in (key, value))
        call = AttentionCall(attn_mask, is_causal, scale)
        if change is not None:
            attention = self._changed(change, weights(query, key, call), layer)
            self.note("attn_values", layer, value)
            self._note_block(layer, attention, value)
            return attention.to(value.dtype) @ value
        if flows and inner:
            self.seen["attention"] -= 1  # its softmax is counted
            return self._attend_by_parts(query, key, value, call)
        if not flows:
            return self._attend_forward(query, key, value, call, keeps, values, layer)
        if rule is None and self._strict:
            raise TracingError(f"{self.view.name}: no rule says how relevance passes attention in block {self.layer}")
        if rule is not None:
            if not isinstance(rule, AttentionRule):
                raise TracingError(f"the rule {type(rule).__name__} is none for attention as a whole")
            call.rule = rule
            query, key = (x if rule.through else x.detach() for x in (query, key))
        call.needs_gradient = not self._strict and any(keep.grad for keep in [*keeps, *blocks])
        parts = self._parts  # complete when the backward comes by

        def watch(attention: Tensor, gradient: Tensor | None, v: Tensor, grad_v: Tensor) -> None:
            for keep in keeps:
                self._store(keep, layer, attention, gradient)
            for keep in values:
                self._store(keep, layer, v, grad_v)
            for keep in blocks:
                whole = {**parts, "attn_weights": attention, "attn_values": v}
                self._store_block(keep, layer, whole, gradient if keep.grad else None)

        call.watch = watch if keeps or values or blocks else None
        return Attend.apply(query, key, value, call)  # type: ignore[no-any-return]

    def _changed(self, change: Patch, attention: Tensor, layer: int) -> Tensor:
        """Return other attention weights, a leaf of the graph, and note them in the place of the model's own."""
        changed = change(attention.detach()).detach()
        if changed.shape != attention.shape:
            raise TracingError(f"attention of layer {layer} is {list(attention.shape)}, not {list(changed.shape)}")
        if torch.is_grad_enabled() and any(keep.grad for keep in self._wanted("attn_weights", layer)):
            self.leaves.append(changed.requires_grad_())
        self.note("attn_weights", layer, changed)
        return changed

    def _attend_by_parts(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Attention as the two products and the softmax that it is, each under its own rule."""
        scale = call.scale if call.scale is not None else query.shape[-1] ** -0.5
        scores = self._matmul(torch.matmul, (query, key.transpose(-2, -1)), {})
        scores = call.masked(self._steer("product", torch.mul, (scores, scale), {}))
        attention = self._softmax(torch.softmax, (scores, -1), {})
        return self._matmul(torch.matmul, (attention.to(value.dtype), value), {})

    def _attend_forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: AttentionCall,
        keeps: Sequence[Record],
        values: Sequence[Record],
        layer: int,
    ) -> Tensor:
        attention = weights(query, key, call)
        for keep, seen in [(keep, attention) for keep in keeps] + [(keep, value) for keep in values]:
            if keep.grad:
                raise TracingError(f"{keep.point} of layer {layer} has no gradient in this pass")
            self._store(keep, layer, seen)
        if not self.pooling and self._wanted("block", layer):
            self._parts |= {"attn_weights": attention, "attn_values": value.detach()}
        return attention.to(value.dtype) @ value

    def _multi_head(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        def linear(*given: Any) -> Any:
            return self._steer("linear", F.linear, given, {})

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self._attend(F.scaled_dot_product_attention, q, k, v)

        return written_out(self.view.name, linear, attend, *args, **kwargs)

    def _softmax(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        """A softmax of scores, written out by the model; others (over classes, say) are left alone."""
        scores = args[0] if args else kwargs["input"]
        if scores.ndim < 3:
            return self._steer("softmax", func, args, kwargs) if self._strict else func(*args, **kwargs)  # type: ignore[no-any-return]
        self.seen["attention"] += 1
        rule = self._steered.get("softmax")
        call = Call("softmax", func, args, kwargs, self.view, self.layer)
        attention: Tensor = call.plain() if rule is None else rule(call)
        if self.layer is not None and self.layer in self.changes:
            attention = self._changed(self.changes[self.layer], attention, self.layer)
        else:
            self.note(
                "pool_weights" if self.pooling else "attn_weights", 0 if self.pooling else self.layer or 0, attention
            )
        self._attention = self._mixing = attention
        return attention

    def _matmul(self, func: Any, args: Any, kwargs: Any, of_attention: bool = True) -> Tensor:
        """The product that follows a written-out attention, perhaps cast or dropped out, shows the values."""
        left, right = args[:2]
        mixes = self._attention is not None and left.shape == self._attention.shape
        if mixes and self.layer is not None:
            wanted = self.changes or self._wanted("attn_weights", self.layer) or self._wanted("block", self.layer)
            if wanted and not of_attention:
                raise changed_weights(self.view, self.layer)
            self.note("attn_values", self.layer, right)
            self._note_block(self.layer, self._attention, right)
            self._attention = self._mixing = None
        return self._steer("matmul", func, args, kwargs)  # type: ignore[no-any-return]

    def _note_block(self, layer: int, attention: Any, values: Tensor) -> None:
        keeps = self._wanted("block", layer)
        if not keeps:
            return
        parts = self._parts
        parts |= {"attn_weights": attention.detach(), "attn_values": values.detach()}
        for keep in keeps:
            if keep.grad and not attention.requires_grad:
                raise TracingError(f"attention of layer {layer} does not reach the target: it has no gradient")
            if keep.grad:
                attention.register_hook(lambda gradient, keep=keep: self._store_block(keep, layer, parts, gradient))

    def _biased(self, out: Tensor, bias: Tensor | None) -> None:
        """Sum what the biases of a block do, each where it is added."""
        layer = self.view.depth if self.pooling else self.layer or 0
        keeps = self._wanted("biases", layer)
        if bias is not None and keeps and out.requires_grad:

            def hook(gradient: Tensor) -> None:
                for keep in keeps:
                    self.trace.add_bias(keep, layer, self._seen("biases", bias), self._seen("biases", gradient))

            out.register_hook(hook)  # type: ignore[no-untyped-call]


_COUNTED = ("attention", "norm", "activation", "gate")
"""What adapters declare how often it happens."""
