"""How the tokens after the last block become one vector."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitreous.errors import ModelError

if TYPE_CHECKING:
    from vitreous.models.base import VisionModel

__all__ = ["Pooling", "infer_pooling"]

_KINDS = ("token", "pair", "avg", "avg_all", "token_avg", "map")


class Pooling:
    """How the tokens after the last block become one vector.

    ``token`` reads the class token, ``pair`` the mean of class and distillation token, ``avg`` the mean over the
    patches, ``avg_all`` that over all tokens, ``token_avg`` the class token beside the mean over the patches. Attention
    pooling (``map``) has no fixed weights: its own attention is the row, and it is observed like that of any block.
    ``unknown`` is none of these, for the ``reason`` told: methods that begin at what is read are refused.
    """

    def __init__(self, kind: str, prefix: int, reason: str = "") -> None:
        if kind not in (*_KINDS, "unknown"):
            raise ModelError(f"pooling {kind!r} has no read-out row; supported: {', '.join(_KINDS)}")
        self.kind = kind
        self.prefix = prefix
        self.reason = reason

    @property
    def uses_attention(self) -> bool:
        """Whether the pooling is itself an attention over the tokens."""
        return self.kind == "map"

    @property
    def rows(self) -> list[slice]:
        """The groups of tokens that are read: the mean of each, summed. Attention pooling stands for all patches."""
        if self.kind == "unknown":
            raise ModelError(f"{self.reason}, so that a method that begins at the tokens that are read does not apply")
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


def infer_pooling(model: VisionModel, usual: Pooling) -> Pooling | None:
    """Return how a model pools, from the gradient where tokens are pooled; ``None`` where there is none, or no number.

    That is the last tensor with one vector for each token. Tokens that are averaged have equal gradients there, and
    tokens that are not read have none, whatever the tokens are. The ``usual`` pooling is kept where that agrees. One
    forward and one backward of what follows the last block.
    """
    seen = model.shared_copy()
    grid = seen.last_grid()
    count = seen.num_prefix_tokens + math.prod(grid)
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(model.device.type, enabled=False):
        draws = torch.Generator().manual_seed(0)
        tokens = torch.randn(1, count, seen.embed_dim_at(seen.depth - 1), generator=draws)
        tokens = tokens.to(model.device, model.dtype).requires_grad_()
        if usual.kind == "map" and _reads_through(seen, tokens):
            return usual
        logits = seen.forward_head(tokens)
        score = (logits * torch.randn(logits.shape, generator=draws).to(logits)).sum()
        gradient = _gradient_where_pooled(score, tokens, grid)
    if gradient is None or not bool(gradient.isfinite().all()) or not bool((gradient != 0).any()):
        return None
    near = 1e-2 if model.dtype in (torch.float16, torch.bfloat16) else 1e-3
    for kind in dict.fromkeys((usual.kind, *_KINDS)):
        if kind not in ("map", "unknown") and _agrees(kind, usual.prefix, gradient, near):
            return usual if kind == usual.kind else Pooling(kind, usual.prefix)
    read = int((gradient != 0).any(dim=1).sum())
    return Pooling("unknown", usual.prefix, f"{model.name} reads {read} of {count} tokens in a way that is not known")


def _reads_through(seen: VisionModel, tokens: Tensor) -> bool:
    """Whether all that is read passes the module that pools by attention."""
    from vitreous.models.custom import instead

    module, calls = seen.get_pooling_module(), list[Any]()
    if module is None:
        return False
    own = module.forward

    def constant(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return own(*args, **kwargs).detach()

    with instead([(module, constant)]):
        logits = seen.forward_head(tokens)
    if not calls or not logits.requires_grad:
        return bool(calls)
    (gradient,) = torch.autograd.grad(logits.sum(), tokens, allow_unused=True)
    return gradient is None or not bool((gradient != 0).any())


def _gradient_where_pooled(score: Tensor, tokens: Tensor, grid: tuple[int, int]) -> Tensor | None:
    """Return the gradient ``[N, D]`` of the last tensor with a vector for every token that all which is read passes."""
    if not score.requires_grad:
        return None
    found, handles, count = list[tuple[Any, Tensor]](), list[Any](), tokens.shape[1]
    for node in _nodes(score.grad_fn):

        def note(gradients: tuple[Tensor | None, ...], node: Any = node) -> None:
            for gradient in gradients:
                if gradient is not None and (rows := _by_token(gradient, count, grid)) is not None:
                    found.append((node, rows.detach().double()))

        handles.append(node.register_prehook(note))
    (last,) = torch.autograd.grad(score, tokens, allow_unused=True)
    for handle in handles:
        handle.remove()
    for node, gradient in found:  # from the output backwards
        if not any(getattr(each, "variable", None) is tokens for each in _nodes(score.grad_fn, without=node)):
            return gradient
    return None if last is None else last[0].double()


def _nodes(start: Any, without: Any = None) -> set[Any]:
    """Return the nodes of a graph that can be reached, with one of them taken out."""
    seen, waiting = set[Any](), [start]
    while waiting:
        node = waiting.pop()
        if node is not None and node is not without and node not in seen:
            seen.add(node)
            waiting += [each for each, _ in node.next_functions]
    return seen


def _by_token(gradient: Tensor, count: int, grid: tuple[int, int]) -> Tensor | None:
    """Return a gradient as ``[N, D]`` if it is one of all tokens: in a row, on a grid, or on one of channels first."""
    if gradient.ndim == 3 and gradient.shape[1] == count:
        return gradient[0]
    if gradient.ndim == 4 and tuple(gradient.shape[1:3]) == grid:
        return gradient[0].flatten(0, 1)
    if gradient.ndim == 4 and tuple(gradient.shape[2:]) == grid:
        return gradient[0].flatten(1).T
    return None


def _agrees(kind: str, prefix: int, gradient: Tensor, near: float) -> bool:
    """Whether the gradients ``[N, D]`` are those of a kind of pooling: equal in a group that is averaged, 0 outside."""
    nothing, rest = 1e-9 * gradient.abs().max(), torch.ones(len(gradient), dtype=torch.bool, device=gradient.device)
    for rows in Pooling(kind, prefix).rows:
        group, rest[rows] = gradient[rows], False
        if len(group) == 0 or not bool((group.abs() > nothing).any(dim=1).all()):
            return False
        apart = (group - group[:1]).abs().max()
        if kind != "pair" and not bool(apart <= near * group.abs().max()):
            return False
    return not bool((gradient[rest].abs() > nothing).any())
