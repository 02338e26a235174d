"""Methods, metrics and callables from elsewhere: the shape of what they return, and the model that they leave."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitreous as vt
from families import FAMILIES, images
from vitreous.benchmark.data import checked_explainer
from vitreous.datasets import read_samples
from vitreous.errors import MapError, ModelChangedError
from vitreous.evaluation.plan import named, with_batch_sizes
from vitreous.methods import Attribution, Method
from vitreous.methods import registry as method_registry
from vitreous.metrics import Curve, EvaluationConfig, Metric
from vitreous.metrics import base as metric_registry


@pytest.fixture
def model() -> Any:
    return FAMILIES["vit"]()


@pytest.fixture
def inputs(model: Any) -> Tensor:
    return images(model, 3)


@pytest.fixture
def registry() -> Iterator[None]:
    """What a test registers goes with it."""
    registries = (method_registry.REGISTRY, metric_registry.REGISTRY)
    for registered in registries:
        registered.all()  # entry points are read once
    before = [dict(registered.by_name) for registered in registries]
    yield
    for registered, names in zip(registries, before, strict=True):
        registered.by_name.clear()
        registered.by_name.update(names)


def evaluate(*arguments: Any, **options: Any) -> vt.ScoreTable:
    return vt.evaluate(*arguments, **({"n_bootstrap": 20, "controls": False} | options))


# -- methods: shape, dtype, count --------------------------------------------------------------------------


def answer_of(maps: Callable[[Tensor], Any]) -> type[Method]:
    """Return a registered method whose answer is a function of the means of the images' channels."""

    @method_registry.register_method("from_elsewhere", family="test", class_specific=False, cost=(0, 0))
    @dataclass(frozen=True)
    class FromElsewhere(Method):
        """A map from elsewhere."""

        grid = "pixel"

        def compute(self, context: Any) -> Attribution:
            answer = maps(context.inputs.mean(dim=1))
            return answer if not isinstance(answer, Tensor) else Attribution(answer, {})

    return FromElsewhere


WRONG_ANSWERS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "one map more": (lambda maps: torch.cat([maps[:1], maps]), "4 maps for 3 images"),
    "one map less": (lambda maps: maps[1:], "2 maps for 3 images"),
    "one map for all": (lambda maps: maps.mean(dim=0), r"\[\d+, \d+\] of torch.float32"),
    "channels": (lambda maps: maps[:, None].expand(-1, 3, -1, -1), "of torch.float32"),
    "no pixels": (lambda maps: maps[:, :0], "of torch.float32"),
    "complex": (lambda maps: maps + 0j, "of torch.complex64"),
    "integers": (lambda maps: maps.long(), "of torch.int64"),
    "truth values": (lambda maps: maps > 0, "of torch.bool"),
    "an array": (lambda maps: Attribution(maps.numpy(), {}), "a ndarray"),
    "a tuple": (lambda maps: (maps, {}), "must return an Attribution, not tuple"),
    "nothing": (lambda maps: None, "must return an Attribution, not NoneType"),
    "an extra of other images": (lambda maps: Attribution(maps, {"classes": maps[:2, 0, 0]}), "extra 'classes'"),
    "an extra that is no tensor": (lambda maps: Attribution(maps, {"note": "text"}), "extra 'note' is a str"),
}


@pytest.mark.parametrize("case", WRONG_ANSWERS)
def test_an_answer_of_another_shape_is_refused(case: str, model: Any, inputs: Tensor, registry: None) -> None:
    maps, message = WRONG_ANSWERS[case]
    answer_of(maps)
    for ask in (
        lambda: vt.explain(model, inputs, "from_elsewhere"),
        lambda: vt.get_method("from_elsewhere").attribute(model, inputs),
        lambda: vt.explain(model, inputs, "consensus(ixg, from_elsewhere)"),
        lambda: vt.explain(model, inputs, "logprob(from_elsewhere)"),
        lambda: evaluate(model, inputs, ["ixg", "from_elsewhere"], "srg"),
    ):
        with pytest.raises(MapError, match=message) as raised:
            ask()
        assert "\n" not in str(raised.value)


