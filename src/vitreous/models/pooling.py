"""How the tokens after the last block become one vector."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitreous.errors import ModelError
from vitreous.models.shared_copy import exact_pass, overridden
from vitreous.models.structure import graph_nodes

if TYPE_CHECKING:
    from vitreous.models.base import VisionModel

_KINDS = ("token", "pair", "avg", "avg_all", "token_avg", "map")


@dataclass(frozen=True, repr=False, eq=False)
class Pooling:
    """How the tokens after the last block become one vector.

    Parameters
    ----------
    kind : {"token", "pair", "avg", "avg_all", "token_avg", "map", "unknown"}
        ``token`` reads the class token, ``pair`` the mean of class and distillation token, ``avg`` the mean over the
        patches, ``avg_all`` that over all tokens, ``token_avg`` the class token beside the mean over the patches.
        Attention pooling (``map``) has no fixed weights: its own attention is the row, recorded like that of any block.
        ``unknown`` is none of these: methods that begin at the tokens that are read are refused.
    prefix : int
        Number of tokens before the patches.
    reason : str, default ""
        Why the pooling is unknown.
    """

    kind: str
    prefix: int
    reason: str = ""

    def __post_init__(self) -> None:
        if self.kind not in (*_KINDS, "unknown"):
            raise ModelError(f"pooling {self.kind!r} has no read-out row; supported: {', '.join(_KINDS)}")

    @property
    def uses_attention(self) -> bool:
        """Whether the pooling is itself an attention over the tokens."""
        return self.kind == "map"

    @property
    def rows(self) -> list[slice]:
        """The groups of tokens that are read: the mean of each, summed. Attention pooling stands for all patches."""
        if self.kind == "unknown":
            raise ModelError(f"{self.reason}, so that a method that begins at the tokens that are read does not apply")
        first, patches = slice(0, 1), slice(self.prefix, None)
        others = {"token": [first], "pair": [slice(0, 2)], "avg_all": [slice(0, None)], "token_avg": [first, patches]}
        return others.get(self.kind, [patches])

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


def infer_pooling(model: VisionModel, usual: Pooling) -> Pooling | None:
    """Return how a model pools, from the gradient where tokens are pooled; ``None`` where there is none, or no number.

    That is the last tensor with one vector for each token. Tokens that are averaged have equal gradients there, and
    tokens that are not read have none, whatever the tokens are. The ``usual`` pooling is kept where that agrees. One
    forward and one backward of what follows the last block.
    """
    copy = model.shared_copy()
    grid = copy.last_grid()
    count = copy.num_prefix_tokens + math.prod(grid)
    with exact_pass(model, gradients=True):
        draws = torch.Generator().manual_seed(0)
        tokens = torch.randn(1, count, copy.embed_dim_at(copy.depth - 1), generator=draws)
        tokens = tokens.to(model.device, model.dtype).requires_grad_()
        if usual.kind == "map" and _reads_through_module(copy, tokens):
            return usual
        logits = copy.forward_head(tokens)
        score = (logits * torch.randn(logits.shape, generator=draws).to(logits)).sum()
        gradients = _gradients_where_pooled(score, tokens, grid)
    if not gradients or not bool(gradients[0].isfinite().all()) or not bool((gradients[0] != 0).any()):
        return None
    tolerance = 1e-2 if model.dtype in (torch.float16, torch.bfloat16) else 1e-3
    for gradient in gradients:
        for kind in dict.fromkeys((usual.kind, *_KINDS)):
            if kind not in ("map", "unknown") and _agrees(kind, usual.prefix, gradient, tolerance):
                return usual if kind == usual.kind else Pooling(kind, usual.prefix)
    read = int((gradients[0] != 0).any(dim=1).sum())
    return Pooling("unknown", usual.prefix, f"{model.name} reads {read} of {count} tokens in a way that is not known")


def _reads_through_module(copy: VisionModel, tokens: Tensor) -> bool:
    """Whether all that is read passes the module that pools by attention."""
    module, calls = copy.get_pooling_module(), list[Any]()
    if module is None:
        return False
    own = module.forward

    def constant(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return own(*args, **kwargs).detach()

    with overridden((module, "forward", constant)):
        logits = copy.forward_head(tokens)
    if not calls or not logits.requires_grad:
        return bool(calls)
    (gradient,) = torch.autograd.grad(logits.sum(), tokens, allow_unused=True)
    return gradient is None or not bool((gradient != 0).any())


def _gradients_where_pooled(score: Tensor, tokens: Tensor, grid: tuple[int, int]) -> list[Tensor]:
    """Return the gradient ``[N, D]`` of the last tensor with a vector for every token that all which is read passes.

    Where there are as many tokens as channels, shapes do not tell which is which: then all readings, the last first.
    None where no gradient arrives.
    """
    if not score.requires_grad:
        return []
    candidates, handles, count = list[tuple[Any, list[Tensor]]](), list[Any](), tokens.shape[1]
    for node in graph_nodes(score.grad_fn):

        def note(gradients: tuple[Tensor | None, ...], node: Any = node) -> None:
            for gradient in gradients:
                if gradient is not None and (readings := _by_token(gradient, count, grid)):
                    candidates.append((node, readings))

        handles.append(node.register_prehook(note))
    (last,) = torch.autograd.grad(score, tokens, allow_unused=True)
    for handle in handles:
        handle.remove()
    gradients: list[Tensor] = []
    for node, readings in candidates:  # from the output backwards
        if not any(getattr(end, "variable", None) is tokens for end in graph_nodes(score.grad_fn, without=node)):
            gradients += readings
            if count != tokens.shape[2]:
                return gradients
    return gradients if last is None else [*gradients, last[0].double()]


def _by_token(gradient: Tensor, count: int, grid: tuple[int, int]) -> list[Tensor]:
    """Return a gradient as ``[N, D]`` if it is one of all tokens: in a row, on a grid, or on one of channels first."""
    readings: list[Tensor] = []
    if gradient.ndim == 3 and gradient.shape[1] == count:
        readings = [gradient[0], gradient[0].T] if gradient.shape[2] == count else [gradient[0]]
    elif gradient.ndim == 4 and tuple(gradient.shape[1:3]) == grid:
        readings = [gradient[0].flatten(0, 1)]
    elif gradient.ndim == 4 and tuple(gradient.shape[2:]) == grid:
        readings = [gradient[0].flatten(1).T]
    return [reading.detach().double() for reading in readings]


def _agrees(kind: str, prefix: int, gradient: Tensor, tolerance: float) -> bool:
    """Whether the gradients ``[N, D]`` are those of a kind of pooling: equal in a group that is averaged, 0 outside."""
    nothing = 1e-9 * gradient.abs().max()
    is_outside = torch.ones(len(gradient), dtype=torch.bool, device=gradient.device)
    for rows in Pooling(kind, prefix).rows:
        group, is_outside[rows] = gradient[rows], False
        if len(group) == 0 or not bool((group.abs() > nothing).any(dim=1).all()):
            return False
        spread = (group - group[:1]).abs().max()
        if kind != "pair" and not bool(spread <= tolerance * group.abs().max()):
            return False
    return not bool((gradient[is_outside].abs() > nothing).any())
