"""Why, in the explorer: what stands on the library's own page; and a map put to the test, state by state."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from vitreous.web.schemas import encode_array
from vitreous.world import World, pair, render
from web_server import PAIR, SCENE, Client, class_probabilities, decoded, opened, world

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    pixels = render(pair(World("test", 1, start=5).batch())).images[0]
    return Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).numpy())


@pytest.fixture(scope="module")
def content(client: Client) -> dict[str, Any]:
    (message,) = client.tasks({**PAIR, "kind": "why", "method": "quick"})
    assert message["event"] == "result", message
    return message


@pytest.fixture(scope="module")
def expected(picture: Image.Image) -> vt.Why:
    return vt.why(world(), picture)


def test_it_is_the_page_of_why(content: dict[str, Any], expected: Any) -> None:
    page = expected.page()
    for name in ("title", "lead", "trust_text", "settings"):
        assert content[name] == getattr(page, name)
    assert content["criterion"] == expected.criterion
    assert content["trust"] == list(page.trust)
    assert content["notes"] == [tried.note for tried in page.tried]


def test_its_maps_are_those_of_why(client: Client, content: dict[str, Any], expected: Any) -> None:
    """Those of the class and of the contrast are asked for by themselves."""
    target, (other, _), owners = expected.explanation.target, expected.runner_up, content["owners"]
    asked = {**PAIR, "kind": "explain", "method": "quick", "target": target}
    own, contrast = client.tasks(asked, {**asked, "contrast": other})
    assert np.allclose(decoded(own["map"]), expected.explanation.map, rtol=1e-4, atol=1e-6)
    assert np.allclose(decoded(contrast["map"]), expected.contrast.map, rtol=1e-4, atol=1e-6)
    assert np.allclose(decoded(owners["distribution"]), expected.class_assignment.extras["distribution"], atol=1e-4)
    assert [owner["label"] for owner in owners["classes"]] == [expected.explanation.label, expected.runner_up[1]]


def test_a_class_that_has_no_rival_has_no_owners(client: Client) -> None:
    assert client.task("why", method="ixg")["owners"] is None


def test_a_method_that_knows_no_class_has_no_owners(client: Client) -> None:
    assert client.task("why", method="rollout")["owners"] is None


def test_the_check_is_that_of_the_library(client: Client) -> None:
    message = client.task("check", method="ixg")
    scene = next(World("test", 1, start=3).images())
    expected = vt.check(vt.explain(world(), scene, "ixg"), world())
    assert (message["verdict"], message["sentence"]) == (expected.verdict, expected.sentence)
    assert [(entry["name"], entry["verdict"]) for entry in message["tests"]] == [
        (test.name, test.verdict) for test in expected.tests
    ]
    assert all(entry["word"] and entry["sentence"].endswith(".") for entry in message["tests"])


# -- deletion and insertion ------------------------------------------------------------------------------


def without(picture: Image.Image, gone: set[int]) -> Image.Image:
    """Black patches, painted one by one."""
    pixels = np.array(picture)
    for patch in gone:
        row, column = divmod(patch, 16)
        pixels[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 0
    return Image.fromarray(pixels)


def test_every_point_of_the_curve_is_the_models_answer(client: Client, picture: Image.Image) -> None:
    (explained,) = client.tasks({**PAIR, "kind": "explain", "method": "ixg", "target": 4})
    asked = {**PAIR, "kind": "curve", "target": 4, "map": explained["map"], "fill": "black"}
    (message,) = client.tasks(asked)
    values = decoded(explained["map"]).flatten()
    order = sorted(range(256), key=lambda patch: (-values[patch], patch))
    assert message["removed"] == [step / 16 for step in range(17)]
    for step in (0, 1, 5, 16):
        top = set(order[: 16 * step])
        expected = [
            float(class_probabilities(world(), without(picture, gone))[4]) for gone in (top, set(range(256)) - top)
        ]
        assert (message["deletion"][step], message["insertion"][step]) == pytest.approx(expected, abs=1e-5)
    for name in ("deletion", "insertion"):
        curve = message[name]
        area = sum((first + second) / 2 / 16 for first, second in pairwise(curve))
        assert message["auc"][name] == pytest.approx(area)
        assert message["random"][name][0] == pytest.approx(curve[0], abs=1e-6)
        assert message["random"][name][-1] == pytest.approx(curve[-1], abs=1e-6)
    assert len(message["strip"]) == 6
    for entry in message["strip"]:
        visible = opened(entry["picture"])
        assert float(class_probabilities(world(), visible)[4]) == pytest.approx(entry["probability"], abs=1e-5)
        assert np.array_equal(visible, without(picture, set(order[: round(256 * entry["fraction"])])))


def test_the_random_curves_are_means_over_orders_and_their_reverses(client: Client) -> None:
    """The same for every map; the steps from two orders of a seed, written out."""
    picture = next(World("test", 1, start=3).images())
    target = client.fine("/api/predict", SCENE)["top"][0]["index"]
    first, second = (
        client.task("curve", map=client.task("explain", method=name)["map"], fill="black") for name in ("ixg", "centre")
    )
    assert first["random"] == second["random"]
    assert first["deletion"] != second["deletion"]
    assert first["target"] == target
    draw, step, message = np.random.default_rng(0), 5, []
    for order in (draw.permutation(256), draw.permutation(256)):
        for entry in (order, order[::-1]):
            message.append(
                float(class_probabilities(world(), without(picture, set(entry[: 16 * step].tolist())))[target])
            )
    assert first["random"]["deletion"][step] == pytest.approx(np.mean(message), abs=1e-5)
    assert first["random"]["insertion"][16 - step] == pytest.approx(np.mean(message), abs=1e-5)


def test_a_map_of_pixels_is_summed_into_patches(client: Client) -> None:
    fine = client.task("explain", method="saliency")["map"]
    coarse = decoded(fine).reshape(16, 8, 16, 8).sum(axis=(1, 3))
    assert client.task("curve", map=fine)["deletion"] == client.task("curve", map=encode_array(coarse))["deletion"]


def test_why_is_about_the_class_itself(client: Client) -> None:
    """A rival that is held against it changes no number: the probabilities on the page are those among all classes."""
    (reference,) = client.tasks({**PAIR, "kind": "why", "method": "ixg", "target": 4})
    (contrast,) = client.tasks({**PAIR, "kind": "why", "method": "ixg", "target": 4, "contrast": 9})
    for name in ("title", "lead", "trust", "notes", "criterion"):
        assert reference[name] == contrast[name]
    prediction = client.fine("/api/predict", PAIR)["top"][0]["index"]
    assert (reference["title"].startswith("Why “")) == (prediction == 4)
    assert [bool(note) for note in reference["notes"]] == [False, True, True]