def test_a_proper_answer_from_elsewhere_is_returned_as_it_is(model: Any, inputs: Tensor, registry: None) -> None:
    answer_of(lambda maps: Attribution(maps, {"classes": torch.arange(3)[:, None]}))
    maps = vt.get_method("from_elsewhere").attribute(model, inputs)
    assert torch.equal(maps, inputs.mean(dim=1))


@pytest.mark.parametrize("wrong", ["images", "dtype"])
def test_layer_terms_of_another_shape_are_refused(wrong: str, model: Any, inputs: Tensor, registry: None) -> None:
    base = type(vt.get_method("ixg"))

    @method_registry.register_method("terms_from_elsewhere", family="test")
    @dataclass(frozen=True)
    class Terms(base):  # type: ignore[misc, valid-type]
        """Terms from elsewhere."""

        def layer_map(self, cache: Any, layer: int) -> Tensor:
            maps = super().layer_map(cache, layer)
            return maps[1:] if wrong == "images" else maps > 0

    with pytest.raises(MapError, match="terms_from_elsewhere"):
        vt.explain(model, inputs, "plus(terms_from_elsewhere)")


# -- metrics -----------------------------------------------------------------------------------------------


def metric_of(read: Callable[[Any], Any], **members: Any) -> None:
    @metric_registry.register_metric("judge_from_elsewhere", family="test")
    @dataclass
    class ExternalMetric(Metric):
        """A score from elsewhere."""

        def score(self, evaluation: Any) -> Any:
            return read(evaluation)

    for name, member in members.items():
        setattr(ExternalMetric, name, member)


WRONG_SCORES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "one score more": (lambda a: np.zeros(len(a) + 1), "4 scores for 3 images"),
    "one score less": (lambda a: np.zeros(len(a) - 1), "2 scores for 3 images"),
    "one score for all": (lambda a: np.float64(1), "scores are real numbers"),
    "three axes": (lambda a: np.zeros((len(a), 2, 2)), "scores are real numbers"),
    "no parts": (lambda a: np.zeros((len(a), 0)), "scores are real numbers"),
    "complex": (lambda a: np.zeros(len(a), complex), "complex128"),
    "texts": (lambda a: ["good"] * len(a), "scores are real numbers"),
    "nothing": (lambda a: None, "NoneType"),
    "ragged": (lambda a: [[1.0], [1.0, 2.0], [1.0]], "no array"),
}


@pytest.mark.parametrize("case", WRONG_SCORES)
def test_scores_of_another_shape_are_refused(case: str, model: Any, inputs: Tensor, registry: None) -> None:
    read, message = WRONG_SCORES[case]
    metric_of(read)
    with pytest.raises(MapError, match=message) as raised:
        evaluate(model, inputs, "ixg", ["judge_from_elsewhere"])
    assert "judge_from_elsewhere" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_aggregates_and_curves_of_another_shape_are_refused(model: Any, inputs: Tensor, registry: None) -> None:
    def refused(**members: Any) -> str:
        metric_registry.REGISTRY.by_name.pop("judge_from_elsewhere", None)
        metric_of(lambda answers: np.ones(len(answers)), **members)
        with pytest.raises(MapError) as raised:
            evaluate(model, inputs, "ixg", ["judge_from_elsewhere"])
        return str(raised.value)

    assert "per_image" in refused(per_image=lambda self, parts: parts)
    assert "aggregate" in refused(aggregate=lambda self, parts, weights: parts.mean())
    lines = {"line": Curve(np.linspace(0, 1, 5), np.zeros((4, 5)))}
    assert "curve 'line'" in refused(curves=lambda self, answers: lines)


def test_parts_of_another_length_in_a_later_batch_are_refused(model: Any, registry: None) -> None:
    metric_of(lambda answers: np.ones((len(answers), 3 if len(answers) == 1 else 2)))
    most = with_batch_sizes(EvaluationConfig(), vt.wrap(model), (32, 32)).images_per_unit
    with pytest.raises(MapError, match="2 and 3 parts"):
        evaluate(model, images(model, most + 1), "random", ["judge_from_elsewhere"])


