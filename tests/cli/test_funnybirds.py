"""``vitreous funnybirds``: a table, JSON or a file; what is wrong in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vitreous as vt
from commands import run


def test_a_table_json_and_a_file(tmp_path: Path) -> None:
    out = tmp_path / "funnybirds.json"
    done = run("funnybirds", "world", "--method", "generic,rollout", "--scenes", "2", "--oracle", "--out", out)
    assert done.code == 0, done.err
    head, *rows = done.out.splitlines()
    columns = ["method", "Acc.", "B.I.", "CSDC", "PC", "DC", "D", "SD", "TS", "Com.", "Cor.", "Con.", "mean"]
    assert head.split()[:13] == columns
    assert [row.split()[0] for row in rows[:6]] == ["generic", "rollout", "random", "constant", "centre", "oracle"]
    assert "split-half t*" in done.out
    assert "75 states, dilation 3, batch 32" in done.out
    assert done.out.rstrip().endswith(f"saved in {out}")
    saved = vt.FunnyBirdsResult.load(out)
    assert str(saved) in done.out

    quiet = run("funnybirds", "--method", "rollout", "--no-controls", "--scenes", "1", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


def test_steps_and_shortcut() -> None:
    done = run(
        *("funnybirds", "world-shortcut", "--method", "quick", "--scenes", "1", "--shortcut", "--no-controls"),
        *("--fixed", "0.2", "--json"),
    )
    outcome = json.loads(done.out)
    assert (outcome["schema"], outcome["fixed"]) == ("vitreous.funnybirds/1", 0.2)
    assert [row["name"] for row in outcome["methods"]] == ["quick"]
    assert outcome["plan"]["scenes"].endswith("shortcut=True)")


@pytest.mark.parametrize(
    ("words", "info"),
    [
        (["--scenes", "0"], "--scenes 0 must be from 1 to 100000"),
        (["--folder", "nowhere"], "no such folder of birds: nowhere"),
        (["--folder", ".", "--shortcut"], "give --folder or --shortcut, not both"),
        (["--method", "nobody"], "unknown method 'nobody'"),
        (["--out", "funnybirds.txt"], "funnybirds.txt must end in .json or .csv"),
        (["world", "--model", "world"], "the model is named twice"),
        (["--fixed", "2", "--scenes", "1"], "thresholds and fixed are shares of a map's total"),
        (["--dilation", "4", "--scenes", "1"], "dilation=4 is not an odd number of pixels"),
    ],
)
def test_errors_are_one_line(words: list[str], info: str) -> None:
    done = run("funnybirds", *words)
    assert done.code == 2
    assert info in done.err
    assert len(done.err.strip().splitlines()) == 1
