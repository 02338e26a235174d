"""Names and weights of timm's models: one adapter, which gives each module the view of its family."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import timm
from torch import nn

from vitreous.errors import ModelError, nearest
from vitreous.models.checkpoint import Checkpoint, classes_in, fit
from vitreous.models.hub import reachable
from vitreous.models.registry import ModelInfo
from vitreous.models.timm.beit import TimmBeit
from vitreous.models.timm.common import TimmView
from vitreous.models.timm.conv import TimmConv
from vitreous.models.timm.eva import TimmEva
from vitreous.models.timm.swin import TimmSwin, TimmSwinV2
from vitreous.models.timm.vit import TimmViT
from vitreous.models.view import View

__all__ = ["ADAPTER", "TimmAdapter"]

Family = type[TimmView] | type[TimmConv]
_FAMILIES: tuple[Family, ...] = (TimmViT, TimmBeit, TimmEva, TimmSwin, TimmSwinV2, TimmConv)


class TimmAdapter:
    """Every supported timm family under one prefix."""

    prefix = "timm"

    def accepts(self, module: nn.Module) -> bool:
        return _family(module) is not None

    def view(self, module: nn.Module, **facts: Any) -> View:
        family = _family(module)
        if family is None:
            raise ModelError(f"{type(module).__name__} is of no timm family that is known here")
        return family(module, **facts)

    def load(
        self,
        name: str,
        *,
        pretrained: bool | None = None,
        checkpoint: str | Path | None = None,
        num_classes: int | None = None,
        img_size: int | tuple[int, int] | None = None,
        **build: Any,
    ) -> nn.Module:
        """Build a model: with the hub's weights by default, with ``checkpoint`` if given, else untrained.

        It has ``num_classes`` classes, or those of the checkpoint's head, or its own.
        """
        if ":" not in name and not timm.is_model(name):
            raise ModelError(f"unknown model 'timm/{name}'{nearest('timm/' + name, (m.name for m in self.models()))}")
        if pretrained is None:
            pretrained = checkpoint is None
        found = None if checkpoint is None else Checkpoint.read(checkpoint)
        if found is not None and num_classes is None:
            num_classes = classes_in(found.tensors)
        given = {"num_classes": num_classes, "img_size": img_size, **build}
        options = {key: value for key, value in given.items() if value is not None}
        any_size = name.partition(".")[0] in _any_size()
        size = options.pop("img_size", None) if any_size else None
        model = _create(name, pretrained, options)
        if size is not None:  # it takes any size, so that nothing else knows which is meant
            model.image_size = size if isinstance(size, tuple) else (size, size)  # type: ignore[assignment]
        if found is not None:
            family = _family(model)
            fit(model, found, None if family is None else family.convert)
        return model.eval()

    def models(self) -> Iterable[ModelInfo]:
        return _models()


ADAPTER = TimmAdapter()


def _family(module: nn.Module) -> Family | None:
    return next((family for family in _FAMILIES if isinstance(module, family.accepts)), None)


def _create(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    if pretrained and ":" not in name and not reachable("timm/*"):
        raise ModelError(
            f"could not fetch the weights of timm/{name}: the model hub cannot be reached; "
            "give checkpoint=FILE, or pretrained=False for an untrained model"
        )
    try:
        return timm.create_model(name, pretrained=pretrained, **options)  # type: ignore[no-any-return]
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        if pretrained:
            raise ModelError(
                f"could not fetch the weights of timm/{name} ({reason[0][:160]}); "
                "give checkpoint=FILE, or pretrained=False for an untrained model"
            ) from error
        raise ModelError(f"could not build timm/{name} with {options}: {reason[0][:200]}") from error


@cache
def _any_size() -> frozenset[str]:
    """The names of models that are built for no size."""
    return frozenset(name for module in TimmConv.modules for name in timm.list_models(module=module))


@cache
def _models() -> tuple[ModelInfo, ...]:
    names = [
        name
        for family in _FAMILIES
        for module in family.modules
        for name in timm.list_models(module=module)
        if not any(part in f"{name}_" for part in family.left_out)
    ]
    tags: dict[str, list[str]] = {name: [] for name in names}
    for full in timm.list_pretrained("*"):
        arch, _, tag = full.partition(".")
        if arch in tags:
            tags[arch].append(tag)
    return tuple(ModelInfo(f"timm/{name}", "timm", _size(name), tuple(tags[name])) for name in sorted(names))


def _size(name: str) -> int | None:
    config = timm.get_pretrained_cfg(name)
    return int(config.input_size[-1]) if config is not None else None
