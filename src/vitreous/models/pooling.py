"""How the tokens after the last block become one vector."""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.errors import ModelError

__all__ = ["Pooling"]


class Pooling:
    """How the tokens after the last block become one vector.

    ``token`` reads the class token, ``pair`` the mean of class and distillation token, ``avg`` the mean over the
    patches, ``avg_all`` that over all tokens, ``token_avg`` the class token beside the mean over the patches. Attention
    pooling (``map``) has no fixed weights: its own attention is the row, and it is observed like that of any block.
    """

    def __init__(self, kind: str, prefix: int) -> None:
        if kind not in ("token", "avg", "avg_all", "pair", "token_avg", "map"):
            supported = "token, avg, avg_all, pair, token_avg, map"
            raise ModelError(f"pooling {kind!r} has no read-out row; supported: {supported}")
        self.kind = kind
        self.prefix = prefix

    @property
    def attends(self) -> bool:
        """Whether the pooling is itself an attention over the tokens."""
        return self.kind == "map"

    @property
    def rows(self) -> list[slice]:
        """The groups of tokens that are read: the mean of each, summed. Attention pooling stands for all patches."""
        patches = slice(self.prefix, None)
        return {
            "token": [slice(0, 1)],
            "pair": [slice(0, 2)],
            "avg": [patches],
            "avg_all": [slice(0, None)],
            "token_avg": [slice(0, 1), patches],
            "map": [patches],
        }[self.kind]

    def read(self, values: Tensor, dim: int) -> Tensor:
        """Read a token axis as the head does: the mean over each group of rows, summed."""
        order = values.movedim(dim, 0)
        return torch.stack([order[rows].mean(dim=0) for rows in self.rows]).sum(dim=0)

    def row(self, tokens: Tensor) -> Tensor:
        """Return the weights ``[B, N]`` of the tokens in what is read, shaped and typed like ``tokens``."""
        weights = tokens.new_zeros(tokens.shape[:2])
        for rows in self.rows:
            weights[:, rows] += 1 / weights[:, rows].shape[1]
        return weights

    def __repr__(self) -> str:
        return f"Pooling({self.kind!r})"
