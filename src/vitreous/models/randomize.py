"""Randomised models: a view whose weights are drawn anew, stage by stage; the model itself is never touched.

The stages of a vision transformer from its output to its input are the head, the final norm with all else that stands
behind the blocks, every block, and the embeddings. Which parameter belongs where is found without names: it is what
the graph of ``finish``, of one block or of ``embed`` ends in. A parameter of several stages belongs to the one nearest
to the input, so that a cascade from the output leaves everything before its last stage as it was. Parameters that no
image ever meets (a text tower, a mask token) belong to none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models.base import VisionModel
from vitreous.models.modifications import structure
from vitreous.models.shared_copy import copy_structure
from vitreous.models.submodels import SubModel
from vitreous.registry import check_choice

__all__ = ["INITS", "NORMS", "STAGES_AROUND", "randomised", "stage_parameters", "stages"]

NORMS = ("reset", "permute", "keep")
INITS = ("fixed", "own")
STAGES_AROUND = 3
"""Stages beside the blocks: head, norm and embeddings."""

_SIGMA = 0.02
_SCALES = ("gamma", "gamma_1", "gamma_2", "lambda1")
_known: WeakKeyDictionary[nn.Module, tuple[Any, dict[str, tuple[str, ...]]]] = WeakKeyDictionary()


class _Place(NamedTuple):
    """Where a parameter stands: the module that owns it, and what it is called there."""

    owner: nn.Module
    leaf: str


def stages(model: VisionModel) -> tuple[str, ...]:
    """Return the names of the stages, from the output to the input: depth + 3 of them, for any model."""
    blocks = (f"block {layer}" for layer in reversed(range(model.depth)))
    return ("head", "norm", *blocks, "embeddings")


def stage_parameters(model: VisionModel) -> dict[str, tuple[str, ...]]:
    """Return the names of the parameters of every stage; one forward of a blank image, once for each structure."""
    if isinstance(model, SubModel):
        raise ModelError(f"{model.name} is a part of a model or has another head; only whole models are randomised")
    now = (type(model), model.preprocess.size, *structure(model.module), *map(id, model.module.parameters()))
    then, found = _known.get(model.module, (None, None))
    if found is None or then != now:
        found = _found(model)
        _known[model.module] = now, found
    return dict(found)


def randomised(
    model: VisionModel,
    which: Iterable[str],
    seed: int = 0,
    *,
    norms: str = "reset",
    init: str = "fixed",
    tokens: bool = True,
) -> VisionModel:
    """Return a view of a copy of the model in which some stages have been drawn anew; all other weights are shared.

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
    parts = stage_parameters(model)
    asked = list(dict.fromkeys(which))
    for name in asked:
        if name not in parts:
            raise ModelError(f"{model.name} has no stage {name!r}, but {', '.join(stages(model))}")
    origin = model if model.source_model is None else model.source_model
    seen = copy_structure(origin, VisionModel)  # no user's view: it has weights, a fingerprint and a proof of its own
    places = _places(seen.module)
    parameters = dict(seen.module.named_parameters())
    with torch.inference_mode(False), torch.no_grad():
        for stage in asked:
            for name in parts[stage]:
                if stage == "embeddings" and not tokens and _bare(places[name]):
                    continue
                drawn = _drawn(parameters[name], places[name], _stream(seed, name), norms, init)
                if drawn is not None:
                    parameters[name].data = drawn
    return seen


# -- which parameter belongs where ---------------------------------------------------------------------


