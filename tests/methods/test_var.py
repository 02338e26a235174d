"""VAR against its definition, written with numpy over K separate runs of the base; its classes and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images, verified
from reference_var import INVERSE, definition
from vitreous.methods import Attribution, Method, compute_attributions, registry
from vitreous.tracing import Context, Target, runner
from zoo import look_at


@pytest.fixture
def planted(monkeypatch):
    """A base whose maps are written down: one for each class."""
    monkeypatch.setattr(registry.REGISTRY, "by_name", dict(registry.REGISTRY.by_name))
    tables: dict[str, Tensor] = {}

    @vt.register_method("planted", family="test")
    @dataclass(frozen=True)
    class Planted(Method):
        """Maps from a table."""

        def compute(self, context: Context) -> Attribution:
            return Attribution(tables["maps"][context.target.classes].clone(), {})

    def run(maps: Tensor, spec: str = "var(planted)", target: int | list[int] = 1, batch: int = 1):
        tables["maps"] = maps
        return vt.get_method(spec).attribute(*look_at("vit", batch), target, extras=True)

    return run


def class_maps(seed: int = 0, size: float = 0.3) -> Tensor:
    return torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * size


# -- the definition ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", INVERSE)
@pytest.mark.parametrize(
    "family", ["vit", "gap", "deit_distilled", "registers", "siglip", "nonsquare", "hf_vit", "tv_vit"]
)
@pytest.mark.parametrize("base", ["generic", "plus(ixg)", "saliency"])
def test_k_separate_runs(family, base, preset):
    model, x = look_at(family)
    with_var, extras = vt.get_method(f"var({base}, classes='3,0,2', preset={preset})").attribute(
        model, x, 2, extras=True
    )
    assert extras["classes"].tolist() == [[2, 3, 0]] * 2
    apart = [vt.get_method(base).attribute(model, x, target=c).numpy() for c in (2, 3, 0)]
    for i in range(2):
        expected, q = definition(np.stack([item[i] for item in apart]), preset)
        assert np.allclose(extras["distribution"][i], q, atol=1e-9)
        assert np.allclose(with_var[i], expected, atol=1e-9)
        assert np.allclose(extras["maps"][i], [item[i] for item in apart], atol=1e-12)


@pytest.mark.parametrize("preset", INVERSE)
def test_planted_maps(planted, preset):
    maps = class_maps()
    actual, extras = planted(maps, f"var@{preset}(planted, classes='1,0,4')")
    expected, q = definition(maps[[1, 0, 4]].numpy(), preset)
    assert np.allclose(actual[0], expected, atol=1e-12)
    assert np.allclose(extras["distribution"][0], q, atol=1e-12)
    assert (actual != 0).any()
    assert (actual == 0).any()


@pytest.mark.parametrize(
    "spec", ["var(planted)", "var@paper(planted)", "var@released(planted)", "var(planted, normalise=true)"]
)
def test_q_sums_to_one(planted, spec):
    _, extras = planted(class_maps(size=30), spec)
    assert torch.allclose(extras["distribution"].sum(dim=1), torch.ones(1, 4, 4, dtype=torch.float64))


@pytest.mark.parametrize("preset", ["sharp", "paper"])
def test_a_constant_added_to_all_maps_changes_no_distribution(planted, preset):
    maps = class_maps()
    _, unchanged = planted(maps, f"var@{preset}(planted)")
    shifted, extras = planted(maps + 7, f"var@{preset}(planted)")
    assert torch.allclose(extras["distribution"], unchanged["distribution"], atol=1e-12)
    mask = unchanged["distribution"][:, 0] > 1 / unchanged["classes"].shape[1] + 1e-6
    assert torch.equal(shifted != 0, mask)


@pytest.mark.parametrize("value", [0.0, 3.7, -1e3])
@pytest.mark.parametrize(
    "spec", ["var(planted)", "var@paper(planted)", "var@released(planted)", "var(planted, normalise=true)"]
)
def test_equal_maps_give_zeros(planted, spec, value):
    maps = class_maps()[:1].expand(5, -1, -1) + value
    with pytest.warns(vt.VitreousWarning, match="zero everywhere"):
        actual, _ = planted(maps, spec)
    assert (actual == 0).all()


def test_joint_normalisation_keeps_the_map_and_its_sign(planted):
    maps = class_maps(size=1e-4)
    unchanged, _ = planted(maps, "var(planted, classes='1,2')")
    actual, extras = planted(maps, "var(planted, classes='1,2', normalise=true)")
    scaled, q = definition((maps[[1, 2]] / maps[[1, 2]].abs().max()).numpy(), "paper")
    assert np.allclose(extras["distribution"][0], q, atol=1e-12)
    assert np.allclose(actual[0], scaled * maps[[1, 2]].abs().max().item(), atol=1e-15)
    assert not torch.allclose(unchanged, actual, atol=1e-6)


def test_upsampled_first_is_a_softmax_over_pixels():
    model, x = look_at("vit", 1)
    configured = vt.get_method("var(generic, classes='1,2', upsample=true)")
    assert configured.grid == "pixel"
    actual = configured.attribute(model, x, 1)
    apart = [vt.get_method("generic").attribute(model, x, c, grid="pixel")[0].numpy() for c in (1, 2)]
    assert np.allclose(actual[0], definition(np.stack(apart), "paper")[0], atol=1e-10)


def test_the_plain_name_follows_the_paper(planted):
    maps = class_maps()
    unchanged, _ = planted(maps, "var(planted, classes='1,0,4')")
    assert torch.equal(unchanged, planted(maps, "var@paper(planted, classes='1,0,4')")[0])
    assert not torch.equal(unchanged, planted(maps, "var@sharp(planted, classes='1,0,4')")[0])


@pytest.mark.parametrize("preset", ["paper", "sharp"])
@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-9])
def test_small_maps_lose_no_place(planted, preset, size):
    """Where the class stands out does not depend on the unit of the maps."""
    large, _ = planted(class_maps(size=1e-2), f"var@{preset}(planted, classes='1,0,4')")
    small, _ = planted(class_maps(size=1e-2) * size, f"var@{preset}(planted, classes='1,0,4')")
    maps = class_maps(size=1e-2)[[1, 0, 4]]
    ahead = maps[0] > maps.mean(dim=0)  # softmax of small differences
    assert torch.equal((small != 0)[0], ahead)
    assert float((large != 0).float().mean()) == pytest.approx(float((small != 0).float().mean()), abs=0.07)


def test_small_maps_of_a_real_method_in_float32():
    """The share of places that vtranm keeps is that of float64."""
    model = FAMILIES["vit"]()
    x = images(model, 4)
    shares = []
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        actual = vt.get_method("var(vtranm, classes='0,1,2,3')").attribute(model, x.to(dtype), 0)
        shares.append(float((actual != 0).float().mean()))
    assert shares[0] == pytest.approx(shares[1], abs=0.02)


def test_pixels_are_compared_where_the_map_is_wanted_on_pixels():
    model, x = look_at("vit", 1)
    fine = vt.get_method("var(generic, classes='1,2')").attribute(model, x, 1, grid="pixel")
    assert torch.equal(fine, vt.get_method("var(generic, classes='1,2', upsample=true)").attribute(model, x, 1))
    assert vt.get_method("var(generic, classes='1,2')").attribute(model, x, 1).shape == (1, 4, 4)


# -- which classes -------------------------------------------------------------------------------------------------


def method(spec: str, target=None, family: str = "vit", batch: int = 6) -> tuple[list[list[int]], list[list[int]]]:
    model = FAMILIES[family]()
    vision_model, x = vt.wrap(model), images(model, batch)
    order = vision_model.logits(x).argsort(dim=1, descending=True).tolist()
    _, extras = vt.get_method(spec).attribute(vision_model, x, target, extras=True)
    return extras["classes"].tolist(), order


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_most_probable_and_the_least(k):
    actual, order = method(f"var(ixg, classes=top:{k})")
    assert len({tuple(item) for item in order}) > 1
    assert actual == [[*item[:k], item[-1]] for item in order]


def test_best_and_worst():
    actual, order = method("var(ixg, classes=best-worst)")
    assert actual == [[item[0], item[-1]] for item in order]


def test_more_than_there_are_is_all_of_them():
    actual, order = method("var(ixg, classes=top:99)")
    assert actual == order


def test_the_explained_class_is_added_in_front_where_it_is_missing():
    actual, order = method("var(ixg, classes=top:1)", target=[0] * 6)
    for classes, item in zip(actual, order, strict=True):
        expected = [0, *(c for c in (item[0], item[-1]) if c != 0)]
        assert classes == expected + [-1] * (3 - len(expected))
    assert {row.count(-1) for row in actual} == {0, 1}


def test_an_image_with_fewer_classes_is_what_it_is_alone():
    """In a batch where others have three classes, an image with two has 1/K = 1/2."""
    model, x = look_at("vit", 6)
    configured = vt.get_method("var(generic, classes=top:1)")
    together, extras = configured.attribute(model, x, 0, extras=True)
    assert -1 in extras["classes"]
    for i in range(6):
        alone, own = configured.attribute(model, x[i : i + 1], 0, extras=True)
        count = own["classes"].shape[1]
        assert own["classes"].tolist() == [extras["classes"][i, :count].tolist()]
        assert torch.allclose(alone[0], together[i], atol=1e-12)
        assert torch.allclose(own["distribution"][0], extras["distribution"][i, :count], atol=1e-12)
        assert (extras["distribution"][i, count:] == 0).all()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_inner_batches_change_nothing(size):
    model, x = look_at("vit", 6)
    for spec in ("var(generic, classes=top:1)", "var(legrad)", "var(consensus(ixg, saliency))"):
        configured = vt.get_method(spec)
        complete, extras = configured.attribute(model, x, 1, extras=True)
        actual, pieces = configured.attribute(model, x, 1, extras=True, batch_size=size)
        assert torch.equal(extras["classes"], pieces["classes"])
        assert torch.allclose(complete, actual, atol=1e-12)


def test_labels_lists_and_numbers():
    names = ["tench, Tinca tinca", "lynx", "cougar", "cat", "dog"]
    model = vt.wrap(FAMILIES["vit"](), class_names=names)
    x = images(model, 1)
    for written, expected in [
        ('"lynx, cougar"', [3, 1, 2]),
        ('"tench, Tinca tinca|dog"', [3, 0, 4]),
        ("2", [3, 2]),
        ("lynx", [3, 1]),
    ]:
        _, extras = vt.get_method(f"var(ixg, classes={written})").attribute(model, x, "cat", extras=True)
        assert extras["classes"].tolist() == [expected]
    with pytest.raises(vt.VitreousError, match="lynks"):
        vt.get_method("var(ixg, classes=lynks)").attribute(model, x)


def test_a_head_of_one_logit_has_two_classes():
    model = FAMILIES["vit"]()
    model.head = torch.nn.Linear(24, 1)
    model.num_classes = 1
    x = images(model, 2)
    actual, extras = vt.get_method("var(generic)").attribute(model, x, 0, extras=True)
    assert extras["classes"].tolist() == [[0, 1], [0, 1]]
    assert torch.isfinite(actual).all()


# -- cost ----------------------------------------------------------------------------------------------------------


class Count:
    """Forwards of a model, and backwards of the passes over it."""

    def __init__(self, model, monkeypatch):
        model.patch_embed.register_forward_hook(self._forward)
        self.forwards = self.backwards = 0
        verified(model)
        self.forwards = 0
        original = runner._backward

        def backward(*args, **kwargs):
            self.backwards += 1
            original(*args, **kwargs)

        monkeypatch.setattr(runner, "_backward", backward)

    def _forward(self, *_):
        self.forwards += 1


@pytest.mark.parametrize(
    ("spec", "target", "cost"),
    [
        ("var(generic, classes=top:3)", None, (1, 4)),
        ("var(skipplus(decompx), classes=top:3)", None, (1, 4)),
        ("var(generic, classes='0,1,2')", 1, (1, 3)),
        ("var(consensus(ixg, generic))", None, (1, 3)),
        ("var(consensus(ixg, decompx))", None, (2, 6)),
    ],
)
def test_one_forward_and_k_backwards(monkeypatch, spec, target, cost):
    model = FAMILIES["vit"]()
    count = Count(model, monkeypatch)
    vt.get_method(spec).attribute(model, images(model, 2), target)
    assert (count.forwards, count.backwards) == cost
    assert vt.get_method("var(generic, classes=top:3)").cost == (1, 4)


def test_the_explained_class_is_shared_with_the_base(monkeypatch):
    model = FAMILIES["vit"]()
    vision_model, x = vt.wrap(model), images(model, 2)
    count = Count(model, monkeypatch)
    base, var = compute_attributions(
        Context(vision_model, x, Target.of(vision_model, 2)), [vt.get_method("generic"), vt.get_method("var(generic)")]
    )
    assert (count.forwards, count.backwards) == (2, 3)  # the base's own, and one more for the other two classes
    assert torch.equal(var.extras["maps"][:, 0], base.map)
    count.forwards = count.backwards = 0
    context = Context(vision_model, x, Target.of(vision_model, 2))
    compute_attributions(context, [vt.get_method("var(generic)")])
    compute_attributions(context, [vt.get_method("generic"), vt.get_method("rollout")])
    assert (count.forwards, count.backwards) == (2, 3)  # rollout has a wish of its own


# -- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("var(rollout)", "rollout is the same for all of them"),
        ("var(plus(raw_attention))", "the same for all of them"),
        ("var(ixg, classes=top:0)", "at least two"),
        ("var(ixg, classes='')", "empty place"),
        ("var(ixg, classes='1,,2')", "empty place"),
        ("var(ixg, preset=bold)", "'bold' is not one of sharp, paper, released"),
        ("var@bold(ixg)", "no preset 'bold'"),
        ("var", "var needs base"),
    ],
)
def test_specs_refused(spec, complaint):
    with pytest.raises(vt.VitreousError, match=complaint) as caught:
        vt.get_method(spec)
    assert "\n" not in str(caught.value)


def test_refused_when_run():
    model = FAMILIES["vit"]()
    x = images(model, 2)
    with pytest.raises(vt.VitreousError, match="at least two classes; classes='2' leaves 2 alone"):
        vt.get_method("var(ixg, classes=2)").attribute(model, x, 2)
    with pytest.raises(vt.VitreousError, match="contrast="):
        vt.get_method("var(ixg)").attribute(model, x, 2, contrast=1)
    with pytest.raises(vt.VitreousError, match="callable"):
        vt.get_method("var(ixg)").attribute(model, x, lambda logits: logits[:, 0])
    with pytest.raises(vt.VitreousError, match="77"):
        vt.get_method("var(ixg, classes='1,77')").attribute(model, x)


@pytest.mark.parametrize("value", ["prob", "logprob"])
def test_other_values_are_compared_as_they_are(value):
    model, x = look_at("vit", 1)
    actual = vt.get_method("var(ixg, classes='0,1')").attribute(model, x, 0, output=value)
    apart = [vt.get_method("ixg").attribute(model, x, c, output=value)[0].numpy() for c in (0, 1)]
    assert np.allclose(actual[0], definition(np.stack(apart), "paper")[0], atol=1e-10)


@pytest.mark.parametrize("spec", ['var(ixg, classes="12,99")', "var(ixg, classes=7)", "var(ixg, classes='7')"])
def test_specs_survive(spec):
    method = vt.get_method(spec)
    assert vt.get_method(method.spec) == method
    assert vt.get_method("var@released(ixg)") == vt.get_method("var(ixg, preset=released)")


# -- a set of classes for every image ------------------------------------------------------------------------------


def test_every_image_has_a_set_of_its_own():
    """In one batch, also of different lengths: as if each were explained alone with its own list."""
    model, x = look_at("vit", 3)
    sets = [[1, 0], [2, 3, 4], [4, 1]]
    together, extras = vt.get_method("var(generic)").attribute(model, x, [1, 2, 0], compare_classes=sets, extras=True)
    assert extras["classes"].tolist() == [[1, 0, -1], [2, 3, 4], [0, 4, 1]]
    for i, (target, own) in enumerate(zip([1, 2, 0], sets, strict=True)):
        specs = ",".join(map(str, own))
        alone = vt.get_method(f"var(generic, classes='{specs}')").attribute(model, x[i : i + 1], target)
        torch.testing.assert_close(together[i], alone[0])
    for size in (1, 2):
        actual = vt.explain(model, x, "var(generic)", [1, 2, 0], compare_classes=sets, batch_size=size)
        assert [e.request.compare_classes for e in actual] == [tuple(own) for own in sets]
        torch.testing.assert_close(torch.stack([e.map for e in actual]), together)
    one = vt.get_method("var(generic)").attribute(model, x, 1, compare_classes=[0, 1])
    torch.testing.assert_close(one, vt.get_method("var(generic, classes='0,1')").attribute(model, x, 1))


@pytest.mark.parametrize(
    ("compare_classes", "complaint"),
    [([[0, 1]], "1 sets of classes for 2"), ("01", "neither a list"), ([[0], [9]], "outside"), ([[], []], "no class")],
)
def test_bad_sets(compare_classes, complaint):
    model = FAMILIES["vit"]()
    with pytest.raises(vt.VitreousError, match=complaint):
        vt.get_method("var(generic)").attribute(model, images(model, 2), 1, compare_classes=compare_classes)


def test_sets_that_are_left_over_are_not_ignored():
    """Of a list and of a stream of images whose number nobody knows beforehand."""
    model = vt.wrap(FAMILIES["vit"]())
    x = images(model, 2)
    with pytest.raises(vt.VitreousError, match="3 sets of classes for 2 images"):
        vt.explain(model, x, "var(ixg)", target=0, compare_classes=[[0, 1]] * 3)
    with pytest.raises(vt.VitreousError, match="more sets of classes than the 2 images"):
        vt.explain(model, (item for item in x), "var(ixg)", target=0, compare_classes=[[0, 1]] * 3)
