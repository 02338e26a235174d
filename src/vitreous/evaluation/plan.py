"""What is evaluated and how: methods and explanations from elsewhere, metrics, and the sizes of batches.

An explanation from elsewhere is a callable ``(model, inputs, classes) -> maps``, an attribution object with
``attribute(inputs, target=…)`` as Captum's have, a folder of ``.npy`` maps named like the images, or the maps
themselves. A channel axis is summed.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous import io as disk
from vitreous.datasets import Sample
from vitreous.errors import ImageError, MapError, ModelError, SpecError, VitreousError, VitreousWarning
from vitreous.methods import Method, get_method, recommended_method
from vitreous.metrics import EvaluationConfig, ImageShape, Metric, Request, num_states
from vitreous.metrics.batch_runner import default_forward_batch
from vitreous.models import VisionModel, copy_structure
from vitreous.models.shared_copy import check_model_unchanged
from vitreous.registry import check_at_least, defaults
from vitreous.registry.defaults import display_name
from vitreous.tracing import plain_target
from vitreous.tracing.memory import budget_bytes, inner_batch

_MAX_BATCH = 32  # images that other people's code gets
_PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True, eq=False)
class ExternalExplainer:
    """An explanation from elsewhere. ``live`` ones run the model, so they can be asked again about other inputs.

    ``bound`` ones have a model of their own inside, and cannot be asked about another.
    """

    find: Callable[[VisionModel, Sequence[Sample], Tensor, Tensor], Any]
    description: str
    live: bool
    bound: bool = False

    @property
    def class_specific(self) -> bool:
        """Whether another class may get another map; maps that are there already are those of any class."""
        return self.live

    def maps(self, name: str, model: VisionModel, samples: Sequence[Sample], inputs: Tensor, classes: Tensor) -> Tensor:
        """Return maps ``[B, h, w]`` of these inputs, which were made of these samples."""
        batches = []
        for start in range(0, len(inputs), _MAX_BATCH):
            batch = slice(start, start + _MAX_BATCH)
            own = inputs[batch].detach().clone()
            with torch.enable_grad(), check_model_unchanged(model, name, content=self.live):
                raw = self.find(model, samples[batch], own, classes[batch].to(own.device))
            batches.append(_as_maps(name, raw, len(own)).to(inputs.device))
        return torch.cat(batches)


Explainer = Method | ExternalExplainer


def warn_ignored(methods: Sequence[Explainer], target: Any, output: str) -> None:
    """Warn of an output that some methods replace by their own, and of a class that cannot change their maps.

    ``target`` and ``output`` are as the user gave them; what is usual is not warned about.
    """
    own = [method for method in methods if isinstance(method, Method)]
    others = [method for method in own if output != "logit" and method.outputs(output) != (output,)]
    if others:
        text = ", ".join(f"{display_name(m.spec)} explains {' and '.join(m.outputs(output))}" for m in others)
        _warn(f"output={output!r} is not what is explained: {text}, whatever is asked for")
    blind = [display_name(method.spec) for method in own if not method.class_specific]
    if blind and plain_target(target) not in (None, "pred"):
        _warn(f"{', '.join(blind)} know{'s' * (len(blind) == 1)} no class: the map is the same for any target")


def _warn(text: str) -> None:
    """Warn at the line that called the library, so that Python shows it once for each of them."""
    if sys.version_info >= (3, 12):
        warnings.warn(text, VitreousWarning, skip_file_prefixes=(_PACKAGE,))
    else:
        warnings.warn(text, VitreousWarning, stacklevel=4)


def explainers_of(methods: Any, model: VisionModel, controls: bool, output: str) -> dict[str, Explainer]:
    """Return what is evaluated, by name: what ``explain`` does and a usual method by default, and control methods."""
    if methods is None:
        methods = (recommended_method("quick", model), *defaults.evaluation_methods(model.has_residual_stream))
    explainers = named(methods)
    warn_ignored(list(explainers.values()), None, output)
    if controls:
        explainers |= {name: get_method(name) for name in defaults.CONTROLS if name not in explainers}
    return explainers


def named(methods: Any) -> dict[str, Explainer]:
    """Return everything that is to be evaluated by name; one method, a sequence or a mapping of names."""
    if isinstance(methods, Mapping) and methods:
        return {str(name): _explainer(method) for name, method in methods.items()}
    explainers: dict[str, Explainer] = {}
    for method in methods if isinstance(methods, list | tuple | Mapping) else [methods]:
        name, number = _name(method), 2
        if isinstance(method, str | Method) and name in explainers:
            raise VitreousError(f"the method {name} is named twice")
        while name in explainers:
            name, number = f"{_name(method)}-{number}", number + 1
        explainers[name] = _explainer(method)
    if not explainers:
        raise VitreousError("there is nothing to evaluate: give at least one method")
    return explainers


def _explainer(method: Any) -> Explainer:
    """Return what a user meant by one method."""
    if isinstance(method, Method):
        return method
    if isinstance(method, Path) or (isinstance(method, str) and _is_path(method)):
        return _folder(Path(method))
    if isinstance(method, str):
        try:
            return get_method(method)
        except SpecError:
            if os.path.isdir(method):
                return _folder(Path(method))
            raise
    if isinstance(method, Tensor | np.ndarray):
        return _array(method)
    if hasattr(method, "attribute"):
        return ExternalExplainer(lambda m, s, x, c: _attributed(method, m, x, c), "attribution object", True, True)
    if callable(method):
        return ExternalExplainer(
            lambda m, s, x, c: method(copy_structure(m.module, trainable=True), x, c), "callable", True
        )
    raise VitreousError(f"{method!r} is no method: give a spec, a callable, an attribution object or a folder of maps")


def _name(method: Any) -> str:
    if isinstance(method, str):
        return Path(method).name if _is_path(method) else method.strip()
    if isinstance(method, Method):
        return method.spec
    if isinstance(method, Path):
        return method.name
    return "maps" if isinstance(method, Tensor | np.ndarray) else getattr(method, "__name__", type(method).__name__)


def _is_path(text: str) -> bool:
    """Whether a text is a path and no spec; a spec may hold one, as of statistics or baselines."""
    return os.sep in text and ("(" not in text or os.path.isdir(text))


def _folder(folder: Path) -> ExternalExplainer:
    if not os.path.isdir(folder):
        raise ImageError(f"no such folder of maps: {folder}")

    def find(model: VisionModel, samples: Sequence[Sample], inputs: Tensor, classes: Tensor) -> list[Any]:
        return [_loaded(folder / f"{Path(sample.image.name).stem}.npy") for sample in samples]

    return ExternalExplainer(find, f"maps in {folder}", False)


def _loaded(path: Path) -> Any:
    try:
        with disk.open_file(path) as file:
            return np.load(file, allow_pickle=False)
    except FileNotFoundError:
        raise MapError(f"there is no map {path}") from None
    except (OSError, ValueError) as error:
        raise MapError(f"the map {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _array(maps: Any) -> ExternalExplainer:
    def find(model: VisionModel, samples: Sequence[Sample], inputs: Tensor, classes: Tensor) -> Any:
        indices = [sample.index for sample in samples]
        if max(indices) >= len(maps):
            raise MapError(f"{len(maps)} maps were given, fewer than there are images")
        return maps[indices]

    return ExternalExplainer(find, "maps", False)


def _as_maps(name: str, raw: Any, batch: int) -> Tensor:
    """Return raw maps as ``[B, h, w]`` in at least float32, channels summed."""
    try:
        maps = _stacked_maps(raw, batch)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise MapError(f"{name} gave no maps: {error}") from None
    if maps.shape[:1] != (batch,) or maps.ndim != 3 or not maps.numel() or maps.is_complex():
        raise MapError(f"{name} gave {list(maps.shape)} for {batch} images; a map is [h, w] for each of them")
    return maps if maps.dtype == torch.float64 else maps.float()


def _stacked_maps(raw: Any, batch: int) -> Tensor:
    """Return one tensor of what may be a list of maps, channels summed."""
    if isinstance(raw, list | tuple) and not isinstance(raw[0], int | float):
        tensors = [torch.as_tensor(one).detach() for one in raw]
        return torch.stack([one.sum(dim=0) if one.ndim == 3 else one for one in tensors])
    maps = torch.as_tensor(raw).detach()
    maps = maps[None] if maps.ndim == 2 and batch == 1 else maps
    return maps.sum(dim=1) if maps.ndim == 4 else maps


def _attributed(explainer: Any, model: VisionModel, inputs: Tensor, classes: Tensor) -> Any:
    """Call an attribution object, which holds the user's own model: its gradients and flags are put back afterwards."""
    if any(module.training for module in model.module.modules()):
        raise ModelError(f"{model.name} is in training mode; call .eval() before an attribution object runs it")
    before = [(parameter, parameter.grad, parameter.requires_grad) for parameter in model.module.parameters()]
    try:
        return explainer.attribute(inputs, target=classes)
    finally:
        for parameter, gradient, flag in before:
            parameter.grad = gradient
            parameter.requires_grad_(flag)


