"""A run in a real browser, through the whole explorer: sort, click through, filter, share the address."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import vitreous as vt
from web_runs import ALL, METRICS, confidence, finished_run, right, score

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

PATIENCE = 120_000  # milliseconds


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from vitreous.web.serve import Server, listen

    run = finished_run(tmp_path_factory.mktemp("explorer") / "run")
    server = Server(listen("127.0.0.1", 0), "127.0.0.1", {"world": vt.load("world")}, {"mine": run})
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server.address
    server.stop()
    thread.join(20)
    server.explorer.close()


class Visit:
    """A tab that writes down every complaint and every request."""

    def __init__(self, browser: Any, address: str, hash: str, **look: Any) -> None:
        self.address, self.complaints, self.requests = address, [], []  # type: ignore[var-annotated]
        self.tab = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **look}).new_page()
        self.tab.set_default_timeout(PATIENCE)
        self.tab.on(
            "console", lambda text: self.complaints.append(text.text) if text.type in ("error", "warning") else None
        )
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.goto(address + hash)
        self.tab.wait_for_selector(".runpage h1")

    def rows(self) -> list[str]:
        return self.tab.locator(".runtable tbody th").evaluate_all(
            "all => all.map(each => each.firstChild.textContent)"
        )

    def names(self) -> list[str]:
        self.tab.wait_for_selector(".shots:not([aria-busy]) figcaption")
        return list(self.tab.locator(".shots .named").all_inner_texts())

    def scores(self) -> list[float]:
        self.names()
        texts = self.tab.locator(".shots .number").all_inner_texts()
        return [float(text.replace("−", "-")) for text in texts]

    @property
    def hash(self) -> str:
        return str(self.tab.evaluate("location.hash"))

    def end(self) -> None:
        """Nothing complained, and nobody else was asked."""
        assert self.complaints == []
        address = (self.address, "data:", "blob:")
        assert [url for url in self.requests if not url.startswith(address)] == []
        self.tab.context.close()


def test_tables_sort_and_lead_to_pictures(browser: Any, address: str) -> None:
    visit = Visit(browser, address, "#/run/mine")
    visit.tab.wait_for_selector(".runtable tbody th")
    assert visit.tab.locator("h1").inner_text() == "A run & its <script>alert(1)</script>"
    assert visit.rows()[0].startswith("<i>mine")  # a name is a name
    head = visit.tab.locator(".runtable thead th").nth(2).locator("button")
    head.click()
    means = visit.tab.locator(".runtable tbody tr td:nth-child(3) .score").evaluate_all(
        "all => all.map(each => Number(each.getAttribute('aria-label').match(/gini: ([-−0-9.]+)/)[1]))"
    )
    assert len(means) == len(ALL)
    assert means == sorted(means, reverse=True)  # gini: the best is the highest
    assert visit.tab.locator(".runtable thead th").nth(2).get_attribute("aria-sort") == "descending"
    head.click()
    assert visit.tab.locator(".runtable thead th").nth(2).get_attribute("aria-sort") == "ascending"
    assert "sort=gini&way=ascending" in visit.hash
    visit.tab.locator(".runtable tbody tr", has_text="generic").locator(".score").nth(1).click()
    answer = visit.scores()
    assert answer == sorted(answer)
    assert len(answer) == 12
    visit.tab.get_by_role("button", name="best first").click()
    visit.tab.wait_for_function("() => document.querySelector('.seg[data-value=best]').ariaPressed === 'true'")
    visit.tab.wait_for_function(
        "was => document.querySelector('.shots .number').textContent !== was", arg=str(answer[0])
    )
    assert visit.scores() == answer[::-1]
    visit.tab.locator(".shots a").first.click()
    visit.tab.wait_for_selector(".runpicture .shots")
    assert len(visit.names()) == len(ALL)
    text = "() => document.querySelectorAll('.runpicture canvas[data-state=drawn]').length >= 8"
    visit.tab.wait_for_function(text)
    visit.tab.keyboard.press("ArrowRight")
    visit.tab.wait_for_selector("text=2 of 12")
    visit.tab.keyboard.press("Escape")
    visit.tab.wait_for_selector(".runcell .shots")
    assert len(visit.scores()) == 12
    visit.tab.go_back()
    visit.tab.wait_for_selector("text=2 of 12")
    visit.end()


def test_filters_and_their_address(browser: Any, address: str) -> None:
    visit = Visit(browser, address, "#/run/mine?view=cell&method=generic&metric=gini")
    every = (
        visit.tab.locator(".shots a").evaluate_all("all => all.map(each => each.dataset.key)") if visit.names() else []
    )
    assert len(every) == 12
    visit.tab.get_by_label("the model was").select_option("no")
    wrong = [entry for entry in every if not right(entry)]
    visit.tab.wait_for_selector(f"text={len(wrong)} of 12 pictures")
    visit.tab.get_by_label("confidence from percent").fill("60")
    sure = [entry for entry in wrong if confidence(entry) >= 0.6]
    visit.tab.wait_for_selector(f"text={len(sure)} of 12 pictures")
    assert "correct=no" in visit.hash
    assert "low=0.6" in visit.hash
    visible = visit.scores()
    assert visible == sorted(round(score(entry, "generic", "gini"), 3) for entry in sure)
    again = Visit(browser, address, visit.hash)
    assert again.scores() == visible
    assert again.tab.get_by_label("the model was").input_value() == "no"
    again.tab.get_by_label("name", exact=True).fill("nothing like it")
    again.tab.wait_for_selector("text=No picture passes these filters")
    again.tab.get_by_role("button", name="all pictures").click()
    again.tab.wait_for_selector("text=12 pictures, mean")
    visit.end()
    again.end()


def test_scatter_names_its_points_and_opens_them(browser: Any, address: str) -> None:
    visit = Visit(browser, address, "#/run/mine?view=scatter")
    visit.tab.wait_for_selector(".scatter .point")
    assert visit.tab.locator(".scatter .point").count() == len(ALL)
    visit.tab.locator(".scatter a").first.focus()
    assert "mine" in visit.tab.locator(".tip b").inner_text()
    visit.tab.locator(".scatter a").nth(1).hover()
    assert visit.tab.locator(".tip b").inner_text() == "generic"
    visit.tab.get_by_role("button", name="pictures").click()
    visit.tab.locator(".choose select").nth(2).select_option("tis")
    there = visit.tab.locator(".scatter .point")
    visit.tab.wait_for_selector("text=tis is better than generic")
    answer = [image for image in pictures(visit) if not math.isnan(score(image, "tis", METRICS[0]))]
    assert there.count() == len(answer)
    assert "of=pictures&y=tis" in visit.hash
    visit.tab.locator(".scatter a").first.hover()
    name = visit.tab.locator(".tip b").inner_text()
    visit.tab.locator(".scatter a").first.click()
    visit.tab.wait_for_selector(".runpicture .told")
    assert name in visit.tab.locator(".told").inner_text()
    visit.end()


def pictures(visit: Visit) -> list[str]:
    query = "method=generic&metric=gini"
    answer = visit.tab.evaluate(f"() => fetch('/api/runs/mine/scores?{query}').then(each => each.json())")
    return list(answer["pictures"])


def test_a_picture_can_be_asked_about(browser: Any, address: str) -> None:
    """From a run to the page of one image: the same picture, the same class, the method of the map."""
    visit = Visit(browser, address, "#/run/mine?view=cell&method=generic&metric=gini")
    visit.names()
    visit.tab.locator(".shots a").first.click()
    visit.tab.get_by_role("button", name="ask about this picture").click()
    visit.tab.wait_for_function("() => location.hash.startsWith('#/image?')")
    assert "methods=generic" in visit.hash
    assert "picture=p-" in visit.hash
    visit.tab.go_back()
    visit.tab.wait_for_selector(".runpicture .told")
    visit.end()


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "dark")])
@pytest.mark.parametrize("model", ["table", "scatter", "scatter&of=pictures", "cell", "picture"])
def test_it_fits_everywhere(browser: Any, address: str, width: int, scheme: str, model: str) -> None:
    visit = Visit(browser, address, "#/run/mine", viewport={"width": width, "height": 844}, color_scheme=scheme)
    visit.tab.wait_for_selector(".runtable")
    picture = pictures(visit)[0] if model == "picture" else ""
    visit.tab.evaluate(f"() => {{ location.hash = '#/run/mine?view={model}&picture={picture}' }}")
    ready = {"table": ".runtable tbody", "cell": ".shots figcaption", "picture": ".told"}.get(model, ".scatter .point")
    visit.tab.wait_for_selector(ready)
    result, smallest, ink, unnamed = visit.tab.evaluate(
        """() => [document.documentElement.scrollWidth,
                  Math.min(...[...document.querySelectorAll('.runpage :is(p, td, th, dd, a, label, small, button)')]
                      .map(each => parseFloat(getComputedStyle(each).fontSize))),
                  getComputedStyle(document.body).color,
                  [...document.querySelectorAll('.runpage :is(select, input, canvas, button, a)')].filter(each =>
                      !(each.labels?.length || each.getAttribute('aria-label') || each.textContent.trim())).length]"""
    )
    assert result <= width
    assert smallest >= 12
    assert unnamed == 0
    assert (sum(int(word) for word in ink[4:-1].split(",")) > 400) == (scheme == "dark")
    visit.end()


def test_what_is_not_there_is_said(browser: Any, address: str) -> None:
    visit = Visit(browser, address, "#/run/nobody")
    visit.tab.wait_for_selector("text=There is no run 'nobody'")
    visit.tab.goto(address + "#/run/mine?view=picture&picture=gone&part=77&low=hot&page=x&order=up")
    visit.tab.wait_for_selector("text=No picture 'gone'")
    complaints = [entry for entry in visit.complaints if "404" not in entry]  # a browser tells of every refusal
    assert complaints == []
