"""The doctor: does this model give the right answers when it is looked at? One check per promise, each in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError, VitreousError, one_line
from vitreous.methods import Method, compute_attributions, get_method, list_methods
from vitreous.methods.value_weighted import block_weights, layer_weights
from vitreous.models import VisionModel, wrap
from vitreous.models.description import deviations
from vitreous.models.shared_copy import gap
from vitreous.models.structure import UnverifiedError
from vitreous.results import Finding
from vitreous.results.table import html_rows
from vitreous.tracing import Activation, Block, Context, Pass, Record, Target, activation_grad
from vitreous.tracing.prng import PRNGKey, check_seed
from vitreous.tracing.rules import LINEARIZED

__all__ = ["Diagnosis", "diagnose"]

_MOST_FORWARDS = 3  # methods that need more are not tried
_MOST_NAMED = 3


@dataclass(frozen=True)
class Diagnosis:
    """All findings about one model, and which methods apply to it."""

    model: str
    checks: tuple[Finding, ...]
    methods: tuple[Finding, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether every check that applies holds."""
        return all(check.verdict != "failed" for check in self.checks)

    @property
    def verdict(self) -> str:
        """The model and what to think of it, in one line."""
        return f"{self.model}: {'healthy' if self.healthy else 'some checks failed'}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "healthy": self.healthy}

    def __repr__(self) -> str:
        """The verdict, what failed, and how many methods apply; ``print`` shows the same."""
        passed = sum(check.verdict == "ok" for check in self.checks)
        failed = [f"  failed: {check.name}: {check.sentence}" for check in self.checks if check.verdict == "failed"]
        counts = [f"  {passed} of {len(self.checks)} checks ok, {self._told()}"]
        return "\n".join([self.verdict, *counts, *failed])

    def _repr_html_(self) -> str:
        checks = [[check.name, check.verdict, check.sentence] for check in self.checks]
        tried = [[check.name, check.verdict, check.sentence] for check in self.methods]
        second = html_rows([["method", "", ""], *tried], self._told()) if tried else ""
        return html_rows([["check", "", ""], *checks], self.verdict) + second

    def _told(self) -> str:
        counts = {
            verdict: sum(method.verdict == verdict for method in self.methods) for verdict in ("ok", "failed", "-")
        }
        return f"{counts['ok']} methods apply, {counts['failed']} do not, {counts['-']} were not tried"


def diagnose(model: VisionModel | nn.Module, *, seed: int = 0, **facts: Any) -> Diagnosis:
    """Examine a model: a view, or a module of one's own. Nothing is raised; advice is in the findings."""
    check_seed(seed)
    seen: list[VisionModel] = []

    def look() -> str:
        seen.append(wrap(model, **facts))
        return repr(seen[0])

    first = _safely("a view of the model", look)
    if first.verdict == "failed":
        return Diagnosis(type(model).__name__, (first,))
    (vision_model,), (height, width) = seen, seen[0].preprocess.size
    inputs = PRNGKey.of(seed, "doctor").at(torch.arange(2)).normal(3, height, width)
    examiner = _Examiner(vision_model, vision_model.cast(inputs))
    checks = tuple(_safely(name, look) for name, look in examiner.checks())
    tried = tuple(_try(vision_model, inputs[:1], name) for name in _spellings())
    return Diagnosis(vision_model.name, (first, *checks), tried)


