"""Spellings that someone types into the explorer: what they cost, where they are wrong, how they may go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vitreous as vt
from vitreous.web.completion import complete, describe_spec
from web_server import SCENE, Client, served, world

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

NAMES = [info.name for info in vt.list_methods()]
SIGNS = ["(", ")", ",", "=", "@", '"', "'", " ", "é", "▸"]
PIECES = [*NAMES[:12], "smooth", "plus", "var", "consensus", "samples", "3", "1e9", *SIGNS]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served() as answer:
        yield answer


def look(client: Client, spec: str, cursor: int | None = None) -> dict[str, Any]:
    asked = {"model": "world", "spec": spec} | ({} if cursor is None else {"cursor": cursor})
    answer: dict[str, Any] = client.fine("/api/method", asked)
    return answer


@pytest.mark.parametrize(
    "spec",
    ["generic", " smooth( ixg ,samples = 4 ) ", "Grad-CAM++", "var@sharp(plus(decompx))", "consensus(tis,ixg)"],
)
def test_what_it_means_and_costs(client: Client, spec: str) -> None:
    method, answer = vt.get_method(spec), look(client, spec)
    assert answer["ok"]
    assert answer["spec"] == method.spec
    assert (answer["forwards"], answer["backwards"]) == (method.num_forwards(world()), method.cost[1])
    assert answer["class_specific"] == method.class_specific


def test_steps_of_effort_are_spellings_here(client: Client) -> None:
    assert look(client, "careful")["spec"] == vt.recommended_method("careful", world())


def test_about_how_long_it_takes_is_learnt(client: Client) -> None:
    assert look(client, "smooth(ixg)")["seconds"] is None
    client.task("explain", method="ixg")
    few, many = (look(client, f"smooth(ixg, samples={entry})")["seconds"] for entry in (10, 100))
    assert many == pytest.approx(10 * few)


@pytest.mark.parametrize(
    ("spec", "at"),
    [
        ("nonsense", 0),
        ("smooth(nonsense)", 7),
        ("smooth(ixg, sampels=3)", 12),
        ("smooth(ixg, samples=x)", 20),
        ("smooth(ixg, samples=", 20),
        ("smooth(ixg", 10),
        ("smooth(ixg))", 11),
        ("smooth(ixg; samples=3)", 10),
        ("var@sharpest(ixg)", 4),
        ("  oops", 2),
        ("consensus(ixg, 3)", 15),
        ("", 0),
        ("smooth(ixg, samples=0)", 0),
    ],
)
def test_where_it_is_wrong(client: Client, spec: str, at: int) -> None:
    answer = look(client, spec)
    assert not answer["ok"]
    assert answer["error"]["at"] == at
    assert answer["error"]["message"]
    assert "▸" not in answer["error"]["message"]


def test_what_is_wrong_without_a_place(client: Client) -> None:
    answer = look(client, "smooth(ixg, samples=100000)")
    assert not answer["ok"]
    assert answer["error"]["at"] is None
    assert "command line" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("smo", {"smooth("}),
        ("rollo", {"rollout", "lrp_rollout", "grad_rollout", "attin_rollout"}),
        ("quic", {"quick"}),
        ("smooth(generi", {"generic"}),
        ("smooth(generic, sam", {"samples="}),
        ("smooth(generic, samples=3, absolute=", {"true", "false"}),
        ("smooth(generic, samples=", {"10"}),
        ("var@", {"sharp", "paper", "released"}),
        ("smooth(var@sh", {"sharp"}),
        ("consensus(ixg, generi", {"generic"}),
        ("consensus(ixg, smooth(generi", {"generic"}),
        ("generic(st", {"start="}),
        ("nonsense(ix", set()),
        ("generic)", set()),
        ("generic(start=2) ", set()),
        ('coiba(stats="wor', set()),
    ],
)
def test_how_it_may_go_on(client: Client, text: str, expected: set[str]) -> None:
    answer = look(client, text)["completions"]
    assert {entry["text"] for entry in answer} == expected


def test_a_parameter_that_is_given_is_not_offered_again(client: Client) -> None:
    offered = {entry["text"] for entry in look(client, "smooth(ixg, samples=3, ")["completions"]}
    assert offered == {"sigma=", "absolute=", "kind="}


def test_in_the_middle_the_whole_word_is_replaced(client: Client) -> None:
    spec = "smooth(genxric, samples=3)"
    answer = look(client, spec, len("smooth(gen"))["completions"]
    (generic,) = (entry for entry in answer if entry["text"] == "generic")
    done = spec[: generic["start"]] + generic["text"] + spec[generic["end"] :]
    assert done == "smooth(generic, samples=3)"


def test_everything_that_is_offered_can_be_meant() -> None:
    """Every name at the start, and every parameter with its default, is understood."""
    for offer in complete("", 0):
        text = offer["text"]
        spec = f"{text}ixg, generic)" if text in ("consensus(", "witness(") else f"{text}ixg)" if "(" in text else text
        assert describe_spec(spec, world())["ok"], spec
    for name in ("smooth", "generic", "rise", "coiba"):
        base = "ixg, " if name == "smooth" else ""
        for offer in complete(f"{name}({base}", len(f"{name}({base}")):
            start = f"{name}({base}{offer['text']}"
            (default, *_) = complete(start, len(start)) or [{"text": ""}]
            if default["text"] not in ("", "none"):
                assert describe_spec(f"{start}{default['text']})", world())["ok"], start


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join), st.data())
def test_whatever_is_typed_is_answered(text: str, data: st.DataObject) -> None:
    answer = describe_spec(text, world())
    assert answer["ok"] or (answer["error"]["message"] and "\n" not in answer["error"]["message"])
    at = None if answer["ok"] else answer["error"]["at"]
    assert at is None or 0 <= at <= len(text)
    for offer in complete(text, data.draw(st.integers(0, len(text)))):
        assert 0 <= offer["start"] <= offer["end"] <= len(text)


def test_a_spelling_that_is_said_to_be_fine_is_fine(client: Client) -> None:
    for spec in ("edges", "logprob(cat)", "witness(decompx, grad_rollout)"):
        assert look(client, spec)["ok"]
        assert client.task("explain", method=spec)["method"] == look(client, spec)["spec"]
    assert not look(client, "attention_flow(x)")["ok"]
    (answer,) = client.tasks({**SCENE, "kind": "explain", "method": "attention_flow(x)"})
    assert answer["event"] == "error"
