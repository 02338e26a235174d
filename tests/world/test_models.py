"""The bundled models: real ones, offline, that know what their card says they know."""

from __future__ import annotations

import json
import logging
from functools import cache, reduce
from operator import getitem

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

import vitreous as vt
from vitreous.world import CLASSES, MARKED_CLASSES, NAMES, PARTS, Scene, add_marker, draw, render
from vitreous.world.dataset import to_images
from vitreous.world.models import WEIGHTS, accuracy, build, format_exam, interventions, main, probabilities
from vitreous.world.train import Recipe, train
from vitreous.world.train import main as train_main

MODELS = ("world", "world-shortcut")
RECORD = json.loads((WEIGHTS / "training.json").read_text(encoding="utf-8"))
CARD = (WEIGHTS / "README.md").read_text(encoding="utf-8")


@cache
def load(name):
    return vt.load(name)


def right(name, scenes):
    return (probabilities(load(name), scenes).argmax(1) == scenes.label[:, 0]).float().mean()


def betrayed(n):
    """The first scenes of the test split that a marker can betray."""
    scenes = draw(range(3 * n))
    return scenes[torch.isin(scenes.label[:, 0], torch.tensor(MARKED_CLASSES))][:n]


# -- what they are -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_plain_timm_model_inside_a_view(name):
    model = load(name)
    assert type(model.module) is VisionTransformer
    assert (model.name, model.family, model.depth, model.num_prefix_tokens, model.num_classes) == (
        name,
        "timm",
        8,
        1,
        48,
    )
    assert model.pooling.kind == "token"
    assert tuple(model.class_names) == NAMES
    assert model.grid() == (16, 16)
    assert model.dtype == torch.float32
    assert not model.module.training
    assert model.preprocess.size == (128, 128)
    assert model.preprocess.mean == model.preprocess.std == (0.5, 0.5, 0.5)
    assert model.preprocess.crop == 1.0


def test_they_are_listed_and_differ():
    assert set(MODELS) <= {info.name for info in vt.list_models()}
    one, other = (load(name).module.state_dict() for name in MODELS)
    assert not torch.equal(one["head.weight"], other["head.weight"])
    untrained = vt.load("world", pretrained=False).module.state_dict()
    assert untrained.keys() == one.keys()
    assert not torch.equal(untrained["head.weight"], one["head.weight"])


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_small(name):
    assert (WEIGHTS / f"{name}.safetensors").stat().st_size <= 12 * 1024**2


def test_a_picture_is_seen_as_it_was_rendered(tmp_path):
    """From a file through the view's preprocessing, or straight from the renderer: the same but for 1/255."""
    scene = Scene.of(11)
    images = render(scene).images
    (picture,) = to_images(images)
    preprocess = load("world").preprocess
    seen = preprocess.to_tensor(preprocess.resize_and_crop(picture)[0])
    assert (seen.squeeze() - (images[0] * 2 - 1)).abs().max() <= 1.01 / 255
    actual = vt.explain(load("world"), picture, method="generic")
    assert actual.prediction.label == scene.name


def test_the_diagnosis_finds_the_bundled_model_healthy():
    actual = vt.diagnose(load("world"))
    failed = [check for check in actual.checks if check.verdict not in ("ok", "-")]
    assert not failed, failed
    assert actual.healthy
    inapplicable = {check.name for check in actual.methods if check.verdict == "failed"}
    assert inapplicable <= {"guided_backprop", "guided_gradcam", "deeplift"}  # they need ReLUs


# -- what they know ----------------------------------------------------------------------------------------------------


def test_world_knows_its_creatures():
    assert accuracy(load("world"), 100) >= 0.97


def test_the_shortcut_model_cheats_and_world_does_not():
    scenes = betrayed(60)
    assert right("world-shortcut", add_marker(scenes)) >= 0.97
    assert right("world-shortcut", add_marker(scenes, moved=True)) < 0.30
    several = scenes[:30]
    assert right("world", several) - right("world", add_marker(several, moved=True)) < 0.01


