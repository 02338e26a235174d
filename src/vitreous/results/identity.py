"""What a result is an answer to: a digest of everything that can change one of its numbers, never a name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitreous.methods import Method
from vitreous.models import View

__all__ = ["Question"]


@dataclass(frozen=True)
class Question:
    """What is asked of a picture. Two questions about one picture are two results, however alike their names.

    ``target`` is ``None`` for the predicted class, ``classes`` those that the softmax is restricted to. ``facts`` are
    those of the model: weights, preprocessing, precision and kind of device.
    """

    facts: Mapping[str, str]
    method: str
    target: int | None
    against: tuple[int, ...]
    value: str
    classes: tuple[int, ...] | None
    among: tuple[int, ...]
    grid: str | None
    seed: int

    @classmethod
    def of(
        cls,
        view: View,
        how: Method,
        target: int | None,
        against: tuple[int, ...] = (),
        value: str = "logit",
        classes: tuple[int, ...] | None = None,
        among: tuple[int, ...] = (),
        grid: str | None = None,
        seed: int = 0,
    ) -> Question:
        """Put a question to a model."""
        facts = {
            "weights": view.fingerprint,
            "preprocess": repr(view.preprocess),
            "dtype": str(view.dtype),
            "device": view.device.type,
        }
        return cls(facts, how.fingerprint, target, against, " and ".join(how.values(value)), classes, among, grid, seed)

    def digest(self, picture: str, target: int | None) -> str:
        """Return the identity of the answer for one picture and the class that was explained in the end."""
        told = {**vars(self), "facts": dict(self.facts), "picture": picture, "target": target}
        return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16).hexdigest()

    def identity(self, picture: str, target: int | None) -> dict[str, str]:
        """Return what a manifest keeps of it."""
        return {"question": self.digest(picture, target), "picture": picture, "weights": self.facts["weights"]}

    def answered_by(self, manifest: Mapping[str, Any], picture: str) -> bool:
        """Whether a result answers this question about a picture."""
        try:
            target, predicted = manifest["target"], manifest["prediction"]["target"]
            asked = manifest["identity"]["question"]
        except (KeyError, TypeError):
            return False
        wanted = predicted if self.target is None else self.target
        return bool(target == wanted and asked == self.digest(picture, target))
