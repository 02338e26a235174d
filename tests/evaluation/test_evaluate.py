"""``evaluate``: what may be evaluated, on which images, and the table that comes out."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitreous as vt
from contract import State
from families import FAMILIES, images
from vitreous.errors import ImageError, MapError, SpecError, TargetError

LABELS = [0, 3, 1, 4]


@pytest.fixture(scope="module")
def model() -> Any:
    return FAMILIES["vit"]()


@pytest.fixture(scope="module")
def inputs(model: Any) -> Tensor:
    return images(model, 4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, name in enumerate(("a.png", "b.png", "c.png")):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
    return tmp_path


def evaluate(*provided: Any, **options: Any) -> vt.ScoreTable:
    return vt.evaluate(*provided, **({"n_bootstrap": 50} | options))


# -- methods -------------------------------------------------------------------------------------------


def test_baselines_stand_in_every_table(model: Any, inputs: Tensor) -> None:
    assert evaluate(model, inputs, "ixg", "srg").methods == ("ixg", "random", "constant", "centre")
    assert evaluate(model, inputs, ["centre", "ixg"], "srg").methods == ("centre", "ixg", "random", "constant")
    assert evaluate(model, inputs, "ixg", "srg", controls=False).methods == ("ixg",)


def test_own_methods_are_scored_as_their_maps(model: Any, inputs: Tensor) -> None:
    spec = "skipplus(ixg, start=1)"
    names = ["insdel", "token_deletion_aopc"]
    maps = vt.get_method(spec).attribute(model, inputs)
    one = evaluate(model, inputs, [spec, "saliency"], names)
    other = evaluate(model, inputs, {"maps": maps}, names, controls=False)
    for name in names:
        np.testing.assert_allclose(one[spec, name], other["maps", name], atol=1e-5)


class Attribution:
    """Looks like Captum's: a model inside, ``attribute`` gives a value for every channel."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def attribute(self, inputs: Tensor, target: Tensor) -> Tensor:
        inputs.requires_grad_()
        self.model(inputs).gather(1, target[:, None]).sum().backward()  # leaves gradients on every weight
        return inputs.grad * inputs


def test_other_peoples_explanations(model: Any, inputs: Tensor) -> None:
    """An object, a callable and arrays that say the same score the same, and leave the model alone."""

    def product(provided: Any, x: Tensor, classes: Tensor) -> Any:
        assert provided is not model
        assert type(provided) is type(model)
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(provided(x).gather(1, classes[:, None]).sum(), x)
        return (gradient * x).sum(dim=1).detach().numpy()

    before = State(model)
    table = evaluate(
        model,
        inputs,
        ["input_x_gradient", Attribution(model), product],
        ["insdel", "srg"],
        labels=LABELS,
        target="label",
    )
    before.assert_same(model)
    assert table.methods[:3] == ("input_x_gradient", "Attribution", "product")
    for metric in ("insdel", "srg"):
        for name in ("Attribution", "product"):
            np.testing.assert_allclose(table[name, metric], table["input_x_gradient", metric], atol=1e-4)
    assert table.plan["methods"]["product"] == {"what": "callable"}


def test_captum(model: Any, inputs: Tensor) -> None:
    captum = pytest.importorskip("captum.attr")
    table = evaluate(model, inputs, ["saliency", captum.Saliency(model)], "insdel")
    assert table.methods[:2] == ("saliency", "Saliency")
    assert np.isfinite(table["Saliency", "insdel"]).all()


