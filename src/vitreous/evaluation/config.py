"""What is evaluated and how: the methods, the metrics and the configuration that a group of images is scored with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from vitreous.evaluation.explainers import ExternalExplainer
from vitreous.methods import Method
from vitreous.metrics import EvaluationConfig, ImageShape, Metric, Request, num_states
from vitreous.metrics.batch_runner import default_forward_batch
from vitreous.models import VisionModel
from vitreous.registry import check_at_least
from vitreous.tracing.memory import budget_bytes, inner_batch

__all__ = ["EvaluationPlan", "image_shape_of", "with_batch_sizes"]


def image_shape_of(model: VisionModel, size: tuple[int, int]) -> ImageShape:
    """Return the pixels, the tokens and the depth that metrics lay out their requests for."""
    return ImageShape.of(model, torch.empty(1, 3, *size, dtype=model.dtype, device=model.device))


def with_batch_sizes(
    config: EvaluationConfig,
    model: VisionModel,
    size: tuple[int, int],
    batch_size: int | None = None,
    memory_gb: float | None = None,
) -> EvaluationConfig:
    """Return the configuration with ``batch_size`` states in one forward, or what device and memory allow."""
    if batch_size is not None:
        check_at_least("batch_size", batch_size, 1)
    probe = torch.empty(1, 3, *size, dtype=model.dtype, device=model.device)
    usual, budget = default_forward_batch(model, memory_gb, size), budget_bytes(model.device, memory_gb) / 2**30
    return replace(
        config,
        memory_gb=budget,
        images_per_unit=usual,
        attribution_batch=inner_batch(model, probe, budget),
        forward_batch=batch_size or usual,
    )


@dataclass(frozen=True, eq=False)
class EvaluationPlan:
    """How a group of images is scored; with the same plan the same bits come out.

    Methods share passes, and sharing changes the last bits, so all of them belong to the plan; they run in the order of
    their names.
    """

    methods: Mapping[str, Method | ExternalExplainer]
    metrics: Mapping[str, Metric]
    image_shape: ImageShape
    config: EvaluationConfig = field(default_factory=EvaluationConfig)
    has_labels: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", {name: self.methods[name] for name in sorted(self.methods)})

    @property
    def columns(self) -> tuple[str, ...]:
        """The classes whose probability is read in every state."""
        given = self.config.target != "pred"
        return ("pred", *(["label"] if self.has_labels else []), *(["given"] if given else []))

    @property
    def requests(self) -> list[Request]:
        """Everything that the metrics ask for."""
        shape = self.image_shape
        return [request for metric in self.metrics.values() for request in metric.requests(shape).values()]

    @property
    def baselines(self) -> list[str]:
        """What takes the place of removed pixels."""
        return sorted({name for request in self.requests for name in request.baselines(self.image_shape)})

    def forwards_per_image(self) -> int | None:
        """Return how many states an image takes; ``None`` where that depends on its classes or its parts."""
        requests = self.requests
        classes = {metric.explain_class for metric in self.metrics.values()}
        if len(classes) > 1 or any(request.count(self.image_shape) is None for request in requests):
            return None
        return forwards_per_image(requests, self.image_shape, len(self.methods))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        settings = {each.name: getattr(self.config, each.name) for each in fields(self.config)}
        del settings["target"]
        return {
            "methods": {
                name: {"spec": method.spec, **method.settings} if isinstance(method, Method) else {"what": method.what}
                for name, method in self.methods.items()
            },
            "metrics": {label: {"spec": metric.spec, **metric.settings} for label, metric in self.metrics.items()},
            "size": list(self.image_shape.pixels),
            **{name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()},
        }


def forwards_per_image(requests: Iterable[Request], image_shape: ImageShape, maps: int) -> int:
    """Return how many states an image takes if each of its maps explains one class."""
    requests = list(requests)
    shared, own = (num_states(requests, image_shape, shared) for shared in (True, False))
    return 1 + shared + own * maps
