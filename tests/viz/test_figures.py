"""Figures: what is drawn is what the table holds, in one style, with nothing of matplotlib's changed."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from families import FAMILIES, images
from score_tables import METHODS, METRIC, table
from vitreous.errors import VitreousError
from vitreous.metrics import RankedRemoval
from vitreous.metrics.bootstrap import intervals
from vitreous.results.table_plots import states_strip, sweeps
from vitreous.viz import plots as figures

matplotlib = pytest.importorskip("matplotlib", reason="figures need matplotlib")

ODD = ("$x_1$ & <b>", "new\nline", "half \udcff", "ünïcode 图", "_hidden", "")


def lines(axes: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in axes.get_lines() if len(line.get_xdata()) > 1}


def words(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def svg(figure: Any, folder: Path, name: str = "f.svg") -> str:
    return figures.save(figure, folder / name, overwrite=True).read_text(encoding="utf-8")


# -- the numbers ---------------------------------------------------------------------------------------


def test_curves_are_those_of_the_table() -> None:
    scores = table()
    figure = scores.plot("curves")
    assert len(figure.axes) == 2
    for axes, name in zip(figure.axes, ("insertion", "deletion"), strict=True):
        curves = lines(axes)
        for at, method in enumerate(METHODS):
            curve = scores.curve(method, METRIC, name)
            np.testing.assert_array_equal(curves[method].get_xdata(), curve.x)
            np.testing.assert_allclose(curves[method].get_ydata(), curve.y.mean(axis=0))
            band = axes.collections[at].get_paths()[0].vertices
            for place, mean, ends in zip(curve.x, curve.mean, intervals(curve.y, samples=300), strict=True):
                heights = band[np.isclose(band[:, 0], place), 1]
                np.testing.assert_allclose([heights.min(), heights.max()], ends)
                assert ends.low < mean < ends.high
    assert {"share of pixels put back", "share of pixels removed", "higher is better", "lower is better"} <= set(
        words(figure)
    )


def test_images_without_a_curve_are_left_out() -> None:
    scores = table(n=6)
    gap = scores.curves["ixg", METRIC]["insertion"].y
    gap[2, 3] = np.nan
    scores.curves["plus(ixg)", METRIC]["insertion"].y[:] = np.nan
    curves = lines(scores.plot("curves", curves="insertion").axes[0])
    np.testing.assert_allclose(curves["ixg"].get_ydata(), np.delete(gap, 2, axis=0).mean(axis=0))
    assert np.isnan(curves["plus(ixg)"].get_ydata()).all()


def test_bars_are_sorted_by_the_direction() -> None:
    scores = table(metrics=(METRIC, "deletion"))
    for metric in scores.metrics:
        axes = scores.plot("bars", metric).axes[0]
        order = sorted(METHODS, key=lambda name: scores.mean(name, metric), reverse=metric == METRIC)
        assert [yticklabel.get_text() for yticklabel in axes.get_yticklabels()] == order
        assert [bar.get_width() for bar in axes.patches] == [scores.mean(name, metric) for name in order]
        spans = [line.get_xdata() for line in axes.get_lines() if line.get_linewidth() == 1.6]
        np.testing.assert_array_equal(spans, [scores.interval(name, metric) for name in order])
        written = [float(text.get_text()) for text in axes.texts]
        np.testing.assert_allclose(written, [scores.mean(name, metric) for name in order], atol=0.006)
    message = " ".join(words(scores.plot("bars", "deletion")))
    assert "Lower is better. Mean of 25 images" in message


def test_a_method_without_a_score_says_so() -> None:
    scores = table()
    scores.parts["random", METRIC][:] = np.nan
    axes = scores.plot("bars").axes[0]
    assert len(axes.patches) == 2
    assert axes.texts[-1].get_text() == "no score"


@pytest.mark.parametrize("relative", [False, True])
def test_bins_are_those_of_the_table(relative: bool) -> None:
    scores = table(n=60)
    options: dict[str, Any] = {"count": 3, "by": "mass", "relative": relative}
    upper, lower = scores.plot("bins", **options).axes
    for method in METHODS:
        expected = scores.bins(method, METRIC, 3, "mass", relative=relative)
        np.testing.assert_array_equal(lines(upper)[method].get_ydata(), [text.mean for text in expected])
    assert [bar.get_height() for bar in lower.patches] == [20, 20, 20]
    assert not upper.patches
    thin = scores.plot("bins", count=6, by="mass").axes[0]
    assert len(thin.patches) == 6, "thin bins are on grey"


def test_sweep_finds_the_number_that_varies() -> None:
    specs = [f"plus({base}, start={l})" for base in ("ixg", "generic") for l in (10, 0, 4)]
    scores = table([*specs, "smooth(ixg, samples=3)", "random"])
    one, other = sweeps(scores.methods)
    assert (one.name, one.x, one.x_label) == ("plus(ixg, start=…)", (0, 4, 10), "start layer")
    assert other.methods == tuple(f"plus(generic, start={l})" for l in (0, 4, 10))
    curves = lines(scores.plot("sweep").axes[0])
    np.testing.assert_array_equal(curves["plus(ixg, start=…)"].get_xdata(), [0, 4, 10])
    np.testing.assert_array_equal(curves[one.name].get_ydata(), [scores.mean(name, METRIC) for name in one.methods])
    assert set(curves["random"].get_ydata()) == {scores.mean("random", METRIC)}
    explicit = scores.plot("sweep", methods=specs[:2], x=[3, 7], x_label="depth", contrast=[]).axes[0]
    np.testing.assert_array_equal(lines(explicit)["methods"].get_xdata(), [3, 7])
    with pytest.raises(VitreousError, match="no two methods differ in one number"):
        table().plot("sweep")


def test_histogram_counts_where_images_are_best() -> None:
    methods = [f"iba(layer={l})" for l in range(4)]
    for metric, best in ((METRIC, np.argmax), ("deletion", np.argmin)):
        result = table(methods, (metric,))
        heights = [bar.get_height() for bar in result.plot("histogram").axes[0].patches]
        scores = np.stack([result[name, metric] for name in methods])
        assert heights == np.bincount(best(scores, axis=0), minlength=4).tolist()


def test_matrix_is_the_correlation_of_scores() -> None:
    scores = table()
    axes = scores.plot("matrix").axes[0]
    expected = np.corrcoef([scores[name, METRIC] for name in METHODS])
    texts = [float(text.get_text().replace("−", "-")) for text in axes.texts]
    np.testing.assert_allclose(np.reshape(texts, (3, 3)), expected, atol=0.0051)
    assert len(axes.collections[0].get_paths()) == 9


def test_radar_goes_from_0_to_1() -> None:
    metrics = ("insertion", METRIC, "average_gain")
    scores = table(("ixg", "random"), metrics)
    for cell in scores.parts:
        scores.parts[cell][:] = np.clip(scores.parts[cell], 0, 1)
    axes = scores.plot("radar").axes[0]
    line = lines(axes)["ixg"]
    values = np.hypot(line.get_xdata(), line.get_ydata())
    means = [scores.mean("ixg", metric) for metric in metrics]
    np.testing.assert_allclose(values, [*means, means[0]])
    assert {"0", "0.5", "1"} <= {text.get_text() for text in axes.texts}
    with pytest.raises(VitreousError, match="goes from 0 to 1"):
        figures.radar(["a", "b", "c"], {"x": [0.1, 0.2, 1.5]})
    with pytest.raises(VitreousError, match="better when lower"):
        table(metrics=(METRIC, "insertion", "deletion")).plot("radar")


# -- strips --------------------------------------------------------------------------------------------


def test_states_are_shown_with_their_probability() -> None:
    model = vt.wrap(FAMILIES["vit"]())
    inputs = images(model.module, 1)[0]
    size = inputs.shape[1] * inputs.shape[2]
    maps = {"one": torch.randn(2, 2), "other": torch.randn(2, 2)}
    need = RankedRemoval.deletion("black", [0, size // 2, size])
    figure = states_strip(model, inputs, maps, need, steps=[0, 2], target=1)
    assert len(figure.axes) == 4
    black = (0 - torch.tensor(model.preprocess.mean)) / torch.tensor(model.preprocess.std)
    baseline = black.view(3, 1, 1).expand_as(inputs).to(inputs)
    with torch.no_grad():
        clean, gone = model.module(torch.stack([inputs, baseline])).softmax(1)[:, 1].tolist()
    message = words(figure)
    assert message.count(f"{clean:.2f}") >= 2
    assert message.count(f"{gone:.2f}") >= 2
    assert {"one", "other", "0% removed", "100% removed"} <= set(message)
    assert (np.asarray(figure.axes[1].get_images()[0].get_array()) == 0).all()
    with pytest.raises(VitreousError, match="only states of pixels"):
        states_strip(model, inputs, maps, RankedRemoval.deletion("drop", [1, 2], "token"))
    with pytest.raises(VitreousError, match="step 3 is not one of the 3"):
        states_strip(model, inputs, maps, need, steps=[3])


def test_cascade_colours_every_map() -> None:
    ramp = np.linspace(-1, 1, 16).reshape(4, 4)
    figure = figures.cascade({"ixg": [ramp, -ramp]}, ["trained", "head"], {"ixg": [1.0, -1.0]})
    first, second = (np.asarray(axes.get_images()[0].get_array()).astype(int) for axes in figure.axes)
    assert first[-1, -1, 0] > first[-1, -1, 2], "red for"
    assert second[-1, -1, 0] < second[-1, -1, 2], "blue against"
    assert {"trained", "head", "1.00", "−1.00"} <= set(words(figure))
    with pytest.raises(VitreousError, match="do not fit"):
        figures.strips({"a": [Image.new("RGB", (4, 4))]}, ["one", "two"])


# -- the style -----------------------------------------------------------------------------------------


def test_files_hold_text_as_text_and_are_the_same_each_time(tmp_path: Path) -> None:
    scores = table()
    for suffix in figures.FORMATS:
        places = [tmp_path / f"{number}{suffix}" for number in range(2)]
        for place in places:
            scores.plot("curves", path=place)
        first, second = (place.read_bytes() for place in places)
        assert first == second
    root = ElementTree.fromstring((tmp_path / "0.svg").read_text())
    texts = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"insertion", "plus(ixg)", "share of pixels removed"} <= texts
    pdf = (tmp_path / "0.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert b"CIDFontType2" in pdf or b"TrueType" in pdf
    assert b"Type3" not in pdf
    assert Image.open(tmp_path / "0.png").width == 2100
    with pytest.raises(VitreousError, match="there already"):
        scores.plot("curves", path=tmp_path / "0.svg")
    with pytest.raises(VitreousError, match=r"must end in one of \.svg, \.pdf, \.png"):
        scores.plot("curves", path=tmp_path / "0.gif")


def test_settings_of_matplotlib_neither_change_nor_show(tmp_path: Path) -> None:
    scores = table(n=8)

    def drawing() -> list[str]:
        radar = figures.radar(["a", "b", "c"], {"x": [0.1, 0.2, 0.5], "random": [0.4, 0.4, np.nan]})
        kinds = {"curves": {}, "bins": {"count": 4}, "bars": {}, "matrix": {}, "sweep": {"x": [1, 2, 3]}}
        return [
            svg(text, tmp_path) for text in (radar, *(scores.plot(kind, **options) for kind, options in kinds.items()))
        ]

    reference = drawing()
    wild = {
        "text.usetex": True, "font.size": 30, "axes.grid": True, "figure.facecolor": "black", "savefig.bbox": "tight",
        "svg.fonttype": "path", "axes.spines.top": True, "xtick.minor.visible": True, "figure.autolayout": True,
        "font.family": "serif", "lines.marker": "x", "axes.prop_cycle": matplotlib.cycler(color="k"),
        "patch.force_edgecolor": True, "text.color": "red", "ytick.right": True, "axes.labelsize": 30,
    }  # fmt: skip
    with matplotlib.rc_context(wild):
        before = dict(matplotlib.rcParams)
        assert drawing() == reference
        assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_threads_draw_the_same(tmp_path: Path) -> None:
    scores = table(n=8)
    alone = svg(scores.plot("curves"), tmp_path)
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda number: svg(scores.plot("curves"), tmp_path, f"{number}.svg"), range(8)))
    assert set(done) == {alone}


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("kind", ["curves", "bars", "bins", "matrix"])
def test_names_with_odd_characters(kind: str, tmp_path: Path) -> None:
    written = svg(table(ODD, n=5).plot(kind), tmp_path)
    texts = "".join(text for text in ElementTree.fromstring(written).itertext())
    assert "$x_1$ & <b>" in texts
    assert "new\\nline" in texts
    assert "half ?" in texts
    assert "ünïcode 图" in texts


@pytest.mark.parametrize("kind", ["curves", "bars", "bins", "matrix"])
@pytest.mark.parametrize(("count", "n"), [(20, 3), (1, 1), (7, 1)])
def test_many_methods_and_one_image(kind: str, count: int, n: int, tmp_path: Path) -> None:
    methods = [f"method_with_a_long_name_{at}(and={at})" for at in range(count)]
    figure = table(methods, n=n).plot(kind)
    svg(figure, tmp_path)
    renderer = figure.canvas.get_renderer()
    figure.draw(renderer)
    page = figure.bbox.padded(1)
    for text in figure.findobj(matplotlib.text.Text):
        if text.get_text() and text.get_visible():
            box = text.get_window_extent(renderer)
            assert page.x0 <= box.x0, text.get_text()
            assert box.x1 <= page.x1, text.get_text()
            assert page.y0 <= box.y0, text.get_text()
            assert box.y1 <= page.y1, text.get_text()


def test_names_at_the_ends_of_lines_keep_apart() -> None:
    figure = table([*METHODS, "generic", "rollout", "centre"]).plot("curves")
    renderer = figure.canvas.get_renderer()
    boxes = [
        text.get_window_extent(renderer) for text in figure.axes[1].texts if text.get_text() in {*METHODS, "generic"}
    ]
    assert len(boxes) == 4
    assert not any(one.overlaps(other) for at, one in enumerate(boxes) for other in boxes[:at])


def test_looks_are_told_apart_and_random_is_grey_and_dashed() -> None:
    styles = figures.line_styles([f"m{at}" for at in range(20)] + ["random"])
    assert len({(look.colour, str(look.dashes)) for look in styles.values()}) == 21
    assert styles["random"].is_control
    assert styles["random"].dashes != "solid"
    red, green, blue = (int(styles["random"].colour[at : at + 2], 16) for at in (1, 3, 5))
    assert max(red, green, blue) - min(red, green, blue) < 20
    scores = table(n=3)
    all_of_them, figure = scores.plot("curves"), scores.plot("curves", methods=["random", "plus(ixg)"])
    assert lines(all_of_them.axes[0])["plus(ixg)"].get_color() == lines(figure.axes[0])["plus(ixg)"].get_color()


# -- bad input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"kind": "curvs"}, "kind='curvs' is not one of .*did you mean curves"),
        ({"kind": "strips"}, "a table keeps no pictures"),
        ({"kind": "bars", "metric": "insertion"}, "no metric 'insertion'"),
        ({"kind": "bars", "methods": ["rolout"]}, "no method 'rolout'"),
        ({"kind": "bars", "methods": []}, "no methods to draw"),
        ({"kind": "bars", "steps": 3}, "bars has no option 'steps', but width"),
        ({"kind": "bars", "width": "wide"}, "width='wide' is neither column, page nor"),
        ({"kind": "curves", "width": 0.1}, "between 2 and 40 inches"),
        ({"kind": "curves", "curves": "road"}, "has no curve 'road', but insertion, deletion"),
        ({"kind": "bins", "confidence": "label"}, "confidence='label' is not one of pred"),
    ],
)
def test_bad_words_are_named(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        table(n=3).plot(**asked)


def test_without_curves() -> None:
    scores = table(n=3, curves=False)
    with pytest.raises(VitreousError, match="kept no curves of insdel"):
        scores.plot("curves")
    assert scores.plot().axes[0].patches, "bars by default"
    with pytest.raises(VitreousError, match="name a metric to draw: insdel"):
        table(metrics=(METRIC, "deletion"), n=3).plot()


def test_matplotlib_is_asked_for_by_the_name_of_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(VitreousError, match=r"pip install 'vitreous\[plot\]'"):
        table(n=3).plot("bars")
