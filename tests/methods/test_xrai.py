"""XRAI and its segmentation, each step written out slowly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import vitreous as vt
from families import FAMILIES, golden, images, verified
from vitreous.methods.xrai import segment

SCALES = (50, 100, 150, 250, 500, 1200)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return verified(FAMILIES["vit"]().double())


def picture(height: int, width: int, noise: float = 0.05, seed: int = 0) -> np.ndarray:
    """Blobs and noise ``[H, W, 3]`` from -1 to 1."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(1, 3, 5, 6, generator=generator, dtype=torch.float64)
    large = nn.functional.interpolate(coarse, (height, width), mode="bicubic", align_corners=False)[0]
    large = large + noise * torch.randn(3, height, width, generator=generator, dtype=torch.float64)
    return (2 * (large - large.min()) / (large.max() - large.min()) - 1).permute(1, 2, 0).numpy()


def slow_segments(image: np.ndarray, scale: float, sigma: float, least: int) -> np.ndarray:
    """The paper's algorithm on sets of pixels, edge by edge."""
    ndimage = pytest.importorskip("scipy.ndimage")
    image = ndimage.gaussian_filter(image, (sigma, sigma, 0), mode="reflect")
    height, width = image.shape[:2]
    edges = []
    for kind, (down, horizontal) in enumerate([(0, 1), (1, 0), (1, 1), (1, -1)]):
        for i in range(height - down):
            for j in range(max(0, -horizontal), width - max(0, horizontal)):
                apart = np.linalg.norm(image[i, j] - image[i + down, j + horizontal])
                edges.append((apart, kind, (i, j), (i + down, j + horizontal)))
    edges.sort()
    of = {(i, j): [(i, j)] for i in range(height) for j in range(width)}
    inside = dict.fromkeys(of, 0.0)  # by the first pixel of the list

    def join(one: list, other: list) -> list:
        one.extend(other)
        for pixel in other:
            of[pixel] = one
        return one

    for apart, _, p, q in edges:
        one, other = of[p], of[q]
        if one is other:
            continue
        if all(apart < inside[part[0]] + scale / 255 / len(part) for part in (one, other)):
            inside[join(one, other)[0]] = apart
    for _, _, p, q in edges:
        if of[p] is not of[q] and min(len(of[p]), len(of[q])) < least:
            join(of[p], of[q])
    names = {id(part): n for n, part in enumerate({id(v): v for v in of.values()}.values())}
    return np.array([[names[id(of[i, j])] for j in range(width)] for i in range(height)])


def same_partition(one: np.ndarray, other: np.ndarray) -> bool:
    pairs = set(zip(one.ravel().tolist(), other.ravel().tolist(), strict=True))
    return len(pairs) == len(set(one.ravel().tolist())) == len(set(other.ravel().tolist()))


@pytest.mark.parametrize(("noise", "least"), [(0.05, 20), (1.0, 20), (0.3, 1), (0.0, 40)])
def test_segments_are_those_of_the_slow_one(noise, least):
    image = picture(48, 37, noise)
    scales = (5, 50, 400)
    actual = segment(image, scales, sigma=0.8, min_size=least)
    for scale, labels in zip(scales, actual, strict=True):
        assert same_partition(labels, slow_segments(image, scale, 0.8, least))
        assert sorted(set(labels.ravel().tolist())) == list(range(labels.max() + 1))
        assert np.bincount(labels.ravel()).min() >= least
    assert len({labels.max() for labels in actual}) > 1  # scales matter here


def test_long_stretches_of_edges_are_cut_without_a_trace(monkeypatch):
    from vitreous.methods import xrai as felzenszwalb

    image = picture(40, 40, 0.2)
    complete = segment(image, SCALES, min_size=10)
    for size in (1, 97, 10**6):
        monkeypatch.setattr(felzenszwalb, "_CHUNK", size)
        assert all(np.array_equal(a, b) for a, b in zip(complete, segment(image, SCALES, min_size=10), strict=True))


