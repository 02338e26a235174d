"""The protocol on scenes of the world: every number again, scene by scene and pixel by pixel."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from torch import Tensor

import vitreous as vt
from funnybirds_sets import smallest
from vitreous.evaluation.funnybirds import PartReader, dilation_width
from vitreous.evaluation.funnybirds_data import FunnyBirdsScenes, Intervention
from vitreous.evaluation.funnybirds_scores import disjoint_pairs
from vitreous.world import PARTS, Scene, World, pack, pair, render, unpack

SCENES = World(n=4, start=3)


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.load("world")


def painted(model: Any, inputs: Tensor, classes: Tensor) -> Tensor:
    """Maps on the tokens that depend on the picture and on the class, signed."""
    cells = torch.nn.functional.avg_pool2d(inputs.double(), 8)
    turn = (classes.double() * 0.7)[:, None, None]
    return cells[:, 0] * turn.sin() + cells[:, 1] * turn.cos() + 0.3 * cells[:, 2]


@pytest.fixture(scope="module")
def result(model: vt.VisionModel) -> vt.FunnyBirdsResult:
    return vt.funnybirds(model, {"painted": painted}, SCENES, oracle=True, controls=False, n_bootstrap=100)


def logits(model: vt.VisionModel, scenes: list[Scene]) -> np.ndarray[Any, Any]:
    return model.logits(render(scenes).images * 2 - 1).double().numpy()


@pytest.mark.parametrize("name", ["world", pytest.param("world-shortcut", marks=pytest.mark.slow)])
def test_every_number_again(name: str, result: vt.FunnyBirdsResult) -> None:
    """Scenes changed by hand, masks grown by scipy, dimensions by the definitions; one model is often wrong here."""
    model = vt.load(name)
    if name != "world":
        result = vt.funnybirds(model, {"painted": painted}, SCENES, controls=False, n_bootstrap=1)
        assert 0 < result.accuracy.mean() < 1
    levels = [*result.thresholds.tolist(), result.fixed]
    assert levels[:80] == pytest.approx([0.01 + place * 0.49 / 79 for place in range(80)])
    pairs, read = (
        disjoint_pairs(FunnyBirdsScenes.of(SCENES, 128, torch.device("cpu")).variants),
        result.checks["painted"],
    )
    for image, scene in enumerate(SCENES.scenes()):
        label, rendered = scene.label, render(scene)
        subsets = [[p for k, p in enumerate(PARTS) if mask >> k & 1] for mask in range(32)]
        message = logits(model, [scene.only(*subset) for subset in subsets])
        no_objects = logits(model, [scene.without_object(k) for k in range(len(scene.objects))])
        falls = [message[31, label] - message[31 - 2**k, label] for k in range(5)]
        falls += [message[31, label] - row[label] for row in no_objects]
        masks = [*rendered.parts[0].numpy(), *rendered.objects[0, : len(scene.objects)].numpy()]
        grown = [ndimage.maximum_filter(mask.astype(np.uint8), 3).astype(bool) for mask in masks]

        def holding(c: int, rendered: Any = rendered, grown: Any = grown) -> tuple[list[float], float]:
            small = painted(None, rendered.images * 2 - 1, torch.tensor([c]))[0].numpy()
            fine = np.kron(small, np.ones((8, 8)))
            return [float(fine[mask].sum()) for mask in grown], float(fine.sum())

        held = cache(holding)

        def called(c: int, t: float, held: Any = held) -> set[int]:
            values, total = held(c)
            return {k for k, value in enumerate(values) if value > t * total}

        guess = int(message[31].argmax())
        assert (guess == label) == result.accuracy[image]
        enough = 0.05 * abs(message[31, label])
        idle = {k for k, fall in enumerate(falls) if fall < enough}
        assert result.background[image].tolist() == [sum(fall >= enough for fall in falls[5:]), len(no_objects)]
        least = smallest(label)
        for place, t in list(enumerate(levels))[::4]:
            mine, remaining = called(label, t), sum(2**k for k in called(guess, t) if k < 5)
            best = max(len(subset & mine) / len(subset) for subset in least)
            assert read.curves[image, :, place] == pytest.approx(
                [
                    best if guess == label else math.nan,
                    float(message[remaining].argmax() == guess),
                    float(message[31 - remaining].argmax() != guess),
                    1 - len(mine & idle) / len(idle),
                ],
                nan_ok=True,
            )
        assert read.sd[image] == pytest.approx((stats.spearmanr(held(label)[0][:5], falls[:5])[0] + 1) / 2)
        one, other = pairs[label]
        alike = [[k for k, p in enumerate(PARTS) if CLASS[c][p] == CLASS[label][p]] for c in (one, other)]
        cost = [[message[31, c] - message[31 - sum(2**k for k in subset), c] for subset in alike] for c in (one, other)]
        if one < 0 or cost[0][0] <= cost[0][1] or cost[1][1] <= cost[1][0]:
            assert np.isnan(read.ts[image])
        else:
            sums = [[sum(held(c)[0][k] for k in subset) for c in (one, other)] for subset in alike]
            assert read.ts[image] == (int(sums[0][0] > sums[0][1]) + int(sums[1][1] > sums[1][0])) / 2
    assert not np.isnan(read.ts).all()


CLASS = [kind.parts for kind in vt.world.CLASSES]


def test_each_state_is_run_once(model: vt.VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 forwards and one per object for each image, in full batches, however many methods there are."""
    from vitreous.metrics import BatchRunner

    runs: list[int] = []
    look = BatchRunner.forward

    def counted(self: BatchRunner, inputs: Tensor) -> Tensor:
        runs.append(len(inputs))
        return look(self, inputs)

    monkeypatch.setattr(BatchRunner, "forward", counted)
    report: list[tuple[float, int | None]] = []
    done = vt.funnybirds(
        model,
        {"one": painted, "two": painted, "three": "rollout"},
        World(n=2),
        controls=False,
        batch_size=20,
        n_bootstrap=1,
        progress=lambda n, total: report.append((n, total)),
    )
    objects = sum(len(scene.objects) for scene in World(n=2).scenes())
    assert sum(runs) == done.plan["states"] == 2 * 32 + objects
    assert set(runs[:-1]) == {20}
    assert report[-1] == (sum(runs), sum(runs))
    assert done.score("one", "mean") == done.score("two", "mean")


