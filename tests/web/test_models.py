"""Every kind of model in the explorer: each task is answered, or refused in words."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from families import FAMILIES, _build
from families_timm import FAMILIES as WINDOWED
from web_server import Client, decoded, gone, opened, served

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

KINDS = ("gap", "siglip", "nonsquare", "registers", "deit_distilled")


def views() -> dict[str, vt.VisionModel]:
    answer = {name: vt.wrap(FAMILIES[name](), name=name) for name in KINDS}
    answer["one logit"] = vt.wrap(_build(num_classes=1), name="one logit")
    answer["float64"] = vt.wrap(_build().double(), name="float64")
    answer["swin"] = vt.wrap(WINDOWED["swin"](), name="swin")
    return answer


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(views=views()) as answer:
        yield answer


@pytest.mark.parametrize("name", [*KINDS, "one logit", "float64", "swin"])
def test_every_task(client: Client, name: str) -> None:
    model: vt.VisionModel = client.explorer.session.models[name]
    pixels = np.random.default_rng(1).integers(0, 256, (70, 90, 3), dtype=np.uint8)
    about: dict[str, Any] = {"model": name, "picture": client.upload(Image.fromarray(pixels))}
    seen = Image.open(io.BytesIO(client.get(f"/api/pictures/{about['picture']}?model={name.replace(' ', '%20')}").data))
    assert seen.size == model.preprocess.size[::-1]
    height, width = model.grid()
    logits = model.logits(model.preprocess.to_tensor(seen)[None])[0]
    expected = torch.sigmoid(torch.cat([-logits, logits])) if len(logits) == 1 else logits.softmax(0)
    fine = client.fine("/api/predict", about)
    assert [entry["probability"] for entry in fine["top"]] == pytest.approx(
        expected.sort(descending=True)[0][:10].tolist(), abs=1e-5
    )
    assert fine["truth"] is None
    tried = client.fine("/api/try", {**about, "removed": gone(0, count=height * width), "target": 1})
    assert opened(tried["picture"]).size == seen.size
    e = vt.explain(model, Image.fromarray(pixels), "ixg", 1)
    tasks = [
        {"kind": "explain", "method": "ixg", "target": 1},
        {"kind": "explain", "method": "quick"},
        {"kind": "why", "method": "ixg"},
        {"kind": "check", "method": "ixg"},
        {"kind": "owners", "compare_classes": [0, 1]},
        {"kind": "layers", "method": "ixg"},
        {"kind": "heads", "layer": model.depth - 1},
        {"kind": "heads", "layer": 0},
    ]
    answer = client.tasks(*({**about, **entry} for entry in tasks))
    for task, item in zip(tasks, answer, strict=True):
        assert item["event"] == "result", (task, item)
    assert np.allclose(decoded(answer[0]["map"]), e.map, rtol=1e-4, atol=1e-6)
    assert len(answer[6]["heads"]) == (model.num_heads if model.attention == "global" else len(answer[6]["heads"]))
    for item in answer[7]["heads"]:
        assert decoded(item["map"]).shape == model.grid(layer=0)
        assert 0 < decoded(item["map"]).sum() <= 2.001
    mean = vt.explain(model, Image.fromarray(pixels), "raw_attention(layer=0)").map
    assert np.allclose(np.mean([decoded(entry["map"]) for entry in answer[7]["heads"]], axis=0), mean, atol=1e-6)
    (curve,) = client.tasks({**about, "kind": "curve", "target": 1, "map": answer[0]["map"]})
    assert curve["event"] == "result", curve
    assert curve["deletion"][0] == pytest.approx(float(expected[1]), abs=1e-5)
    assert client.post("/api/download", {"format": "png", "questions": [{**about, "method": "ixg"}]}).status == 200
    listed = client.fine(f"/api/methods?model={name.replace(' ', '%20')}")
    refused = {entry["name"] for entry in listed if "refused" in entry}
    assert ("attention_flow" in refused) == (name == "swin")


def test_a_step_of_effort_is_that_of_the_model(client: Client) -> None:
    steps = {entry["name"]: entry["spec"] for entry in client.fine("/api/start")["efforts"]}
    for name, model in client.explorer.session.models.items():
        assert steps["quick"][name] == vt.recommended_method("quick", model)
    assert steps["quick"]["swin"] != steps["quick"]["gap"]
