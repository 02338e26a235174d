"""Which adapters there are, and how a name or a module finds its own.

An adapter is a module-level object with the attributes of ``Adapter``. The built-in ones are listed here by import
path, so that nothing is imported before it is needed; third parties add theirs under the entry-point group
``vitreous.adapters``.

The model inside: parallel and compiled wrappers are taken off, what cannot be looked into is refused.

A forward in another thread, in a replica or in compiled code is not seen by an observer, so the module inside is used.
The wrapper stays as it is. Shards, scripts, graphs and quantised weights have no such module inside.

Whether weights can be fetched, known before a client tries for most of a minute.
"""

from __future__ import annotations

import importlib
import socket
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlparse
from urllib.request import getproxies

import torch
from huggingface_hub import constants as hub
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from vitreous.code_digest import code_digest, is_external
from vitreous.errors import HeadError, ModelError, UnknownError, VitreousWarning, nearest
from vitreous.models.base import VisionModel
from vitreous.models.checkpoints import Recipe
from vitreous.models.class_names import read_labels
from vitreous.models.preprocess import as_preprocess

_BUILT_IN = {
    "timm": "vitreous.models.adapters.timm:ADAPTER",
    "hf": "vitreous.models.adapters.hf:ADAPTER",
    "torchvision": "vitreous.models.adapters.torchvision:ADAPTER",
}
_added: list[Adapter] = []


@dataclass(frozen=True)
class ModelInfo:
    """One line of ``vitreous models``."""

    name: str
    family: str
    size: int | None
    pretrained: tuple[str, ...]


@runtime_checkable
class Adapter(Protocol):
    """What a family of models must offer."""

    prefix: str
    """What stands before the slash in names such as ``timm/vit_base_patch16_224``; names without one are whole."""

    def accepts(self, module: nn.Module) -> bool:
        """Whether this module belongs to the family."""

    def wrap(self, module: nn.Module, **facts: Any) -> VisionModel:
        """Return the view of such a module, or raise ``ModelError`` saying why not."""

    def load(self, name: str, **options: Any) -> nn.Module:
        """Build the model called ``name`` (without the prefix)."""

    def models(self) -> Iterable[ModelInfo]:
        """Return the names that ``load`` knows."""


def register_adapter(adapter: Adapter) -> None:
    """Add an adapter in this process; packages use the entry-point group instead."""
    if adapter not in _added:
        _added.insert(0, adapter)
    adapters.cache_clear()


@cache
def adapters() -> tuple[Adapter, ...]:
    """Return every adapter, third parties' first, so that they can claim subclasses of known models."""
    every = list(_added)
    for entry in entry_points(group="vitreous.adapters"):
        try:
            every.append(entry.load())
        except Exception as error:  # one broken package must not take the others away
            warnings.warn(f"the adapter {entry.name} cannot be imported: {error}", VitreousWarning, stacklevel=2)
    for path in _BUILT_IN.values():
        module, _, attribute = path.partition(":")
        every.append(getattr(importlib.import_module(module), attribute))
    return tuple(every)


def wrap(
    module: nn.Module | VisionModel,
    *,
    backbone: str | None = None,
    layer: str | None = None,
    output_key: str | int | None = None,
    **facts: Any,
) -> VisionModel:
    """Look at a model already in hand; a view is returned as it is, and wrappers are looked through (``unwrap``).

    A model of one's own is searched for the one known model inside; ``backbone=`` names it where there are several, and
    ``output_key=`` one of several outputs. ``layer=`` names the layer whose output is the feature map of a
    convolutional network, known or not. ``name=``, ``class_names=``, ``preprocess=`` override what the model says about
    itself.
    """
    if isinstance(module, VisionModel):
        return module
    module = unwrap(module)
    for fact, understood in (("class_names", read_labels), ("preprocess", as_preprocess)):
        if facts.get(fact) is not None:
            facts[fact] = understood(facts[fact])
    if layer is not None:
        return _ending(module, layer, output_key, facts)
    whole = backbone in (None, "") and output_key is None
    for adapter in adapters() if whole else ():
        if adapter.accepts(module):
            try:
                return adapter.wrap(module, **facts)
            except HeadError:  # its blocks are known, what follows them is not
                break
            except UnknownError:  # a larger model, perhaps, around one that is known
                if not any(path for path, _ in _towers(module)):
                    raise
                break
    return _around(module, backbone, output_key, facts)


