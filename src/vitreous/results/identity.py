"""What a result is an answer to: a digest of everything that can change one of its numbers, never a name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
        snapshot: Snapshot | None = None,
    ) -> Question:
        """Put a question to a model; its weights are read when an answer is looked for or stored.

        ``snapshot`` is what the model was when it was answered.
        """
        facts = _Facts(snapshot or Snapshot.of_question(view), str(view.dtype), view.device.type)
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


class _Lazy(Mapping[str, str]):
    """Words that are found out the first time that someone looks at them."""

    @cached_property
    def _parts(self) -> Mapping[str, str]:
        raise NotImplementedError

    def __getitem__(self, name: str) -> str:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # another process has no model to look at


class _Facts(_Lazy):
    """The facts of a model: its weights are read once for all questions that were asked of it before."""

    def __init__(self, snapshot: Snapshot, dtype: str, device: str) -> None:
        self._snapshot, self._known = snapshot, {"dtype": dtype, "device": device}

    @cached_property
    def _parts(self) -> Mapping[str, str]:
        return {"weights": str(self._snapshot.identity), **self._known}

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Facts) and self._snapshot is other._snapshot:
            return self._known == other._known
        return super().__eq__(other)


class Identity(_Lazy):
    """The identity of an answer in memory: the weights are read once for all answers of a batch."""

    def __init__(self, question: Question, picture: str, target: int | None) -> None:
        self._question, self._picture, self._target = question, picture, target

    @cached_property
    def _parts(self) -> Mapping[str, str]:
        return self._question.identity(self._picture, self._target)

    def __getitem__(self, name: str) -> str:
        return self._picture if name == "picture" else self._parts[name]
