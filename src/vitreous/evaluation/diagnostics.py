"""Is a model understood, and do methods agree on it? One check per promise, and similarities of maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.errors import ModelError, SpecError, VitreousError, describe_error
from vitreous.evaluation.evaluate import evaluate
from vitreous.evaluation.plan import named
from vitreous.methods import Method, MethodInfo, compute_attributions, get_method, list_methods
from vitreous.methods.value_weighted import block_weights, layer_weights
from vitreous.metrics import Evaluation, Metric, MetricInfo
from vitreous.metrics.bootstrap import Cell, interval, mean, resampled
from vitreous.metrics.ranking import Array
from vitreous.metrics.similarity import SIMILARITIES, cka, similarity
from vitreous.models import VisionModel, wrap
from vitreous.models.description import deviations
from vitreous.models.shared_copy import gap
from vitreous.models.structure import UnverifiedError
from vitreous.progress import Progress
from vitreous.registry import check_choice
from vitreous.results import Agreement, Diagnosis, Finding, ScoreTable
from vitreous.tracing import Activation, Block, Context, Pass, Record, Target, activation_grad
from vitreous.tracing.prng import PRNGKey, check_seed
from vitreous.tracing.rules import LINEARIZED

_MAX_FORWARDS = 3  # methods that need more are not tried
_MAX_NAMED = 3


def diagnose(model: VisionModel | nn.Module, *, seed: int = 0, **facts: Any) -> Diagnosis:
    """Examine a model: is it understood, and which methods apply to it?

    Nothing is raised: what is wrong, and advice, is in the findings.

    Parameters
    ----------
    model : VisionModel or torch.nn.Module
        The model.
    seed : int, default 0
        Of the random inputs.
    **facts
        Passed to ``vt.wrap``.

    Returns
    -------
    Diagnosis
        Findings about the model and about each method.

    Notes
    -----
    Cost: a few dozen passes over one or two random inputs; methods that need more than three forwards are not tried.

    Examples
    --------
    >>> diagnosis = vt.diagnose(model)
    >>> diagnosis.healthy, diagnosis.checks[0].name
    (True, 'the model can be wrapped')
    """
    check_seed(seed)
    name = "the model can be wrapped"
    try:
        vision_model = wrap(model, **facts)
        first = Finding(name, "ok", repr(vision_model))
    except Exception as error:
        return Diagnosis(type(model).__name__, (_failure(name, error),))
    inputs = PRNGKey.of(seed, "doctor").at(torch.arange(2)).normal(3, *vision_model.preprocess.size)
    examiner = _Examiner(vision_model, vision_model.cast(inputs))
    checks = [_finding(name, examine) for name, examine in examiner.checks()]
    methods = [_try_method(vision_model, inputs[:1], info) for info in list_methods()]
    return Diagnosis(vision_model.name, (first, *checks), tuple(methods))


class _Examiner:
    """The checks, each returning a detail, or raising ``VitreousError`` with what is wrong."""

    def __init__(self, model: VisionModel, inputs: Tensor) -> None:
        self.model, self.inputs = model, inputs
        self.layers = tuple(range(model.depth))

    def checks(self) -> Iterator[tuple[str, Callable[[], str | None]]]:
        yield "the wrapped forward equals the model's own", self.forward
        yield "attention in every block, rows sum to one", self.attention
        yield "declared rule counts are met", self.rules
        yield "hooks, adapters and code of its own", self.modifications
        yield "contributions add up to what attention adds", self.contributions
        yield "gradients reach every block", self.gradients
        yield "keeping all tokens changes nothing", self.tokens
        yield "sub-networks agree", self.suffixes
        yield "preprocessing", self.preprocessing
        yield "class names", self.class_names

    def forward(self) -> str:
        copy = self.model.shared_copy()
        with torch.no_grad(), torch.autocast(self.inputs.device.type, enabled=False):
            logits = copy.forward_head(copy.forward_blocks(copy.embed(self.inputs)))
            return _equality(logits, copy.reference_forward(self.inputs))

    def attention(self) -> str | None:
        if self.model.attention != "global":
            return None
        record = Record("attn_weights", _row_sums, self.layers, grad=False)
        sums = self._context().run_pass(Pass((record,)))[record]
        worst = max(float((row - 1).abs().max()) for row in sums)
        if worst > 1e-2:
            raise VitreousError(f"a row of attention sums to {1 + worst:.3f}")
        return f"{len(sums)} blocks, rows off by at most {worst:.0e}"

    def rules(self) -> str:
        cache = self._context().run_pass(Pass((Record("resid_pre", activation_grad, (0,)),), LINEARIZED))
        operations = self.model.total_operations()
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(operations.items()) if count)
        return f"{counts}; linearized {_equality(cache.logits, self.model.logits(self.inputs))}"

    def modifications(self) -> str | None:
        changes = deviations(self.model.module)
        if not changes:
            return None
        self.model.verify(self.inputs)
        listed = [f"{path or 'the model'} has {why}" for path, why in list(changes.items())[:_MAX_NAMED]]
        more = [f"{len(changes) - _MAX_NAMED} more"] if len(changes) > _MAX_NAMED else []
        text = f"{'; '.join([*listed, *more])}. Weights there are taken from what each module does, and compared."
        pooling = self.model.pooling
        if self.model.attention == "none":
            return text
        if pooling.kind == "unknown":
            return f"{text} {pooling.reason}: methods that begin at the tokens that are read do not apply"
        return f"{text} Pooling as it is found: {pooling.kind}"

    def contributions(self) -> str | None:
        if self.model.attention != "global":
            return None
        self.model.verify(self.inputs)
        try:
            for layer in self.layers:
                layer_weights(self.model, layer)
        except UnverifiedError:
            raise
        except ModelError:
            return None  # of a family that has no such contributions
        self._context().run_pass(Pass((Record("block", _checked_width, self.layers, grad=False),)))
        return f"in each of {len(self.layers)} blocks"

    def gradients(self) -> str:
        record = Record("resid_pre", _largest_gradient, self.layers)
        sizes = [float(size.max()) for size in self._context().run_pass(Pass((record,)))[record]]
        dead = [layer for layer, size in enumerate(sizes) if not size > 0]
        if len(dead) == len(sizes):
            raise VitreousError("no gradient arrives at any block; is the head untrained, all zeros?")
        if dead:
            raise VitreousError(f"no gradient arrives at the input of block {dead[0]}")
        return f"from {min(sizes):.1e} to {max(sizes):.1e}"

    def tokens(self) -> str | None:
        if not self.model.can_drop_tokens:
            return None
        height, width = self.model.grid(self.inputs)
        every = torch.arange(height * width).expand(len(self.inputs), -1)
        return _equality(self.model.logits(self.inputs, keep=every), self.model.logits(self.inputs))

    def suffixes(self) -> str:
        expected = self.model.logits(self.inputs)
        text, copy = "", self.model.shared_copy()
        for layer in self.layers:
            with torch.no_grad(), torch.autocast(self.inputs.device.type, enabled=False):
                tokens = copy.forward_blocks(copy.embed(self.inputs), 0, layer)
            text = _equality(copy.suffix(layer, self.inputs).logits(tokens), expected)
        return f"from each of {self.model.depth} blocks; {text}"

    def preprocessing(self) -> str:
        own = self.model.preprocess
        mean = ", ".join(f"{value:.3g}" for value in own.mean)
        return f"{own.size[0]} x {own.size[1]}, {own.mode} crop {own.crop:g}, {own.interpolation}, mean {mean}"

    def class_names(self) -> str | None:
        names = self.model.class_names
        if names is None:
            return None
        return f"{len(names)}: {', '.join(map(self.model.label, range(min(3, len(names)))))}, …"

    def _context(self) -> Context:
        return Context(self.model, self.inputs, Target.of(self.model, len(self.inputs)))


def _equality(logits: Tensor, expected: Tensor) -> str:
    difference, is_different = gap(logits, expected)
    if is_different:
        raise VitreousError(f"logits differ by {difference:.1e}")
    return "logits bit-equal" if difference == 0 else f"logits within {difference:.0e}"


def _row_sums(a: Activation) -> Tensor:
    return a.value.sum(dim=-1).flatten(1)


def _checked_width(block: Block) -> Tensor:
    block_weights(block, always=True)
    return block.resid_pre[:, 0, 0]


def _largest_gradient(a: Activation) -> Tensor:
    return a.grad.flatten(1).abs().amax(dim=1)


def _finding(name: str, examine: Callable[[], str | None]) -> Finding:
    try:
        detail = examine()
    except Exception as error:
        return _failure(name, error)
    return Finding(name, "-", "does not apply") if detail is None else Finding(name, "ok", detail)


def _failure(name: str, error: Exception) -> Finding:
    """Return what went wrong: a user's model can break anywhere, and the answer is advice, not a traceback."""
    return Finding(name, "failed", describe_error(error))


