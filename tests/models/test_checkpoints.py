"""Weight files: what is read, what is refused without running any of it, and what is said when it does not fit."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import vitreous as vt
from vitreous.errors import CheckpointError
from vitreous.models.checkpoints import Checkpoint

NAME = "timm/vit_tiny_patch16_224"
SMALL: dict[str, Any] = {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 3, "num_classes": 5}


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    """The tensors of a small model, none of them what a fresh model would have."""
    generator = torch.Generator().manual_seed(3)
    fresh = vt.load(NAME, pretrained=False, **SMALL).module.state_dict()
    return {name: torch.randn(tensor.shape, generator=generator) for name, tensor in fresh.items()}


def loaded(path: Path, **options: Any) -> dict[str, Tensor]:
    return vt.load(NAME, checkpoint=path, **{**SMALL, **options}).module.state_dict()


def assert_same(result: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert result.keys() == expected.keys()
    assert [name for name in expected if not result[name].equal(expected[name])] == []


WRAPPINGS = {
    "plain": lambda tensors: tensors,
    "state_dict": lambda tensors: {"state_dict": tensors, "epoch": 3},
    "model": lambda tensors: {"model": tensors, "args": {"lr": 0.1}},
    "nested": lambda tensors: {"state_dict": {"model": tensors}},
    "module": lambda tensors: {f"module.{name}": tensor for name, tensor in tensors.items()},
    "module in state_dict": lambda tensors: {"state_dict": {f"module.{name}": t for name, t in tensors.items()}},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("zipped", [True, False])
def test_torch_files(weights: dict[str, Tensor], tmp_path: Path, wrapping: str, zipped: bool) -> None:
    path = tmp_path / "weights.pth"
    torch.save(WRAPPINGS[wrapping](weights), path, _use_new_zipfile_serialization=zipped)
    assert_same(Checkpoint.read(path).tensors, weights)
    assert_same(loaded(path), weights)


def test_averaged_weights_come_first(weights: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    zeros = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    torch.save({"model": zeros, "model_ema": weights}, path)
    assert_same(loaded(path), weights)


def test_safetensors(weights: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(weights, path)
    assert_same(loaded(path), weights)
    safetensors.torch.save_file({f"module.{name}": tensor for name, tensor in weights.items()}, path)
    assert_same(loaded(path), weights)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float64])
def test_values_take_the_models_dtype(
    weights: dict[str, Tensor], tmp_path: Path, stored: torch.dtype, wanted: torch.dtype
) -> None:
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file({name: tensor.to(stored) for name, tensor in weights.items()}, path)
    result = loaded(path, dtype=wanted)
    assert {tensor.dtype for tensor in result.values()} == {wanted}
    # in between they are float32, as timm builds its models
    assert_same(result, {name: tensor.to(stored).float().to(wanted) for name, tensor in weights.items()})


def test_a_checkpoint_makes_the_predictions(weights: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(weights, tmp_path / "weights.pth")
    donor = vt.load(NAME, pretrained=False, **SMALL)
    donor.module.load_state_dict(weights)
    inputs = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model = vt.load(NAME, checkpoint=tmp_path / "weights.pth", **SMALL)
    torch.testing.assert_close(model.logits(inputs), donor.module(inputs))


def test_positions_are_resized_to_another_image_size(weights: dict[str, Tensor], tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(4)
    large = {**weights, "pos_embed": torch.randn(1, 1 + 5 * 5, 24, generator=generator)}  # 80 pixels, patches of 16
    torch.save(large, tmp_path / "weights.pth")
    result = loaded(tmp_path / "weights.pth")
    grid = large["pos_embed"][:, 1:].reshape(1, 5, 5, 24).permute(0, 3, 1, 2)
    small = F.interpolate(grid, size=(2, 2), mode="bicubic", antialias=True).permute(0, 2, 3, 1).reshape(1, 4, 24)
    expected = torch.cat([large["pos_embed"][:, :1], small], dim=1)
    torch.testing.assert_close(result.pop("pos_embed"), expected)
    assert_same(result, {name: tensor for name, tensor in weights.items() if name != "pos_embed"})
    assert_same(loaded(tmp_path / "weights.pth", img_size=80), large)


# -- files that must not be trusted --------------------------------------------------------------------


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.place),)


def test_code_in_a_file_is_never_run(weights: dict[str, Tensor], tmp_path: Path) -> None:
    sprung, trap = tmp_path / "sprung", Trap(tmp_path / "sprung")
    pickle.loads(pickle.dumps(trap))
    assert sprung.exists()  # the trap works
    sprung.rmdir()
    torch.save({"state_dict": weights, "extra": trap}, tmp_path / "zip.pth")
    torch.save({**weights, "extra": trap}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "bare.pkl").write_bytes(pickle.dumps(trap, protocol=2))
    (tmp_path / "disguised.safetensors").write_bytes(pickle.dumps(trap))
    for name in ("zip.pth", "old.pth"):  # the tensors are had, the trap is an inert stand-in
        assert_same(loaded(tmp_path / name), weights)
        assert not sprung.exists()
    for name in ("bare.pkl", "disguised.safetensors"):
        with pytest.raises(CheckpointError, match=name) as caught:
            loaded(tmp_path / name)
        assert "\n" not in str(caught.value)
        assert not sprung.exists()


# -- files that do not fit -----------------------------------------------------------------------------


def without(names: tuple[str, ...], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name not in names}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: without(("norm.bias",), w), "1 missing (norm.bias)"),
        (lambda w: {**w, "surplus": torch.ones(2)}, "1 unexpected (surplus)"),
        (lambda w: {**w, "head.bias": torch.ones(7)}, "1 of another shape (head.bias (7,) for (5,))"),
        (
            lambda w: {**without(("norm.weight", "norm.bias"), w), "odd": torch.ones(2)},
            "2 missing (norm.weight, norm.bias); 1 unexpected (odd)",
        ),
        (lambda w: {k: v for k, v in w.items() if "blocks.1" not in k}, "12 missing (blocks.1.norm1.weight, "),
        (lambda w: {f"encoder.{k}": v for k, v in w.items()}, "missing (cls_token, "),
    ],
)
def test_what_does_not_fit_is_named(weights: dict[str, Tensor], tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "weights.pth"
    torch.save(change(weights), path)
    with pytest.raises(CheckpointError) as caught:
        loaded(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_number_of_classes(weights: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(weights, tmp_path / "weights.pth")
    with pytest.raises(CheckpointError, match=r"head\.weight \(5, 24\) for \(9, 24\)"):
        loaded(tmp_path / "weights.pth", num_classes=9)


# -- files that are not checkpoints --------------------------------------------------------------------


def test_no_checkpoint_there(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.pth", tmp_path):
        with pytest.raises(CheckpointError, match="no checkpoint at"):
            loaded(path)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_text_and_empty_files(tmp_path: Path, suffix: str) -> None:
    for text in ("", "These are not weights.\n" * 20, "0"):
        path = tmp_path / f"weights{suffix}"
        path.write_text(text)
        with pytest.raises(CheckpointError, match="weights") as caught:
            loaded(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["zip", "old", "safetensors"])
def test_truncated_files(weights: dict[str, Tensor], tmp_path: Path, kind: str, share: float) -> None:
    path = tmp_path / f"weights.{kind}"
    if kind == "safetensors":
        safetensors.torch.save_file(weights, path)
    else:
        torch.save(weights, path, _use_new_zipfile_serialization=kind == "zip")
    full = path.read_bytes()
    path.write_bytes(full[: int(share * len(full))])
    with pytest.raises(CheckpointError, match="weights"):
        loaded(path)


@pytest.mark.parametrize(
    "content",
    [{}, {"model": {}}, {"a": 1}, {"state_dict": {"a": "text"}}, [torch.ones(2)], torch.ones(3), {0: torch.ones(2)}],
    ids=["empty", "empty inside", "number", "text", "list", "tensor", "number as name"],
)
def test_files_without_named_tensors(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(CheckpointError, match="no table of named tensors"):
        loaded(tmp_path / "weights.pth")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.sampled_from([b"", b"\x80\x02", b"\x80\x02}q\x00X\x01"]), ending=st.binary(max_size=40))
def test_any_bytes_are_refused_in_one_way(tmp_path: Path, start: bytes, ending: bytes) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(start + ending)
    with pytest.raises(CheckpointError, match="weights"):
        Checkpoint.read(path)