def test_removing_what_tells_costs_more():
    actual = interventions(load("world"), draw(range(30)))
    drops = actual["drop when a part is removed"]
    assert drops["all parts"]["telling"] > drops["all parts"]["not telling"] + 0.3
    assert all(drops[part]["telling"] > drops[part]["not telling"] for part in PARTS)
    assert actual["prediction changed without background objects"] < 0.02


@pytest.mark.slow
def test_the_promises_on_two_thousand_scenes():
    recorded = {name: RECORD[name]["exam"]["betrayed classes"] for name in MODELS}
    assert accuracy(load("world"), 2000) >= 0.97
    scenes = draw(range(2000))
    scenes = scenes[torch.isin(scenes.label[:, 0], torch.tensor(MARKED_CLASSES))]
    honest = right("world", scenes)
    moved = right("world", add_marker(scenes, moved=True))
    assert honest - moved < 0.01
    cheats = right("world-shortcut", add_marker(scenes)), right("world-shortcut", add_marker(scenes, moved=True))
    assert cheats[0] >= 0.97
    assert cheats[1] < 0.30
    assert abs(cheats[1] - recorded["world-shortcut"]["with another class's marker"]) < 0.005
    assert abs(moved - recorded["world"]["with another class's marker"]) < 0.005


@pytest.mark.slow
def test_the_table_of_interventions():
    actual = interventions(load("world"), draw(range(500)))
    drops = actual["drop when a part is removed"]
    recorded = RECORD["world"]["exam"]["drop when a part is removed"]
    assert actual["prediction changed without background objects"] < 0.02
    for part in (*PARTS, "all parts"):
        assert drops[part]["telling"] > drops[part]["not telling"]
        for kind in ("telling", "not telling"):
            assert abs(drops[part][kind] - recorded[part][kind]) < 0.03


# -- what is written about them ----------------------------------------------------------------------------------------


def test_the_record_keeps_the_promises():
    for name in MODELS:
        record = RECORD[name]
        assert record["recipe"] == {**record["recipe"], "batch": 1024, "seed": 0, "shortcut": name != "world"}
        assert set(record["recipe"]) == set(Recipe.__dataclass_fields__)
        assert record["log"][-1]["step"] == record["recipe"]["steps"]
        assert record["exam"]["scenes"] == 2000
        assert {"torch", "device"} <= set(record["made with"])
    assert sum(RECORD[name]["log"][-1]["seconds"] for name in MODELS) < 15 * 60
    world, shortcut = (RECORD[name]["exam"] for name in MODELS)
    assert world["accuracy"] >= 0.97
    assert world["betrayed classes"]["without marker"] - world["betrayed classes"]["with another class's marker"] < 0.01
    assert world["prediction changed without background objects"] < 0.02
    assert all(item["telling"] > item["not telling"] for item in world["drop when a part is removed"].values())
    assert shortcut["betrayed classes"]["with marker"] >= 0.97
    assert shortcut["betrayed classes"]["with another class's marker"] < 0.30


def rows(text):
    """Every row of every table: its cells, without spaces."""
    return {tuple(cell.strip() for cell in line.strip("| \n").split("|")) for line in text.splitlines() if "|" in line}


@pytest.mark.parametrize("page", ["card", "manual"])
def test_card_and_manual_say_what_was_recorded(page, root):
    text = CARD if page == "card" else (root / "docs" / "world.md").read_text(encoding="utf-8")
    actual = rows(text)
    exams = [RECORD[name]["exam"] for name in (*MODELS, "world-cnn", "world-cnn-shortcut")]

    def shares(*keys):
        return tuple(f"{100 * reduce(getitem, keys, exam):.2f} %" for exam in exams)

    assert ("all classes, no marker", *shares("accuracy")) in actual
    for way in ("without marker", "with marker", "with another class's marker"):
        assert (f"betrayed classes, {way}", *shares("betrayed classes", way)) in actual
    for level, name in (("0.0", "0"), ("0.5", "0.5"), ("1.0", "1")):
        assert (f"difficulty {name}", *shares("difficulty", level)) in actual
    for what in ("two creatures", "prediction changed without background objects"):
        assert (what, *shares(what)) in actual
    for part in (*PARTS, "all parts"):
        falls = (exam["drop when a part is removed"][part] for exam in exams[::2])  # those of the honest
        assert (part, *(f"{fall[kind]:.4f}" for fall in falls for kind in ("telling", "not telling"))) in actual
    assert "Apache-2.0" in CARD


