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
from vitreous.tracing.records import BETWEEN, ActivationCache, Pass, Record
from vitreous.tracing.rules import PLAIN, Composite
from vitreous.tracing.targets import Target

__all__ = ["merge", "refuse_not_finite", "run", "run_for_targets"]


def merge(passes: Iterable[Pass]) -> list[Pass]:
    """Return the fewest passes that answer all of these: one per rule table, equal wishes once.

    Rules change gradients only, so a pass without any rides along with the first pass that runs a backward; but not
    with one of relevance, whose values are in float64.
    """
    passes = list(passes)
    rules = list(dict.fromkeys(each.rules for each in passes if each.backward))
    host = next((each for each in rules if each.currency != "relevance"), PLAIN)
    groups: dict[Composite, list[Record]] = {rule: [] for rule in rules}
    for each in passes:
        groups.setdefault(each.rules if each.backward else host, []).extend(each.keeps)
    return [Pass(_union(keeps), rule) for rule, keeps in groups.items()]


def run(view: VisionModel, inputs: Tensor, ask: Pass, target: Target) -> ActivationCache:
    """Run one pass over a batch that fits into memory.

    Blocks below the lowest one that needs a gradient run without a graph; the backward ends there.
    """
    (trace,) = run_for_targets(view, inputs, ask, [target])
    return trace


def run_for_targets(
    view: VisionModel, inputs: Tensor, ask: Pass, targets: Sequence[Target] | Callable[[Tensor], Sequence[Target]]
) -> list[ActivationCache]:
    """Run one forward, and one backward for each target; targets may be chosen by the logits of that forward."""
    view.check_inputs(inputs)
    view.verify(inputs)
    view = view.shared_copy()
    _refuse_unattended(view, ask)
    forward = ActivationCache(view, inputs)  # what needs no gradient is kept here, once for all targets
    observer = Observer(view, ask.keeps, ask.rules, forward, dict(ask.changes))
    plain = torch.autocast(inputs.device.type, enabled=False)  # the model's own precision, whatever surrounds the call
    with torch.inference_mode(False), plain, torch.set_grad_enabled(ask.backward):
        inputs = inputs.clone() if inputs.is_inference() else inputs.detach()
        with _merged(view, ask) as changed:
            logits, root = _forward(view, inputs, ask, observer)
        if changed:
            _refuse_other_logits(view, inputs, logits)
        forward.logits = logits.detach()
        if ask.rules.currency == "relevance":
            forward.logits = forward.logits.to(view.dtype)
        refuse_not_finite(view, forward.logits)
        aims = targets(forward.logits) if callable(targets) else targets
        traces = [forward.copy() for _ in aims]
        for index, (target, trace) in enumerate(zip(aims, traces, strict=True)):
            observer.trace = trace
            if root is not None:
                score = _scored(target, logits) if ask.rules.scored else target.score(logits)
                _backward(view, score, (root, *observer.leaves), keep_graph=index + 1 < len(traces))
    for trace in traces:
        for keep in ask.keeps:
            trace[keep]  # an empty answer is an error here and not a strange picture later
    return traces


def _is_by_layer(ask: Pass) -> bool:
    """Whether it matters which layers a linear map is made of: to rules of relevance, and to who asks for biases."""
    return ask.rules.currency == "relevance" or any(keep.site == "biases" for keep in ask.keeps)


def _merged(view: VisionModel, ask: Pass) -> AbstractContextManager[list[Any]]:
    if not view.deviations or not _is_by_layer(ask):
        return nullcontext([])
    return merged(view.module, view.deviations)


def _refuse_other_logits(view: VisionModel, inputs: Tensor, logits: Tensor) -> None:
    """Refuse a model that says something else once its adapters are merged: it reads a layer instead of running it."""
    with torch.no_grad():
        expected = view.forward_head(view.forward_blocks(view.embed(inputs)))
    off, different = gap(logits.detach().to(expected.dtype), expected)
    if different:
        raise TracingError(
            f"{view.name}: with its adapters and hooks merged into its layers logits differ by {off:.1e}; merge them "
            "before explaining"
        )


def refuse_not_finite(view: VisionModel, logits: Tensor) -> None:
    """Refuse logits that are not numbers; a class may be shut out with minus infinity."""
    bad = logits.isnan() | (logits == torch.inf)
    if bad.any():
        rows = int(bad.any(dim=1).sum())
        raise ModelError(f"{view.name} gives logits that are not finite for {rows} of {len(logits)} images")


def _refuse_unattended(view: VisionModel, ask: Pass) -> None:
    if view.attention != "everywhere" and any(keep.site in BETWEEN for keep in ask.keeps):
        where = {"windows": "attends inside windows", "nowhere": "has no attention"}[view.attention]
        raise ModelError(f"{view.name} {where}: a method that follows attention between all tokens does not apply")
    if view.attention != "windows" and any(keep.site == "windows" for keep in ask.keeps):
        raise ModelError(f"{view.name} has no windows")


def _forward(view: VisionModel, inputs: Tensor, ask: Pass, observer: Observer) -> tuple[Tensor, Tensor | None]:
    """Return the logits and the tensor at which the backward ends."""
    first = ask.first(view.depth)
    if ask.rules.currency == "relevance":
        inputs = inputs.double()
    root: Tensor | None = None
    with observer if observer.needed else nullcontext():
        if ask.backward and first < 0:
            inputs = root = inputs.requires_grad_()
            observer.note("image", 0, inputs)
        with torch.set_grad_enabled(root is not None):
            tokens = view.embed(inputs)
        for layer in range(view.depth):
            if layer == first:
                tokens = root = tokens.detach().requires_grad_()
            with torch.set_grad_enabled(root is not None):
                observer.note("input", layer, tokens)
                with observer.inside(layer):
                    tokens = view.forward_block(layer, tokens)
                observer.note("output", layer, tokens)
        if ask.backward and root is None:  # only the head needs a gradient
            tokens = root = tokens.detach().requires_grad_()
        with torch.set_grad_enabled(root is not None), observer.inside(None):
            logits = view.forward_head(tokens)
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


def _backward(view: VisionModel, score: Tensor, ends: Sequence[Tensor], keep_graph: bool) -> None:
    if not score.requires_grad:
        raise TracingError(f"{view.name}: the target does not depend on the tokens")
    torch.autograd.grad(score.sum(), ends, retain_graph=keep_graph)


def _union(keeps: Iterable[Record]) -> tuple[Record, ...]:
    united: dict[tuple[object, ...], Record] = {}
    for keep in keeps:
        known = united.get(keep.key)
        layers = sorted({*keep.layers, *(known.layers if known else ())})
        united[keep.key] = replace(keep, layers=tuple(layers))
    return tuple(united.values())
