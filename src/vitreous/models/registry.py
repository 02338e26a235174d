"""Which adapters there are, and how a name or a module finds its own.

An adapter is a module-level object with the attributes of ``Adapter``. The built-in ones are listed here by import
path, so that nothing is imported before it is needed; third parties add theirs under the entry-point group
``vitreous.adapters``.

A forward in another thread, in a replica or in compiled code is not seen by hooks, so that the model inside parallel
and compiled wrappers is used; the wrapper stays as it is. Shards, scripts, graphs and quantised weights are refused.
"""

from __future__ import annotations

import importlib
import re
import socket
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
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
from vitreous.models.checkpoints import LoadRecipe
from vitreous.models.class_names import read_labels
from vitreous.models.identity import state
from vitreous.models.preprocess import as_preprocess

_BUILT_IN = ("world.models", "models.adapters.timm", "models.adapters.hf", "models.adapters.torchvision")
_registered: list[Adapter] = []


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
    """What stands before the slash in names such as ``timm/vit_base_patch16_224``; names without one have no slash."""

    def accepts(self, module: nn.Module) -> bool:
        """Whether this module belongs to the family."""

    def wrap(self, module: nn.Module, **facts: Any) -> VisionModel:
        """Return the ``VisionModel`` of such a module, or raise ``ModelError`` saying why not."""

    def load(self, name: str, **options: Any) -> nn.Module:
        """Build the model called ``name`` (without the prefix)."""

    def models(self) -> Iterable[ModelInfo]:
        """Return the names that ``load`` knows."""


def register_adapter(adapter: Adapter) -> None:
    """Add a family of models in this process; a package uses the entry-point group ``vitreous.adapters`` instead.

    Parameters
    ----------
    adapter : Adapter
        An object with ``prefix``, ``accepts``, ``wrap``, ``load`` and ``models``. It goes before the built-in ones.

    Examples
    --------
    >>> vt.register_adapter(HandAdapter())  # doctest: +SKIP
    >>> vt.load("hand/vit")  # doctest: +SKIP
    """
    if adapter not in _registered:
        _registered.insert(0, adapter)
    adapters.cache_clear()


@cache
def adapters() -> tuple[Adapter, ...]:
    """Return every adapter, third parties' first, so that they can claim subclasses of known models."""
    loaded = list(_registered)
    for entry in entry_points(group="vitreous.adapters"):
        try:
            loaded.append(entry.load())
        except Exception as error:  # one broken package must not take the others away
            warnings.warn(f"the adapter {entry.name} cannot be imported: {error}", VitreousWarning, stacklevel=2)
    loaded += [importlib.import_module(f"vitreous.{name}").ADAPTER for name in _BUILT_IN]
    return tuple(loaded)


def wrap(
    module: nn.Module | VisionModel,
    *,
    backbone: str | None = None,
    layer: str | None = None,
    output_key: str | int | None = None,
    class_names: Any = None,
    preprocess: Any = None,
    **facts: Any,
) -> VisionModel:
    """Take a model that is already in hand apart, without changing it.

    Parameters
    ----------
    module : nn.Module or VisionModel
        A model of timm, transformers or torchvision, one with such a model inside, or a convolutional network. A
        ``VisionModel`` is returned as it is; parallel and compiled wrappers are looked through.
    backbone : str, optional
        Path of the known model inside, where there are several.
    layer : str, optional
        Path of the module whose output is the last feature map of a convolutional network, known or not.
    output_key : str or int, optional
        Which of several outputs are the logits.
    class_names : list, mapping, path or configuration, optional
        Names of the classes; the model's own unless given.
    preprocess : Preprocess, mapping, image processor or callable, optional
        How a photograph becomes an input; what the model notes unless given.
    **facts
        ``name=``, and what the family takes (``prompts=`` of a zero-shot model).

    Returns
    -------
    VisionModel
        Verified against the model's own forward when it first runs.

    Raises
    ------
    ModelError
        If no adapter knows the model, or it cannot be looked into.

    Examples
    --------
    >>> import timm
    >>> vt.wrap(timm.create_model("test_vit", num_classes=3), class_names=["cat", "dog", "owl"]).label(1)
    'dog'
    """
    if isinstance(module, VisionModel):
        return module
    module = unwrap(module)
    if class_names is not None:
        facts["class_names"] = read_labels(class_names)
    if preprocess is not None:
        facts["preprocess"] = as_preprocess(preprocess)
    if layer is not None:
        return _ending(module, layer, output_key, facts)
    if backbone in (None, "") and output_key is None:
        adapter = _adapter_of(module)
        try:
            if adapter is not None:
                return adapter.wrap(module, **facts)
        except HeadError:  # its blocks are known, what follows them is not
            pass
        except UnknownError:  # a larger model, perhaps, around one that is known
            if not any(path for path, _ in _known_inside(module)):
                raise
    return _around(module, backbone, output_key, facts)


