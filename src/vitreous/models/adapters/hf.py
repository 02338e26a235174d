"""Hugging Face transformers: names, weights, and what lies beside them in a repository or a folder.

The package is imported when a model is loaded. Adapters (``hf_vit``) are found by the name of the model's class, so
that wrapping a model of another library imports neither them nor transformers. Nothing that lies in a repository is
ever run: ``trust_remote_code`` is always off. What it holds beside the weights (preprocessing, tokenizer) is remembered
for the module it was loaded with.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from vitreous.errors import ModelError, UnknownError, VitreousWarning
from vitreous.models.adapters import LibraryAdapter, first_line, size_pair
from vitreous.models.base import VisionModel
from vitreous.models.preprocess import FILTERS, Preprocess, crop_ratio, match
from vitreous.models.registry import ModelInfo, reachable

_MODEL_CLASSES = {
    "vit": ("ViTForImageClassification",),
    "deit": ("DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
    "dinov2": ("Dinov2ForImageClassification",),
    "dinov2_with_registers": ("Dinov2WithRegistersForImageClassification",),
    "swin": ("SwinForImageClassification",),
    "clip": ("CLIPModel", "CLIPForImageClassification"),
    "siglip": ("SiglipModel", "SiglipForImageClassification"),
}
"""The classes of each type of configuration: the usual one, and one that the configuration may name."""
_ADAPTERS = {"ViT": "HFViT", "DeiT": "HFViT", "Dinov2": "HFDinov2", "Dinov2WithRegisters": "HFDinov2", "Swin": "HFSwin"}
_TOWERS = {f"{stem}Model": adapter for stem, adapter in _ADAPTERS.items()}
"""The adapter of each class of model without a head: what other models are built around."""
_CLASSIFIERS = {
    f"{stem}ForImageClassification": adapter
    for stem, adapter in {**_ADAPTERS, "CLIP": "HFTower", "Siglip": "HFTower"}.items()
} | {"DeiTForImageClassificationWithTeacher": "HFViT"}
_ZERO_SHOT = {"CLIPModel": "HFZeroShot", "SiglipModel": "HFZeroShot"}

_HEADS = ("classifier", "cls_classifier", "distillation_classifier")
_T = TypeVar("_T")


# -- building ------------------------------------------------------------------------------------------


def _transformers(name: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ModelError(f"hf/{name} needs the package transformers: pip install 'vitreous[hf]'") from error
    return transformers


def _source(name: str) -> str:
    """Return a folder or a repository, having asked whether it can be had."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"hf/{name}: the folder holds no config.json")
        return str(folder)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or not name:
        raise ModelError(f"hf/{name}: there is no folder {str(folder)!r}")
    if not reachable(name):
        advice = "it is not in the cache; name a folder instead (hf/./folder)"
        raise ModelError(f"could not fetch hf/{name}: the model hub cannot be reached, and {advice}")
    return name


def _class(transformers: Any, name: str, config: Any) -> Any:
    kinds = _MODEL_CLASSES.get(config.model_type)
    if kinds is None:
        raise ModelError(f"hf/{name} is of type {config.model_type!r}; supported: {', '.join(_MODEL_CLASSES)}")
    return getattr(transformers, next((kind for kind in kinds if kind in (config.architectures or ())), kinds[0]))


def _configure(name: str, config: Any, num_classes: int | None, img_size: Any) -> None:
    if num_classes is not None and num_classes < 1:
        raise ModelError(f"hf/{name}: num_classes={num_classes} leaves no classifier")
    if num_classes not in (None, config.num_labels):
        config.num_labels = num_classes
    if img_size is not None:
        height, width = size_pair(img_size)
        getattr(config, "vision_config", config).image_size = height if height == width else (height, width)


def _weighted(name: str, kind: Any, source: str, config: Any, num_classes: int | None, build: dict[str, Any]) -> Any:
    """Fetch the weights; a head that they lack is only left untrained for a new number of classes."""
    options = {"config": config, "output_loading_info": True, "ignore_mismatched_sizes": num_classes is not None}
    model, info = _call(name, lambda: kind.from_pretrained(source, **options, **build))
    missing = [key for key in info["missing_keys"] if num_classes is None or key.split(".")[0] not in _HEADS]
    if missing:
        head = any(key.split(".")[0] in _HEADS for key in missing)
        text = "classifier; give num_classes= for an untrained one" if head else missing[0]
        raise ModelError(f"the weights of hf/{name} hold no {text}")
    return model.float()  # half-precision files too: dtype= says what is wanted


