"""The commands as a user types them: what they print and what they leave on the disk."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from commands import FILES, MODEL, WITH_LAYERS, photographs, result, run, tree
from vitreous import io as disk
from vitreous.cli.catalog import methods


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return photographs(tmp_path)


def folders(out: Path) -> set[str]:
    return {path.name for path in out.iterdir()}


# -- explain -------------------------------------------------------------------------------------------


def test_five_files_per_picture(here: Path) -> None:
    done = run("explain", "a.png", "b.png", *MODEL, "--method", "ixg", "--target", "tabby", "--out", "out")
    assert (done.code, done.err) == (0, "")
    assert folders(here / "out") == {"a", "b"}
    for name in ("a", "b"):
        place = here / "out" / name / "ixg" / "tabby"
        assert folders(place) == FILES
        actual = vt.Explanation.load(place)
        assert (actual.method, actual.target, actual.label, actual.name) == ("ixg", 281, "tabby", f"{name}.png")
        assert name in done.out
    assert "tabby" in done.out


def test_the_map_is_the_librarys(here: Path) -> None:
    run("explain", "a.png", *MODEL, "--method", "gradcam(layer=3)", "--target", 7, "--contrast", 1, "--contrast", "9",
        "--output", "logprob", "--dtype", "float64", "--out", "out")  # fmt: skip
    torch.manual_seed(0)
    model = vt.load(MODEL[1], pretrained=False, img_size=32, dtype="float64")
    expected = vt.explain(model, "a.png", "gradcam(layer=3)", 7, contrast=[1, 9], output="logprob")
    actual = vt.Explanation.load(result(here / "out", "a"))
    assert (actual.target, actual.request.contrast, actual.output) == (7, (1, 9), "logprob")
    torch.testing.assert_close(actual.map, expected.map)


def test_default_folder_and_original(here: Path) -> None:
    assert run("explain", "a.png", *MODEL, "--original").code == 0
    place = result(here / "explanations", "a")
    assert folders(place) == WITH_LAYERS | {"original.png"}
    assert Image.open(place / "original.png").size == (60, 40)


def test_pictures_of_one_name_get_a_folder_each(here: Path) -> None:
    assert run("explain", "a.png", "a.bmp", "more", "b.png", *MODEL, "--out", "out").code == 0
    names = folders(here / "out")
    sources = {name: vt.Explanation.load(result(here / "out", name)).source for name in names}
    assert sources == {"a": "a.png", "a-2": "a.bmp", "b": "more/b.png", "c": "more/c.png", "b-2": "b.png"}


def test_json_is_all_there_is(here: Path) -> None:
    before = tree(here)
    done = run("explain", "a.png", "more/c.png", *MODEL, "--method", "rollout", "--json")
    assert (done.code, done.err) == (0, "")
    outcome = json.loads(done.out)
    assert outcome.keys() == {"schema", "explanations"}
    assert outcome["schema"] == "vitreous.explain/1"
    torch.manual_seed(0)
    model = vt.load(MODEL[1], pretrained=False, img_size=32)
    for row, path in zip(outcome["explanations"], ("a.png", "more/c.png"), strict=True):
        expected = vt.explain(model, path, "rollout")
        assert row.keys() == expected.manifest().keys() | {"folder", "map"}
        assert (row["folder"], row["source"], row["grid"]) == (None, path, [2, 2])
        np.testing.assert_allclose(row["map"], expected.map, atol=1e-6)
    assert tree(here) == before  # nothing is written without --out
    written = json.loads(run("explain", "a.png", *MODEL, "--json", "--out", "out").out)
    place = result("out", "a")
    assert written["explanations"][0]["folder"] == str(place)
    assert folders(place) == WITH_LAYERS


def test_large_maps_stay_out_of_json(here: Path) -> None:
    size = ("--img-size", "96")
    outcome = json.loads(run("explain", "a.png", *MODEL, *size, "--method", "edges", "--json").out)["explanations"][0]
    assert (outcome["grid"], outcome["map"]) == ([96, 96], None)


def test_quiet(here: Path) -> None:
    assert run("explain", "a.png", *MODEL, "--out", "out", "--quiet") == (0, "", "")
    assert run("compare", "a.png", *MODEL, "--method", "rollout", "-q") == (0, "", "")
    assert folders(here / "out") == {"a"}


def test_seeds(here: Path) -> None:
    maps = []
    for number, seed in enumerate((1, 1, 2)):
        run("explain", "a.png", *MODEL, "--method", "random", "--seed", seed, "--out", f"out{number}")
        maps.append(vt.Explanation.load(result(here / f"out{number}", "a")))
    assert [map_.seed for map_ in maps] == [1, 1, 2]
    assert maps[0].map.equal(maps[1].map)
    assert not maps[0].map.equal(maps[2].map)


def test_checkpoint_labels_and_classes(here: Path) -> None:
    model = vt.load(MODEL[1], pretrained=False, img_size=32, num_classes=3).module
    torch.save(model.state_dict(), "weights.pth")
    Path("names.txt").write_text("cat\ndog [/b]\n[red]bird\n")
    Path("names.json").write_text('["cat", "dog", "bird"]')
    arguments = (*MODEL, "--checkpoint", "weights.pth", "--num-classes", 3)
    assert (
        run("explain", "a.png", *arguments, "--class-names", "names.json", "--target", "dog", "--out", "json").code == 0
    )
    assert vt.Explanation.load(result("json", "a")).label == "dog"
    for target in ("dog [/b]", "[red]bird"):  # words in brackets are words, not colours
        done = run(
            "explain",
            "a.png",
            *arguments,
            "--class-names",
            "names.txt",
            "--target",
            target,
            "--out",
            "o",
            "--overwrite",
        )
        assert done.code == 0
        assert target in done.out


def test_odd_names_are_printed_as_they_are(here: Path) -> None:
    names = ("[bold]x.png", "y:cat:.png")
    for name in names:
        (here / "a.png").rename(here / name)
        done = run("explain", name, *MODEL, "--out", "out")
        assert done.code == 0
        assert name in done.out
        (here / name).rename(here / "a.png")
        assert run("explain", name, *MODEL).err == f"vitreous: error: no such file: {name}\n"


def test_long_paths_are_printed_in_one_piece(here: Path) -> None:
    """Standard output is no terminal here; a path cut at column 80 is of no use to whoever reads it."""
    out = Path("a folder with quite a long name", "and another one inside of it", "x" * 60)
    assert str(out / "a") in run("explain", "a.png", *MODEL, "--out", out).out
    assert str(out / "p.png") in run("compare", "a.png", *MODEL, "--method", "ixg", "--out", out / "p.png").out


# -- doing it again ------------------------------------------------------------------------------------


def test_existing_results(here: Path) -> None:
    run("explain", "b.png", *MODEL, "--out", "out", "--method", "rollout")
    before = tree(here)
    refused = run("explain", "a.png", "b.png", *MODEL, "--out", "out", "--method", "rollout")
    assert refused.code == 2
    assert str(Path("out/b/rollout")) in refused.err
    assert tree(here) == before
    resumed = run("explain", "a.png", "b.png", *MODEL, "--out", "out", "--method", "rollout", "--resume")
    assert resumed.code == 0
    assert "1 left out" in resumed.out
    other = run("explain", "a.png", "b.png", *MODEL, "--out", "out", "--method", "random", "--resume")
    assert other.code == 0  # another question
    assert "left out" not in other.out
    for name in ("a", "b"):
        assert folders(here / "out" / name) == {"random", "rollout"}
    again = run("explain", "a.png", "b.png", *MODEL, "--out", "out", "--method", "random", "--overwrite")
    assert again.code == 0
    for name in ("a", "b"):
        assert len(list((here / "out" / name).glob("*/*/manifest.json"))) == 2


def test_resuming_what_is_finished(here: Path) -> None:
    run("explain", "a.png", *MODEL, "--out", "out")
    before = tree(here)
    done = run("explain", "a.png", *MODEL, "--out", "out", "--resume")
    assert (done.code, done.err) == (0, "")
    assert "1 left out" in done.out
    assert tree(here) == before
    outcome = run("explain", "a.png", *MODEL, "--out", "out", "--resume", "--json")
    assert json.loads(outcome.out) == {"schema": "vitreous.explain/1", "explanations": []}


@pytest.mark.parametrize("at", ["map.npy", "overlay.png", "extras.npz", "manifest.json"])
def test_interrupted_and_resumed(here: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Ctrl-C while the second picture is being written."""
    written: list[str] = []
    write = disk.Draft.write

    def interrupted(self: disk.Draft, name: str, content: Any) -> None:
        written.append(name)
        if written.count(at) == 2 and name == at:
            raise KeyboardInterrupt
        write(self, name, content)

    arguments = ("explain", "a.png", "b.png", "more/c.png", *MODEL, "--out", "out", "--batch-size", 1)
    with monkeypatch.context() as patched:
        patched.setattr(disk.Draft, "write", interrupted)
        stopped = run(*arguments)
    assert stopped.code == 130
    assert "Traceback" not in stopped.err
    assert stopped.err.strip().splitlines()[-1].startswith("vitreous: stopped:")
    assert folders(here / "out") == {"a"}
    assert folders(result(here / "out", "a")) == WITH_LAYERS
    before = tree(here / "out" / "a")
    assert run(*arguments, "--resume").code == 0
    assert folders(here / "out") == {"a", "b", "c"}
    assert tree(here / "out" / "a") == before


