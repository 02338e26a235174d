"""What combinators of one method share: unless they say otherwise, they are like their base."""

from __future__ import annotations

from vitreous.methods.base import Method
from vitreous.models import View

__all__ = ["OfBase"]


class OfBase(Method):
    """A method made of one other."""

    base: Method

    @property
    def grid(self) -> str:  # type: ignore[override]
        return self.base.grid

    @property
    def class_specific(self) -> bool:
        return self.base.class_specific

    @property
    def cost(self) -> tuple[float, float]:
        return self.base.cost

    def forwards(self, view: View) -> float:
        return self.base.forwards(view)