def test_the_predicted_class_is_not_explained_twice(model: vt.VisionModel) -> None:
    asked: list[tuple[int, int]] = []

    def noted(model: Any, inputs: Tensor, classes: Tensor) -> Tensor:
        asked.extend((int(x.sum() * 1e3), int(c)) for x, c in zip(inputs, classes, strict=True))
        return painted(model, inputs, classes)

    vt.funnybirds(model, {"noted": noted}, World(n=2), controls=False, n_bootstrap=1)
    assert len(asked) == len(set(asked)) <= 3 * 2


def test_batches_and_repetition_change_nothing(model: vt.VisionModel, result: vt.FunnyBirdsResult) -> None:
    two = World(n=2, start=3)
    asked: dict[str, Any] = {"oracle": True, "controls": False, "n_bootstrap": 20}
    first = vt.funnybirds(model, {"painted": painted}, two, **asked)
    again = vt.funnybirds(model, {"painted": painted}, FunnyBirdsScenes.of(two, 0, model.device), **asked)
    small = vt.funnybirds(model, {"painted": painted}, two.scenes(), batch_size=5, **asked)
    assert str(again) == str(first)
    for name in result.methods:
        for other in (again, small, result):
            np.testing.assert_array_equal(other.checks[name].curves[:2], first.checks[name].curves)
            np.testing.assert_array_equal(other.checks[name].ts[:2], first.checks[name].ts)
            np.testing.assert_allclose(other.checks[name].sd[:2], first.checks[name].sd)


def test_an_oracle_gets_what_it_must(result: vt.FunnyBirdsResult) -> None:
    """SD is 1; D is 1 at t = 1/2; the rest is the model's."""
    oracle = result.checks["oracle"]
    assert oracle.sd == pytest.approx(np.ones(len(SCENES)))
    assert result.score("oracle", "cor") == pytest.approx(1)
    assert result.thresholds[-1] == 0.5
    assert oracle.curves[:, 3, 79].tolist() == [1] * len(SCENES)
    assert result.score("oracle", "sd") > result.score("painted", "sd")
    assert result.degenerate["oracle"]["total not positive"] == 0


def test_an_oracle_holds_the_falls_whatever_the_dilation() -> None:
    draw = np.random.default_rng(0)
    source = FunnyBirdsScenes.of(World(n=1, size=256), 0, torch.device("cpu"))
    (seen,) = source.masks(range(1))
    falls = draw.normal(size=(2, 18))
    for width in (1, 5, 9):
        reader = PartReader(seen, 18, width)
        values, totals = reader.importances(reader.oracle(falls))
        visible = [owner for owner, mask in zip(seen.owners, seen.masks, strict=True) if mask.any()]
        assert values[:, visible] == pytest.approx(falls[:, visible])
        assert totals == pytest.approx(np.maximum(falls[:, visible], 0).sum(axis=1))


def test_windows() -> None:
    assert [dilation_width(size) for size in (256, 224, 128, 64, 32, 512)] == [5, 5, 3, 1, 1, 9]
    assert dilation_width(128, 7) == 7
    for wrong in (0, 4):
        with pytest.raises(vt.VitreousError, match=f"dilation={wrong} is not an odd number"):
            dilation_width(128, wrong)


