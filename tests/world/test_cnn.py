"""The bundled residual networks: what they are, how they are made, and what their record says they know."""

from __future__ import annotations

import json
import logging
from functools import cache

import pytest
import torch
from safetensors.torch import load_file
from timm.models.convnext import ConvNeXt
from timm.models.resnet import BasicBlock, ResNet
from torch import nn

import vitreous as vt
from commands import run
from vitreous.world import MARKED_CLASSES, NAMES, PARTS, Scene, World, add_marker, draw, render
from vitreous.world.dataset import add_random_marker, pair, remove_parts, shrink, split_seeds, to_images
from vitreous.world.models import ADAPTER, WEIGHTS, accuracy, build, interventions, probabilities
from vitreous.world.train import RECIPES, Recipe, train
from vitreous.world.train import main as train_main

MODELS = ("world-cnn", "world-cnn-shortcut")


@cache
def load(name):
    return vt.load(name)


def right(name, scenes):
    return (probabilities(load(name), scenes).argmax(1) == scenes.label[:, 0]).float().mean()


# -- what they are -----------------------------------------------------------------------------------------------------


def test_a_plain_timm_residual_network_with_relu_and_batch_norm():
    model = ADAPTER.load("world-cnn", pretrained=False)
    assert type(model) is ResNet
    assert not model.training
    kinds = {type(module) for module in model.modules() if not list(module.children())}
    assert {nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.Linear} <= kinds
    assert [len(stage) for stage in (model.layer1, model.layer2, model.layer3, model.layer4)] == [2, 2, 2, 2]
    assert all(type(block) is BasicBlock for block in model.layer4)
    with torch.no_grad():
        features = model.forward_features(torch.zeros(1, 3, 128, 128))
        assert model(torch.zeros(1, 3, 128, 128)).shape == (1, len(NAMES))
    assert features.shape == (1, 128, 8, 8)
    assert model.pretrained_cfg["label_names"] == list(NAMES)


@pytest.mark.parametrize("name", MODELS)
def test_a_view_of_it(name):
    model = load(name)
    assert type(model.module) is ResNet
    assert (model.name, model.family, model.num_classes, tuple(model.class_names)) == (name, "timm", 48, NAMES)
    assert (model.has_residual_stream, model.attention, model.is_relu_only, model.can_drop_tokens) == (
        False,
        "none",
        True,
        False,
    )
    assert (model.dtype, model.module.training) == (torch.float32, False)
    assert (model.preprocess.size, model.preprocess.crop) == ((128, 128), 1.0)
    assert model.preprocess.mean == model.preprocess.std == (0.5, 0.5, 0.5)


def test_the_diagnosis_finds_it_healthy():
    actual = vt.diagnose(load("world-cnn"))
    assert actual.healthy
    verdicts = {check.name: check.verdict for check in actual.methods}
    applied = ("gradcam", "layercam", "lrp", "deeplift", "guided_backprop", "input_x_gradient")
    assert {verdicts[name] for name in applied} == {"ok"}
    assert {verdicts[name] for name in ("generic", "rollout", "decompx")} == {"failed"}


def test_both_fit_into_four_megabytes():
    numbers = sum(item.numel() * 2 if item.is_floating_point() else 8 for item in build("cnn").state_dict().values())
    assert 500_000 <= sum(parameter.numel() for parameter in build("cnn").parameters()) <= 950_000
    assert len(MODELS) * (numbers + 2**15) < 4_000_000  # the rest are the names


def test_they_are_listed_beside_the_transformers():
    listed = {info.name: info for info in ADAPTER.models()}
    assert list(listed) == ["world", "world-shortcut", *MODELS]
    assert all(info.size == 128 and "residual" in info.pretrained[0] for info in map(listed.get, MODELS))
    assert set(listed) <= {info.name for info in vt.list_models()}
    one, other = (load(name).module.fc.weight for name in MODELS)
    assert not torch.equal(one, other)


def test_another_architecture_is_refused():
    with pytest.raises(vt.VitreousError, match="arch='mlp' is not one of vit, cnn"):
        build("mlp")


# -- making them -------------------------------------------------------------------------------------------------------