def test_folder_of_maps(model: Any, folder: Path) -> None:
    maps = folder / "mine"
    maps.mkdir()
    expected = []
    for index, name in enumerate("abc"):
        values = np.random.default_rng(index).normal(size=(3, 32, 32) if name == "b" else (32, 32))
        np.save(maps / f"{name}.npy", values)
        expected.append(values.sum(axis=0) if name == "b" else values)
    table = evaluate(model, folder, [maps, "ixg"], "insdel")
    assert table.methods[:2] == ("mine", "ixg")
    assert table.images == ("a.png", "b.png", "c.png")
    same = evaluate(model, folder, {"arrays": np.stack(expected)}, "insdel", controls=False)
    np.testing.assert_allclose(table["mine", "insdel"], same["arrays", "insdel"], atol=1e-6)

    (maps / "b.npy").write_bytes(b"nonsense")
    with pytest.raises(MapError, match=r"b\.npy cannot be read"):
        evaluate(model, folder, maps, "insdel")
    (maps / "b.npy").unlink()
    with pytest.raises(MapError, match=r"there is no map .*b\.npy"):
        evaluate(model, folder, maps, "insdel")
    with pytest.raises(ImageError, match="no such folder of maps"):
        evaluate(model, folder, folder / "nowhere", "insdel")


def test_bad_methods(model: Any, inputs: Tensor) -> None:
    for provided, error, message in [
        ("rollot", SpecError, "unknown method 'rollot'; did you mean rollout"),
        ([], vt.VitreousError, "give at least one method"),
        ({}, vt.VitreousError, "give at least one method"),
        (["ixg", "ixg"], vt.VitreousError, "the method ixg is named twice"),
        (5, vt.VitreousError, "5 is no method"),
        ({"few": torch.zeros(2, 4, 4)}, MapError, "2 maps were given, fewer than there are images"),
        ({"flat": lambda m, x, c: x.sum()}, MapError, r"flat gave \[\] for 4 images"),
        ({"words": lambda m, x, c: "map"}, MapError, "words gave no maps"),
        ({"half": lambda m, x, c: x[:2, 0]}, MapError, r"half gave \[2, 32, 32\] for 4 images"),
    ]:
        with pytest.raises(error, match=message):
            evaluate(model, inputs, provided, "srg", controls=False)


# -- pictures and classes ------------------------------------------------------------------------------


def test_sources_of_pictures(model: Any, folder: Path) -> None:
    """A folder, files, PIL images, tensors, pairs and loaders of the same pictures score the same."""
    files = sorted(folder.glob("*.png"))
    vision_model = vt.wrap(model)
    stack = torch.stack(
        [
            vision_model.preprocess.to_tensor(vision_model.preprocess.resize_and_crop(Image.open(f).convert("RGB"))[0])
            for f in files
        ]
    )
    labels = [2, 0, 1]
    loader = torch.utils.data.DataLoader(list(zip(stack, labels, strict=True)), batch_size=2)
    sources: list[tuple[Any, Any]] = [
        (folder, labels),
        (files, {"a.png": 2, "b": 0, "c.png": 1}),
        ([Image.open(f) for f in files], torch.tensor(labels)),
        (stack, labels),
        (list(zip(files, labels, strict=True)), None),
        (list(zip(stack, torch.tensor(labels), strict=True)), None),
        (loader, None),
        (iter(zip(map(str, files), labels, strict=True)), None),
    ]
    names = ["positive_perturbation", "insdel@coiba"]
    first, *others = [evaluate(vision_model, data, "ixg", names, labels=report) for data, report in sources]
    for other in others:
        for cell, scores in first.scores.items():
            np.testing.assert_allclose(other.scores[cell], scores, atol=1e-5)
    np.testing.assert_allclose(
        first.confidence["label"], vision_model.logits(stack).softmax(1)[range(3), labels], atol=1e-6
    )
    np.testing.assert_allclose(first.confidence["pred"], vision_model.logits(stack).softmax(1).amax(1), atol=1e-6)


