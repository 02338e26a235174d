"""Methods along a path: golden numbers, published settings, shared work and refusals."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, golden, images, verified
from vitreous.errors import ModelError, SpecError
from vitreous.methods.base import compute_attributions
from vitreous.tracing import Context, Target

MODEL, IMAGE = golden()

# sum, max, arg max, entries 0, 50, 101, 195
TABLE = {
    "bt_h(start=1)": (0.0516666446, 0.00189917248, 174, 0, 0, 0.00136631582, 0),
    "bt_t(start=1)": (0.0337979012, 0.00127268183, 105, 0, 0, 0.000746292268, 0),
    "tam(start=0)": (0.0566805624, 0.00215391041, 174, 0, 0, 0.00157079331, 0),
    "tam(start=2)": (0.0139563476, 0.000584483578, 105, 0, 0, 0.000352625267, 0),
    "tam@inflow": (0.11346648, 0.00428076152, 174, 0, 0, 0.0031833017, 0),
    "inflow": (0.00074509936, 7.87303653e-05, 40, 1.24051377e-07, 4.69869449e-06, 5.07172009e-06, 2.84016131e-06),
    "iia": (0.192964879, 0.00305454196, 143, 0.000741460285, 0.00158771701, 0.00123164303, 0.00117847587),
}


@pytest.mark.parametrize("spec", TABLE)
def test_golden_numbers(spec: str) -> None:
    """To nine digits."""
    total, largest, place, *entries = TABLE[spec]
    actual = vt.get_method(spec).attribute(MODEL, IMAGE, target=2).flatten()
    assert actual.argmax().item() == place
    reported = [actual.sum(), actual.max(), *actual[[0, 50, 101, 195]]]
    for one, other in zip(reported, [total, largest, *entries], strict=True):
        assert f"{one.item():.9g}" == f"{other:.9g}"


@cache
def deep() -> Any:
    """A model of twelve blocks, as the published scripts have it."""
    return FAMILIES["vit"](depth=12).double()


@cache
def of_twelve(spec: str, value: str = "logit") -> Tensor:
    return vt.get_method(spec).attribute(deep(), images(deep(), 2), target=2, output=value)


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("tam", "t_attn(start=4)"),
        ("tam@tis", "tam(start=0)"),
        ("tam@inflow", "tam(start=0, twice=true)"),
        ("bt_h", "beyond(start=3)"),
        ("bt_h@tis", "bi_attn(start=0)"),
        ("bt_t", "bt_t(start=6)"),
        ("bt_t@released", "bt_t(start=5)"),
        ("bt_t@tis", "bt_t(start=0)"),
    ],
)
def test_published_settings_of_twelve_blocks(spec: str, same: str) -> None:
    assert torch.equal(of_twelve(spec), of_twelve(same))


@pytest.mark.parametrize(("spec", "same"), [("tam", "tam"), ("bt_h", "bt_h"), ("bt_t", "bt_t(start=3)")])
def test_interpretdl_differentiates_the_probability(spec: str, same: str) -> None:
    preset = f"{spec}@interpretdl"
    assert vt.get_method(preset).outputs("logit") == ("prob",)
    assert vt.get_method(spec).outputs("logprob") == ("logprob",)
    assert torch.allclose(of_twelve(preset), of_twelve(same, "prob"), rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    "settings",
    [
        ["tam", "tam@tis", "tam@inflow", "tam@interpretdl"],
        ["bt_h", "bt_h@tis", "bt_h@interpretdl"],
        ["bt_t", "bt_t@released", "bt_t@tis", "bt_t@interpretdl"],
        ["inflow", "inflow(mlp=false)"],
        ["iia", "iia(steps=2)"],
    ],
    ids=lambda settings: settings[0],
)
def test_published_settings_differ(settings: list[str]) -> None:
    """Each pair, by more than a factor and more than rounding."""
    maps = [of_twelve(setting)[0].flatten() for setting in settings]
    for place, one in enumerate(maps):
        for other in maps[:place]:
            apart = one / one.norm() - other / other.norm()
            assert apart.norm() > 1e-4


@pytest.mark.parametrize(("depth", "starts"), [(3, (1, 0, 1)), (8, (2, 2, 4)), (24, (8, 6, 12))])
def test_where_the_chain_ends_in_models_of_other_depths(depth: int, starts: tuple[int, ...]) -> None:
    model = vt.wrap(FAMILIES["vit"](depth=depth))
    for name, start in zip(("tam", "bt_h", "bt_t"), starts, strict=True):
        assert vt.get_method(name).passes(model) == vt.get_method(f"{name}(start={start})").passes(model)
        assert vt.get_method(name).passes(model) != vt.get_method(f"{name}(start={start + 1})").passes(model)


@pytest.mark.parametrize("spec", ["tam(steps=5)", "tam(steps=1)", "bt_h(steps=4)", "bt_t(steps=3)", "inflow", "iia"])
@pytest.mark.parametrize("kind", ["vit", "gap", "siglip"])
def test_cost_is_what_is_run(spec: str, kind: str) -> None:
    method, (model, ticks) = vt.get_method(spec), counted(kind)
    context = Context(model, images(model, 2), Target.of(model, 2, 1), on_progress=ticks.append)
    compute_attributions(context, [method])
    assert sum(ticks) == 2 * method.num_forwards(model)


def counted(kind: str) -> tuple[vt.VisionModel, list[int]]:
    return vt.wrap(verified(FAMILIES[kind]())), []


@pytest.mark.parametrize("value", ["none", "prob"])
def test_one_path_serves_all_who_take_as_many_steps(value: str) -> None:
    model, ticks = counted("vit")
    context = Context(model, images(model, 2), Target.of(model, 2, 1), on_progress=ticks.append)
    alike = [vt.get_method(f"{name}(steps=6, output={value})") for name in ("tam", "bt_h", "bt_t")]
    together = compute_attributions(context, alike)
    assert sum(ticks) == 2 * 6
    compute_attributions(context, [vt.get_method(f"tam(steps=3, output={value})")])
    assert sum(ticks) == 2 * (6 + 2)  # the image itself is known
    for method, actual in zip(alike, together, strict=True):
        assert torch.allclose(actual.map, method.attribute(model, images(model, 2), target=1), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("spec", ["tam(steps=5)", "bt_h(steps=5)", "bt_t(steps=5)", "inflow", "iia(steps=1)"])
@pytest.mark.parametrize("kind", ["vit", "gap", "siglip"])
def test_inner_batches_and_neighbours_change_nothing(spec: str, kind: str) -> None:
    """The release of bt_h divides by a sum over the batch."""
    model = FAMILIES[kind]().double()
    x = images(model, 3)
    method = vt.get_method(spec)
    actual = method.attribute(model, x, target=2)
    for size in (1, 2, 7):
        assert torch.allclose(method.attribute(model, x, target=2, batch_size=size), actual, rtol=1e-9)
    for image, item in zip(x, actual, strict=True):
        assert torch.allclose(method.attribute(model, image[None], target=2)[0], item, rtol=1e-9)


@pytest.mark.filterwarnings("ignore::vitreous.errors.VitreousWarning")
@pytest.mark.parametrize("spec", ["tam(steps=2)", "bt_h(steps=2)", "bt_t(steps=2)", "inflow", "iia(steps=1)"])
@pytest.mark.parametrize("kind", ["vit", "gap", "siglip"])
def test_no_gradient_is_no_error(spec: str, kind: str) -> None:
    """Nothing divided by nothing is nothing: the map is the same everywhere."""
    model = FAMILIES[kind]()
    actual = vt.get_method(spec).attribute(model, images(model, 1), target=lambda logits: 0 * logits[:, 0])
    assert actual.amax() - actual.amin() <= 1e-6


def test_a_pooling_over_patches_only_leaves_the_prefix_out() -> None:
    """Attention pooling that does not look at the class token: rows are shorter than the attention of the blocks."""
    model = FAMILIES["siglip"](class_token=True).double()
    x = images(model, 1)
    for spec in ("tam(steps=2)", "bt_h(steps=2)", "bt_t(steps=2)", "inflow", "iia(steps=1)"):
        actual = vt.get_method(spec).attribute(model, x, target=2)
        assert actual.shape == (1, 4, 4)
        assert actual.amax() > 0


@pytest.mark.parametrize(
    ("spec", "reported"),
    [
        ("tam(steps=0)", "steps=0"),
        ("bt_h(steps=-3)", "steps=-3"),
        ("iia(steps=0)", "steps=0"),
        ("tam(output=odds)", "odds"),
        ("bt_t(output=odds)", "odds"),
        ("tam(start=half)", "start"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(spec: str, reported: str) -> None:
    with pytest.raises(SpecError, match=reported):
        vt.get_method(spec)


@pytest.mark.parametrize("spec", ["tam(start=3)", "bt_h(start=-4)", "bt_t@released"])
def test_blocks_that_are_not_there_are_refused(spec: str) -> None:
    model = FAMILIES["vit"]()
    with pytest.raises(ModelError, match=r"layer (3|-4|5) is outside 0\.\.2"):
        vt.get_method(spec).attribute(model, images(model, 1))


def test_attention_pooling_cannot_be_taken_twice() -> None:
    model = FAMILIES["siglip"]()
    with pytest.raises(ModelError, match="twice"):
        vt.get_method("tam@inflow").attribute(model, images(model, 1))
