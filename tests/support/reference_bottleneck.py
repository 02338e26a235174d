"""The information bottleneck with plain hooks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.tracing.prng import PRNGKey

TARGET, SAMPLES = 3, 3


def smoothed(values: Tensor, sigma: float) -> Tensor:
    """A depth-wise Gaussian over ``[1, C, h, w]``, mirrored at the edges, as the original has it."""
    reach = round(2 * sigma)
    if reach == 0:
        return values
    line = torch.exp(-(torch.arange(-reach, reach + 1, dtype=torch.float64) ** 2) / (2 * sigma**2))
    kernel = line[:, None] * line
    kernel = (kernel / kernel.sum()).expand(values.shape[1], 1, -1, -1)
    return F.conv2d(F.pad(values, [reach] * 4, mode="reflect"), kernel, groups=values.shape[1])


def noise(image: Tensor, purpose: str, layers: int, steps: int, shape: tuple[int, ...], seed: int = 0) -> list[Any]:
    """The random numbers of one image, by step and layer, one replica after the other."""
    draws = PRNGKey.of_images(seed, purpose, image[None])

    def replicas(step: int, layer: int) -> Tensor:
        return torch.cat([draws.at(step, layer).at(item).normal(*shape[1:]) for item in range(shape[0])]).double()

    return [[replicas(step, layer) for layer in range(layers)] for step in range(steps)]


def seen(model: nn.Module, modules: list[nn.Module], inputs: Tensor) -> list[Tensor]:
    """What these modules gave in a plain forward."""
    remaining: list[Tensor] = []
    handles = [module.register_forward_hook(lambda m, a, out: remaining.append(out)) for module in modules]
    with torch.no_grad():
        model(inputs)
    for handle in handles:
        handle.remove()
    return remaining


def reference(
    model: nn.Module,
    image: Tensor,
    modules: list[nn.Module],
    purpose: str,
    beta: float,
    *,
    moments: list[tuple[Tensor, Tensor]] | None = None,
    channels: bool = False,
    individual: bool = False,
    every_term: bool = False,
    steps: int = 10,
) -> tuple[Tensor, list[float], list[float]]:
    """The information of every token in the last of ``steps`` forwards, and what was lost and relevant at each."""
    clean = [element[0] for element in seen(model, modules, image[None])]
    moments = moments or [(entry.mean(dim=0), entry.std(dim=0)) for entry in clean]
    tokens, width = clean[0].shape
    shape = (tokens, width) if channels else (tokens, 1)
    alphas = [torch.full(shape, 5.0, dtype=torch.float64, requires_grad=True) for _ in modules]
    alphas = alphas if individual else alphas[:1] * len(modules)
    adam = torch.optim.Adam(list(dict.fromkeys(alphas)), lr=1)
    draws = noise(image, purpose, len(modules), steps, (SAMPLES, tokens, width))
    informations, entropies = [], []
    for step in range(steps):
        terms: list[Tensor] = []

        def hook(module: nn.Module, args: Any, output: Tensor, step: int = step, terms: list[Tensor] = terms) -> Tensor:
            place = modules.index(module)
            mean, std = moments[place][0], moments[place][1].clamp(min=0.01)
            ratio = torch.sigmoid(alphas[place])
            away = (output - mean) / std
            terms.append(-0.5 * (1 + torch.log((1 - ratio) ** 2) - (ratio * away) ** 2 - (1 - ratio) ** 2))
            return ratio * output + (1 - ratio) * (mean + std * draws[step][place])

        handles = [item.register_forward_hook(hook) for item in modules]
        adam.zero_grad()
        logits = model(image.expand(SAMPLES, -1, -1, -1))
        for handle in handles:
            handle.remove()
        remaining = torch.stack(terms if every_term else terms[:1])
        entropy = F.cross_entropy(logits, torch.full((SAMPLES,), TARGET))
        (entropy + beta * remaining.mean()).backward()
        adam.step()
        informations.append(remaining.mean().item())
        entropies.append(entropy.item())
    return (remaining.mean(dim=(0, 1)).sum(dim=-1) / math.log(2)).detach(), informations, entropies
