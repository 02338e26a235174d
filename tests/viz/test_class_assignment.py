"""Who owns which patch: colours, opacity, the two kinds of evidence, and where the picture is found."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from families import FAMILIES, images
from vitreous import viz as show
from vitreous.viz.colormap import to_oklab
from vitreous.viz.panels import ExtraPicture, excess, owners


def grey(size: int = 32) -> Image.Image:
    return Image.new("RGB", (size, size), (120, 120, 120))


def shares(*cells: list[float]) -> np.ndarray:
    """A distribution [K, 1, w] from one list per patch."""
    return np.array(cells).T[:, None]


@pytest.mark.parametrize("count", [2, 3, 5, 6, 8, 12])
def test_colours_can_be_told_apart(count):
    lab = to_oklab(show.class_colours(count) / 255)
    apart = [np.linalg.norm(a - b) for i, a in enumerate(lab) for b in lab[i + 1 :]]
    assert min(apart) > 0.07
    if count <= 6:
        assert np.ptp(lab[:, 0]) < 0.03  # one lightness: no class looks more important


def test_excess():
    assert excess(shares([0.5, 0.5], [1.0, 0.0], [0.25, 0.75])) == pytest.approx(np.array([[0, 1, 0.5]]))
    assert excess(shares([1 / 3] * 3, [0.8, 0.1, 0.1])) == pytest.approx(np.array([[0, 0.7]]))


def test_the_owner_colours_its_patch_and_a_tie_stays_grey():
    picture = np.asarray(
        show.owner_overlay(grey(64), np.repeat(shares([1, 0], [0, 1], [0.5, 0.5], [0.5, 0.5]), 4, axis=1))
    )
    first, second = show.class_colours(2).astype(float)
    for place, colour in ((4, first), (20, second)):
        result = picture[32, place].astype(float)
        off = [np.linalg.norm(result - result.mean() - (item - item.mean())) for item in (first, second)]
        assert np.argmin(off) == (0 if colour is first else 1)
        assert np.ptp(result) > 40
    assert np.ptp(picture[:, 56:].astype(int), axis=-1).max() <= 1


def test_opacity_grows_with_the_excess():
    strengths = []
    for q in (0.5, 0.6, 0.8, 1.0):
        picture = np.asarray(show.owner_overlay(grey(), np.full((2, 2, 2), 0.0) + np.array([q, 1 - q])[:, None, None]))
        strengths.append(int(np.ptp(picture[16, 16].astype(int))))
    assert strengths[0] <= 1
    assert strengths == sorted(strengths)
    assert strengths[-1] > 60


def test_a_class_that_wins_weak_patches_does_not_flood_the_picture():
    """Two classes own all they have; one patch has strong evidence, the others next to none."""
    q = np.repeat(shares([1, 0], [0, 1], [0, 1], [0, 1]), 4, axis=1)
    strength = np.repeat(np.array([[1.0, 0.01, 0.01, 0.01]]), 4, axis=0)
    weighed = np.asarray(show.owner_overlay(grey(64), q, strength)).astype(int)
    other = np.asarray(show.owner_overlay(grey(64), q)).astype(int)
    assert np.ptp(weighed[32, 4]) > 60
    assert np.ptp(other[32, 56]) > 60
    assert np.ptp(weighed[32, 56]) <= 3
    none = np.asarray(show.owner_overlay(grey(64), q, 0 * strength)).astype(int)
    assert np.ptp(none, axis=-1).max() <= 1


def test_shares_of_the_evidence(monkeypatch):
    """The legend counts evidence, not patches: three weak patches are less than a strong one."""
    seen = []
    room = importlib.import_module("vitreous.viz.panels")
    monkeypatch.setattr(room, "_legend", lambda names, owned, tile: seen.append(owned) or grey())
    maps = np.array([[[7.0, 0.0, 0.0, 0.0]], [[0.0, 1.0, 1.0, 1.0]]])
    owners(grey(), shares([1, 0], [0, 1], [0, 1], [0.5, 0.5]), maps, ["a", "b"])
    assert seen == [[pytest.approx(0.7), pytest.approx(0.2)]]


def test_evidence_is_split_and_nothing_is_lost(monkeypatch):
    seen = []
    room = importlib.import_module("vitreous.viz.panels")
    monkeypatch.setattr(room, "panel", lambda rows, caption, **look: seen.extend(rows[0]) or grey())
    maps = np.array([[[2.0, -1.0, 0.5]], [[1.0, -2.0, 0.5]]])
    owners(grey(), shares([1, 0], [0.5, 0.5], [0.75, 0.25]), maps, ["a", "b"])
    _, _, only, both, _ = seen
    assert only.map.tolist() == [[2.0, 0.0, 0.25]]
    assert both.map.tolist() == [[0.0, 0.0, 0.25]]
    assert only.group == both.group


@pytest.mark.parametrize("tile", [64, 224])
def test_many_long_names_fit(tile):
    names = [f"a class with quite a long name, number {i}" for i in range(40)]
    q = np.full((40, 3, 3), 1 / 40)
    picture = owners(grey(), q, q, names, "caption", tile)
    assert picture.width >= 5 * tile


def test_what_does_not_fit_is_refused():
    q = np.full((2, 3, 3), 0.5)
    with pytest.raises(ValueError, match="3 names"):
        owners(grey(), q, q, ["a", "b", "c"])
    with pytest.raises(ValueError, match="K at least 2"):
        show.owner_overlay(grey(), q[:1])


def test_explanations_have_it(tmp_path):
    model = vt.wrap(FAMILIES["vit"](), class_names=["ash", "birch", "cedar", "elm", "fir"])
    e = vt.explain(model, images(model, 3), "var(generic, classes='birch,fir')", target="ash")[1]
    assert e.class_names == ("ash", "birch", "fir")
    picture = e.extra_image("owners", tile=96)
    assert "owns" in e._repr_html_()
    saved = e.save(tmp_path / "e")
    assert (saved / "owners.png").exists()
    again = vt.Explanation.load(saved)
    assert again.class_names == e.class_names
    assert again.extra_image("owners", tile=96).tobytes() == picture.tobytes()
    other = vt.explain(model, images(model, 1)[0], "generic")
    assert not other.class_names
    with pytest.raises(vt.VitreousError, match=r"var\(generic\)"):
        other.extra_image("owners")


def test_images_with_fewer_classes_show_their_own():
    model = vt.wrap(FAMILIES["vit"]())
    shares = vt.explain(model, images(model, 6), "var(generic, classes=top:1)", target=0)
    assert {len(e.class_names) for e in shares} == {2, 3}
    for e in shares:
        assert e.extra_image("owners", tile=64).width > 0


def test_a_method_of_ones_own_may_have_a_picture_of_its_own(tmp_path, monkeypatch):
    """An entry in the registry is all it takes: it is saved, shown and listed, for this method and no other."""
    monkeypatch.setattr("vitreous.viz.panels.EXTRAS", registry := dict(show.EXTRAS))
    monkeypatch.setattr(show, "EXTRAS", registry)

    def layers(e, tile):
        return Image.new("RGB", (tile * len(e.extras["layers"]), tile), "red")

    registry["layers"] = ExtraPicture("layers", "Layer by layer", ("layers",), layers, "plus({})")
    model = vt.wrap(FAMILIES["vit"]())
    e = vt.explain(model, images(model, 1)[0], "plus(ixg)")
    assert e.extra_images == ("layers",)
    assert e.extra_image("layers", tile=10).size == (10 * model.depth, 10)
    assert "Layer by layer" in e._repr_html_()
    assert (e.save(tmp_path / "e") / "layers.png").exists()
    assert (
        "layers.png" in vt.Explanation.load(tmp_path / "e").save(tmp_path / "f").joinpath("manifest.json").read_text()
    )
    other = vt.explain(model, images(model, 1)[0], "ixg")
    assert not other.extra_images
    with pytest.raises(vt.VitreousError, match=r"has no picture 'layers'; explain with plus\(ixg\) to see it"):
        other.extra_image("layers")
    with pytest.raises(vt.VitreousError, match="has no picture 'luck'; there is layers"):
        e.extra_image("luck")
