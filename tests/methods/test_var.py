"""VAR against its definition, written with numpy over K separate runs of the base."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from reference_var import INVERSE, definition
from vitreous.methods import Attribution, Method, registry
from vitreous.tracing import Context
from zoo import EVERY


@pytest.fixture
def planted(monkeypatch):
    """A base whose maps are written down: one for each class."""
    monkeypatch.setattr(registry.SHELF, "by_name", dict(registry.SHELF.by_name))
    tables: dict[str, Tensor] = {}

    @vt.register_method("planted", family="test")
    @dataclass(frozen=True)
    class Planted(Method):
        """Maps from a table."""

        def compute(self, context: Context) -> Attribution:
            return Attribution(tables["maps"][context.target.classes].clone(), {})

    def run(maps: Tensor, spec: str = "var(planted)", target: int | list[int] = 1, batch: int = 1):
        tables["maps"] = maps
        model = FAMILIES["vit"]().double()
        return vt.get_method(spec).attribute(model, images(model, batch), target, extras=True)

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
    if family not in EVERY:
        pytest.skip("its library is not installed")
    model = vt.wrap(EVERY[family]())
    model.module.double()
    x = images(model, 2)
    with_var, extras = vt.get_method(f"var({base}, classes='3,0,2', preset={preset})").attribute(
        model, x, 2, extras=True
    )
    assert extras["classes"].tolist() == [[2, 3, 0]] * 2
    apart = [vt.get_method(base).attribute(model, x, target=c).numpy() for c in (2, 3, 0)]
    for i in range(2):
        expected, q = definition(np.stack([each[i] for each in apart]), preset)
        assert np.allclose(extras["distribution"][i], q, atol=1e-9)
        assert np.allclose(with_var[i], expected, atol=1e-9)
        assert np.allclose(extras["maps"][i], [each[i] for each in apart], atol=1e-12)


@pytest.mark.parametrize("preset", INVERSE)
def test_planted_maps(planted, preset):
    maps = class_maps()
    found, extras = planted(maps, f"var@{preset}(planted, classes='1,0,4')")
    expected, q = definition(maps[[1, 0, 4]].numpy(), preset)
    assert np.allclose(found[0], expected, atol=1e-12)
    assert np.allclose(extras["distribution"][0], q, atol=1e-12)
    assert (found != 0).any()
    assert (found == 0).any()


@pytest.mark.parametrize(
    "spec", ["var(planted)", "var@paper(planted)", "var@released(planted)", "var(planted, normalise=true)"]
)
def test_q_sums_to_one(planted, spec):
    _, extras = planted(class_maps(size=30), spec)
    assert torch.allclose(extras["distribution"].sum(dim=1), torch.ones(1, 4, 4, dtype=torch.float64))


@pytest.mark.parametrize("preset", ["sharp", "paper"])
def test_a_constant_added_to_all_maps_changes_no_distribution(planted, preset):
    maps = class_maps()
    _, plain = planted(maps, f"var@{preset}(planted)")
    shifted, extras = planted(maps + 7, f"var@{preset}(planted)")
    assert torch.allclose(extras["distribution"], plain["distribution"], atol=1e-12)
    mask = plain["distribution"][:, 0] > 1 / plain["classes"].shape[1] + 1e-6
    assert torch.equal(shifted != 0, mask)


@pytest.mark.parametrize("value", [0.0, 3.7, -1e3])
@pytest.mark.parametrize(
    "spec", ["var(planted)", "var@paper(planted)", "var@released(planted)", "var(planted, normalise=true)"]
)
def test_equal_maps_give_zeros(planted, spec, value):
    maps = class_maps()[:1].expand(5, -1, -1) + value
    with pytest.warns(vt.VitreousWarning, match="zero everywhere"):
        found, _ = planted(maps, spec)
    assert (found == 0).all()


def test_joint_normalisation_keeps_the_map_and_its_sign(planted):
    maps = class_maps(size=1e-4)
    plain, _ = planted(maps, "var(planted, classes='1,2')")
    found, extras = planted(maps, "var(planted, classes='1,2', normalise=true)")
    scaled, q = definition((maps[[1, 2]] / maps[[1, 2]].abs().max()).numpy(), "paper")
    assert np.allclose(extras["distribution"][0], q, atol=1e-12)
    assert np.allclose(found[0], scaled * maps[[1, 2]].abs().max().item(), atol=1e-15)
    assert not torch.allclose(plain, found, atol=1e-6)


def test_upsampled_first_is_a_softmax_over_pixels():
    model = FAMILIES["vit"]().double()
    x = images(model, 1)
    how = vt.get_method("var(generic, classes='1,2', upsample=true)")
    assert how.grid == "pixel"
    found = how.attribute(model, x, 1)
    apart = [vt.get_method("generic").attribute(model, x, c, grid="pixel")[0].numpy() for c in (1, 2)]
    assert np.allclose(found[0], definition(np.stack(apart), "paper")[0], atol=1e-10)


def test_the_plain_name_follows_the_paper(planted):
    maps = class_maps()
    plain, _ = planted(maps, "var(planted, classes='1,0,4')")
    assert torch.equal(plain, planted(maps, "var@paper(planted, classes='1,0,4')")[0])
    assert not torch.equal(plain, planted(maps, "var@sharp(planted, classes='1,0,4')")[0])


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
        found = vt.get_method("var(vtranm, classes='0,1,2,3')").attribute(model, x.to(dtype), 0)
        shares.append(float((found != 0).float().mean()))
    assert shares[0] == pytest.approx(shares[1], abs=0.02)


def test_pixels_are_compared_where_the_map_is_wanted_on_pixels():
    model = FAMILIES["vit"]().double()
    x = images(model, 1)
    fine = vt.get_method("var(generic, classes='1,2')").attribute(model, x, 1, grid="pixel")
    assert torch.equal(fine, vt.get_method("var(generic, classes='1,2', upsample=true)").attribute(model, x, 1))
    assert vt.get_method("var(generic, classes='1,2')").attribute(model, x, 1).shape == (1, 4, 4)