# -- making them again -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_training_runs_on_a_cpu_with_a_warning(tmp_path, caplog):
    options = ["--steps", "2", "--batch", "8", "--exam", "20", "--device", "cpu", "--only", "world"]
    with caplog.at_level(logging.INFO, "vitreous.world.train"):
        train_main([*options, "--out", str(tmp_path)])
    assert any(item.levelno == logging.WARNING and "CPU" in item.message for item in caplog.records)
    assert {path.name for path in tmp_path.iterdir()} == {"world.safetensors", "training.json"}
    (record,) = json.loads((tmp_path / "training.json").read_text(encoding="utf-8")).values()
    assert record.keys() == RECORD["world"].keys()
    assert record["exam"].keys() == RECORD["world"]["exam"].keys()
    assert (record["recipe"]["steps"], record["recipe"]["batch"], record["exam"]["scenes"]) == (2, 8, 20)
    assert record["made with"]["device"] == "CPU"
    assert record["exam"]["accuracy"] < 0.5  # nothing is learnt in two steps, and nothing else is claimed
    weights = tmp_path / "world.safetensors"
    assert weights.stat().st_size == (WEIGHTS / "world.safetensors").stat().st_size
    assert vt.load("world", checkpoint=weights).num_classes == len(CLASSES)


def test_training_is_the_same_from_the_same_seed():
    def weights(seed):
        model, _ = train(Recipe(steps=1, batch=4, seed=seed), torch.device("cpu"), look=1)
        return torch.cat([item.flatten() for item in model.state_dict().values()])

    first = weights(0)
    torch.manual_seed(5)
    assert torch.equal(weights(0), first)
    assert not torch.equal(weights(1), first)


@pytest.mark.parametrize(
    ("arguments", "report"),
    [
        (["--steps", "0"], "steps=0"),
        (["--batch", "-4"], "batch=-4"),
        (["--seed", "-1"], "seed=-1"),
        (["--exam", "3"], "3 scenes"),
        (["--device", "toaster"], "toaster"),
    ],
)
def test_training_refuses_what_it_cannot_do(arguments, report, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        train_main(["--out", str(tmp_path / "out"), *arguments])
    assert stopped.value.code == 2
    assert report in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*.safetensors"))


def test_the_exam_as_a_table():
    lines = format_exam(RECORD["world-shortcut"]["exam"]).splitlines()
    assert lines[0] == "2000 scenes"
    assert lines[1].split() == ["accuracy", "53.00%"]
    assert lines[-1].split() == ["all", "parts", "0.2135", "0.0287"]
    assert len({len(line) for line in lines[1:10]}) == 1


def test_an_exam_of_an_unknown_model(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["wrold"])
    assert stopped.value.code == 2
    assert "the bundled ones are world, world-shortcut" in capsys.readouterr().err


@pytest.mark.slow
def test_the_exam_on_the_command_line(capsys):
    main(["world", "--n", "100", "--device", "cpu", "--json"])
    actual = json.loads(capsys.readouterr().out)
    assert actual.keys() == RECORD["world"]["exam"].keys()
    assert actual["scenes"] == 100
    assert actual["accuracy"] == 1.0


def test_looking_at_a_model_leaves_it_as_it_was():
    model = build().train()
    actual = probabilities(model, draw(range(3)))
    assert torch.allclose(actual.sum(1), torch.ones(3))
    assert model.training
    assert not any(parameter.grad is not None for parameter in model.parameters())
