"""Making a run again: by the command that its report prints, and from the protocol that lies beside it."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from commands import run as command
from tiny_benchmark import QUICK, tiny, two_sets
from vitreous.benchmark.protocol import Published, read, shipped
from vitreous.benchmark.store import Store
from vitreous.errors import VitreousError

pytestmark = pytest.mark.usefixtures("one_thread")

ODD = """
[[models]]
label = "my world"
name = "world"
[data]
source = "world"
label = "some [scenes]"
split = "test"
images = 2
[evaluation]
metrics = ["deletion(steps=2)", "gini"]
images_per_unit = 2
reference = "a, \\"b\\" [c]"
[methods]
"a, \\"b\\" [c]" = "rollout"
"it's $(true); `x`" = "skipplus(ixg)"
"+plus" = "saliency"
"-minus" = "raw_attention"
"""


def again_commands(run: Path) -> list[list[str]]:
    assert command("bench", "report", run, "-q").code == 0
    page = (run / "report" / "report.html").read_text()
    displayed = re.search(r'id="again".*?<pre>(.*?)</pre>', page, re.S)
    assert displayed is not None
    lines = [shlex.split(line) for line in html.unescape(displayed[1]).splitlines()]
    assert all(line.pop(0) == "vitreous" for line in lines)
    return lines


@pytest.mark.parametrize(
    ("protocol", "steps", "is_named"),
    [
        (
            "quick",
            [
                ["--metric", "gini", "--method", "+rollout"],
                ["--method=-saliency", "--method", "+ixg", "--seed", "+3"],
            ],
            True,
        ),
        ("quick", [["--metric", "gini", "--method", "rollout"], ["--method", "+generic"]], False),  # reference is gone
        (
            "quick",
            [["--method", "rollout", "--metric", "+gini", "--metric=-insdel(steps=8),token_deletion_aopc"]],
            True,
        ),
        ("odd", [["--method", "+ixg", "--metric=-gini"], ["--seed", "1,2", '--method=-a, "b" [c]']], False),
    ],
    ids=["extended", "replaced", "brackets", "odd names"],
)
def test_the_command_on_the_page_makes_the_same_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, steps: list[list[str]], is_named: bool
) -> None:
    begun = tmp_path / "begun here"
    begun.mkdir()
    monkeypatch.chdir(begun)
    if protocol == "odd":
        Path("odd.toml").write_text(f'schema = "vitreous.protocol/1"\ntitle = "Odd"\n{ODD}')
        protocol = "odd.toml"
    for step in steps:
        done = command("bench", "run", protocol, "--out", "run", *QUICK, "--images", 2, *step)
        assert done.code == 0, done.err
    first, second = again_commands(Path("run"))
    assert (first[2] == protocol) == is_named
    plans, before = len(Store("run").plans()), contents(begun / "run")

    same = command(*first, "--workers", 1, "--device", "cpu")  # in the same folder it changes nothing
    assert same.code == 0, same.err
    assert "dropped" not in same.out
    assert len(Store("run").plans()) == plans

    elsewhere = tmp_path / "empty"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert command(*first, "--workers", 1, "--device", "cpu").code == 0
    assert command(*second).code == 0
    words, numbers = contents(elsewhere / "run")
    assert words == before[0]
    assert numbers == pytest.approx(before[1], abs=1e-3), "methods that run together round, and rank, otherwise"


def contents(run: Path) -> tuple[dict[str, Any], list[float]]:
    """What a report says: its scores and tables without the numbers, its protocol; and the numbers."""
    number = re.compile(r"(?<![\w.])-?[0-9]+\.[0-9]+(?:e[-+]?[0-9]+)?(?!\w)")
    texts = {name: (run / "report" / name).read_text() for name in ("scores.csv", "table.csv", "protocol.json")}
    numbers = [float(item) for text in texts.values() for item in number.findall(text)]
    return {name: number.sub("#", text) for name, text in texts.items()}, numbers


def test_every_protocol_is_read_from_its_record(tmp_path: Path) -> None:
    every = {name: read(name) for name in shipped()}
    every["two sets"] = two_sets()
    printed = (Published("gini", "world", "gone", data="one", value=0.5, printed=50.0, error=0.1),)
    every["published"] = dataclasses.replace(two_sets(), published=printed)
    for wanted in every.values():
        path = tmp_path / "protocol.json"
        path.write_text(json.dumps(wanted.to_json()))
        assert read(path) == wanted
        assert list(read(path).methods) == list(wanted.methods)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("[1, 2", "is no JSON"),
        ("[]", "is no protocol of the schema"),
        ('{"schema": "vitreous.run/1"}', "is no protocol of the schema"),
        ({"methods": None}, "methods is missing"),
        ({"methods": []}, "must be a table"),
        ({"models": []}, "models = []: is empty"),
        ({"models": [{"label": 3, "name": "world"}]}, "models[0].label = 3: must be text"),
        ({"data": {"source": "wurld"}}, "data.source = 'wurld'"),
        ({"evaluation": {"metrics": []}}, "evaluation.metrics"),
        ({"evaluation": {"metrics": ["gini"], "seeds": ["a"]}}, "evaluation.seeds[0] = 'a': must be a whole number"),
        ({"title": 5}, "title = 5: must be text"),
        ({"layout": {"columns": ["colours"]}}, "layout.columns"),
        ({"nonsense": 1}, "nonsense = 1: unknown key"),
    ],
)
def test_records_that_are_wrong_are_one_line(tmp_path: Path, change: Any, text: str) -> None:
    path = tmp_path / "protocol.json"
    path.write_text(change if isinstance(change, str) else json.dumps({**tiny().to_json(), **change}))
    with pytest.raises(VitreousError) as outcome:
        read(path)
    assert text in str(outcome.value)
    assert "\n" not in str(outcome.value)