def test_targets(model: Any, inputs: Tensor) -> None:
    """The explained class is one thing, the scored class another."""
    vision_model = vt.wrap(model)
    for target, classes in [("pred", None), ("label", LABELS), (2, [2] * 4), ([1, 1, 0, 4], [1, 1, 0, 4])]:
        maps = vt.get_method("ixg").attribute(vision_model, inputs, classes)
        for score in ("pred", "label"):
            spec = f"deletion(score_class={score})"
            one = evaluate(vision_model, inputs, "ixg", spec, labels=LABELS, target=target)["ixg", spec]
            other = evaluate(vision_model, inputs, {"m": maps}, spec, labels=LABELS)["m", spec]
            np.testing.assert_allclose(one, other, atol=1e-5)
    explained = evaluate(vision_model, inputs, "ixg", "deletion(score_class=explained)", labels=LABELS, target="label")
    label = evaluate(vision_model, inputs, "ixg", "deletion(score_class=label)", labels=LABELS, target="label")
    np.testing.assert_array_equal(*(t["ixg", t.metrics[0]] for t in (explained, label)))


def test_bad_pictures_and_classes(model: Any, inputs: Tensor) -> None:
    for options, error, message in [
        ({"labels": [1, 2]}, TargetError, "there is no label for input-2"),
        ({"labels": [1] * 5}, TargetError, "5 labels for 4 images"),
        ({"labels": [1, 2, 3, 9]}, vt.VitreousError, "9"),
        ({"labels": {"input-0": 1}}, TargetError, "there is no label for input-1"),
        ({"target": "label"}, TargetError, "target='label' needs the true classes"),
        ({"target": [0, 1]}, TargetError, "fewer targets than images: none for image 2"),
        ({"target": 1.5}, TargetError, "1.5"),
        ({"batch_size": 0}, vt.VitreousError, "batch_size=0 must be at least 1"),
        ({"precision": "int8"}, vt.VitreousError, "precision='int8' is not one of"),
        ({"interpolation": "cubic"}, vt.VitreousError, "interpolation='cubic' is not one of"),
        ({"tie_breaking": "none"}, vt.VitreousError, "tie_breaking='none' is not one of"),
        ({"nan_policy": "hide"}, vt.VitreousError, "nan_policy='hide' is not one of"),
        ({"class_subset": [7]}, TargetError, "class index 7 is outside 0..4"),
        ({"class_subset": [0, 1], "labels": [4] * 4}, TargetError, "label class is not among"),
        ({"n_bootstrap": 0}, vt.VitreousError, "n_bootstrap=0"),
    ]:
        with pytest.raises(error, match=message):
            str(evaluate(model, inputs, "ixg", "deletion", **options))
    with pytest.raises(ImageError, match="no images"):
        evaluate(model, [], "ixg", "deletion")
    for metrics, message in [([], "give at least one metric"), (["srg", "srg"], "the metric srg is named twice")]:
        with pytest.raises(vt.VitreousError, match=message):
            evaluate(model, inputs, "ixg", metrics)


def test_progress_counts_states(model: Any, inputs: Tensor) -> None:
    report: list[tuple[int, int | None]] = []
    table = evaluate(
        model, inputs, "ixg", "srg", progress=lambda done, total: report.append((done, total)), batch_size=32
    )
    assert report[-1][0] == table.plan["states"]
    assert {total for _, total in report} == {table.plan["states"] - 1}  # the one black image is everyone's
    assert [done for done, _ in report] == sorted(done for done, _ in report)


def test_nothing_is_left_behind_after_an_error(model: Any, inputs: Tensor) -> None:
    def broken(model: Any, x: Tensor, classes: Tensor) -> Tensor:
        model(x).sum().backward()
        raise ZeroDivisionError

    model.train()
    before = State(model)
    try:
        with pytest.raises(ZeroDivisionError):
            evaluate(model, inputs, broken, "srg")
        before.assert_same(model)
    finally:
        model.eval()


# -- the table -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(model: Any, inputs: Tensor) -> vt.ScoreTable:
    return vt.evaluate(model, inputs, ["ixg", "generic"], ["insdel", "deletion"], labels=LABELS, n_bootstrap=400)


