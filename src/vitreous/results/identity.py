"""What a result is an answer to: a digest of everything that can change one of its numbers, never a name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from vitreous.methods import Method
from vitreous.models import Snapshot, View

__all__ = ["Identity", "Question"]


@dataclass(frozen=True)
class Question:
    """What is asked of a picture. Two questions about one picture are two results, however alike their names.

    ``target`` is ``None`` for the predicted class, ``classes`` those that the softmax is restricted to. ``facts`` are
    those of the model: its identity, its precision and kind of device.
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
        *,
        read_weights: bool = True,
    ) -> Question:
        """Put a question to a model; without ``read_weights``, its identity is still to be filled in."""
        facts = {
            "weights": view.fingerprint if read_weights else "",
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


class Identity(Mapping[str, str]):
    """The identity of an answer in memory: the weights are read the first time that someone looks at it.

    The answers of one batch share a ``snapshot``, so that the weights are read once for all of them.
    """

    def __init__(self, question: Question, snapshot: Snapshot, picture: str, target: int | None) -> None:
        self._question, self._snapshot, self._picture, self._target = question, snapshot, picture, target

    @cached_property
    def _parts(self) -> dict[str, str]:
        facts = {**self._question.facts, "weights": str(self._snapshot.identity)}
        return replace(self._question, facts=facts).identity(self._picture, self._target)

    def __getitem__(self, name: str) -> str:
        return self._picture if name == "picture" else self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __repr__(self) -> str:
        return f"Identity(picture={self._picture!r})"

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # another process has no model to look at
