"""What a pass records, patches and steers: decided once per pass, before it runs; and who records while it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import TracingError
from vitreous.models import VisionModel
from vitreous.tracing.attention import AttentionTap
from vitreous.tracing.records import GLOBAL_POINTS, Activation, ActivationCache, Block, Patch, Record
from vitreous.tracing.rules import GRADIENT, Composite
from vitreous.tracing.rules.base import upcast

_MODULE_POINTS = ("norm1", "attn", "norm2", "mlp")
_COMES_BY_AT = {"window_weights": "attn_weights", "pool_weights": "attn_weights"}
_INTERCEPTED_POINTS = {*_COMES_BY_AT, *GLOBAL_POINTS}
_COUNTED = ("attention", "norm", "activation", "gate")
"""The operations whose number adapters declare."""


class CompiledPass:
    """What a pass has to do at every place of a model; it holds nothing of the inputs.

    ``is_intercepted`` says whether operations have to be seen or changed at all. A pass that reads hook points alone
    runs the model as it is.
    """

    def __init__(
        self,
        model: VisionModel,
        records: Sequence[Record] = (),
        composite: Composite = GRADIENT,
        patches: Mapping[int, Patch] | None = None,
    ) -> None:
        self.model, self.composite = model, composite
        self.patches: Mapping[Any, Patch] = patches or {}
        self.rules = dict(composite.table)
        self.is_relevance = composite.propagates == "relevance"
        points = {record.point for record in records}
        self.has_biases = "biases" in points
        self.is_intercepted = bool(composite or self.patches or points & _INTERCEPTED_POINTS)
        self._records: defaultdict[tuple[str, int | None], list[Record]] = defaultdict(list)
        for record in records:
            point = _COMES_BY_AT.get(record.point, record.point)
            for layer in record.layers:
                self._records[point, None if record.point == "pool_weights" else layer].append(record)
        layers: list[int | None] = [*range(model.depth), None] if self.is_intercepted else []
        self.taps = {layer: AttentionTap(self, layer) for layer in layers}
        self.expected_counts = {layer: self._expected_counts(layer) for layer in layers}
        self.gated_layers = {layer for layer in layers if model.operation_counts(layer).get("gate", 0)}

    def at(self, point: str, layer: int | None) -> list[Record]:
        """Return the records of a hook point in a block, or in the head (``None``)."""
        return self._records.get((point, layer), [])

    def _expected_counts(self, layer: int | None) -> dict[str, int]:
        """How often each operation that is steered or recorded has to be seen in a block, or in the head (``None``)."""
        if layer is None and not self.model.has_known_head:
            return {}
        kinds = [kind for kind in self.composite.kinds if kind in _COUNTED]
        if not kinds and (self.at("attn_weights", layer) or self.at("block", layer)):
            kinds = ["attention"]
        declared = self.model.operation_counts(layer) if kinds else {}
        return {kind: declared.get(kind, 0) for kind in kinds}


class Recorder:
    """Records what comes by while a pass runs: at once, or with its gradient when the backward comes by.

    Several backwards may follow one forward, one for each target; ``cache`` is changed between them.
    """

    cache: ActivationCache

    def __init__(self, plan: CompiledPass) -> None:
        self.plan, self.model = plan, plan.model
        self.leaves: list[Tensor] = []
        """Patched weights whose gradient is recorded: the backward has to end there too."""
        self.parts: dict[str, Tensor] = {}
        """Of the block now running, for records of whole blocks."""
        self._added: dict[str, Tensor] | None = None
        """What attention and MLP add to the residual stream of this block, where it is not as its library built it."""

    @contextmanager
    def inside(self, layer: int) -> Iterator[None]:
        """Hook the modules of a block while it runs; one module may be several blocks."""
        with ExitStack() as stack:
            for handle in self._hook(layer):
                stack.callback(handle.remove)
            yield

    def _hook(self, layer: int) -> Iterator[Any]:
        for point in _MODULE_POINTS:
            if self.plan.at(point, layer):

                def hook(module: nn.Module, args: Any, output: Any, point: str = point) -> None:
                    self.note(point, layer, output if isinstance(output, Tensor) else output[0])

                yield self.model.hook_point(layer, point).register_forward_hook(hook)
        if self.plan.at("block", layer):
            # before a user's own hook makes something else of it for the norm
            yield self.model.hook_point(layer, "norm2").register_forward_pre_hook(self._note_middle, prepend=True)
            if not self.model.is_standard(layer):
                self._added = {}
                for name in ("attn", "mlp"):
                    module, gain = self.model.branch(layer, name)
                    yield module.register_forward_hook(partial(self._note_branch, name, gain))

    def _note_middle(self, module: nn.Module, args: Any) -> None:
        self.parts["resid_mid"] = args[0].detach()

    def _note_branch(self, name: str, gain: Tensor | None, module: nn.Module, args: Any, output: Any) -> None:
        added = (output if isinstance(output, Tensor) else output[0]).detach()
        assert self._added is not None
        self._added[name] = added if gain is None else gain.detach() * added

    def note(self, point: str, layer: int | None, value: Tensor) -> None:
        """Record an activation at a hook point."""
        for record in self.plan.at(point, layer):
            if record.grad:
                self._store_with_grad(record, layer, value)
            else:
                self.store(record, layer, value.detach())

    def start_block(self, layer: int, tokens: Tensor) -> None:
        """Record what enters a block."""
        self.note("resid_pre", layer, tokens)
        self.start_biases(layer, tokens)
        self.parts = {"resid_pre": tokens.detach()}

    def start_biases(self, layer: int, tokens: Tensor) -> None:
        """Start the sum of a block: one number for every token, and before them one for biases that belong to none."""
        for record in self.plan.at("biases", layer):
            self.cache.store(record, layer, tokens.new_zeros(len(tokens), 1 + tokens.shape[1]))

    def note_bias(self, layer: int, out: Tensor, bias: Tensor | None) -> None:
        """Sum what the biases of a block contribute, each where it is added."""
        records = self.plan.at("biases", layer)
        if bias is None or not records or not out.requires_grad:
            return

        def hook(grad: Tensor) -> None:
            for record in records:
                self.cache.add_bias(record, layer, self._in_own_precision(bias), self._in_own_precision(grad))

        out.register_hook(hook)  # type: ignore[no-untyped-call]

    def store(self, record: Record, layer: int | None, value: Tensor, grad: Tensor | None = None) -> None:
        """Reduce an activation and keep the result."""
        layer = layer or 0
        value = self._laid_out(record.point, value, layer)
        slope = None if grad is None or not record.grad else self._laid_out(record.point, grad, layer)
        self.cache.store(record, layer, record.reduce(Activation(value, slope, self.model, layer)))

    def _store_with_grad(self, record: Record, layer: int | None, value: Tensor) -> None:
        if not value.requires_grad:
            raise TracingError(f"{record.point} of layer {layer} does not reach the target: it has no gradient")
        detached = value.detach()  # a hook that knew the value itself would be a circle, and outlive the pass
        version = detached._version

        def hook(grad: Tensor) -> None:
            if detached._version != version:
                raise TracingError(f"{record.point} of layer {layer} was changed in place after it was recorded")
            self.store(record, layer, detached, grad)

        value.register_hook(hook)  # type: ignore[no-untyped-call]

    def _laid_out(self, point: str, value: Tensor, layer: int) -> Tensor:
        """Lay out a grid ``[B, h, w, D]`` as tokens, and weights inside windows window by window."""
        if point in _MODULE_POINTS and value.ndim == 4:
            value = value.flatten(1, 2)
        windows = self.model.windows(layer) if point == "window_weights" else None
        return self._in_own_precision(value if windows is None else windows.apart(value))

    def _in_own_precision(self, value: Tensor) -> Tensor:
        """Show a float64 model in float64, whatever it casts to inside."""
        return value.double() if self.model.dtype == torch.float64 else value

    # -- whole blocks ----------------------------------------------------------------------------------

    def note_attention(self, layer: int | None, attention: Tensor, values: Tensor) -> None:
        """Note attention that is part of the graph, for records of whole blocks."""
        records = self.plan.at("block", layer)
        if not records:
            return
        parts = self.parts
        parts |= {"attn_weights": attention.detach(), "attn_values": values.detach()}
        for record in records:
            if record.grad and not attention.requires_grad:
                raise TracingError(f"attention of layer {layer} does not reach the target: it has no gradient")
            if record.grad:
                attention.register_hook(  # type: ignore[no-untyped-call]
                    lambda grad, record=record: self.store_block(record, layer, parts, grad)
                )

    def store_block(self, record: Record, layer: int | None, parts: Mapping[str, Tensor], grad: Tensor | None) -> None:
        """Reduce a whole block and keep the result."""
        layer = layer or 0
        require_middle(self.model, layer, parts)
        values = {name: self._in_own_precision(part) for name, part in parts.items()}
        weights = values.pop("attn_weights")
        others = {name: upcast(value) for name, value in values.items()}
        self.cache.store(record, layer, record.reduce(Block(weights, grad, self.model, layer, **others)))

    def finish_block(self, layer: int, tokens: Tensor) -> None:
        """Record what leaves a block."""
        self.note("resid_post", layer, tokens)
        self.parts["resid_post"] = tokens.detach()
        if self._added is not None:
            check_branches(self.model, layer, self.parts, self._added)
        if "attn_weights" in self.parts:
            for record in self.plan.at("block", layer):
                if not record.grad:
                    self.store_block(record, layer, self.parts, None)
        self.parts, self._added = {}, None


def check_branches(model: VisionModel, layer: int, parts: Mapping[str, Tensor], branches: Mapping[str, Tensor]) -> None:
    """Refuse a block whose residual stream changes by something else than its branches, attention and MLP.

    Blocks of a known class add the two and nothing else. A hook on a block, or a forward of its own, may do otherwise,
    and what methods say of the stream would then be wrong. So it is compared where a block is not as its library built
    it.
    """
    require_middle(model, layer, parts)
    for name, start, end in (("attn", "resid_pre", "resid_mid"), ("mlp", "resid_mid", "resid_post")):
        before, after, added = parts[start], parts[end], branches.get(name)
        size = 16 * torch.finfo(after.dtype).eps * torch.maximum(before.abs().max(), after.abs().max())
        if added is None or not (before + added - after).abs().max() <= size:
            raise TracingError(
                f"{model.name}: block {layer} adds something else to its residual stream than attention "
                f"and MLP ({model.describe_deviation(layer)}), so that what they add cannot be told"
            )


def require_middle(model: VisionModel, layer: int, parts: Mapping[str, Tensor]) -> None:
    """Refuse a block where nobody saw what lies between attention and MLP."""
    if "resid_mid" not in parts:
        raise TracingError(f"{model.name}: block {layer} never runs its second norm; what enters it is not known")