def _built(name: str, kind: Any, config: Any, build: dict[str, Any]) -> Any:
    attention = {key: value for key, value in build.items() if key == "attn_implementation"}
    for key in build.keys() - attention.keys():
        if not hasattr(config, key):
            raise ModelError(f"could not build hf/{name}: its configuration has no {key!r}")
        setattr(config, key, build[key])
    return _call(name, lambda: kind._from_config(config, **attention).float())


def _call(name: str, function: Callable[[], _T]) -> _T:
    """Call transformers; its errors become one line, and its bars and tables are not shown."""
    try:
        with _quiet():
            return function()
    except Exception as error:
        raise ModelError(f"could not load hf/{name} ({first_line(error)[:200]})") from error


@contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


# -- what lies beside the weights ----------------------------------------------------------------------


def _beside(transformers: Any, name: str, source: str, zero_shot: bool, img_size: Any, quiet: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(source, trust_remote_code=False)
        facts["preprocess"] = from_processor(processor, None if img_size is None else size_pair(img_size))
    except Exception as error:
        if not quiet:
            text = f"no image processor was found, the usual preprocessing is taken ({first_line(error)[:120]})"
            warnings.warn(f"hf/{name}: {text}", VitreousWarning, stacklevel=4)
    if zero_shot:
        with suppress(Exception):  # only prompts need a tokenizer, and they say so
            facts["tokenizer"] = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    return facts


_REPOSITORIES = {
    224: """
        google/vit-base-patch16-224 google/vit-large-patch16-224 facebook/deit-tiny-patch16-224
        facebook/deit-small-patch16-224 facebook/deit-base-patch16-224 facebook/deit-tiny-distilled-patch16-224
        facebook/deit-base-distilled-patch16-224 facebook/dinov2-small-imagenet1k-1-layer
        facebook/dinov2-base-imagenet1k-1-layer facebook/dinov2-large-imagenet1k-1-layer
        facebook/dinov2-giant-imagenet1k-1-layer facebook/dinov2-with-registers-small-imagenet1k-1-layer
        facebook/dinov2-with-registers-base-imagenet1k-1-layer facebook/dinov2-with-registers-large-imagenet1k-1-layer
        microsoft/swin-tiny-patch4-window7-224 microsoft/swin-small-patch4-window7-224
        microsoft/swin-base-patch4-window7-224 openai/clip-vit-base-patch32 openai/clip-vit-base-patch16
        openai/clip-vit-large-patch14 laion/CLIP-ViT-B-32-laion2B-s34B-b79K google/siglip-base-patch16-224
        google/siglip2-base-patch16-224
    """,
    336: "openai/clip-vit-large-patch14-336",
    384: """
        google/vit-base-patch16-384 google/vit-base-patch32-384 microsoft/swin-base-patch4-window12-384
        google/siglip-base-patch16-384 google/siglip-so400m-patch14-384
    """,
}
"""Well-known repositories by the size of their images; any other of these families can be named too."""

_CLASSES = frozenset({"prompts", "text_embeds"})
"""How the classes of a zero-shot model are given."""


def from_processor(processor: Any, size: tuple[int, int] | None = None) -> Preprocess:
    """Return what an image processor of transformers does, or what it would do for another input size.

    The share of the image that is cut out stays the same. Where the aspect ratio is kept, a processor can only make a
    square; another shape is cut as a ``Preprocess`` does.
    """
    data = None
    with suppress(ModelError):  # what cannot be written as data is used as it is
        data = _data_of_processor(processor)
    if data is not None and size is not None and size != data.size:
        data = replace(data, size=size)
        height, width = (math.floor(side / data.crop) for side in size)
        if data.mode == "center" and height != width:
            return data
        sides = {"shortest_edge": height} if data.mode == "center" else {"height": height, "width": width}
        settings = {**processor.to_dict(), "size": sides, "crop_size": {"height": size[0], "width": size[1]}}
        processor = type(processor).from_dict(settings)
    return match(partial(processor, return_tensors="pt"), data)


def _data_of_processor(processor: Any) -> Preprocess:
    """Read an image processor as data.

    A size of two sides squashes, the shortest edge keeps the aspect ratio; a centre crop of ``c`` out of ``s`` pixels
    is a crop of ``c / s``.
    """
    name, size = type(processor).__name__, getattr(processor, "size", None)
    sides, short = _sides(size), _side(size, "shortest_edge")
    resized = sides or (None if short is None else (short, short))
    if resized is None:
        raise ModelError(f"{name} resizes to {size}, which is no fixed size")
    crops = _sides(getattr(processor, "crop_size", None)) if getattr(processor, "do_center_crop", False) else None
    cropped, mode = crops or resized, "squash" if sides else "center"
    crop = crop_ratio(cropped[0], resized[0])
    if math.floor(cropped[1] / crop) != resized[1]:
        raise ModelError(f"{name} crops {resized} to {cropped}, each side by another ratio")
    names = {int(number): interpolation for interpolation, number in FILTERS.items()}
    resample, is_normalized = int(getattr(processor, "resample", 2)), getattr(processor, "do_normalize", True)
    if resample not in names:
        raise ModelError(f"{name} resizes with filter {resample}, which is not supported")
    mean, std = (processor.image_mean, processor.image_std) if is_normalized else ((0.0,) * 3, (1.0,) * 3)
    return Preprocess(cropped, tuple(map(float, mean)), tuple(map(float, std)), names[resample], crop, mode)


def _sides(size: Any) -> tuple[int, int] | None:
    height, width = _side(size, "height"), _side(size, "width")
    return None if height is None or width is None else (height, width)


def _side(size: Any, key: str) -> int | None:
    side = size if isinstance(size, int) else size.get(key) if isinstance(size, dict) else getattr(size, key, None)
    return None if side is None else int(side)


_remembered: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()


class HFAdapter(LibraryAdapter):
    """Names and weights of the family."""

    prefix = "hf"

    def accepts(self, module: nn.Module) -> bool:
        return any(kind.__module__.startswith("transformers.") for kind in type(module).__mro__)

    def wrap(self, module: nn.Module, **facts: Any) -> VisionModel:
        """Wrap a model of transformers; a zero-shot model also takes ``prompts=``, ``tokenizer=``, ``text_embeds=``.

        What was loaded with the module is used where nothing else is said.
        """
        facts = {name: fact for name, fact in facts.items() if fact is not None}
        loaded = _remembered.get(module, {})
        if facts.keys() & _CLASSES:  # instead of those it was loaded with
            loaded = {name: fact for name, fact in loaded.items() if name not in _CLASSES}
        facts = {**loaded, **facts}
        classes = sorted(facts.keys() & _CLASSES)
        if classes and not hasattr(module, "logit_scale"):
            raise ModelError(f"{type(module).__name__} has classes of its own; {classes[0]}= is for zero-shot models")
        return _adapter_of(module, bool(facts.get("headless")))(module, **facts)  # type: ignore[no-any-return]

    def _build(self, name: str, is_pretrained: bool, options: dict[str, Any]) -> nn.Module:
        """Build the model of a repository ``owner/name`` or of a folder, never running code from there.

        ``prompts`` or ``text_embeds`` are the classes of a zero-shot model. Other options go to the configuration.
        """
        transformers, source = _transformers(name), _source(name)
        classes = {key: options.pop(key) for key in _CLASSES & options.keys()}
        num_classes, img_size = options.pop("num_classes", None), options.pop("img_size", None)
        safe = {"trust_remote_code": False}  # said aloud, for left unsaid transformers asks on the terminal
        config = _call(name, lambda: transformers.AutoConfig.from_pretrained(source, **safe))
        kind = _class(transformers, name, config)
        is_zero_shot = kind.__name__ in _ZERO_SHOT
        if is_zero_shot and num_classes is not None:
            text = f"its classes are prompts=[…], not num_classes={num_classes}"
            raise ModelError(f"hf/{name} is a zero-shot model: {text}")
        _configure(name, config, num_classes, None if is_pretrained and config.model_type != "swin" else img_size)
        if is_pretrained:
            model = _weighted(name, kind, source, config, num_classes, options)
        else:
            model = _built(name, kind, config, options)
        facts = _beside(transformers, name, source, is_zero_shot, img_size, quiet=not is_pretrained)
        facts |= {"img_size": img_size, **classes}
        _remembered[model] = {key: value for key, value in facts.items() if value is not None}
        return model  # type: ignore[no-any-return]

    def models(self) -> Iterable[ModelInfo]:
        return [ModelInfo(f"hf/{r}", "hf", size, ()) for size, repos in _REPOSITORIES.items() for r in repos.split()]


ADAPTER = HFAdapter()


def _adapter_of(module: nn.Module, headless: bool) -> Any:
    """Return the ``VisionModel`` for the class of a model, or for the class of transformers that it extends."""
    names = _CLASSIFIERS | (_TOWERS if headless else _ZERO_SHOT)
    for kind in type(module).__mro__:
        if kind.__module__.startswith("transformers.") and kind.__name__ in names:
            return getattr(importlib.import_module("vitreous.models.adapters.hf_vit"), names[kind.__name__])
    raise UnknownError(f"transformers' {type(module).__name__} is not supported; supported: {', '.join(names)}")
