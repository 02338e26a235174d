"""A plan: everything that the numbers of a unit depend on, beside the model and the pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vitreous.errors import VitreousError
from vitreous.evaluation.explainers import ExternalExplainer
from vitreous.methods import Method
from vitreous.metrics import Images, ImageShape, Masks, Metric, RankedRemoval, RenderedStates, Request, WithoutParts
from vitreous.metrics.batch_runner import default_forward_batch
from vitreous.metrics.evaluation import Layout, baselines_of
from vitreous.models import VisionModel
from vitreous.tracing.memory import budget_bytes, inner_batch

__all__ = ["EvaluationConfig"]


@dataclass(frozen=True, eq=False)
class EvaluationConfig:
    """How a group of pictures is judged. Sizes are numbers, not guesses: the same plan gives the same bits.

    ``methods`` share passes, and sharing changes the last bits, so all of them belong to the plan; they run in the
    order of their names. ``explained`` is the class that a caller asked for: ``"pred"``, ``"label"`` or ``"given"``
    (that of each sample). ``images`` go into one unit, ``inner`` inputs into one pass that explains, ``states``
    perturbed images into one forward, and what a method makes beside its passes keeps to ``memory`` GiB.
    """

    methods: Mapping[str, Method | ExternalExplainer]
    metrics: Mapping[str, Metric]
    image_shape: ImageShape
    target: str = "pred"
    has_labels: bool = False
    output: str = "logit"
    class_subset: tuple[int, ...] | None = None
    precision: str = "float32"
    interpolation: str = "bilinear"
    tie_breaking: str = "random"
    nan_policy: str = "exclude"
    seed: int = 0
    memory_gb: float = 4.0
    images_per_unit: int = 32
    attribution_batch: int = 32
    forward_batch: int = 32

    @classmethod
    def of(
        cls,
        model: VisionModel,
        size: tuple[int, int],
        methods: Mapping[str, Method | ExternalExplainer],
        metrics: Mapping[str, Metric],
        *,
        batch_size: int | None = None,
        memory_gb: float | None = None,
        **how: Any,
    ) -> EvaluationConfig:
        """Fix every number for pictures of one size: ``batch`` states at once, or what the device and memory allow."""
        if batch_size is not None and batch_size < 1:
            raise VitreousError(f"batch_size={batch_size} must be at least 1")
        probe = torch.empty(1, 3, *size, dtype=model.dtype, device=model.device)
        usual, budget = default_forward_batch(model, memory_gb, size), budget_bytes(model.device, memory_gb) / 2**30
        ordered = {name: methods[name] for name in sorted(methods)}
        return cls(
            ordered,
            metrics,
            ImageShape(size, model.grid(probe), model.depth),
            memory_gb=budget,
            images_per_unit=usual,
            attribution_batch=inner_batch(model, probe, budget),
            forward_batch=batch_size or usual,
            **how,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The classes whose probability is read in every state."""
        given = self.target != "pred"
        return ("pred", *(["label"] if self.has_labels else []), *(["given"] if given else []))

    @property
    def requests(self) -> list[Request]:
        """Everything that the metrics ask for."""
        return [need for judge in self.metrics.values() for need in judge.requests(self.image_shape)]

    @property
    def baselines(self) -> list[str]:
        """What takes the place of removed pixels."""
        return baselines_of(self.requests, self.image_shape)

    def forwards_per_image(self) -> int | None:
        """Return how many states a picture takes; ``None`` where that depends on its classes or its parts."""
        needs = self.requests
        if len({judge.explain_class for judge in self.metrics.values()}) > 1 or any(
            isinstance(need, WithoutParts) for need in needs
        ):
            return None
        own = Layout([need for need in needs if isinstance(need, RankedRemoval) and need.by == "map"], self.image_shape)
        orders = {need for need in needs if isinstance(need, RankedRemoval) and need.by != "map"}
        others = {need for need in needs if isinstance(need, Masks | Images | RenderedStates)}
        drawn = {need for need in others if isinstance(need, RenderedStates) and need.by == "map"}
        shared = sum(Layout([need], self.image_shape).length for need in orders)
        shared += sum(need.count for need in others - drawn)
        return 1 + shared + len(self.methods) * (own.length + sum(need.count for need in drawn))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "methods": {
                name: {"spec": how.spec, **how.settings} if isinstance(how, Method) else {"what": how.what}
                for name, how in self.methods.items()
            },
            "metrics": {label: {"spec": m.spec, **m.settings} for label, m in self.metrics.items()},
            "size": list(self.image_shape.pixels),
            "output": self.output,
            "class_subset": None if self.class_subset is None else list(self.class_subset),
            "precision": self.precision,
            "interpolation": self.interpolation,
            "tie_breaking": self.tie_breaking,
            "nan_policy": self.nan_policy,
            "seed": self.seed,
            "memory_gb": self.memory_gb,
            "images_per_unit": self.images_per_unit,
            "attribution_batch": self.attribution_batch,
            "forward_batch": self.forward_batch,
        }