def _found(model: VisionModel) -> dict[str, tuple[str, ...]]:
    seen = copy_structure(model if model.source_model is None else model.source_model, VisionModel)
    seen.source_model = model  # it is a twin, and need not make another one to step through its model
    named = {name: each for name, each in seen.module.named_parameters() if each.is_floating_point()}
    for each in named.values():
        each.requires_grad_()
    names = {id(each): name for name, each in named.items()}
    left, found = set(names.values()), dict[str, tuple[str, ...]]()

    def take(stage: str, ends: Iterable[str]) -> None:
        mine = [name for name in named if name in left & set(ends)]
        left.difference_update(mine)
        found[stage] = tuple(mine)

    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(seen.device.type, enabled=False):
        tokens = seen.embed(torch.zeros(1, 3, *seen.preprocess.size, dtype=seen.dtype, device=seen.device))
        take("embeddings", _ends(tokens, names))
        for layer in range(seen.depth):
            tokens = seen.forward_block(layer, tokens.detach())
            take(f"block {layer}", _ends(tokens, names))
        logits = seen.forward_head(tokens.detach())
    behind = _ends(logits, names)
    places = _places(seen.module)
    owners = {id(places[name].owner) for name in _last(logits, names)}
    take("head", [name for name in behind if id(places[name].owner) in owners])
    take("norm", behind)
    return {stage: found[stage] for stage in stages(model)}


def _ends(output: Tensor, names: dict[int, str]) -> set[str]:
    """Return the parameters in which the graph of an output ends."""
    ends, seen, waiting = set[str](), set[Any](), [output.grad_fn]
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            ends.update([names[id(node.variable)]] if id(node.variable) in names else [])
        waiting += [each for each, _ in node.next_functions]
    return ends


def _last(logits: Tensor, names: dict[int, str]) -> set[str]:
    """Return the parameters of the last operation, or operations side by side, that has any of more than one number."""
    level: list[Any] = [logits.grad_fn]
    while level:
        found, deeper = set[str](), dict[Any, None]()
        for node in level:
            for each, _ in node.next_functions if node is not None else ():
                leaf = _leaf(each)
                if leaf is None:
                    deeper[each] = None
                elif id(leaf) in names and leaf.numel() > 1:
                    found.add(names[id(leaf)])
        if found:
            return found
        level = list(deeper)
    return set()


def _leaf(node: Any) -> Tensor | None:
    """Return the parameter at the end of a chain without branches, such as a weight that is transposed."""
    while node is not None and not hasattr(node, "variable") and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return getattr(node, "variable", None)


def _places(model: nn.Module) -> dict[str, _Place]:
    modules = dict(model.named_modules())
    return {
        name: _Place(modules[name.rpartition(".")[0]], name.rpartition(".")[2]) for name, _ in model.named_parameters()
    }


# -- what a parameter becomes --------------------------------------------------------------------------


def _stream(seed: int, name: str) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def _drawn(trained: Tensor, place: _Place, stream: torch.Generator, norms: str, init: str) -> Tensor | None:
    """Return what takes the place of a trained tensor; ``None`` where it stays."""
    if trained.numel() == 1:
        return None
    if "norm" in type(place.owner).__name__.lower():
        if norms == "reset":
            return torch.zeros_like(trained) if place.leaf in ("bias", "beta") else torch.ones_like(trained)
        return None if norms == "keep" else _dealt(trained, stream)
    if place.leaf in _SCALES or "scale" in place.leaf or "scale" in type(place.owner).__name__.lower():
        return _dealt(trained, stream)
    if trained.ndim == 1 and "bias" in place.leaf:
        return torch.zeros_like(trained)
    sigma = float(trained.detach().double().std()) if init == "own" else _SIGMA
    return torch.randn(trained.shape, generator=stream, dtype=torch.float32).mul_(sigma).to(trained)


def _dealt(trained: Tensor, stream: torch.Generator) -> Tensor:
    """Return the same values in one random cycle: none stays where it was."""
    order = torch.randperm(trained.numel(), generator=stream).to(trained.device)
    flat = trained.detach().flatten()
    return torch.empty_like(flat).index_copy_(0, order, flat[order.roll(1)]).view_as(trained)


def _bare(place: _Place) -> bool:
    """Whether a parameter is no layer's weight or bias: class tokens, registers, positions."""
    return place.leaf not in ("weight", "bias") or isinstance(place.owner, nn.Embedding)
