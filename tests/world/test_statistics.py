"""Statistics of the world: what they are, who uses them and with what model, one scene at a time and slowly."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitreous as vt
from families import FAMILIES, images
from reference_bottleneck import reference
from vitreous.tracing import Context, Target
from vitreous.tracing import statistics_collect as scenes
from vitreous.tracing.statistics import ActivationStats, Moments
from vitreous.tracing.statistics_collect import SCENES, world_statistics
from vitreous.world import Scene, render
from vitreous.world.dataset import SPLITS
from zoo import EVERY

SHORT = "coiba(steps=3, samples=2)"


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing in memory, and a cache folder of its own that is not there yet."""
    scenes._cached.clear()
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    scenes._cached.clear()


def slowly(model: nn.Module, size: tuple[int, int], modules: list[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """Mean and deviation of what these modules give, over the 64 scenes from seed 2^52 on, each on its own."""
    vision_model, remaining = vt.wrap(model), [[] for _ in modules]
    handles = [
        module.register_forward_hook(lambda m, a, out, into=into: into.append(out[0]))
        for module, into in zip(modules, remaining, strict=True)
    ]
    mean, std = (
        torch.tensor(item).view(3, 1, 1) for item in (vision_model.preprocess.mean, vision_model.preprocess.std)
    )
    with torch.no_grad():
        for seed in range(2**52, 2**52 + 64):
            picture = render(Scene.of(seed), max(16, *size)).images
            if picture.shape[-2:] != size:
                picture = F.interpolate(picture, size, mode="bilinear", antialias=True)
            model(((picture - mean) / std).to(next(model.parameters())))
    for handle in handles:
        handle.remove()
    stacked = [torch.stack(item).double() for item in remaining]
    return [(item.mean(dim=0), item.std(dim=0)) for item in stacked]


# -- the numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["vit", "registers", "siglip", "nonsquare"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_they_are_those_of_a_plain_loop(family: str, dtype: torch.dtype) -> None:
    model = FAMILIES[family]().to(dtype)
    vision_model = vt.wrap(model)
    size = vision_model.preprocess.size
    expected = slowly(model, size, [block.norm1 for block in model.blocks] + list(model.blocks))
    actual = [world_statistics(vision_model, size, point) for point in ("norm1", "resid_post")]
    both = [
        item.moments[point, layer]
        for item, point in zip(actual, ("norm1", "resid_post"), strict=True)
        for layer in (0, 1, 2)
    ]
    close = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    for moments, (mean, std) in zip(both, expected, strict=True):
        assert moments.n == 64
        assert moments.mean.dtype == dtype
        torch.testing.assert_close(moments.mean.double(), mean, **close)
        torch.testing.assert_close(moments.std.double(), std, **close)
    assert [(item.description, item.size, item.model) for item in actual] == [("world:64", size, vision_model.name)] * 2


def test_they_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch, ran: list[int]) -> None:
    monkeypatch.setenv("VITREOUS_CACHE", "")
    model, built = vt.wrap(FAMILIES["vit"]().double()), []
    for together in (1, 7, 64):
        scenes._cached.clear()
        monkeypatch.setattr(scenes, "_SCENE_BATCH", together)
        built.append(world_statistics(model, (32, 32), "norm1"))
    assert sum(ran) == 3 * 64
    assert ran[64:74] == [7] * 9 + [1]
    for other in built[1:]:
        for key, moments in built[0].moments.items():
            assert torch.allclose(moments.mean, other.moments[key].mean, rtol=1e-10, atol=1e-12)
            assert torch.allclose(moments.square, other.moments[key].square, rtol=1e-10)


def test_no_split_of_the_world_has_these_scenes() -> None:
    assert max(SPLITS.values()) + 2**50 <= 2**52


@pytest.mark.parametrize("size", [(8, 8), (8, 40), (48, 32)])
def test_scenes_of_any_size(size: tuple[int, int]) -> None:
    several = scenes.scenes(size, 3, 5)
    assert several.shape == (2, 3, *size)
    assert 0 <= several.min() < several.max() <= 1
    assert torch.equal(scenes.scenes(size, 4, 5), several[1:])


# -- who uses them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["vit", "nonsquare"])
def test_coiba_is_its_definition_with_them(family: str) -> None:
    """The default, against the reference of the definition with moments of the plain loop."""
    model = FAMILIES[family]().double()
    inputs, modules = images(model, 2), [model.blocks[layer].norm1 for layer in (1, 2)]
    actual = vt.get_method("coiba(samples=3)").attribute(model, inputs, target=3)
    moments = slowly(model, vt.wrap(model).preprocess.size, modules)
    for index, image in enumerate(inputs):
        tokens, *_ = reference(model, image, modules, "coiba", 1, moments=moments)
        assert torch.allclose(actual[index].flatten(), tokens[1:], rtol=1e-6)


@pytest.mark.parametrize("name", ["coiba", "iba", "iba_star"])
def test_they_are_the_default(name: str, ran: list[int]) -> None:
    model = FAMILIES["gap"]()
    vision_model, way = vt.wrap(model), vt.get_method(f"{name}(steps=3, samples=2)")
    assert way.stats == "world"
    assert way.notes == {"statistics": "world:64"}
    assert way.settings["stats"] == "world"
    assert way == vt.get_method(f"{name}(steps=3, samples=2, stats=world)")
    actual = way.attribute(model, images(model, 2), target=1)
    assert sum(ran) == SCENES
    inputs_of_call = replace(way, stats=world_statistics(vision_model, (32, 32), way.point(vision_model)))
    assert torch.equal(actual, inputs_of_call.attribute(model, images(model, 2), target=1))
    assert sum(ran) == SCENES
    own = replace(way, stats="own").attribute(model, images(model, 2), target=1)
    assert not torch.allclose(actual, own, rtol=1e-2)


def test_the_identity_of_a_result_does_not_know_the_cache(ran: list[int]) -> None:
    model, way = FAMILIES["vit"](), vt.get_method(SHORT)
    before = way.fingerprint
    first = vt.explain(model, images(model, 1)[0], way)
    scenes._cached.clear()
    again = vt.explain(model, images(model, 1)[0], way)
    assert sum(ran) == SCENES
    assert torch.equal(first.map, again.map)
    assert first.identity == again.identity
    assert first.request.settings == again.request.settings
    assert way.fingerprint == before != replace(way, stats="own").fingerprint


@pytest.mark.parametrize("seed", [1, 5])
def test_the_seed_is_not_theirs(seed: int, ran: list[int]) -> None:
    model = FAMILIES["vit"]()
    vt.get_method(SHORT).attribute(model, images(model, 1), seed=0)
    vt.get_method(SHORT).attribute(model, images(model, 1), seed=seed)
    assert sum(ran) == SCENES


def test_hierarchical_models_have_them(ran: list[int]) -> None:
    model = vt.wrap(EVERY["swin"]())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert vt.get_method(SHORT).attribute(model, images(model, 1)).isfinite().all()
    assert sum(ran) == SCENES


def test_a_part_that_is_too_large_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    real, sizes = scenes.statistics_of, []

    def narrow(model: vt.VisionModel, inputs: Tensor, *others: Any) -> ActivationStats:
        sizes.append(len(inputs))
        if len(inputs) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(model, inputs, *others)

    monkeypatch.setattr(scenes, "statistics_of", narrow)
    assert world_statistics(vt.wrap(FAMILIES["vit"]()), (32, 32), "norm1").count == 64
    assert sizes == [8, 4, *[2] * 32]


def test_progress_shows_the_first_use() -> None:
    """The picture, then eight parts of the scenes, then two steps of two replicas; what was told is not taken back."""
    model = FAMILIES["vit"]()
    parts = [max(1 / 5, (1 + 8 * part) / 69) for part in range(1, 9)]
    for expected in ([1 / 5, *parts, 67 / 69, 1, 1], [1 / 5, 3 / 5, 1, 1]):
        text: list[float] = []
        vt.explain(model, images(model, 1)[0], SHORT, progress=lambda done, total, text=text: text.append(done))
        assert text == pytest.approx(expected)
        assert text == sorted(text)
        assert max(text) == 1


# -- parts of models, and models of other things -----------------------------------------------------------------------


def shifted(model: vt.VisionModel, first: int, like: Tensor) -> ActivationStats:
    """The statistics of a whole model as those of its part from a block on."""
    built = world_statistics(model, model.preprocess.size, "norm1")
    moments = {(point, layer - first): moment for (point, layer), moment in built.moments.items() if layer >= first}
    return ActivationStats(f"{model.name}[{first}:]", tuple(like.shape[-2:]), "world", 64, moments)


@pytest.mark.parametrize("text", [True, False])
def test_a_sub_network_has_those_of_the_whole(text: bool) -> None:
    model = FAMILIES["vit"]()
    vision_model, inputs = vt.wrap(model), images(model, 2)
    tokens = vision_model.forward_blocks(vision_model.embed(inputs), 0, 1).detach()
    part = vision_model.suffix(1, inputs if text else None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = vt.get_method(SHORT).attribute(part, tokens, 1)
    inputs_of_call = replace(vt.get_method(SHORT), stats=shifted(vision_model, 1, tokens))
    assert torch.equal(actual, inputs_of_call.attribute(part, tokens, 1))


def test_sums_over_sub_networks_make_them_once(ran: list[int]) -> None:
    model = FAMILIES["vit"]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = vt.get_method(f"plus({SHORT}, via=subnetwork)").attribute(model, images(model, 2), 1)
    assert actual.isfinite().all()
    assert sum(ran) == SCENES
    shuffled = vt.wrap(model).permute_head()
    assert vt.get_method(SHORT).attribute(shuffled, images(model, 1), 1).isfinite().all()
    assert sum(ran) == SCENES


def test_tokens_of_nobody_knows_what_get_their_own(ran: list[int]) -> None:
    """A model whose inputs are tokens from the start."""
    model = vt.wrap(FAMILIES["vit"]())
    tokens = model.embed(images(model, 2)).detach()

    class OfTokens(type(model)):  # type: ignore[misc]
        def check_inputs(self, inputs: Tensor) -> None:
            assert inputs.ndim == 3

        def verify(self, inputs: Tensor) -> None:
            pass

        def embed(self, inputs: Tensor) -> Tensor:
            return inputs

        def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
            return 4, 4

    model.__class__ = OfTokens
    with pytest.warns(vt.VitreousWarning, match=r"coiba: the inputs of .* are tokens, .* own tokens") as text:
        actual = vt.get_method(SHORT).attribute(model, tokens, 1)
    assert len(text) == 1
    assert "\n" not in str(text[0].message)
    assert torch.equal(actual, replace(vt.get_method(SHORT), stats="own").attribute(model, tokens, 1))
    assert not ran


def test_a_part_of_a_part_knows_its_images() -> None:
    model = FAMILIES["vit"]()
    inputs = images(model, 1)
    vision_model = Context(vt.wrap(model), inputs, Target.of(vt.wrap(model), 1, 1)).model
    inner = vision_model.suffix(1, inputs).suffix(1, vision_model.embed(inputs))
    assert inner.image_size == (32, 32)
    assert scenes._full_model(inner) == (vision_model, 2)


def test_models_of_one_channel_get_their_own(ran: list[int], fresh: Path) -> None:
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
    model = VisionTransformer(in_chans=1, **sizes).eval()
    vision_model = vt.wrap(model)

    class Grey(type(vision_model)):  # type: ignore[misc]
        def check_inputs(self, inputs: Tensor) -> None:
            assert inputs.shape[1] == 1

        def _check_values(self, inputs: Tensor) -> None:
            """Take images of one channel."""

    vision_model.__class__ = Grey
    inputs = torch.randn(2, 1, 32, 32)
    for name in ("coiba", "iba", "iba_star"):
        way = vt.get_method(f"{name}(steps=3, samples=2)")
        with pytest.warns(vt.VitreousWarning, match=f"{name}: .* does not take images of three channels") as text:
            actual = way.attribute(vision_model, inputs, 1)
        assert len(text) == 1
        assert torch.equal(actual, replace(way, stats="own").attribute(vision_model, inputs, 1))
    assert not ran
    assert not fresh.exists()


# -- half precision ----------------------------------------------------------------------------------------------------


def test_half_precision_is_refused_on_a_cpu() -> None:
    model = FAMILIES["vit"]()
    assert vt.get_method("coiba").half is False
    with pytest.raises(vt.VitreousError, match="coiba: half=true runs in float16 on a GPU, and the model is on cpu"):
        vt.get_method("coiba(half=true)").attribute(model, images(model, 1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("options", ["", "compress=layers, ", "damping=channel, "])
def test_half_precision_is_close(options: str) -> None:
    model = vt.load("world", device="cuda")
    inputs = images(model, 4).cpu()
    one, two = (vt.get_method(f"coiba({options}half={name})").attribute(model, inputs, 1) for name in ("true", "false"))
    assert one.dtype == torch.float32
    for a, b in zip(one.flatten(1), two.flatten(1), strict=True):
        assert torch.corrcoef(torch.stack([a.argsort().argsort(), b.argsort().argsort()]).double())[0, 1] > 0.99


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_half_precision_cannot_hold_is_said() -> None:
    model = FAMILIES["vit"]().cuda()
    with torch.no_grad():
        model.blocks[-1].mlp.fc1.weight *= 1e6
    with pytest.raises(vt.VitreousError, match="in float16 is not finite; use half=false"):
        vt.get_method("coiba(half=true)").attribute(model, images(model, 1).cpu(), 1)


def test_moments_of_another_shape_are_refused() -> None:
    """What is given is still checked: the world's are not trusted more than a file."""
    model = FAMILIES["vit"]()
    built = world_statistics(vt.wrap(model), (32, 32), "norm1")
    cut = {key: Moments(moment.mean[:5], moment.square[:5], moment.n) for key, moment in built.moments.items()}
    with pytest.raises(vt.VitreousError, match="do not fit tokens"):
        replace(vt.get_method(SHORT), stats=replace(built, moments=cut)).attribute(model, images(model, 1))