def test_interventions_are_the_scenes_own() -> None:
    """Rendered in one batch, to the bit what the scene gives when changed by hand; a marker is one more object."""
    world = World(n=3, shortcut=True)
    source, scenes = FunnyBirdsScenes.of(world, 128, torch.device("cpu")), world.scenes()
    images = source.images(
        [Intervention(0, 0b00101), Intervention(1, 31, 2), Intervention(2, 31, 12), Intervention(2, 31)]
    )
    by_hand = [scenes[0].only("horn", "coat"), scenes[1].without_object(2), scenes[2].unmarked(), scenes[2]]
    assert torch.equal(images, render(by_hand).images)
    for image, (scene, seen) in enumerate(zip(scenes, source.masks(range(3)), strict=True)):
        assert source.objects(image) == [*range(len(scene.objects)), *([12] if scene.marker else [])]
        assert seen.owners.tolist() == [0, 1, 2, 3, 4, *(5 + k for k in source.objects(image))]
        rendered = render(scene)
        assert (seen.masks[:5] == rendered.parts[0].numpy()).all()
        if scene.marker:
            assert (seen.masks[-1] == rendered.marker[0].numpy()).all()
    assert any(scene.marker for scene in scenes)


def test_a_shortcut_is_a_background_that_matters() -> None:
    world = World(n=3, shortcut=True)
    model = vt.load("world-shortcut")
    done = vt.funnybirds(model, {"painted": painted}, world, controls=False, n_bootstrap=1)
    marked = np.array([scene.marker is not None for scene in world.scenes()])
    assert (done.background[marked, 0] >= 1).all()
    assert done.score("painted", "bi") < 1


def test_maps_that_are_strange_are_counted(model: vt.VisionModel) -> None:
    def strange(kind: float) -> Any:
        return lambda model, inputs, classes: torch.full((len(inputs), 16, 16), kind)

    provided = {"zero": strange(0.0), "nan": strange(math.nan), "flat": strange(1.0), "minus": strange(-1.0)}
    done = vt.funnybirds(model, provided, World(n=2), controls=False, n_bootstrap=10)
    assert done.degenerate["zero"] == {"constant": 0, "zero": 2, "nonfinite": 0, "total not positive": 2}
    assert done.degenerate["nan"] == {"constant": 0, "zero": 0, "nonfinite": 2, "total not positive": 0}
    assert done.degenerate["flat"] == {"constant": 2, "zero": 0, "nonfinite": 0, "total not positive": 0}
    assert done.degenerate["minus"]["total not positive"] == 2
    assert "2 total not positive" in str(done)
    assert np.isnan(done.checks["nan"].curves).all()
    assert np.isnan(done.checks["nan"].sd).all()
    assert np.isnan(done.checks["zero"].sd).all()
    assert done.score("zero", "d") == 1, "nothing is important"
    assert done.score("zero", "csdc") == 0


def test_bad_input(model: vt.VisionModel) -> None:
    scene = Scene.of(2)
    two = unpack(pair(pack([scene])))
    for scenes, options, message in [
        ([], {}, "there are no scenes"),
        (World(n=0), {}, "there are no scenes"),
        ([scene.without("tail")], {}, "scene 0 is no whole three-eyed jossel"),
        ([scene.swap("eyes", "one-eyed jossel")], {}, "scene 0 is no whole three-eyed jossel"),
        (two, {}, "scene 0 has a companion"),
        (7, {}, "7 is neither a World"),
        ("nowhere", {}, "no such folder of birds: nowhere"),
        ([scene], {"thresholds": []}, "thresholds and fixed are shares"),
        ([scene], {"thresholds": ["much"]}, "are not numbers"),
        ([scene], {"fixed": 1.5}, "thresholds and fixed are shares"),
        ([scene], {"dilation": 2}, "dilation=2"),
        ([scene], {"share": 0}, "share=0 must lie between 0 and 1"),
        ([scene], {"interpolation": "cubic"}, "interpolation='cubic' is not one of bilinear, nearest"),
        ([scene], {"batch_size": 0}, "batch_size=0 must be at least 1"),
    ]:
        with pytest.raises(vt.VitreousError, match=message):
            vt.funnybirds(model, "random", scenes, **options)
    with pytest.raises(vt.VitreousError, match="oracle is named twice"):
        vt.funnybirds(model, {"oracle": "random"}, [scene], oracle=True)
    other = vt.load("timm/vit_tiny_patch16_224", pretrained=False, img_size=64)
    with pytest.raises(vt.VitreousError, match="has 1000 classes, not the 48 of scenes of the world"):
        vt.funnybirds(other, "random", [scene])
