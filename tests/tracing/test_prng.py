"""Random numbers that are hashes: what they depend on, and whether they look random."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from vitreous.errors import VitreousError
from vitreous.tracing.prng import PRNGKey, content_keys

MASK = 2**64 - 1


def mix(z: int) -> int:
    """SplitMix64's finaliser, on whole numbers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, 9, 7, generator=torch.Generator().manual_seed(seed))


def test_bits_are_those_of_splitmix64() -> None:
    key = 1234567
    actual = PRNGKey(torch.tensor([key])).bits(5)[0].tolist()
    assert [item & MASK for item in actual] == [mix((key + (p + 1) * 0x9E3779B97F4A7C15) & MASK) for p in range(5)]
    names_seen = PRNGKey(torch.tensor([0])).bits(2)[0].tolist()  # published first outputs for the state 0
    assert [item & MASK for item in names_seen] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_a_row_knows_neither_neighbours_nor_shape() -> None:
    x = images(4)
    for name, arguments in (("bits", ()), ("uniform", ()), ("normal", ()), ("below", (10,))):
        every = getattr(PRNGKey.of_images(3, "p", x), name)(*arguments, 5, 7)
        alone = getattr(PRNGKey.of_images(3, "p", x[2:3]), name)(*arguments, 5, 7)
        assert torch.equal(every[2], alone[0])
        longer = getattr(PRNGKey.of_images(3, "p", x), name)(*arguments, 40)
        assert torch.equal(every.flatten(1), longer[:, :35])
        turned = getattr(PRNGKey.of_images(3, "p", x.flip(0)), name)(*arguments, 5, 7)
        assert torch.equal(turned.flip(0), every)


def test_they_depend_on_seed_image_purpose_step_and_place() -> None:
    x = images(2)
    base = PRNGKey.of_images(0, "p", x)
    others = [PRNGKey.of_images(1, "p", x), PRNGKey.of_images(0, "q", x), base.at(0), base.at(1), base.at(0, 0)]
    others += [PRNGKey.of_images(0, "p", x + 1e-6), base.at(torch.tensor([0, 0]) + 5)]
    rows = [base.bits(8), *(other.bits(8) for other in others)]
    flat = torch.cat(rows).flatten()
    assert len(flat.unique()) == len(flat)


def test_default_dtype_and_device_do_not_matter() -> None:
    x = images(2)
    expected = PRNGKey.of_images(0, "p", x).normal(6)
    torch.set_default_dtype(torch.float64)
    try:
        actual = PRNGKey.of_images(0, "p", x.double().float()).normal(6)
    finally:
        torch.set_default_dtype(torch.float32)
    assert actual.dtype == torch.float32
    assert torch.equal(actual, expected)
    assert torch.equal(content_keys(x.double()), content_keys(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_the_same() -> None:
    x = images(3)
    one, other = PRNGKey.of_images(0, "p", x), PRNGKey.of_images(0, "p", x.cuda())
    assert torch.equal(one.bits(1000), other.bits(1000).cpu())
    torch.testing.assert_close(one.normal(1000), other.normal(1000).cpu(), rtol=1e-5, atol=1e-5)


def test_large_draws_are_cut_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = PRNGKey.of_images(0, "p", images(7))
    full = draws.normal(11)
    monkeypatch.setattr("vitreous.tracing.prng._CHUNK", 30)
    assert torch.equal(draws.normal(11), full)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True, "3"])
def test_bad_seeds(seed: object) -> None:
    with pytest.raises(VitreousError, match="is not a whole number"):
        PRNGKey.of(seed, "p")  # type: ignore[arg-type]


# -- do they look random? ----------------------------------------------------------------------------------------------

COUNT = 200_000


def test_moments_of_normal_numbers() -> None:
    z = PRNGKey.of(0, "moments").normal(COUNT)[0].double()
    for power, expected in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        spread = math.sqrt(math.prod(range(1, 2 * power, 2)) / COUNT)  # of the mean of z^power, at most
        assert abs(float((z**power).mean()) - expected) < 4 * spread
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-3


def test_uniform_numbers_are_equidistributed() -> None:
    u = PRNGKey.of(1, "uniform").uniform(COUNT)[0]
    assert 0 <= float(u.min())
    assert float(u.max()) < 1
    assert stats.chisquare(torch.histc(u, 256, 0, 1).numpy()).pvalue > 1e-3
    pairs = (u[0::2] * 16).long() * 16 + (u[1::2] * 16).long()
    assert stats.chisquare(torch.bincount(pairs, minlength=256).numpy()).pvalue > 1e-3


def test_every_bit_is_fair() -> None:
    bits = PRNGKey.of(2, "bits").bits(COUNT)[0]
    for place in range(64):
        share = float(((bits >> place) & 1).double().mean())
        assert abs(share - 0.5) < 4 * 0.5 / math.sqrt(COUNT)


@pytest.mark.parametrize("option", ["seeds", "images", "purposes", "steps", "places"])
def test_streams_are_uncorrelated(option: str) -> None:
    """Neighbouring seeds, images that differ in one bit, purposes, steps, and the same stream one place later."""
    x, n = images(1), 50_000
    base = PRNGKey.of_images(0, "p", x)
    nudged = x.clone()
    nudged[0, 0, 0, 0] = torch.nextafter(x[0, 0, 0, 0], torch.tensor(9.0))
    one = base.normal(n)[0].double()
    other = {
        "seeds": PRNGKey.of_images(1, "p", x).normal(n)[0],
        "images": PRNGKey.of_images(0, "p", nudged).normal(n)[0],
        "purposes": PRNGKey.of_images(0, "q", x).normal(n)[0],
        "steps": base.at(1).normal(n)[0],
        "places": base.normal(n + 1)[0, 1:],
    }[option].double()
    assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 4 / math.sqrt(n)
    assert abs(float(torch.corrcoef(torch.stack([one**2, other**2]))[0, 1])) < 4 / math.sqrt(n)


def test_permutations_are_fair() -> None:
    draws = PRNGKey.of(3, "orders")
    orders = PRNGKey(draws.keys.expand(6000)).at(torch.arange(6000)).permutation(4)
    assert torch.equal(orders.sort(dim=1).values, torch.arange(4).expand(6000, -1))
    codes = (orders * torch.tensor([64, 16, 4, 1])).sum(dim=1)
    counts = torch.unique(codes, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    sampled = draws.below(7, 70_000)[0]
    assert stats.chisquare(torch.bincount(sampled, minlength=7).numpy()).pvalue > 1e-3