class _Examiner:
    """The checks, each returning a detail, or raising ``VitreousError`` with what is wrong."""

    def __init__(self, model: VisionModel, inputs: Tensor) -> None:
        self.view, self.inputs = model, inputs
        self.layers = tuple(range(model.depth))

    def checks(self) -> Iterator[tuple[str, Callable[[], str | None]]]:
        yield "forward through the view equals the model", self.forward
        yield "attention in every block, rows sum to one", self.attention
        yield "declared rule counts are met", self.rules
        yield "hooks, adapters and code of its own", self.deviations
        yield "shares add up to what attention adds", self.shares
        yield "gradients reach every block", self.gradients
        yield "keeping all tokens changes nothing", self.tokens
        yield "sub-networks agree", self.suffixes
        yield "preprocessing", self.preprocessing
        yield "labels", self.labels

    def forward(self) -> str:
        seen = self.view.shared_copy()
        with torch.no_grad(), torch.autocast(self.inputs.device.type, enabled=False):
            return self._same(
                seen.forward_head(seen.forward_blocks(seen.embed(self.inputs))), seen.reference_forward(self.inputs)
            )

    def attention(self) -> str | None:
        if self.view.attention != "global":
            return None
        record = Record("attn_weights", _row_sums, self.layers, grad=False)
        sums = self._session().run_pass(Pass((record,)))[record]
        worst = max(float((row - 1).abs().max()) for row in sums)
        if worst > 1e-2:
            raise VitreousError(f"a row of attention sums to {1 + worst:.3f}")
        return f"{len(sums)} blocks, rows off by at most {worst:.0e}"

    def rules(self) -> str:
        cache = self._session().run_pass(Pass((Record("resid_pre", activation_grad, (0,)),), LINEARIZED))
        total = self.view.total_operations()
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(total.items()) if count)
        return f"{counts}; frozen {self._same(cache.logits, self.view.logits(self.inputs))}"

    def deviations(self) -> str | None:
        odd = deviations(self.view.module)
        if not odd:
            return None
        self.view.verify(self.inputs)
        listed = [f"{path or 'the model'} has {why}" for path, why in list(odd.items())[:_MOST_NAMED]]
        more = [f"{len(odd) - _MOST_NAMED} more"] if len(odd) > _MOST_NAMED else []
        kind, reason = self.view.pooling.kind, self.view.pooling.reason
        told = f"{'; '.join([*listed, *more])}. Weights there are taken from what each module does, and compared."
        if self.view.attention == "none":
            return told
        if kind == "unknown":
            return f"{told} {reason}: methods that begin at the tokens that are read do not apply"
        return f"{told} Pooling as it is found: {kind}"

    def shares(self) -> str | None:
        if self.view.attention != "global":
            return None
        self.view.verify(self.inputs)
        try:
            for layer in self.layers:
                layer_weights(self.view, layer)
        except UnverifiedError:
            raise
        except ModelError:
            return None  # of a family that has no such shares
        self._session().run_pass(Pass((Record("block", _checked_width, self.layers, grad=False),)))
        return f"in each of {len(self.layers)} blocks"

    def gradients(self) -> str:
        record = Record("resid_pre", _largest, self.layers)
        sizes = [float(size.max()) for size in self._session().run_pass(Pass((record,)))[record]]
        dead = [layer for layer, size in enumerate(sizes) if not size > 0]
        if len(dead) == len(sizes):
            raise VitreousError("no gradient arrives at any block; is the head untrained, all zeros?")
        if dead:
            raise VitreousError(f"no gradient arrives at the input of block {dead[0]}")
        return f"from {min(sizes):.1e} to {max(sizes):.1e}"

    def tokens(self) -> str | None:
        if not self.view.can_drop_tokens:
            return None
        height, width = self.view.grid(self.inputs)
        everything = torch.arange(height * width).expand(len(self.inputs), -1)
        return self._same(self.view.logits(self.inputs, keep=everything), self.view.logits(self.inputs))

    def suffixes(self) -> str:
        expected = self.view.logits(self.inputs)
        worst, seen = "", self.view.shared_copy()
        for layer in self.layers:
            with torch.no_grad(), torch.autocast(self.inputs.device.type, enabled=False):
                tokens = seen.forward_blocks(seen.embed(self.inputs), 0, layer)
            worst = self._same(seen.suffix(layer, self.inputs).logits(tokens), expected)
        return f"from each of {self.view.depth} blocks; {worst}"

    def preprocessing(self) -> str:
        how = self.view.preprocess
        mean = ", ".join(f"{value:.3g}" for value in how.mean)
        return f"{how.size[0]} x {how.size[1]}, {how.mode} crop {how.crop:g}, {how.interpolation}, mean {mean}"

    def labels(self) -> str | None:
        names = self.view.class_names
        return (
            None if names is None else f"{len(names)}: {', '.join(map(self.view.label, range(min(3, len(names)))))}, …"
        )

    def _session(self) -> Context:
        return Context(self.view, self.inputs, Target.of(self.view, len(self.inputs)))

    @staticmethod
    def _same(logits: Tensor, expected: Tensor) -> str:
        off, different = gap(logits, expected)
        if different:
            raise VitreousError(f"logits differ by {off:.1e}")
        return "logits bit-equal" if off == 0 else f"logits within {off:.0e}"


def _row_sums(a: Activation) -> Tensor:
    return a.value.sum(dim=-1).flatten(1)


def _checked_width(block: Block) -> Tensor:
    block_weights(block, always=True)
    return block.resid_pre[:, 0, 0]


def _largest(a: Activation) -> Tensor:
    return a.grad.flatten(1).abs().amax(dim=1)


def _safely(name: str, look: Callable[[], str | None]) -> Finding:
    try:
        detail = look()
    except Exception as error:  # a foreign model can break anywhere; the patient gets advice, not a traceback
        kind = "" if isinstance(error, VitreousError) else f"{type(error).__name__}: "
        return Finding(name, "failed", one_line(f"{kind}{error}"))
    return Finding(name, "-", "does not apply") if detail is None else Finding(name, "ok", detail)


def _spellings() -> list[str]:
    return [
        f"{info.name}({', '.join(['ixg', 'gradcam'][: info.num_bases])})" if info.is_combinator else info.name
        for info in list_methods()
    ]


def _try(model: VisionModel, inputs: Tensor, spec: str) -> Finding:
    how: Method = get_method(spec)
    if how.num_forwards(model) > _MOST_FORWARDS or how.info.is_slow:
        return Finding(how.info.name, "-", f"not tried: {how.info.cost_text}")

    def look() -> str:
        context = Context(model, inputs, Target.of(model, len(inputs)))
        (answered,) = compute_attributions(context, [how], check=False)
        if not torch.isfinite(answered.map).all():
            raise VitreousError("its map is not finite")
        return f"{answered.map.shape[1]} x {answered.map.shape[2]} map"

    return _safely(how.info.name, look)
