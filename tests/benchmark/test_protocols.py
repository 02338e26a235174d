"""The protocol files that come along, held against the papers' text, and files that are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm

from vitreous.benchmark import protocol_io as protocol_file
from vitreous.benchmark.protocol import REQUIRES, Protocol, Published, read, replace_model, shipped
from vitreous.errors import VitreousError
from vitreous.methods import get_method
from vitreous.metrics import get_metric
from vitreous.models import list_models, load

CELLS = {
    **{"coiba-table1": 120, "coiba-table2": 66, "coiba-difficulty": 0, "coiba-funnybirds": 0, "coiba-ablations": 0},
    **{"skipplus": 0, "skipplus-cutoff": 0, "skipplus-compositions": 0},
    **{"vtranm-table1": 72, "vtranm-table2": 63, "vtranm-table3": 54, "vtranm-table4": 20},
    **{"var-table1": 117, "var-table2": 41, "var-table3": 396, "var-sanity": 0},
    **{"tis-table1": 132, "tis-table2": 132, "tis-table3": 22, "tis-table4": 22, "tis-ablation": 0},
    **{"world": 0, "quick": 0},
}
"""How many printed numbers each table has, counted in the papers: rows times columns, less the dashes."""


@pytest.fixture(scope="module")
def every() -> dict[str, Protocol]:
    return {name: read(name) for name in shipped()}


def cell(protocol: Protocol, start: str, row: str, model: str = "", data: str = "") -> Published:
    """The one cell of these names, as far as they are given; the metric by the beginning of its spec."""
    result = [item for item in protocol.cells if item.metric.startswith(start) and item.method == row]
    result = [item for item in result if model in ("", item.model) and data in ("", item.data)]
    assert len(result) == 1, result
    return result[0]


# -- what comes along --------------------------------------------------------------------------------------


def test_shipped_are_those_of_the_papers(every: dict[str, Protocol]) -> None:
    assert {name: len(protocol.cells) for name, protocol in every.items()} == CELLS


@pytest.mark.parametrize("name", CELLS)
def test_specs_are_valid_and_cells_have_rows(name: str, every: dict[str, Protocol]) -> None:
    protocol = every[name]
    for spec in protocol.methods.values():
        get_method(spec)
    for spec in protocol.evaluation.metrics:
        get_metric(spec)
    labels = {model.label for model in protocol.models}
    for item in protocol.published:
        assert item.metric in protocol.evaluation.metrics
        assert item.data in {data.label for data in (protocol.data, *protocol.also)}
        if item.value is not None:
            assert item.model in labels
            assert item.method in {*protocol.methods, *protocol.absent}
        else:
            assert item.source


@pytest.mark.parametrize("name", CELLS)
def test_models_exist(name: str, every: dict[str, Protocol]) -> None:
    pretrained = set(timm.list_pretrained())
    for model in every[name].models:
        family, _, others = model.name.partition("/")
        if family == "timm":
            assert others in pretrained or timm.is_model_pretrained(others), model.name
        elif family == "torchvision":
            assert model.name in {info.name for info in list_models()}, model.name
        else:
            assert load(model.name).name == model.name  # the bundled one


@pytest.mark.parametrize("name", [name for name in CELLS if name not in ("world", "quick")])
def test_papers_are_cited_and_doubts_are_stated(name: str, every: dict[str, Protocol]) -> None:
    protocol = every[name]
    assert protocol.paper and protocol.table and protocol.note  # noqa: PT018
    assert protocol.published  # numbers, or where the paper draws them


def test_what_can_run(every: dict[str, Protocol]) -> None:
    for name in ("var-table1", "var-table2", "var-table3", "var-sanity"):
        assert every[name].runnable() == every[name]
    with pytest.raises(VitreousError, match=r"vtranm-table1 cannot run here, it requires weights"):
        every["vtranm-table1"].runnable()
    assert every["world"].runnable() == every["world"]
    assert (
        every["quick"].data.images * len(every["quick"].methods) * len(every["quick"].evaluation.metrics) == 16 * 5 * 3
    )


# -- numbers, typed again from the papers' text ------------------------------------------------------------

PAIRS = [  # model, method, first and second number of the cell
    ("coiba-table1", "ViT*-S-16/224", "Generic", 14.56, 56.08),
    ("coiba-table1", "ViT*-T-16/224", "IIA", 8.50, 49.75),
    ("coiba-table1", "ViT-B-16/224", "CoIBA", 13.01, 62.58),
    ("coiba-table1", "ViT-L-16/224", "ViT-CX", 19.76, 57.38),
    ("coiba-table1", "DeiT-S-16/224", "Chefer-LRP", 12.76, 47.51),
    ("coiba-table1", "DeiT3-L-16/224", "IIA", 17.75, 55.93),
    ("coiba-table1", "Swin2-B", "Beyond", 31.32, 49.44),
    ("coiba-table2", "DeiT-B-16/224", "IBA", 15.62, 61.53),
    ("coiba-table2", "DeiT3-L-16/224", "Generic", 20.28, 69.87),
    ("coiba-table2", "ViT†-H-16/224", "CoIBA", 23.38, 66.95),
]


@pytest.mark.parametrize(("name", "model", "row", "low", "upper"), PAIRS)
def test_coiba(name: str, model: str, row: str, low: float, upper: float, every: dict[str, Protocol]) -> None:
    starts = ("deletion", "insertion") if name == "coiba-table1" else ("road_morf", "road_lerf")
    for start, printed in zip(starts, (low, upper), strict=True):
        result = cell(every[name], start, row, model)
        assert result.printed == printed
        assert result.value == pytest.approx(printed / 100)  # our metric gives shares


SINGLE = [
    ("vtranm-table1", "negative_perturbation@vtranm(explain_class=pred)", "Cons. LRP", "", "CIFAR-100", 27.11),
    ("vtranm-table1", "negative_perturbation@vtranm(explain_class=label)", "LRP", "", "CIFAR-10", 72.54),
    ("vtranm-table1", "positive_perturbation@vtranm(explain_class=pred)", "ATTCAT", "", "CIFAR-100", 22.15),
    ("vtranm-table1", "positive_perturbation@vtranm(explain_class=label)", "Ours", "", "CIFAR-10", 36.48),
    ("vtranm-table2", "mean_ap", "Raw Att.", "DeiT", "ImageNet-Segmentation", 80.24),
    ("vtranm-table2", "pixel_accuracy", "Rollout", "DeiT", "ImageNet-Segmentation", 59.01),
    ("vtranm-table2", "mean_iou", "Ours", "DeiT", "ImageNet-Segmentation", 63.45),
    ("vtranm-table2", "positive_perturbation@vtranm(explain_class=label)", "Trans. Attr.", "DeiT", "ImageNet", 18.38),
    ("vtranm-table2", "negative_perturbation@vtranm(explain_class=label)", "ATTCAT", "DeiT", "ImageNet", 33.59),
    ("vtranm-table3", "aopc", "LRP", "ViT-L", "", 0.508),
    ("vtranm-table3", "lodds", "Cons. LRP", "ViT-B", "", -4.272),
    ("vtranm-table3", "lodds", "Grad-CAM", "DeiT", "", -3.704),
    ("vtranm-table4", "mean_iou", "Baseline", "ViT-B", "", 33.42),
    ("vtranm-table4", "negative", "+ AF + L", "ViT-B", "", 55.03),
    ("vtranm-table4", "positive", "+ AF + L + NECC", "ViT-B", "", 16.18),
    ("tis-table1", "insertion@tis(baseline=zero_norm", "RISE", "ViT", "", 0.45),
    ("tis-table1", "deletion@tis(baseline=blur_tv", "IntegratedGrad", "ViT", "", 0.31),
    ("tis-table1", "insdel@tis(insertion_baseline=uniform_norm", "SmoothGrad", "ViT", "", 0.26),
    ("tis-table2", "insdel@tis(insertion_baseline=mean_scalar", "Att. Rollout", "DeiT", "", -0.04),
    ("tis-table2", "deletion@tis(baseline=uniform_norm", "TIS", "DeiT", "", 0.14),
    ("tis-table3", "pointing_game", "BT H", "ViT", "", 0.855),
    ("tis-table3", "pointing_game", "IntegratedGrad", "DeiT", "", 0.297),
    ("tis-table4", "max_sensitivity", "Chefer1", "DeiT", "", 1.017),
    ("tis-table4", "max_sensitivity", "BT H", "ViT", "", 0.620),
]


@pytest.mark.parametrize("expected", SINGLE)
def test_vtranm_and_tis(expected: tuple[str, str, str, str, str, float], every: dict[str, Protocol]) -> None:
    name, *names, printed = expected
    assert cell(every[name], *names).printed == printed


GAINS = [
    ("var-table1", "region_iou", "T-attn", "ViT-base-16", "Part-Quad-ImageNet", 0.29, 321),
    ("var-table1", "region_attribution", "LRP", "ResNet50", "Quad-ImageNet", 0.88, 56),
    ("var-table1", "region_f1", "Gradient", "ViT-base-16", "COCO", 0.25, 2),
    ("var-table2", "aic", "Grad-Rollout", "ViT-base-32", "", 0.66, 16),
    ("var-table2", "aic", "GBP (no ReLU)", "ConvNeXt", "", 0.34, -3),
    ("var-table2", "aic", "InFlow", "ViT-base-16", "", 0.79, 14),
    ("var-table3", "region_iou", "GradCam", "DenseNet121", "COCO", 0.07, -25),
    ("var-table3", "region_f1", "Bi-attn", "ViT-base-8", "Part-Quad-ImageNet", 0.36, 199),
    ("var-table3", "region_attribution", "Gradient", "ViT-base-32", "Quad-ImageNet", 0.79, 19),
    ("var-table3", "region_iou", "LRP", "Wide-ResNet50-2", "Part-Quad-ImageNet", 0.22, 132),
    ("var-table3", "region_f1", "GradCam", "ConvNeXt", "Quad-ImageNet", 0.70, -6),
]


@pytest.mark.parametrize("expected", GAINS)
def test_var(expected: tuple[str, str, str, str, str, float, float], every: dict[str, Protocol]) -> None:
    name, start, row, model, data, value, gain = expected
    result = cell(every[name], start, f"{row} + VAR", model, data)
    assert (result.value, result.gain, result.over) == (value, gain, row)


AVERAGES = {  # "Avg. Improvement" of Table 3, nine columns each
    "Wide-ResNet50-2": (45.33, 41.83, 26.33, 48.83, 58.33, 47.17, 16.17, 5.0, 4.33),
    "DenseNet121": (48.67, 7.5, 4.67, 57.67, 19.33, 16.17, 9.0, -4.5, -4.5),
    "ConvNeXt": (18.20, -1.20, -1, 25.60, 6.80, 5.40, 11.00, 0.60, 0.60),
    "ViT-base-8": (30.0, 80.57, 50.43, 37.43, 173.86, 129.57, 27.43, 17.0, 14.57),
    "ViT-base-16": (29.29, 103.29, 61.57, 35.71, 182.29, 135.0, 24.86, 25.71, 21.71),
    "ViT-base-32": (48.43, 97.0, 58.43, 57.0, 168.0, 127.86, 25.29, 19.71, 16.14),
}


def test_gains_of_var_average_to_what_the_paper_says(every: dict[str, Protocol]) -> None:
    """All but ResNet50, whose averages are those of Table 1 for the same rows."""
    protocol = every["var-table3"]
    for model, printed in AVERAGES.items():
        gains = defaultdict(list)
        for item in protocol.cells:
            if item.model == model:
                gains[item.data, item.metric].append(item.gain)
        assert [sum(row) / len(row) for row in gains.values()] == pytest.approx(printed, abs=0.006)
    both = {(item.data, item.model, item.method, item.metric): item for item in protocol.cells}
    for item in every["var-table1"].cells:
        assert both[item.data, item.model, item.method, item.metric] == item


def test_differences_of_tis_are_insertion_less_deletion(every: dict[str, Protocol]) -> None:
    """To the rounding of three printed numbers; the paper's row of ViT-CX in Table 1 is wrong in itself."""
    for name in ("tis-table1", "tis-table2"):
        for row in every[name].methods:
            numbers = [item.value for item in every[name].cells if item.method == row]
            off = [abs(a - b - c) > 0.0151 for a, b, c in zip(numbers[:4], numbers[4:8], numbers[8:], strict=True)]
            assert off == ([True, False, True, True] if (name, row) == ("tis-table1", "ViT-CX") else [False] * 4)


