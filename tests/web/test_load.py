"""Many at once, much to do, clients that leave: work is bounded, shared fairly and stopped, and nothing stays."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
from PIL import Image

import vitreous as vt
from web_server import SCENE, Client, gone, refused, served, until, world

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

LONG = {**SCENE, "kind": "explain", "method": "rise"}
"""Six thousand forwards: minutes, if nobody stops it."""


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served() as answer:
        yield answer
        assert answer.get("/api/start").status == 200, "it is not up any more"


@pytest.fixture(autouse=True)
def _idle(client: Client) -> Iterator[None]:
    yield
    while Stream.open:
        Stream.open.pop().leave()
    until(lambda: client.explorer.long.num_jobs == 0 and client.explorer.short.num_jobs == 0)


class Stream:
    """An ask whose answers are read one by one, and that can be left."""

    open: ClassVar[list[Stream]] = []

    def __init__(self, client: Client, *tasks: Any) -> None:
        Stream.open.append(self)
        self.connection = client.connect()
        body = json.dumps({"tasks": list(tasks)}).encode()
        self.connection.request("POST", "/api/ask", body, {"content-type": "application/json"})
        self.response = self.connection.getresponse()

    def next(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.response.readline())
        return answer

    def until(self, event: str, task: int = 0) -> dict[str, Any]:
        while (answer := self.next())["event"] != event or answer.get("task", task) != task:
            assert answer["event"] != "end"
        return answer

    def leave(self) -> None:
        self.response.close()
        self.connection.close()


def test_fifty_at_once_are_all_answered(client: Client) -> None:
    requests = [
        lambda: client.get("/api/start"),
        lambda: client.post("/api/predict", SCENE),
        lambda: client.post("/api/try", {**SCENE, "removed": gone(3, 4)}),
        lambda: client.get("/api/pictures/scene-parts-removed-1?model=world"),
        lambda: client.post("/api/ask", {"tasks": [{**SCENE, "kind": "explain", "method": "generic"}]}),
    ]
    with ThreadPoolExecutor(50) as many:
        answer = list(many.map(lambda place: requests[place % len(requests)](), range(50)))
    assert {entry.status for entry in answer} == {200}
    assert len({entry.data.count(b'"result"') for entry in answer[4::5]}) == 1


def test_more_than_can_wait_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.explorer.short, "_most", 3)
    with ThreadPoolExecutor(40) as many:
        answer = list(many.map(lambda place: client.post("/api/predict", SCENE), range(40)))
    assert {entry.status for entry in answer} == {200, 503}
    assert all("waiting" in entry.json["error"] for entry in answer if entry.status == 503)


def test_an_ask_has_few_tasks_and_all_asks_together_too(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.web.schemas import MOST_TASKS

    easy = {**SCENE, "kind": "explain", "method": "ixg"}
    assert refused(client, "POST", "/api/ask", {"tasks": [easy] * (MOST_TASKS + 1)}) == 429
    assert refused(client, "POST", "/api/command", {"questions": [easy] * (MOST_TASKS + 1)}) == 422
    monkeypatch.setattr(client.explorer.long, "_most", 4)
    first = Stream(client, LONG)
    first.until("progress")
    second = Stream(client, easy, easy, easy)
    assert second.next()["event"] == "queued"
    assert refused(client, "POST", "/api/ask", {"tasks": [easy, easy]}) == 503
    first.leave()
    assert second.until("result", 2)["event"] == "result"
    second.leave()


def test_whoever_comes_too_late_is_told_in_the_stream(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the queue and the first line of the answer others may have filled it."""
    from vitreous.web import Refused

    def full(jobs: Any) -> None:
        raise Refused(503, "no room")

    monkeypatch.setattr(client.explorer.long, "put", full)
    easy = {**SCENE, "kind": "explain", "method": "ixg"}
    events = client.events(easy, easy)
    assert [(event.get("task"), event["event"]) for event in events] == [(0, "error"), (1, "error"), (None, "end")]
    assert events[0]["message"] == "no room"


def test_whoever_leaves_stops_what_was_asked_for(client: Client) -> None:
    """The running pass ends at its next inner batch, what waits is forgotten."""
    stream = Stream(client, LONG, {**LONG, "seed": 1}, {**LONG, "seed": 2})
    running = stream.until("progress")
    assert client.explorer.long.num_jobs == 3
    stream.leave()
    until(lambda: client.explorer.long.num_jobs == 0)
    assert running["done"] < 0.5


@pytest.mark.parametrize("task", [{"kind": "check", "method": "coiba"}, {"kind": "why", "method": "tis"}])
def test_also_what_consists_of_many_parts_is_stopped(client: Client, task: dict[str, Any]) -> None:
    stream = Stream(client, {**SCENE, **task})
    stream.until("progress")
    stream.leave()
    until(lambda: client.explorer.long.num_jobs == 0)


def test_a_download_that_nobody_waits_for_is_stopped(client: Client) -> None:
    connection = client.connect()
    body = json.dumps({"format": "png", "questions": [{**SCENE, "method": "rise", "seed": 5}]}).encode()
    connection.request("POST", "/api/download", body, {"content-type": "application/json"})
    until(lambda: client.explorer.long.num_jobs == 1)
    connection.close()
    until(lambda: client.explorer.long.num_jobs == 0)


