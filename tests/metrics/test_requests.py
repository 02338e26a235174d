"""What a metric may ask for and what it gets, each kind made again slowly: one image, one state, one forward."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from metric_probe import Probe
from vitreous.metrics import (
    AnnotationRequest,
    Evaluation,
    GivenMasks,
    Images,
    Masks,
    RandomMasks,
    RankedRemoval,
    Reattribution,
    Request,
)
from vitreous.metrics.perturb import perturbed
from vitreous.metrics.ranking import pixel_ranks
from vitreous.tracing.prng import PRNGKey

SIZE = 32 * 32


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


@pytest.fixture(scope="module")
def x(model: vt.VisionModel) -> Tensor:
    return images(model, 5)


@pytest.fixture(scope="module")
def maps() -> Tensor:
    return torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(3))


def ask(model: vt.VisionModel, x: Tensor, maps: Any, *needs: Request, **options: Any) -> Evaluation:
    probe = Probe(asked=needs)
    vt.evaluate(model, x, {"it": maps}, [probe], controls=False, n_bootstrap=1, **options)
    (heard,) = probe.heard
    return heard


def logs(model: vt.VisionModel, x: Tensor, changed: Tensor) -> np.ndarray:
    """The log-probability of the predicted class of each image in its changed versions ``[B, J, 3, H, W]``."""
    with torch.no_grad():
        best = model.module(x).argmax(dim=1)
        item = [model.module(subset).log_softmax(dim=1)[:, c] for subset, c in zip(changed, best, strict=True)]
    return torch.stack(item).numpy()


def test_images_are_32_wide(x: Tensor) -> None:
    assert x.shape[1:] == (3, 32, 32)


@pytest.mark.parametrize("keep", [False, True])
def test_rank_bands(model: vt.VisionModel, x: Tensor, maps: Tensor, keep: bool) -> None:
    """Ranks between two edges go, and those above and below them stay."""
    edges = [0, 100, 400, 900, SIZE]
    spans = tuple(pairwise(edges))
    need = RankedRemoval("pixel", "zero_norm", True, spans) if keep else RankedRemoval.bands("zero_norm", edges)
    ranks = pixel_ranks(maps, (32, 32), "bilinear", "random", 0)
    inside = torch.stack([(ranks >= low) & (ranks < upper) for low, upper in spans], dim=1)  # [B, J, 1, H, W]
    inside = inside.reshape(5, 4, 1, 32, 32)
    changed = torch.where(inside if keep else ~inside, x[:, None], torch.zeros(()))
    actual = ask(model, x, maps, need).log_probability(need)
    np.testing.assert_allclose(actual, logs(model, x, changed), atol=1e-5)


def test_bands_of_tokens(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    need = RankedRemoval.bands("drop", [0, 5, 11, 16], unit="token")
    actual = ask(model, x, maps, need).log_probability(need)
    order = maps.flatten(1).argsort(dim=1, descending=True)
    expected = np.empty((5, 3))
    with torch.no_grad():
        best = model.logits(x).argmax(dim=1)
        for image in range(5):
            tokens = model.embed(x[image : image + 1])
            for state, (low, upper) in enumerate([(0, 5), (5, 11), (11, 16)]):
                keep = torch.cat([order[image, :low], order[image, upper:]]).sort().values
                subset = torch.cat(
                    [tokens[:, : model.num_prefix_tokens], tokens[:, keep + model.num_prefix_tokens]], dim=1
                )
                logits = model.forward_head(model.forward_blocks(subset, keep=keep[None]))
                expected[image, state] = logits.log_softmax(dim=1)[0, best[image]]
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_random_orders_are_of_the_image_and_shared_by_all_methods(
    model: vt.VisionModel, x: Tensor, maps: Tensor
) -> None:
    need = RankedRemoval.deletion("zero_norm", [0, 300, 700, SIZE], by="random")
    answers = ask(model, x, maps, need)
    actual = answers.log_probability(need)
    key = PRNGKey.of_images(0, "order", x).uniform(32, 32)
    ranks = pixel_ranks(key, (32, 32), "bilinear", "random", 0).reshape(5, 1, 1, 32, 32)
    counts = torch.tensor([0, 300, 700, SIZE]).view(1, 4, 1, 1, 1)
    changed = torch.where(ranks < counts, torch.zeros(()), x[:, None])
    np.testing.assert_allclose(actual, logs(model, x, changed), atol=1e-5)
    turned = ask(model, x.flip(0), maps, need).log_probability(need)
    np.testing.assert_allclose(turned[::-1], actual, atol=1e-5)
    other = ask(model, x, maps, need, seed=1).log_probability(need)
    assert not np.allclose(other, actual)

    def states(methods: dict[str, Tensor]) -> int:
        table = vt.evaluate(model, x, methods, [Probe(asked=[need])], controls=False, n_bootstrap=1)
        return int(table.plan["states"])

    assert states({"a": maps}) == states({"a": maps, "b": -maps}), "a further method costs no forward"


def test_given_masks(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    """On any grid; the same for all images; equal ones are one need."""
    cells = torch.eye(4, dtype=torch.bool).view(4, 2, 2)
    need = Masks("black", GivenMasks.of(cells), 4)
    assert need == Masks("black", GivenMasks.of(cells.numpy()), 4)
    assert hash(need) == hash(Masks("black", GivenMasks.of(cells), 4))
    answers = ask(model, x, maps, need)
    gone = cells.repeat_interleave(16, dim=1).repeat_interleave(16, dim=2)
    mean, std = (torch.tensor(item).view(3, 1, 1) for item in (model.preprocess.mean, model.preprocess.std))
    changed = torch.where(gone[None, :, None], -mean / std, x[:, None])
    np.testing.assert_allclose(answers.log_probability(need), logs(model, x, changed), atol=1e-5)
    assert answers.masks(need).shape == (5, 4, 2, 2)
    with pytest.raises(vt.VitreousError, match=r"\[n, h, w\]"):
        GivenMasks.of(np.ones((2, 2)))


@pytest.mark.parametrize("unit", ["pixel", "token"])
def test_random_masks(model: vt.VisionModel, x: Tensor, maps: Tensor, unit: str) -> None:
    need = Masks("zero_norm", RandomMasks(6, 0.25), 6, unit)
    answers = ask(model, x, maps, need)
    gone = answers.masks(need)
    assert gone.shape == (5, 6, 4, 4)
    assert (gone.sum(axis=(2, 3)) == 4).all(), "a quarter of 16 cells"
    assert len({item.tobytes() for item in gone.reshape(30, 16)}) > 25, "each image has its own"
    actual = answers.log_probability(need)
    if unit == "pixel":
        big = torch.from_numpy(gone).repeat_interleave(8, dim=2).repeat_interleave(8, dim=3)
        expected = logs(model, x, torch.where(big[:, :, None], torch.zeros(()), x[:, None]))
    else:
        expected = np.empty((5, 6))
        with torch.no_grad():
            best = model.logits(x).argmax(dim=1)
            for image in range(5):
                tokens = model.embed(x[image : image + 1])
                for state in range(6):
                    keep = torch.from_numpy(~gone[image, state].reshape(-1)).nonzero().flatten()
                    subset = torch.cat(
                        [tokens[:, : model.num_prefix_tokens], tokens[:, keep + model.num_prefix_tokens]], dim=1
                    )
                    log = model.forward_head(model.forward_blocks(subset, keep=keep[None])).log_softmax(dim=1)
                    expected[image, state] = log[0, best[image]]
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    again = ask(model, x[2:4], maps[2:4], need)
    assert (again.masks(need) == gone[2:4]).all(), "whatever stands beside them"


def noisy(images: Tensor, preprocess: Any, draws: PRNGKey) -> Tensor:
    noise = torch.stack([draws.at(copy).normal(*images.shape[1:]) for copy in range(3)], dim=1)
    return images[:, None] + 0.1 * noise


def mosaic(images: Tensor, preprocess: Any, draws: PRNGKey) -> Tensor:
    """Four copies of the image, half as large."""
    return images[..., ::2, ::2].repeat(1, 1, 2, 2)[:, None]


@pytest.mark.parametrize(("make", "count"), [(noisy, 3), (mosaic, 1)])
def test_other_images(model: vt.VisionModel, x: Tensor, maps: Tensor, make: Any, count: int) -> None:
    need = Images("other", make, count)
    actual = ask(model, x, maps, need).log_probability(need)
    changed = make(x, model.preprocess, PRNGKey.of_images(0, "images other", x))
    assert actual.shape == (5, count)
    np.testing.assert_allclose(actual, logs(model, x, changed), atol=1e-5)


def test_maps_made_again_of_other_images(model: vt.VisionModel, x: Tensor) -> None:
    need = Reattribution(images=Images("other", noisy, 3))
    actual = ask(model, x, "ixg", need).reattributions(need)
    changed = noisy(x, model.preprocess, PRNGKey.of_images(0, "images other", x))
    with torch.no_grad():
        best = model.logits(x).argmax(dim=1)
    for image in range(5):
        alone = vt.get_method("ixg").attribute(model, changed[image], target=[int(best[image])] * 3)
        np.testing.assert_allclose(actual[image], alone, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("spec", ["ixg", "callable"])
def test_maps_made_again_under_another_model_class_and_seed(model: vt.VisionModel, x: Tensor, spec: str) -> None:
    def gradient(module: Any, inputs: Tensor, classes: Tensor) -> Tensor:
        inputs.requires_grad_()
        logits = module(inputs)
        (actual,) = torch.autograd.grad(logits.gather(1, classes[:, None]).sum(), inputs)
        return (actual * inputs).sum(dim=1)

    method = gradient if spec == "callable" else "smooth(ixg, samples=2)"
    head = Reattribution(under=partial(_shuffled, seed=1))
    rival, seeded = Reattribution(target="runner-up"), Reattribution(seed=5)
    needs = [rival, seeded] if spec == "callable" else [head, rival, seeded]
    answers = ask(model, x, method, *needs)
    mine = answers.raw_maps
    with torch.no_grad():
        ranked = model.logits(x).argsort(dim=1, descending=True)
    if spec == "callable":
        second = gradient(model.module, x.clone(), ranked[:, 1]).detach().numpy()
        np.testing.assert_allclose(answers.reattributions(rival)[:, 0], second, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(answers.reattributions(seeded)[:, 0], mine, atol=1e-6)
        return
    ways = {
        head: (model.permute_head(1), ranked[:, 0], 0),
        rival: (model, ranked[:, 1], 0),
        seeded: (model, ranked[:, 0], 5),
    }
    for need, (seen, classes, seed) in ways.items():
        alone = vt.get_method(method).attribute(seen, x, target=classes.tolist(), seed=seed).numpy()
        np.testing.assert_allclose(answers.reattributions(need)[:, 0], alone, rtol=1e-3, atol=1e-6)
        assert not np.allclose(alone, mine, rtol=1e-3)


def _shuffled(model: vt.VisionModel, seed: int) -> vt.VisionModel:
    return model.permute_head(seed)


def test_maps_that_are_there_cannot_be_made_again(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    with pytest.raises(vt.VitreousError, match="it: maps cannot be made again, which a metric asks for"):
        ask(model, x, maps, Reattribution(seed=1))
    probe = Probe(asked=[])
    vt.evaluate(model, x, {"it": maps}, [probe], controls=False, n_bootstrap=1)
    with pytest.raises(vt.VitreousError, match="did not request"):
        probe.heard[0].reattributions(Reattribution(seed=1))


def test_a_callable_is_not_asked_about_a_model_it_cannot_have(model: vt.VisionModel, x: Tensor) -> None:
    """A shuffled head belongs to the view; the callable would be handed the model as it was, and nobody would know."""

    def mine(model: Any, inputs: Tensor, classes: Tensor) -> Tensor:
        return inputs.sum(dim=1)

    with pytest.raises(vt.VitreousError, match="it: a callable cannot be asked about"):
        ask(model, x, mine, Reattribution(under=partial(_shuffled, seed=1)))


def test_the_maps_themselves(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    np.testing.assert_array_equal(ask(model, x, maps).raw_maps, maps.numpy())


def test_truth(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    masks = np.random.default_rng(0).random((5, 32, 32)) > 0.5
    for argument in (list(masks), {f"input-{i}": vt.Annotation(item) for i, item in enumerate(masks)}):
        actual = ask(model, x, maps, AnnotationRequest("mask"), annotations=argument).annotations
        assert all((item.mask == mask).all() for item, mask in zip(actual, masks, strict=True))
    boxed = ask(
        model, x, maps, AnnotationRequest("boxes"), annotations=lambda p: vt.Annotation(boxes=((0, 0, 1, len(p.name)),))
    )
    assert boxed.annotations[0].boxes == ((0, 0, 1, 7),)
    parts = ask(
        model, x, maps, AnnotationRequest("parts"), annotations=[vt.Annotation(parts={"wing": item}) for item in masks]
    )
    assert (parts.annotations[3].parts["wing"] == masks[3]).all()


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        (None, "needs the mask of input-0: give annotations"),
        ([vt.Annotation(boxes=((0, 0, 1, 1),))] * 5, "needs the mask of input-0"),
        ([np.ones((8, 8))] * 5, r"the mask of input-0 is \[8, 8\], the model sees \[32, 32\]"),
        ([np.ones(8)] * 5, r"a mask is \[H, W\]"),
        ([np.ones((32, 32))] * 6, "6 annotations for 5 images"),
        ([np.ones((32, 32))] * 4, "needs the mask of input-4"),
    ],
)
def test_bad_truth(model: vt.VisionModel, x: Tensor, maps: Tensor, truth: Any, message: str) -> None:
    with pytest.raises(vt.VitreousError, match=message):
        ask(model, x, maps, AnnotationRequest("mask"), annotations=truth)


def test_truth_of_a_photograph_follows_it_into_the_model(model: vt.VisionModel, tmp_path: Any) -> None:
    """A box of the photograph, painted white there, is where the input is white."""
    from PIL import Image

    from vitreous.datasets import load_images

    pixels = np.zeros((60, 100, 3), np.uint8)
    pixels[20:40, 40:70] = 255
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    (picture,) = load_images(tmp_path / "photo.png", model)
    truth = vt.Annotation.of_photo(
        picture, pixels[..., 0] > 0, [(40, 20, 70, 40), (0, 0, 5, 5)], {"all": pixels[..., 0] > 0}
    )
    bright = np.asarray(picture.image)[..., 0] > 127
    assert (truth.mask == bright).mean() > 0.97
    assert (truth.parts["all"] == truth.mask).all()
    ((left, top, right, bottom),) = truth.boxes  # the other one was cropped away
    rows, columns = np.flatnonzero(bright.any(axis=1)), np.flatnonzero(bright.any(axis=0))
    np.testing.assert_allclose([left, right], [columns[0], columns[-1] + 1], atol=1)
    np.testing.assert_allclose([top, bottom], [rows[0], rows[-1] + 1], atol=1)


@pytest.mark.parametrize(
    "need",
    [
        RankedRemoval.deletion("black", [0, 100, SIZE]),
        RankedRemoval.insertion("blur_rise", [1, 500]),
        RankedRemoval.bands("black", [0, 100, 1024]),
        RankedRemoval.blend("zero_norm", "relu"),
    ],
)
def test_states_can_be_had_as_images(model: vt.VisionModel, x: Tensor, maps: Tensor, need: Any) -> None:
    """What they show is what was run."""
    actual = perturbed(model, x, maps, need)
    assert actual.shape == (5, len(need.spans), 3, 32, 32)
    printed = ask(model, x, maps, need).log_probability(need)
    np.testing.assert_allclose(logs(model, x, actual), printed, atol=1e-5)


def test_removed_tokens_turn_grey_in_images(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    actual = perturbed(model, x, maps, RankedRemoval.insertion("drop", [3], unit="token"))[:, 0]
    grey = (actual == 0).all(dim=1).view(5, 4, 8, 4, 8).float().mean(dim=(2, 4))
    top = maps.flatten(1).argsort(dim=1, descending=True)[:, :3]
    expected = torch.ones(5, 16).scatter(1, top, 0.0).view(5, 4, 4)
    torch.testing.assert_close(grey, expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RankedRemoval.deletion("black", [1], by="luck"), "'luck'"),
        (lambda: RankedRemoval.deletion("black", [SIZE + 1]), "outside 0..1024"),
        (lambda: RankedRemoval.bands("black", [100, 50]), "outside"),
        (lambda: RankedRemoval.insertion("drop", [0], unit="token"), "without any token"),
    ],
)
def test_bad_needs(model: vt.VisionModel, x: Tensor, maps: Tensor, make: Any, message: str) -> None:
    with pytest.raises(vt.VitreousError, match=message):
        ask(model, x, maps, make())
