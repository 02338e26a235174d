"""Small things that were silently wrong once: p-values, progress, specs, uneven grids, facts of models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import vitreous as vt
from families import FAMILIES, images
from vitreous.errors import ModelError, TargetError
from vitreous.methods import to_grid
from vitreous.methods.ops import resize_map
from vitreous.metrics import difference
from vitreous.metrics.bootstrap import resamples
from zoo import EVERY


def test_no_p_value_is_zero() -> None:
    """So many resamples cannot tell a chance smaller than one in their number: p = 2 (k + 1) / (B + 1)."""
    better = np.random.default_rng(0).normal(size=30)
    assert difference(better + 9, better, samples=99).p == pytest.approx(2 / 100)
    gaps = np.random.default_rng(1).normal(0.3, 1, size=30)
    sums = np.concatenate(list(resamples(30, 500))) @ gaps
    tail = min((sums <= 0).sum(), (sums >= 0).sum())
    assert difference(gaps, np.zeros(30), samples=500).p == pytest.approx(2 * (tail + 1) / 501)


@pytest.mark.parametrize("spec", ["legrad", "coiba(steps=2, samples=2)", "smooth(legrad, samples=3)"])
def test_progress_reaches_its_end_and_not_more(spec: str) -> None:
    model = vt.wrap(FAMILIES["vit"]())
    report: list[tuple[float, Any]] = []
    list(vt.iter_explanations(model, images(model, 3), spec, progress=lambda *item: report.append(item)))
    done = [item for item, _ in report]
    assert done == sorted(done)
    assert report[-1] == (3, 3)
    assert all(item <= 3 for item in done)
    assert [item for item in done if 0 < item < 3], "it moves before the end"


@pytest.mark.parametrize(
    ("name", "provided"),
    [
        ("insertion", {"baseline": "black", "steps": 7}),
        ("insertion", {"steps": 5, "explain_class": "label", "score_class": "explained"}),
        ("positive_perturbation", {"stop": 0.5, "normalise": False}),
    ],
)
def test_metric_specs_give_the_metric_again(name: str, provided: dict[str, Any]) -> None:
    metric = type(vt.get_metric(name))(**provided)
    assert vt.get_metric(metric.spec).settings == metric.settings


@pytest.mark.parametrize("text", ["a b", "a/b", "path/to a file.npz", 'say "so"', "it's", "a,b", "(x)", "ä=1", ""])
def test_words_with_spaces_and_slashes_survive_in_metrics_as_in_methods(text: str) -> None:
    from dataclasses import dataclass

    from vitreous.metrics import Metric
    from vitreous.metrics import base as registry

    @dataclass
    class Named(Metric):
        """Has a word."""

        word: str = "plain"

    Named.info = registry.MetricInfo("named_here", "test", Named)
    registry.REGISTRY.by_name["named_here"] = Named.info
    try:
        assert vt.get_metric(Named(word=text).spec).settings["word"] == text
    finally:
        del registry.REGISTRY.by_name["named_here"]
    keywords = vt.get_method("coiba")
    again = type(keywords)(
        **{**{p.name: getattr(keywords, p.name) for p in keywords.info.parameters}, "stats": text or "own"}
    )
    assert vt.get_method(again.spec) == again


@pytest.mark.parametrize("size", [(4, 4), (3, 5), (7, 2), (1, 1), (30, 31)])
def test_finer_maps_are_summed_over_the_area_of_a_cell(size: tuple[int, int]) -> None:
    """A pixel that two cells share gives each its part: against a loop, and nothing is lost."""
    maps = torch.randn(2, 30, 31, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = resize_map(maps, size)
    expected = torch.zeros(2, *size, dtype=torch.float64)
    height, width = 30 / size[0], 31 / size[1]
    for row in range(size[0]):
        for column in range(size[1]):
            for y in range(30):
                for x in range(31):
                    down = min((row + 1) * height, y + 1) - max(row * height, y)
                    horizontal = min((column + 1) * width, x + 1) - max(column * width, x)
                    if down > 0 and horizontal > 0:
                        expected[:, row, column] += down * horizontal * maps[:, y, x]
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(result.sum(dim=(1, 2)), maps.sum(dim=(1, 2)))


def test_to_grid_and_consensus_agree_where_patches_do_not_divide_the_image() -> None:
    """Both see the same token map of a pixel method, on a grid that does not divide the pixels."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = transformers.ViTConfig(image_size=42, patch_size=16, num_labels=5, **sizes)
    model = vt.wrap(transformers.ViTForImageClassification(config).eval())
    x = torch.randn(2, 3, 42, 42, generator=torch.Generator().manual_seed(1))
    grid = model.grid(x)
    assert grid == (2, 2), "ten pixels are left over"
    pixels = vt.get_method("saliency").attribute(model, x, target=1)
    tokens = to_grid(pixels, "token", model, x)
    torch.testing.assert_close(tokens, resize_map(pixels, grid))
    alone = vt.get_method("consensus(saliency, saliency)").attribute(model, x, target=1)
    order = tokens.flatten(1).argsort(dim=1)
    assert torch.equal(alone.flatten(1).argsort(dim=1), order)


@pytest.mark.parametrize("family", EVERY)
def test_sites_are_facts(family: str) -> None:
    """What a view says it can show it shows; of what it cannot show it says why."""
    model = vt.wrap(EVERY[family]())
    assert set(model.hook_points) | set(model.unavailable_points) == {"norm1", "attn", "norm2", "mlp"}
    assert not set(model.hook_points) & set(model.unavailable_points)
    assert model.branch_point in model.hook_points
    for name in model.hook_points:
        assert isinstance(model.hook_point(0, name), torch.nn.Module)
    for name, why in model.unavailable_points.items():
        with pytest.raises(ModelError, match=f"cannot show {name} of block 0: "):
            model.hook_point(0, name)
        assert why
    with pytest.raises(ModelError, match=r"it has (norm1|attn)"):
        model.hook_point(0, "luck")


@pytest.mark.parametrize("family", EVERY)
def test_what_attends_is_a_fact(family: str) -> None:
    model = vt.wrap(EVERY[family]())
    assert model.attention == ("windowed" if "swin" in family else "global")


@pytest.mark.parametrize(
    ("labels", "message"),
    [(range(3), "there is no label for input-3"), (range(5), "5 labels for 4 images"), ("abcd", "no list of labels")],
)
def test_labels_from_any_iterable(labels: Any, message: str) -> None:
    model = vt.wrap(FAMILIES["vit"]())
    x = images(model, 4)
    options: dict[str, Any] = {"controls": False, "n_bootstrap": 1}
    created = (item % 5 for item in range(4))
    one = vt.evaluate(model, x, "ixg", "insertion@coiba(steps=2)", labels=created, **options)
    other = vt.evaluate(model, x, "ixg", "insertion@coiba(steps=2)", labels=[0, 1, 2, 3], **options)
    np.testing.assert_array_equal(one["ixg", one.metrics[0]], other["ixg", one.metrics[0]])
    provided = labels if isinstance(labels, str) else (label for label in labels)
    with pytest.raises(TargetError, match=message):
        vt.evaluate(model, x, "ixg", "insertion@coiba(steps=2)", labels=provided, **options)
