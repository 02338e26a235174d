"""Running passes: each question answered once, gradients only for what needs them, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import ModelError, TracingError
from vitreous.models import VisionModel
from vitreous.models.shared_copy import gap
from vitreous.models.structure import merged
from vitreous.tracing.observer import Observer
from vitreous.tracing.records import GLOBAL_POINTS, ActivationCache, Pass, Record
from vitreous.tracing.rules import GRADIENT, Composite
from vitreous.tracing.targets import Target

__all__ = ["merge", "refuse_not_finite", "run", "run_for_targets"]


def merge(passes: Iterable[Pass]) -> list[Pass]:
    """Return the fewest passes that answer all of these: one per rule table, equal wishes once.

    Rules change gradients only, so a pass without any rides along with the first pass that runs a backward; but not
    with one of relevance, whose values are in float64.
    """
    passes = list(passes)
    rules = list(dict.fromkeys(pass_run.composite for pass_run in passes if pass_run.backward))
    host = next((each for each in rules if each.propagates != "relevance"), GRADIENT)
    groups: dict[Composite, list[Record]] = {rule: [] for rule in rules}
    for pass_run in passes:
        groups.setdefault(pass_run.composite if pass_run.backward else host, []).extend(pass_run.records)
    return [Pass(_union(keeps), rule) for rule, keeps in groups.items()]


def run(model: VisionModel, inputs: Tensor, ask: Pass, target: Target) -> ActivationCache:
    """Run one pass over a batch that fits into memory.

    Blocks below the lowest one that needs a gradient run without a graph; the backward ends there.
    """
    (cache,) = run_for_targets(model, inputs, ask, [target])
    return cache


def run_for_targets(
    model: VisionModel, inputs: Tensor, ask: Pass, targets: Sequence[Target] | Callable[[Tensor], Sequence[Target]]
) -> list[ActivationCache]:
    """Run one forward, and one backward for each target; targets may be chosen by the logits of that forward."""
    model.check_inputs(inputs)
    model.verify(inputs)
    model, ask = model.shared_copy(), ask.resolve(model)
    _refuse_unattended(model, ask)
    forward = ActivationCache(model, inputs)  # what needs no gradient is kept here, once for all targets
    observer = Observer(model, ask.records, ask.composite, forward, dict(ask.patches))
    plain = torch.autocast(inputs.device.type, enabled=False)  # the model's own precision, whatever surrounds the call
    with torch.inference_mode(False), plain, torch.set_grad_enabled(ask.backward):
        inputs = inputs.clone() if inputs.is_inference() else inputs.detach()
        with _merged(model, ask) as changed:
            logits, root = _forward(model, inputs, ask, observer)
        if changed:
            _refuse_other_logits(model, inputs, logits)
        forward.logits = logits.detach()
        if ask.composite.propagates == "relevance":
            forward.logits = forward.logits.to(model.dtype)
        refuse_not_finite(model, forward.logits)
        aims = targets(forward.logits) if callable(targets) else targets
        caches = [forward.copy() for _ in aims]
        for index, (target, cache) in enumerate(zip(aims, caches, strict=True)):
            observer.trace = cache
            if root is not None:
                score = _scored(target, logits) if ask.composite.scored else target.score(logits)
                _backward(model, score, (root, *observer.leaves), keep_graph=index + 1 < len(caches))
    for cache in caches:
        for keep in ask.records:
            cache[keep]  # an empty answer is an error here and not a strange picture later
    return caches


def _is_by_layer(ask: Pass) -> bool:
    """Whether it matters which layers a linear map is made of: to rules of relevance, and to who asks for biases."""
    return ask.composite.propagates == "relevance" or any(keep.point == "biases" for keep in ask.records)


def _merged(model: VisionModel, ask: Pass) -> AbstractContextManager[list[Any]]:
    if not model.deviations or not _is_by_layer(ask):
        return nullcontext([])
    return merged(model.module, model.deviations)


def _refuse_other_logits(model: VisionModel, inputs: Tensor, logits: Tensor) -> None:
    """Refuse a model that says something else once its adapters are merged: it reads a layer instead of running it."""
    with torch.no_grad():
        expected = model.forward_head(model.forward_blocks(model.embed(inputs)))
    off, different = gap(logits.detach().to(expected.dtype), expected)
    if different:
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


def _refuse_unattended(model: VisionModel, ask: Pass) -> None:
    if model.attention != "global" and any(keep.point in GLOBAL_POINTS for keep in ask.records):
        where = {"windowed": "attends inside windows", "none": "has no attention"}[model.attention]
        raise ModelError(f"{model.name} {where}: a method that follows attention between all tokens does not apply")
    if model.attention != "windowed" and any(keep.point == "window_weights" for keep in ask.records):
        raise ModelError(f"{model.name} has no windows")


def _forward(model: VisionModel, inputs: Tensor, ask: Pass, observer: Observer) -> tuple[Tensor, Tensor | None]:
    """Return the logits and the tensor at which the backward ends."""
    first = ask.first(model.depth)
    if ask.composite.propagates == "relevance":
        inputs = inputs.double()
    root: Tensor | None = None
    with observer if observer.needed else nullcontext():
        if ask.backward and first < 0:
            inputs = root = inputs.requires_grad_()
            observer.note("pixels", 0, inputs)
        with torch.set_grad_enabled(root is not None):
            tokens = model.embed(inputs)
        for layer in range(model.depth):
            if layer == first:
                tokens = root = tokens.detach().requires_grad_()
            with torch.set_grad_enabled(root is not None):
                observer.note("resid_pre", layer, tokens)
                with observer.inside(layer):
                    tokens = model.forward_block(layer, tokens)
                observer.note("resid_post", layer, tokens)
        if ask.backward and root is None:  # only the head needs a gradient
            tokens = root = tokens.detach().requires_grad_()
        with torch.set_grad_enabled(root is not None), observer.inside(None):
            logits = model.forward_head(tokens)
    return logits, root


def _scored(target: Target, logits: Tensor) -> Tensor:
    """Return something whose slope at each logit is the slope of the target's score times that logit."""
    known = logits.detach().requires_grad_()
    score = target.score(known.clone())  # a function of the user's own may write into what it gets
    if not score.requires_grad:
        return score
    (slope,) = torch.autograd.grad(score.sum(), known)
    shares = torch.where(slope == 0, 0.0, slope * logits.detach())  # a class that is shut out has minus infinity
    return (logits * shares).sum(dim=1)


def _backward(model: VisionModel, score: Tensor, ends: Sequence[Tensor], keep_graph: bool) -> None:
    if not score.requires_grad:
        raise TracingError(f"{model.name}: the target does not depend on the tokens")
    torch.autograd.grad(score.sum(), ends, retain_graph=keep_graph)


def _union(keeps: Iterable[Record]) -> tuple[Record, ...]:
    united: dict[tuple[object, ...], Record] = {}
    for keep in keeps:
        known = united.get(keep.key)
        layers = sorted({*keep.layers, *(known.layers if known else ())})
        united[keep.key] = replace(keep, layers=tuple(layers))
    return tuple(united.values())