@pytest.mark.parametrize("noise", [0.02, 0.3, 3.0])
def test_segments_are_those_of_scikit_image(noise):
    segmentation = pytest.importorskip("skimage.segmentation")
    image = picture(224, 224, noise, seed=1)
    for scale, labels in zip(SCALES, segment(image, SCALES, min_size=150), strict=True):
        assert same_partition(labels, segmentation.felzenszwalb(image, scale=scale, sigma=0.8, min_size=150))


def test_one_colour_is_one_segment():
    (labels,) = segment(np.zeros((9, 7, 3)), (50,), min_size=5)
    assert labels.shape == (9, 7)
    assert not labels.any()


# -- the method --------------------------------------------------------------------------------------------


def attribution(model: nn.Module, x: torch.Tensor, steps: int, target: int = 1) -> np.ndarray:
    """Integrated gradients from the smallest and the largest value of each image, then the largest channel."""
    maps = []
    for image in x:
        total = torch.zeros_like(image)
        for baseline in (image.min(), image.max()):
            for step in range(steps):
                point = (baseline + step / (steps - 1) * (image - baseline))[None].requires_grad_()
                slope = torch.autograd.grad(model(point)[0, target], point)[0][0]
                total += (image - baseline) * slope / steps / 2
        maps.append(total.amax(dim=0))
    return torch.stack(maps).numpy()


def regions(image: np.ndarray, least: int, radius: int) -> list[np.ndarray]:
    """Masks ``[H, W]`` of an image of the size that is segmented, grown pixel by pixel."""
    low, rows_count = image.min(), image.max()
    image = 2 * (image - low) / (rows_count - low) - 1
    result = []
    for scale in SCALES:
        labels = slow_segments(image, scale, 0.8, least)
        for label in range(labels.max() + 1):
            grown = np.zeros(labels.shape, dtype=bool)
            for i, j in np.argwhere(labels == label):
                for k in range(max(0, i - radius), min(labels.shape[0], i + radius + 1)):
                    for m in range(max(0, j - radius), min(labels.shape[1], j + radius + 1)):
                        grown[k, m] |= (k - i) ** 2 + (m - j) ** 2 <= radius**2
            result.append(grown)
    return result


def greedy(values: np.ndarray, masks: list[np.ndarray], least: int) -> np.ndarray:
    taken, result = np.zeros(values.shape, dtype=bool), np.zeros_like(values)
    while True:
        added = [mask & ~taken for mask in masks]
        added = [mask for mask in added if mask.sum() >= least]
        if not added:
            break
        best = max(added, key=lambda mask: values[mask].mean())
        result[best] = values[best].mean()
        taken |= best
    if not taken.all():
        result[~taken] = values[~taken].mean()
    return result


def ranked_once(values: np.ndarray, masks: list[np.ndarray], least: int) -> np.ndarray:
    taken, result = np.zeros(values.shape, dtype=bool), np.zeros_like(values)
    for mask in sorted(masks, key=lambda mask: -values[mask].mean()):
        new = mask & ~taken
        if new.sum() >= least:
            result[new] = values[new].mean()
            taken |= new
    if not taken.all():
        result[~taken] = values[~taken].mean()
    return result


@pytest.mark.parametrize(("radius", "new"), [(2, 9), (0, 60), (5, 30)])
def test_xrai_is_the_slow_one(model, radius, new):
    x = images(model, 2)
    x[0] = torch.from_numpy(picture(32, 32, 0.1)).permute(2, 0, 1)
    values = attribution(model, x, 4)
    method = f"xrai(steps=4, side=32, min_size=12, radius={radius}, new={new}"
    full = vt.get_method(f"{method})").attribute(model, x, 1).numpy()
    fast = vt.get_method(f"{method}, fast=true)").attribute(model, x, 1).numpy()
    for i, image in enumerate(x):
        masks = regions(image.permute(1, 2, 0).numpy(), 12, radius)
        assert np.allclose(full[i], greedy(values[i], masks, new), atol=1e-10)
        assert np.allclose(fast[i], ranked_once(values[i], masks, new), atol=1e-10)
    assert not np.allclose(full, fast)