def _try_method(model: VisionModel, inputs: Tensor, info: MethodInfo) -> Finding:
    bases = ", ".join(["ixg", "gradcam"][: info.num_bases])
    method = get_method(f"{info.name}({bases})" if info.is_combinator else info.name)
    if method.num_forwards(model) > _MAX_FORWARDS or info.is_slow:
        return Finding(info.name, "-", f"not tried: {info.cost_text}")

    def attribute() -> str:
        context = Context(model, inputs, Target.of(model, len(inputs)))
        (attribution,) = compute_attributions(context, [method], check=False)
        if not torch.isfinite(attribution.map).all():
            raise VitreousError("its map is not finite")
        return f"{attribution.map.shape[1]} x {attribution.map.shape[2]} map"

    return _finding(info.name, attribute)


# -- agreement -----------------------------------------------------------------------------------------


def agreement(
    model: VisionModel | nn.Module,
    images: Any,
    methods: Any,
    by: str = "spearman",
    *,
    grid: str = "token",
    target: Any = None,
    labels: Any = None,
    n_bootstrap: int = 1000,
    output: str = "logit",
    class_subset: Sequence[int | str] | None = None,
    compare_classes: Any = None,
    seed: int = 0,
    memory_gb: float | None = None,
    progress: Progress | bool | None = None,
) -> Agreement:
    """Return how alike the maps of several methods are, for every pair of them, with bootstrap intervals over images.

    Parameters
    ----------
    model, images, methods
        As in ``evaluate``; for the layers of one method give ``layer_methods(method, model)`` of
        ``vitreous.evaluation.diagnostics``.
    by : str, default "spearman"
        ``"spearman"``, ``"abs_spearman"``, ``"pearson"``, ``"cosine"`` or ``"ssim"``, whose mean over the images is
        taken, or ``"cka"``, one number for all images.
    grid : {"token", "pixel"}, default "token"
        Where maps are compared: pixels summed into patches, or coarser maps enlarged.
    target, labels, n_bootstrap, output, class_subset, compare_classes, seed, memory_gb, progress
        As in ``evaluate``.

    Returns
    -------
    Agreement
        A symmetric matrix with intervals.

    Notes
    -----
    Cost: the maps; all of them are held at once.

    Examples
    --------
    >>> vt.agreement(model, images, ["ixg", "gradcam", "rollout"], n_bootstrap=50).matrix.shape
    (3, 3)
    """
    check_choice("by", by, (*SIMILARITIES, "cka"))
    check_choice("grid", grid, ("token", "pixel"))
    if len(named(methods)) < 2:
        raise VitreousError(f"agreement needs at least two methods, got {len(named(methods))}")
    table = evaluate(
        model,
        images,
        methods,
        _MapValues(grid),
        target=target,
        labels=labels,
        controls=False,
        n_bootstrap=n_bootstrap,
        output=output,
        class_subset=class_subset,
        compare_classes=compare_classes,
        seed=seed,
        memory_gb=memory_gb,
        progress=progress,
    )
    maps = [_maps(table.parts[name, table.metrics[0]]) for name in table.methods]
    pairs = list(combinations_with_replacement(range(len(maps)), 2))
    cells = [_cell(by, maps[i], maps[j]) for i, j in pairs]
    resamples, ones = resampled(cells, n_bootstrap, seed), np.ones((1, len(table.images)))
    low, upper = np.array([interval(column) for column in resamples.T]).T
    means = [float(aggregate(parts, ones)[0]) for parts, aggregate in cells]
    return Agreement(
        table.methods,
        table.images,
        by,
        grid,
        _square(pairs, np.array(means)),
        _square(pairs, low),
        _square(pairs, upper),
        per_image=None if by == "cka" else _square(pairs, np.stack([parts[:, 0] for parts, _ in cells], axis=-1)),
        plan={**table.plan, "metrics": {}, "resampling": {"n_bootstrap": n_bootstrap, "seed": seed}},
    )


