"""Numbers that other libraries gave on the same small networks, remembered from ``benchmarks/peers_cnn.py``."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitreous as vt
from families import images
from families_cnn import FAMILIES

TOLD = json.loads((Path(__file__).parent.parent / "data" / "peers_cnn.json").read_text())["rows"]
AGREED = [row for row in TOLD if row["difference"] <= 1e-5]


def built(name: str) -> Any:
    family, _, change = name.partition(", ")
    model: Any = FAMILIES[family]().double()
    if change == "windows apart":
        model.maxpool = nn.MaxPool2d(2)
    elif change == "no eps":
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = 0.0
    return model


@pytest.mark.parametrize("row", AGREED, ids=lambda row: f"{row['model']}: {row['peer']} of {row['class']}")
def test_a_peer_gave_the_same(row: dict[str, Any]) -> None:
    model = built(row["model"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vt.VitreousWarning)
        maps = vt.get_method(row["ours"]).attribute(model, images(model, 2).double(), target=row["class"])
    subset = torch.linspace(0, maps[0].numel() - 1, 7).long()
    actual = torch.stack([map_.flatten()[subset] for map_ in maps])
    expected = torch.tensor(row["numbers"], dtype=torch.float64)
    torch.testing.assert_close(actual, expected[:, :-1], rtol=0, atol=1e-5)
    torch.testing.assert_close(maps.sum(dim=(1, 2)), expected[:, -1], rtol=0, atol=1e-5 * maps[0].numel())


def test_every_method_has_a_row_that_agrees() -> None:
    """Where a peer differs as it comes, there is a row without the reason."""
    assert {row["ours"] for row in TOLD} == {row["ours"] for row in AGREED}
    others = {(row["model"], row["peer"]) for row in TOLD if row not in AGREED}
    assert {peer.split()[0] for _, peer in others} == {"captum", "grad-cam", "zennit"}
    assert {peer for _, peer in others if peer.startswith("captum")} == {
        "captum DeepLift",
        "captum DeepLift, a copy between",
    }
    assert {model for model, peer in others if peer.startswith("zennit")} == {"tv_resnet"}
    assert [pair for pair in others if pair[1].startswith("grad-cam")] == [("resnet", "grad-cam AblationCAM")]
    lrp = [row for row in AGREED if row["ours"].startswith("lrp")]
    assert {row["class"] for row in lrp if row["numbers"][0][-1] < 0} == {3}  # a class below zero, and one above
    assert {row["class"] for row in lrp} == {2, 3}