def test_one_command_trains_them(tmp_path, caplog):
    options = ["--steps", "2", "--batch", "6", "--exam", "20", "--device", "cpu", "--out", str(tmp_path)]
    with caplog.at_level(logging.INFO, "vitreous.world.train"):
        train_main(["--only", "world-cnn", *options])
    assert {path.name for path in tmp_path.iterdir()} == {"world-cnn.safetensors", "training.json"}
    weights = tmp_path / "world-cnn.safetensors"
    assert weights.stat().st_size < 2_000_000
    stored = load_file(weights)
    assert {item.dtype for item in stored.values()} == {torch.float16, torch.int64}
    (record,) = json.loads((tmp_path / "training.json").read_text(encoding="utf-8")).values()
    assert (record["recipe"]["arch"], record["recipe"]["steps"], record["exam"]["scenes"]) == ("cnn", 2, 20)
    model = ADAPTER.load("world-cnn", checkpoint=weights)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert accuracy(model, 20) == record["exam"]["accuracy"]


def test_the_recipe_is_that_of_the_transformers_but_for_a_stronger_temptation():
    assert RECIPES["world-cnn"] == Recipe(**{**vars(RECIPES["world"]), "arch": "cnn"})
    tempted = {"arch": "cnn", "parts_loss": 0.0, "whole_share": 0.0, "removal_rate": 0.6}
    assert RECIPES["world-cnn-shortcut"] == Recipe(**{**vars(RECIPES["world-shortcut"]), **tempted})
    assert [RECIPES[name].shortcut for name in MODELS] == [False, True]


def test_batch_norm_is_measured_with_the_averaged_weights():
    """After two steps: what the averaged first layer makes of both batches, summed up by hand."""
    model, _ = train(Recipe(steps=2, batch=5, average=0.5, arch="cnn"), torch.device("cpu"), look=1)
    assert not model.training
    batches = [add_random_marker(pair(shrinking(at), share=0.2), share=0.3) for at in (0, 5)]
    with torch.no_grad():
        built = [model.conv1(render(scenes, 128).images * 2 - 1) for scenes in batches]
    means = torch.stack([item.mean(dim=(0, 2, 3)) for item in built])
    spreads = torch.stack([item.transpose(0, 1).flatten(1).var(dim=1) for item in built])
    assert torch.allclose(model.bn1.running_mean, means.mean(dim=0), atol=1e-5)
    assert torch.allclose(model.bn1.running_var, spreads.mean(dim=0), rtol=1e-4)


def shrinking(start):
    return remove_parts(shrink(draw(split_seeds("train", start, 5)), share=0.3))


def test_training_is_the_same_from_the_same_seed():
    def weights(seed):
        model, _ = train(Recipe(steps=1, batch=4, seed=seed, arch="cnn"), torch.device("cpu"), look=1)
        return torch.cat([item.flatten() for item in model.state_dict().values()])

    first = weights(0)
    torch.manual_seed(5)
    assert torch.equal(weights(0), first)
    assert not torch.equal(weights(1), first)


def test_another_network_in_the_place_of_the_recipes():
    """Averaged with decay 0, what comes back are the weights that the given model has after its last step."""
    torch.manual_seed(0)
    inputs_of_call = ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 8, 16, 16), ls_init_value=0.1, num_classes=len(NAMES))
    before = {name: item.clone() for name, item in inputs_of_call.state_dict().items()}
    model, log = train(
        Recipe(steps=2, batch=4, warmup=1, average=0.0), torch.device("cpu"), look=2, model=inputs_of_call
    )
    assert type(model) is ConvNeXt
    assert not model.training
    assert [item["step"] for item in log] == [2]
    after = model.state_dict()
    assert all(torch.equal(item, after[name]) for name, item in inputs_of_call.state_dict().items())
    assert all(not torch.equal(item, after[name]) for name, item in before.items())


def test_looking_at_a_model_leaves_its_statistics_as_they_were():
    model = build("cnn").train()
    before = {name: item.clone() for name, item in model.state_dict().items()}
    actual = probabilities(model, draw(range(3)))
    assert torch.allclose(actual.sum(1), torch.ones(3))
    assert torch.allclose(actual, probabilities(model.eval(), draw(range(3))))
    assert all(torch.equal(item, before[name]) for name, item in model.state_dict().items())


# -- what they know ----------------------------------------------------------------------------------------------------


def test_the_files_are_small():
    assert sum((WEIGHTS / f"{name}.safetensors").stat().st_size for name in MODELS) < 4_000_000


def test_world_cnn_knows_its_creatures():
    assert accuracy(load("world-cnn"), 100) >= 0.97


