"""Agglomerative clustering with complete linkage, up to a distance, of many images at once."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["complete_linkage"]


def complete_linkage(distances: Tensor, threshold: float, there: Tensor | None = None) -> Tensor:
    """Return the cluster ``[B, n]`` of each of n things, from their distances ``[B, n, n]``, counted by first members.

    Two clusters are as far apart as their farthest members; the closest two are joined as long as they are closer than
    ``threshold``. Under complete linkage no merger brings a cluster closer to another. So two that are each other's
    nearest stay so until they are joined, and all such pairs can be joined at once: some thirty rounds for 768 things
    instead of 767 mergers, with the same result unless distances are equal. Of equal ones the first counts. Things that
    are not ``there`` have the cluster -1.
    """
    size, device = distances.shape[1], distances.device
    there = distances.new_ones(distances.shape[:2], dtype=torch.bool) if there is None else there
    apart = torch.maximum(distances, distances.transpose(1, 2))  # what is nearest must be so from both sides
    apart.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    batch, here = torch.arange(len(apart), device=device).unsqueeze(1), torch.arange(size, device=device)
    stays, other, cluster = there, here.expand(len(apart), -1), here.expand(len(apart), -1)
    while True:
        count = stays.sum(dim=1, keepdim=True)
        kept = stays.byte().argsort(dim=1, descending=True, stable=True)[:, : int(count.max())]
        taken = other.gather(1, kept)
        for _ in range(2):  # rows, then columns
            apart = torch.maximum(apart[batch, kept], apart[batch, taken]).transpose(1, 2).contiguous()
        place = (stays.cumsum(dim=1) - 1).clamp(min=0)
        cluster = place.gather(1, torch.minimum(other, here)).gather(1, cluster)
        here = here[: kept.shape[1]]
        alive = here < count  # an image may have fewer left than others
        apart = apart.masked_fill(~(alive.unsqueeze(2) & alive.unsqueeze(1)), torch.inf)
        if len(here) == 0:
            break
        # the least pair of all, the first of them if there are several, is always mutual: every round makes progress
        nearest, partner = apart.min(dim=2)
        joined = (partner.gather(1, partner) == here) & (nearest < threshold)
        if not joined.any():
            break
        other = torch.where(joined, partner, here)
        stays = alive & (other >= here)
    return cluster.masked_fill(~there, -1)
