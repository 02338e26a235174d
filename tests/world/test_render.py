"""Pixels: as the rules say, smooth at the edges, and the same whatever is rendered beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from reference_render import painted
from vitreous.world import (
    Batch,
    Scene,
    add_marker,
    draw,
    make_difficult,
    pack,
    pair,
    remove_parts,
    render,
    shrink,
    unpack,
)

STORED = Path(__file__).parent.parent / "data" / "world"

MIXED = Batch.cat(
    [
        draw(range(14)),
        pair(draw(range(14, 20))),
        make_difficult(draw(range(20, 26)), 0.9),
        add_marker(remove_parts(draw(range(26, 34)))),
        shrink(draw(range(34, 40))),
    ]
)
"""Forty scenes with everything that a scene can have."""


def by_hand():
    yield "plain", Scene.of(0)
    yield "bare and marked", Scene.of(5).without("coat", "eyes").marked(corner=3)
    yield "two creatures", unpack(pair(draw([6])))[0].without("horn", "tail").marked(17, corner=2)
    yield "objects in front", unpack(make_difficult(draw([7]), 1.0))[0]
    actual = {}
    for scene in map(Scene.of, range(8, 60)):
        actual.setdefault(scene.ground.texture, scene)
    assert len(actual) == 5
    yield from actual.items()


@pytest.mark.parametrize(("name", "scene"), [pytest.param(*item, id=item[0]) for item in by_hand()])
def test_a_picture_painted_by_hand(name, scene):
    image, owner = painted(scene, 48)
    rendered = render(scene, 48)
    difference = np.abs(rendered.images[0].permute(1, 2, 0).numpy() - image).max()
    assert difference < 0.1 / 255
    assert (rendered.owner[0].numpy() == owner).mean() > 0.999
    assert rendered.images.dtype == torch.float32
    assert rendered.images.min() >= 0
    assert rendered.images.max() <= 1


def test_every_class_painted_by_hand():
    """All variants, in the pose of one scene."""
    from vitreous.world import CLASSES

    one = Scene.of(3).without_objects()
    scenes = [one.swap("horn", i).swap("eyes", i).swap("coat", i).swap("legs", i).swap("tail", i) for i in range(48)]
    assert [dict(scene.parts) for scene in scenes] == [kind.parts for kind in CLASSES]
    rendered = render(scenes, 32).images.permute(0, 2, 3, 1).numpy()
    assert max(np.abs(rendered[i] - painted(scene, 32)[0]).max() for i, scene in enumerate(scenes)) < 0.1 / 255


def test_edges_are_smooth():
    """A picture is nearly the mean of a finer one; a single sample per pixel is much further away."""
    scenes = [Scene.of(seed) for seed in range(6)]
    small, large = render(scenes, 128).images, render(scenes, 512).images
    mean = torch.nn.functional.avg_pool2d(large, 4)
    soft = float((small - mean).abs().mean())
    hard = float((large[..., 2::4, 2::4] - mean).abs().mean())
    assert soft < 0.3 * hard
    assert soft < 0.5 / 255


@pytest.mark.parametrize("size", [16, 33, 128])
def test_sizes_show_the_same_scene(size):
    rendered = render(Scene.of(2), size)
    assert rendered.images.shape == (1, 3, size, size)
    assert rendered.owner.shape == (1, size, size)
    large = render(Scene.of(2), 512).creature.float().mean()
    assert abs(rendered.creature.float().mean() - large) < 0.05


# -- the same, always --------------------------------------------------------------------------------------------------


def test_neighbours_do_not_matter():
    complete = render(MIXED, 48)
    for step in (1, 7, 40):
        parts = [render(MIXED[at : at + step], 48) for at in range(0, 40, step)]
        assert torch.equal(torch.cat([part.images for part in parts]), complete.images)
        assert torch.equal(torch.cat([part.owner for part in parts]), complete.owner)


def test_order_does_not_matter():
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(render(MIXED[order], 48).images, render(MIXED, 48).images[order])


def test_again_is_the_same_and_nothing_random_is_used():
    state = torch.get_rng_state()
    first = render(MIXED, 32)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    second = render(unpack(MIXED), 32)
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.owner, second.owner)


def test_threads_do_not_matter():
    before, threads = render(MIXED[::7], 64).images, torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        assert torch.equal(render(MIXED[::7], 64).images, before)
    finally:
        torch.set_num_threads(threads)


def test_what_is_given_is_left_alone():
    copy = MIXED[torch.arange(40)]
    render(MIXED, 32)
    assert all(torch.equal(a, b) for a, b in zip(MIXED._values(), copy._values(), strict=True))


@pytest.mark.parametrize("number", range(10))
def test_stored_scenes(number):
    """Ten scenes as they were when the bundled models were trained, to the last bit."""
    stored = json.loads((STORED / "scenes.json").read_text(encoding="utf-8"))[number]
    rendered = render(Scene.from_json(stored["scene"]), 64)
    pixels = (rendered.images[0] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    assert np.array_equal(pixels, np.asarray(Image.open(STORED / f"{number}.png")))
    assert np.array_equal(rendered.owner[0].numpy(), np.asarray(Image.open(STORED / f"{number}-owner.png")))
    if stored["drawn"]:
        assert Scene.of(stored["scene"]["seed"]) == Scene.from_json(stored["scene"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_renders_the_same():
    here, there = render(MIXED, 128), render(MIXED, 128, "cuda")
    assert there.images.device.type == "cuda"
    assert (here.images - there.images.cpu()).abs().max() < 2 / 255
    assert (here.owner == there.owner.cpu()).float().mean() > 0.9999
    seeds = torch.arange(40)
    assert all(
        torch.equal(a, b.cpu()) for a, b in zip(draw(seeds)._values(), draw(seeds, "cuda")._values(), strict=True)
    )


# -- masks -------------------------------------------------------------------------------------------------------------


def test_masks_are_disjoint_and_say_who_is_seen():
    seen = render(MIXED, 64)
    uncovered = seen.creature & ~seen.parts.any(1)
    ground = seen.owner == 0
    layers = torch.stack(
        [*seen.parts.unbind(1), *seen.objects.unbind(1), uncovered, seen.companion, seen.marker, ground]
    )
    assert torch.equal(layers.sum(dim=0), torch.ones(40, 64, 64, dtype=torch.int64))
    assert seen.parts.shape == (40, 5, 64, 64)
    assert seen.objects.shape == (40, 12, 64, 64)
    there = MIXED.parts[:, 0] >= 0
    assert not seen.parts[~there].any()
    assert not uncovered[MIXED.parts[:, 0, 2] >= 0].any()
    assert uncovered[MIXED.parts[:, 0, 2] < 0].flatten(1).any(1).all()
    assert torch.equal(seen.companion.flatten(1).any(1), MIXED.label[:, 1] >= 0)
    assert torch.equal(seen.marker.flatten(1).any(1), MIXED.marker[:, 0] >= 0)
    assert not seen.objects[MIXED.objects[:, :, 0] < 0].any()


def test_objects_lie_behind_unless_they_are_in_front():
    batch = draw(range(16))
    without = batch.replace(objects=torch.full_like(batch.objects, -1))
    assert torch.equal(render(batch, 64).creature, render(without, 64).creature)
    hard = make_difficult(batch, 1.0)
    assert (hard.objects[:, :, 7] == 1).sum(1).unique().tolist() == [4]
    hidden = render(without, 64).creature & ~render(hard, 64).creature
    front = render(hard, 64).objects[:, :4].any(1)
    assert hidden.any()
    assert not (hidden & ~front).any()


def test_parts_hide_each_other():
    """Eyes lie on the coat and the coat on the tail: what is under them comes to light without them."""
    scene = Scene.of(9)
    coat = render(scene, 96).parts[0, 2]
    assert (render(scene.without("eyes"), 96).parts[0, 2] & ~coat).sum() > 50
    assert pack([scene]).parts[0, 0].min() >= 0
