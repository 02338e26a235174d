"""Answers to questions: what the model says about an image, and maps, seen from every side, as data for the page."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import vitreous as vt
from vitreous import viz
from vitreous.decision_report import build, class_assignment_method, trust
from vitreous.errors import ModelError, TargetError, VitreousError
from vitreous.evaluation.evidence import blurred, replaced

# Heads are no method, and maps that a browser sends back no explanation: for both one package further down is needed.
from vitreous.methods import to_grid
from vitreous.methods.combinators import LayerSum
from vitreous.methods.ops import attention_point
from vitreous.methods.rollout import read_rows
from vitreous.tracing import Activation, Context, Pass, Record, Target, probabilities
from vitreous.viz.canvas import png_data_uri
from vitreous.viz.panels import strength
from vitreous.web import Refused, completion, export, schemas
from vitreous.web.jobs import QueuedWork, Work
from vitreous.web.schemas import Array, Question, Task, attributes, encode_array
from vitreous.web.session import Progress, Session

_MOST_TOP = 10
_STEPS = 16
_NUM_ORDERS = 2  # random ones; each is read backwards too, which makes four
_STRIP_STEPS = (0, 1, 2, 4, 8, 12)
_BATCH = 8  # images, between two looks at whether anyone still waits
_HEAD_ROWS = {
    "token": "from the class token",
    "pair": "from the class and distillation tokens",
    "avg": "averaged over all patches",
    "avg_all": "averaged over all tokens",
    "token_avg": "from the class token and all patches",
    "map": "averaged over all patches",
}

# -- short questions -----------------------------------------------------------------------------------


def predict(session: Session, question: Question) -> dict[str, Any]:
    """Return what the model says, and the true class where that is known."""
    model, image = session.model(question.model), session.model_input(question.model, question.picture)
    top, true_class = _top(model, _probabilities(model, image)), session.photo(question.picture).true_class
    truth = None
    with suppress(TargetError):  # the model may know other classes
        if true_class is not None:
            index = model.class_index(true_class)
            truth = {"index": index, "label": model.label(index)}
    return {"top": top, "truth": truth}


def remove(session: Session, request: schemas.Removal) -> dict[str, Any]:
    """Return the image without some patches, and what the model says about exactly that image."""
    model, image = session.model(request.model), session.model_input(request.model, request.picture)
    changed = _without(image, request.mask(model.grid()), request.fill)
    after = _probabilities(model, changed)
    target = int(_probabilities(model, image).argmax()) if request.target is None else request.target
    if not target < len(after):
        raise Refused(422, f"{model.name} has no class {target}: it has {len(after)}")
    return {"picture": _png(changed), "top": _top(model, after), "probability": float(after[target]), "target": target}


def _probabilities(model: vt.VisionModel, image: Image.Image) -> Tensor:
    """Return the probability of every class for exactly this image, already cut to size."""
    result = probabilities(model.logits(model.preprocess.to_tensor(image)[None]))[0].cpu()
    if not bool(result.isfinite().all()):
        raise ModelError(f"what {model.name} says is not finite")
    return result


def _top(model: vt.VisionModel, values: Tensor) -> list[dict[str, Any]]:
    order = values.argsort(descending=True, stable=True)[:_MOST_TOP].tolist()
    return [{"index": index, "label": model.label(index), "probability": float(values[index])} for index in order]


def _without(image: Image.Image, mask: Array, fill: str) -> Image.Image:
    """Return an image whose removed patches come from a blurred copy, have its mean colour, or are black."""
    if fill == "blur":
        filling = blurred(image)
    else:
        mean = np.asarray(image.convert("RGB"), np.float64).mean(axis=(0, 1)).round().astype(int)
        filling = Image.new("RGB", image.size, (0, 0, 0) if fill == "black" else tuple(mean.tolist()))
    return replaced(image, filling, torch.from_numpy(mask > 0))


def _png(image: Image.Image) -> str:
    return png_data_uri(image.convert("RGB"), compress_level=3)


def describe_spec(session: Session, partial: schemas.PartialSpec) -> dict[str, Any]:
    """Return what a spec that is being typed means and costs, and how it may go on."""
    content = completion.describe_spec(partial.spec, session.model(partial.model))
    if content["ok"]:
        content["seconds"] = session.seconds(partial.model, content["forwards"] + 2 * content["backwards"])
    cursor = len(partial.spec) if partial.cursor is None else partial.cursor
    return content | {"completions": completion.complete(partial.spec, cursor)}


# -- tasks ---------------------------------------------------------------------------------------------


def plan_work(session: Session, tasks: Sequence[Any]) -> list[Work]:
    """Return what is to be done for each task. One that cannot be understood says so when its turn comes."""
    parsed = [_parse(session, task) for task in tasks]
    maps = [task.question for task in parsed if isinstance(task, schemas.MapTask) and task.kind == "explain"]
    return [_work(session, task, maps) for task in parsed]


def _parse(session: Session, data: Any) -> Task | VitreousError:
    try:
        task = schemas.parse(schemas.TASK.validate_python, data)
        session.model(task.model)
    except VitreousError as error:
        return error
    return task


def _work(session: Session, task: Task | VitreousError, maps: Sequence[Question]) -> Work:
    if isinstance(task, VitreousError):
        return Work(functools.partial(_refuse, task))
    question = task.question
    if task.kind == "explain":
        alike = [q for q in maps if q.model_copy(update={"method": question.method}) == question]
        return Work(lambda job: explain(session, question, job, alike), lambda: session.has_map(question))
    answers: dict[str, Callable[..., dict[str, Any]]] = {
        "why": why,
        "check": check,
        "layers": layers,
        "owners": owners,
        "heads": heads,
        "curve": curve,
    }
    return Work(lambda job: answers[task.kind](session, task, job))


def _refuse(error: VitreousError, job: QueuedWork) -> Any:
    raise error


def explain(session: Session, question: Question, job: QueuedWork, together: Sequence[Question] = ()) -> dict[str, Any]:
    """Return a map; cheap maps that were asked for together share their passes."""
    session.prepare(together, job.on_progress)
    result = session.explain(question, job.on_progress)
    e = result.explanation
    return {
        **attributes(e, "target", "label", "probability", "method", "title", "caption", "class_specific"),
        "map": encode_array(e.map.numpy()),
        "signed": e.scale.signed,
        "seconds": result.seconds,
        "warnings": list(result.warnings),
    }


def check(session: Session, task: Task, job: QueuedWork) -> dict[str, Any]:
    """Return what cheap tests say about a map."""
    result = session.check(task.question, job.part)
    tests = [{"name": test.name, **trust(test)} for test in result.tests]
    return {**attributes(result, "verdict", "sentence"), "tests": tests}


def layers(session: Session, task: Task, job: QueuedWork) -> dict[str, Any]:
    """Return the map of a method from every start layer: what ``plus`` sums."""
    model, question = session.model(task.model), task.question
    method = completion.parse_method(question.method, model)
    if not isinstance(method, LayerSum):
        method = completion.parse_method(f"plus({method.spec})", model)
    assert isinstance(method, LayerSum)
    of_sum = question.model_copy(update={"method": method.spec, "seed": 0})
    maps = session.explain(of_sum, job.on_progress).explanation.extras["layers"].numpy()
    starts = method._layers(model)[-len(maps) :]
    entries = [{"start": start, "map": encode_array(values)} for start, values in zip(starts, maps, strict=True)]
    return {"layers": entries, "signed": method.base.signed and bool((maps < 0).any()), "method": method.spec}


def head_rows(a: Activation) -> Tensor:
    """The row that the model reads, of every head ``[B, H, N]``; inside windows all there is."""
    if a.value.ndim == 5:
        return a.value
    return torch.stack([a.value[:, :, rows].mean(dim=2) for rows in read_rows(a.model, a.value)]).sum(dim=0)


def heads(session: Session, task: schemas.HeadsTask, job: QueuedWork) -> dict[str, Any]:
    """Return where each head of a layer attends."""
    model, layer = session.model(task.model), task.layer
    if not layer < model.depth:
        raise Refused(422, f"layer {layer} is outside 0..{model.depth - 1} of {model.name}")
    inputs = model.preprocess.to_tensor(session.model_input(task.model, task.picture))[None]
    record = Record(attention_point(model), head_rows, (layer,), grad=False)
    target, memory_gb = Target.of(model, 1), session.memory_gb
    context = Context(model, inputs, target, memory_gb=memory_gb, on_progress=lambda num_passes: job.on_progress(0.5))
    cache = context.run_pass(Pass((record,)))
    (recorded,) = cache[record]
    rows = recorded.unbind(dim=2 if recorded.ndim == 5 else 1)
    maps = [cache.tokens_to_grid(cache.row(row, layer), layer)[0].cpu().numpy() for row in rows]
    entries = [{"head": head, "map": encode_array(values)} for head, values in enumerate(maps)]
    return {"layer": layer, "heads": entries, "rows": _HEAD_ROWS[model.pooling.kind]}


def curve(session: Session, task: schemas.CurveTask, job: QueuedWork) -> dict[str, Any]:
    """Return what the model says as patches go or come, strongest first, beside random orders.

    Each state is the image that ``remove`` would show, asked about as it is. A random order read backwards swaps the
    two curves, so both are taken; random orders are the same for every map, and asked about once.
    """
    model, image = session.model(task.model), session.model_input(task.model, task.picture)
    grid = model.grid()
    maps, inputs = torch.from_numpy(task.map.values())[None], model.preprocess.to_tensor(image)[None]
    values = to_grid(maps, "token", model, inputs)[0]
    if tuple(values.shape) != grid:
        raise Refused(422, f"the map has {list(values.shape)} values; the patches of {model.name} are {list(grid)}")
    count = values.numel()
    counts = [round(step * count / _STEPS) for step in range(_STEPS + 1)]
    target = int(_probabilities(model, image).argmax()) if task.target is None else task.target
    target = model.class_index(target)
    key = task.model, task.picture, target, task.fill, task.seed
    random = session.random_curves.get(key)
    draw = np.random.default_rng(task.seed)
    orders = [values.flatten().argsort(descending=True, stable=True).numpy()]
    orders += [draw.permutation(count) for _ in range(_NUM_ORDERS)] if random is None else []
    masks = [_mask(order, k, invert, grid) for order in orders for invert in (False, True) for k in counts]
    curves = _along(model, image, masks, task.fill, target, job).reshape(len(orders), 2, len(counts))
    if random is None:
        random = session.random_curves.put(key, np.mean((curves[1:], curves[1:, ::-1, ::-1]), axis=(0, 1)))
    fractions, names = np.array(counts) / count, ("deletion", "insertion")
    areas = [float(((curve[1:] + curve[:-1]) / 2) @ np.diff(fractions)) for curve in curves[0]]
    pictures = [_png(_without(image, masks[step], task.fill)) for step in _STRIP_STEPS]
    return {
        **dict(zip(names, curves[0].tolist(), strict=True)),
        "removed": fractions.tolist(),
        "auc": dict(zip(names, areas, strict=True)),
        "random": dict(zip(names, random.tolist(), strict=True)),
        "strip": [
            {"fraction": float(fractions[step]), "picture": picture, "probability": float(curves[0, 0, step])}
            for step, picture in zip(_STRIP_STEPS, pictures, strict=True)
        ],
        "target": target,
    }


def _mask(order: Array, count: int, invert: bool, grid: tuple[int, int]) -> Array:
    """Return which patches are gone: the first of an order, or all but them."""
    mask = np.full(len(order), invert)
    mask[order[:count]] = not invert
    return mask.reshape(grid)


def _along(
    model: vt.VisionModel, image: Image.Image, masks: Sequence[Array], fill: str, target: int, job: QueuedWork
) -> Array:
    """Return the probability of a class for each mask; equal ones are asked about once."""
    keys = [mask.tobytes() for mask in masks]
    distinct = dict(zip(keys, masks, strict=True))
    names, result = list(distinct), dict[bytes, float]()
    for start in range(0, len(names), _BATCH):
        batch = names[start : start + _BATCH]
        inputs = [model.preprocess.to_tensor(_without(image, distinct[name], fill)) for name in batch]
        result |= zip(batch, probabilities(model.logits(torch.stack(inputs)))[:, target].tolist(), strict=True)
        job.on_progress((start + len(batch)) / len(names))
    return np.array([result[key] for key in keys])


def owners(session: Session, task: schemas.OwnersTask, job: QueuedWork) -> dict[str, Any]:
    """Return which of some classes owns which patch, by VAR."""
    model = session.model(task.model)
    classes = list(dict.fromkeys(model.class_index(index) for index in task.compare_classes))
    most = schemas.MOST_COMPARED
    if not 2 <= len(classes) <= most:
        raise Refused(422, f"compare_classes has {len(classes)} classes; from 2 to {most} can be compared")
    return _encode_owners(_owners(session, task, classes, job.on_progress))


def _owners(session: Session, question: Question, classes: Sequence[int], on_progress: Progress) -> vt.Explanation:
    method = class_assignment_method(session.model(question.model))
    changes: dict[str, Any] = {"target": classes[0], "contrast": None, "output": "logprob", "compare_classes": classes}
    (explanation,) = session.compare(question, [method], on_progress, **changes)
    return explanation


def _encode_owners(e: vt.Explanation) -> dict[str, Any]:
    distribution, maps = (e.extras[name].double().numpy() for name in ("distribution", "maps"))
    colours = ["#" + bytes(colour).hex() for colour in viz.class_colours(len(distribution))]
    indices = [index for index in e.extras["classes"].tolist() if index >= 0]
    classes = zip(indices, e.class_names, colours, strict=False)
    return {
        "method": f'{e.method[:-1]}, classes="{",".join(map(str, indices))}")',  # what gives the same elsewhere
        "output": e.output,
        "distribution": encode_array(distribution),
        "strength": encode_array(strength(maps)),
        "classes": [{"index": index, "label": label, "colour": colour} for index, label, colour in classes],
    }


def why(session: Session, task: Task, job: QueuedWork) -> dict[str, Any]:
    """Return what stands on the page of ``vitreous why`` beside its maps, as data."""
    question = task.question.model_copy(update={"contrast": None})  # the contrast is a part of the answer
    e = session.explain(question, job.part(0.0, 0.2)).explanation
    if e.target is None:
        raise Refused(422, "why asks about a class")
    question_of_class = session.resolve(question).model_copy(update={"target": e.target})

    def explain(method: str | None = None, contrast: int | None = None, compare_classes: Any = None) -> vt.Explanation:
        if method is not None:
            return _owners(session, question, compare_classes, job.part(0.35, 0.4))
        versus = question_of_class.model_copy(update={"contrast": contrast})
        return session.explain(versus, job.part(0.2, 0.35)).explanation

    def check() -> vt.CheckResult:
        job.on_progress(0.4)
        return session.check(question, lambda first, last: job.part(0.4 + 0.6 * first, 0.4 + 0.6 * last))

    command = export.why_command(session, question_of_class)
    answer = build(session.model(question.model), e, explain, check, command)
    page = answer.page()
    return {
        **attributes(page, "title", "lead", "trust_text", "command", "settings"),
        "criterion": answer.criterion,
        "notes": [test.note for test in page.tried],
        "trust": list(page.trust),
        "owners": None if answer.class_assignment is None else _encode_owners(answer.class_assignment),
    }
