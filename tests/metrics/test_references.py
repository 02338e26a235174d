"""Every metric against its definition written out slowly: one image, one state at a time, the model called directly."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from vitreous.metrics import BASELINES

LABELS = [0, 3, 1, 4]


@pytest.fixture(scope="module")
def model() -> Any:
    return FAMILIES["vit"]()


@pytest.fixture(scope="module")
def inputs(model: Any) -> Tensor:
    return images(model, 4)


def pixel_maps(seed: int = 5) -> Tensor:
    """No two values are equal, so that no tie rule is needed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(32 * 32, generator=generator).view(32, 32).float() for _ in range(4)])


def token_maps() -> Tensor:
    generator = torch.Generator().manual_seed(9)
    return torch.stack([torch.randperm(16, generator=generator).view(4, 4).float() for _ in range(4)])


def probabilities(model: Any, image: Tensor) -> list[float]:
    with torch.no_grad():
        logits = model(image[None])[0].tolist()
    top = max(logits)
    parts = [math.exp(z - top) for z in logits]
    return [part / sum(parts) for part in parts]


def best(values: list[float]) -> int:
    return values.index(max(values))


def by_importance(values: Tensor) -> list[tuple[int, int]]:
    places = [(r, c) for r in range(values.shape[0]) for c in range(values.shape[1])]
    return sorted(places, key=lambda place: -float(values[place]))


def painted(image: Tensor, baseline: Tensor, where: list[tuple[int, int]]) -> Tensor:
    """The image with these pixels taken from the baseline."""
    built = image.clone()
    for row, column in where:
        built[:, row, column] = baseline[:, row, column]
    return built


def trapezoid(x: list[float], y: list[float]) -> float:
    return sum((x[j + 1] - x[j]) * (y[j] + y[j + 1]) / 2 for j in range(len(x) - 1))


# -- baselines, one pixel at a time -------------------------------------------------------------------


def colour(value: float, model: vt.VisionModel, image: Tensor) -> Tensor:
    built = torch.empty_like(image)
    for channel in range(3):
        built[channel] = (value - model.preprocess.mean[channel]) / model.preprocess.std[channel]
    return built


def blurred(image: Tensor, kernel: np.ndarray, border: str) -> Tensor:
    reach = kernel.shape[0] // 2
    mode: dict[str, Any] = {"mode": "reflect"} if border == "reflect" else {"mode": "constant"}
    array = image.double().numpy()
    padded = np.pad(array, ((0, 0), (reach, reach), (reach, reach)), **mode)
    built = np.zeros_like(array)
    for row in range(array.shape[1]):
        for column in range(array.shape[2]):
            window = padded[:, row : row + kernel.shape[0], column : column + kernel.shape[1]]
            built[:, row, column] = (window * kernel).sum(axis=(1, 2))
    return torch.from_numpy(built).to(image.dtype)


def gaussian_blur(size: int, sigma: float) -> np.ndarray:
    reach = size // 2
    grid = np.array([[math.exp(-(r * r + c * c) / (2 * sigma**2)) for c in range(-reach, reach + 1)]
                     for r in range(-reach, reach + 1)])  # fmt: skip
    return grid / grid.sum()


def rise() -> np.ndarray:
    from scipy.ndimage import gaussian_filter

    impulse = np.zeros((11, 11))
    impulse[5, 5] = 1
    return gaussian_filter(impulse, 5)


EXPECTED_BASELINES: dict[str, Callable[[vt.VisionModel, Tensor], Tensor]] = {
    "zero_norm": lambda view, x: torch.zeros_like(x),
    "black": lambda view, x: colour(0.0, view, x),
    "grey127": lambda view, x: colour(127 / 255, view, x),
    "mean_scalar": lambda view, x: torch.full_like(x, float(x.mean())),
    "mean_channel": lambda view, x: torch.stack([torch.full_like(c, float(c.mean())) for c in x]),
    "blur_rise": lambda view, x: blurred(x, rise(), "zero"),
    "blur_tv": lambda view, x: blurred(x, gaussian_blur(11, 5), "reflect"),
    "blur_51": lambda view, x: blurred(x, gaussian_blur(51, 50), "reflect"),
}


@pytest.mark.parametrize("name", EXPECTED_BASELINES)
def test_baselines(model: Any, inputs: Tensor, name: str) -> None:
    vision_model = vt.wrap(model)
    actual = BASELINES[name].make(inputs, vision_model.preprocess, 0).expand_as(inputs)
    expected = torch.stack([EXPECTED_BASELINES[name](vision_model, x) for x in inputs])
    torch.testing.assert_close(actual, expected, atol=2e-6, rtol=1e-5)


