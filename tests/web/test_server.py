"""The explorer answers with the library's own numbers."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

import vitreous as vt
from vitreous import viz as show
from vitreous.world import World, pair, render
from web_server import PAIR, SCENE, Client, class_probabilities, decoded, gone, opened, refused, served, world

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served("world", "world-shortcut") as answer:
        yield answer


def scene(place: int = 3) -> Image.Image:
    return next(World("test", 1, start=place).images())


def two(place: int = 5) -> Image.Image:
    pixels = render(pair(World("test", 1, start=place).batch())).images[0]
    return Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).numpy())


# -- what is there ---------------------------------------------------------------------------------------


def test_the_start_says_what_there_is(client: Client) -> None:
    answer = client.fine("/api/start")
    model = world()
    assert answer["version"] == vt.__version__
    first, second = answer["models"]
    assert (first["name"], second["name"]) == ("world", "world-shortcut")
    assert (first["grid"], first["depth"], first["attention"]) == ([16, 16], model.depth, "global")
    assert {entry["name"] for entry in answer["methods"]} == {info.name for info in vt.list_methods()}
    refused = [entry["name"] for entry in answer["methods"] if "refused" in entry]
    assert refused == ["guided_backprop", "guided_gradcam", "deeplift"]
    assert answer["efforts"][1] == {
        "name": "careful",
        "spec": {name: vt.recommended_method("careful", world(name)) for name in ("world", "world-shortcut")},
    }
    assert answer["colours"] == {"signed": show.DIVERGING.tolist(), "unsigned": show.SEQUENTIAL.tolist()}
    assert answer["runs"] == []
    other = client.fine("/api/methods?model=world-shortcut")
    assert [entry["name"] for entry in other] == [entry["name"] for entry in answer["methods"]]


def test_a_run_is_there_by_a_name_and_nothing_beside_it(tmp_path: Path) -> None:
    from vitreous.web.serve import named_runs
    from web_runs import finished_run

    run = finished_run(tmp_path / "my run")
    (tmp_path / "other").mkdir()
    shutil.copytree(run, tmp_path / "other" / "my run")
    (tmp_path / "secret.json").write_text("{}")
    runs = named_runs([run, tmp_path / "other" / ".." / "my run", tmp_path / "other" / "my run"])
    assert list(runs) == ["my run", "my run-2"]
    with served(runs=runs) as client:
        first, second = client.fine("/api/start")["runs"]
        assert (first["id"], second["id"]) == ("my run", "my run-2")
        assert client.fine("/api/runs/my%20run")["id"] == "my run"
        for path in ("secret.json", "..%2fsecret.json", "my%20run%2f..%2fsecret.json", "my%20run/../secret.json"):
            assert refused(client, "GET", f"/api/runs/{path}") == 404


def test_every_scene_of_the_start_can_be_seen_and_asked_about(client: Client) -> None:
    answer = client.fine("/api/start")["scenes"]
    assert len(answer) >= 12
    for item in answer:
        assert client.get(f"/api/pictures/{item['picture']}?model=world").status == 200
    fines = [client.fine("/api/predict", {"model": "world", "picture": entry["picture"]}) for entry in answer[:4]]
    assert all(entry["truth"] is not None for entry in fines)


def test_costs_are_those_of_the_model(client: Client) -> None:
    message = {entry["name"]: entry for entry in client.fine("/api/start")["methods"]}
    assert (message["scorecam"]["forwards"], message["scorecam"]["backwards"]) == (1 + world().embed_dim, 0)
    assert (message["generic"]["forwards"], message["generic"]["backwards"]) == (1, 1)
    assert message["smooth"]["is_combinator"]
    assert "forwards" not in message["smooth"]
    assert not message["rollout"]["class_specific"]


@pytest.mark.parametrize("words", ["", "pip", "PIP", "38", "zz nothing"])
def test_classes_by_words(client: Client, words: str) -> None:
    from urllib.parse import quote

    answer = client.fine(f"/api/classes?model=world&q={quote(words)}")
    labels = [world().label(index) for index in range(48)]
    fit = {i for i, label in enumerate(labels) if words.lower() in label or words == str(i)}
    assert {entry["index"] for entry in answer} == fit
    assert all(entry["label"] == labels[entry["index"]] for entry in answer)
    if words == "38":
        assert answer[0]["index"] == 38


# -- pictures and what the model says --------------------------------------------------------------------


def test_a_scene_is_the_same_picture_as_the_worlds(client: Client) -> None:
    for picture, expected in (("scene-standard-3", scene(3)), ("scene-pairs-5", two(5))):
        data = client.get(f"/api/pictures/{picture}?model=world").data
        assert np.array_equal(Image.open(io.BytesIO(data)), expected)


def test_prediction(client: Client) -> None:
    expected = class_probabilities(world(), scene())
    answer = client.fine("/api/predict", SCENE)
    assert [entry["index"] for entry in answer["top"]] == expected.argsort(descending=True)[:10].tolist()
    assert [entry["probability"] for entry in answer["top"]] == pytest.approx(
        expected.sort(descending=True)[0][:10].tolist(), abs=1e-5
    )
    assert answer["truth"] == {"index": int(expected.argmax()), "label": world().label(int(expected.argmax()))}


def test_an_upload_is_what_the_library_reads_in_that_file(client: Client, tmp_path: Any) -> None:
    """Cropped, turned by its EXIF orientation, with odd colours: also the map is that of the file."""
    pixels = np.random.default_rng(0).integers(0, 256, (90, 150, 3), dtype=np.uint8)
    photo = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, picture, options in (
        ("turned.jpg", photo, {"format": "JPEG", "exif": exif}),
        ("odd.png", photo.convert("P"), {"format": "PNG"}),
        ("grey.tiff", photo.convert("I;16"), {"format": "TIFF"}),
    ):
        file = tmp_path / name
        picture.save(file, **options)
        answer = client.post(f"/api/pictures?name={name}", file.read_bytes()).json
        expected = vt.explain(world(), file, "ixg")
        question = {"model": "world", "picture": answer["picture"], "method": "ixg"}
        seen = client.get(f"/api/pictures/{answer['picture']}?model=world").data
        assert answer["name"] == name
        assert (answer["width"], answer["height"]) == ((90, 150) if name == "turned.jpg" else (150, 90))
        assert np.array_equal(Image.open(io.BytesIO(seen)), expected.image)
        (result,) = client.tasks({**question, "kind": "explain"})
        assert np.allclose(decoded(result["map"]), expected.map, atol=1e-6)


@pytest.mark.parametrize("fill", ["blur", "mean", "black"])
def test_the_picture_without_patches_is_what_the_model_was_asked_about(client: Client, fill: str) -> None:
    model, target = world(), 7
    removed = (0, 17, 100, 119, 120, 121, 255)
    answer = client.fine("/api/try", {**SCENE, "removed": gone(*removed), "fill": fill, "target": target})
    picture = opened(answer["picture"])
    message = class_probabilities(model, picture)
    assert answer["probability"] == pytest.approx(float(message[target]), abs=1e-5)
    assert answer["top"][0]["index"] == int(message.argmax())
    before = np.asarray(scene(), np.float64)
    filled = {
        "blur": np.asarray(scene().filter(ImageFilter.GaussianBlur(128 / 14)), np.float64),
        "mean": np.broadcast_to(before.mean(axis=(0, 1)).round(), before.shape),
        "black": np.zeros_like(before),
    }[fill]
    for patch in range(256):
        place = slice(patch // 16 * 8, patch // 16 * 8 + 8), slice(patch % 16 * 8, patch % 16 * 8 + 8)
        expected = filled if patch in removed else before
        assert np.array_equal(np.asarray(picture)[place], expected[place])


def test_without_a_target_the_prediction_is_meant(client: Client) -> None:
    answer = client.fine("/api/try", {**SCENE, "removed": gone()})
    assert np.array_equal(opened(answer["picture"]), scene())
    assert answer["probability"] == pytest.approx(float(class_probabilities(world(), scene()).max()), abs=1e-5)


# -- maps ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ("generic", {}),
        ("quick", {"target": 5}),
        ("ixg", {"target": 5, "contrast": 9}),
        ("saliency", {"output": "prob"}),
        ("smooth(ixg, samples=3)", {"seed": 4}),
        ("Grad-CAM", {}),
        ("var(ixg, classes='top:3')", {"target": 2}),
    ],
)
def test_a_map_is_that_of_explain(client: Client, method: str, asked: dict[str, Any]) -> None:
    answer = client.task("explain", method=method, **asked)
    options = vt.recommended_method(method, world()) if method == "quick" else method
    e = vt.explain(world(), scene(), options, **asked)
    assert np.allclose(decoded(answer["map"]), e.map, rtol=1e-4, atol=1e-6)
    assert answer["probability"] == pytest.approx(e.probability, abs=1e-5)
    for name in ("label", "method", "title", "caption"):
        assert answer[name] == getattr(e, name)
    assert (answer["signed"], answer["class_specific"]) == (e.scale.signed, e.class_specific)


def test_maps_that_are_asked_for_together_are_those_of_each_alone(client: Client) -> None:
    names = ["rollout", "attcat", "nonsense", "layercam", "cat", "guided_backprop", "smooth(gradient, samples=9)"]
    events = client.events(*({**PAIR, "kind": "explain", "method": name, "target": 4} for name in names))
    ended = [event for event in events if event["event"] in ("result", "error")]
    assert events[-1] == {"event": "end"}
    assert [entry["event"] for entry in sorted(ended, key=lambda entry: entry["task"])] == [
        "result", "result", "error", "result", "result", "error", "result",
    ]  # fmt: skip
    for item in ended:
        if item["event"] == "result":
            expected = vt.compare(world(), two(), [names[item["task"]]], 4)[0]
            assert np.allclose(decoded(item["map"]), expected.map, rtol=1e-4, atol=1e-6)
    (unknown,) = (entry for entry in ended if entry["task"] == 2)
    assert "nonsense" in unknown["message"]


def test_what_the_library_warns_about_comes_along(client: Client) -> None:
    asked = {**SCENE, "kind": "explain", "output": "prob"}
    first, second = client.tasks({**asked, "method": "logprob(ixg)"}, {**asked, "method": "ixg"})
    assert len(first["warnings"]) == 1
    assert "prob" in first["warnings"][0]
    assert second["warnings"] == []


def test_another_model_has_other_maps(client: Client) -> None:
    asked = {"kind": "explain", "method": "generic", "picture": "scene-shortcut-4", "target": 5}
    honest, cheat = client.tasks(*({**asked, "model": name} for name in ("world", "world-shortcut")))
    assert not np.allclose(decoded(honest["map"]), decoded(cheat["map"]), atol=1e-4)


# -- looking further -------------------------------------------------------------------------------------


def test_layers_are_the_map_from_every_start_layer(client: Client) -> None:
    """Input times gradient at the tokens that enter each block, written out."""
    model = world()
    answer = client.task("layers", method="ixg", target=7)
    tokens = model.embed(model.preprocess.to_tensor(scene())[None])
    assert [entry["start"] for entry in answer["layers"]] == list(range(model.depth))
    for item in answer["layers"]:
        entering = model.forward_blocks(tokens, 0, item["start"]).detach().requires_grad_()
        score = model.forward_head(model.forward_blocks(entering, item["start"]))[0, 7]
        (slope,) = torch.autograd.grad(score, entering)
        expected = (entering * slope).sum(dim=-1)[0, 1:].detach().reshape(16, 16)
        assert np.allclose(decoded(item["map"]), expected, rtol=1e-3, atol=1e-5)
    assert answer["signed"]


def test_heads_are_rows_of_attention(client: Client) -> None:
    model, layer = world(), 5
    answer = client.task("heads", layer=layer)
    block = model.module.blocks[layer]
    with torch.no_grad():
        tokens = block.norm1(model.forward_blocks(model.embed(model.preprocess.to_tensor(scene())[None]), 0, layer))
        q, k, _ = block.attn.qkv(tokens).reshape(1, 257, 3, 6, 32).permute(2, 0, 3, 1, 4)
        attention = (q @ k.transpose(-2, -1) / 32**0.5).softmax(dim=-1)[0, :, 0, 1:]
    assert answer["rows"] == "from the class token"
    assert [entry["head"] for entry in answer["heads"]] == list(range(6))
    for item, expected in zip(answer["heads"], attention, strict=True):
        assert np.allclose(decoded(item["map"]), expected.reshape(16, 16), atol=1e-6)


def test_owners_are_those_of_var(client: Client) -> None:
    (answer,) = client.tasks({**PAIR, "kind": "owners", "compare_classes": [33, 4, 8]})
    e = vt.explain(world(), two(), "var@sharp(plus(decompx))", 33, compare_classes=[33, 4, 8], output="logprob")
    assert [entry["index"] for entry in answer["classes"]] == [33, 4, 8]
    assert [entry["label"] for entry in answer["classes"]] == list(e.class_names)
    assert np.allclose(decoded(answer["distribution"]), e.extras["distribution"], atol=1e-4)
    assert decoded(answer["distribution"]).sum(axis=0) == pytest.approx(1, abs=1e-5)
    assert decoded(answer["strength"]).shape == (16, 16)
    assert len({entry["colour"] for entry in answer["classes"]}) == 3
    again = vt.explain(world(), two(), answer["method"], 33, output=answer["output"])  # as the lines to copy have it
    assert np.allclose(decoded(answer["distribution"]), again.extras["distribution"], atol=1e-4)