def _adapter_of(module: nn.Module) -> Adapter | None:
    return next((adapter for adapter in adapters() if adapter.accepts(module)), None)


def _ending(module: nn.Module, layer: str, output_key: str | int | None, facts: dict[str, Any]) -> VisionModel:
    """Return the convolutional network whose last feature map is what ``layer`` gives."""
    from vitreous.models.cnn import ConvModel

    adapter = _adapter_of(module) if output_key is None else None
    network = None
    with suppress(UnknownError):
        network = None if adapter is None else adapter.wrap(module, **facts)
    if network is None:
        return ConvModel(module, ((layer,),), output_key=output_key, cut=layer, **facts)
    if not isinstance(network, ConvModel):
        raise ModelError(f"layer={layer!r} is for convolutional networks; the layers of {network.name} have numbers")
    return network.ending(layer)


def _around(module: nn.Module, backbone: str | None, output_key: Any, facts: dict[str, Any]) -> VisionModel:
    """Return the model around the one model that is known in it."""
    kind, inside = f"{type(module).__module__}.{type(module).__qualname__}", dict(_known_inside(module))
    paths = list(inside) if backbone is None else [backbone]
    if not inside.keys() >= {*paths}:
        listed = ", ".join(path or "itself" for path in inside) or "none"
        raise ModelError(f"{kind} has no known model at {backbone!r}; found: {listed}")
    if not inside:
        families = ", ".join(adapter.prefix for adapter in adapters())
        raise ModelError(
            f"no adapter knows {kind}, and no known model is inside; families known: {families}; for a convolutional "
            "network name the layer of its last feature map, as layer='layer4'; a new family is one file, see the page "
            "'Write an adapter'"
        )
    path, inner = paths[0], inside[paths[0]]
    if len(paths) > 1:
        listed = ", ".join(f"{path} ({type(inner.module).__name__})" for path, inner in inside.items())
        raise ModelError(f"{kind} has several models inside: {listed}; choose one with backbone={path!r}")
    if path and not _has_head(module, inner.module):
        raise ModelError(f"{kind} around {inner.name} has no classifier: nothing after the blocks has weights")
    return inner.wrap_in(module, path, output_key=output_key, **facts)


def _known_inside(module: nn.Module) -> Iterator[tuple[str, VisionModel]]:
    """Yield the outermost known models in a model, with their paths; the model itself has the path ``""``."""
    outermost: list[str] = []
    for path, part in module.named_modules():
        if any(not above or path.startswith(f"{above}.") for above in outermost):
            continue
        for adapter in (adapter for adapter in adapters() if adapter.accepts(part)):
            try:
                yield path, adapter.wrap(part, headless=True)
            except (ModelError, TypeError):  # one of its parts, or a family that knows no towers
                continue
            outermost.append(path)
            break


def _has_head(module: nn.Module, inner: nn.Module) -> bool:
    """Whether a model has weights outside the transformer in it, or that one has a classifier itself."""
    own = {id(part) for part in inner.modules()}
    if any(id(part) not in own and any(True for _ in part.parameters(recurse=False)) for part in module.modules()):
        return True
    adapter = _adapter_of(inner)
    try:
        return adapter is not None and bool(adapter.wrap(inner))
    except HeadError:
        return True
    except ModelError:
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
    """Build a model by name and wrap it.

    Parameters
    ----------
    name : str
        Such as ``timm/vit_base_patch16_224``, ``hf/google/vit-base-patch16-224``, ``torchvision/resnet50``, or the
        bundled ``world``; ``list_models()`` lists them.
    class_names, preprocess, layer : optional
        As for ``wrap``.
    device : str or torch.device, optional
        Where it runs; ``"auto"`` is a GPU where there is one. The CPU unless given.
    dtype : str or torch.dtype, optional
        ``"float32"`` unless given, or ``"float64"``, ``"bfloat16"``, ``"float16"``.
    **options
        ``checkpoint``: a ``.safetensors`` or torch weight file, read without running code from it; ``pretrained``:
        without a checkpoint the hub's weights are fetched unless it is false; ``num_classes``: that of the checkpoint's
        head unless given; ``img_size``; and what the family's own constructor takes.

    Returns
    -------
    VisionModel
        The model in evaluation mode.

    Raises
    ------
    ModelError
        If there is no such model, or its weights cannot be had.
    CheckpointError
        If a checkpoint cannot be read or does not fit.

    Examples
    --------
    >>> vt.load("world").num_classes
    48
    """
    arguments = {"class_names": class_names, "preprocess": preprocess, "layer": layer, "device": device, "dtype": dtype}
    recipe_options = {**arguments, **options}
    device, dtype = None if device is None else device_of(device), _dtype(dtype)
    adapter, own_name = _find(name)
    # what is wrong with them is said before any work
    class_names = None if class_names is None else read_labels(class_names)
    preprocess = None if preprocess is None else as_preprocess(preprocess)
    module = adapter.load(own_name, **options).to(device=device, dtype=dtype)
    model = wrap(module, layer=layer, name=name, class_names=class_names, preprocess=preprocess)
    model.builder_digest = code_digest(adapter) if is_external(adapter) else ""
    recipe_options = {option: value for option, value in recipe_options.items() if value is not None}
    model.load_recipe = LoadRecipe(name, recipe_options, state(model.module))
    return model


