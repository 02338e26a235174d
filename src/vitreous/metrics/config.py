"""Everything a score depends on beside the model, the images, the methods and the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from vitreous.registry import check_at_least, check_choice
from vitreous.tracing.prng import check_seed

__all__ = ["EvaluationConfig"]


def _one_of(default: str, *choices: str) -> Any:
    return field(default=default, metadata={"choices": (default, *choices)})


def _size(default: float) -> Any:
    return field(default=default, metadata={"identity": False})


@dataclass(frozen=True)
class EvaluationConfig:
    """How a set of scores is made; the same in ``evaluate``, in a benchmark file and in the batch runner.

    The sizes at the end are numbers, not guesses: with the same sizes the same bits come out, with others the last
    digits of a score may differ and nothing else, so they are no part of its identity.

    Parameters
    ----------
    target : str, default "pred"
        The class that is explained where a metric has none of its own: the predicted one (``"pred"``), the true one
        (``"label"``), or the one given with each sample (``"given"``).
    output : str, default "logit"
        What is explained of the class: ``"logit"``, ``"prob"`` or ``"logprob"``.
    class_subset : tuple of int, optional
        The classes that the softmax is restricted to; all of them by default.
    precision : str, default "float32"
        Of the forwards that metrics need: ``"float32"`` is the model's own, ``"float16"`` and ``"bfloat16"`` are
        audited against it.
    interpolation : str, default "bilinear"
        How maps are enlarged to pixels: ``"bilinear"`` or ``"nearest"``.
    tie_breaking : str, default "random"
        The order of equal values: ``"random"``, ``"raster"`` or ``"reverse_raster"``.
    nan_policy : str, default "exclude"
        Maps that are not finite have no score (``"exclude"``), rank their values lowest (``"lowest"``) or are an
        error (``"raise"``).
    seed : int, default 0
        The seed of everything random.
    memory_gb : float, default 4.0
        The budget in GiB of what a method computes outside its passes.
    images_per_unit : int, default 32
        How many images are explained and scored together.
    attribution_batch : int, default 32
        How many inputs go through one pass that explains.
    forward_batch : int, default 32
        How many perturbed images go through one forward.
    """

    target: str = _one_of("pred", "label", "given")
    output: str = _one_of("logit", "prob", "logprob")
    class_subset: tuple[int, ...] | None = None
    precision: str = _one_of("float32", "float16", "bfloat16")
    interpolation: str = _one_of("bilinear", "nearest")
    tie_breaking: str = _one_of("random", "raster", "reverse_raster")
    nan_policy: str = _one_of("exclude", "lowest", "raise")
    seed: int = 0
    memory_gb: float = _size(4.0)
    images_per_unit: int = _size(32)
    attribution_batch: int = _size(32)
    forward_batch: int = _size(32)

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name, choices in self.choices().items():
            check_choice(name, getattr(self, name), choices)
        for name in ("images_per_unit", "attribution_batch", "forward_batch"):
            check_at_least(name, getattr(self, name), 1)

    @classmethod
    def choices(cls) -> dict[str, tuple[str, ...]]:
        """Return the words that may stand in each field that takes one of a few."""
        return {each.name: each.metadata["choices"] for each in fields(cls) if "choices" in each.metadata}

    def identity(self) -> dict[str, Any]:
        """Return the fields that can change a number by more than its last digits."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.metadata.get("identity", True)}
