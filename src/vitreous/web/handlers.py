"""Tasks that look further: a map from every layer, the attention of every head, a map put to the test.

Tasks about one map: the map itself, why, who owns which patch, and how far to trust it.

Which kinds of tasks there are, and what each needs beside its question.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import vitreous as vt
from vitreous import viz as show
from vitreous.decision_report import COMPETES, Why, assemble, owning, trust
from vitreous.errors import VitreousError

# Heads are no method, and maps that a browser sends back no explanation: for both one room further down is needed.
from vitreous.methods import to_grid
from vitreous.methods.combinators import LayerSum
from vitreous.methods.ops import attention_point
from vitreous.methods.rollout import read_rows
from vitreous.registry import check_choice
from vitreous.tracing import Activation, Context, Pass, Record, Target, probabilities
from vitreous.viz.panel import strength
from vitreous.web import completion as typed
from vitreous.web import export as lines
from vitreous.web import perturbation as trying
from vitreous.web.jobs import Job, Work
from vitreous.web.schemas import Question, Refused, array, given_array, png, text, whole
from vitreous.web.session import Desk, Tick

__all__ = [
    "check",
    "curve",
    "explain",
    "heads",
    "layers",
    "map_of",
    "owners",
    "why",
    "works",
]

_STEPS = 16
_ORDERS = 2  # random ones; each is read backwards too, which makes four
_SHOWN = (0, 1, 2, 4, 8, 12)  # steps whose pictures are shown
_AT_ONCE = 8  # pictures, between two looks at whether anyone still waits


def layers(desk: Desk, question: Question, job: Job) -> dict[str, Any]:
    """Return the map of a method from every start layer: what ``plus`` sums."""
    model = desk.model(question.model)
    how = typed.understood(question.method, model)
    if not isinstance(how, LayerSum):
        how = typed.understood(f"plus({how.spec})", model)
    assert isinstance(how, LayerSum)
    asked = Question(question.model, question.picture, how.spec, question.target, question.contrast, question.output)
    e = desk.made(asked, job.on_progress).explanation
    found = e.extras["layers"].numpy()
    starts = how._layers(model)[-len(found) :]
    shown = [{"start": start, "map": array(each)} for start, each in zip(starts, found, strict=True)]
    return {"layers": shown, "signed": how.base.signed and bool((found < 0).any()), "method": how.spec}


def head_rows(a: Activation) -> Tensor:
    """The row that the model reads, of every head ``[B, H, N]``; inside windows all there is."""
    if a.value.ndim == 5:
        return a.value
    return torch.stack([a.value[:, :, rows].mean(dim=2) for rows in read_rows(a.model, a.value)]).sum(dim=0)


def heads(desk: Desk, question: Question, job: Job, layer: int) -> dict[str, Any]:
    """Return where each head of a layer looks."""
    model, photo = desk.model(question.model), desk.pictures.get(question.picture)
    if not 0 <= layer < model.depth:
        raise Refused(422, f"layer {layer} is outside 0..{model.depth - 1} of {model.name}")
    inputs = model.preprocess.to_tensor(desk.seen(question.model, photo))[None]
    record = Record(attention_point(model), head_rows, (layer,), grad=False)
    context = Context(
        model, inputs, Target.of(model, 1), memory_gb=desk.memory, on_progress=lambda ran: job.on_progress(0.5)
    )
    cache = context.run_pass(Pass((record,)))
    (kept,) = cache[record]
    rows = kept.unbind(dim=2 if kept.ndim == 5 else 1)
    maps = [cache.tokens_to_grid(cache.row(row, layer), layer)[0].cpu().numpy() for row in rows]
    found = [{"head": head, "map": array(map_)} for head, map_ in enumerate(maps)]
    return {"layer": layer, "heads": found, "rows": _READ[model.pooling.kind]}


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
    curves, so both are taken; random orders are the same for every map, and asked about once.
    """
    model, photo = desk.model(question.model), desk.pictures.get(question.picture)
    seen = desk.seen(question.model, photo)
    values = to_grid(torch.from_numpy(given)[None], "token", model, model.preprocess.to_tensor(seen)[None])[0]
    grid = model.grid()
    if tuple(values.shape) != grid:
        raise Refused(422, f"the map has {list(values.shape)} values; the patches of {model.name} are {list(grid)}")
    count, counts = values.numel(), [round(step * values.numel() / _STEPS) for step in range(_STEPS + 1)]
    target = question.target
    if target is None:
        target = int(trying.chances(model, seen).argmax())
    target = model.class_index(target)
    about = question.model, question.picture, target, fill, question.seed
    random = desk.random.get(about)
    draw = np.random.default_rng(question.seed)
    drawn = [draw.permutation(count) for _ in range(_ORDERS)] if random is None else []
    orders = [values.flatten().argsort(descending=True, stable=True).numpy(), *drawn]
    masks = [_gone(order, k, keep, grid) for order in orders for keep in (False, True) for k in counts]
    told = _asked(model, seen, masks, fill, target, job).reshape(len(orders), 2, len(counts))
    if random is None:
        both = told[1:], told[1:, ::-1, ::-1]
        random = np.mean(both, axis=(0, 1))
        desk.random.put(about, random)
    shares = np.array(counts) / count
    removed, alone = told[0]
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
        "random": {"deletion": random[0].tolist(), "insertion": random[1].tolist()},
        "strip": strip,
        "target": target,
    }


