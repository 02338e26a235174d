"""The oracle against scenes changed by hand, and the ladder against the same maps made slowly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import ndimage, stats

import vitreous as vt
from vitreous.evaluation.meta_maps import (
    CENTRE,
    DEGRADED,
    MISPLACED,
    MIXES,
    ORACLE,
    RANDOM,
    STRENGTHS,
    THINGS,
    MapRecall,
    MeasuredScenes,
    closeness,
    graded_map,
    graded_maps,
    measure_scenes,
)
from vitreous.evaluation.meta_statistics import CORE
from vitreous.tracing.prng import PRNGKey
from vitreous.world import PARTS, Scene, World, render

GRID = (16, 16)
SCENES = 4


@pytest.fixture(scope="module")
def world() -> vt.VisionModel:
    return vt.load("world", device="cpu")


@pytest.fixture(scope="module")
def scenes(world: vt.VisionModel) -> MeasuredScenes:
    return measure_scenes(world, SCENES)


@pytest.fixture(scope="module")
def maps(scenes: MeasuredScenes) -> dict[str, torch.Tensor]:
    return graded_maps(scenes, GRID)


def logits(world: vt.VisionModel, scene: Scene) -> list[float]:
    with torch.no_grad():
        return world.logits(render(scene).images * 2 - 1)[0].tolist()


def test_the_oracle_is_what_removal_costs(world: vt.VisionModel, scenes: MeasuredScenes) -> None:
    scene = World("test", SCENES).scene(1)
    clean = logits(world, scene)
    explained = max(range(48), key=lambda c: clean[c])
    visible = render(scene)
    expected = np.zeros((128, 128))
    for place, part in enumerate(PARTS):
        seen = visible.parts[0, place].numpy()
        drop = clean[explained] - logits(world, scene.without(part))[explained]
        expected[seen] = drop / seen.sum()
    for place in range(len(scene.objects)):
        seen = visible.objects[0, place].numpy()
        drop = clean[explained] - logits(world, scene.without_object(place))[explained]
        if seen.any():
            expected[seen] = drop / seen.sum()
    np.testing.assert_allclose(scenes.map()[1].numpy(), expected, atol=1e-5)
    for place, part in enumerate(PARTS):
        total = float(scenes.map()[1][visible.parts[0, place]].sum())
        assert total == pytest.approx(float(scenes.drops[1, THINGS.index(part)]), abs=1e-4)


def test_probabilities_and_markers(world: vt.VisionModel) -> None:
    cheat = vt.load("world-shortcut", device="cpu")
    result = measure_scenes(cheat, 6, output="prob", shortcut=True)
    marker = result.drops[:, THINGS.index("marker")]
    assert (result.drops.abs() <= 1).all()
    assert marker.max() > 0.5
    batch = World("test", 6, shortcut=True)
    marked = [scene for scene in batch.scenes() if scene.marker is not None]
    with torch.no_grad():
        pairs = [cheat.logits(render([one, one.unmarked()]).images * 2 - 1).softmax(dim=1) for one in marked]
    falls = [float(both[0].max() - both[1, both[0].argmax()]) for both in pairs]
    assert sorted(falls)[-1] == pytest.approx(float(marker.max()), abs=1e-4)


def test_scenes_in_which_nothing_matters_are_left_out(world: vt.VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.evaluation import meta_maps as oracle

    complete = measure_scenes(world, SCENES)
    strongest = complete.drops.amax(dim=1)
    limit = float(strongest.sort().values[1:3].mean())
    monkeypatch.setitem(oracle.TINY, "logit", limit)
    fewer = measure_scenes(world, SCENES)
    assert (len(fewer), fewer.left_out) == (2, 2)
    remaining = [place for place in range(SCENES) if strongest[place] > limit]
    assert torch.equal(fewer.inputs, complete.inputs[remaining])
    assert fewer.labels == [complete.labels[place] for place in remaining]
    np.testing.assert_array_equal(fewer.annotations[0].mask, complete.annotations[remaining[0]].mask)
    monkeypatch.setitem(oracle.TINY, "logit", 1e9)
    with pytest.raises(vt.VitreousError, match="in 4 of 4 scenes nothing matters to"):
        measure_scenes(world, SCENES)


def test_the_ladder_is_a_ladder(maps: dict[str, torch.Tensor]) -> None:
    """By their correlation with the oracle: every worse oracle above the centre, that above random maps."""
    horizontal = torch.linspace(-1, 1, 128)
    centre = 1 - ((horizontal[:, None] ** 2 + horizontal[None] ** 2) / 2).sqrt()
    near = closeness({**maps, CENTRE: centre.expand(SCENES, -1, -1)})
    slow = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(maps["blur mild"], maps[ORACLE], strict=True)]
    assert near["blur mild"] == pytest.approx(np.mean(slow), abs=1e-6)
    assert near[ORACLE] == pytest.approx(1)
    assert min(near[name] for name in DEGRADED) > near[CENTRE] > max(near[name] for name in RANDOM)
    for kind in STRENGTHS:
        assert 1 > near[f"{kind} mild"] > near[f"{kind} strong"]
    assert abs(near[MISPLACED]) < near[CENTRE]
    chain = [near[name] for name in MIXES]
    assert chain == sorted(chain, reverse=True)
    assert set(maps) == {*CORE, *MIXES} - {CENTRE}


def test_noise(maps: dict[str, torch.Tensor]) -> None:
    for name, strength in zip(("noise mild", "noise strong"), STRENGTHS["noise"], strict=True):
        added = (maps[name] - maps[ORACLE]) / maps[ORACLE].flatten(1).std(dim=1).view(-1, 1, 1)
        middle = added[:, 4:-4:8, 4:-4:8]  # between two patches; bilinear noise is weaker there
        assert 0.4 * strength < float(middle.std()) < 1.2 * strength
    mild, strong = (maps[f"noise {options}"] - maps[ORACLE] for options in ("mild", "strong"))
    torch.testing.assert_close(3 * mild, strong, rtol=1e-3, atol=1e-6)


def test_blur(maps: dict[str, torch.Tensor]) -> None:
    deviation = STRENGTHS["blur"][1] * 128
    slow = ndimage.gaussian_filter(
        maps[ORACLE][0].double().numpy(), deviation, mode="constant", radius=round(3 * deviation)
    )
    np.testing.assert_allclose(maps["blur strong"][0].numpy(), slow, atol=1e-6)


def test_shift(scenes: MeasuredScenes, maps: dict[str, torch.Tensor]) -> None:
    by = round(STRENGTHS["shift"][1] * 128)
    signs = PRNGKey.of_images(0, "trial shift", scenes.inputs).below(2, 2) * 2 - 1
    for scene in range(SCENES):
        down, horizontal = (int(sign) * by for sign in signs[scene])
        expected = torch.zeros(128, 128)
        for row in range(128):
            for column in range(128):
                if 0 <= row - down < 128 and 0 <= column - horizontal < 128:
                    expected[row, column] = maps[ORACLE][scene, row - down, column - horizontal]
        assert torch.equal(maps["shift strong"][scene], expected)


def test_swapped(scenes: MeasuredScenes, maps: dict[str, torch.Tensor]) -> None:
    share = STRENGTHS["swapped"][0]
    for scene in range(SCENES):
        first = int(scenes.drops[scene].argmax())
        before = [float(scenes.drops[scene, place]) for place in range(len(THINGS))]
        after = [float(maps["swapped mild"][scene][scenes.owner[scene] == place + 2].sum()) for place in range(18)]
        moved = [place for place in range(18) if not math.isclose(before[place], after[place], abs_tol=1e-3)]
        assert first in moved
        assert len(moved) == 2
        (other,) = set(moved) - {first}
        assert other < len(PARTS)
        assert after[first] == pytest.approx((1 - share) * before[first] + share * before[other], abs=1e-3)
        assert after[other] == pytest.approx((1 - share) * before[other] + share * before[first], abs=1e-3)


def test_misplaced(maps: dict[str, torch.Tensor]) -> None:
    for row, column in ((0, 0), (50, 100), (127, 3)):
        moved = maps[MISPLACED][:, (row + 64) % 128, (column + 64) % 128]
        assert torch.equal(moved, maps[ORACLE][:, row, column])
    assert torch.equal(maps[MISPLACED].flatten(1).sort().values, maps[ORACLE].flatten(1).sort().values)


def test_mixes_are_of_ranks(maps: dict[str, torch.Tensor]) -> None:
    oracle = maps[ORACLE][2].double().numpy().ravel()
    ranks = (stats.rankdata(oracle) - 0.5) / oracle.size
    zero = (oracle < 0).mean() + (oracle == 0).mean() / 2
    np.testing.assert_allclose(maps["mix 0"][2].numpy().ravel(), ranks - zero, atol=1e-6)
    chance = maps["mix 1"][2].numpy().ravel()
    assert abs(chance.mean()) < 1e-4
    np.testing.assert_allclose(maps["mix 0.25"][2].numpy().ravel(), 0.75 * (ranks - zero) + 0.25 * chance, atol=1e-6)
    assert (np.sign(maps["mix 0"][2].numpy().ravel()) == np.sign(oracle)).all()


def test_a_map_does_not_depend_on_its_neighbours(scenes: MeasuredScenes, maps: dict[str, torch.Tensor]) -> None:
    alone = scenes.rows(torch.tensor([3, 1]))
    for name, every in maps.items():
        torch.testing.assert_close(graded_map(name, alone, alone.inputs, GRID), every[[3, 1]], rtol=1e-4, atol=1e-7)


def test_scenes_are_known_again(scenes: MeasuredScenes, maps: dict[str, torch.Tensor]) -> None:
    noisy = scenes.inputs[[2, 0]] + 0.2 * torch.randn(2, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    coarse = maps[ORACLE].view(SCENES, 16, 8, 16, 8).mean(dim=(2, 4))
    result = MapRecall(ORACLE, scenes, GRID)(None, noisy, torch.zeros(2))
    torch.testing.assert_close(result, coarse[[2, 0]])
    seen = MapRecall("noise mild", scenes, GRID)
    assert not torch.allclose(seen(None, noisy, torch.zeros(2)), seen(None, scenes.inputs[[2, 0]], torch.zeros(2)))
