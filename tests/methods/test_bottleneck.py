"""What bottlenecks are made of: the divergence in closed form, the prior of the noise, the blur over places."""

from __future__ import annotations

import math

import pytest
import torch

from reference_bottleneck import smoothed
from vitreous.methods.bottleneck import Blur, Prior, information
from vitreous.tracing.statistics import Moments


def test_closed_form_is_the_channel_mean_of_the_divergence() -> None:
    torch.manual_seed(0)
    value, mean = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    std, alpha = torch.rand(5, 8, dtype=torch.float64) + 0.1, torch.randn(2, 5, 1, dtype=torch.float64) * 4
    ratio = torch.sigmoid(alpha)
    passed = torch.distributions.Normal(ratio * value + (1 - ratio) * mean, (1 - ratio) * std)
    expected = torch.distributions.kl_divergence(passed, torch.distributions.Normal(mean, std)).mean(dim=-1)
    surprise = Prior(mean[None], std[None]).surprise(value, by_channel=False)
    assert torch.allclose(information(alpha, surprise)[..., 0], expected)


@pytest.mark.parametrize("alpha", [-60.0, -20.0, -3.0, 5.0, 20.0, 90.0])
def test_the_divergence_keeps_its_precision_where_ratios_are_extreme(alpha: float) -> None:
    """In float32 ``1 - sigmoid(17)`` is zero, and ``1 - (1 - λ)²`` cancels for small λ."""
    ratio = 1 / (1 + math.exp(-alpha))
    left = math.exp(-alpha) / (1 + math.exp(-alpha))
    expected = 0.5 * (ratio**2 * 2.5 - ratio * (1 + left)) + (alpha if alpha > 30 else math.log1p(math.exp(alpha)))
    actual = float(information(torch.tensor(alpha), torch.tensor(2.5)))
    assert actual == pytest.approx(expected, rel=1e-5, abs=2e-7 * ratio)
    assert math.isfinite(actual)


def test_a_small_deviation_is_lifted() -> None:
    prior = Prior.of(torch.zeros(1, 1, 2), torch.tensor([[[0.0, 0.5]]]), torch.zeros(1, 1, 2))
    assert prior.std.flatten().tolist() == pytest.approx([0.01, 0.5])


@pytest.mark.parametrize("grid", [(5, 7), (3, 3), (14, 14)])
@pytest.mark.parametrize("sigma", [0.4, 1.0])
def test_the_blur_is_a_convolution(grid: tuple[int, int], sigma: float) -> None:
    values = torch.rand(2, 4, *grid, dtype=torch.float64)
    blur = Blur.of(sigma, grid, 1, values)
    tokens = torch.cat([torch.ones(2, 1, 4, dtype=torch.float64), values.flatten(2).transpose(1, 2)], dim=1)
    actual = blur(tokens)
    assert torch.equal(actual[:, :1], tokens[:, :1])
    assert torch.allclose(actual[:, 1:].transpose(1, 2).reshape(values.shape), smoothed(values, sigma))


@pytest.mark.parametrize("grid", [(1, 1), (1, 6), (2, 2), (2, 3)])
def test_grids_smaller_than_the_kernel_still_have_means(grid: tuple[int, int]) -> None:
    ones = torch.ones(1, grid[0] * grid[1], 2, dtype=torch.float64)
    assert torch.allclose(Blur.of(1.0, grid, 0, ones)(ones), ones)
    mixed = Blur.of(3.0, grid, 0, ones)
    assert all(torch.allclose(item.sum(dim=1), item.new_ones(len(item))) for item in mixed[:2])
    assert Blur.of(0.2, grid, 0, ones) is None


def test_active_means_in_more_than_one_in_a_hundred() -> None:
    mean = torch.ones(1, 3)
    part = Moments(mean, mean, 100, torch.tensor([[0, 1, 2]]))
    assert part.active.tolist() == [[False, False, True]]
    assert part.merge(part).active.tolist() == [[False, False, True]]
    more = Moments(mean, mean, 100, torch.tensor([[0, 2, 0]]))
    assert part.merge(more).active.tolist() == [[False, True, False]]
    uncounted = Moments(torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.0, 2.0, 0.0]]), 100)
    assert uncounted.active.tolist() == [[False, True, True]]
    assert part.merge(uncounted).nonzero is None
