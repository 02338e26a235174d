"""The report of a run, opened in a real browser: tables sort, pictures load, nothing is fetched, nothing complains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitreous.benchmark.data import Options
from vitreous.benchmark.protocol import DataSpec, EvaluationSpec, ModelSpec, Protocol, Published
from vitreous.benchmark.report import report
from vitreous.benchmark.run import BenchmarkRun
from vitreous.benchmark.store import Store
from vitreous.benchmark.unit_file import pack_unit
from vitreous.benchmark.units import Unit

METRICS = ("deletion(steps=4)", "gini")
METHODS = {"<i>mine</i>": "rollout", "generic": "generic", "saliency": "saliency"}
MEANS = {"<i>mine</i>": 0.5, "generic": 0.2, "saliency": 0.8, "random": 0.9, "constant": 0.85, "centre": 0.7}


def protocol() -> Protocol:
    printed = (
        Published(METRICS[0], "world", "generic", value=0.2, printed=20.0),
        Published(METRICS[0], "world", "saliency", value=0.1, printed=10.0),
    )
    return Protocol(
        name="page",
        title="A page & its <script>alert(1)</script>",
        models=(ModelSpec("world", "world"),),
        data=DataSpec("world", images=8, split="test"),
        evaluation=EvaluationSpec(METRICS, reference="generic", seeds=(0, 1)),
        methods=METHODS,
        published=printed,
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight scenes whose numbers are written by hand; its pictures and its model are real."""
    folder = tmp_path_factory.mktemp("bench") / "run"
    bench = BenchmarkRun(protocol(), folder, Options(device="cpu"))
    bench.prepare()
    store, random = Store(folder), np.random.default_rng(0)
    (plan,) = store.plans()
    for unit in plan.units:
        with store.claim(unit.id) as mine:
            assert mine
            info: dict[str, Any] = {"images": list(unit.images), "unreadable": {}, "seconds": 1.0}
            store.put(unit.id, pack_unit(arrays(unit, random), {"unit": unit.to_json(), "explaining": 1.0, **info}))
    return report(folder).page


def arrays(unit: Unit, random: np.random.Generator) -> dict[str, Any]:
    count, result = len(unit.images), {}
    for i, method in enumerate(unit.methods):
        if not unit.is_scoring:
            result |= {f"maps/{i}": random.normal(size=(count, 16, 16)).astype(np.float32)}
            result |= {f"rows/{i}/given": np.arange(count, dtype=np.int32)}
        for j, metric in enumerate(unit.metrics):
            result[f"parts/{i}/{j}"] = MEANS[method] + random.normal(scale=0.02, size=(count, 1))
            if metric == METRICS[0]:
                result[f"curve/{i}/{j}/0/deletion/x"] = np.linspace(0, 1, 5)
                result[f"curve/{i}/{j}/0/deletion/y"] = np.linspace(1, MEANS[method], 5) * np.ones((count, 1))
    return {**result, "confidence/pred": np.full(count, 0.9)} if unit.is_scoring else result


class Visit:
    """A page that is open, what it complained about, and what it asked for."""

    def __init__(self, browser: Any, path: Path, **option: Any) -> None:
        self.tab = browser.new_context(**option).new_page()
        self.messages: list[str] = []
        self.asked: list[str] = []
        self.tab.on("console", lambda message: self.messages.append(message.text))
        self.tab.on("pageerror", lambda error: self.messages.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.messages.append(dialog.message))
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.goto(path.as_uri())

    def column(self, number: int) -> list[str]:
        rows = "#m1-scores tbody tr"
        return list(self.tab.eval_on_selector_all(rows, f"rows => rows.map(row => row.cells[{number}].dataset.value)"))

    def names(self) -> list[str]:
        return list(
            self.tab.eval_on_selector_all("#m1-scores tbody tr", "rows => rows.map(row => row.cells[0].dataset.value)")
        )


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1400, "light"), (1400, "dark")])
def test_it_opens_everywhere(browser: Any, page: Path, width: int, scheme: str) -> None:
    visit = Visit(browser, page, viewport={"width": width, "height": 900}, color_scheme=scheme)
    landscape, images, smallest, ink = visit.tab.evaluate(
        """() => [document.documentElement.scrollWidth,
                  [...document.images].map(each => each.complete && each.naturalWidth > 0 && each.width > 60),
                  Math.min(...[...document.querySelectorAll('main p, main td, main th, main dd, main li')]
                      .map(each => parseFloat(getComputedStyle(each).fontSize))),
                  getComputedStyle(document.body).color]"""
    )
    assert visit.messages == []
    assert [url for url in visit.asked if not url.startswith("data:")] == [page.as_uri()]
    assert landscape <= width
    assert len(images) >= 6 * (1 + len(METHODS)) + 2 * 5  # six pictures with their maps, two strips of all states
    assert all(images)
    assert smallest >= 12
    assert (sum(int(word) for word in ink[4:-1].split(",")) > 400) == (scheme == "dark")


def test_tables_sort(browser: Any, page: Path) -> None:
    visit = Visit(browser, page)
    assert visit.names() == [*METHODS, "random", "constant", "centre"]
    head = visit.tab.locator("#m1-scores thead th").nth(1).locator("button")
    head.click()
    first = visit.names()
    assert first == sorted(MEANS, key=lambda name: MEANS[name])  # deletion: the best is the lowest
    head.click()
    assert visit.names() == first[::-1]
    assert visit.tab.locator("#m1-scores thead th").nth(1).get_attribute("aria-sort") == "descending"
    visit.tab.locator("#m1-scores thead th").nth(3).locator("button").click()
    assert visit.names() == sorted(MEANS, key=lambda name: -MEANS[name])  # gini: the best is the highest
    assert visit.tab.locator("#m1-scores thead th").nth(1).get_attribute("aria-sort") is None
    assert visit.messages == []


def test_words_stay_words(browser: Any, page: Path) -> None:
    visit = Visit(browser, page)
    assert visit.tab.locator("h1").inner_text() == "A page & its <script>alert(1)</script>"
    assert "<i>mine</i>" in visit.tab.locator("#m1-scores tbody").inner_text()
    assert visit.tab.locator("#m1-scores tbody i").count() == 0
    assert visit.messages == []


def test_everything_is_there_without_a_script(browser: Any, page: Path) -> None:
    visit = Visit(browser, page, java_script_enabled=False)
    text = visit.tab.locator("main").inner_text()
    for heading in (
        *("Beside the paper", "Scores", "Mean ranks", "Differences, and which could be seen", "Do the metrics agree?"),
        *("Cost", "Seeds apart from pictures", "Best and worst pictures", "What the model was shown"),
        *("Settings and provenance", "Again"),
    ):
        assert heading in text, heading
    assert "agrees within the interval" in text
    assert "vitreous bench report" in text
    assert visit.tab.locator("svg.diagram").count() == len(METRICS)


def test_a_script_of_others_does_not_run(browser: Any, page: Path, tmp_path: Path) -> None:
    """The page's own policy keeps foreign scripts and requests out."""
    text = page.read_text().replace(
        "</main>", '<script>document.title = "caught"</script><img src="http://x.y/z"></main>'
    )
    (tmp_path / "evil.html").write_text(text)
    visit = Visit(browser, tmp_path / "evil.html")
    assert visit.tab.title() != "caught"
    assert len(visit.messages) >= 2
    assert all("Content Security Policy" in item for item in visit.messages)