def test_a_metric_cannot_write_into_the_values_of_others(model: Any, inputs: Tensor, registry: None) -> None:
    def sort_in_place(answers: Any) -> Any:
        answers.maps().sort(axis=1)
        return np.zeros(len(answers))

    metric_of(sort_in_place)
    with pytest.raises(ValueError, match="read-only"):
        evaluate(model, inputs, "ixg", ["judge_from_elsewhere", "gini"])


# -- the model that they leave -----------------------------------------------------------------------------


def step(module: nn.Module) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def through_data(module: nn.Module) -> None:
    weight = max(module.parameters(), key=lambda parameter: parameter.numel())
    weight.data.view(-1)[weight.numel() // 2 + 1] += 1e-3  # one value, no version, at no round place


def through_numpy(module: nn.Module) -> None:
    next(module.parameters()).detach().numpy().reshape(-1)[1] += 1e-3


def through_load_state_dict(module: nn.Module) -> None:
    module.load_state_dict({name: tensor * 1.001 for name, tensor in module.state_dict().items()})


CHANGES = {item.__name__: item for item in (step, through_data, through_numpy, through_load_state_dict)}


@pytest.mark.parametrize("change", CHANGES)
def test_a_callable_that_changes_the_weights_is_refused(change: str, model: Any, inputs: Tensor) -> None:
    def trains(module: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
        with torch.no_grad():
            CHANGES[change](module)
        return images.mean(dim=1)

    with pytest.raises(ModelChangedError, match="trains changed the weights or buffers of"):
        evaluate(model, inputs, {"ixg": "ixg", "trains": trains}, "srg")


def test_a_callable_that_fails_after_a_change_is_refused_as_one_that_changes(model: Any, inputs: Tensor) -> None:
    def fails(module: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
        step(module)
        raise RuntimeError("too late")

    samples = list(read_samples(inputs, vt.wrap(model)))
    checked = checked_explainer(named({"fails": fails})["fails"])
    with pytest.raises(ModelChangedError):
        checked.maps("fails", vt.wrap(model), samples, inputs, torch.zeros(3, dtype=torch.long))  # type: ignore[union-attr]


def test_an_attribution_object_that_leaves_a_hook_is_refused(model: Any, inputs: Tensor) -> None:
    class Leaves:
        def attribute(self, images: Tensor, target: Tensor) -> Tensor:
            model.blocks[0].register_forward_hook(lambda *_: None)
            return images

    with pytest.raises(ModelChangedError, match="modules, hooks or methods"):
        evaluate(model, inputs, {"leaves": Leaves()}, "srg")


def test_a_registered_method_that_changes_the_weights_is_refused(model: Any, inputs: Tensor, registry: None) -> None:
    kind = answer_of(lambda maps: maps)
    simple = kind.compute

    def compute(self: Method, context: Any) -> Attribution:
        with torch.no_grad():
            step(context.model.module)
        return simple(self, context)

    kind.compute = compute  # type: ignore[method-assign]
    for ask in (
        lambda: vt.explain(model, inputs, "from_elsewhere"),
        lambda: evaluate(model, inputs, ["ixg", "consensus(ixg, from_elsewhere)"], "srg"),
    ):
        with pytest.raises(ModelChangedError, match="from_elsewhere changed the weights"):
            ask()


def test_a_callable_may_change_its_own_deep_copy_and_flags(model: Any, inputs: Tensor) -> None:
    before = copy.deepcopy(model.state_dict())

    def works_on_a_copy(module: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
        module.train()
        module.zero_grad()
        own = copy.deepcopy(module)
        step(own)
        own.eval()
        images = images.requires_grad_()
        own(images).gather(1, classes[:, None]).sum().backward()
        assert images.grad is not None
        return images.grad.sum(dim=1)

    table = evaluate(model, inputs, {"copy": works_on_a_copy, "ixg": "ixg"}, "srg")
    assert table.methods == ("copy", "ixg")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_builtin_metrics_return_what_is_checked(model: Any, inputs: Tensor) -> None:
    """The checks take every built-in metric that needs nothing beside images: they do not refuse too much."""
    simple = [
        info.name
        for info in vt.list_metrics()
        if not info.default.annotation_kinds and not info.default.needs_labels and not info.default.num_reattributions()
    ]
    assert len(simple) > 20
    table = evaluate(model, inputs, "ixg", simple)
    assert table.metrics == tuple(simple)
