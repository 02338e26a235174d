"""What was silently wrong once: another model explained, another class named, another precision run."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import vitreous as vt
from commands import MODEL, photographs, run
from families import FAMILIES, _build, images
from vitreous.tracing import Context, Target
from zoo import EVERY


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return photographs(tmp_path)


# -- a forward of the user's own ---------------------------------------------------------------------------------------


def subclassed(model: Any) -> None:
    class Own(type(model)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return -super().forward(x)

    model.__class__ = Own


def patched(model: Any) -> None:
    own = model.forward
    model.forward = lambda x: own(x).flip(1)


def bound(model: Any) -> None:
    model.forward = types.MethodType(lambda self, x: self.forward_head(self.forward_features(x)) * 2 + 1, model)


def hooked(model: Any) -> None:
    model.register_forward_hook(lambda module, args, out: out.flip(1))


def hooked_before(model: Any) -> None:
    model.register_forward_pre_hook(lambda module, args: (args[0].flip(-1),))


@pytest.mark.parametrize("own", [subclassed, patched, bound, hooked, hooked_before])
@pytest.mark.parametrize("training", [False, True])
def test_a_forward_of_the_users_own_is_not_ignored(own: Any, training: bool) -> None:
    model = FAMILIES["vit"]().train(training)
    x = images(model, 2)
    vt.explain(model, x, "rollout")
    own(model)  # also after the model was found good
    vision_model = vt.wrap(model)
    asked = (
        lambda: vt.explain(model, x, "rollout"),
        lambda: vt.get_method("coiba").attribute(vision_model, x),
        lambda: vt.evaluate(vision_model, x, "ixg", "deletion(steps=2)"),
        lambda: vision_model.logits(x),
        lambda: vt.collect_activation_stats(vision_model, x),
    )
    for ask in asked:
        with pytest.raises(vt.VitreousError, match="computes something else than its parts"):
            ask()


def test_a_forward_that_only_looks_is_followed() -> None:
    model, seen = FAMILIES["vit"](), []
    x = images(model, 1)
    expected = vt.get_method("ixg").attribute(model, x, 1)
    model.register_forward_hook(lambda module, args, out: seen.append(len(out)))
    assert torch.equal(vt.get_method("ixg").attribute(model, x, 1), expected)


@pytest.mark.parametrize("family", EVERY)
def test_every_family_is_proven(family: str) -> None:
    model = vt.wrap(EVERY[family]())
    model.verify(images(model, 2))
    nn.init.constant_(next(p for p in model.module.parameters() if p.ndim > 1), 0.3)
    model.verify(images(model, 2))


def test_a_block_used_six_times_is_six_blocks() -> None:
    """CoIBA on shared blocks against the same blocks written out."""
    shared, apart = FAMILIES["vit"](), FAMILIES["vit"]()
    shared.blocks = nn.Sequential(*[shared.blocks[0]] * 3)
    for block in apart.blocks:
        block.load_state_dict(shared.blocks[0].state_dict())
    x = images(shared, 2)
    for options in (
        "coiba(steps=5)",
        "iba(steps=4)",
        "iba_star(steps=4)",
        "ablationcam",
        "skipplus(decompx)",
        "vtranm",
    ):
        one, other = (vt.get_method(options).attribute(model, x, target=1) for model in (shared, apart))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# -- randomness --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["smooth(ixg, samples=5)", "coiba(steps=3, stats=noise)", "random", "tis(masks=8)"])
def test_noise_depends_on_no_neighbour_and_no_cut(options: str) -> None:
    model = _build(img_size=27, patch_size=9).double()  # 3 x 27 x 27 is no multiple of 16
    x, method = images(model, 3), vt.get_method(options)
    together = method.attribute(model, x, target=1)
    torch.testing.assert_close(method.attribute(model, x[1:2], target=1)[0], together[1], rtol=1e-6, atol=1e-8)
    for size in (1, 2, 4):
        cut = method.attribute(model, x, target=1, batch_size=size)
        torch.testing.assert_close(cut, together, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("options", ["smooth(ixg, samples=3)", "coiba(steps=3)", "random", "tis(masks=8)", "centre"])
def test_noise_depends_on_no_default_dtype(options: str) -> None:
    model = FAMILIES["vit"]()
    x = images(model, 2)
    expected = vt.get_method(options).attribute(model, x, target=1)
    torch.set_default_dtype(torch.float64)
    try:
        maps = vt.get_method(options).attribute(model, x, target=1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert maps.dtype == expected.dtype
    torch.testing.assert_close(maps, expected, rtol=1e-5, atol=1e-6)


# -- names, words, classes ---------------------------------------------------------------------------------------------


def test_pictures_without_names_are_counted_through_the_whole_source(tmp_path: Path) -> None:
    """A folder of maps is read by them: a list or a loader must not begin anew with each item."""
    model = FAMILIES["vit"]()
    x = images(model, 5)
    maps = torch.rand(5, 4, 4, generator=torch.Generator().manual_seed(0))
    for place, map_ in enumerate(maps):
        np.save(tmp_path / f"input-{place}.npy", map_.numpy())
    table = vt.evaluate(model, x, {"maps": tmp_path}, "deletion(steps=4)", controls=False)
    for source in ([x[:2], x[2:4], x[4:]], list(x), iter([x[:3], x[3:]]), [(x[:2], [0, 1]), (x[2:], [1, 2, 3])]):
        actual = vt.evaluate(model, source, {"maps": tmp_path}, "deletion(steps=4)", controls=False)
        assert actual.images == table.images == tuple(f"input-{place}" for place in range(5))
        np.testing.assert_allclose(actual["maps", "deletion(steps=4)"], table["maps", "deletion(steps=4)"], atol=1e-6)
    photos = [Image.new("RGB", (40, 40), (i, i, i)) for i in range(3)]
    assert [e.name for e in vt.explain(model, photos, "rollout")] == ["image-0", "image-1", "image-2"]
    mixed = [np.zeros((2, 40, 40, 3), np.uint8), photos[0], x[0]]
    assert [e.name for e in vt.explain(model, mixed, "rollout")] == ["image-0", "image-1", "image-2", "input-3"]


@pytest.mark.parametrize("value", ["Logit", "probability", "", None, 3])
def test_a_value_that_is_none_is_refused_everywhere(value: Any) -> None:
    model = FAMILIES["vit"]()
    x = images(model, 1)
    records = [lambda: vt.get_method("ixg").attribute(model, x, output=value), lambda: Target(output=value)]
    if value is not None:  # which is the default of these
        records += [
            lambda: vt.explain(model, x, "ixg", output=value),
            lambda: vt.compare(model, x[0], "ixg", output=value),
        ]
        records += [lambda: vt.evaluate(model, x, "ixg", "deletion", output=value)]
    for ask in records:
        with pytest.raises(vt.VitreousError, match="is not one of logit, prob, logprob"):
            ask()


@pytest.mark.parametrize("target", [True, False, np.True_, torch.tensor(True), [True], 1.0, [1.5], object()])
def test_a_target_that_is_no_class_is_refused_everywhere(target: Any) -> None:
    model = FAMILIES["vit"]()
    x = images(model, 1)
    for ask in (
        lambda: vt.explain(model, x, "ixg", target),
        lambda: vt.get_method("ixg").attribute(model, x, target),
        lambda: vt.evaluate(model, x, "ixg", "deletion(steps=2)", target=target),
        lambda: vt.compare(model, x[0], ["ixg"], target),
    ):
        with pytest.raises(vt.VitreousError, match="neither"):
            ask()


def test_targets_from_a_generator(tmp_path: Path) -> None:
    model = FAMILIES["vit"]()
    x = images(model, 3)
    assert [e.target for e in vt.explain(model, x, "ixg", iter([2, 0, 1]))] == [2, 0, 1]
    assert [e.target for e in vt.explain(model, x, "ixg", (c for c in (2, 0, 1)), batch_size=1)] == [2, 0, 1]
    for evaluated in (vt.explain, lambda *a: vt.evaluate(a[0], a[1], a[2], "deletion(steps=2)", target=a[3])):
        with pytest.raises(vt.VitreousError, match="fewer targets than images: none for image 2"):
            evaluated(model, x, "ixg", iter([2, 0]))
        with pytest.raises(vt.VitreousError, match="more targets than the 3 images"):
            evaluated(model, x, "ixg", iter([2, 0, 1, 4]))
    assert [row[0].target for row in vt.compare(model, x[0], ["ixg"], iter([1, 3])).rows] == [1, 3]


def test_a_number_means_the_same_in_every_command(here: Path) -> None:
    """A class called "1" is the class of that name, in explain and in score."""
    torch.save(vt.load(MODEL[1], pretrained=False, img_size=32, num_classes=3).module.state_dict(), "w.pth")
    Path("names.json").write_text(json.dumps(["0", "2", "1"]))
    value = (*MODEL[2:], "--checkpoint", "w.pth", "--num-classes", "3")
    result = run("explain", "a.png", *MODEL[:2], *value, "--class-names", "names.json", "--target", "1",
               "--method", "ixg", "--json")  # fmt: skip
    assert json.loads(result.out)["explanations"][0]["target"] == 2
    scored = run("evaluate", MODEL[1], "a.png", *value, "--class-names", "names.json", "--target", "1", "--method",
                 "ixg", "--metric", "deletion(steps=2)", "--json")  # fmt: skip
    assert json.loads(scored.out)["plan"]["target"] == "1"
    model = vt.load(
        MODEL[1], pretrained=False, img_size=32, num_classes=3, checkpoint="w.pth", class_names=["0", "2", "1"]
    )
    expected = vt.evaluate(model, "a.png", "ixg", "deletion(steps=2)", target=2)
    actual = json.loads(scored.out)["methods"][0]["scores"]["deletion(steps=2)"]["mean"]
    assert actual == pytest.approx(expected.mean("ixg", "deletion(steps=2)"), abs=1e-6)


# -- precision, numbers ------------------------------------------------------------------------------------------------


def test_a_surrounding_autocast_changes_nothing() -> None:
    model = FAMILIES["vit"]()
    vision_model, x = vt.wrap(model), images(model, 2)
    e = vt.explain(vision_model, x, "ixg", 1)[0]

    def everything() -> list[Any]:
        table = vt.evaluate(vision_model, x, "ixg", ["deletion(steps=4)", "token_deletion_aopc"])
        scores = [table["ixg", metric].tolist() for metric in table.metrics]
        checked = vt.check(e, vision_model, inputs=x[0]).to_json()
        return [vision_model.logits(x), vision_model.logits(x, keep=torch.tensor([[0, 3], [1, 2]])), scores, checked]

    base = everything()
    with torch.autocast("cpu", torch.float16):
        inside = everything()
    assert inside[0].dtype == inside[1].dtype == torch.float32
    assert torch.equal(base[0], inside[0])
    assert torch.equal(base[1], inside[1])
    assert base[2:] == inside[2:]


@pytest.mark.parametrize("place", ["head", "block"])
def test_logits_that_are_no_numbers_are_refused(place: str, tmp_path: Path) -> None:
    model = FAMILIES["vit"]()
    with torch.no_grad():
        (model.head if place == "head" else model.blocks[1].mlp.fc1).weight[0, 0] = float("nan")
    x = images(model, 1)
    for options in ("rollout", "raw_attention", "ixg", "random", "centre", "coiba", "tis"):
        with pytest.raises(vt.VitreousError, match="logits that are not finite"):
            vt.explain(model, x, options)
    with pytest.raises(vt.VitreousError, match="logits that are not finite"):
        vt.evaluate(model, x, "centre", "deletion(steps=2)")


@pytest.mark.parametrize(
    "damage",
    [
        lambda a: a * np.nan,
        lambda a: np.where(a == a.max(), np.inf, a),
        lambda a: a.astype(np.complex64),
        lambda a: a.astype(np.int32),
        lambda a: a.astype(np.float16),
        lambda a: a[None],
        lambda a: a[:0],
    ],
)
def test_a_map_that_means_nothing_is_not_loaded(damage: Any, tmp_path: Path) -> None:
    model = FAMILIES["vit"]()
    folder = vt.explain(model, images(model, 1)[0], "ixg", 1).save(tmp_path / "e")
    np.save(folder / "map.npy", damage(np.load(folder / "map.npy")))
    with pytest.raises(vt.VitreousError, match="holds no explanation that can be read"):
        vt.Explanation.load(folder)


def test_a_header_that_promises_too_much_is_not_believed(tmp_path: Path) -> None:
    model = FAMILIES["vit"]()
    folder = vt.explain(model, images(model, 1)[0], "plus(ixg)", 1).save(tmp_path / "e")
    with open(folder / "map.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)})
    with pytest.raises(vt.VitreousError, match="not as long as"):
        vt.Explanation.load(folder)


def test_a_picture_of_too_many_pixels_is_not_loaded(tmp_path: Path) -> None:
    model = FAMILIES["vit"]()
    folder = vt.explain(model, images(model, 1)[0], "ixg", 1).save(tmp_path / "e")
    Image.new("1", (9_600, 9_600)).save(folder / "image.png")
    with pytest.raises(vt.VitreousError, match="pixels"):
        vt.Explanation.load(folder)


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, torch.int64])
def test_weights_of_another_kind_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    weights = vt.load("world").module.state_dict()
    weights["head.weight"] = weights["head.weight"].to(dtype)
    torch.save(weights, tmp_path / "w.pth")
    with pytest.raises(vt.VitreousError, match="1 of another type"):
        vt.load("world", checkpoint=tmp_path / "w.pth")


def test_half_precision_weights_are_taken(tmp_path: Path) -> None:
    weights = {name: value.half() for name, value in vt.load("world").module.state_dict().items()}
    torch.save(weights, tmp_path / "w.pth")
    assert vt.load("world", checkpoint=tmp_path / "w.pth").dtype == torch.float32


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    weights = vt.load("world").module.state_dict()
    weights["module.head.bias"] = weights["head.bias"] + 1
    torch.save(weights, tmp_path / "w.pth")
    with pytest.raises(vt.VitreousError, match=r"both head\.bias and module\.head\.bias"):
        vt.load("world", checkpoint=tmp_path / "w.pth")


@pytest.mark.parametrize("make", [lambda t: t.to("meta"), lambda t: t.to_sparse()])
def test_weights_that_are_not_there_are_refused(make: Any, tmp_path: Path) -> None:
    weights = vt.load("world").module.state_dict()
    weights["head.weight"] = make(weights["head.weight"])
    torch.save(weights, tmp_path / "w.pth")
    with pytest.raises(vt.VitreousError, match=r"head\.weight is (on the meta device|sparse)"):
        vt.load("world", checkpoint=tmp_path / "w.pth")


# -- threads of what is random -----------------------------------------------------------------------------------------


def test_sessions_keep_the_users_view_out_of_their_work() -> None:
    model = FAMILIES["vit"]()
    vision_model, x = vt.wrap(model), images(model, 1)
    context = Context(vision_model, x, Target.of(vision_model, 1))
    assert context.model is not vision_model
    assert context.model.source_model is vision_model
    assert context.model.fingerprint == vision_model.fingerprint
    assert context.with_inputs(x).model is context.model