def test_uniform_baseline(model: Any, inputs: Tensor) -> None:
    uniform = BASELINES["uniform_norm"]
    assert uniform.random
    preprocess = vt.wrap(model).preprocess
    actual = uniform.make(inputs, preprocess, 0)
    assert actual.min() >= 0
    assert actual.max() < 1
    assert abs(float(actual.mean()) - 0.5) < 0.02
    alone = uniform.make(inputs[2:3], preprocess, 0)
    assert torch.equal(alone[0], actual[2]), "noise depends on the neighbours"
    assert not torch.equal(uniform.make(inputs, preprocess, 1), actual)


# -- curves --------------------------------------------------------------------------------------------


def insertion_deletion(
    model: Any, image: Tensor, values: Tensor, insert: str | None, delete: str | None, steps: int, scored: int
) -> tuple[list[float], list[float], list[float]]:
    """The fractions, and the probability at each for insertion and deletion."""
    vision_model, order = vt.wrap(model), by_importance(values)
    width = math.ceil(len(order) / steps)
    counts = [min(len(order), j * width) for j in range(steps + 1)]
    inserted, deleted = [], []
    for k in counts:
        if insert:
            inserted.append(
                probabilities(model, painted(EXPECTED_BASELINES[insert](vision_model, image), image, order[:k]))[scored]
            )
        if delete:
            deleted.append(
                probabilities(model, painted(image, EXPECTED_BASELINES[delete](vision_model, image), order[:k]))[scored]
            )
    return [k / len(order) for k in counts], inserted, deleted


def actual(model: Any, inputs: Tensor, maps: Tensor, spec: str, **options: Any) -> np.ndarray:
    table = vt.evaluate(model, inputs, {"it": maps}, spec, labels=LABELS, controls=False, n_bootstrap=10, **options)
    return table["it", spec]


@pytest.mark.parametrize(
    ("spec", "insert", "delete"),
    [
        ("insertion@rise", "blur_rise", None),
        ("deletion@rise", None, "zero_norm"),
        ("insdel", "blur_rise", "zero_norm"),
        ("insertion(steps=7, baseline=mean_channel)", "mean_channel", None),
    ],
)
def test_insertion_and_deletion(model: Any, inputs: Tensor, spec: str, insert: str | None, delete: str | None) -> None:
    maps = pixel_maps()
    steps = 7 if "steps=7" in spec else 28
    scores = actual(model, inputs, maps, spec)
    for image, values, score in zip(inputs, maps, scores, strict=True):
        scored = best(probabilities(model, image))
        at, up, down = insertion_deletion(model, image, values, insert, delete, steps, scored)
        expected = (trapezoid(at, up) if insert else 0) - (trapezoid(at, down) if delete else 0)
        assert score == pytest.approx(expected if insert else -expected, abs=1e-5)


def test_coiba(model: Any, inputs: Tensor) -> None:
    """The true class, deletion to black, insertion from the 51 pixel blur."""
    maps = pixel_maps()
    scores = {name: actual(model, inputs, maps, f"{name}@coiba") for name in ("insertion", "deletion", "insdel")}
    for i, (image, values) in enumerate(zip(inputs, maps, strict=True)):
        at, up, down = insertion_deletion(model, image, values, "blur_51", "black", 28, LABELS[i])
        assert scores["insertion"][i] == pytest.approx(trapezoid(at, up), abs=1e-5)
        assert scores["deletion"][i] == pytest.approx(trapezoid(at, down), abs=1e-5)
        assert scores["insdel"][i] == pytest.approx(trapezoid(at, up) - trapezoid(at, down), abs=1e-5)


def test_tis(model: Any, inputs: Tensor) -> None:
    """The mean of the points after each step, without the start, for any baseline, in the true class."""
    maps = pixel_maps()
    text = "insdel@tis(steps=16, insertion_baseline=mean_scalar, deletion_baseline=mean_scalar)"
    scores = actual(model, inputs, maps, text)
    assert vt.get_metric("deletion@tis").steps == 224
    for i, (image, values) in enumerate(zip(inputs, maps, strict=True)):
        _, up, down = insertion_deletion(model, image, values, "mean_scalar", "mean_scalar", 16, LABELS[i])
        assert scores[i] == pytest.approx(np.mean(up[1:]) - np.mean(down[1:]), abs=1e-5)