def _gone(order: np.ndarray[Any, Any], count: int, keep: bool, grid: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Return which patches are gone: the first of an order, or all but them."""
    gone = np.full(len(order), keep)
    gone[order[:count]] = not keep
    return gone.reshape(grid)


def _asked(
    model: vt.VisionModel, seen: Image.Image, masks: Sequence[np.ndarray[Any, Any]], fill: str, target: int, job: Job
) -> np.ndarray[Any, Any]:
    """Return the probability of a class for each state; equal states are asked about once."""
    keys = [mask.tobytes() for mask in masks]
    different = dict(zip(keys, masks, strict=True))
    known: dict[bytes, float] = {}
    names = list(different)
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        states = [model.preprocess.to_tensor(trying.changed(seen, different[each], fill)) for each in some]
        chances = probabilities(model.logits(torch.stack(states)))[:, target].tolist()
        known.update(zip(some, chances, strict=True))
        job.on_progress((start + len(some)) / len(names))
    return np.array([known[key] for key in keys])


def _area(curve: np.ndarray[Any, Any], shares: np.ndarray[Any, Any]) -> float:
    return float(((curve[1:] + curve[:-1]) / 2) @ np.diff(shares))


_MOST_OWNERS = 12


def explain(desk: Desk, question: Question, job: Job, together: Sequence[Question] = ()) -> dict[str, Any]:
    """Return a map; cheap maps that were asked for together share their passes."""
    desk.prepare(together, job.on_progress)
    made = desk.made(question, job.on_progress)
    return map_of(made.explanation) | {"seconds": made.seconds, "warnings": list(made.warnings)}


def map_of(e: vt.Explanation) -> dict[str, Any]:
    """Write an explanation down for the page."""
    return {
        "map": array(e.map.numpy()),
        "signed": e.scale.signed,
        "grid": "pixel" if tuple(e.map.shape) == (e.image.height, e.image.width) else "token",
        "target": e.target,
        "label": e.label,
        "probability": e.probability,
        "method": e.method,
        "title": e.title,
        "caption": e.caption,
        "class_specific": e.class_specific,
        "value": e.output,
        "identity": None if e.identity is None else dict(e.identity),
    }


def check(desk: Desk, question: Question, job: Job) -> dict[str, Any]:
    """Return what cheap tests say about a map."""
    found = desk.checked(question, job.part)
    return {"verdict": found.verdict, "sentence": found.sentence, "tests": _tests(found)}


def _tests(found: vt.CheckResult) -> list[dict[str, str]]:
    return [{"name": test.name, **dataclasses.asdict(trust(test))} for test in found.tests]


def owners(desk: Desk, question: Question, job: Job, compare_classes: Sequence[int]) -> dict[str, Any]:
    """Return which of some classes owns which patch, by VAR."""
    return _owners_of(_owned(desk, question, compare_classes, job.on_progress))


def _owned(desk: Desk, question: Question, compare_classes: Sequence[int], on_progress: Tick) -> vt.Explanation:
    model, photo = desk.model(question.model), desk.pictures.get(question.picture)
    found: vt.Explanation = vt.compare(
        model,
        photo.image,
        [owning(model)],
        compare_classes[0],
        compare_classes=list(compare_classes),
        output="logprob",
        seed=question.seed,
        memory_gb=desk.memory,
        progress=on_progress,
    )[0]
    return found


def _owners_of(e: vt.Explanation) -> dict[str, Any]:
    shares, maps = (e.extras[name].double().numpy() for name in ("distribution", "maps"))
    colours = ["#" + bytes(colour).hex() for colour in show.class_colours(len(shares))]
    indices = [each for each in e.extras["classes"].tolist() if each >= 0]
    named = zip(indices, e.class_names, colours, strict=False)
    return {
        "method": f'{e.method[:-1]}, classes="{",".join(map(str, indices))}")',  # what gives the same elsewhere
        "value": e.asked,
        "distribution": array(shares),
        "strength": array(strength(maps)),
        "classes": [{"index": index, "label": label, "colour": colour} for index, label, colour in named],
    }


def given_among(task: Mapping[str, Any], model: vt.VisionModel) -> list[int]:
    """Read the classes that are to be compared."""
    given = task.get("among")
    if not isinstance(given, list) or not all(type(each) is int for each in given):
        raise Refused(422, "among must be a list of class indices")
    classes = list(dict.fromkeys(model.class_index(each) for each in given))
    if not 2 <= len(classes) <= _MOST_OWNERS:
        raise Refused(422, f"among names {len(classes)} classes; from 2 to {_MOST_OWNERS} can be compared")
    return classes


def why(desk: Desk, question: Question, job: Job) -> dict[str, Any]:
    """Return all that stands on the page of ``vitreous why``, as data."""
    question = dataclasses.replace(question, contrast=None)  # the contrast is a part of the answer
    model, photo = desk.model(question.model), desk.pictures.get(question.picture)
    made = desk.made(question, job.part(0.0, 0.2))
    e = made.explanation
    if e.target is None:
        raise Refused(422, "why asks about a class")
    now = trying.chances(model, desk.seen(question.model, photo))
    order = now.argsort(descending=True, stable=True).tolist()
    rival = next((each for each in order if each != e.target), None)
    contrast = owned = None
    if rival is not None and e.class_specific:
        versus = dataclasses.replace(question, target=e.target, contrast=rival)
        contrast = desk.made(versus, job.part(0.2, 0.35)).explanation
        if min(float(now[rival]), float(now[e.target])) >= COMPETES:
            owned = _owned(desk, question, [e.target, rival], job.part(0.35, 0.4))
    job.on_progress(0.4)
    check_result = desk.checked(question, lambda first, last: job.part(0.4 + 0.6 * first, 0.4 + 0.6 * last))
    told = assemble(model, e, now, contrast, owned, check_result, _command(desk, question, e))
    return map_of(e) | {"warnings": list(made.warnings)} | _page(told, order, rival)


def _page(told: Why, order: Sequence[int], rival: int | None) -> dict[str, Any]:
    page, e = told.page(), told.explanation
    contrast = None
    if told.contrast is not None:
        contrast = map_of(told.contrast) | {"label": e.label, "rival": told.rival, "index": rival}
    said = [{"index": i, "label": label, "probability": p} for i, (label, p) in zip(order, page.says, strict=False)]
    return {
        "title": page.title,
        "lead": page.lead,
        "says": said,
        "tried": [
            {
                "picture": png(each.picture),
                "words": each.caption,
                "percent": each.chance,
                "change": each.change,
                "note": each.note,
            }
            for each in page.tried
        ],
        "tried_text": page.tried_text,
        "criterion": told.criterion,
        "contrast": contrast,
        "owners": None if told.owners is None else _owners_of(told.owners),
        "trust": [dataclasses.asdict(each) for each in page.trust],
        "trust_text": page.trust_text,
        "command": page.command,
        "settings": page.settings,
    }


def _command(desk: Desk, question: Question, e: vt.Explanation) -> str:
    """The line that makes the page: of the class that was meant, whoever chose it."""
    asked = dataclasses.replace(desk.asked(question), target=e.target)
    return lines.why(asked, desk.pictures.get(question.picture), desk.options)


def works(desk: Desk, tasks: Sequence[Any]) -> list[Work]:
    """Return what is to be done for each task. One that cannot be understood says so when its turn comes."""
    read = [_read(desk, task) for task in tasks]
    asked = [each[1] for each in read if isinstance(each, tuple) and each[0] == "explain"]
    return [_work(desk, task, each, asked) for task, each in zip(tasks, read, strict=True)]


def _read(desk: Desk, task: Any) -> tuple[str, Question] | VitreousError:
    try:
        question = Question.of(task)
        kind = text(task, "kind", 20) or ""
        check_choice("kind", kind, ("explain", "why", "owners", "layers", "heads", "curve", "check"))
        desk.model(question.model)
    except VitreousError as error:
        return error
    return kind, question


def _work(desk: Desk, task: Any, read: tuple[str, Question] | VitreousError, asked: Sequence[Question]) -> Work:
    if isinstance(read, VitreousError):
        return Work(partial(_refuse, read))
    kind, question = read
    if kind == "explain":
        alike = [each for each in asked if replace(each, method=None) == replace(question, method=None)]
        return Work(lambda job: explain(desk, question, job, alike), lambda: desk.knows(question))
    return Work(partial(_other, desk, kind, question, task))


def _refuse(error: VitreousError, job: Job) -> dict[str, Any]:
    raise error


def _other(desk: Desk, kind: str, question: Question, task: Mapping[str, Any], job: Job) -> dict[str, Any]:
    model = desk.model(question.model)
    if kind == "owners":
        return owners(desk, question, job, given_among(task, model))
    if kind == "heads":
        return heads(desk, question, job, whole(task, "layer", 0, model.depth) or 0)
    if kind == "curve":
        fill = text(task, "fill", 20, "blur") or ""
        check_choice("fill", fill, trying.FILLS)
        return curve(desk, question, job, given_array(task.get("map")), fill)
    known = {"why": why, "check": check, "layers": layers}
    return known[kind](desk, question, job)
