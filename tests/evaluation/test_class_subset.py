"""The softmax among some classes, for explainers as for metrics; and captions that name the value explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitreous as vt
from commands import run
from families import FAMILIES, images

ONLY = [1, 2, 4]


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


@pytest.fixture(scope="module")
def x(model: vt.VisionModel) -> Tensor:
    return images(model, 6)


def restricted(model: Any, x: Tensor) -> Tensor:
    """Log-probabilities among ONLY, by a softmax over these logits alone."""
    return model(x)[:, ONLY].log_softmax(dim=1)


@pytest.mark.parametrize("value", ["prob", "logprob"])
def test_the_value_is_that_among_the_classes(model: vt.VisionModel, x: Tensor, value: str) -> None:
    result = vt.get_method("input_x_gradient").attribute(model, x, target=2, output=value, class_subset=ONLY)
    provided = x.clone().requires_grad_()
    log = restricted(model.module, provided)[:, 1]
    score = log if value == "logprob" else log.exp()
    (gradient,) = torch.autograd.grad(score.sum(), provided)
    torch.testing.assert_close(result, (gradient * provided).sum(dim=1).detach(), rtol=1e-4, atol=1e-7)


def test_the_prediction_and_its_probability_are_among_them(model: vt.VisionModel, x: Tensor) -> None:
    with torch.no_grad():
        log, free = restricted(model.module, x), model.module(x).argmax(dim=1)
    result = vt.explain(model, x, "ixg", class_subset=ONLY)
    assert [e.target for e in result] == [ONLY[best] for best in log.argmax(dim=1).tolist()]
    np.testing.assert_allclose([e.probability for e in result], log.exp().amax(dim=1), rtol=1e-4)
    assert {e.request.class_subset for e in result} == {tuple(ONLY)}
    assert [e.target for e in result] != free.tolist(), "of these images some are predicted otherwise"


def test_coibas_cross_entropy_is_among_them(model: vt.VisionModel, x: Tensor) -> None:
    """Among two classes it is another map; among all of them it is the same."""
    options = "coiba(steps=3, samples=2)"
    free = vt.get_method(options).attribute(model, x, target=2)
    every = vt.get_method(options).attribute(model, x, target=2, class_subset=range(5))
    two = vt.get_method(options).attribute(model, x, target=2, class_subset=[2, 4])
    torch.testing.assert_close(every, free)
    assert not torch.allclose(two, free, rtol=1e-3)


def test_sets_of_probable_classes_are_among_them(model: vt.VisionModel, x: Tensor) -> None:
    for e in vt.explain(model, x, "var(ixg, classes=top:2)", class_subset=ONLY):
        assert set(e.extras["classes"].tolist()) <= set(ONLY)


@pytest.mark.parametrize(
    ("classes", "target", "message"),
    [
        ([1], None, "two classes at least"),
        ([0, 7], None, "class index 7 is outside 0..4"),
        ("01", None, "is not a list of classes"),
        ([0, 1], 3, "target class is not among the 2 classes"),
    ],
)
def test_bad_restrictions(model: vt.VisionModel, x: Tensor, classes: Any, target: Any, message: str) -> None:
    with pytest.raises(vt.VitreousError, match=message):
        vt.explain(model, x, "ixg", target=target, class_subset=classes)


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8)).save(f"{name}.png")
    model = vt.load("world")
    report = json.loads(
        run("explain", "a.png", "--model", "world", "--method", "logprob(ixg)", "--class-subset", "3,5,8", "--json").out
    )
    (report,) = report["explanations"]
    e = vt.explain(model, "a.png", "logprob(ixg)", class_subset=[3, 5, 8])
    assert report["target"] == e.target
    assert e.target in (3, 5, 8)
    assert report["probability"] == pytest.approx(e.probability, rel=1e-4)
    scored = json.loads(
        run(
            "evaluate",
            "world",
            "a.png",
            "b.png",
            "--method",
            "ixg",
            "--metric",
            "average_drop",
            "--class-subset",
            "3,5,8",
            "--json",
        ).out
    )
    assert scored["plan"]["class_subset"] == [3, 5, 8]
    np.testing.assert_allclose(scored["confidence"]["pred"][0], e.probability, rtol=1e-4)


# -- captions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ("ixg", "logit"),
        ("logprob(ixg)", "logprob"),
        ("smooth(logprob(ixg), samples=2)", "logprob"),
        ("plus(logprob(ixg))", "logprob"),
        ("skipplus(logprob(ixg), start=1)", "logprob"),
        ("var(logprob(ixg))", "logprob"),
        ("consensus(logprob(ixg), logprob(generic))", "logprob"),
        ("vtranm", "prob"),
    ],
)
def test_captions_name_the_value_that_was_explained(model: vt.VisionModel, x: Tensor, spec: str, value: str) -> None:
    e = vt.explain(model, x[0], spec)
    assert e.output == value
    assert f", {value} of " in e.caption
    assert vt.compare(model, x[0], [spec]).rows[0][0].output == value