def removal(model: Any, image: Tensor, values: Tensor, fractions: list[float], most: bool) -> list[list[float]]:
    """Probabilities after the most (or least) relevant share of the pixels has turned black."""
    order = by_importance(values if most else -values)
    black = EXPECTED_BASELINES["black"](vt.wrap(model), image)
    return [
        probabilities(model, painted(image, black, order[: math.floor(round(share * len(order), 6))]))
        for share in fractions
    ]


@pytest.mark.parametrize("order", ["positive", "negative"])
@pytest.mark.parametrize("preset", ["", "@chefer"])
def test_perturbation_accuracy(model: Any, inputs: Tensor, order: str, preset: str) -> None:
    maps = pixel_maps()
    scores = actual(model, inputs, maps, f"{order}_perturbation{preset}")
    fractions = [j / 10 for j in range(10)] if preset else [j / 20 for j in range(21)]
    for i, (image, values) in enumerate(zip(inputs, maps, strict=True)):
        curve = removal(model, image, values, fractions, order == "positive")
        right = [float(best(item) == LABELS[i]) for item in curve]
        assert scores[i] == pytest.approx(trapezoid(fractions, right), abs=1e-9)  # 0.9 wide for Chefer's grid


def test_aopc_lodds_srg(model: Any, inputs: Tensor) -> None:
    maps = pixel_maps()
    names = ("aopc", "lodds", "srg", "aopc(include_zero=false)")
    scores = {name: actual(model, inputs, maps, name) for name in names}
    fractions = [j / 20 for j in range(21)]
    for i, (image, values) in enumerate(zip(inputs, maps, strict=True)):
        scored = best(probabilities(model, image))
        most = [item[scored] for item in removal(model, image, values, fractions, True)]
        least = [item[scored] for item in removal(model, image, values, fractions, False)]
        drops = [most[0] - p for p in most]
        assert scores["aopc"][i] == pytest.approx(sum(drops) / 21, abs=1e-5)
        assert scores["aopc(include_zero=false)"][i] == pytest.approx(sum(drops) / 20, abs=1e-5)
        assert scores["lodds"][i] == pytest.approx(-sum(math.log(most[0] / p) for p in most) / 21, abs=1e-4)
        assert scores["srg"][i] == pytest.approx(trapezoid(fractions, least) - trapezoid(fractions, most), abs=1e-5)


def run_tokens(model: Any, image: Tensor, keep: list[int]) -> list[float]:
    """The blocks of timm's own model on a shorter sequence."""
    with torch.no_grad():
        tokens = model._pos_embed(model.patch_embed(image[None]))
        tokens = tokens[:, [0, *(1 + item for item in keep)]]
        for block in model.blocks:
            tokens = block(tokens)
        logits = model.forward_head(model.norm(tokens))[0].tolist()
    parts = [math.exp(z - max(logits)) for z in logits]
    return [part / sum(parts) for part in parts]


@pytest.mark.parametrize("preset", ["", "@skipplus"])
def test_token_removal(model: Any, inputs: Tensor, preset: str) -> None:
    maps = token_maps()
    names = ["token_deletion_accuracy", "token_insertion_accuracy", "token_deletion_aopc", "token_insertion_aopc"]
    scores = {name: actual(model, inputs, maps, name + preset) for name in names}
    for i, (image, values) in enumerate(zip(inputs, maps, strict=True)):
        order = sorted(range(16), key=lambda t: -float(values.flatten()[t]))
        full = probabilities(model, image)
        scored = LABELS[i] if preset else best(full)
        deletion, insertion = [full], []
        for ratio in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
            k = round(ratio * 16)
            deletion.append(run_tokens(model, image, sorted(order[k:])))
            insertion.append(run_tokens(model, image, sorted(order[:k])))
        insertion.append(full)
        gone, there = [j / 10 for j in range(10)], [j / 10 for j in range(1, 11)]

        def accuracy(at: list[float], curve: list[list[float]], truth: int = LABELS[i]) -> float:
            return trapezoid(at, [float(best(item) == truth) for item in curve]) / 0.9

        def aopc(at: list[float], curve: list[list[float]], full: list = full, scored: int = scored) -> float:
            return trapezoid(at, [full[scored] - item[scored] for item in curve]) / 0.9

        expected = [
            accuracy(gone, deletion), accuracy(there, insertion), aopc(gone, deletion), aopc(there, insertion)
        ]  # fmt: skip
        if preset:  # in percent, and up is better for all four
            expected = [100 * (1 - expected[0]), 100 * expected[1], 100 * expected[2], 100 * (1 - expected[3])]
        for name, value in zip(names, expected, strict=True):
            assert scores[name][i] == pytest.approx(value, abs=1e-3 if preset else 1e-5), name