def test_table_reads_its_scores(table: vt.ScoreTable) -> None:
    scores = table["ixg", "insdel"]
    assert scores.shape == (4,)
    assert table.mean("ixg", "insdel") == pytest.approx(scores.mean())
    low, upper = table.interval("ixg", "insdel")
    assert scores.min() <= low < table.mean("ixg", "insdel") < upper <= scores.max()
    gap = table.difference("ixg", "generic", "insdel")
    assert gap.mean == pytest.approx((scores - table["generic", "insdel"]).mean())
    assert gap.low <= gap.mean <= gap.high
    assert gap.images == 4
    gaps = scores - table["random", "insdel"]
    assert table.z("ixg", "insdel") == pytest.approx(gaps.mean() / (gaps.std(ddof=1) / 2))
    assert math.isnan(table.z("ixg", "insdel", contrast="ixg"))
    means = {name: table.mean(name, "deletion") for name in table.methods}
    assert table.best("deletion") == min(means, key=lambda name: means[name])
    with pytest.raises(vt.VitreousError, match="no method 'generc' in this table; did you mean generic"):
        table.mean("generc", "insdel")
    with pytest.raises(vt.VitreousError, match="no metric 'insertion' in this table"):
        table.interval("ixg", "insertion")


def test_table_as_text_and_files(table: vt.ScoreTable, tmp_path: Path) -> None:
    text = str(table)
    assert text.splitlines()[0].split()[:5] == ["method", "insdel", "↑", "deletion", "↓"]
    *lines, trial = text.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(table.methods)
    verdicts = [str(result.verdict) for result in table.meta_verdicts.values() if result]
    assert trial.split() == ["meta-evaluation", *" ".join(verdicts).split()], (
        "what is known about the metrics comes last"
    )
    assert f"{table.mean('ixg', 'insdel'):.4f}" in text
    assert "4 constant" in text

    saved = json.loads(table.save(tmp_path / "t.json").read_text())
    assert saved["schema"] == "vitreous.evaluate/2"
    assert [item["name"] for item in saved["methods"]] == list(table.methods)
    cell = saved["methods"][0]["scores"]["insdel"]
    np.testing.assert_array_equal(cell["per_image"], table["ixg", "insdel"])
    assert cell["mean"] == table.mean("ixg", "insdel")
    assert cell["interval"] == list(table.interval("ixg", "insdel"))
    assert saved["plan"]["metrics"]["insdel"]["deletion_baseline"] == "zero_norm"
    facts = {"forward_batch", "precision", "dtype", "audit", "model", "baselines", "states", "target", "seed"}
    assert facts <= set(saved["plan"])

    rows = list(csv.DictReader(io.StringIO(table.save(tmp_path / "t.csv").read_text())))
    assert len(rows) == 5 * 2 * 4
    result = [float(r["score"]) for r in rows if (r["method"], r["metric"]) == ("generic", "deletion")]
    np.testing.assert_array_equal(result, table["generic", "deletion"])
    with pytest.raises(vt.VitreousError, match=r"must end in \.json or \.csv"):
        table.save(tmp_path / "t.txt")
    with pytest.raises(vt.VitreousError, match="is there already"):
        table.save(tmp_path / "t.csv")
    assert table.save(tmp_path / "new" / "t.json").read_text() == (tmp_path / "t.json").read_text()
    assert table.save(tmp_path / "t.csv", overwrite=True).exists()
    with pytest.raises(vt.VitreousError, match="could not write"):
        table.save(tmp_path / "t.csv" / "t.json")


def test_table_bins(table: vt.ScoreTable) -> None:
    result = table.bins("ixg", "insdel", 2, "mass", "label")
    order = np.argsort(table.confidence["label"])
    assert [b.count for b in result] == [2, 2]
    assert result[0].mean == pytest.approx(table["ixg", "insdel"][order[:2]].mean())
    with pytest.raises(vt.VitreousError, match="confidence='given' is not one of pred, label"):
        table.bins("ixg", "insdel", confidence="given")
    assert not math.isnan(table.bins("ixg", "insdel", 1)[0].mean)
