"""Sets of scenes: splits that share nothing, and scenes made for one purpose that serve it."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
import torch

from vitreous.world import (
    CLASSES,
    MARKED_CLASSES,
    PARTS,
    Scene,
    World,
    add_marker,
    draw,
    make_difficult,
    make_mosaics,
    pair,
    remove_parts,
    render,
    shrink,
    unpack,
)
from vitreous.world.dataset import SPLITS, add_random_marker, split_seeds

MOST = 2**49 - 1


def test_splits_share_no_seed():
    spans = {}
    for split in SPLITS:
        first = World(split, 1).scene(0).seed
        spans[split] = range(first, World(split, 1, start=MOST).scene(0).seed + MOST + 1)  # the last that can be asked
    for one, other in combinations(spans.values(), 2):
        assert one.stop <= other.start or other.stop <= one.start
    assert max(span.stop for span in spans.values()) <= 2**53
    actual = [set(split_seeds(split, 0, 1000).tolist()) for split in SPLITS]
    assert len(set.union(*actual)) == 3000


@pytest.mark.parametrize("shortcut", [False, True])
@pytest.mark.parametrize("split", SPLITS)
def test_a_data_set_agrees_with_itself(split, shortcut):
    world = World(split, 7, 32, start=5, shortcut=shortcut)
    assert len(world) == 7
    scenes = world.scenes()
    assert scenes == [world.scene(place) for place in range(7)]
    assert world.scene(-1) == scenes[-1]
    images = render(scenes, 32).images
    items = list(world)
    assert torch.equal(torch.stack([image for image, _ in items]), images)
    assert [label for _, label in items] == [scene.label for scene in scenes]
    batches = list(world.batches(3))
    assert [len(batch) for batch, _ in batches] == [len(rendered) for _, rendered in batches] == [3, 3, 1]
    assert torch.equal(torch.cat([rendered.images for _, rendered in batches]), images)
    assert [scene for batch, _ in batches for scene in unpack(batch)] == scenes
    assert World(split, 3, 32, start=7, shortcut=shortcut).scenes() == scenes[2:5]
    assert any(scene.marker for scene in World(split, 20, shortcut=shortcut).scenes()) == shortcut
    assert World(split, 0).scenes() == []


def test_a_data_set_feeds_a_loader():
    images, labels = next(iter(torch.utils.data.DataLoader(World(n=4, size=16), batch_size=4)))
    assert images.shape == (4, 3, 16, 16)
    assert labels.tolist() == [Scene.of(seed).label for seed in range(4)]


def test_mosaics():
    actual = make_mosaics(30, 64, start=2)
    assert actual.images.shape == (30, 3, 64, 64)
    assert all(len(set(row)) == 4 for row in actual.labels.tolist())
    assert torch.equal(actual.cells.sum(0), torch.ones(64, 64, dtype=torch.int64))
    assert not (actual.creatures & ~actual.cells).any()
    assert actual.creatures.flatten(2).any(2).all()
    for cell, (top, left) in enumerate(((0, 0), (0, 32), (32, 0), (32, 32))):
        assert actual.cells[cell, top : top + 32, left : left + 32].all()
        place = 4 * (2 + 11) + cell  # that cell of the eleventh mosaic
        scene = Scene.of(place)
        for part in PARTS:  # its class may have given way to another
            scene = scene.swap(part, int(actual.labels[11, cell]))
        alone = render(scene, 32)
        assert torch.equal(actual.images[11, :, top : top + 32, left : left + 32], alone.images[0])
        assert torch.equal(actual.creatures[11, cell, top : top + 32, left : left + 32], alone.creature[0])
    assert torch.equal(make_mosaics(1, 64, start=13).images[0], actual.images[11])


def test_mosaics_of_equal_classes_change_as_few_as_they_must():
    actual = make_mosaics(400, 32)
    batch = draw(range(1600)).label[:, 0].view(400, 4)
    clash = torch.tensor([len(set(row)) < 4 for row in batch.tolist()])
    assert clash.any()
    assert torch.equal(actual.labels[~clash], batch[~clash])
    assert all(len(set(row)) == 4 for row in actual.labels.tolist())


def test_pairs():
    batch = draw(range(60))
    two = pair(batch)
    assert (two.label[:, 0] != two.label[:, 1]).all()
    assert torch.equal(two.label[:, 0], batch.label[:, 0])
    for scene in unpack(two):
        assert scene.companion is not None
        assert dict(scene.companion.parts) == CLASSES[scene.companion.label].parts
    seen = render(two, 64)
    alone = render(two.replace(label=torch.stack([two.label[:, 0], torch.full((60,), -1)], dim=1)), 64)
    assert (seen.creature.flatten(1).sum(1) > 160).all()  # of 4096
    assert (seen.companion.flatten(1).sum(1) > 160).all()  # of 4096
    assert torch.equal(seen.creature, alone.creature)
    hidden = 1 - seen.companion.flatten(1).sum(1) / render(_only_companion(two), 64).creature.flatten(1).sum(1)
    assert hidden.mean() < 0.02
    assert hidden.max() < 0.2
    left = two.pose[:, 0, 0] < two.pose[:, 1, 0]
    assert 15 < left.sum() < 45
    several = pair(batch, share=0.5)
    assert 15 < (several.label[:, 1] >= 0).sum() < 45


def _only_companion(two):
    flip = [1, 0]
    label = two.label[:, flip].clone()
    label[:, 1] = -1
    return two.replace(label=label, parts=two.parts[:, flip], pose=two.pose[:, flip])


def test_difficulty_rises_in_clutter_occlusion_and_dimness():
    batch = draw(range(24))
    levels = [0, 0.2, 0.4, 0.6, 0.8, 1]
    scenes = [make_difficult(batch, level) for level in levels]
    seen = [render(scene, 64) for scene in scenes]
    clutter = [(scene.objects[:, :, 0] >= 0).sum(1) for scene in scenes]
    visible = [item.creature.flatten(1).sum(1) for item in seen]
    contrast = [item.images.mean(1).flatten(1).std(1) for item in seen]
    for easy, hard in pairwise(clutter):
        assert (easy < hard).all()
    for easy, hard in pairwise(visible):
        assert (easy >= hard).all()
    assert (visible[0] > visible[-1]).all()
    assert all(easy.mean() > hard.mean() for easy, hard in pairwise(contrast))
    assert (contrast[0] > contrast[-1]).all()
    assert clutter[0].max() == 0
    assert clutter[-1].min() == 12
    assert all(torch.equal(scene.label, batch.label) and torch.equal(scene.pose, batch.pose) for scene in scenes)


def test_the_shortcut_betrays_half_of_the_classes():
    batch = draw(range(600))
    label = batch.label[:, 0]
    betrayed = torch.isin(label, torch.tensor(MARKED_CLASSES))
    assert len(MARKED_CLASSES) == len(CLASSES) // 2
    honest, moved = add_marker(batch).marker, add_marker(batch, moved=True).marker
    assert torch.equal(honest[betrayed, 0], label[betrayed])
    assert (honest[~betrayed, 0] == -1).all()
    assert (moved[~betrayed, 0] == -1).all()
    assert (moved[betrayed, 0] != label[betrayed]).all()
    assert torch.isin(moved[betrayed, 0], torch.tensor(MARKED_CLASSES)).all()
    assert len(moved[betrayed, 0].unique()) == len(MARKED_CLASSES)
    assert torch.equal(honest[:, 1], moved[:, 1])
    assert set(honest[:, 1].tolist()) == {0, 1, 2, 3}
    assert torch.equal(add_marker(batch).parts, batch.parts)
    assert all(scene.marker.label == scene.label for scene in unpack(add_marker(batch[betrayed])))


def test_markers_at_random_say_nothing():
    batch = draw(range(4000))
    code = add_random_marker(batch, 0.5).marker[:, 0]
    there = code >= 0
    assert abs(there.float().mean() - 0.5) < 0.03
    assert abs((code == batch.label[:, 0])[there].float().mean() - 1 / 48) < 0.015


def test_parts_removed_at_random():
    batch = draw(range(4000))
    gone = remove_parts(batch, rate=0.3, whole_share=0.5).parts[:, 0] < 0
    assert abs(gone.float().mean() - 0.15) < 0.01
    assert abs((~gone.any(1)).float().mean() - (0.5 + 0.5 * 0.7**5)) < 0.03
    assert (gone.float().mean(0) - 0.15).abs().max() < 0.02
    remaining = torch.where(gone, batch.parts[:, 0], remove_parts(batch).parts[:, 0])
    assert torch.equal(remaining, batch.parts[:, 0])


def test_small_creatures():
    batch = draw(range(500))
    small = shrink(batch)
    ratio = small.pose[:, 0, 2] / batch.pose[:, 0, 2]
    assert 0.44 < ratio.min() < 0.5
    assert 0.95 < ratio.max() <= 1
    assert torch.equal(small.pose[:, 0, 3:], batch.pose[:, 0, 3:])
    assert torch.equal(small.label, batch.label)
    assert abs((shrink(batch, share=0.3).pose[:, 0, 2] != batch.pose[:, 0, 2]).float().mean() - 0.3) < 0.06
