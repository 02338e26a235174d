"""Consensus against its definition: ranks counted one by one."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import vitreous as vt
from families import FAMILIES, images, proven
from vitreous.methods import Attribution, compute_attributions
from vitreous.methods.combinators import Consensus, match_values
from vitreous.methods.controls import Centre
from vitreous.tracing import Context, Target
from zoo import EVERY


def ranks(values: list[float]) -> list[float]:
    """The mean place of each value in order, from 0 to 1, by counting."""
    found = []
    for value in values:
        below = sum(other < value for other in values)
        equal = sum(other == value for other in values)
        found.append((below + (equal - 1) / 2) / (len(values) - 1))
    return found


@pytest.mark.parametrize(
    "family", ["vit", "gap", "deit_distilled", "registers", "siglip", "nonsquare", "hf_vit", "tv_vit"]
)
def test_mean_rank_and_disagreement(family):
    if family not in EVERY:
        pytest.skip("its library is not installed")
    model = vt.wrap(EVERY[family]())
    model.module.double()
    x = images(model, 2)
    members = ["plus(ixg)", "generic", "centre"]
    found, extras = vt.get_method(f"consensus({', '.join(members)})").attribute(model, x, 1, extras=True)
    for i in range(2):
        rows = [ranks(vt.get_method(m).attribute(model, x, 1)[i].flatten().tolist()) for m in members]
        assert found[i].flatten().tolist() == pytest.approx([statistics.mean(each) for each in zip(*rows, strict=True)])
        deviation = [statistics.pstdev(each) for each in zip(*rows, strict=True)]
        assert extras["disagreement"][i].flatten().tolist() == pytest.approx(deviation)
        assert np.allclose(extras["ranks"][i].flatten(1), rows)


def test_the_mean_of_maps_of_one_size():
    model = FAMILIES["vit"]().double()
    x = images(model, 2)
    found, extras = vt.get_method("consensus(ixg, decompx, combine=mean)").attribute(model, x, 1, extras=True)
    maps = [vt.get_method(name).attribute(model, x, 1) for name in ("ixg", "decompx")]
    expected = sum(map_ / map_.abs().amax(dim=(1, 2), keepdim=True) for map_ in maps) / 2
    assert torch.allclose(found, expected, atol=1e-12)
    assert extras["ranks"].min() == 0
    assert extras["ranks"].max() == 1


def test_matched_is_the_order_of_the_mean_ranks_with_the_values_of_the_first_map():
    model = FAMILIES["vit"]().double()
    x = images(model, 3)
    for members in ("ixg, generic", "ixg, generic, rollout", "ixg, constant"):
        first = vt.get_method(members.split(", ")[0]).attribute(model, x, 1).flatten(1)
        order = vt.get_method(f"consensus({members})").attribute(model, x, 1).flatten(1)
        matched = vt.get_method(f"consensus({members}, combine=matched)").attribute(model, x, 1).flatten(1)
        for i in range(len(x)):
            values = sorted(first[i].tolist())
            ranked = sorted(order[i].tolist())
            expected = [
                statistics.mean(value for value, rank in zip(values, ranked, strict=True) if rank == own)
                for own in order[i].tolist()
            ]
            assert matched[i].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_equal_mean_ranks_share_their_values():
    order = torch.tensor([[[0.5, 0.1], [0.5, 0.9]], [[0.0, 0.0], [0.0, 0.0]]])
    values = torch.tensor([[[-4.0, 8.0], [2.0, 1.0]], [[1.0, 2.0], [3.0, 6.0]]])
    assert match_values(order, values).tolist() == [[[1.5, -4.0], [1.5, 8.0]], [[3.0, 3.0], [3.0, 3.0]]]


def test_pixels_are_summed_into_patches():
    model = FAMILIES["vit"]().double()
    x = images(model, 1)
    _, extras = vt.get_method("consensus(saliency, generic)").attribute(model, x, 1, extras=True)
    summed = vt.get_method("saliency").attribute(model, x, 1, grid="token")
    assert extras["ranks"][0, 0].flatten().tolist() == pytest.approx(ranks(summed.flatten().tolist()))


def test_coarse_maps_are_enlarged():
    model = vt.wrap(EVERY["swin"]())
    x = images(model, 1)
    found, extras = vt.get_method("consensus(gradcam, ixg)").attribute(model, x, 1, extras=True)
    coarse = vt.get_method("gradcam").attribute(model, x, 1)
    grid = model.grid(x)
    assert coarse.shape[1:] != grid
    assert found.shape[1:] == grid
    large = torch.nn.functional.interpolate(coarse[None], size=grid, mode="bilinear", align_corners=False)
    assert extras["ranks"][0, 0].flatten().tolist() == pytest.approx(ranks(large.flatten().tolist()))


def test_a_member_that_is_the_same_everywhere_says_nothing():
    model = FAMILIES["vit"]().double()
    x = images(model, 1)
    found = vt.get_method("consensus(generic, constant)").attribute(model, x, 1)
    alone = ranks(vt.get_method("generic").attribute(model, x, 1).flatten().tolist())
    assert found.flatten().tolist() == pytest.approx([(rank + 0.5) / 2 for rank in alone])


def test_members_share_their_passes():
    model = FAMILIES["vit"]()
    runs = []
    handle = model.patch_embed.register_forward_hook(lambda *_: runs.append(1))
    x = images(proven(model), 2)
    runs.clear()
    vt.get_method("consensus(generic, plus(ixg), rollout, gradcam)").attribute(model, x)
    assert len(runs) == 1
    runs.clear()
    vision_model = vt.wrap(model)
    together = ["consensus(generic, decompx)", "ixg", "skipplus(decompx)", "consensus(rollout, attcam)"]
    compute_attributions(
        Context(vision_model, x, Target.of(vision_model, 2)), [vt.get_method(each) for each in together]
    )
    handle.remove()
    assert len(runs) == 2  # plain and frozen


def test_what_it_is_made_of():
    method = vt.get_method("consensus(skipplus(decompx), var(ixg, classes='1,2'), combine=mean)")
    assert [part.info.name for part in method.components()] == ["consensus", "skipplus", "decompx", "var", "ixg"]
    assert method.settings == {"bases": ["skipplus(decompx)", 'var(ixg, classes="1,2")'], "how": "mean", "weights": ""}
    assert method.spec == 'consensus(skipplus(decompx), var(ixg, classes="1,2"), combine=mean)'
    assert vt.get_method(method.spec) == method
    assert not vt.get_method("consensus(rollout, edges)").class_specific
    assert vt.get_method("consensus(rollout, ixg)").class_specific
    assert vt.get_method("consensus(ixg, ig(steps=3))").cost == (4, 4)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("consensus(ixg)", "at least two methods, got 1"),
        ("consensus()", "consensus needs bases, as in"),
        ("consensus(ixg, 3)", "takes methods at character 16"),
        ("consensus(ixg, generic, combine=max)", "'max' is not one of rank, mean"),
        ("consensus(ixg, bases=generic)", "given twice"),
        ("consensus(ixg, genric)", "did you mean generic"),
        ("consensus(ixg, generic, start=2)", "no parameter 'start'"),
    ],
)
def test_refused(spec, complaint):
    with pytest.raises(vt.VitreousError, match=complaint) as caught:
        vt.get_method(spec)
    assert "\n" not in str(caught.value)


def test_a_member_that_is_not_finite_is_loud():
    @dataclass(frozen=True)
    class Broken(Centre):
        def compute(self, context):
            return Attribution(super().compute(context).map / 0, {})

    model = FAMILIES["vit"]()
    with pytest.raises(vt.VitreousError, match="centre gave values that are not finite"):
        Consensus((vt.get_method("ixg"), Broken())).attribute(model, images(model, 1), 0)
