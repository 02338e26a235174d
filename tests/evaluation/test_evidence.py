"""Is the strongest fifth needed, and is it enough? The numbers against slow definitions, the verdict against both."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torch import Tensor

import vitreous as vt
from families import FAMILIES, _build
from vitreous.evaluation.evidence import Evidence, moved, on_pixels, replaced, strongest
from vitreous.html import percent, printed
from vitreous.tracing.prng import PRNGKey


def photo(seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"](), name="tiny")


def probability(model: vt.VisionModel, picture: Image.Image, target: int, compare_classes: list[int]) -> float:
    """The softmax written out, of a picture of eight bits."""
    logits = model.logits(model.preprocess.to_tensor(picture)[None])[0].double()
    return float(logits[target].exp() / logits[compare_classes].exp().sum())


def patched(picture: Image.Image, gone: np.ndarray[Any, Any]) -> Image.Image:
    """Patches painted one by one from a blurred copy."""
    blurred = picture.filter(ImageFilter.GaussianBlur(max(picture.size) / 14))
    created = picture.copy()
    height, width = picture.height // gone.shape[0], picture.width // gone.shape[1]
    for row, column in np.argwhere(gone):
        box = (column * width, row * height, (column + 1) * width, (row + 1) * height)
        created.paste(blurred.crop(box), box)
    return created


@pytest.mark.parametrize("contrast", [(), (0, 3)])
def test_faithfulness_is_the_strongest_fifth_against_the_same_patches_elsewhere(
    model: vt.VisionModel, contrast: tuple[int, ...]
) -> None:
    """Every picture painted, every place tried, in the order of the random numbers."""
    e = vt.explain(model, photo(), "generic", 2, contrast=contrast or None, seed=3)
    compare_classes = [2, *contrast] if contrast else list(range(5))
    values = e.map.numpy()
    count = round(values.size / 5)
    own = np.zeros(values.size, bool)
    own[sorted(range(values.size), key=lambda patch: (-values.flat[patch], patch))[:count]] = True
    own = own.reshape(values.shape)
    draws = PRNGKey.of_images(3, "check", model.preprocess.to_tensor(e.image)[None])
    places: list[np.ndarray[Any, Any]] = []
    for shift in draws.permutation(values.size)[0].tolist():
        other = np.zeros_like(own)
        for row, column in np.argwhere(own):
            other[(row + shift // 4) % 4, (column + shift % 4) % 4] = True
        if not any((other == item).all() for item in (own, *places)):
            places.append(other)
    places = places[:20]
    without, alone = (probability(model, patched(e.image, gone), 2, compare_classes) for gone in (own, ~own))
    others = [
        [probability(model, patched(e.image, gone), 2, compare_classes) for gone in (position, ~position)]
        for position in places
    ]
    result = vt.check(e)["faithfulness"].numbers
    assert result["now"] == pytest.approx(probability(model, e.image, 2, compare_classes), abs=1e-6)
    assert (result["without"], result["alone"]) == pytest.approx((without, alone), abs=1e-6)
    assert result["others_without"] == pytest.approx(np.median([item for item, _ in others]), abs=1e-6)
    assert result["others_alone"] == pytest.approx(np.median([item for _, item in others]), abs=1e-6)
    assert result["places"] == len(places) >= 10
    assert result["lower"] == sum(printed(without) < printed(item) for item, _ in others)
    assert result["higher"] == sum(printed(alone) > printed(item) for _, item in others)
    assert (result["patches"], result["of"]) == (count, 16)


def test_what_the_model_says_then_is_the_class_of_these_pictures(model: vt.VisionModel) -> None:
    e = vt.explain(model, photo(1), "ixg", 4)
    result = vt.check(e)["faithfulness"].numbers
    mask = strongest(e.map).numpy()
    for name, gone in (("without", mask), ("alone", ~mask)):
        class_probabilities = model.logits(model.preprocess.to_tensor(patched(e.image, gone))[None])[0].softmax(dim=0)
        assert result[f"class_{name}"] == int(class_probabilities.argmax())
        assert result[f"top_{name}"] == pytest.approx(float(class_probabilities.max()), abs=1e-6)


def test_moved_patches_keep_their_number_and_shape_and_are_elsewhere() -> None:
    mask = strongest(torch.rand(9, 11, generator=torch.Generator().manual_seed(0)))
    draws = PRNGKey.of(0, "check")
    others = moved(mask, draws, 20)
    assert len({item.numpy().tobytes() for item in (mask, *others)}) == 21
    shifts = [mask.roll((down, horizontal), dims=(0, 1)) for down, horizontal in itertools.product(range(9), range(11))]
    assert all(any(torch.equal(other, shift) for shift in shifts) for other in others)
    assert torch.equal(moved(mask, draws, 5), others[:5])


@pytest.mark.parametrize(
    ("mask", "count"), [(torch.ones(1, 1) > 0, 0), (torch.tensor([[True, False], [False, False]]), 3)]
)
def test_a_tiny_grid_has_few_other_places(mask: Tensor, count: int) -> None:
    assert len(moved(mask, PRNGKey.of(0, "check"))) == count


def test_a_stripe_moved_along_itself_is_no_other_place() -> None:
    stripe = torch.zeros(6, 5, dtype=torch.bool)
    stripe[2] = True
    assert len(moved(stripe, PRNGKey.of(0, "check"))) == 5


@pytest.mark.parametrize(
    ("grid", "size"), [((4, 4), (32, 32)), ((3, 5), (17, 23)), ((7, 7), (224, 224)), ((5, 3), (5, 3))]
)
def test_pixels_are_those_of_the_patch_under_their_centre(grid: tuple[int, int], size: tuple[int, int]) -> None:
    mask = torch.rand(grid, generator=torch.Generator().manual_seed(1)) > 0.6
    (pixels,) = on_pixels(mask[None], size)
    for row, column in itertools.product(range(size[0]), range(size[1])):
        at = int((row + 0.5) * grid[0] / size[0]), int((column + 0.5) * grid[1] / size[1])
        assert pixels[row, column] == mask[at]
    black, white = (Image.new("RGB", size[::-1], colour) for colour in ("black", "white"))
    assert np.array_equal(np.asarray(replaced(black, white, mask))[..., 0] > 0, pixels.numpy())


# -- the verdict ---------------------------------------------------------------------------------------


def evidence(
    lower: int, higher: int, now: float = 0.9, without: float = 0.3, places: int = 20, alone: float = 0.5
) -> Evidence:
    """Evidence that beats so many places."""
    others = (0.8,) * lower + (0.1,) * (places - lower)
    remainder = (0.1,) * higher + (0.8,) * (places - higher)
    return Evidence(now, without, alone, ((0, 0.5), (0, 0.5)), others, remainder)


@pytest.mark.parametrize(
    ("lower", "higher", "verdict"),
    [
        *((20, 20, "good"), (19, 15, "good"), (15, 19, "good"), (19, 14, "weak"), (18, 18, "weak"), (15, 10, "weak")),
        *((15, 9, "bad"), (14, 14, "bad"), (20, 0, "weak"), (0, 20, "weak"), (0, 0, "bad"), (18, 9, "bad")),
    ],
)
def test_the_verdict_follows_from_both_counts(lower: int, higher: int, verdict: str) -> None:
    result = evidence(lower, higher)
    assert (result.lower, result.higher, result.verdict) == (lower, higher, verdict)


def test_never_faithful_where_the_probability_rises_or_stays() -> None:
    for lower, higher in itertools.product(range(21), repeat=2):
        assert evidence(lower, higher, now=0.2).verdict == "bad"
        assert evidence(lower, higher, now=0.3).verdict in ("weak", "bad")


def test_never_faithful_where_it_alone_loses_to_other_places() -> None:
    assert all(evidence(20, higher).verdict != "good" for higher in range(11))


def test_faithful_is_only_what_is_needed_or_enough() -> None:
    """The verdict does not contradict the headline: many places beaten by an effect that is small is doubtful."""
    for lower, higher, without, alone in itertools.product((10, 15, 19, 20), (10, 15, 19, 20), (0.3, 0.6), (0.3, 0.6)):
        result = evidence(lower, higher, without=without, alone=alone)
        assert result.is_needed == (lower >= 19 and without == 0.3)
        assert result.is_enough == (higher >= 19 and alone == 0.6)
        if result.verdict == "good":
            assert result.is_needed or result.is_enough
    assert evidence(20, 20, without=0.6, alone=0.3).verdict == "weak"
    other = dataclasses.replace(evidence(20, 20, without=0.6, alone=0.6), keeps_prediction=False)
    assert (other.is_enough, other.verdict) == (False, "weak")


def test_what_nobody_sees_is_a_tie() -> None:
    """52.1 % and 51.9 % are both printed as 52 %."""
    tie = Evidence(0.9, 0.519, 0.521, ((0, 0.5), (0, 0.5)), (0.521,) * 20, (0.519,) * 20)
    assert (tie.lower, tie.higher) == (0, 0)
    still = Evidence(0.9, 0.904, 0.8951, ((0, 0.9), (0, 0.9)), (0.897,) * 20, (0.9,) * 20)
    assert not still.moves
    assert (still.verdict, still.rises) == ("-", False)
    assert evidence(9, 9, places=9).verdict == "-"
    assert evidence(10, 10, places=10).verdict == "good"


@pytest.mark.parametrize(
    "chance", [0.0, 1e-9, 4e-5, 6e-5, 0.00994, 0.0099999, 0.0999999, 0.123, 0.5, 0.99949, 0.99951, 1.0]
)
def test_the_number_compared_is_the_one_printed(chance: float) -> None:
    words = percent(chance)
    assert printed(chance) == (0 if words.startswith("under") else float(words.removesuffix(" %")))


# -- the extremes --------------------------------------------------------------------------------------


def test_a_saturated_model_cannot_tell() -> None:
    model = FAMILIES["vit"]()
    with torch.no_grad():
        model.head.weight *= 0.001
        model.head.bias.copy_(torch.tensor([40.0, 0, 0, 0, 0]))
    result = vt.check(vt.explain(model, photo(), "ixg"))["faithfulness"]
    assert result.verdict == "-"
    assert "stays at 100 %, whatever is blurred" in result.sentence


def test_one_output_and_two_classes() -> None:
    for classes in (1, 2):
        model = vt.wrap(_build(num_classes=classes))
        for target in (0, 1):
            e = vt.explain(model, photo(), "ixg", target)
            result = vt.check(e)["faithfulness"].numbers
            assert result["now"] == pytest.approx(e.probability, abs=1e-6)
            assert {result["class_without"], result["class_alone"]} <= {0, 1}
            assert result["top_without"] >= 0.5


def test_the_reverse_of_a_map_takes_other_patches(model: vt.VisionModel) -> None:
    map = torch.arange(16.0).view(4, 4)
    assert not (strongest(map) & strongest(-map)).any()


def test_the_test_is_the_same_on_a_mutated_model_of_the_same_weights(model: vt.VisionModel) -> None:
    """Nothing of it is remembered from one model to the next."""
    first = vt.check(vt.explain(model, photo(), "ixg"))["faithfulness"].numbers
    model = FAMILIES["vit"]()
    other = vt.wrap(model)
    with torch.no_grad():
        model.head.weight.mul_(1.5)
    changed = vt.check(vt.explain(other, photo(), "ixg"))["faithfulness"].numbers
    with torch.no_grad():
        model.head.weight.div_(1.5)
    again = vt.check(vt.explain(other, photo(), "ixg"))["faithfulness"].numbers
    assert changed != first
    assert dict(again) == pytest.approx(dict(first), abs=1e-5)
