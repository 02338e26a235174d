"""Checkpoints as people have them: nests, prefixes and objects beside the tensors, of which nothing is ever made."""

from __future__ import annotations

import argparse
import collections
import contextlib
import logging
import os
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous as vt
from commands import run
from vitreous.errors import CheckpointError
from vitreous.models.checkpoints import Checkpoint
from vitreous.models.unpickler import Stub, unpickle

NAME = "timm/vit_tiny_patch16_224"
SMALL: dict[str, Any] = {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 3}


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    fresh = vt.load(NAME, pretrained=False, num_classes=5, **SMALL).module.state_dict()
    return {name: torch.randn(tensor.shape, generator=generator) for name, tensor in fresh.items()}


def same(result: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return result.keys() == expected.keys() and all(result[name].equal(expected[name]) for name in expected)


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


class Callback:
    """An object of a training loop."""

    def __init__(self) -> None:
        self.best, self.path = 0.5, Path("best.ckpt")


@pytest.mark.parametrize("nest", ["state_dict", "model_state_dict", "model", "net", "module", "ema", "teacher"])
def test_nests(weights: dict[str, Tensor], tmp_path: Path, nest: str) -> None:
    torch.save({"epoch": 3, nest: weights, "optimizer": {"state": {}}}, tmp_path / "w.pth")
    result = Checkpoint.read(tmp_path / "w.pth")
    assert same(result.tensors, weights)
    assert f"from its {nest}" in result.description
    assert "epoch, optimizer left aside" in result.description


def test_the_only_table_needs_no_usual_name(weights: dict[str, Tensor], tmp_path: Path) -> None:
    optimiser = {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.1}]}
    full = {"model": {"name": "vit"}, "network_weights": weights, "optimizer": optimiser, "best": torch.tensor(0.5)}
    torch.save(full, tmp_path / "w.pth")
    assert same(Checkpoint.read(tmp_path / "w.pth").tensors, weights)
    torch.save({"first": weights, "second": weights}, tmp_path / "two.pth")
    with pytest.raises(CheckpointError, match="no table of named tensors"):
        Checkpoint.read(tmp_path / "two.pth")


def test_averaged_and_teachers_weights_come_first(weights: dict[str, Tensor], tmp_path: Path) -> None:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    for preferred, other in (("ema", "model"), ("teacher", "student"), ("model_ema", "state_dict")):
        torch.save({other: zeros, preferred: {"module": weights, "decay": 0.99}}, tmp_path / "w.pth")
        assert same(Checkpoint.read(tmp_path / "w.pth").tensors, weights)


@pytest.mark.parametrize(
    "prefix",
    ["module.", "model.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod.", "model._orig_mod.", "net.module."],
)
@pytest.mark.parametrize("nested", [False, True])
def test_prefixes(weights: dict[str, Tensor], tmp_path: Path, prefix: str, nested: bool) -> None:
    table = under(prefix, weights)
    torch.save({"state_dict": table} if nested else table, tmp_path / "w.pth")
    result = Checkpoint.read(tmp_path / "w.pth")
    assert same(result.tensors, weights)
    assert all(f"{part}." in result.description for part in prefix.split(".") if part)


def test_compiled_parts_and_a_loss_beside_the_model(weights: dict[str, Tensor], tmp_path: Path) -> None:
    table = {name.replace("blocks.1.", "blocks.1._orig_mod."): tensor for name, tensor in weights.items()}
    torch.save({"state_dict": {**under("model.", table), "criterion.weight": torch.ones(5)}}, tmp_path / "w.pth")
    result = Checkpoint.read(tmp_path / "w.pth")
    assert same(result.tensors, weights)
    assert "criterion.weight left aside" in result.description


def test_two_tensors_of_one_name_are_refused(weights: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save({**weights, "_orig_mod.norm.bias": torch.ones(24)}, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match=r"both norm\.bias and _orig_mod\.norm\.bias"):
        Checkpoint.read(tmp_path / "w.pth")


# -- objects beside the tensors ------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [True, False])
def test_objects_beside_the_tensors(weights: dict[str, Tensor], tmp_path: Path, zipped: bool) -> None:
    extras = {
        "args": argparse.Namespace(lr=0.1, out=Path("runs")),
        "callbacks": {Callback: Callback()},
        "history": collections.defaultdict(list, {"loss": [0.5]}),
        "raw": b"bytes",
        "device": torch.device("cpu"),
    }
    strange = {"model": {k: nn.Parameter(v) for k, v in weights.items()}, **extras}
    torch.save(strange, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "w.pth", weights_only=True)  # so that this test tests something
    model = vt.load(NAME, checkpoint=tmp_path / "w.pth", **SMALL)
    assert same(model.module.state_dict(), weights)
    held = unpickle(tmp_path / "w.pth")
    assert isinstance(held["args"], Stub)
    assert vars(held["args"]) == {}
    assert held["args"].name == "argparse.Namespace"


@pytest.mark.parametrize("zipped", [True, False])
def test_views_types_and_shared_numbers(tmp_path: Path, zipped: bool) -> None:
    base = torch.arange(24.0)
    table = {
        "turned": base.view(4, 6).t(),
        "part": base[5:9],
        "none": torch.empty(0, 3),
        "one": torch.tensor(7),
        **{
            str(t): torch.ones(3).to(t) for t in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool)
        },
    }
    torch.save(
        {"state_dict": table, "args": argparse.Namespace()}, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped
    )
    result = unpickle(tmp_path / "w.pt")["state_dict"]
    assert same(result, table)
    assert all(result[name].dtype == table[name].dtype for name in table)