# -- the plan ------------------------------------------------------------------------------------------


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

    methods: Mapping[str, Explainer]
    metrics: Mapping[str, Metric]
    image_shape: ImageShape
    config: EvaluationConfig = field(default_factory=EvaluationConfig)
    has_labels: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", {name: self.methods[name] for name in sorted(self.methods)})

    @property
    def columns(self) -> tuple[str, ...]:
        """The classes whose probability is read in every state."""
        is_needed = {"pred": True, "label": self.has_labels, "given": self.config.target != "pred"}
        return tuple(name for name in is_needed if is_needed[name])

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
        settings = asdict(self.config)
        del settings["target"]
        return {
            "methods": {name: _description(method) for name, method in self.methods.items()},
            "metrics": {label: {"spec": metric.spec, **metric.settings} for label, metric in self.metrics.items()},
            "size": list(self.image_shape.pixels),
            **{name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()},
        }


def _description(method: Explainer) -> dict[str, Any]:
    return {"spec": method.spec, **method.settings} if isinstance(method, Method) else {"what": method.description}


def forwards_per_image(requests: Iterable[Request], image_shape: ImageShape, maps: int) -> int:
    """Return how many states an image takes if each of its maps explains one class."""
    requests = list(requests)
    shared, own = (num_states(requests, image_shape, shared) for shared in (True, False))
    return 1 + shared + own * maps