# -- compare -------------------------------------------------------------------------------------------


def test_compare(here: Path) -> None:
    methods = "rollout, skipplus(ixg, start=1),ixg"
    done = run("compare", "a.png", *MODEL, "--method", methods, "--target", "tabby", "--target", 3, "--tile", 60)
    assert (done.code, done.err) == (0, "")
    assert "6 maps" in done.out
    torch.manual_seed(0)
    model = vt.load(MODEL[1], pretrained=False, img_size=32)
    expected = vt.compare(model, "a.png", ["rollout", "skipplus(ixg, start=1)", "ixg"], [281, 3])
    assert Image.open("a-compare.png").size == expected.panel(tile=60).size
    before = tree(here)
    refused = run("compare", "a.png", *MODEL, "--method", "rollout")
    assert (refused.code, "a-compare.png" in refused.err) == (2, True)
    assert tree(here) == before
    outcome = run("compare", "a.png", *MODEL, "--method", "rollout,ixg", "--json", "--out", "p.png", "--tile", 60)
    content = json.loads(outcome.out)
    assert content.keys() == {"schema", "panel", "explanations"}
    assert (content["schema"], content["panel"]) == ("vitreous.compare/1", "p.png")
    assert [row["method"] for row in content["explanations"]] == ["rollout", "ixg"]
    assert run("compare", "a.png", *MODEL, "--method", "ixg", "--out", "p.png", "--overwrite").code == 0