def test_short_questions_do_not_wait_for_long_ones(client: Client) -> None:
    stream = Stream(client, LONG)
    stream.until("progress")
    for place in range(3):
        assert client.post("/api/try", {**SCENE, "removed": gone(place)}).status == 200
        assert client.explorer.long.num_jobs == 1
    assert client.post("/api/predict", SCENE).status == 200
    stream.leave()


def test_those_who_ask_take_turns(client: Client) -> None:
    """Whoever asked for much waits, once its turn is over, for those who asked for little."""
    blocking = Stream(client, LONG)
    blocking.until("progress")
    task = {**SCENE, "kind": "explain", "method": "smooth(ixg, samples=9)"}
    much = Stream(client, *({**task, "seed": seed} for seed in range(6)))
    much.until("queued", 5)
    little = Stream(client, {**task, "seed": 99})
    assert little.next()["before"] == 7
    blocking.leave()
    little.until("result")
    assert client.explorer.long.num_jobs >= 4
    much.leave()
    little.leave()


def test_what_is_known_is_told_at_once(client: Client) -> None:
    client.task("explain", method="attcat", seed=7)
    stream = Stream(client, LONG, {**SCENE, "kind": "explain", "method": "attcat", "seed": 7})
    assert stream.until("result", 1)["event"] == "result"
    stream.leave()


def test_places_in_the_queue_are_told(client: Client) -> None:
    first = Stream(client, LONG)
    first.until("progress")
    second = Stream(client, {**SCENE, "kind": "explain", "method": "cat", "seed": 11})
    assert second.next() == {"task": 0, "event": "queued", "before": 1}
    first.leave()
    assert second.until("progress")["done"] >= 0
    second.until("result")
    assert second.next() == {"event": "end"}


@pytest.mark.parametrize(
    "spec",
    [
        "smooth(ixg, samples=1000000000)",
        "smooth(smooth(smooth(ixg, samples=1000), samples=1000), samples=1000)",
        "rise(masks=1000000)",
        "rise(cells=1000000)",
        "xrai(side=1000000)",
        "blur_ig(max_sigma=1e9)",
        "tis(iterations=1000000000)",
        "refine(ixg, masks=100000000)",
        "iba_star(steps=10000, samples=10000)",
        "consensus(rise, rise(keep=0.2), rise(keep=0.3), rise(keep=0.4))",
        "var(saliency, classes='top:999999')",
        "plus(rise, via=subnetwork)",
        "integrated_gradients(steps=100000)",
    ],
)
def test_what_would_never_end_is_refused_at_once(client: Client, spec: str) -> None:
    (answer,) = client.tasks({**SCENE, "kind": "explain", "method": spec})
    assert answer["event"] == "error"
    assert "command line" in answer["message"]
    assert len(answer["message"]) < 300


def test_every_default_is_allowed(client: Client) -> None:
    from vitreous.web.completion import check_allowed

    for info in (method for method in vt.list_methods() if method.models != "ReLU"):
        bases = ", ".join(["ixg", "generic"][: info.num_bases])
        check_allowed(vt.get_method(f"{info.name}({bases})" if bases else info.name), world())
    for step in ("quick", "careful", "best"):
        check_allowed(vt.get_method(vt.recommended_method(step, world())), world())


def test_memory_returns(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures and maps leave when there are more than there is room for."""
    monkeypatch.setattr(client.explorer.session.photos, "most_bytes", 3 * 3 * 200 * 200)
    monkeypatch.setattr(client.explorer.session.maps, "most", 3)
    names, references = [], []
    for shade in range(8):
        names.append(client.upload(Image.new("RGB", (200, 200), (shade, 0, 0))))
        references.append(weakref.ref(client.explorer.session.photos.get(names[-1])))
        question = {"model": "world", "picture": names[-1], "kind": "explain", "method": "random"}
        assert client.tasks(question)[0]["event"] == "result"
        client.fine("/api/predict", {"model": "world", "picture": names[-1]})
    until(lambda: client.explorer.long.num_jobs == 0 and client.explorer.short.num_jobs == 0)
    gc.collect()
    assert [entry() is not None for entry in references] == [False] * 5 + [True] * 3
    assert len(client.explorer.session.maps) == 3
    assert refused(client, "POST", "/api/predict", {"model": "world", "picture": names[0]}) == 404


def test_nothing_runs_after_it_has_stopped() -> None:
    """Also not what was running: the stream is told, the threads end."""
    before = set(threading.enumerate())
    with served() as client:
        stream = Stream(client, LONG)
        stream.until("progress")
        client.server.stop()
        assert stream.until("error")["message"] == "the explorer is ending"
        stream.leave()
    assert set(threading.enumerate()) <= before


def test_an_error_inside_is_one_line_and_the_next_question_is_answered(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitreous.web import handlers

    def broken(*arguments: Any, **more: Any) -> Any:
        raise ZeroDivisionError("secret /home/someone")

    monkeypatch.setattr(handlers, "_top", broken)
    answer = client.post("/api/predict", SCENE)
    assert (answer.status, answer.json) == (500, {"error": "this went wrong inside: ZeroDivisionError"})
    monkeypatch.setattr(vt, "compare", broken, raising=False)
    (failed,) = client.tasks({**SCENE, "kind": "explain", "method": "fullgrad", "seed": 3})
    assert failed["message"] == "this went wrong inside: ZeroDivisionError"
    monkeypatch.undo()
    assert client.post("/api/predict", SCENE).status == 200
