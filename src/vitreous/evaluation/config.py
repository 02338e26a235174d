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
    geometry: ImageShape
    explained: str = "pred"
    labelled: bool = False
    value: str = "logit"
    only: tuple[int, ...] | None = None
    precision: str = "float32"
    upsample: str = "bilinear"
    ties: str = "random"
    nonfinite: str = "exclude"
    seed: int = 0
    memory: float = 4.0
    images: int = 32
    inner: int = 32
    states: int = 32

    @classmethod
    def of(
        cls,
        view: VisionModel,
        size: tuple[int, int],
        methods: Mapping[str, Method | ExternalExplainer],
        metrics: Mapping[str, Metric],
        *,
        batch: int | None = None,
        memory: float | None = None,
        **how: Any,
    ) -> EvaluationConfig:
        """Fix every number for pictures of one size: ``batch`` states at once, or what the device and memory allow."""
        if batch is not None and batch < 1:
            raise VitreousError(f"batch={batch} must be at least 1")
        probe = torch.empty(1, 3, *size, dtype=view.dtype, device=view.device)
        usual, budget = default_forward_batch(view, memory, size), budget_bytes(view.device, memory) / 2**30
        ordered = {name: methods[name] for name in sorted(methods)}
        return cls(
            ordered,
            metrics,
            ImageShape(size, view.grid(probe), view.depth),
            memory=budget,
            images=usual,
            inner=inner_batch(view, probe, budget),
            states=batch or usual,
            **how,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The classes whose probability is read in every state."""
        given = self.explained != "pred"
        return ("pred", *(["label"] if self.labelled else []), *(["given"] if given else []))

    @property
    def needs(self) -> list[Request]:
        """Everything that the metrics ask for."""
        return [need for judge in self.metrics.values() for need in judge.needs(self.geometry)]

    @property
    def substrates(self) -> list[str]:
        """What takes the place of removed pixels."""
        return baselines_of(self.needs, self.geometry)

    def states_per_picture(self) -> int | None:
        """Return how many states a picture takes; ``None`` where that depends on its classes or its parts."""
        needs = self.needs
        if len({judge.explain for judge in self.metrics.values()}) > 1 or any(
            isinstance(need, WithoutParts) for need in needs
        ):
            return None
        own = Layout([need for need in needs if isinstance(need, RankedRemoval) and need.by == "map"], self.geometry)
        orders = {need for need in needs if isinstance(need, RankedRemoval) and need.by != "map"}
        others = {need for need in needs if isinstance(need, Masks | Images | RenderedStates)}
        drawn = {need for need in others if isinstance(need, RenderedStates) and need.by == "map"}
        shared = sum(Layout([need], self.geometry).length for need in orders)
        shared += sum(need.count for need in others - drawn)
        return 1 + shared + len(self.methods) * (own.length + sum(need.count for need in drawn))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "methods": {
                name: {"spelling": how.spelling, **how.settings} if isinstance(how, Method) else {"what": how.what}
                for name, how in self.methods.items()
            },
            "metrics": {label: {"spelling": m.spelling, **m.settings} for label, m in self.metrics.items()},
            "size": list(self.geometry.pixels),
            "value": self.value,
            "classes": None if self.only is None else list(self.only),
            "precision": self.precision,
            "upsample": self.upsample,
            "ties": self.ties,
            "nonfinite": self.nonfinite,
            "seed": self.seed,
            "memory": self.memory,
            "unit": self.images,
            "inner": self.inner,
            "batch": self.states,
        }
