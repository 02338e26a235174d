"""Running passes: each record answered once, gradients only for what needs them, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError, TracingError
from vitreous.models import VisionModel
from vitreous.models.shared_copy import gap
from vitreous.models.structure import merged
from vitreous.tracing.intercept import OpInterceptor
from vitreous.tracing.plan import CompiledPass, Recorder
from vitreous.tracing.records import GLOBAL_POINTS, ActivationCache, Pass, Patch, Record
from vitreous.tracing.rules import GRADIENT, Composite
from vitreous.tracing.targets import Target


def merge(passes: Iterable[Pass]) -> list[Pass]:
    """Return the fewest passes that answer all of these: one per composite, equal records once.

    Composites change gradients only, so a pass without a backward rides along with the first one that has one; but not
    with one of relevance, whose values are in float64.
    """
    passes = list(passes)
    composites = list(dict.fromkeys(pass_.composite for pass_ in passes if pass_.backward))
    host = next((composite for composite in composites if composite.propagates != "relevance"), GRADIENT)
    groups: dict[Composite, list[Record]] = {composite: [] for composite in composites}
    for pass_ in passes:
        groups.setdefault(pass_.composite if pass_.backward else host, []).extend(pass_.records)
    return [Pass(_union(records), composite) for composite, records in groups.items()]


def _union(records: Iterable[Record]) -> tuple[Record, ...]:
    """Return records of different keys, each with all layers that any of its kind has."""
    layers: dict[Any, set[int]] = {}
    firsts: dict[Any, Record] = {}
    for record in records:
        firsts.setdefault(record.key, record)
        layers.setdefault(record.key, set()).update(record.layers)
    return tuple(replace(record, layers=tuple(sorted(layers[key]))) for key, record in firsts.items())


def run_for_targets(
    model: VisionModel, inputs: Tensor, pass_: Pass, targets: Sequence[Target] | Callable[[Tensor], Sequence[Target]]
) -> list[ActivationCache]:
    """Run one forward, and one backward for each target; targets may be chosen by the logits of that forward.

    Blocks below the lowest one that needs a gradient run without a graph; the backward ends there.
    """
    model.check_inputs(inputs)
    model.verify(inputs)
    model, pass_ = model.shared_copy(), pass_.resolve(model)
    _refuse_without_attention(model, pass_)
    forward = ActivationCache(model, inputs)  # what needs no gradient is recorded here, once for all targets
    plan = CompiledPass(model, pass_.records, pass_.composite, dict(pass_.patches))
    recorder = Recorder(plan)
    recorder.cache = forward
    interceptor = OpInterceptor(plan, recorder) if plan.is_intercepted else None

    def intercepted(layer: int | None) -> AbstractContextManager[None]:
        return nullcontext() if interceptor is None else interceptor.inside(layer)

    own_precision = torch.autocast(inputs.device.type, enabled=False)  # whatever surrounds the call
    with torch.inference_mode(False), own_precision, torch.set_grad_enabled(pass_.backward):
        inputs = inputs.clone() if inputs.is_inference() else inputs.detach()
        pixels, first = inputs.double() if plan.is_relevance else inputs, pass_.first(model.depth)
        root: Tensor | None = None  # where the backward ends
        with _adapters_merged(plan) as changed, interceptor or nullcontext():
            if pass_.backward and first < 0:
                pixels = root = pixels.requires_grad_()
                recorder.note("pixels", 0, pixels)
            with torch.set_grad_enabled(root is not None):
                tokens = model.embed(pixels)
            for layer in range(model.depth):
                if layer == first:
                    tokens = root = tokens.detach().requires_grad_()
                with torch.set_grad_enabled(root is not None):
                    recorder.start_block(layer, tokens)
                    with recorder.inside(layer), intercepted(layer):
                        tokens = model.forward_block(layer, tokens)
                    recorder.finish_block(layer, tokens)
            recorder.start_biases(model.depth, tokens)
            if pass_.backward and root is None:  # only the head needs a gradient
                tokens = root = tokens.detach().requires_grad_()
            with torch.set_grad_enabled(root is not None), intercepted(None):
                logits = model.forward_head(tokens)
        if changed:
            _refuse_other_logits(model, inputs, logits)
        forward.logits = logits.detach().to(model.dtype) if plan.is_relevance else logits.detach()
        refuse_not_finite(model, forward.logits)
        chosen = targets(forward.logits) if callable(targets) else targets
        caches = [forward.copy() for _ in chosen]
        if root is not None:
            for target, recorder.cache in zip(chosen, caches, strict=True):
                score = _slope_times_logits(target, logits) if pass_.composite.scored else target.score(logits)
                _backward(model, score, (root, *recorder.leaves), keep_graph=recorder.cache is not caches[-1])
    for cache, record in product(caches, pass_.records):
        cache[record]  # an empty answer is an error here and not a strange picture later
    return caches


def _backward(model: VisionModel, score: Tensor, ends: Sequence[Tensor], keep_graph: bool) -> None:
    if not score.requires_grad:
        raise TracingError(f"{model.name}: the target does not depend on the tokens")
    torch.autograd.grad(score.sum(), ends, retain_graph=keep_graph)


def _slope_times_logits(target: Target, logits: Tensor) -> Tensor:
    """Return something whose slope at each logit is the slope of the target's score times that logit."""
    detached = logits.detach().requires_grad_()
    score = target.score(detached.clone())  # a function of the user's own may write into what it gets
    if not score.requires_grad:
        return score
    (slope,) = torch.autograd.grad(score.sum(), detached)
    contributions = torch.where(slope == 0, 0.0, slope * logits.detach())  # a class shut out has minus infinity
    return (logits * contributions).sum(dim=1)


