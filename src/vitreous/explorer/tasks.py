"""Which kinds of tasks there are, and what each needs beside its question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from vitreous.errors import VitreousError
from vitreous.explorer import asking, looking, trying
from vitreous.explorer.desk import Desk
from vitreous.explorer.jobs import Job, Work
from vitreous.explorer.wire import Question, given_array, text, whole
from vitreous.words import check_choice

__all__ = ["works"]


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
        return Work(lambda job: asking.explain(desk, question, job, alike), lambda: desk.knows(question))
    return Work(partial(_other, desk, kind, question, task))


def _refuse(error: VitreousError, job: Job) -> dict[str, Any]:
    raise error


def _other(desk: Desk, kind: str, question: Question, task: Mapping[str, Any], job: Job) -> dict[str, Any]:
    view = desk.model(question.model)
    if kind == "owners":
        return asking.owners(desk, question, job, asking.given_among(task, view))
    if kind == "heads":
        return looking.heads(desk, question, job, whole(task, "layer", 0, view.depth) or 0)
    if kind == "curve":
        fill = text(task, "fill", 20, "blur") or ""
        check_choice("fill", fill, trying.FILLS)
        return looking.curve(desk, question, job, given_array(task.get("map")), fill)
    known = {"why": asking.why, "check": asking.check, "layers": looking.layers}
    return known[kind](desk, question, job)
