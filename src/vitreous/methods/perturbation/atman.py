"""AtMan: what the class loses when nobody attends to a patch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import SpellingError
from vitreous.methods.base import Answer, Method
from vitreous.methods.perturbation.copies import scores_of_logits
from vitreous.methods.readout import at_least_float32
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import VALUES, Keep, Pass, Session, whole
from vitreous.passes.replace import logits_through
from vitreous.words import check_choice

__all__ = ["AtMan"]


def nothing(view: View, attention: Tensor, gradient: Tensor | None) -> Tensor:
    """Keep no attention: it is asked for only so that a model that does not show it is refused."""
    return attention.new_zeros(len(attention))


@register(
    "atman",
    family="perturbation",
    papers=("deiseroth2023atman",),
    cost=(197, 0),
    cost_note="1 F per patch + 1 F",
    presets={"magma": {"similarity": 0.6}},
    models="ViT",
)
@dataclass(frozen=True)
class AtMan(Method):
    """How much the log-probability falls when attention to one patch is suppressed in all blocks and heads.

    Scores S before the softmax, shifted so that each row starts at zero, are multiplied by ``factor`` in the column of
    patch j: ``A' = softmax(f_j (S - rowmin S))``. From A itself that is ``A_k^f_k rowmin(A)^(1 - f_k)``, each row
    divided by its sum: the softmax's own constant and any positive scale drop out. Map: ``log p - log p'`` of the class
    (``score``: ``logprob``, ``logit`` or ``prob``), which is the difference of the cross entropies. With ``similarity``
    patches whose embedding, as it enters the first block, has a cosine c above it with that of j are suppressed too, by
    ``(1 - f)(1 - c) + f``; ``magma`` takes 0.6. The released code has the other sign, and its demonstration squares the
    map; its variant for BLIP multiplies scores as they are, so that attention to j may rise: it is not here. Where A
    underflows to zero, so does what is left of the column. The attention of a pooling is not touched. Refused where
    attention stays inside windows. Cost: one forward with explicit attention per patch, and one more.
    """

    factor: float = 0.1
    similarity: float | None = None
    score: str = "logprob"

    def __post_init__(self) -> None:
        check_choice("score", self.score, VALUES)
        if not 0 <= self.factor < 1:
            raise SpellingError(f"factor={self.factor} must be from 0 to less than 1")
        if self.similarity is not None and not 0 <= self.similarity <= 1:
            raise SpellingError(f"similarity={self.similarity} must be a cosine from 0 to 1")

    @property
    def own_value(self) -> str:
        return self.score

    def forwards(self, view: View) -> float:
        high, wide = view.grid()
        return 1 + high * wide

    def asks(self, view: View) -> tuple[Pass, ...]:
        return (Pass((Keep("input", whole, (0,)), Keep("attention", nothing, tuple(range(view.depth))))),)

    def compute(self, session: Session) -> Answer:
        view, ask = session.view, self.only_pass(session.view)
        trace = session.trace(ask)
        (tokens,), target = trace[ask.keeps[0]], replace(session.target, value=self.score)
        patches = tokens.shape[1] - view.prefix
        alike = None if self.similarity is None else _cosines(tokens[:, view.prefix :])

        def without(images: Tensor, own: Tensor) -> Tensor:
            change = self._change(own, None if alike is None else alike[images, own], view.prefix)
            return logits_through(view, tokens[images], 0, "attention", dict.fromkeys(range(view.depth), change))

        key = replace(self, score="logit")  # what the model says is the same for every class and value of it
        left = scores_of_logits(session, patches, without, self.score, key)
        return Answer((target.score(trace.logits)[:, None] - left).reshape(-1, *trace.grid), {})

    def _change(self, own: Tensor, cosines: Tensor | None, prefix: int) -> Suppressed:
        """Return the change for patches ``own [b]``, given their cosines ``[b, n]`` with all others where asked."""
        if cosines is None:
            columns = own.unsqueeze(1)
            return Suppressed(columns + prefix, torch.full_like(columns, self.factor, dtype=torch.float64))
        assert self.similarity is not None
        factors = (1 - self.factor) * (1 - cosines) + self.factor
        factors = factors.masked_fill(cosines <= self.similarity, 1.0).scatter(1, own.unsqueeze(1), self.factor)
        least = factors.topk(int((factors < 1).sum(dim=1).max()), dim=1, largest=False)
        return Suppressed(least.indices + prefix, least.values)


@dataclass(frozen=True, eq=False)
class Suppressed:
    """Suppress some columns ``[b, k]`` of attention ``[b, H, N, N]``, each by its own factor; a factor of 1 is none."""

    columns: Tensor
    factors: Tensor

    def __call__(self, attention: Tensor) -> Tensor:
        weights = at_least_float32(attention)
        columns = self.columns[:, None, None].expand(-1, *weights.shape[1:3], -1)
        factors = self.factors.to(weights)[:, None, None]
        lowest = weights.amin(dim=3, keepdim=True)
        changed = weights.scatter(3, columns, weights.gather(3, columns) ** factors * lowest ** (1 - factors))
        total = changed.sum(dim=3, keepdim=True)
        # a row that has all its weight on the patch has no other place for it
        return torch.where(total > 0, changed / total, weights).to(attention.dtype)


def _cosines(patches: Tensor) -> Tensor:
    """Return the cosines ``[B, n, n]`` of the patches of each image; a vector of zeros is like none."""
    unit = F.normalize(at_least_float32(patches), dim=2)
    return unit @ unit.transpose(1, 2)