def layer_methods(base: str | Method, model: VisionModel | nn.Module) -> Mapping[str, Method]:
    """Return one method at every layer of a model, by name: ``layer 0`` and so on.

    Any method with a ``layer`` of its own can be moved: ``iba``, ``raw_attention``, ``gradcam`` and all CAMs, ``ixg``,
    ``decompx`` … Layers where it has nothing to see are left out.
    """
    method, vision_model = get_method(base), wrap(model)
    if "layer" not in {parameter.name for parameter in method.info.parameters}:
        raise SpecError(f"{method.spec} has no layer that could be another one")
    moved: Any = method
    return {
        f"layer {layer}": replace(moved, layer=layer)
        for layer in range(vision_model.depth)
        if not method.has_layer_choice or method.at_layer(vision_model, layer) is not None
    }


def best_layers(table: ScoreTable, metric: str) -> dict[str, float]:
    """Return for how many images each method (or layer) has the best score; equal ones share an image evenly.

    Images for which no method has a score count for none.
    """
    scores = np.stack([table[name, metric] for name in table.methods], axis=1)
    scores = scores[~np.isnan(scores).all(axis=1)]
    if not table.higher_is_better[metric]:
        scores = -scores
    best = scores == np.nanmax(scores, axis=1, keepdims=True) if len(scores) else scores
    fractions = (best / np.maximum(best.sum(axis=1, keepdims=True), 1)).sum(axis=0)
    return dict(zip(table.methods, fractions.tolist(), strict=True))


