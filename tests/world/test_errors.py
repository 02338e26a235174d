"""What cannot be is refused in one line that names it."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vitreous as vt
from vitreous.errors import VitreousError
from vitreous.world import (
    NAMES,
    BackgroundObject,
    Creature,
    Ground,
    Light,
    Marker,
    Pose,
    Scene,
    World,
    distinctive_part,
    draw,
    make_difficult,
    make_mosaics,
    pack,
    render,
    unpack,
)
from vitreous.world.dataset import read
from vitreous.world.models import examine

SCENE = Scene.of(5)
POSE = Pose(0.5, 0.5, 0.4)

WRONG = {
    "an unknown class": (lambda: SCENE.swap("horn", "stubby bimbel"), "stubby bimbel"),
    "a class number too high": (lambda: distinctive_part(48), "48"),
    "a class number below": (lambda: SCENE.marked(-1), "-1"),
    "a class that is no class": (lambda: distinctive_part(2.5), "2.5"),
    "a truth for a class": (lambda: distinctive_part(True), "True"),
    "a name for a number": (lambda: Creature(NAMES[3], {}, POSE), NAMES[3]),
    "an unknown part": (lambda: SCENE.without("wing"), "wing"),
    "an unknown part kept": (lambda: SCENE.only("horn", "wing"), "wing"),
    "an unknown part swapped": (lambda: SCENE.swap("wing", 3), "wing"),
    "a part of no class": (lambda: Creature(3, {"wing": "spike"}, POSE), "wing"),
    "an unknown variant": (lambda: Creature(3, {"horn": "trumpet"}, POSE), "trumpet"),
    "an unknown texture": (lambda: Ground("marble"), "marble"),
    "an unknown object": (lambda: BackgroundObject("lamp", 0.5, 0.5, 0.1), "lamp"),
    "a colour too many": (lambda: Ground(first=(1, 2, 3, 4)), "(1, 2, 3, 4)"),
    "a colour too bright": (lambda: Ground(first=(1, 2, 300)), "300"),
    "a pigment too many": (lambda: BackgroundObject("twig", 0.5, 0.5, 0.1, colours=(0, 10)), "10"),
    "an object too large": (lambda: BackgroundObject("twig", 0.5, 0.5, 7), "7"),
    "an object in doubt": (lambda: BackgroundObject("twig", 0.5, 0.5, 0.1, front="maybe"), "maybe"),
    "a pose outside": (lambda: Pose(3.0, 0.5, 0.4), "3.0"),
    "no number": (lambda: Pose(float("nan"), 0.5, 0.4), "nan"),
    "half a degree": (lambda: Pose(0.5, 0.5, 0.4, angle=0.5), "0.5"),
    "a light too strong": (lambda: Light(strength=9), "9"),
    "a fifth corner": (lambda: Marker(3, 4), "4"),
    "half a corner": (lambda: Marker(3, 0.5), "0.5"),
    "an object that is not there": (lambda: SCENE.without_object(99), "99"),
    "an object by name": (lambda: SCENE.without_object("twig"), "twig"),
    "a negative seed": (lambda: Scene.of(-1), "-1"),
    "a seed too large": (lambda: Scene.of(2**53), str(2**53)),
    "a seed far too large": (lambda: Scene.of(2**80), str(2**80)),
    "a seed in words": (lambda: Scene.of("one"), "one"),
    "half a seed": (lambda: draw([1, 1.5]), "1.5"),
    "a negative seed among others": (lambda: draw([3, -7]), "-7"),
    "a negative seed in a tensor": (lambda: draw(torch.tensor([3, -7])), "-7"),
    "seeds that are fractions": (lambda: draw(torch.tensor([0.5])), "float32"),
    "seeds in a square": (lambda: draw(torch.zeros(2, 2, dtype=torch.int64)), "[2, 2]"),
    "one seed": (lambda: draw(5), "5"),
    "a scene's own seed": (lambda: Scene(3, {}, POSE, seed=-4), "-4"),
    "size 0": (lambda: render(SCENE, 0), "0"),
    "size x": (lambda: render(SCENE, "x"), "x"),
    "a negative size": (lambda: render(SCENE, -128), "-128"),
    "half a size": (lambda: render(SCENE, 64.5), "64.5"),
    "size without end": (lambda: render(SCENE, 10**9), str(10**9)),
    "no scenes": (lambda: render([]), "no scene"),
    "no scenes drawn": (lambda: render(draw([])), "no scene"),
    "what is no scene": (lambda: render([SCENE, "crested"]), "crested"),
    "a number for scenes": (lambda: pack(5), "5"),
    "an unknown device": (lambda: render(SCENE, 32, "toaster"), "toaster"),
    "an unknown device to draw on": (lambda: draw([1], "toaster"), "toaster"),
    "a negative number of scenes": (lambda: World(n=-1), "-1"),
    "a number of scenes in words": (lambda: World(n="ten"), "ten"),
    "a negative start": (lambda: World(start=-3), "-3"),
    "a data set of size 0": (lambda: World(size=0), "0"),
    "an unknown split": (lambda: World("dev"), "dev"),
    "a list for a split": (lambda: World(["test"]), "test"),
    "a place in words": (lambda: World(n=3)["first"], "first"),
    "batches of nothing": (lambda: next(World(n=3).batches(0)), "0"),
    "a mosaic that cannot be halved": (lambda: make_mosaics(1, 65), "65"),
    "a mosaic of size x": (lambda: make_mosaics(1, "x"), "x"),
    "a negative number of mosaics": (lambda: make_mosaics(-1), "-1"),
    "mosaics of an unknown split": (lambda: make_mosaics(1, split="dev"), "dev"),
    "too difficult": (lambda: make_difficult(draw([1]), 1.5), "1.5"),
    "difficult in words": (lambda: make_difficult(draw([1]), "very"), "very"),
    "an exam of nothing": (lambda: examine(None, 3), "3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_values(name):
    do, named = WRONG[name]
    with pytest.raises(VitreousError) as caught:
        do()
    message = str(caught.value)
    assert named in message
    assert "\n" not in message
    assert len(message) < 250


def test_near_names_are_suggested():
    with pytest.raises(VitreousError, match=f"did you mean {NAMES[4]}"):
        SCENE.marked(NAMES[4][:-1])


def test_a_place_that_is_not_there_ends_iteration():
    with pytest.raises(IndexError, match="3 of 3"):
        World(n=3)[3]


def test_a_scene_without_a_creature_is_none():
    batch = draw([4])
    with pytest.raises(VitreousError, match="scene 4 has no creature"):
        unpack(batch.replace(label=torch.full_like(batch.label, -1)))


# -- JSON --------------------------------------------------------------------------------------------------------------

SCENES = '{"schema": "vitreous.scenes/1", "scenes": [%s]}'
WHOLE = json.loads(json.dumps(next(s for s in map(Scene.of, range(99)) if s.objects).marked(3, 1).to_json()))
"""A scene with everything but a companion, as JSON."""


def changed(path, value):
    """The JSON of a scene with one value exchanged, or left out (``...``)."""
    actual = copy.deepcopy(WHOLE)
    *way, last = path
    inner = actual
    for step in way:
        inner = inner[step]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return actual


WRONG_JSON = {
    "no class": (("class",), ..., "'class'"),
    "no pose": (("pose",), ..., "'pose'"),
    "an unknown class": (("class",), "blue whale", "blue whale"),
    "a class that is a list": (("class",), ["blue"], "blue"),
    "an unknown key": (("colour",), "red", "'colour'"),
    "the number of a class": (("label",), 3, "'label'"),
    "parts that are no table": (("parts",), ["horn"], "horn"),
    "an unknown part": (("parts", "wing"), "spike", "wing"),
    "an unknown variant": (("parts", "horn"), "trumpet", "trumpet"),
    "no variant": (("parts", "horn"), None, "None"),
    "a pose that is no table": (("pose",), 5, "5"),
    "a pose without x": (("pose", "x"), ..., "'x'"),
    "x in words": (("pose", "x"), "left", "left"),
    "x far away": (("pose", "x"), 1e9, "1000000000.0"),
    "an angle that is half": (("pose", "angle"), 1.5, "1.5"),
    "an angle without end": (("pose", "angle"), 10**30, "1000000"),
    "mirrored in words": (("pose", "mirrored"), "yes", "yes"),
    "an unknown key in a pose": (("pose", "z"), 1, "'z'"),
    "light in words": (("light",), "bright", "bright"),
    "no light": (("light",), None, "None"),
    "a key without end": (("ground", "key"), 2**70, str(2**70)),
    "two channels": (("ground", "first"), [1, 2], "(1, 2)"),
    "a colour's name": (("ground", "second"), "red", "red"),
    "objects that are a number": (("objects",), 5, "5"),
    "an object that is a name": (("objects", 0), "twig", "twig"),
    "an unknown object": (("objects", 0, "kind"), "lamp", "lamp"),
    "an object without a kind": (("objects", 0, "kind"), ..., "'kind'"),
    "too many objects": (("objects",), [WHOLE["objects"][0]] * 13, "13"),
    "a marker without a class": (("marker", "class"), ..., "'class'"),
    "a marker of no class": (("marker", "class"), "x", "'x'"),
    "a marker in no corner": (("marker", "corner"), 9, "9"),
    "a companion without a pose": (("companion",), {"class": NAMES[0]}, "'pose'"),
    "a companion in words": (("companion",), "friend", "friend"),
    "a seed in words": (("seed",), "one", "one"),
    "a negative seed": (("seed",), -1, "-1"),
}


@pytest.mark.parametrize("name", WRONG_JSON)
def test_wrong_json(name):
    path, value, named = WRONG_JSON[name]
    with pytest.raises(VitreousError) as caught:
        Scene.from_json(changed(path, value))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("value", [None, 5, "scene", [1, 2], {}, {"class": 3}])
def test_what_is_no_scene_at_all(value):
    with pytest.raises(VitreousError):
        Scene.from_json(value)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLACES = [
    *((key,) for key in WHOLE),
    *((key, inner) for key in ("pose", "light", "ground", "marker", "parts") for inner in WHOLE[key]),
    *(("objects", 0, inner) for inner in WHOLE["objects"][0]),
]


@given(st.sampled_from(PLACES), JUNK)
def test_any_json_gives_a_scene_that_renders_or_one_line(place, value):
    message = ""
    try:
        assert render(Scene.from_json(changed(place, value)), 16).images.isfinite().all()
    except VitreousError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "vitreous.scenes/1"}', "\xff", SCENES % "5", SCENES % "{}"])
def test_files_that_hold_no_scenes(tmp_path, text):
    path = tmp_path / "scenes.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(VitreousError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(VitreousError, match=r"none\.json"):
        read(tmp_path / "none.json")


# -- weights -----------------------------------------------------------------------------------------------------------


def test_a_corrupt_weight_file(tmp_path):
    from vitreous.world.models import WEIGHTS

    complete = (WEIGHTS / "world.safetensors").read_bytes()
    for name, content in {"cut": complete[: len(complete) // 2], "empty": b"", "text": b"not weights"}.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(content)
        with pytest.raises(vt.VitreousError) as caught:
            vt.load("world", checkpoint=path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(vt.VitreousError, match="no checkpoint at"):
        vt.load("world", checkpoint=tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrold", "did you mean world"),
        ("World", "did you mean world"),
        ("world-shortcuts", "did you mean world-shortcut"),
        ("world/whale", "world/whale"),
    ],
)
def test_unknown_models_get_a_suggestion(name, message):
    with pytest.raises(vt.VitreousError, match=message):
        vt.load(name)


@pytest.mark.parametrize("option", ["num_classes", "img_size", "depth"])
def test_a_bundled_model_is_what_it_is(option):
    with pytest.raises(vt.VitreousError, match=f"{option}=3"):
        vt.load("world", **{option: 3})
