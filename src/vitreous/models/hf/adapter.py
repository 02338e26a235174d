"""Hugging Face transformers: names, classes and what they come with. The package is imported when a model is loaded.

The views are in ``vit.py``, ``swin.py`` and ``clip.py``; they are found by the name of the model's class, so
that looking at a model of another library imports neither them nor transformers. What a repository holds beside the
weights (preprocessing, tokenizer) is remembered for the module it was loaded with.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from vitreous.errors import ModelError, UnknownError
from vitreous.models.registry import ModelInfo
from vitreous.models.view import View

__all__ = ["ADAPTER", "HFAdapter"]

_VIEWS = {
    "ViTForImageClassification": "vit:HFViT",
    "DeiTForImageClassification": "vit:HFViT",
    "DeiTForImageClassificationWithTeacher": "vit:HFViT",
    "Dinov2ForImageClassification": "vit:HFDinov2",
    "Dinov2WithRegistersForImageClassification": "vit:HFDinov2",
    "SwinForImageClassification": "swin:HFSwin",
    "CLIPModel": "clip:HFZeroShot",
    "SiglipModel": "clip:HFZeroShot",
    "CLIPForImageClassification": "clip:HFTower",
    "SiglipForImageClassification": "clip:HFTower",
}
"""Where the view of each class of model lives."""

_TOWERS = {
    "ViTModel": "vit:HFViT",
    "DeiTModel": "vit:HFViT",
    "Dinov2Model": "vit:HFDinov2",
    "Dinov2WithRegistersModel": "vit:HFDinov2",
    "SwinModel": "swin:HFSwin",
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

    def view(self, module: nn.Module, **facts: Any) -> View:
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
        from vitreous.models.hf.load import load

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
            return getattr(importlib.import_module(f"vitreous.models.hf.{home}"), name)
    raise UnknownError(f"transformers' {type(module).__name__} is not supported; supported: {', '.join(_VIEWS)}")
