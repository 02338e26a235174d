"""Tasks about one map: the map itself, why, who owns which patch, and how far to trust it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import vitreous as vt
from vitreous import show
from vitreous.because import COMPETES, Why, assemble, owning, trust
from vitreous.explorer import lines, trying
from vitreous.explorer.desk import Desk, Tick
from vitreous.explorer.jobs import Job
from vitreous.explorer.wire import Question, Refused, array, png
from vitreous.show.owners import strength

__all__ = ["check", "explain", "map_of", "owners", "why"]

_MOST_OWNERS = 12


def explain(desk: Desk, question: Question, job: Job, together: Sequence[Question] = ()) -> dict[str, Any]:
    """Return a map; cheap maps that were asked for together share their passes."""
    desk.prepare(together, job.tick)
    made = desk.made(question, job.tick)
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
        "value": e.value,
        "identity": None if e.identity is None else dict(e.identity),
    }


def check(desk: Desk, question: Question, job: Job) -> dict[str, Any]:
    """Return what cheap tests say about a map."""
    found = desk.checked(question, job.part)
    return {"verdict": found.verdict, "sentence": found.sentence, "tests": _tests(found)}


def _tests(found: vt.Checkup) -> list[dict[str, str]]:
    return [{"name": each.name, **dataclasses.asdict(trust(each))} for each in found.tests]


def owners(desk: Desk, question: Question, job: Job, among: Sequence[int]) -> dict[str, Any]:
    """Return which of some classes owns which patch, by VAR."""
    return _owners_of(_owned(desk, question, among, job.tick))


def _owned(desk: Desk, question: Question, among: Sequence[int], tick: Tick) -> vt.Explanation:
    view, photo = desk.model(question.model), desk.pictures.get(question.picture)
    found: vt.Explanation = vt.compare(
        view,
        photo.image,
        [owning(view)],
        among[0],
        among=list(among),
        value="logprob",
        seed=question.seed,
        memory=desk.memory,
        progress=tick,
    )[0]
    return found


def _owners_of(e: vt.Explanation) -> dict[str, Any]:
    shares, maps = (e.extras[name].double().numpy() for name in ("distribution", "maps"))
    colours = ["#" + bytes(colour).hex() for colour in show.class_colours(len(shares))]
    indices = [each for each in e.extras["classes"].tolist() if each >= 0]
    named = zip(indices, e.names, colours, strict=False)
    return {
        "method": f'{e.method[:-1]}, classes="{",".join(map(str, indices))}")',  # what gives the same elsewhere
        "value": e.asked,
        "distribution": array(shares),
        "strength": array(strength(maps)),
        "classes": [{"index": index, "label": label, "colour": colour} for index, label, colour in named],
    }


def given_among(task: Mapping[str, Any], view: vt.View) -> list[int]:
    """Read the classes that are to be compared."""
    given = task.get("among")
    if not isinstance(given, list) or not all(type(each) is int for each in given):
        raise Refused(422, "among must be a list of class indices")
    classes = list(dict.fromkeys(view.class_index(each) for each in given))
    if not 2 <= len(classes) <= _MOST_OWNERS:
        raise Refused(422, f"among names {len(classes)} classes; from 2 to {_MOST_OWNERS} can be compared")
    return classes


def why(desk: Desk, question: Question, job: Job) -> dict[str, Any]:
    """Return all that stands on the page of ``vitreous why``, as data."""
    question = dataclasses.replace(question, against=None)  # the contrast is a part of the answer
    view, photo = desk.model(question.model), desk.pictures.get(question.picture)
    made = desk.made(question, job.part(0.0, 0.2))
    e = made.explanation
    if e.target is None:
        raise Refused(422, "why asks about a class")
    now = trying.chances(view, desk.seen(question.model, photo))
    order = now.argsort(descending=True, stable=True).tolist()
    rival = next((each for each in order if each != e.target), None)
    contrast = owned = None
    if rival is not None and e.class_specific:
        versus = dataclasses.replace(question, target=e.target, against=rival)
        contrast = desk.made(versus, job.part(0.2, 0.35)).explanation
        if min(float(now[rival]), float(now[e.target])) >= COMPETES:
            owned = _owned(desk, question, [e.target, rival], job.part(0.35, 0.4))
    job.tick(0.4)
    checkup = desk.checked(question, lambda first, last: job.part(0.4 + 0.6 * first, 0.4 + 0.6 * last))
    told = assemble(view, e, now, contrast, owned, checkup, _command(desk, question, e))
    return map_of(e) | {"warnings": list(made.warnings)} | _page(told, order, rival)


def _page(told: Why, order: Sequence[int], rival: int | None) -> dict[str, Any]:
    page, e = told.page(), told.explanation
    against = None
    if told.contrast is not None:
        against = map_of(told.contrast) | {"label": e.label, "rival": told.rival, "index": rival}
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
        "contrast": against,
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