def _find(name: str) -> tuple[Adapter, str]:
    """Return the adapter of a model and what it calls it: the rest after its prefix, or all of the name."""
    prefix, slash, own_name = name.partition("/")
    for adapter in adapters():
        if slash and adapter.prefix == prefix:
            return adapter, own_name
        if not slash and any(info.name == name for info in adapter.models() if "/" not in info.name):
            return adapter, name
    names = [info.name for info in list_models()]
    groups = ", ".join(dict.fromkeys(f"{name.partition('/')[0]}/…" if "/" in name else name for name in names))
    raise ModelError(f"unknown model {name!r}{nearest(name, names) or f'; known: {groups}'}")


def list_models() -> list[ModelInfo]:
    """Return the models that can be loaded by name.

    Examples
    --------
    >>> [info.name for info in vt.list_models()][:2]
    ['world', 'world-shortcut']
    """
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
    dtypes = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")}
    chosen = dtypes.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and chosen not in dtypes.values():
        raise ModelError(f"dtype {str(dtype)!r} is not one of {', '.join(dtypes)}")
    return chosen


_SHARDED = r"\.(FullyShardedDataParallel|FSDPModule)( |$)"
_QUANTISED = r"(^| )(torch\.(ao\.nn\.|nn\.quantized)|bitsandbytes\.|torchao\.|optimum\.quanto|auto_gptq|awq)"


def unwrap(module: Any) -> nn.Module:
    """Return the module inside any nest of ``DataParallel``, ``DistributedDataParallel`` and ``torch.compile``."""
    while True:
        if isinstance(module, DataParallel | DistributedDataParallel):
            module = module.module
        elif type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod"):
            module = module._orig_mod  # known by its name: importing torch._dynamo takes seconds
        else:
            break
    kind = type(module).__name__
    if isinstance(module, torch.fx.GraphModule) or kind == "ExportedProgram":
        raise ModelError(f"an exported graph ({kind}) cannot be looked into; give the module it was made from")
    if not isinstance(module, nn.Module):
        raise ModelError(f"expected a VisionModel or a torch module, got {kind}")
    for name, part in module.named_modules():
        reason = _why_unusable(part, is_inside=bool(name))
        if reason:
            raise ModelError(f"{kind}.{name} {reason}" if name else f"{kind} {reason}")
    return module


def _why_unusable(part: nn.Module, is_inside: bool) -> str:
    """Say why a part has its weights elsewhere or not in floating point, or its forward compiled on its own."""
    values = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
    bases = " ".join(f"{b.__module__}.{b.__name__}" for thing in (part, *values) for b in type(thing).__mro__)
    if re.search(_SHARDED, bases):
        return "is sharded (FSDP): no process holds the whole model; gather the weights into a plain module first"
    if isinstance(part, torch.jit.ScriptModule):
        return "is scripted or traced and cannot be looked into; give the Python module"
    if any(value.is_meta for value in values):
        return "has no weights yet: it is on the meta device; load them first"
    if re.search(_QUANTISED, bases) or any(value.is_quantized for value in values):
        return f"is quantised ({type(part).__name__}): it has no gradients; give the model in float"
    if is_inside and part._compiled_call_impl is not None:
        return "is compiled in place and cannot be looked into; explain the model before compiling"
    return ""


def answers(url: str) -> bool:
    """Whether the server of an address takes connections, known before a client tries for most of a minute.

    A proxy is trusted.
    """
    if getproxies():
        return True
    try:
        socket.create_connection((urlparse(url).hostname, 443), timeout=3).close()
    except OSError:
        return False
    return True


def reachable(repo: str) -> bool:
    """Whether a repository ``owner/name`` (``*`` for any) is in the hub's cache, or the hub answers and may be used."""
    is_cached = any(Path(hub.HF_HUB_CACHE).glob(f"models--{repo.replace('/', '--')}/snapshots/*"))
    return is_cached or (not hub.HF_HUB_OFFLINE and answers(hub.ENDPOINT))
