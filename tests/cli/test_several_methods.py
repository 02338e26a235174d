"""Several methods and targets on one command line, one vocabulary, and nothing that is silently ignored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vitreous as vt
from commands import MODEL, NAME, photographs, run, tree

FAST = ("--metric", "deletion(steps=4)", "--no-controls")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return photographs(tmp_path)


def places(out: str) -> set[str]:
    return {str(path.parent.relative_to(out)) for path in Path(out).glob("*/*/*/manifest.json")}


# -- several -------------------------------------------------------------------------------------------


def test_every_picture_with_every_method_and_target(here: Path) -> None:
    asked = ("--method", "ixg", "--method", "plus(ixg, start=1),generic", "--target", "tabby", "--target", 3)
    done = run("explain", "a.png", "b.png", *MODEL, *asked, "--out", "out")
    assert (done.code, done.err) == (0, "")
    names = {"ixg", "plus-ixg-start=1", "generic"}
    result = {tuple(place.split("/")[:2]) for place in places("out")}
    assert result == {(picture, name) for picture in "ab" for name in names}
    assert len(places("out")) == 12
    assert {vt.Explanation.load(Path("out") / position).target for position in places("out")} == {281, 3}
    assert all(name in done.out for name in ("ixg", "plus(ixg, start=1)", "generic", "tabby"))


def test_the_same_question_twice_is_one_result(here: Path) -> None:
    asked = ("--method", "ixg,ixg", "--method", "IXG", "--target", "tabby", "--target", 281)
    assert run("explain", "a.png", *MODEL, *asked, "--out", "out").code == 0
    assert len(places("out")) == 1
    outcome = json.loads(run("explain", "a.png", *MODEL, *asked, "--json").out)
    assert len(outcome["explanations"]) == 1


def test_the_prediction_and_its_name_are_one_result(here: Path) -> None:
    outcome = json.loads(run("explain", "a.png", *MODEL, "--method", "ixg", "--json").out)["explanations"][0]
    done = run("explain", "a.png", *MODEL, "--method", "ixg", "--target", "pred", "--target", outcome["target"])
    assert (done.code, len(places("explanations"))) == (0, 1)


def test_each_combination_is_resumed_alone(here: Path) -> None:
    settings = ("explain", "a.png", "b.png", *MODEL, "--out", "out")
    assert run(*settings[:2], *MODEL, "--out", "out", "--method", "ixg", "--target", 3).code == 0
    more = ("--method", "ixg", "--method", "generic", "--target", 3, "--target", 4)
    before = tree(here)
    refused = run(*settings, *more)
    assert (refused.code, "out/a/ixg" in refused.err) == (2, True)
    assert tree(here) == before
    resumed = run(*settings, *more, "--resume")
    assert resumed.code == 0
    assert "1 left out" in resumed.out
    assert len(places("out")) == 8
    assert "8 left out" in run(*settings, *more, "--resume").out
    assert run(*settings, *more, "--overwrite").code == 0
    assert len(places("out")) == 8


def test_a_bad_picture_is_named_once(here: Path) -> None:
    done = run("explain", "a.png", "text.png", *MODEL, "--method", "ixg,generic", "--target", 1, "--target", 2)
    assert done.code == 1
    assert done.err == "vitreous: warning: skipped text.png: is not an image that can be read\n"
    assert len(places("explanations")) == 4


def test_check_ups_say_what_they_are_about(here: Path) -> None:
    done = run("explain", "a.png", *MODEL, "--method", "ixg,generic", "--target", "tabby", "--check")
    assert done.code == 0
    for method in ("ixg", "generic"):
        assert any(line.startswith(f"a.png, {method}, tabby: ") for line in done.out.splitlines())


def test_methods_of_compare_are_repeated(here: Path) -> None:
    asked = ("--method", "ixg", "--method", "generic, plus(ixg, start=1)")
    outcome = json.loads(run("compare", "a.png", *MODEL, *asked, "--json", "--tile", 48).out)
    assert [row["method"] for row in outcome["explanations"]] == ["ixg", "generic", "plus(ixg, start=1)"]


# -- vocabulary ----------------------------------------------------------------------------------------


def test_the_same_words_in_every_command() -> None:
    for command, words in {
        "explain": "--model --method --target --class-names --batch-size",
        "compare": "--model --method --target --class-names",
        "evaluate": "--model --method --target --metric --class-names --labels --batch-size",
        "diagnose": "--model --class-names",
        "stats": "--model --batch-size",
    }.items():
        displayed = run(command, "--help").out.split()
        assert not [word for word in words.split() if word not in displayed], command


def test_a_model_stands_first_or_is_an_option(here: Path) -> None:
    others = ("a.png", *MODEL[2:], "--method", "ixg", *FAST, "--json")
    first, option = run("evaluate", NAME, *others), run("evaluate", *others, "--model", NAME)
    scores = [json.loads(item.out)["methods"] for item in (first, option)]
    assert scores[0] == scores[1]
    examined = run("diagnose", "-m", NAME, "--no-pretrained", "--img-size", 32, "--json")
    assert json.loads(examined.out)["model"] == NAME
    assert run("stats", "more", *MODEL, "-q").code == 0
    for arguments, info in (
        (("evaluate", "a.png"), "there are no images to evaluate with, only the model a.png"),
        (("diagnose",), "there is no model: give --model NAME"),
        (("diagnose", NAME, "--model", NAME), "there are two models"),
        (("stats", "--noise", 4), "there is no model"),
    ):
        outcome = run(*arguments)
        assert (outcome.code, info in outcome.err) == (2, True), outcome.err


# -- what a method does not follow ---------------------------------------------------------------------


def test_a_value_that_is_not_followed_is_said(here: Path) -> None:
    done = run("explain", "a.png", *MODEL, "--method", "logprob(ixg)", "--output", "prob", "--target", 1, "--target", 2)
    assert done.code == 0
    assert done.err == (
        "vitreous: warning: output='prob' is not what is explained: logprob(ixg) explains logprob, "
        "whatever is asked for\n"
    )
    assert run("explain", "a.png", *MODEL, "--method", "logprob(ixg)", "--json").err == ""
