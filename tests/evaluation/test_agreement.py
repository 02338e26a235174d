"""Agreement of methods and layers, pair by pair and image by image, and what is saved of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from vitreous.errors import SpecError, VitreousError
from vitreous.evaluation.diagnostics import agreement, best_layers, layer_methods
from vitreous.metrics.bootstrap import resamples
from vitreous.results.diagnostics import Agreement
from zoo import EVERY

METHODS = ["ixg", "generic", "input_x_gradient"]


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


@pytest.fixture(scope="module")
def x(model: vt.VisionModel) -> Tensor:
    return images(model, 6)


@pytest.fixture(scope="module")
def maps(model: vt.VisionModel, x: Tensor) -> dict[str, np.ndarray]:
    return {name: vt.get_method(name).attribute(model, x, grid="token").double().numpy() for name in METHODS}


@pytest.fixture(scope="module")
def result(model: vt.VisionModel, x: Tensor) -> Agreement:
    return agreement(model, x, METHODS, n_bootstrap=200)


def test_pair_by_pair(result: Agreement, maps: dict[str, np.ndarray]) -> None:
    weights = next(resamples(6, 200, 0))
    for one in METHODS:
        for other in METHODS:
            pairs = zip(maps[one], maps[other], strict=True)
            item = np.array([stats.spearmanr(a.ravel(), b.ravel()).statistic for a, b in pairs])
            at = METHODS.index(one), METHODS.index(other)
            np.testing.assert_allclose(result.per_image[:, at[0], at[1]], item, atol=1e-5)
            assert result[one, other] == pytest.approx(item.mean(), abs=1e-5)
            means = weights @ item / 6
            np.testing.assert_allclose(result.interval(one, other), np.quantile(means, [0.025, 0.975]), atol=1e-5)
    assert result.images == tuple(f"input-{i}" for i in range(6))


def test_cka(model: vt.VisionModel, x: Tensor, maps: dict[str, np.ndarray]) -> None:
    report = agreement(model, x, METHODS, by="cka", n_bootstrap=20)
    a, b = (maps[name].reshape(6, -1) for name in METHODS[:2])
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    expected = np.linalg.norm(a.T @ b) ** 2 / np.linalg.norm(a.T @ a) / np.linalg.norm(b.T @ b)
    assert report["ixg", "generic"] == pytest.approx(expected, abs=1e-5)
    assert report["ixg", "ixg"] == pytest.approx(1)
    assert report.per_image is None
    low, upper = report.interval("ixg", "generic")
    assert 0 <= low < upper <= 1 + 1e-9


def test_pixels_and_other_similarities(model: vt.VisionModel, x: Tensor, result: Agreement) -> None:
    fine = agreement(model, x, METHODS, by="ssim", grid="pixel", n_bootstrap=5)
    assert fine["ixg", "generic"] != pytest.approx(result["ixg", "generic"], abs=1e-3)
    np.testing.assert_allclose(np.diag(fine.matrix), 1)


def test_broken_and_constant_maps(model: vt.VisionModel, x: Tensor) -> None:
    one, other = (torch.randn(6, 4, 4, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    one[0, 1, 1], other[1, 2, 2], other[2] = torch.nan, torch.nan, 0.5
    report = agreement(model, x, {"one": one, "other": other}, n_bootstrap=5)
    item = report.per_image[:, 0, 1]
    assert np.isnan(item).tolist() == [True, True, False, False, False, False]
    assert item[2] == 0
    assert report["one", "other"] == pytest.approx(item[2:].mean())
    assert report["one", "one"] == pytest.approx(1)


def test_printing(result: Agreement) -> None:
    text = str(result).splitlines()
    assert text[0].split() == METHODS
    assert [line.split()[0] for line in text[1:]] == METHODS
    assert f"{result['ixg', 'generic']:.3f}" == text[1].split()[2]
    assert repr(result).startswith("Agreement of 3 methods by spearman on the token grid, 6 images\n")
    assert "<table>" in result._repr_html_()
    assert result.to_markdown().count("\n") >= 4
    assert len(result.to_csv().splitlines()) == 1 + 3


def test_saved_and_loaded(result: Agreement, tmp_path: Path) -> None:
    path = result.save(tmp_path / "agreement.json")
    again = Agreement.load(path)
    assert (again.methods, again.images, again.by, again.grid) == (result.methods, result.images, "spearman", "token")
    for name in ("matrix", "low", "high", "per_image"):
        np.testing.assert_array_equal(getattr(again, name), getattr(result, name))
    assert json.loads(path.read_text())["plan"]["model"] == result.plan["model"]
    assert result.save(tmp_path / "pairs.csv").read_text() == result.to_csv()
    with pytest.raises(VitreousError, match="is there already"):
        result.save(path)
    with pytest.raises(VitreousError, match=r"must end in .json or .csv"):
        result.save(tmp_path / "agreement.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("nonsense", "is no JSON"),
        ('{"schema": "vitreous.evaluate/2"}', "is no agreement of the schema vitreous.agreement/1"),
        ('{"schema": "vitreous.agreement/1", "methods": ["a"]}', "is no agreement: TypeError"),
        ("[]", "is no agreement"),
    ],
)
def test_bad_files(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "it.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(VitreousError, match=message):
        Agreement.load(path)


def test_layers_of_one_method(model: vt.VisionModel, x: Tensor) -> None:
    by_layer = layer_methods("raw_attention", model)
    assert list(by_layer) == ["layer 0", "layer 1", "layer 2"]
    report = agreement(model, x, by_layer, by="ssim", n_bootstrap=5)
    assert report.methods == tuple(by_layer)
    first = vt.get_method("raw_attention(layer=0)").attribute(model, x)
    torch.testing.assert_close(by_layer["layer 0"].attribute(model, x), first)
    assert list(layer_methods("iba(steps=3)", model)) == ["layer 0", "layer 1"], "no patch is read after the last block"
    assert all(layer_method.steps == 3 for layer_method in layer_methods("iba(steps=3)", model).values())
    with pytest.raises(SpecError, match="rollout has no layer that could be another one"):
        layer_methods("rollout", model)


def test_layers_of_different_grids() -> None:
    model = vt.wrap(EVERY["swin"]())
    by_layer = layer_methods("gradcam", model)
    report = agreement(model, images(model, 2), by_layer, n_bootstrap=5)
    assert len(report.methods) == 4
    assert np.isfinite(report.matrix).all()


def test_best_layers(model: vt.VisionModel, x: Tensor) -> None:
    table: Any = vt.evaluate(model, x, layer_methods("raw_attention", model), ["insertion", "deletion"], n_bootstrap=2)
    for metric, best in (("insertion", np.argmax), ("deletion", np.argmin)):
        scores = np.stack([table[name, metric] for name in table.methods])
        expected = [int((best(scores, axis=0) == place).sum()) for place in range(len(table.methods))]
        assert list(best_layers(table, metric).values()) == expected
        assert tuple(best_layers(table, metric)) == table.methods


def test_equal_layers_share(model: vt.VisionModel, x: Tensor) -> None:
    maps = torch.randn(6, 4, 4, generator=torch.Generator().manual_seed(0))
    broken = maps.clone()
    maps[5], broken[[0, 5]] = torch.nan, torch.nan
    by_layer = {"one": maps, "same": maps, "broken": broken}
    table = vt.evaluate(model, x, by_layer, "gini", controls=False, n_bootstrap=2)
    shares = best_layers(table, "gini")
    assert shares == pytest.approx({"one": 1 / 2 + 4 / 3, "same": 1 / 2 + 4 / 3, "broken": 4 / 3})


def test_refused(model: vt.VisionModel, x: Tensor, result: Agreement) -> None:
    with pytest.raises(SpecError, match=r"by='hog' is not one of spearman, .*, cka"):
        agreement(model, x, METHODS, by="hog")
    with pytest.raises(SpecError, match="grid='own' is not one of token, pixel"):
        agreement(model, x, METHODS, grid="own")
    with pytest.raises(VitreousError, match="needs at least two methods, got 1"):
        agreement(model, x, "ixg")
    with pytest.raises(VitreousError, match=r"no method 'genric' in this agreement.*generic"):
        result["ixg", "genric"]


def test_drawn(result: Agreement, tmp_path: Any) -> None:
    pytest.importorskip("matplotlib")
    figure = result.plot(path=tmp_path / "matrix.svg")
    assert (tmp_path / "matrix.svg").exists()
    texts = [text.get_text().replace("−", "-") for axes in figure.axes for text in axes.texts]
    visible = [float(text) for text in texts if text and not text.strip("-.0123456789")]
    one, other = result.methods[:2]
    assert any(number == pytest.approx(result[one, other], abs=0.006) for number in visible)