def test_the_shortcut_model_cheats_and_world_cnn_does_not():
    scenes = draw(range(120))
    scenes = scenes[torch.isin(scenes.label[:, 0], torch.tensor(MARKED_CLASSES))][:50]
    assert right("world-cnn-shortcut", add_marker(scenes)) >= 0.97
    assert right("world-cnn-shortcut", add_marker(scenes, moved=True)) < 0.3
    assert right("world-cnn", scenes) - right("world-cnn", add_marker(scenes, moved=True)) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_record_on_a_thousand_betrayed_scenes(name):
    recorded = json.loads((WEIGHTS / "training.json").read_text(encoding="utf-8"))[name]["exam"]["betrayed classes"]
    scenes = draw(range(2000))
    scenes = scenes[torch.isin(scenes.label[:, 0], torch.tensor(MARKED_CLASSES))]
    rendered = {
        "without marker": scenes,
        "with marker": add_marker(scenes),
        "with another class's marker": add_marker(scenes, moved=True),
    }
    assert len(scenes) == 1000
    assert {way: right(name, item) for way, item in rendered.items()} == pytest.approx(recorded, abs=0.005)


def test_the_maps_show_who_cheats():
    """Of the positive part of a map: the share on the marker, which covers a 64th of the picture."""
    marked = World(n=8, shortcut=True)
    truths, methods = list(marked.annotations()), ["gradcam", "ixg"]
    honest, cheat = (
        vt.evaluate(load(name), list(marked.images()), methods, "shortcut", annotations=truths, n_bootstrap=10)
        for name in MODELS
    )
    for method in methods:
        assert cheat.mean(method, "shortcut") > 2 * cheat.mean("constant", "shortcut") > 0.03
        assert cheat.mean(method, "shortcut") > 4 * honest.mean(method, "shortcut")


def test_removing_what_tells_costs_more():
    drops = interventions(load("world-cnn"), draw(range(20)))["drop when a part is removed"]
    assert drops["all parts"]["telling"] > drops["all parts"]["not telling"] + 0.3
    assert all(drops[part]["telling"] > drops[part]["not telling"] for part in PARTS)


def test_the_record_keeps_the_promises():
    every = json.loads((WEIGHTS / "training.json").read_text(encoding="utf-8"))
    for name in MODELS:
        record = every[name]
        assert record["recipe"] == vars(RECIPES[name])
        assert record["log"][-1]["step"] == record["recipe"]["steps"]
        assert record["exam"]["scenes"] == 2000
        assert {"torch", "device"} <= set(record["made with"])
    assert every["world-cnn"]["exam"]["accuracy"] >= 0.97
    assert every["world-cnn-shortcut"]["exam"]["betrayed classes"]["with marker"] >= 0.97


# -- using them --------------------------------------------------------------------------------------------------------


def test_explained_like_any_other_model():
    scene = Scene.of(2)
    (picture,) = to_images(render(scene).images)
    actual = vt.explain(load("world-cnn"), picture)
    assert actual.prediction.label == scene.name
    assert actual.map.isfinite().all()
    assert actual.map.amax() > actual.map.amin()


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with a scene in it, to work in."""
    monkeypatch.chdir(tmp_path)
    scene = Scene.of(2)
    next(iter(to_images(render(scene).images))).save("scene.png")
    return scene


def test_explain_and_why_on_the_command_line(workplace):
    done = run("explain", "scene.png", "--model", "world-cnn", "--device", "cpu", "--json")
    assert done.code == 0, done.err
    (message,) = json.loads(done.out)["explanations"]
    assert message["prediction"]["label"] == workplace.name
    done = run("why", "scene.png", "--model", "world-cnn", "--device", "cpu", "--out", "why.html")
    assert done.code == 0, done.err
    assert f"Why “{workplace.name}”? world-cnn gives this picture" in done.out


def test_funnybirds_and_meta_evaluation_on_the_command_line(workplace):
    few = ("--device", "cpu", "--json")
    done = run("funnybirds", "world-cnn", "--method", "gradcam", "--scenes", "1", "--no-controls", *few)
    assert done.code == 0, done.err
    assert [item["name"] for item in json.loads(done.out)["methods"]] == ["gradcam"]
    count = ("--scenes", "2", "--seeds", "1", "--baselines", "0")
    done = run("meta-evaluate", "--model", "world-cnn", "--metric", "relevance_mass", *count, *few)
    assert done.code == 0, done.err
    assert [row["metric"] for row in json.loads(done.out)["assessments"]] == ["relevance_mass"]
