"""Grids and mosaics: what meets what, where it is shown, and what is known about it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from vitreous.datasets import Grids, make_grids, make_mosaics


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


@pytest.fixture(scope="module")
def x(model: vt.VisionModel) -> Tensor:
    return images(model, 24)


LABELS = [number % 5 for number in range(24)]


def cells(picture: Tensor, rows: int) -> list[Tensor]:
    side = 32 // rows
    return [picture[:, r : r + side, c : c + side] for r in range(0, 32, side) for c in range(0, 32, side)]


def source(cell: Tensor, x: Tensor) -> int:
    """Which image a cell shows: the one that is the same when made small by averaging."""
    small = F.interpolate(x, cell.shape[-2:], mode="bilinear", antialias=True)
    (actual,) = (small - cell).abs().amax(dim=(1, 2, 3)).lt(1e-5).nonzero().flatten().tolist()
    return int(actual)


@pytest.mark.parametrize("rows", [2])
def test_every_cell_is_a_picture_of_its_class(model: vt.VisionModel, x: Tensor, rows: int) -> None:
    grids = make_grids(model, x, LABELS, rows)
    assert len(grids) == len(grids.images) == len(grids.annotations) == 6 * rows**2, "24 images make six grids"
    used = []
    for entry in range(0, len(grids), rows**2):
        visible = [source(cell, x) for cell in cells(grids.images[entry], rows)]
        used += visible
        assert [LABELS[item] for item in visible] == list(grids.targets[entry : entry + rows**2])
        assert len({LABELS[item] for item in visible}) == rows**2, "classes of a grid differ"
        for place in range(rows**2):
            assert torch.equal(grids.images[entry + place], grids.images[entry])
            assert grids.compare_classes[entry + place] == tuple(sorted({LABELS[item] for item in visible}))
            assert grids.groups[entry + place] == entry // rows**2
            mask = np.zeros((32, 32), bool)
            mask[place // rows * 16 :][:16, place % rows * 16 :][:, :16] = True
            assert (grids.annotations[entry + place].mask == mask).all()
    assert len(used) == len(set(used)), "a picture was used twice"


def test_larger_grids(model: vt.VisionModel) -> None:
    x, labels = images(model, 16), [0, 1, 2, 3, 4] * 4
    with pytest.raises(vt.VitreousError, match="no 16 images of different classes"):
        make_grids(model, x, labels[:16], rows=4)
    larger = FAMILIES["vit"]()
    larger.reset_classifier(20)
    grids = make_grids(vt.wrap(larger), x, list(range(16)), rows=4)
    assert sorted(grids.targets) == list(range(16))
    assert grids.annotations[5].mask.sum() == 64
    assert grids.annotations[5].mask[8:16, 8:16].all()


def test_the_draw_follows_content_and_seed(model: vt.VisionModel, x: Tensor) -> None:
    def visible(grids: Grids) -> set[bytes]:
        return {np.asarray(image).tobytes() for image in grids.images}

    one = make_grids(model, x, LABELS)
    back = make_grids(model, x.flip(0), LABELS[::-1])
    assert visible(one) == visible(back)
    assert visible(one) == visible(make_grids(model, x, LABELS))
    assert visible(one) != visible(make_grids(model, x, LABELS, seed=1))
    places = {target: set() for target in range(5)}
    for entry, target in enumerate(one.targets):
        places[target].add(entry % 4)
    assert sum(len(position) > 1 for position in places.values()) >= 3, "a class is not always in the same cell"


def test_as_many_grids_as_there_can_be(model: vt.VisionModel, x: Tensor) -> None:
    """Three pictures of each of four classes and nine of a fifth: 21 images make three grids and no more of four."""
    labels = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3] + [4] * 9
    assert len(make_grids(model, x[:21], labels)) == 4 * 4, "a fourth grid needs the classes to be spread well"
    assert len(make_grids(model, x, LABELS, count=2)) == 8
    with pytest.raises(vt.VitreousError, match="the images make 6 2 x 2 grids, not 7"):
        make_grids(model, x, LABELS, count=7)


def test_only_what_the_model_is_sure_of(model: vt.VisionModel, x: Tensor) -> None:
    with torch.no_grad():
        reported = model.module(x).softmax(dim=1)
    best = reported.argmax(dim=1).tolist()
    wanted = {n for n in range(24) if reported[n].max() >= 0.4}
    labels = list(best)
    wrong = next(n for n in sorted(wanted) if best.count(best[n]) > 1)
    labels[wrong] = (best[wrong] + 1) % 5
    wanted.discard(wrong)
    assert 0 < len(wanted) < 23
    grids = make_grids(model, x, labels, least_confidence=0.4)
    used = {source(cell, x) for picture in grids.images for cell in cells(picture, 2)}
    assert used <= wanted


def test_objects_inside_their_cells(model: vt.VisionModel, x: Tensor) -> None:
    """With truth, the region is the object in its cell, as Part-Quad has it."""
    rng = np.random.default_rng(0)
    masks = rng.random((24, 32, 32)) < 0.3
    ignores = rng.random((24, 32, 32)) < 0.1
    truths = [vt.Annotation(mask, ignore=ignore) for mask, ignore in zip(masks, ignores, strict=True)]
    grids = make_grids(model, x, LABELS, annotations=truths)
    for entry, truth in enumerate(grids.annotations):
        place = entry % 4
        number = source(cells(grids.images[entry], 2)[place], x)
        rows, columns = slice(place // 2 * 16, place // 2 * 16 + 16), slice(place % 2 * 16, place % 2 * 16 + 16)
        assert (truth.mask[rows, columns] == masks[number, 1::2, 1::2]).all()
        assert truth.mask.sum() == masks[number, 1::2, 1::2].sum(), "nothing outside its cell"
        assert (truth.ignore[rows, columns] == ignores[number, 1::2, 1::2]).all()
        assert truth.ignore.sum() == ignores[number, 1::2, 1::2].sum()


def test_grids_are_evaluated(model: vt.VisionModel, x: Tensor) -> None:
    grids = make_grids(model, x, LABELS, count=3)
    table = vt.evaluate(
        model,
        grids.images,
        "var(generic)",
        ["grid_pointing_game", "ra"],
        target=grids.targets,
        annotations=grids.annotations,
        compare_classes=grids.compare_classes,
        n_bootstrap=20,
    )
    assert len(table.images) == 12
    assert table.mean("constant", "grid_pointing_game") == pytest.approx(0.25)
    maps = vt.get_method("var(generic)").attribute(
        model,
        torch.stack(list(grids.images)),
        target=list(grids.targets),
        compare_classes=[list(item) for item in grids.compare_classes],
    )
    fine = F.interpolate(maps.double()[:, None], (32, 32), mode="bilinear", align_corners=False)[:, 0].clamp(min=0)
    for entry, truth in enumerate(grids.annotations):
        expected = fine[entry][torch.from_numpy(truth.mask)].sum() / fine[entry].sum()
        assert table["var(generic)", "grid_pointing_game"][entry] == pytest.approx(float(expected), abs=1e-4)


def test_mosaics(model: vt.VisionModel, x: Tensor) -> None:
    """Two cells of the target class, two of two others; one entry for each."""
    grids = make_mosaics(model, x, LABELS)
    assert len(grids) == 5
    used = []
    for entry in range(len(grids)):
        visible = [source(cell, x) for cell in cells(grids.images[entry], 2)]
        used += visible
        classes = [LABELS[item] for item in visible]
        target = grids.targets[entry]
        assert sorted(classes.count(item) for item in set(classes)) == [1, 1, 2]
        assert classes.count(target) == 2
        places = [bool(mask.all()) for mask in cells(torch.from_numpy(grids.annotations[entry].mask)[None], 2)]
        assert places == [item == target for item in classes]
        assert grids.annotations[entry].mask.mean() == 0.5
    assert len(set(used)) == len(used)
    table = vt.evaluate(
        model, grids.images, "ixg", "focus", target=grids.targets, annotations=grids.annotations, n_bootstrap=5
    )
    assert table.mean("constant", "focus") == pytest.approx(0.5)
    with pytest.raises(vt.VitreousError, match="no two images of one class and two of others"):
        make_mosaics(model, x[:5], LABELS[:5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 1}, "rows=1 must be at least 2"),
        ({"rows": 3}, "32 x 32 pixels cannot be cut into 3 x 3 equal cells"),
        ({"least_confidence": 2}, "least_confidence=2"),
        ({"count": 0}, "count=0 must be at least 1"),
        ({"labels": None}, "input-0 has no class: grids need labels"),
        ({"labels": LABELS[:3]}, "there is no label for input-3"),
        ({"labels": [0] * 24}, "no 4 images of different classes"),
        ({"annotations": [vt.Annotation()] * 24}, "nothing is known about where the object of input-0 is"),
    ],
)
def test_bad_grids(model: vt.VisionModel, x: Tensor, options: dict[str, Any], message: str) -> None:
    with pytest.raises(vt.VitreousError, match=message):
        make_grids(model, x, **({"labels": LABELS} | options))