@dataclass
class _MapValues(Metric):
    """The maps themselves as parts: rows and columns of their grid, then every value. Cost: none."""

    grid: str = "token"

    def score(self, evaluation: Evaluation) -> Array:
        values = evaluation.maps(self.grid)
        size = np.tile(np.array(values.shape[1:], np.float64), (len(values), 1))
        return np.concatenate([size, values.reshape(len(values), -1)], axis=1)


_MapValues.info = MetricInfo("maps", "agreement", _MapValues)


def _maps(parts: Array) -> Array:
    height, width = parts[0, :2].astype(int)
    return parts[:, 2:].reshape(len(parts), height, width)


def _cell(by: str, one: Array, other: Array) -> Cell:
    """Return the similarity of every pair of maps, NaN where either was left out; for CKA the maps themselves."""
    if by != "cka":
        values = np.where(np.isnan(other).all(axis=(1, 2)), np.nan, similarity(by, one, other))
        return values[:, None], mean
    rows = [maps.reshape(len(maps), -1) for maps in (one, other)]
    return np.concatenate(rows, axis=1), partial(_cka, width=rows[0].shape[1])


def _cka(parts: Array, weights: Array, width: int) -> Array:
    return cka(parts[:, :width, None], parts[:, width:, None], weights)


def _square(pairs: Sequence[tuple[int, int]], values: Array) -> Array:
    """Return a symmetric matrix ``[..., M, M]`` of the values ``[..., pairs]``."""
    count = max(j for _, j in pairs) + 1
    matrix = np.empty((*values.shape[:-1], count, count))
    for column, (i, j) in enumerate(pairs):
        matrix[..., i, j] = matrix[..., j, i] = values[..., column]
    return matrix
