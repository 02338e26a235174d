"""What must hold for any model: ends, duality, invariances, degenerate maps, one forward for equal questions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images, verified
from linear_model import Linear, noise, pooled
from vitreous.metrics import ImageShape, RankedRemoval
from vitreous.metrics.baselines import rise_kernel
from vitreous.metrics.ranking import _finer, flag, order, ranks

LABELS = [0, 3, 1, 4, 2, 0]
SHAPE = ImageShape((32, 32), (4, 4))


@pytest.fixture(scope="module")
def model() -> Any:
    return FAMILIES["vit"]()


@pytest.fixture(scope="module")
def inputs(model: Any) -> Tensor:
    return images(model, 6)


def exact(*shape: int, seed: int = 0) -> Tensor:
    """Maps of small whole numbers: scaling, shifting and interpolating them rounds nothing."""
    return torch.randint(0, 500, shape, generator=torch.Generator().manual_seed(seed)).float()


# -- section 7 -----------------------------------------------------------------------------------------


def test_rise_kernel() -> None:
    kernel = rise_kernel()
    assert kernel.shape == (11, 11)
    assert float(kernel[5, 5]) == pytest.approx(0.008833, abs=5e-7)
    assert float(kernel[0, 0]) == pytest.approx(0.007737, abs=5e-7)
    assert float(kernel.sum()) == pytest.approx(1)


def test_duality(model: Any, inputs: Tensor) -> None:
    """Removing the least relevant is keeping the most relevant: the same states, not merely the same numbers."""
    names = ["insertion(steps=16, baseline=black)", "srg(steps=16)"]
    pool, answers = pooled(vt.wrap(model), inputs, exact(6, 32, 32), names)
    remaining = [64 * j for j in range(17)]
    insertion = answers.log_probability(RankedRemoval.insertion("black", remaining))
    lerf = answers.log_probability(RankedRemoval.insertion("black", [1024 - k for k in remaining]))
    np.testing.assert_array_equal(insertion, lerf[:, ::-1])
    # MoRF 15, LeRF and insertion together 15, the clean image; one black image for all
    assert sum(pool.runner.states.values()) == 6 * (15 + 15 + 1) + 1

    # and the negated map removes from the other end
    maps = torch.stack([torch.randperm(1024, generator=torch.Generator().manual_seed(i)) for i in range(6)]).float()
    maps = maps.view(6, 32, 32)
    table = vt.evaluate(model, inputs, {"a": maps, "b": -maps}, "srg", controls=False)
    np.testing.assert_allclose(table["a", "srg"], -table["b", "srg"], atol=1e-5)


def test_ends(model: Any, inputs: Tensor) -> None:
    """Insertion begins where deletion ends, and ends where it begins: at the clean image."""
    names = ["insertion(baseline=blur_tv)", "deletion(baseline=blur_tv)"]
    _, answers = pooled(vt.wrap(model), inputs, noise(6, 32, 32), names)
    requests = {name: request for spec in names for name, request in vt.get_metric(spec).requests(SHAPE).items()}
    remaining, removed = (answers.log_probability(requests[name])[:, [0, -1]] for name in ("insertion", "deletion"))
    np.testing.assert_array_equal(remaining, removed[:, ::-1])
    np.testing.assert_array_equal(remaining[:, 1], answers.log_probability())
    expected = vt.wrap(model).logits(inputs).log_softmax(dim=1).amax(dim=1)
    np.testing.assert_allclose(answers.log_probability(), expected, atol=1e-5)


def test_linear_model() -> None:
    """With ``a = w (x - b)`` the logit falls by the attributions removed so far: a cumulative sum."""
    weights, x = noise(3, 8, 8, seed=1) / 4, noise(2, 3, 8, 8, seed=2)
    model = Linear(weights)
    attribution = (weights * x).sum(dim=1)  # zero_norm: b = 0
    _, answers = pooled(model, x, attribution, ["deletion(steps=64)"])
    need = RankedRemoval.deletion("zero_norm", range(65))
    log = answers.log_probability(need)
    for i in range(2):
        falling = np.sort(attribution[i].flatten().double().numpy())[::-1]
        logit = attribution[i].sum().item() - np.concatenate([[0], np.cumsum(falling)])
        predicted = int(attribution[i].sum() > 0)
        sign = 1 if predicted else -1
        expected = -np.log1p(np.exp(-sign * logit))
        np.testing.assert_allclose(log[i], expected, atol=1e-5)


def test_constant_map_is_a_random_order(model: Any) -> None:
    """Over many images a constant map scores like random orders do, within standard errors."""
    x = images(model, 48, seed=3)
    random = {
        f"random {seed}": torch.rand(48, 32, 32, generator=torch.Generator().manual_seed(seed)) for seed in range(3)
    }
    table = vt.evaluate(
        model, x, {"flat": torch.ones(48, 32, 32), **random}, ["insertion", "deletion"], controls=False, n_bootstrap=200
    )
    for metric in ("insertion", "deletion"):
        order = np.mean([table[name, metric] for name in random], axis=0)
        gap = table["flat", metric] - order
        assert abs(gap.mean()) < 3 * gap.std(ddof=1) / math.sqrt(len(gap))


@pytest.mark.parametrize("change", [lambda a: 7 * a, lambda a: a + 3, lambda a: a * 2**-120])
@pytest.mark.parametrize("size", [(32, 32), (4, 4)])
def test_only_ranks_matter(model: Any, inputs: Tensor, change: Any, size: tuple[int, int]) -> None:
    maps = exact(6, *size)
    names = ["insertion", "deletion", "srg", "positive_perturbation", "token_deletion_aopc"]
    table = vt.evaluate(
        model, inputs, {"a": maps, "b": change(maps)}, names, labels=LABELS, controls=False, n_bootstrap=10
    )
    for name in names:
        np.testing.assert_allclose(table["a", name], table["b", name], atol=1e-6)
    assert table.degenerate["b"] == {"constant": 0, "zero": 0, "nonfinite": 0}, "tiny is not degenerate"


# -- degenerate maps -----------------------------------------------------------------------------------


def test_degenerate_maps(model: Any, inputs: Tensor) -> None:
    """Constant maps are scored by the tie key and flagged; others that mean nothing have no score and are counted."""
    maps = noise(6, 32, 32, seed=8)
    sick = maps.clone()
    sick[0] = 0.1  # interpolation and rounding must not invent an order
    sick[1] = 0
    sick[2, 3, 4] = math.nan
    sick[3, 0, 0] = math.inf
    sick[4, 0, 0] = -math.inf
    names = ["insertion", "deletion", "insdel", "positive_perturbation", "negative_perturbation", "aopc", "lodds"]
    names += ["srg", "road", "average_drop", "average_increase", "average_gain", "token_deletion_accuracy"]
    names += ["token_insertion_accuracy", "token_deletion_aopc", "token_insertion_aopc", "monotonicity"]
    table = vt.evaluate(model, inputs, {"sound": maps, "sick": sick}, names, labels=LABELS, n_bootstrap=50)
    assert table.degenerate["sick"] == {"constant": 1, "zero": 1, "nonfinite": 3}
    assert sum(table.degenerate["sound"].values()) == 0
    assert "1 constant, 1 zero, 3 nonfinite" in str(table)
    for name in names:
        scores = table["sick", name]
        assert np.isnan(scores[2:5]).all(), name
        assert np.isfinite(scores[[0, 1, 5]]).all(), name
        assert scores[5] == pytest.approx(table["sound", name][5], abs=1e-5), name
        assert scores[:2] == pytest.approx(table["constant", name][:2], abs=1e-5), name
        assert table.mean("sick", name) == pytest.approx(scores[[0, 1, 5]].mean())
        assert np.isfinite(table.interval("sick", name)).all()
    assert (table["sick", "average_drop"][:2] == table["constant", "average_drop"][:2]).all()


def test_all_maps_lost(model: Any, inputs: Tensor) -> None:
    table = vt.evaluate(model, inputs, {"none": torch.full((6, 4, 4), math.nan)}, "insdel", n_bootstrap=20)
    assert math.isnan(table.mean("none", "insdel"))
    assert all(math.isnan(end) for end in table.interval("none", "insdel"))
    assert table.to_json()["methods"][0]["scores"]["insdel"]["mean"] is None
    with pytest.raises(vt.VitreousError, match="no image has both scores"):
        table.difference("none", "random", "insdel")
    assert table.best("insdel") != "none"


def test_other_policies_for_what_is_not_finite(model: Any, inputs: Tensor) -> None:
    maps = noise(6, 32, 32, seed=8)
    lost = maps.clone()
    lost[0, 3, 4] = math.nan
    lowest = maps.clone()
    lowest[0, 3, 4] = maps[0].min()
    with pytest.raises(vt.VitreousError, match="it gave values that are not finite for 1 of 6 maps"):
        vt.evaluate(model, inputs, {"it": lost}, "deletion", nan_policy="raise", controls=False)
    table = vt.evaluate(
        model, inputs, {"lost": lost, "low": lowest}, "deletion", nan_policy="lowest", controls=False, n_bootstrap=10
    )
    np.testing.assert_array_equal(table["lost", "deletion"], table["low", "deletion"])
    assert table.degenerate["lost"]["nonfinite"] == 1


def test_flags() -> None:
    maps = torch.stack([torch.arange(4.0), torch.full((4,), 2.0), torch.zeros(4), torch.tensor([1, math.nan, 1, 1])])
    assert flag(maps.view(4, 2, 2)).tolist() == [0, 1, 2, 3]


# -- ranking -------------------------------------------------------------------------------------------


def test_ties() -> None:
    values = torch.tensor([[1.0, 3.0, 1.0, 3.0, -0.0, 0.0]])
    assert order(values, "raster").tolist() == [[1, 3, 0, 2, 4, 5]]
    assert order(values, "reverse_raster").tolist() == [[3, 1, 2, 0, 5, 4]]
    flat = order(torch.zeros(3, 500), "random", 4)
    assert (flat == flat[0]).all(), "one key for all maps"
    assert sorted(flat[0].tolist()) == list(range(500))
    assert flat[0].tolist() != list(range(500))
    assert torch.equal(flat, order(torch.ones(3, 500), "random", 4))
    assert not torch.equal(flat, order(torch.zeros(3, 500), "random", 5))


def test_ranks_invert_the_order() -> None:
    values = exact(5, 400)
    actual, places = order(values, "random", 1), ranks(values, "random", 1)
    assert torch.equal(places.gather(1, actual), torch.arange(400).expand(5, -1).to(torch.int32))


@pytest.mark.parametrize("size", [(32, 32), (33, 50), (224, 224), (4, 4)])
def test_interpolation_is_torchs_but_keeps_ties(size: tuple[int, int]) -> None:
    maps = noise(3, 4, 7)
    actual = _finer(maps, size)
    expected = torch.nn.functional.interpolate(maps[:, None].double(), size=size, mode="bilinear", align_corners=False)
    torch.testing.assert_close(actual.double(), expected[:, 0], atol=1e-6, rtol=0)
    assert (_finer(torch.full((1, 4, 7), 0.1), size) == torch.tensor(0.1)).all()
    if size == (224, 224):  # the outermost half cells repeat the corner
        assert (actual[:, :28, :16] == maps[:, :1, :1]).all()
        assert (actual[:, 196:, 208:] == maps[:, -1:, -1:]).all()


# -- one pool ------------------------------------------------------------------------------------------


def test_order_of_methods_and_metrics_changes_nothing(model: Any, inputs: Tensor) -> None:
    names = ["insdel", "srg", "aopc", "token_deletion_accuracy", "insertion@coiba"]
    methods = ["generic", "ixg", "saliency"]
    one = vt.evaluate(model, inputs, methods, names, labels=LABELS, n_bootstrap=50)
    other = vt.evaluate(model, inputs, methods[::-1], names[::-1], labels=LABELS, n_bootstrap=50)
    assert one.methods[:3] == tuple(methods)
    assert one.plan["states"] == other.plan["states"]
    for cell, scores in one.scores.items():
        np.testing.assert_array_equal(scores, other.scores[cell])
        assert one.interval(*cell) == other.interval(*cell)


@pytest.mark.parametrize("batch", [1, 7, 500])
def test_batch_size(model: Any, inputs: Tensor, batch: int) -> None:
    names = [
        "insdel",
        "srg",
        "lodds",
        "average_gain",
        "token_insertion_aopc",
        "positive_perturbation(explain_class=label)",
    ]
    one = vt.evaluate(model, inputs, "ixg", names, labels=LABELS, n_bootstrap=10)
    other = vt.evaluate(model, inputs, "ixg", names, labels=LABELS, n_bootstrap=10, batch_size=batch)
    assert one.plan["states"] == other.plan["states"]
    assert other.plan["forward_batch"] == batch
    for cell, scores in one.scores.items():
        np.testing.assert_allclose(scores, other.scores[cell], atol=1e-5)


def test_equal_states_are_run_once(model: Any, inputs: Tensor) -> None:
    """Perturbation pays for AOPC, LOdds and SRG; insertion and deletion for their difference."""

    def states(*names: str) -> int:
        return vt.evaluate(model, inputs, "ixg", list(names), labels=LABELS, n_bootstrap=1, controls=False).plan[
            "states"
        ]

    pair = states("positive_perturbation", "negative_perturbation")
    assert pair == 6 * (2 * 19 + 1) + 1
    assert states("positive_perturbation", "negative_perturbation", "aopc", "lodds", "srg") == pair
    both = states("insertion", "deletion")
    assert both == 6 * (2 * 27 + 1 + 1) + 1  # clean, blurred; one grey for all
    assert states("insertion", "deletion", "insdel") == both
    tokens = states("token_deletion_accuracy", "token_insertion_aopc")
    assert tokens == 6 * (18 + 1)
    assert states("average_drop", "average_gain", "average_increase") == 6 * 2


def test_batches_are_full(model: Any) -> None:
    """Across images, methods, baselines and chunks: only the clean images and the last batch may be short."""
    sizes = []
    vision_model = verified(vt.wrap(model))
    embed = type(vision_model).embed

    class Watched(type(vision_model)):
        def embed(self, inputs: Tensor) -> Tensor:
            sizes.append(len(inputs))
            return embed(self, inputs)

    x = images(model, 20)
    vision_model.__class__ = Watched
    verified(vision_model)
    sizes.clear()
    vt.evaluate(vision_model, x, {"a": noise(20, 4, 4)}, ["insertion", "srg"], batch_size=8, n_bootstrap=1)
    clean, colours = [8, 8, 4], [1]
    assert sorted(sizes[:-1], reverse=True)[:10] == [8] * 10
    short = [size for size in sizes[:-1] if size < 8]
    assert sorted(short) == sorted(colours + clean[2:])


def test_the_class_is_explained_once_where_both_agree(model: Any, inputs: Tensor) -> None:
    asked = []

    def mine(model: Any, inputs: Tensor, classes: Tensor) -> Tensor:
        asked.append(len(inputs))
        return inputs.sum(dim=1) * classes[:, None, None].add(1)

    predicted = vt.wrap(model).logits(inputs).argmax(dim=1).tolist()
    labels = [*predicted[:4], (predicted[4] + 1) % 5, (predicted[5] + 1) % 5]
    names = ["positive_perturbation(explain_class=pred)", "positive_perturbation(explain_class=label)"]
    table = vt.evaluate(model, inputs, mine, names, labels=labels, controls=False, n_bootstrap=10)
    assert asked == [6, 2]
    assert table.plan["states"] == (6 + 2) * 19 + 6 + 1
    np.testing.assert_array_equal(*(table["mine", name][:4] for name in names))


def test_half_precision_is_audited(model: Any, inputs: Tensor) -> None:
    names = ["insdel", "token_deletion_aopc"]
    full = vt.evaluate(model, inputs, "ixg", names, n_bootstrap=10)
    half = vt.evaluate(model, inputs, "ixg", names, n_bootstrap=10, precision="float16")
    assert full.plan["audit"] is None
    audit = half.plan["audit"]
    assert audit["states"] > 10
    assert 0 < audit["log_probability"] < 0.2
    assert 0 < audit["probability"] < 0.05
    assert audit["agreement"] > 0.9
    for cell, scores in full.scores.items():
        np.testing.assert_allclose(half.scores[cell], scores, atol=0.02)