@pytest.mark.parametrize(
    ("name", "best"),
    [("coiba-table1", "CoIBA"), ("coiba-table2", "CoIBA"), *((f"vtranm-table{n}", "Ours") for n in (1, 2, 3))],
)
def test_the_papers_own_method_is_best_where_it_says_so(name: str, best: str, every: dict[str, Protocol]) -> None:
    columns = defaultdict(dict)
    for item in every[name].cells:
        columns[item.data, item.model, item.metric][item.method] = item.value
    for (_, _, spec), column in columns.items():
        pick = max if get_metric(spec).higher_is_better else min
        assert pick(column, key=column.__getitem__) == best


# -- what can be done with a protocol ----------------------------------------------------------------------


def test_parts_are_single_data_sets(every: dict[str, Protocol]) -> None:
    imagenet, segments = every["vtranm-table2"].per_dataset()
    assert (imagenet.data.source, segments.data.source) == ("imagenet-val", "imagenet-segmentation")
    assert (len(imagenet.cells), len(segments.cells)) == (36, 27)
    assert segments.evaluation.metrics == ("pixel_accuracy@vtranm", "mean_ap@vtranm", "mean_iou@vtranm")
    assert not imagenet.also
    for protocol in every.values():
        assert sum(len(part.published) for part in protocol.per_dataset()) == len(protocol.published)
        assert all(part.models for part in protocol.per_dataset())
    mura = every["skipplus"].per_dataset()[1]
    assert [model.label for model in mura.models] == ["MURA ViT Base (Patch 16)"]