def _ending(module: nn.Module, layer: str, output_key: str | int | None, facts: dict[str, Any]) -> VisionModel:
    """Return the view of a convolutional network whose feature map is what ``layer`` gives."""
    from vitreous.models.cnn import ConvModel

    for adapter in adapters() if output_key is None else ():
        if adapter.accepts(module):
            try:
                known = adapter.wrap(module, **facts)
            except UnknownError:
                break
            if not isinstance(known, ConvModel):
                raise ModelError(
                    f"layer={layer!r} is for convolutional networks; the layers of {known.name} have numbers"
                )
            return known.ending(layer)
    return ConvModel(module, ((layer,),), output_key=output_key, cut=layer, **facts)


def _around(
    module: nn.Module, backbone: str | None, output_key: str | int | None, facts: dict[str, Any]
) -> VisionModel:
    """Return the view of a model around the one model that is known in it."""
    found = list(_towers(module))
    what = f"{type(module).__module__}.{type(module).__qualname__}"
    if backbone is not None:
        found = [each for each in found if each[0] == backbone]
        if not found:
            listed = ", ".join(path or "itself" for path, _ in _towers(module)) or "none"
            raise ModelError(f"{what} has no known model at {backbone!r}; found: {listed}")
    if not found:
        known = ", ".join(adapter.prefix for adapter in adapters())
        raise ModelError(
            f"no adapter knows {what}, and no known model is inside; families known: {known}; for a convolutional "
            "network name the layer of its last feature map, as layer='layer4'; a new family is one file, see the page "
            "'Write an adapter'"
        )
    if len(found) > 1:
        listed = ", ".join(f"{path} ({type(inner.module).__name__})" for path, inner in found)
        raise ModelError(f"{what} has several models inside: {listed}; choose one with backbone={found[0][0]!r}")
    ((path, inner),) = found
    if path and not _has_head(module, inner.module):
        raise ModelError(f"{what} around {inner.name} has no classifier: nothing after the blocks has weights")
    return inner.wrap_in(module, path, output_key=output_key, **facts)


def _towers(module: nn.Module) -> Iterator[tuple[str, VisionModel]]:
    """Yield the outermost known models in a model, with their paths; the model itself has the path ``""``."""
    taken: list[str] = []
    for path, part in module.named_modules():
        if any(not above or path.startswith(f"{above}.") for above in taken):
            continue
        for adapter in adapters():
            if adapter.accepts(part):
                try:
                    yield path, adapter.wrap(part, headless=True)
                except (ModelError, TypeError):  # one of its parts, or a family that knows no towers
                    continue
                taken.append(path)
                break


def _has_head(module: nn.Module, inner: nn.Module) -> bool:
    """Say whether a model has weights outside the transformer in it, or that one has a classifier itself."""
    own = {id(each) for each in inner.modules()}
    if any(id(each) not in own and any(True for _ in each.parameters(recurse=False)) for each in module.modules()):
        return True
    for adapter in adapters():
        if adapter.accepts(inner):
            try:
                adapter.wrap(inner)
            except HeadError:
                return True
            except ModelError:
                return False
            return True
    return False


def load(
    name: str,
    *,
    class_names: Any = None,
    preprocess: Any = None,
    layer: str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    **options: Any,
) -> VisionModel:
    """Build a model by name, such as ``timm/vit_base_patch16_224`` or the bundled ``world``, and look at it.

    ``checkpoint``: a ``.safetensors`` or torch weight file; without one the hub's weights are fetched, unless
    ``pretrained=False``. ``num_classes``, ``img_size``, ``class_names`` and ``preprocess`` fit a fine-tuned model; the
    number of classes is that of the checkpoint's head where none is given. ``layer`` as for ``wrap``. ``device`` may be
    ``"auto"``: a GPU where there is one. Other options go to the family's own constructor.
    """
    given = {
        "class_names": class_names,
        "preprocess": preprocess,
        "layer": layer,
        "device": device,
        "dtype": dtype,
        **options,
    }
    device, dtype = None if device is None else device_of(device), _dtype(dtype)
    adapter, rest = _find(name)
    class_names = (
        None if class_names is None else read_labels(class_names)
    )  # what is wrong with it is said before any work
    shown: dict[str, Any] = {} if preprocess is None else {"preprocess": as_preprocess(preprocess)}
    module = adapter.load(rest, **options)
    made = wrap(module.to(device=device, dtype=dtype), layer=layer, name=name, class_names=class_names, **shown)
    made.builder_digest = code_digest(adapter) if is_external(adapter) else ""
    made.load_recipe = Recipe.of(name, given, made.module)
    return made