def trap(place: Path) -> Any:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {place}",)

    return Trap()


@pytest.mark.parametrize("zipped", [True, False])
def test_os_system_is_never_called(weights: dict[str, Tensor], tmp_path: Path, zipped: bool) -> None:
    place = tmp_path / "sprung"
    pickle.loads(pickle.dumps(trap(place)))
    assert place.exists()  # the trap works
    place.unlink()
    torch.save({"model": weights, "x": trap(place)}, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    assert same(Checkpoint.read(tmp_path / "w.pth").tensors, weights)
    assert not place.exists()


HOSTILE = {
    "eval": b'cbuiltins\neval\n(S\'open("sprung", "w")\'\ntR.',
    "import": b"cantigravity\nfly\n.",
    "getattr then call": b"cbuiltins\ngetattr\n(cos\nsystem\nS'__call__'\ntR(S'touch sprung'\ntR.",
    "dotted name": b"\x80\x04\x8c\x05torch\x8c\x10hub.os.system\x93(\x8c\x0ctouch sprungtR.",
    "old class": b"(S'touch sprung'\nios\nsystem\n.",
    "state with slots": b"ctorch._utils\n_rebuild_tensor_v2\n(NcOS\nx\nt}S'__call__'\ncos\nsystem\ns\x86b.",
    "extension": b"\x82\x01.",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("w.pth", "w") as archive:
        archive.writestr("archive/data.pkl", HOSTILE[case])
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    before = set(sys.modules)
    with pytest.raises(CheckpointError, match=r"w\.pth"):
        Checkpoint.read("w.pth")
    with contextlib.suppress(Exception):
        assert isinstance(unpickle(Path("w.pth")), Stub | type)
    assert os.listdir() == ["w.pth"]
    assert "antigravity" not in set(sys.modules) - before
    table = {"a": torch.ones(2)}
    torch.save({"model": table, "args": argparse.Namespace()}, "good.pth")  # nothing was changed for the next file
    assert same(Checkpoint.read("good.pth").tensors, table)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_protocols(weights: dict[str, Tensor], tmp_path: Path, protocol: int) -> None:
    full = {"model": weights, "args": argparse.Namespace(lr=0.1)}
    torch.save(full, tmp_path / "w.pth", pickle_protocol=protocol)
    assert same(Checkpoint.read(tmp_path / "w.pth").tensors, weights)


def test_compressed_numbers_are_refused(tmp_path: Path) -> None:
    torch.save({"model": {"a": torch.zeros(400)}, "args": argparse.Namespace()}, tmp_path / "w.pth")
    with zipfile.ZipFile(tmp_path / "w.pth") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    with pytest.raises(CheckpointError, match=r"bomb\.pth cannot be read"):
        Checkpoint.read(tmp_path / "bomb.pth")


def test_numbers_beyond_the_file_are_refused(tmp_path: Path) -> None:
    torch.save({"model": {"a": torch.ones(4)}, "args": argparse.Namespace()}, tmp_path / "w.pth")
    with zipfile.ZipFile(tmp_path / "w.pth") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "short.pth", "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data[:8] if name.endswith("data/0") else data)
    with pytest.raises(CheckpointError, match=r"short\.pth cannot be read"):
        Checkpoint.read(tmp_path / "short.pth")


def test_a_pickled_model_is_refused_with_advice(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "whole.pth")
    torch.save({"model": nn.Linear(2, 2), "epoch": 1}, tmp_path / "inside.pth")
    for name in ("whole.pth", "inside.pth"):
        with pytest.raises(CheckpointError, match=r"pickled torch\.nn\.modules\.linear\.Linear.*model\.state_dict\(\)"):
            Checkpoint.read(tmp_path / name)


# -- what is told --------------------------------------------------------------------------------------


def test_one_line_tells_what_was_taken(
    weights: dict[str, Tensor], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.save({"ema": under("module.", weights), "model": {}, "args": argparse.Namespace()}, tmp_path / "w.pth")
    with caplog.at_level(logging.INFO, "vitreous"):
        vt.load(NAME, checkpoint=tmp_path / "w.pth", **SMALL)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        f"weights from {tmp_path / 'w.pth'}: {len(weights)} tensors, from its ema, without module. before the names, "
        "model, args left aside, 5 classes"
    )


def test_the_command_line_tells_unless_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"net": vt.load("timm/test_vit", pretrained=False, num_classes=3).module.state_dict()}, "w.pth")
    options = ("diagnose", "--model", "timm/test_vit", "--checkpoint", "w.pth")
    message = run(*options)
    assert message.err.splitlines() == ["vitreous: weights from w.pth: 80 tensors, from its net, 3 classes"]
    assert run(*options, "--quiet").err == ""
    assert logging.getLogger("vitreous").handlers == []