# -- lists ---------------------------------------------------------------------------------------------


def test_version_and_help(here: Path) -> None:
    assert run("--version") == (0, f"vitreous {vt.__version__}\n", "")
    for flag in ("--help", "-h"):
        displayed = run(flag)
        assert (displayed.code, displayed.err) == (0, "")
        assert all(
            word in displayed.out for word in ("explain", "compare", "methods", "models", "cite", "demo", "world")
        )
    for command, options in {
        "explain": "--model --method --target --contrast --output --out --checkpoint --seed --resume --overwrite "
        "--json",
        "compare": "--method --target --tile --out --quiet",
        "methods": "--json",
        "models": "--json",
        "cite": "",
        "demo": "--out --quiet",
        "world": "render show",
    }.items():
        displayed = run(command, "--help")
        assert displayed.code == 0
        assert all(option in displayed.out for option in options.split())


def test_no_command_shows_the_help(here: Path) -> None:
    displayed = run()
    assert "Usage: vitreous" in displayed.out + displayed.err
    assert displayed.code in (0, 2)


def test_methods(here: Path) -> None:
    listed = run("methods")
    assert (listed.code, listed.err) == (0, "")
    first = {line.split()[0] for line in listed.out.splitlines() if line.strip()}
    assert {info.name for info in vt.list_methods()} <= first
    outcome = json.loads(run("methods", "--json").out)
    assert [row["name"] for row in outcome] == [info.name for info in vt.list_methods()]
    keys = {
        "name",
        "aliases",
        "family",
        "summary",
        "class_specific",
        "cost",
        "models",
        "papers",
        "builds_on",
        "presets",
        "parameters",
    }
    assert all(row.keys() == keys for row in outcome)
    models = {row["name"]: row["models"] for row in outcome}
    assert [models[name] for name in ("ixg", "tis", "plus", "refine", "deeplift")] == [
        "all", "ViT", "transformers", "as its base", "ReLU",
    ]  # fmt: skip
    (row,) = (line for line in listed.out.splitlines() if line.split()[:1] == ["atman"])
    assert "ViT" in row
    assert [row["name"] for row in json.loads(run("methods", "*cam", "--json").out)] == [
        info.name for info in vt.list_methods() if info.name.endswith("cam")
    ]