def _adapters_merged(plan: CompiledPass) -> AbstractContextManager[list[Any]]:
    """Merge adapters where it matters which layers a linear map is made of: to relevance, and to records of biases."""
    model = plan.model
    if not model.deviations or not (plan.is_relevance or plan.has_biases):
        return nullcontext([])
    return merged(model.module, model.deviations)


def _refuse_other_logits(model: VisionModel, inputs: Tensor, logits: Tensor) -> None:
    """Refuse a model that says something else once its adapters are merged: it reads a layer instead of running it."""
    with torch.no_grad():
        expected = model.forward_head(model.forward_blocks(model.embed(inputs)))
    off, is_different = gap(logits.detach().to(expected.dtype), expected)
    if is_different:
        raise TracingError(
            f"{model.name}: with its adapters and hooks merged into its layers logits differ by {off:.1e}; merge them "
            "before explaining"
        )


def refuse_not_finite(model: VisionModel, logits: Tensor) -> None:
    """Refuse logits that are not numbers; a class may be shut out with minus infinity."""
    bad = logits.isnan() | (logits == torch.inf)
    if bad.any():
        rows = int(bad.any(dim=1).sum())
        raise ModelError(f"{model.name} gives logits that are not finite for {rows} of {len(logits)} images")


def _refuse_without_attention(model: VisionModel, pass_: Pass) -> None:
    points = {record.point for record in pass_.records}
    if model.attention != "global" and not points.isdisjoint(GLOBAL_POINTS):
        what = {"windowed": "attends inside windows", "none": "has no attention"}[model.attention]
        raise ModelError(f"{model.name} {what}: a method that follows attention between all tokens does not apply")
    if model.attention != "windowed" and "window_weights" in points:
        raise ModelError(f"{model.name} has no windows")


# -- patched forwards: what would the model say if this had another output? ---------------------------------------


def logits_with_patches(
    model: VisionModel, tokens: Tensor, first: int, point: str, patches: Mapping[int, Patch], half: bool = False
) -> Tensor:
    """Return the logits of tokens that enter block ``first``, with one hook point of several blocks patched.

    ``resid_pre`` of the layer after the last block is what the head gets. ``attn_weights`` are written out in the
    patched blocks. Evaluation mode, the model's own precision or, with ``half``, float16 where torch holds that safe;
    gradients as the surroundings say.
    """
    model = model.shared_copy()
    plan = CompiledPass(model, patches=patches if point == "attn_weights" else {})
    interceptor = OpInterceptor(plan, Recorder(plan))

    def stream(at: str, layer: int, tokens: Tensor) -> Tensor:
        return patches[layer](tokens) if at == point and layer in patches else tokens

    with torch.autocast(tokens.device.type, torch.float16 if half else None, enabled=half):
        for layer in range(first, model.depth):
            tokens = stream("resid_pre", layer, tokens)
            with ExitStack() as stack:
                if point == "attn_weights" and layer in patches:
                    stack.enter_context(interceptor)
                    stack.enter_context(interceptor.inside(layer))
                elif not point.startswith("resid") and layer in patches:
                    stack.enter_context(patched_output(model, layer, point, patches[layer]))
                tokens = model.forward_block(layer, tokens)
            tokens = stream("resid_post", layer, tokens)
        return model.forward_head(stream("resid_pre", model.depth, tokens))


@contextmanager
def patched_output(model: VisionModel, layer: int, point: str, patch: Patch) -> Iterator[None]:
    """Inside, ``norm1``, ``attn``, ``norm2`` or ``mlp`` of a block gives the patched output; outside, its own again.

    One module may be several blocks, so this is for the time that one of them runs, and for modules of a shared copy.
    """

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        return patch(output) if isinstance(output, Tensor) else (patch(output[0]), *output[1:])

    handle = model.hook_point(layer, point).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
