"""Tasks that look further: a map from every layer, the attention of every head, a map put to the test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import vitreous as vt
from vitreous.explorer import trying, typed
from vitreous.explorer.desk import Desk
from vitreous.explorer.jobs import Job
from vitreous.explorer.wire import Question, Refused, array, png

# Heads are no method, and maps that a browser sends back no explanation: for both one room further down is needed.
from vitreous.methods import to_grid
from vitreous.methods.combine import LayerSum
from vitreous.methods.readout import attention_site
from vitreous.methods.rows import read_rows, whole_row
from vitreous.passes import Keep, Pass, Session, Target, probabilities

__all__ = ["curve", "heads", "layers"]

_STEPS = 16
_ORDERS = 2  # random ones; each is read backwards too, which makes four
_SHOWN = (0, 1, 2, 4, 8, 12)  # steps whose pictures are shown
_AT_ONCE = 8  # pictures, between two looks at whether anyone still waits


def layers(desk: Desk, question: Question, job: Job) -> dict[str, Any]:
    """Return the map of a method from every start layer: what ``plus`` sums."""
    view = desk.model(question.model)
    how = typed.understood(question.method, view)
    if not isinstance(how, LayerSum):
        how = typed.understood(f"plus({how.spelling})", view)
    assert isinstance(how, LayerSum)
    asked = Question(question.model, question.picture, how.spelling, question.target, question.against, question.value)
    e = desk.made(asked, job.tick).explanation
    found = e.extras["layers"].numpy()
    starts = how._layers(view)[-len(found) :]
    shown = [{"start": start, "map": array(each)} for start, each in zip(starts, found, strict=True)]
    return {"layers": shown, "signed": how.base.signed and bool((found < 0).any()), "method": how.spelling}


def head_rows(view: vt.View, attention: Tensor, gradient: Tensor | None) -> Tensor:
    """The row that the model reads, of every head ``[B, H, N]``; inside windows all there is."""
    if attention.ndim == 5:
        return attention
    return torch.stack([attention[:, :, rows].mean(dim=2) for rows in read_rows(view, attention)]).sum(dim=0)


def heads(desk: Desk, question: Question, job: Job, layer: int) -> dict[str, Any]:
    """Return where each head of a layer looks."""
    view, photo = desk.model(question.model), desk.pictures.get(question.picture)
    if not 0 <= layer < view.depth:
        raise Refused(422, f"layer {layer} is outside 0..{view.depth - 1} of {view.name}")
    inputs = view.preprocess.tensor(desk.seen(question.model, photo))[None]
    keep = Keep(attention_site(view), head_rows, (layer,))
    session = Session(view, inputs, Target.of(view, 1), memory=desk.memory, tick=lambda ran: job.tick(0.5))
    trace = session.trace(Pass((keep,)))
    (kept,) = trace[keep]
    rows = kept.unbind(dim=2 if kept.ndim == 5 else 1)
    maps = [trace.tokens_to_grid(whole_row(trace, row, layer), layer)[0].cpu().numpy() for row in rows]
    found = [{"head": head, "map": array(each)} for head, each in enumerate(maps)]
    return {"layer": layer, "heads": found, "rows": _READ[view.pooling.kind]}


_READ = {
    "token": "from the class token",
    "pair": "from the class and distillation tokens",
    "avg": "averaged over all patches",
    "avg_all": "averaged over all tokens",
    "token_avg": "from the class token and all patches",
    "map": "averaged over all patches",
}


def curve(desk: Desk, question: Question, job: Job, given: np.ndarray[Any, Any], fill: str) -> dict[str, Any]:
    """Return what the model says as patches go or come, strongest first, beside random orders.

    Each state is the picture that ``try`` would show, asked about as it is. A random order read backwards swaps the two
    curves, so both are taken.
    """
    view, photo = desk.model(question.model), desk.pictures.get(question.picture)
    seen = desk.seen(question.model, photo)
    values = to_grid(torch.from_numpy(given)[None], "token", view, view.preprocess.tensor(seen)[None])[0]
    grid = view.grid()
    if tuple(values.shape) != grid:
        raise Refused(422, f"the map has {list(values.shape)} values; the patches of {view.name} are {list(grid)}")
    count = values.numel()
    counts = [round(step * count / _STEPS) for step in range(_STEPS + 1)]
    order = values.flatten().argsort(descending=True, stable=True).numpy()
    draw = np.random.default_rng(question.seed)
    orders = [order, *(draw.permutation(count) for _ in range(_ORDERS))]
    masks = [_gone(each, k, keep, grid) for each in orders for keep in (False, True) for k in counts]
    target = question.target
    if target is None:
        target = int(trying.chances(view, seen).argmax())
    target = view.class_index(target)
    told = _asked(view, seen, masks, fill, target, job).reshape(len(orders), 2, len(counts))
    shares = np.array(counts) / count
    removed, alone = told[0]
    random = {
        "deletion": np.mean([told[1:, 0], told[1:, 1, ::-1]], axis=(0, 1)),
        "insertion": np.mean([told[1:, 1], told[1:, 0, ::-1]], axis=(0, 1)),
    }
    strip = [
        {
            "fraction": float(shares[step]),
            "picture": png(trying.changed(seen, masks[step], fill)),
            "probability": float(removed[step]),
        }
        for step in _SHOWN
    ]
    return {
        "removed": shares.tolist(),
        "deletion": removed.tolist(),
        "insertion": alone.tolist(),
        "auc": {"deletion": _area(removed, shares), "insertion": _area(alone, shares)},
        "random": {name: each.tolist() for name, each in random.items()},
        "strip": strip,
        "target": target,
    }


def _gone(order: np.ndarray[Any, Any], count: int, keep: bool, grid: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Return which patches are gone: the first of an order, or all but them."""
    gone = np.full(len(order), keep)
    gone[order[:count]] = not keep
    return gone.reshape(grid)


def _asked(
    view: vt.View, seen: Image.Image, masks: Sequence[np.ndarray[Any, Any]], fill: str, target: int, job: Job
) -> np.ndarray[Any, Any]:
    """Return the probability of a class for each state; equal states are asked about once."""
    keys = [mask.tobytes() for mask in masks]
    different = dict(zip(keys, masks, strict=True))
    known: dict[bytes, float] = {}
    names = list(different)
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        states = [view.preprocess.tensor(trying.changed(seen, different[each], fill)) for each in some]
        chances = probabilities(view.logits(torch.stack(states)))[:, target].tolist()
        known.update(zip(some, chances, strict=True))
        job.tick((start + len(some)) / len(names))
    return np.array([known[key] for key in keys])


def _area(curve: np.ndarray[Any, Any], shares: np.ndarray[Any, Any]) -> float:
    return float(((curve[1:] + curve[:-1]) / 2) @ np.diff(shares))