def test_one_method(here: Path) -> None:
    outcome = run("methods", "integrated_gradients").out
    for part in ("integrated_gradients", "Sundararajan", "steps", "50 F + 50 B"):
        assert part in outcome
    assert ["models", "ViT"] in [line.split() for line in run("methods", "atman").out.splitlines()]


def test_methods_fit_a_terminal_of_a_hundred_columns(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, costs and models stand in one piece; only papers and long costs may run over two lines."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name, value in {"COLUMNS": "100", "LINES": "50", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    with contextlib.redirect_stdout(Terminal()) as displayed:
        methods()
    lines = re.sub(r"\x1b\[[\d;]*m", "", displayed.getvalue()).splitlines()
    assert max(map(len, lines)) <= 100
    assert {info.name for info in vt.list_methods()} <= {line.split()[0] for line in lines if line.strip()}
    assert sum(" no CNN " in line for line in lines) == sum(info.models == "transformers" for info in vt.list_methods())
    assert len(lines) < 1.6 * len(vt.list_methods())


def test_models(here: Path) -> None:
    """Names stand in one piece at the start of a line, so that they can be searched and copied."""
    listed = run("models")
    assert (listed.code, listed.err) == (0, "")
    first = {line.split()[0] for line in listed.out.splitlines() if line.strip()}
    assert {info.name for info in vt.list_models()} <= first
    outcome = json.loads(run("models", "test_vit", "--json").out)
    assert [row["name"] for row in outcome] == [f"timm/test_vit{end}" for end in ("", "2", "3", "4")]
    assert all(row.keys() == {"name", "family", "size", "pretrained"} for row in outcome)


def test_cite(here: Path) -> None:
    cited = run("cite", "smooth(skipplus(decompx), samples=3)")
    assert (cited.code, cited.err) == (0, "")
    keys = ("smilkov2017smoothgrad", "mehri2024skipplus", "modarressi2023decompx")
    assert [cited.out.count(f"{{{key},") for key in keys] == [1, 1, 1]
    assert cited.out.count("@") == 3
    assert "modarressi" not in run("cite", "skipplus").out
    own = run("cite", "refine(witness(plus(ixg), generic))").out
    assert "% refine has no paper of its own; it builds on\n@inproceedings{ribeiro2016why," in own
    assert own.count("mehri2024skipplus") == 1  # PLUS is in it, and was proposed there
    assert "% witness has no paper of its own; it builds on\n@" in run("cite", "witness").out
    listed = " ".join(run("methods").out.split())
    assert "witness as base base + by no CNN builds on Mehri et al., CVPR Workshops 2024" in listed
    assert "builds on SkipPLUS: Skip the First" in " ".join(run("methods", "witness").out.split())
    (outcome,) = (row for row in json.loads(run("methods", "--json").out) if row["name"] == "witness")
    assert (outcome["papers"], outcome["builds_on"]) == ([], ["mehri2024skipplus"])
