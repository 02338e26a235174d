"""Creatures that can be told apart, scenes that are values, and changes that change what they say and nothing else."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitreous.world import (
    CLASSES,
    NAMES,
    PARTS,
    VARIANTS,
    Scene,
    add_marker,
    distinctive_part,
    draw,
    make_difficult,
    pack,
    pair,
    remove_parts,
    render,
    shrink,
    unpack,
)

SEEDS = st.integers(0, 2**53 - 1)


def differ(one, other):
    return {part for part in PARTS if one.parts[part] != other.parts[part]}


# -- creatures ---------------------------------------------------------------------------------------------------------


def test_there_are_many_classes_and_each_has_a_name():
    assert len(CLASSES) >= 40
    assert len(set(NAMES)) == len(NAMES) == len(CLASSES)
    assert len(PARTS) == 5
    for kind in CLASSES:
        assert set(kind.parts) == set(PARTS)
        assert all(variant in VARIANTS[part] for part, variant in kind.parts.items())
        assert kind.name.endswith(kind.family)


def test_siblings_differ_in_the_telling_part_and_strangers_in_more():
    for one, other in combinations(CLASSES, 2):
        if one.family == other.family:
            assert differ(one, other) == {one.distinctive} == {other.distinctive}
        else:
            assert len(differ(one, other)) >= 2, (one, other)
    assert {distinctive_part(name) for name in NAMES} == set(PARTS)
    assert distinctive_part(0) == distinctive_part(NAMES[0]) == CLASSES[0].distinctive


def test_parts_are_shared_and_every_variant_is_used():
    for part, variants in VARIANTS.items():
        assert len(variants) >= 3
        for variant in variants:
            wearers = [kind for kind in CLASSES if kind.parts[part] == variant]
            assert 5 <= len(wearers) <= 16, (part, variant, len(wearers))  # 9.6 if all were as common
    sharing = sum(len(differ(one, other)) < len(PARTS) for one, other in combinations(CLASSES, 2))
    assert sharing > len(CLASSES) * (len(CLASSES) - 1) / 2 / 2


def test_variants_differ_in_shape_and_in_colour():
    from vitreous.world.species import strokes

    for part, variants in VARIANTS.items():
        batch = {variant: strokes(part, variant) for variant in variants}
        for one, other in combinations(variants, 2):
            assert [s[:6] for s in batch[one]] != [s[:6] for s in batch[other]]
            assert {s[6] for s in batch[one]} != {s[6] for s in batch[other]}


# -- scenes ------------------------------------------------------------------------------------------------------------


def same(one, other):
    return all(torch.equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))


@given(SEEDS)
def test_a_scene_survives_json(seed):
    scene = Scene.of(seed)
    written = json.dumps(scene.to_json())
    assert Scene.from_json(json.loads(written)) == scene
    assert json.dumps(Scene.from_json(json.loads(written)).to_json()) == written
    assert {"class", "parts", "pose", "objects", "seed"} <= set(scene.to_json())


@pytest.mark.parametrize("change", [pair, add_marker, remove_parts, shrink, lambda b: make_difficult(b, 0.8)])
def test_derived_scenes_survive_json(change):
    for scene in unpack(change(draw(range(40)))):
        assert Scene.from_json(json.loads(json.dumps(scene.to_json()))) == scene


@given(st.lists(SEEDS, min_size=1, max_size=5))
def test_packing_undoes_unpacking(seeds):
    batch = draw(seeds)
    assert same(pack(unpack(batch)), batch)
    assert unpack(pack(unpack(batch))) == unpack(batch)


@given(SEEDS, st.lists(SEEDS, max_size=4), st.lists(SEEDS, max_size=4))
def test_a_seed_gives_its_scene_whatever_else_is_drawn(seed, before, after):
    torch.manual_seed(len(before))
    assert unpack(draw([*before, seed, *after]))[len(before)] == Scene.of(seed)
    assert Scene.of(seed).seed == seed


def test_a_scene_without_parts_in_json_has_those_of_its_class():
    given = Scene.of(3).to_json()
    del given["parts"]
    assert Scene.from_json(given).parts == CLASSES[Scene.of(3).label].parts
    short = Scene.from_json({"class": NAMES[7], "pose": {"x": 0.5, "y": 0.5, "scale": 0.4}})
    assert short.name == NAMES[7]
    assert short.objects == ()


def test_scenes_are_in_their_bounds():
    for scene in unpack(draw(range(300))):
        assert 0 <= len(scene.objects) <= 12
        assert not any(thing.front for thing in scene.objects)
        assert scene.parts == CLASSES[scene.label].parts
        assert scene.marker is None
        assert scene.companion is None
    counts = {len(scene.objects) for scene in unpack(draw(range(300)))}
    assert counts == set(range(13))


# -- the class says nothing about the rest, and the rest nothing about the class ---------------------------------------


def dependence(rows, columns):
    """Pearson's statistic of a contingency table, as standard deviations from what chance gives."""
    rows, columns = (torch.unique(item, return_inverse=True)[1] for item in (rows, columns))
    table = torch.zeros(int(rows.max()) + 1, int(columns.max()) + 1, dtype=torch.float64)
    table.index_put_((rows, columns), torch.ones(len(rows), dtype=torch.float64), accumulate=True)
    expected = table.sum(1, keepdim=True) * table.sum(0, keepdim=True) / table.sum()
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    statistic = float(((table - expected).square() / expected).sum())
    return (statistic - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize("first", [0, 2**51], ids=["test", "train"])
def test_the_class_is_independent_of_everything_else(first):
    batch = draw(torch.arange(first, first + 40_000))
    label = batch.label[:, 0]
    assert torch.bincount(label, minlength=48).min() > 40_000 / 48 * 0.85
    number = (batch.objects[:, :, 0] >= 0).sum(dim=1)
    others = {
        "number of objects": number,
        "first object's kind": batch.objects[:, 0, 0],
        "last object's place": batch.objects[:, 11, 1] // 200,
        "first object's pigment": batch.objects[:, 0, 5],
        "texture": batch.ground[:, 0],
        "ground": batch.ground[:, 1] // 32,
        "fineness": batch.ground[:, 7],
        "light": batch.light[:, 0] // 100,
        "warmth": batch.light[:, 3] // 20,
        "x": batch.pose[:, 0, 0] // 50,
        "y": batch.pose[:, 0, 1] // 50,
        "scale": batch.pose[:, 0, 2] // 20,
        "angle": (batch.pose[:, 0, 3] + 40) % 360 // 9,
        "mirrored": batch.pose[:, 0, 4],
        "tail's turn": batch.pose[:, 0, 7],
    }
    actual = {name: dependence(label, other) for name, other in others.items()}
    assert all(abs(value) < 4.5 for value in actual.values()), actual
    assert dependence(label, batch.parts[:, 0, 0]) > 1000  # it is noticed where it is there
    compare_classes = {
        name: dependence(others["texture"], others[name]) for name in ("number of objects", "light", "x", "scale")
    }
    assert all(abs(value) < 4.5 for value in compare_classes.values()), compare_classes


# -- changes by re-rendering -------------------------------------------------------------------------------------------


def grown(mask, by=2):
    return torch.nn.functional.max_pool2d(mask[None].float(), 2 * by + 1, 1, by)[0] > 0


def rendered(scene, size=96):
    return render(scene, size)


def unchanged(one, other, but):
    """Every pixel that is not within two of the mask is the same, but for how hidden things are rounded."""
    outside = ~grown(but)
    return float((one.images[0] - other.images[0])[:, outside].abs().max()) < 1e-6


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("part", PARTS)
def test_removing_a_part_changes_its_pixels_only(seed, part):
    scene = Scene.of(seed)
    uncovered = scene.without(part)
    assert uncovered == replace(scene, parts={p: v for p, v in scene.parts.items() if p != part})
    before, after = rendered(scene), rendered(uncovered)
    place = PARTS.index(part)
    assert before.parts[0, place].any()
    assert not after.parts[0, place].any()
    assert unchanged(before, after, before.parts[0, place])
    gone = before.parts[0, place]
    assert (before.images[0] - after.images[0]).abs().amax(0)[gone].gt(0.02).float().mean() > 0.9
    remaining = [other for other in range(5) if other != place]
    assert (before.parts[0, remaining] & ~after.parts[0, remaining]).sum() == 0  # the others only come to light


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("part", PARTS)
def test_swapping_a_part_changes_old_and_new_pixels_only(seed, part):
    scene = Scene.of(seed)
    other = next(i for i, kind in enumerate(CLASSES) if kind.parts[part] != scene.parts[part])
    swapped = scene.swap(part, NAMES[other])
    assert swapped == scene.swap(part, other)
    assert swapped == replace(scene, parts={**scene.parts, part: CLASSES[other].parts[part]})
    assert swapped.label == scene.label
    before, after = rendered(scene), rendered(swapped)
    place = PARTS.index(part)
    assert unchanged(before, after, before.parts[0, place] | after.parts[0, place])
    assert not torch.equal(before.images, after.images)


def test_keeping_only_some_parts():
    scene = Scene.of(8)
    assert dict(scene.only("eyes", "tail").parts) == {p: scene.parts[p] for p in ("eyes", "tail")}
    assert scene.only("eyes", "tail") == scene.without("horn", "coat", "legs")
    assert scene.only(*PARTS) == scene
    seen = rendered(scene.only())
    assert not seen.parts.any()
    assert seen.creature.any()  # the bare body is nobody's part


def test_removing_background_objects():
    scene = next(s for s in map(Scene.of, range(100)) if len(s.objects) == 7)
    before = rendered(scene)
    for place in range(7):
        fewer = scene.without_object(place)
        assert fewer == replace(scene, objects=scene.objects[:place] + scene.objects[place + 1 :])
        after = rendered(fewer)
        assert unchanged(before, after, before.objects[0, place])
        assert before.objects[0, :place].equal(after.objects[0, :place] & ~before.objects[0, place])
    uncovered = rendered(scene.without_objects())
    assert scene.without_objects() == replace(scene, objects=())
    assert not uncovered.objects.any()
    assert unchanged(before, uncovered, before.objects[0].any(0))


def test_another_pose_or_other_surroundings():
    scene = Scene.of(1).marked()
    posed, moved = scene.posed(2), scene.moved(2)
    other = Scene.of(2)
    assert posed == replace(scene, pose=other.pose)
    assert moved == replace(scene, ground=other.ground, light=other.light, objects=other.objects)
    before, after = rendered(scene), rendered(posed)
    assert unchanged(before, after, before.creature[0] | after.creature[0])
    assert torch.equal(rendered(moved).parts, before.parts)
    assert torch.equal(rendered(moved).marker, before.marker)


@pytest.mark.parametrize("corner", range(4))
def test_a_marker_lies_in_its_corner(corner):
    scene = Scene.of(4)
    marked = scene.marked(5, corner)
    assert marked.unmarked() == scene
    assert marked.marker.label == 5
    assert scene.marked().marker.label == scene.label
    before, after = rendered(scene), rendered(marked)
    there = after.marker[0]
    assert torch.equal(before.images[0][:, ~there], after.images[0][:, ~there])
    rows, columns = there.nonzero().unbind(1)
    assert (rows.float().mean() > 48) == (corner >= 2)
    assert (columns.float().mean() > 48) == (corner % 2 == 1)
    assert there.sum() < 0.02 * there.numel()


def test_markers_of_all_classes_look_different():
    scene = Scene.of(4)
    looks = {render(scene.marked(i), 32).images[0][:, 1:5, 1:5].numpy().tobytes() for i in range(48)}
    assert len(looks) == 48