def test_another_model_goes_through_the_same_protocol(every: dict[str, Protocol]) -> None:
    for name, protocol in every.items():
        other = replace_model(protocol, "timm/deit_tiny_patch16_224")
        assert [model.name for model in other.models] == ["timm/deit_tiny_patch16_224"]
        assert not other.missing
        assert other.evaluation == protocol.evaluation
        assert all(part.models for part in other.per_dataset()), name
    other = replace_model(every["var-table1"], "world")
    rows = other.methods_of(other.models[0])
    assert "GBP" not in rows  # the rows of the ViT, not those of the CNN
    assert rows["Bi-attn + VAR"] == "var(bt_h, upsample=true)"


@pytest.mark.parametrize("name", CELLS)
def test_json(name: str, every: dict[str, Protocol]) -> None:
    messages = json.loads(json.dumps(every[name].to_json(), allow_nan=False))
    assert messages["schema"] == "vitreous.protocol/1"
    assert messages["methods"] == every[name].methods
    assert len(messages["published"]) == len(every[name].published)
    assert messages["data"]["source"] == every[name].data.source


def test_names_need_no_torch() -> None:
    code = (
        "import sys; from vitreous.benchmark.protocol import shipped; print(shipped()); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "coiba-table1" in done.stdout


def test_the_manual_lists_them(every: dict[str, Protocol], root: Path) -> None:
    text = (root / "docs" / "bench-protocols.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert sorted(rows) == sorted([*every, *REQUIRES])
    for name, protocol in every.items():
        _, _, what, cells, _, _ = rows[name].split("|")
        image_of_map = protocol.published[0].source or "" if protocol.published else ""
        assert cells.strip() == (str(len(protocol.cells)) if protocol.cells else image_of_map.split(":")[0])
        assert protocol.table is None or protocol.table in what
    for word, meaning in REQUIRES.items():
        assert meaning in rows[word]


# -- files of one's own ------------------------------------------------------------------------------------

GOOD = """
schema = "vitreous.protocol/1"
title = "Mine"

[[models]]
label = "mine"
name = "world"
size = 128

[data]
source = "folder"
path = "photos"
images = 10

[evaluation]
metrics = ["insertion", "deletion@coiba"]
seeds = [0, 1]

[methods]
"A" = "generic"
"B" = "smooth(generic, samples=2)"

[[published]]
model = "mine"
method = "A"
metric = "insertion"
value = 1
error = 0.25
"""


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    """Paper, table, note, figures and numbers may be left out."""
    path = tmp_path / "mine.toml"
    path.write_text(GOOD[: GOOD.index("[[published]]")])
    mine = read(path)
    assert mine == read(str(path))
    assert (mine.name, mine.paper, mine.published, mine.layout.figures) == ("mine", None, (), ())
    assert mine.evaluation.target == "pred"
    assert mine.models[0].size == 128
    path.write_text(GOOD.replace('title = "Mine"', 'title = "Mine"\nscale = 10'))
    assert read(path).cells == (Published("insertion", "mine", "A", value=0.1, printed=1.0, error=0.025),)


BAD = {
    "no TOML": ('title = "Mine"', "title = Mine", ["is no TOML"]),
    "other schema": ("protocol/1", "protocol/9", ["schema", "'vitreous.protocol/9'"]),
    "no title": ('title = "Mine"', "", ["title is missing"]),
    "unknown key": ('title = "Mine"', 'title = "Mine"\nmodel = 3', ["model = 3", "did you mean models"]),
    "unknown key inside": ("seeds = [0, 1]", "seed = 7", ["evaluation.seed = 7", "did you mean seeds"]),
    "unknown key of a model": ("size = 128", "sizes = 128", ["models[0].sizes = 128", "did you mean size"]),
    "truth for a number": ("images = 10", "images = true", ["data.images = True", "a whole number"]),
    "number in a list of texts": ('"deletion@coiba"]', "3]", ["evaluation.metrics[1] = 3", "must be text"]),
    "not finite": ("value = 1", "value = nan", ["published[0].value = nan", "finite"]),
    "empty text": ('label = "mine"', 'label = ""', ["models[0].label = ''", "not empty"]),
    "no table": ("[evaluation]\n", "[evaluations]\n", ["evaluations", "did you mean evaluation"]),
    "no data": ('[data]\nsource = "folder"\npath = "photos"\nimages = 10', "", ["data is missing"]),
    "unknown source": ('"folder"', '"foldr"', ["data.source = 'foldr'", "did you mean folder"]),
    "negative count": ("images = 10", "images = -1", ["data.images = -1", "at least 0"]),
    "listed, no list": ("images = 10", 'choose = "listed"', ["data.choose = 'listed'", "needs names"]),
    "unknown method": ('"generic"', '"genric"', ["methods.'A' = 'genric'", "did you mean generic"]),
    "bad parameter": ("samples=2", "copies=2", ["methods.'B'", "copies"]),
    "unknown metric": (
        '"insertion",',
        '"insertoin",',
        ["evaluation.metrics[0] = 'insertoin'", "did you mean insertion"],
    ),
    "unknown preset": ("@coiba", "@koiba", ["evaluation.metrics[1]", "no preset 'koiba'"]),
    "metric twice": ("deletion@coiba", "insertion@rise", ["evaluation.metrics[1] = 'insertion'", "twice"]),
    "no such model": ('model = "mine"', 'model = "yours"', ["published[0].model = 'yours'", "mine"]),
    "no such row": ('method = "A"', 'method = "C"', ["published[0].method = 'C'", "A, B"]),
    "no such column": ('metric = "insertion"', 'metric = "deletion"', ["published[0].metric = 'deletion'"]),
    "no number": ("value = 1\nerror = 0.25", "", ["published[0] has neither a value nor a source"]),
    "gain over nothing": ("error = 0.25", "gain = 3", ["published[0].gain and published[0].over"]),
    "unknown paper": ('title = "Mine"', 'title = "Mine"\npaper = "hong2025"', ["paper = 'hong2025'", "hong2025coiba"]),
    "unknown need": ("size = 128", 'requires = ["gpu"]', ["models[0].requires = 'gpu'", "weights"]),
    "unknown target": ("seeds = [0, 1]", 'target = "truth"', ["evaluation.target = 'truth'", "pred, label"]),
    "unknown reference": ("seeds = [0, 1]", 'reference = "C"', ["evaluation.reference = 'C'", "A, B"]),
    "crop": ("size = 128", 'crop = "middle"', ["models[0].crop = 'middle'", "center"]),
    "figure": ("[methods]", '[layout]\nfigures = ["pie"]\n[methods]', ["layout.figures = 'pie'", "curves"]),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_files_are_refused_by_name(what: str, tmp_path: Path) -> None:
    old, new, facts = BAD[what]
    assert GOOD.count(old) >= 1
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(VitreousError) as error:
        read(path)
    text = str(error.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    for words in facts:
        assert words in text, text


def test_files_that_are_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match=r"'coiba-tabel1' is no file .* did you mean coiba-table1"):
        read("coiba-tabel1")
    with pytest.raises(VitreousError, match="is no file"):
        read(tmp_path)
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(VitreousError, match=r"bytes\.toml: is no TOML"):
        read(path)


def test_without_a_reader_of_toml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_file, "sys", SimpleNamespace(version_info=(3, 10)))
    monkeypatch.setitem(sys.modules, "tomli", None)
    with pytest.raises(VitreousError, match=r"quick\.toml: needs tomli .*vitreous\[bench\]"):
        read("quick")
