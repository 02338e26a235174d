"""Statistics of activations: against a plain mean and deviation, cut, stopped, resumed, written and read."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import vitreous as vt
from commands import run
from families import FAMILIES, images, verified
from vitreous.tracing.statistics import Moments
from zoo import EVERY

MODEL = ("timm/test_vit", "--no-pretrained", "--img-size", "32", "--device", "cpu")


def compute_moments(model: vt.VisionModel, inputs: Tensor) -> dict[tuple[str, int], tuple[Tensor, Tensor]]:
    """Mean and unbiased deviation over the images, of every token and channel, from a bare forward with hooks."""
    recorded: dict[tuple[str, int], Tensor] = {}

    def keep(key: tuple[str, int]) -> Any:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            recorded[key] = output.flatten(1, -2)

        return hook

    norms = [
        model.hook_point(layer, "norm1").register_forward_hook(keep(("norm1", layer))) for layer in range(model.depth)
    ]
    with torch.no_grad():
        tokens = model.embed(inputs)
        for layer in range(model.depth):
            tokens = model.forward_block(layer, tokens)
            recorded["resid_post", layer] = tokens
    for handle in norms:
        handle.remove()
    return {key: (value.mean(dim=0), value.std(dim=0)) for key, value in recorded.items()}


def assert_same(actual: vt.ActivationStats, expected: vt.ActivationStats) -> None:
    assert (actual.model, actual.size, actual.description) == (expected.model, expected.size, expected.description)
    assert actual.moments.keys() == expected.moments.keys()
    for key, moments in expected.moments.items():
        assert actual.moments[key].n == moments.n
        for one, other in zip(actual.moments[key][:2], moments[:2], strict=True):
            assert torch.allclose(one.double(), other.double(), rtol=1e-5, atol=1e-6)


@pytest.fixture
def model() -> vt.VisionModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return vt.load("timm/test_vit", pretrained=False, img_size=32)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    numbers = np.random.default_rng(0)
    for index in range(13):
        Image.fromarray(numbers.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / f"{index:02}.png")
    return folder


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["vit", "deit_distilled", "registers", "gap", "nonsquare", "swin", "tv_vit"])
@pytest.mark.parametrize("batch", [1, 5, 13])
def test_merged_batches_are_a_plain_deviation(family: str, batch: int) -> None:
    model = vt.wrap(EVERY[family]().double())
    inputs = images(model, 13)
    actual = vt.collect_activation_stats(model, inputs, batch_size=batch)
    expected = compute_moments(model, inputs)
    assert actual.description == "images:13"
    assert actual.size == tuple(inputs.shape[-2:])
    assert actual.moments.keys() == expected.keys()
    for key, (mean, std) in expected.items():
        assert torch.allclose(actual.moments[key].mean, mean, rtol=1e-9, atol=1e-12)
        assert torch.allclose(actual.moments[key].std, std, rtol=1e-9, atol=1e-12)


def test_a_norm_that_ends_its_branch_is_found_too() -> None:
    actual = vt.collect_activation_stats(EVERY["tv_swin_v2"](), images(EVERY["tv_swin_v2"](), 12))
    assert {point for point, _ in actual.moments} == {"attn", "resid_post"}


def test_far_from_zero_the_deviation_keeps_its_digits() -> None:
    values = 1e4 + torch.randn(1000, 1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parts = [Moments(part.mean(0), ((part - part.mean(0)) ** 2).sum(0), len(part)) for part in values.split(7)]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    assert torch.allclose(merged.std, values.std(dim=0), rtol=1e-10)


def test_pooled_statistics_see_all_tokens() -> None:
    model = vt.wrap(FAMILIES["registers"]().double())
    inputs = images(model, 11)
    recorded: list[Tensor] = []
    model.module.blocks[2].norm1.register_forward_hook(lambda m, a, out: recorded.append(out))
    verified(model)
    recorded.clear()
    pooled = vt.collect_activation_stats(model, inputs, batch_size=11).pooled().moments["norm1", 2]
    everything = recorded[0].flatten(0, 1)
    assert pooled.n == len(everything)
    assert torch.allclose(pooled.mean[0], everything.mean(dim=0))
    assert torch.allclose(pooled.std[0], everything.std(dim=0))


def test_noise_is_uniform_in_pixels_and_seeded(model: vt.VisionModel) -> None:
    seen: list[Tensor] = []
    handle = model.module.patch_embed.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    verified(model)
    seen.clear()
    actual = vt.collect_activation_stats(model, noise=40, batch_size=16)
    handle.remove()
    mean, std = (torch.tensor(entry).view(3, 1, 1) for entry in (model.preprocess.mean, model.preprocess.std))
    pixels = torch.cat(seen) * std + mean
    assert actual.description == "noise:40"
    assert pixels.shape == (40, 3, 32, 32)
    assert -1e-5 < pixels.min() < 0.001
    assert 0.999 < pixels.max() < 1 + 1e-5
    assert pixels.var().item() == pytest.approx(1 / 12, rel=0.02)
    assert_same(vt.collect_activation_stats(model, noise=40, batch_size=7), actual)
    assert vt.collect_activation_stats(model, noise=40, seed=1) != actual


def test_merging_needs_the_same_model_and_size(model: vt.VisionModel) -> None:
    one, other = (
        vt.collect_activation_stats(model, images(model, 10)),
        vt.collect_activation_stats(model, images(model, 10, seed=1)),
    )
    both = vt.collect_activation_stats(model, torch.cat([images(model, 10), images(model, 10, seed=1)]))
    assert_same(one.merge(other), both)
    with pytest.raises(vt.VitreousError, match="cannot be merged"):
        one.merge(replace(other, model="another"))


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_gives_the_same_back(model: vt.VisionModel, tmp_path: Path) -> None:
    result = vt.collect_activation_stats(model, images(model, 12))
    for entry in (result, result.pooled()):
        read = vt.ActivationStats.load(entry.save(tmp_path / "deep" / "s.safetensors", overwrite=True))
        assert read == entry
        assert hash(read) == hash(entry)
        assert pickle.loads(pickle.dumps(read)) == entry
        assert_same(read, entry)
    assert result != result.pooled()
    assert result != replace(result, count=13)
    assert result != "images:12"
    assert str(read) == str(tmp_path / "deep" / "s.safetensors")
    assert str(result) == "images:12"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["s.safetensors"]


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    path.write_bytes(content)
    with pytest.raises(vt.VitreousError, match=r"s\.safetensors holds no statistics that can be read") as reported:
        vt.ActivationStats.load(path)
    assert "\n" not in str(reported.value)


def test_a_place_that_cannot_be_written_is_named(model: vt.VisionModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(vt.VitreousError, match="could not write"):
        vt.collect_activation_stats(model, images(model, 12)).save(tmp_path / "file" / "s.safetensors")
    for out in (tmp_path, tmp_path / "file" / "s.safetensors"):  # before any work
        with pytest.raises(vt.VitreousError, match=r"could not write|no such file"):
            vt.collect_activation_stats(model, "nothing is read", out=out)


# -- stopping and going on ---------------------------------------------------------------------------------------------


def stop_after(count: int) -> Any:
    def progress(done: float, total: int | None) -> None:
        if done >= count:
            raise KeyboardInterrupt

    return progress


def test_a_stopped_collection_goes_on(model: vt.VisionModel, photos: Path, tmp_path: Path) -> None:
    full = vt.collect_activation_stats(model, photos)
    out = tmp_path / "s.safetensors"
    with pytest.raises(KeyboardInterrupt):
        vt.collect_activation_stats(model, photos, out=out, batch_size=4, progress=stop_after(8))
    assert not out.exists()
    assert vt.ActivationStats.load(f"{out}.partial").num_seen == 8
    reported: list[float] = []
    actual = vt.collect_activation_stats(
        model, photos, out=out, resume=True, batch_size=3, progress=lambda done, total: reported.append(done)
    )
    assert reported == [11, 13]
    assert_same(actual, full)
    assert_same(vt.ActivationStats.load(out), full)
    assert [path.name for path in tmp_path.glob("s.*")] == ["s.safetensors"]
    assert vt.collect_activation_stats(model, photos, out=out, resume=True) == actual  # nothing is left to do


def test_noise_and_tensors_go_on_too(model: vt.VisionModel, tmp_path: Path) -> None:
    for source in ({"noise": 20}, {"images": images(model, 20)}):
        out = tmp_path / f"{next(iter(source))}.safetensors"
        with pytest.raises(KeyboardInterrupt):
            vt.collect_activation_stats(model, **source, out=out, batch_size=6, progress=stop_after(12))
        assert_same(
            vt.collect_activation_stats(model, **source, out=out, resume=True),
            vt.collect_activation_stats(model, **source),
        )


def test_other_pictures_or_another_model_are_not_gone_on_with(
    model: vt.VisionModel, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "s.safetensors"
    vt.collect_activation_stats(model, photos, out=out)
    with pytest.raises(vt.VitreousError, match="is there already"):
        vt.collect_activation_stats(model, photos, out=out)
    shutil.copytree(photos, tmp_path / "more")
    (tmp_path / "more" / "05.png").write_bytes((tmp_path / "more" / "06.png").read_bytes())
    with pytest.raises(vt.VitreousError, match="was made from other images"):
        vt.collect_activation_stats(model, tmp_path / "more", out=out, resume=True)
    with pytest.raises(vt.VitreousError, match="it cannot be resumed here"):
        vt.collect_activation_stats(model, noise=20, out=out, resume=True)
    (photos / "99.png").write_bytes((photos / "00.png").read_bytes())
    assert vt.collect_activation_stats(model, photos, out=out, resume=True).count == 14
    assert vt.collect_activation_stats(model, photos, out=out, overwrite=True).count == 14


def test_pictures_that_cannot_be_read_are_reported_or_raised(
    model: vt.VisionModel, photos: Path, tmp_path: Path
) -> None:
    (photos / "03.png").write_bytes(b"broken")
    with pytest.raises(vt.VitreousError, match=r"03\.png"):
        vt.collect_activation_stats(model, photos)
    lost: list[str] = []
    actual = vt.collect_activation_stats(model, photos, on_error=lambda path, error: lost.append(path.name))
    assert lost == ["03.png"]
    assert (actual.count, actual.num_seen) == (12, 13)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({}, "either images or noise"),
        ({"images": 1, "noise": 9}, "either images or noise"),
        ({"noise": 1}, "noise=1 must be at least 2"),
        ({"noise": 5, "batch_size": 0}, "batch_size=0"),
        ({"images": "nowhere"}, "nowhere"),
    ],
)
def test_bad_wishes_are_named(model: vt.VisionModel, source: dict[str, Any], complaint: str) -> None:
    with pytest.raises(vt.VitreousError, match=complaint):
        vt.collect_activation_stats(model, **source)


def test_few_images(model: vt.VisionModel) -> None:
    with pytest.raises(vt.VitreousError, match="statistics of 1 images have no deviation"):
        vt.collect_activation_stats(model, images(model, 1))
    with pytest.warns(vt.VitreousWarning, match="statistics of 4 images are rough"):
        vt.collect_activation_stats(model, images(model, 4))


def test_nothing_is_left_behind(model: vt.VisionModel) -> None:
    model.module.train()
    before = [(len(m._forward_hooks), m.training) for m in model.module.modules()]
    vt.collect_activation_stats(model, images(model, 12))
    assert [(len(m._forward_hooks), m.training) for m in model.module.modules()] == before
    assert all(weight.grad is None and weight.requires_grad for weight in model.module.parameters())


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_writes_what_coiba_reads(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("stats", *MODEL, photos, "--out", "s.safetensors")
    assert (done.code, done.err) == (0, "")
    assert done.out == "images:13 at 32 x 32 in timm/test_vit, written to s.safetensors\n"
    again = run("stats", *MODEL, photos, "--out", "s.safetensors")
    assert again.code == 2
    assert (
        again.err
        == "vitreous: error: s.safetensors is there already; choose another --out, or add --overwrite or --resume\n"
    )
    reported = run("stats", *MODEL, photos, "--out", "s.safetensors", "--resume", "--json")
    assert json.loads(reported.out) == {
        "schema": "vitreous.statistics/1",
        "model": "timm/test_vit",
        "input_size": [32, 32],
        "source": "images:13",
        "file": "s.safetensors",
    }
    method = "coiba(steps=2, samples=1, stats='s.safetensors')"
    explained = run("explain", photos / "00.png", "--model", *MODEL, "--method", method, "--json")
    assert json.loads(explained.out)["explanations"][0]["settings"]["statistics"] == "images:13"


def test_the_command_complains_in_one_line(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in ((), (photos, "--noise", "5")):
        done = run("stats", *MODEL, *arguments)
        assert (done.code, done.err) == (2, "vitreous: error: give either images or --noise N\n")
    (photos / "03.png").write_bytes(b"broken")
    done = run("stats", *MODEL, photos, "--quiet")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("vitreous: warning: skipped")
    assert done.err.count("\n") == 1
    assert run("stats", *MODEL, "--noise", "12", "--out", "n.safetensors", "-q").code == 0
