"""Randomised models: copies whose weights are drawn anew, stage by stage; the model itself is never touched.

The stages of a vision transformer from its output to its input are the head, the final norm with all else that stands
behind the blocks, every block, and the embeddings. Which parameter belongs where is found without names: it is what
the graph of ``forward_head``, of one block or of ``embed`` ends in. A parameter of several stages belongs to the one
nearest to the input, so that a cascade from the output leaves everything before its last stage as it was. Parameters
that no image ever meets (a text tower, a mask token) belong to none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models.base import VisionModel
from vitreous.models.shared_copy import copy_structure, exact_pass, remembered
from vitreous.models.structure import graph_nodes
from vitreous.models.submodels import SubModel
from vitreous.registry import check_choice

NORMS = ("reset", "permute", "keep")
INITS = ("fixed", "own")
STAGES_AROUND = 3
"""Stages beside the blocks: head, norm and embeddings."""

_SIGMA = 0.02
_SCALES = ("gamma", "gamma_1", "gamma_2", "lambda1")


_Owned = tuple[nn.Module, str]
"""The module that owns a parameter, and what the parameter is called there."""


def stages(model: VisionModel) -> tuple[str, ...]:
    """Return the names of the stages, from the output to the input: depth + 3 of them, for any model."""
    blocks = (f"block {layer}" for layer in reversed(range(model.depth)))
    return ("head", "norm", *blocks, "embeddings")


def stage_parameters(model: VisionModel) -> dict[str, tuple[str, ...]]:
    """Return the names of the parameters of every stage; one forward of a blank image, once for each structure."""
    if isinstance(model, SubModel):
        raise ModelError(f"{model.name} is a part of a model or has another head; only whole models are randomised")
    key = (type(model), model.preprocess.size, *map(id, model.module.parameters()))
    return dict(remembered(model.module, key, partial(_find_parameters, model)))


def randomised(
    model: VisionModel,
    which: Iterable[str],
    seed: int = 0,
    *,
    norms: str = "reset",
    init: str = "fixed",
    tokens: bool = True,
) -> VisionModel:
    """Return a copy of the model in which some stages have been drawn anew; all other weights are shared.

    - Weights, position tables, class tokens and positions: normal with deviation 0.02, as vision transformers start
      (libraries cut it off at 2, a hundred deviations away). ``init="own"``: with the deviation of the trained tensor.
    - Biases: 0.
    - Norms: ``norms="reset"`` to gain 1 and bias 0, where training begins; ``"permute"`` deals their trained values
      out anew among the channels, ``"keep"`` leaves them.
    - LayerScale, and other gains of a channel or head: their trained values dealt out anew. Where training begins they
      are all the same and nearly zero, which would switch the block off instead of randomising it.
    - ``tokens=False`` leaves class tokens, registers and positions of the embeddings as they are.
    - Single numbers (a temperature) and buffers stay.

    Every parameter has its own random stream, of the seed and its name: layers of one shape get different weights, and
    a stage gets the same ones whichever others are randomised with it.
    """
    check_choice("norms", norms, NORMS)
    check_choice("init", init, INITS)
    names, chosen = stage_parameters(model), dict.fromkeys(which)
    for stage in chosen:
        if stage not in names:
            raise ModelError(f"{model.name} has no stage {stage!r}, but {', '.join(stages(model))}")
    copy = copy_structure(model.source_model or model, VisionModel)  # a model of its own
    owned, parameters = _owned(copy.module), dict(copy.module.named_parameters())
    with torch.inference_mode(False), torch.no_grad():
        for stage, name in ((group, name) for group in chosen for name in names[group]):
            if stage == "embeddings" and not tokens and _is_no_layers(owned[name]):
                continue
            values = _draw(parameters[name], owned[name], _stream(seed, name), norms, init)
            if values is not None:
                parameters[name].data = values
    return copy


# -- which parameter belongs where ---------------------------------------------------------------------


def _find_parameters(model: VisionModel) -> dict[str, tuple[str, ...]]:
    copy = copy_structure(model.source_model or model, VisionModel)
    copy.source_model = model  # it need not make another copy to step through its model
    names: dict[int, str] = {}
    for name, parameter in copy.module.named_parameters():
        if parameter.is_floating_point():
            names[id(parameter.requires_grad_())] = name
    left, parameters = dict.fromkeys(names.values()), dict[str, tuple[str, ...]]()

    def take(stage: str, reached: Iterable[str]) -> None:
        parameters[stage] = tuple(name for name in list(left) if name in set(reached))
        for name in parameters[stage]:
            del left[name]

    with exact_pass(copy, gradients=True):
        tokens = copy.embed(copy._blank_image())
        take("embeddings", _reached(tokens, names))
        for layer in range(copy.depth):
            tokens = copy.forward_block(layer, tokens.detach())
            take(f"block {layer}", _reached(tokens, names))
        logits = copy.forward_head(tokens.detach())
    in_head, owned = _reached(logits, names), _owned(copy.module)
    owners = {id(owned[name][0]) for name in _last(logits, names)}
    take("head", [name for name in in_head if id(owned[name][0]) in owners])
    take("norm", in_head)
    return {stage: parameters[stage] for stage in stages(model)}


def _reached(output: Tensor, names: dict[int, str]) -> set[str]:
    """Return the parameters in which the graph of an output ends."""
    leaves = (id(getattr(node, "variable", None)) for node in graph_nodes(output.grad_fn))
    return {names[leaf] for leaf in leaves if leaf in names}


def _last(logits: Tensor, names: dict[int, str]) -> set[str]:
    """Return the parameters of the last operation, or operations side by side, that has any of more than one number."""
    level: list[Any] = [logits.grad_fn]
    while level:
        parameters, deeper = set[str](), dict[Any, None]()
        for node in (following for above in level if above is not None for following, _ in above.next_functions):
            leaf = _leaf(node)
            if leaf is None:
                deeper[node] = None
            elif id(leaf) in names and leaf.numel() > 1:
                parameters.add(names[id(leaf)])
        if parameters:
            return parameters
        level = list(deeper)
    return set()


def _leaf(node: Any) -> Tensor | None:
    """Return the parameter at the end of a chain without branches, such as a weight that is transposed."""
    while node is not None and not hasattr(node, "variable") and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return getattr(node, "variable", None)


def _owned(model: nn.Module) -> dict[str, _Owned]:
    parts = {name: name.rpartition(".") for name, _ in model.named_parameters()}
    return {name: (model.get_submodule(path), leaf) for name, (path, _, leaf) in parts.items()}


# -- what a parameter becomes --------------------------------------------------------------------------


def _stream(seed: int, name: str) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def _draw(trained: Tensor, parameter: _Owned, stream: torch.Generator, norms: str, init: str) -> Tensor | None:
    """Return what takes the place of a trained tensor; ``None`` where it stays."""
    if trained.numel() == 1:
        return None
    owner, leaf = parameter
    kind = type(owner).__name__.lower()
    if "norm" in kind:
        if norms == "reset":
            return torch.zeros_like(trained) if leaf in ("bias", "beta") else torch.ones_like(trained)
        return None if norms == "keep" else _deal(trained, stream)
    if leaf in _SCALES or "scale" in leaf or "scale" in kind:
        return _deal(trained, stream)
    if trained.ndim == 1 and "bias" in leaf:
        return torch.zeros_like(trained)
    sigma = float(trained.detach().double().std()) if init == "own" else _SIGMA
    return torch.randn(trained.shape, generator=stream, dtype=torch.float32).mul_(sigma).to(trained)


def _deal(trained: Tensor, stream: torch.Generator) -> Tensor:
    """Return the same values in one random cycle: none stays where it was."""
    order = torch.randperm(trained.numel(), generator=stream).to(trained.device)
    flat = trained.detach().flatten()
    return torch.empty_like(flat).index_copy_(0, order, flat[order.roll(1)]).view_as(trained)


def _is_no_layers(parameter: _Owned) -> bool:
    """Whether a parameter is no layer's weight or bias: class tokens, registers, positions."""
    owner, leaf = parameter
    return leaf not in ("weight", "bias") or isinstance(owner, nn.Embedding)