def test_pixel_maps_are_summed_into_tokens(model: Any, inputs: Tensor) -> None:
    fine = torch.randn(4, 32, 32, generator=torch.Generator().manual_seed(2))
    coarse = torch.zeros(4, 4, 4)
    for row in range(32):
        for column in range(32):
            coarse[:, row // 8, column // 8] += fine[:, row, column]
    name = "token_deletion_aopc"
    np.testing.assert_allclose(actual(model, inputs, fine, name), actual(model, inputs, coarse, name), atol=1e-6)


@pytest.mark.parametrize(("baseline", "method"), [("zero_norm", None), ("black", "relu"), ("zero_norm", "minmax")])
def test_average_drop_increase_gain(model: Any, inputs: Tensor, baseline: str, method: str | None) -> None:
    """The positive part of the map, or the map as it is, by its extremes to 0 .. 1; never its absolute value."""
    maps = torch.randn(4, 32, 32, generator=torch.Generator().manual_seed(4))
    maps[1] += 10  # positive everywhere
    maps[2] -= 1  # mostly negative
    more = "" if method is None else f", normalization={method}"
    scores = {
        name: actual(model, inputs, maps, f"average_{name}(baseline={baseline}{more})")
        for name in ("drop", "increase", "gain")
    }
    for i, (image, values) in enumerate(zip(inputs, maps, strict=True)):
        size = values if method == "minmax" else values.clamp(min=0)
        mask = (size - size.min()) / (size.max() - size.min())
        other = EXPECTED_BASELINES[baseline](vt.wrap(model), image)
        masked = probabilities(model, other + mask * (image - other))
        full = probabilities(model, image)
        p, q = max(full), masked[best(full)]
        assert scores["drop"][i] == pytest.approx(max(p - q, 0) / p, abs=1e-5)
        assert scores["increase"][i] == float(q > p)
        assert scores["gain"][i] == pytest.approx(max(q - p, 0) / (1 - p), abs=1e-5)


def test_the_positive_part_of_a_coarse_map_is_taken_before_it_is_enlarged(model: Any, inputs: Tensor) -> None:
    """As class activation maps have it: a ReLU on their own grid, then interpolation."""
    coarse = torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(6))
    fine = torch.nn.functional.interpolate(coarse.clamp(min=0)[:, None], (32, 32), mode="bilinear")[:, 0]
    np.testing.assert_allclose(
        actual(model, inputs, coarse, "average_drop"), actual(model, inputs, fine, "average_drop"), atol=5e-6
    )


def test_a_map_that_is_positive_nowhere_leaves_the_baseline_alone(model: Any, inputs: Tensor) -> None:
    maps = -torch.rand(4, 32, 32, generator=torch.Generator().manual_seed(5))
    constant = torch.ones(4, 32, 32)
    drop = actual(model, inputs, maps, "average_drop")
    np.testing.assert_array_equal(drop, actual(model, inputs, constant, "average_drop"))
    assert (drop != actual(model, inputs, maps, "average_drop(normalization=minmax)")).any()


def test_coarse_maps_are_interpolated(model: Any, inputs: Tensor) -> None:
    """Bilinear with half-pixel centres, as torch has it; nearest takes a patch away whole, in reading order."""
    maps = token_maps()
    fine = torch.nn.functional.interpolate(maps[:, None], size=(32, 32), mode="bilinear", align_corners=False)[:, 0]
    np.testing.assert_array_equal(actual(model, inputs, maps, "deletion"), actual(model, inputs, fine, "deletion"))

    patchwise = torch.zeros(4, 32, 32)
    for row in range(32):
        for column in range(32):
            inside = (row % 8) * 8 + column % 8
            patchwise[:, row, column] = maps[:, row // 8, column // 8] * 64 + 63 - inside
    nearest = actual(model, inputs, maps, "deletion", interpolation="nearest")
    np.testing.assert_array_equal(nearest, actual(model, inputs, patchwise, "deletion"))


def test_restricted_softmax(model: Any, inputs: Tensor) -> None:
    """Only the named classes compete; the others have no probability."""
    maps, few = pixel_maps(), [0, 1, 3, 4]
    scores = actual(model, inputs, maps, "deletion(steps=4, score_class=label)", class_subset=few)
    for i, (image, values) in enumerate(zip(inputs, maps, strict=True)):
        at, curve, order = [], [], by_importance(values)
        for j in range(5):
            p = probabilities(model, painted(image, torch.zeros_like(image), order[: 256 * j]))
            at.append(j / 4)
            curve.append(p[LABELS[i]] / sum(p[c] for c in few))
        assert scores[i] == pytest.approx(trapezoid(at, curve), abs=1e-5)