def _find(name: str) -> tuple[Adapter, str]:
    """Return the adapter of a model and what it calls it: the rest after its prefix, or the whole name."""
    prefix, slash, rest = name.partition("/")
    for adapter in adapters():
        if slash and adapter.prefix == prefix:
            return adapter, rest
        if not slash and any(info.name == name for info in adapter.models() if "/" not in info.name):
            return adapter, name
    listed = [info.name for info in list_models()]
    known = ", ".join(dict.fromkeys(f"{each.partition('/')[0]}/…" if "/" in each else each for each in listed))
    raise ModelError(f"unknown model {name!r}{nearest(name, listed) or f'; known: {known}'}")


def list_models() -> list[ModelInfo]:
    """Return the models that can be loaded by name."""
    return [info for adapter in adapters() for info in adapter.models()]


def device_of(device: str | torch.device) -> torch.device:
    """Return a device that is there, or say why it cannot be used; ``"auto"`` is a GPU where there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"device {str(device)!r} cannot be used: {str(error).splitlines()[0]}") from None


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    known = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")}
    chosen = known.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and chosen not in known.values():
        raise ModelError(f"dtype {str(dtype)!r} is not one of {', '.join(known)}")
    return chosen


_SHARDED = {"FullyShardedDataParallel", "FSDPModule"}
_QUANTISED = ("torch.ao.nn.", "torch.nn.quantized", "bitsandbytes.", "torchao.", "optimum.quanto", "auto_gptq", "awq")


def unwrap(module: Any) -> nn.Module:
    """Return the module inside any nest of ``DataParallel``, ``DistributedDataParallel`` and ``torch.compile``."""
    while True:
        if isinstance(module, DataParallel | DistributedDataParallel):
            module = module.module
        elif type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod"):
            module = module._orig_mod  # known by its name: importing torch._dynamo takes seconds
        else:
            break
    _refuse_programs(module)
    for name, part in module.named_modules():
        _refuse_part(type(module).__name__, name, part)
    return module  # type: ignore[no-any-return]


def _refuse_programs(module: Any) -> None:
    what = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise ModelError("a scripted or traced module cannot be looked into; give the Python module it was made from")
    if isinstance(module, torch.fx.GraphModule) or what == "ExportedProgram":
        raise ModelError(f"an exported graph ({what}) cannot be looked into; give the module it was made from")
    if not isinstance(module, nn.Module):
        raise ModelError(f"expected a View or a torch module, got {what}")


def _refuse_part(model: str, name: str, part: nn.Module) -> None:
    """Refuse a part whose weights are elsewhere or not floating point, or whose forward is compiled on its own."""
    where = f"{model}.{name}" if name else model
    kinds = type(part).__mro__
    if any(kind.__name__ in _SHARDED for kind in kinds):
        raise ModelError(
            f"{where} is sharded (FSDP): no process holds the whole model; gather the weights into a plain module first"
        )
    if isinstance(part, torch.jit.ScriptModule):
        raise ModelError(f"{where} is scripted or traced and cannot be looked into; give the Python module")
    values = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
    if any(value.is_meta for value in values):
        raise ModelError(f"{where} has no weights yet: it is on the meta device; load them first")
    homes = {kind.__module__ for each in (part, *values) for kind in type(each).__mro__}
    if any(home.startswith(_QUANTISED) for home in homes) or any(value.is_quantized for value in values):
        raise ModelError(f"{where} is quantised ({kinds[0].__name__}): it has no gradients; give the model in float")
    if name and part._compiled_call_impl is not None:
        raise ModelError(f"{where} is compiled in place and cannot be looked into; explain the model before compiling")


def answers(url: str) -> bool:
    """Whether the server of an address takes connections; a proxy is trusted."""
    if getproxies():
        return True
    try:
        socket.create_connection((urlparse(url).hostname, 443), timeout=3).close()
    except OSError:
        return False
    return True


def cached(repo: str) -> bool:
    """Whether something of the hub's repository ``owner/name`` (``*`` for any) lies in the local cache."""
    return any(Path(hub.HF_HUB_CACHE).glob(f"models--{repo.replace('/', '--')}/snapshots/*"))


def reachable(repo: str) -> bool:
    """Whether a repository is in the cache, or the hub answers and may be asked."""
    return cached(repo) or (not hub.HF_HUB_OFFLINE and answers(hub.ENDPOINT))