@pytest.mark.parametrize("fast", ["true", "false"])
def test_the_map_sums_to_the_attribution_under_it(model, fast):
    x = images(model, 1)
    actual = vt.get_method(f"xrai(steps=3, fast={fast})").attribute(model, x, 1).numpy()
    assert np.allclose(actual.sum(axis=(1, 2)), attribution(model, x, 3).sum(axis=(1, 2)))


def test_other_sizes_are_segmented_at_one_and_brought_back():
    """Squares of colour stay squares, whatever the size and shape of the input."""
    model = FAMILIES["nonsquare"]().double()
    x = torch.full((1, 3, 32, 48), -1.0, dtype=torch.float64)
    x[:, 0, :16, 24:] = 1
    x[:, 1, 16:, :24] = 1
    actual = vt.get_method("xrai(steps=3, radius=0, new=1)").attribute(model, x, 1)[0]
    for rows in (slice(0, 13), slice(19, 32)):  # the line between is a segment of its own
        for columns in (slice(0, 20), slice(28, 48)):
            assert (actual[rows, columns] == actual[rows, columns][0, 0]).all()
    assert len(actual[::31, ::47].unique()) > 2


def test_an_image_of_one_colour_is_all_zeros_and_flagged(model):
    with pytest.warns(vt.VitreousWarning, match="zero everywhere"):
        assert not vt.get_method("xrai(steps=2)").attribute(model, torch.full((1, 3, 32, 32), 0.5), 1).any()


@pytest.mark.filterwarnings("ignore::vitreous.VitreousWarning")
def test_segments_are_made_once_for_all_classes_of_a_comparison(model, monkeypatch):
    from vitreous.methods import xrai

    built = []

    def counted(*options, **named):
        built.append(1)
        return segment(*options, **named)

    monkeypatch.setattr(xrai, "segment", counted)
    vt.get_method('var(xrai(steps=2, side=48), classes="0,1,2")').attribute(model, images(model, 2), 1)
    assert len(built) == 2


def test_cost(model):
    assert vt.get_method("xrai").cost == (200, 200)
    assert vt.get_method("xrai(steps=7)").num_forwards(vt.wrap(model)) == 14


# By the released code of PAIR saliency 0.2.1, which adds gradients up in float32, with scikit-image 0.25: class 2 of a
# picture of blobs and the golden model. Sum, largest, smallest and one value of the map.
RELEASED = {
    "xrai(steps=3)": (5.928789382, 0.0002132700504, 1.132841742e-07, 8.389212546e-05),
    "xrai(steps=3, fast=true)": (5.928789382, 0.0002132700504, 8.477391785e-05, 0.0001041836794),
}


@pytest.mark.parametrize("spec", RELEASED)
def test_released_numbers(spec):
    model, _ = golden()
    x = torch.from_numpy(picture(224, 224, 0.1, seed=1)).permute(2, 0, 1)[None]
    actual = vt.get_method(spec).attribute(model, x, 2)[0]
    reported = actual.sum().item(), actual.max().item(), actual.min().item(), actual[100, 37].item()
    assert reported == pytest.approx(RELEASED[spec], rel=1e-5)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("xrai(steps=1)", "steps=1"),
        ("xrai(side=0)", "side=0"),
        ("xrai(min_size=0)", "min_size=0"),
        ("xrai(new=0)", "new=0"),
        ("xrai(radius=-1)", "radius=-1"),
    ],
)
def test_bad_parameters_are_refused_by_name(spec, complaint):
    with pytest.raises(vt.VitreousError, match=complaint):
        vt.get_method(spec)
