"""Loading Hugging Face models from a repository or a folder, and what lies beside their weights.

Nothing that lies in a repository is ever run: ``trust_remote_code`` is always off.

Hugging Face transformers: names, classes and what they come with. The package is imported when a model is loaded.

The views are in ``vit.py``, ``swin.py`` and ``clip.py``; they are found by the name of the model's class, so
that looking at a model of another library imports neither them nor transformers. What a repository holds beside the
weights (preprocessing, tokenizer) is remembered for the module it was loaded with.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from vitreous.errors import ModelError, UnknownError, VitreousWarning, one_line
from vitreous.models.adapters.hf_vit import pair
from vitreous.models.base import VisionModel
from vitreous.models.checkpoints import Checkpoint, classes_in, fit
from vitreous.models.registry import ModelInfo, reachable
from vitreous.models.transforms import preprocess_of

__all__ = [
    "ADAPTER",
    "HFAdapter",
    "load",
    "preprocess_of",
]

_MODEL_CLASSES = {
    "vit": ("ViTForImageClassification",),
    "deit": ("DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
    "dinov2": ("Dinov2ForImageClassification",),
    "dinov2_with_registers": ("Dinov2WithRegistersForImageClassification",),
    "swin": ("SwinForImageClassification",),
    "clip": ("CLIPModel", "CLIPForImageClassification"),
    "siglip": ("SiglipModel", "SiglipForImageClassification"),
}
"""The classes of each type of configuration: the usual one, and one that the configuration may ask for."""

_HEADS = ("classifier", "cls_classifier", "distillation_classifier")
_T = TypeVar("_T")


def load(
    name: str,
    pretrained: bool | None,
    checkpoint: str | Path | None,
    num_classes: int | None,
    img_size: int | tuple[int, int] | None,
    build: dict[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """Return the model called ``name`` and what lay beside it: preprocessing, tokenizer."""
    transformers = _transformers(name)
    source = _source(name)
    if pretrained is None:
        pretrained = checkpoint is None
    safe = {"trust_remote_code": False}  # said aloud, for left unsaid transformers asks on the terminal
    config = _asked(name, lambda: transformers.AutoConfig.from_pretrained(source, **safe))
    kind = _class(transformers, name, config)
    zero_shot = kind.__name__ in ("CLIPModel", "SiglipModel")
    if zero_shot and num_classes is not None:
        raise ModelError(f"hf/{name} is a zero-shot model: its classes are prompts=[…], not num_classes={num_classes}")
    found = None if checkpoint is None else Checkpoint.read(checkpoint)
    if found is not None and num_classes is None and not zero_shot:
        num_classes = classes_in(found.tensors)
    config = _configured(name, config, num_classes, None if pretrained and config.model_type != "swin" else img_size)
    if pretrained and found is None:
        model = _weighted(name, kind, source, config, num_classes, build)
    else:
        model = _built(name, kind, config, build)
        if found is not None:
            fit(model, found)
    facts = _beside(transformers, name, source, zero_shot, img_size, quiet=not pretrained)
    return model.eval(), {**facts, **({} if img_size is None else {"img_size": img_size})}


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
        raise ModelError(
            f"could not fetch hf/{name}: the model hub cannot be reached, and it is not in the cache; "
            "name a folder instead (hf/./folder)"
        )
    return name


def _class(transformers: Any, name: str, config: Any) -> Any:
    known = _MODEL_CLASSES.get(config.model_type)
    if known is None:
        raise ModelError(f"hf/{name} is of type {config.model_type!r}; supported: {', '.join(_MODEL_CLASSES)}")
    asked = [each for each in known if each in (config.architectures or ())]
    return getattr(transformers, asked[0] if asked else known[0])


def _configured(name: str, config: Any, num_classes: int | None, img_size: Any) -> Any:
    if num_classes is not None:
        if num_classes < 1:
            raise ModelError(f"hf/{name}: num_classes={num_classes} leaves no classifier")
        if num_classes != config.num_labels:
            config.num_labels = num_classes
    if img_size is not None:
        vision = getattr(config, "vision_config", config)
        height, width = pair(img_size)
        vision.image_size = height if height == width else (height, width)
    return config


def _weighted(name: str, kind: Any, source: str, config: Any, num_classes: int | None, build: dict[str, Any]) -> Any:
    """Fetch the weights; a head that they lack is only left untrained for a new number of classes."""
    options = {"config": config, "output_loading_info": True, "ignore_mismatched_sizes": num_classes is not None}
    model, told = _asked(name, lambda: kind.from_pretrained(source, **options, **build))
    missing = [key for key in told["missing_keys"] if num_classes is None or key.split(".")[0] not in _HEADS]
    if missing:
        head = any(key.split(".")[0] in _HEADS for key in missing)
        what = "no classifier" if head else f"no {missing[0]}"
        advice = "; give num_classes= for an untrained one" if head else ""
        raise ModelError(f"the weights of hf/{name} hold {what}{advice}")
    return model.float()  # half-precision files too: dtype= says what is wanted


def _built(name: str, kind: Any, config: Any, build: dict[str, Any]) -> Any:
    options = dict(build)
    kept = {"attn_implementation": options.pop("attn_implementation")} if "attn_implementation" in options else {}
    for key, value in options.items():
        if not hasattr(config, key):
            raise ModelError(f"could not build hf/{name}: its configuration has no {key!r}")
        setattr(config, key, value)
    return _asked(name, lambda: kind._from_config(config, **kept).float())


def _asked(name: str, ask: Callable[[], _T]) -> _T:
    """Return what transformers answers; its errors become one line, and its bars and tables are not shown."""
    try:
        with _quiet():
            return ask()
    except Exception as error:
        raise ModelError(f"could not load hf/{name} ({_first_line(error)[:200]})") from error


def _first_line(error: Exception) -> str:
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[0])


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
        facts["preprocess"] = preprocess_of(
            transformers.AutoImageProcessor.from_pretrained(source, trust_remote_code=False),
            None if img_size is None else pair(img_size),
        )
    except Exception as error:
        if not quiet:
            reason = _first_line(error)[:120]
            warnings.warn(
                f"hf/{name}: no image processor was found, the usual preprocessing is taken ({reason})",
                VitreousWarning,
                stacklevel=5,
            )
    if zero_shot:
        with suppress(Exception):  # only prompts need a tokenizer, and they say so
            facts["tokenizer"] = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    return facts


_VIEWS = {
    "ViTForImageClassification": "hf_vit:HFViT",
    "DeiTForImageClassification": "hf_vit:HFViT",
    "DeiTForImageClassificationWithTeacher": "hf_vit:HFViT",
    "Dinov2ForImageClassification": "hf_vit:HFDinov2",
    "Dinov2WithRegistersForImageClassification": "hf_vit:HFDinov2",
    "SwinForImageClassification": "hf_vit:HFSwin",
    "CLIPModel": "hf_clip:HFZeroShot",
    "SiglipModel": "hf_clip:HFZeroShot",
    "CLIPForImageClassification": "hf_clip:HFTower",
    "SiglipForImageClassification": "hf_clip:HFTower",
}
"""Where the view of each class of model lives."""

_TOWERS = {
    "ViTModel": "hf_vit:HFViT",
    "DeiTModel": "hf_vit:HFViT",
    "Dinov2Model": "hf_vit:HFDinov2",
    "Dinov2WithRegistersModel": "hf_vit:HFDinov2",
    "SwinModel": "hf_vit:HFSwin",
}
"""The same without a head: what other models are built around."""

_KNOWN = {
    "google/vit-base-patch16-224": 224,
    "google/vit-base-patch16-384": 384,
    "google/vit-base-patch32-384": 384,
    "google/vit-large-patch16-224": 224,
    "facebook/deit-tiny-patch16-224": 224,
    "facebook/deit-small-patch16-224": 224,
    "facebook/deit-base-patch16-224": 224,
    "facebook/deit-tiny-distilled-patch16-224": 224,
    "facebook/deit-base-distilled-patch16-224": 224,
    "facebook/dinov2-small-imagenet1k-1-layer": 224,
    "facebook/dinov2-base-imagenet1k-1-layer": 224,
    "facebook/dinov2-large-imagenet1k-1-layer": 224,
    "facebook/dinov2-giant-imagenet1k-1-layer": 224,
    "facebook/dinov2-with-registers-small-imagenet1k-1-layer": 224,
    "facebook/dinov2-with-registers-base-imagenet1k-1-layer": 224,
    "facebook/dinov2-with-registers-large-imagenet1k-1-layer": 224,
    "microsoft/swin-tiny-patch4-window7-224": 224,
    "microsoft/swin-small-patch4-window7-224": 224,
    "microsoft/swin-base-patch4-window7-224": 224,
    "microsoft/swin-base-patch4-window12-384": 384,
    "openai/clip-vit-base-patch32": 224,
    "openai/clip-vit-base-patch16": 224,
    "openai/clip-vit-large-patch14": 224,
    "openai/clip-vit-large-patch14-336": 336,
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K": 224,
    "google/siglip-base-patch16-224": 224,
    "google/siglip-base-patch16-384": 384,
    "google/siglip-so400m-patch14-384": 384,
    "google/siglip2-base-patch16-224": 224,
}
"""Well-known repositories and the size of their images; any other of these families can be named too."""

_CLASSES = frozenset({"prompts", "text_embeds"})
"""How the classes of a zero-shot model are given."""

_remembered: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()


class HFAdapter:
    """Names, weights and views of the family."""

    prefix = "hf"

    def accepts(self, module: nn.Module) -> bool:
        return any(kind.__module__.startswith("transformers.") for kind in type(module).__mro__)

    def wrap(self, module: nn.Module, **facts: Any) -> VisionModel:
        """Look at a model of transformers; a zero-shot model also takes ``prompts=``, ``tokenizer=``, ``text_embeds=``.

        What was loaded with the module is used where nothing else is said.
        """
        given = {name: fact for name, fact in facts.items() if fact is not None}
        known = dict(_remembered.get(module, {}))
        if given.keys() & _CLASSES:  # instead of those it was loaded with
            known = {name: fact for name, fact in known.items() if name not in _CLASSES}
        known.update(given)
        asked = sorted(known.keys() & _CLASSES)
        if asked and not hasattr(module, "logit_scale"):
            raise ModelError(f"{type(module).__name__} has classes of its own; {asked[0]}= is for zero-shot models")
        return _view_class(module, bool(given.get("headless")))(module, **known)  # type: ignore[no-any-return]

    def load(
        self,
        name: str,
        *,
        pretrained: bool | None = None,
        checkpoint: str | Path | None = None,
        num_classes: int | None = None,
        img_size: int | tuple[int, int] | None = None,
        prompts: list[str] | None = None,
        text_embeds: Any = None,
        **build: Any,
    ) -> nn.Module:
        """Build the model of a repository ``owner/name`` or of a folder, never running code from there.

        With its own weights by default, with ``checkpoint`` if given, else (``pretrained=False``) untrained from the
        configuration alone. ``prompts`` or ``text_embeds`` are the classes of a zero-shot model. Other options go to
        the configuration.
        """

        model, facts = load(name, pretrained, checkpoint, num_classes, img_size, build)
        classes = {"prompts": prompts, "text_embeds": text_embeds}
        _remembered[model] = {**facts, **{key: value for key, value in classes.items() if value is not None}}
        return model  # type: ignore[no-any-return]

    def models(self) -> Iterable[ModelInfo]:
        return tuple(ModelInfo(f"hf/{repo}", "hf", size, ()) for repo, size in _KNOWN.items())


ADAPTER = HFAdapter()


def _view_class(module: nn.Module, headless: bool) -> Any:
    """Return the view for the class of a model, or for the class of transformers that it extends."""
    known = _VIEWS | (_TOWERS if headless else {})
    for kind in type(module).__mro__:
        if kind.__module__.startswith("transformers.") and kind.__name__ in known:
            home, _, name = known[kind.__name__].partition(":")
            return getattr(importlib.import_module(f"vitreous.models.adapters.{home}"), name)
    raise UnknownError(f"transformers' {type(module).__name__} is not supported; supported: {', '.join(_VIEWS)}")
