"""Code from elsewhere runs on copies that share the user's weights: a guard says so where it changed them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vitreous.errors import ModelChangedError
from vitreous.models.changes import structure
from vitreous.models.fingerprint import fingerprint_of
from vitreous.models.identity import state

if TYPE_CHECKING:
    from vitreous.models.view import View

__all__ = ["refuse_model_changes"]


@contextmanager
def refuse_model_changes(view: View, name: str, content: bool = False) -> Iterator[None]:
    """Raise a ``ModelChangedError`` if what runs inside changes the weights, buffers or modules of a model.

    Weights are known by their version counters and a few of their values, with ``content`` by all of them. Nothing is
    put back: what was there before is known to the owner of the model alone. An error that is raised inside gives way,
    since whoever catches it would go on with another model.
    """

    def snapshot() -> tuple[Any, Any]:
        model = view.model
        tensors = [*model.named_parameters(), *model.named_buffers()]
        return structure(model), fingerprint_of(tensors) if content else state(model)

    before = snapshot()
    try:
        yield
    finally:
        after = snapshot()
        if after != before:
            part = "modules, hooks or methods" if after[0] != before[0] else "weights or buffers"
            raise ModelChangedError(
                f"{name} changed the {part} of {view.name}, which all methods share: no number made from now on would "
                "be of the model that was given; load the model again, and let the method work on a deep copy"
            )
