"""CoIBA, IBA and IBA* on transformers: their definitions with plain hooks and torch's own Adam, and how they run."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous as vt
from families import FAMILIES, images, verified
from reference_bottleneck import SAMPLES, TARGET, reference, seen
from vitreous.tracing import Context, Target
from vitreous.tracing.runner import logits_with_patches
from zoo import EVERY


def compare(spec: str, model: nn.Module, layers: list[int], **method: Any) -> None:
    """The map and the history of two images equal those of the reference."""
    inputs = images(model, 2)
    of_tokens = replace(vt.get_method(spec), stats="own")
    actual, extras = of_tokens.attribute(model, inputs, target=TARGET, extras=True)
    point = (lambda block: block) if spec.startswith("iba") else (lambda block: block.norm1)
    modules = [point(model.blocks[layer]) for layer in layers]
    for index, image in enumerate(inputs):
        tokens, informations, entropies = reference(model, image, modules, spec.split("(")[0], **method)
        expected = tokens[model.num_prefix_tokens :].reshape(actual.shape[1:])
        assert torch.allclose(actual[index], expected, rtol=1e-7, atol=1e-9)
        assert extras["information"][index].tolist() == pytest.approx(informations[:-1], rel=1e-7)
        assert extras["relevance"][index].tolist() == pytest.approx([-entropy for entropy in entropies[:-1]], rel=1e-7)


# -- definitions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["vit", "deit_distilled", "registers", "gap", "gap_all", "clip", "nonsquare"])
def test_coiba_is_its_definition(family: str) -> None:
    """Ten steps of the whole model from the image, element-wise divergence, last forward read: 9 cached ones equal."""
    compare(f"coiba(samples={SAMPLES})", FAMILIES[family]().double(), [1, 2], beta=1)


@pytest.mark.parametrize(
    ("options", "layers", "method"),
    [
        ("start=0", [0, 1, 2], {"beta": 1}),
        ("start=1, stop=2", [1], {"beta": 1}),
        ("beta=20", [1, 2], {"beta": 20}),
        ("compress=layers", [1, 2], {"beta": 1, "every_term": True}),
        ("damping=channel", [1, 2], {"beta": 1, "channels": True}),
        ("ratios=layer", [1, 2], {"beta": 1, "individual": True}),
        ("ratios=layer, compress=layers, beta=3", [1, 2], {"beta": 3, "individual": True, "every_term": True}),
        ("damping=channel, compress=layers, beta=3", [1, 2], {"beta": 3, "channels": True, "every_term": True}),
        ("watch=true", [1, 2], {"beta": 1}),
    ],
)
def test_variants_of_coiba(options: str, layers: list[int], method: dict[str, Any]) -> None:
    compare(f"coiba({options}, samples={SAMPLES})", FAMILIES["vit"]().double(), layers, **method)


@pytest.mark.parametrize("family", ["vit", "deit_distilled", "registers", "gap"])
def test_iba_is_its_definition(family: str) -> None:
    compare(f"iba(samples={SAMPLES})", FAMILIES[family]().double(), [0], beta=10, channels=True)


def test_iba_after_the_last_block_and_with_one_ratio_per_token() -> None:
    model = FAMILIES["gap"]().double()
    compare(f"iba(layer=-1, samples={SAMPLES})", model, [2], beta=10, channels=True)
    compare(f"iba(layer=0, beta=2, damping=token, samples={SAMPLES})", model, [0], beta=2)


@pytest.mark.parametrize(("family", "layers"), [("vit", [0, 1]), ("gap", [0, 1, 2])])
def test_iba_star_is_the_sum_of_iba(family: str, layers: list[int]) -> None:
    model = FAMILIES[family]()
    inputs = images(model, 2)
    actual, extras = vt.get_method("iba_star(samples=2, steps=4)").attribute(model, inputs, target=1, extras=True)
    item = [vt.get_method(f"iba(layer={l}, samples=2, steps=4)").attribute(model, inputs, target=1) for l in layers]
    assert torch.equal(extras["layers"], torch.stack(item, dim=1))
    assert torch.equal(actual, torch.stack(item, dim=1).sum(dim=1))


def test_statistics_of_images_are_those_of_a_plain_forward() -> None:
    model = FAMILIES["vit"]().double()
    statistics = vt.collect_activation_stats(model, images(model, 12, seed=5))
    modules = [model.blocks[layer].norm1 for layer in (1, 2)]
    values = seen(model, modules, images(model, 12, seed=5))
    moments = [(value.mean(dim=0), value.std(dim=0)) for value in values]
    inputs = images(model, 1)
    method = replace(vt.get_method(f"coiba(samples={SAMPLES})"), stats=statistics)
    tokens, *_ = reference(model, inputs[0], modules, "coiba", 1, moments=moments)
    assert torch.allclose(method.attribute(model, inputs, target=TARGET).flatten(), tokens[1:], rtol=1e-7)
    pooled = [(value.mean(dim=(0, 1)), value.flatten(0, 1).std(dim=0)) for value in values]
    tokens, *_ = reference(model, inputs[0], modules, "coiba", 1, moments=pooled)
    method = replace(method, stats=statistics.pooled())
    assert torch.allclose(method.attribute(model, inputs, target=TARGET).flatten(), tokens[1:], rtol=1e-7)


# -- how it runs -------------------------------------------------------------------------------------------------------


def test_a_large_beta_lets_less_pass_everywhere() -> None:
    model = FAMILIES["vit"]()
    inputs = images(model, 2)
    free, tight = (vt.get_method(f"coiba(beta={beta})").attribute(model, inputs, target=0) for beta in (0, 1e6))
    assert (tight < free).all()
    _, extras = vt.get_method("coiba(beta=1e6)").attribute(model, inputs, target=0, extras=True)
    assert (extras["information"].diff(dim=1) < 0).all()


# -- what it runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "rows"), [(None, [60] * 9), (25, [20, 20, 20] * 9), (4, [4] * 135)])
def test_blocks_below_run_once_and_those_above_nine_times(batch: int | None, rows: list[int]) -> None:
    """Six images, ten replicas: whole images in a part where possible, and never more than the batch allows."""
    model = FAMILIES["vit"]()
    ran: dict[int, list[int]] = {0: [], 2: []}
    for layer, counted in ran.items():
        model.blocks[layer].register_forward_hook(lambda m, a, out, counted=counted: counted.append(len(out)))
    verified(model)
    ran[0].clear(), ran[2].clear()
    vt.get_method("coiba(stats=own)").attribute(model, images(model, 6), batch_size=batch)
    clean = len(ran[0])
    assert sum(ran[0]) == 6
    assert ran[2][clean:] == rows


def test_progress_counts_every_input() -> None:
    model = FAMILIES["vit"]()
    for spec in ("coiba", "coiba(compress=layers)", "coiba(stats=noise)", "coiba(stats=own)", "iba", "iba_star"):
        method, reported = vt.get_method(spec), []
        vt.explain(
            model, images(model, 2), method, progress=lambda done, total, reported=reported: reported.append(done)
        )
        assert reported == sorted(reported)
        assert reported[-1] == 2
        assert reported[-2] == pytest.approx(2, abs=1e-9), spec


def test_weights_get_no_gradient_and_keep_their_own() -> None:
    model = FAMILIES["vit"]()
    weights = list(model.parameters())
    for index, weight in enumerate(weights):
        weight.requires_grad_(index % 3 > 0)
        weight.grad = torch.ones_like(weight) if index % 2 else None
        if weight.requires_grad:
            weight.register_hook(partial(pytest.fail, "a weight got a gradient"))
    for spec in ("coiba(steps=3, samples=2)", "iba(steps=3, samples=2)", "iba_star(steps=2, samples=2)"):
        vt.get_method(spec).attribute(model, images(model, 1))
    for index, weight in enumerate(weights):
        assert weight.requires_grad == (index % 3 > 0)
        assert torch.equal(weight.grad, torch.ones_like(weight)) if index % 2 else weight.grad is None


def test_an_image_that_fails_does_not_touch_its_neighbour() -> None:
    model = FAMILIES["vit"]()
    inputs = images(model, 2)

    def target(logits: Tensor) -> Tensor:
        broken = torch.arange(len(logits)) >= len(logits) // 2
        return logits[:, 0] * torch.ones(len(logits)).masked_fill(broken, float("nan"))

    context = Context(vt.wrap(model), inputs, Target.of(vt.wrap(model), 2, target))
    actual = vt.get_method("coiba(steps=3, samples=4)").compute(context).map
    alone = vt.get_method("coiba(steps=3, samples=4)").attribute(model, inputs[:1], lambda logits: logits[:, 0])
    assert torch.allclose(actual[:1], alone, rtol=1e-5)
    assert actual[1].isnan().all()


def test_memory_that_runs_out_halves_the_parts_once() -> None:
    model = FAMILIES["vit"]()
    inputs = images(model, 2)
    expected = vt.get_method("coiba(steps=4, stats=own)").attribute(model, inputs, target=1)
    sizes: list[int] = []

    def narrow(module: nn.Module, args: Any, output: Tensor) -> None:
        sizes.append(len(output))
        if len(output) > 12:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.blocks[2].register_forward_hook(narrow)
    actual = vt.get_method("coiba(steps=4, stats=own)").attribute(model, inputs, target=1)
    assert torch.allclose(actual, expected, rtol=1e-4)
    assert sum(size > 12 for size in sizes) == 1


def test_changes_at_every_kind_of_place() -> None:
    """Identity changes nothing, a block's output is the next one's input, and gradients flow through."""
    model = vt.wrap(FAMILIES["vit"]())
    inputs = images(model, 2)
    tokens = model.forward_blocks(model.embed(inputs), 0, 1).detach()
    unchanged = model.logits(inputs)
    every = {1: torch.clone, 2: torch.clone}
    with torch.no_grad():
        for point in ("resid_pre", "norm1", "attn", "norm2", "mlp", "resid_post"):
            assert torch.allclose(logits_with_patches(model, tokens, 1, point, every), unchanged, atol=1e-5)
        twice = {1: lambda value: value * 2}
        after = logits_with_patches(model, tokens, 1, "resid_post", twice)
        assert torch.equal(after, logits_with_patches(model, tokens, 1, "resid_pre", {2: twice[1]}))
        last = logits_with_patches(model, tokens, 1, "resid_post", {2: twice[1]})
        assert torch.equal(last, logits_with_patches(model, tokens, 1, "resid_pre", {3: twice[1]}))
    factor = torch.ones((), requires_grad=True)
    logits = logits_with_patches(model, tokens, 1, "norm1", {1: lambda value: value * factor})
    (slope,) = torch.autograd.grad(logits.sum(), factor)
    assert slope != 0


# -- layers ------------------------------------------------------------------------------------------------------------


def test_default_layers_scale_with_the_depth() -> None:
    model = vt.load("timm/vit_tiny_patch16_224", pretrained=False, img_size=32)
    assert vt.get_method("coiba").layers(model) == tuple(range(4, 12))
    assert vt.get_method("iba").layers(model) == (5,)  # the sixth of twelve
    assert vt.get_method("iba_star").layers(model) == tuple(range(11))


def test_a_hierarchical_model_is_looked_at_inside_one_stage() -> None:
    model = vt.load("timm/swin_tiny_patch4_window7_224", pretrained=False)
    assert vt.get_method("coiba").layers(model) == tuple(range(4, 10))  # 14 x 14 tokens
    assert vt.get_method("coiba(start=6)").layers(model) == tuple(range(6, 10))
    assert vt.get_method("coiba(stop=2)").layers(model) == (0, 1)
    assert vt.get_method("iba").layers(model) == (6,)
    assert vt.get_method("iba_star").layers(model) == tuple(range(4, 9))  # block 9 ends on the next grid
    with pytest.raises(vt.VitreousError, match=r"layers 2 \.\. 10 of .* several grids"):
        vt.get_method("coiba(start=2, stop=10)").layers(model)


def test_all_layers_of_the_stage_are_damped() -> None:
    model = EVERY["swin"]()
    vision_model = vt.wrap(model)
    actual, extras = vt.get_method("coiba(watch=true)").attribute(vision_model, images(vision_model, 2), extras=True)
    assert actual.shape == (2, 4, 4)
    assert extras["layer_information"].shape == (2, 9, 2)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("coiba(start=2, stop=2)", "layers 2 .. 2 are none: start must be below stop"),
        ("coiba(start=2, stop=1)", "layers 2 .. 1 are none"),
        ("coiba(stop=9)", "stop at most 3"),
        ("coiba(start=7)", "layer 7 is outside 0..2"),
        ("iba(layer=3)", "layer 3 is outside 0..2"),
        ("iba(layer=-1)", "patches do not reach the class from the output of block 2"),
        ("iba_star(stop=3)", "patches do not reach the class from the output of block 2"),
        ("coiba(stats=missing)", "no statistics at missing"),
    ],
)
def test_layers_and_files_that_are_not_there(spec: str, complaint: str) -> None:
    model = FAMILIES["vit"]()
    with pytest.raises(vt.VitreousError, match=complaint) as reported:
        vt.get_method(spec).attribute(model, images(model, 1))
    assert "\n" not in str(reported.value)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("coiba(steps=0)", "steps=0 must be at least 2"),
        ("coiba(steps=1)", "steps=1 must be at least 2"),
        ("iba(samples=0)", "samples=0 must be at least 1"),
        ("coiba(lr=0)", "lr=0.0 must be above 0"),
        ("iba_star(beta=-1)", "beta=-1.0 must be at least 0"),
        ("coiba(stats='')", "stats is empty"),
        ("coiba(compress=both)", "compress='both' is not one of first, layers"),
        ("coiba(damping=x)", "damping='x' is not one of token, channel"),
        ("coiba(ratios=x)", "ratios='x' is not one of shared, layer"),
        ("iba(damping=x)", "damping='x' is not one of token, channel"),
    ],
)
def test_bad_parameters_are_named(spec: str, complaint: str) -> None:
    with pytest.raises(vt.VitreousError, match=complaint):
        vt.get_method(spec)


# -- statistics in use -------------------------------------------------------------------------------------------------


def test_statistics_of_another_model_or_size_are_refused(tmp_path: Any) -> None:
    model = vt.load("timm/test_vit", pretrained=False, img_size=32)
    other = vt.load("timm/test_vit2", pretrained=False, img_size=32)
    large = vt.load("timm/test_vit", pretrained=False, img_size=64)
    statistics = vt.collect_activation_stats(model, noise=12)
    path = statistics.save(tmp_path / "s.safetensors")
    method = vt.get_method(f"coiba(steps=2, samples=1, stats='{path}')")
    method.attribute(model, images(model, 1))
    with pytest.raises(vt.VitreousError, match="are those of timm/test_vit, not of timm/test_vit2"):
        method.attribute(other, images(other, 1))
    with pytest.raises(vt.VitreousError, match="were made at 32 x 32, the input is 64 x 64; pool them"):
        method.attribute(large, images(large, 1))
    replace(method, stats=statistics.pooled()).attribute(large, images(large, 1))
    few = {key: moment for key, moment in statistics.moments.items() if key[1] < 3}
    with pytest.raises(vt.VitreousError, match="no norm1 of layer 3"):
        replace(method, stats=replace(statistics, moments=few)).attribute(model, images(model, 1))


def test_noise_gives_the_same_whoever_makes_it() -> None:
    model = FAMILIES["vit"]()
    statistics = vt.collect_activation_stats(model, noise=200, batch_size=7)
    inputs = images(model, 2)
    supplied = replace(vt.get_method("coiba"), stats=statistics).attribute(model, inputs, target=1)
    assert torch.allclose(vt.get_method("coiba(stats=noise)").attribute(model, inputs, target=1), supplied, rtol=1e-4)


def test_the_source_is_recorded_in_every_explanation(tmp_path: Any) -> None:
    model = vt.load("timm/test_vit", pretrained=False, img_size=32)
    path = vt.collect_activation_stats(model, images(model, 12)).save(tmp_path / "my statistics.safetensors")
    short = "steps=2, samples=1"
    cases = {
        f"coiba({short})": ("statistics", "world:64"),
        f"coiba({short}, stats=own)": ("statistics", "own tokens"),
        f"iba({short}, stats='{path}')": ("statistics", "images:12"),
        f"coiba({short}, stats=noise)": ("statistics", "noise:200"),
        f"smooth(coiba({short}), samples=2)": (f"statistics of coiba({short})", "world:64"),
    }
    for number, (spec, (key, source)) in enumerate(cases.items()):
        actual = vt.explain(model, images(model, 1)[0], spec)
        assert actual.request.settings[key] == source
        loaded = vt.Explanation.load(actual.save(tmp_path / str(number)))
        assert loaded.request.settings == json.loads(json.dumps(actual.request.settings))
        assert vt.get_method(actual.method) == vt.get_method(spec)
    supplied = replace(vt.get_method(f"coiba({short})"), stats=vt.ActivationStats.load(path))
    assert vt.explain(model, images(model, 1)[0], supplied).request.settings["statistics"] == "images:12"
    assert vt.get_method(supplied.spec).stats == str(path)


# -- targets -----------------------------------------------------------------------------------------------------------


def test_targets() -> None:
    """Cross-entropy whatever the value; rivals and callables in its place; a probability is refused."""
    model = FAMILIES["vit"]()
    inputs = images(model, 2)
    ask = partial(vt.get_method("coiba(steps=4, samples=2)").attribute, model, inputs)
    by_class = ask(target=2)
    assert torch.equal(by_class, ask(target=2, output="logprob"))
    assert torch.allclose(by_class, ask(target=lambda logits: logits.log_softmax(1)[:, 2]), rtol=1e-5)
    rather = ask(target=2, contrast=[0, 4])
    assert torch.allclose(rather, ask(target=lambda z: z[:, 2] - z[:, [0, 4]].mean(1)), rtol=1e-4)
    assert not torch.allclose(rather, by_class, rtol=1e-2)
    with pytest.raises(vt.VitreousError, match="coiba explains the log-probability; output='prob'"):
        ask(target=2, output="prob")


def test_a_callable_has_no_accuracy() -> None:
    model = FAMILIES["vit"]()
    method, inputs = vt.get_method("coiba(steps=4, samples=5)"), images(model, 2)
    _, extras = method.attribute(model, inputs, lambda logits: logits[:, 0], extras=True)
    assert sorted(extras) == ["information", "relevance"]
    _, extras = method.attribute(model, inputs, 0, extras=True)
    assert sorted(extras) == ["accuracy", "information", "relevance"]
    assert set((extras["accuracy"] * 5).round(decimals=4).flatten().tolist()) <= {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}


def test_at_the_start_almost_everything_passes() -> None:
    """So the first accuracy is that of the model itself, and the first information is large."""
    model = FAMILIES["vit"]()
    inputs = images(model, 4)
    predicted = vt.wrap(model).logits(inputs).argmax(dim=1)
    _, right = vt.get_method("coiba(samples=20)").attribute(model, inputs, predicted, extras=True)
    _, wrong = vt.get_method("coiba(samples=20)").attribute(model, inputs, (predicted + 1) % 5, extras=True)
    assert (right["accuracy"][:, 0] > wrong["accuracy"][:, 0]).all()
    assert (right["information"][:, 0] > 4).all()


def test_a_head_of_one_logit_tells_two_classes_apart() -> None:
    model = FAMILIES["vit"]()
    model.head = nn.Linear(24, 1)
    model.num_classes = 1
    yes, no = (vt.get_method("coiba").attribute(model, images(model, 2), target=c) for c in (1, 0))
    assert not torch.allclose(yes, no)


# -- a real model ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_seeds_agree_and_the_first_layer_nearly_bounds_the_others(shared: Any) -> None:
    """Spearman above 0.9 on average; Eq. 7, the first layer's information against the mean of all layers', to 2 %."""
    from scipy.stats import spearmanr

    model = vt.load("timm/deit_tiny_patch16_224", checkpoint=shared / "deit_tiny_patch16_224.fp16.safetensors")
    files = sorted((shared / "imagenet-val-1k").iterdir())
    photographs = vt.collect_activation_stats(model, files[500:600])
    pictures = files[:64:8]
    for method in (vt.get_method("coiba"), replace(vt.get_method("coiba(watch=true)"), stats=photographs)):
        one, two = (vt.explain(model, pictures, method, seed=seed) for seed in (0, 1))
        agreed = [spearmanr(a.map.flatten(), b.map.flatten())[0] for a, b in zip(one, two, strict=True)]
        assert sum(agreed) / len(agreed) > 0.9
    for item in one:
        terms = item.extras["layer_information"]
        assert torch.allclose(terms[:, 0], item.extras["information"], rtol=1e-3)
        assert (terms[:, 0] >= 0.98 * terms.mean(dim=1)).all()  # estimates: now and then 1 % below
