"""Hugging Face's plain vision transformers: ViT, DeiT (also distilled), DINOv2 (also with registers)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitreous.models.hf.common import IMAGENET, HFView

__all__ = ["HFDinov2", "HFViT"]


class HFViT(HFView):
    """``ViTForImageClassification``, ``DeiTForImageClassification`` and the latter ``WithTeacher``.

    DeiT always has a distillation token; only the model with a teacher also reads it, and its logits are the mean of
    two heads.
    """

    places: ClassVar = {
        "norm1": ("layernorm_before",),
        "attn": ("attention",),
        "norm2": ("layernorm_after",),
        "mlp": ("mlp", "output.dropout"),  # transformers 4 adds the residual stream inside ``output``
    }

    @property
    def _distilled(self) -> bool:
        return hasattr(self.model, "distillation_classifier")

    def _reading(self) -> tuple[int, str]:
        prefix = 2 if hasattr(self.tower.embeddings, "distillation_token") else 1
        return prefix, "pair" if self._distilled else "token"

    def _heads(self) -> list[Any]:
        if self._distilled:
            return [self.model.cls_classifier, self.model.distillation_classifier]
        return super()._heads()

    def finish(self, tokens: Tensor) -> Tensor:
        tokens = self.tower.layernorm(tokens)
        logits = [head(tokens[:, row, :]) for row, head in enumerate(self._heads())]
        return logits[0] if len(logits) == 1 else (logits[0] + logits[1]) / 2  # type: ignore[no-any-return]


class HFDinov2(HFView):
    """``Dinov2ForImageClassification``, also with registers: the head reads the class token beside the patches' mean.

    Images of any size are taken, in whole patches. Older versions of transformers average the registers together with
    the patches; the logits follow the version that is installed, the read-out row is that of the patches.
    """

    usual = IMAGENET
    any_size = True
    places: ClassVar = {"norm1": ("norm1",), "attn": ("layer_scale1",), "norm2": ("norm2",), "mlp": ("layer_scale2",)}

    def _reading(self) -> tuple[int, str]:
        registers = getattr(self.tower.embeddings, "register_tokens", None)
        prefix = 1 if registers is None else 1 + registers.shape[1]
        names = inspect.unwrap(type(self.model).forward).__code__.co_names
        self._averaged = prefix if "num_register_tokens" in names else 1
        return prefix, "token_avg"

    def finish(self, tokens: Tensor) -> Tensor:
        tokens = self.tower.layernorm(tokens)
        read = torch.cat([tokens[:, 0], tokens[:, self._averaged :].mean(dim=1)], dim=1)
        return self.model.classifier(read)  # type: ignore[no-any-return]

    def calls(self, layer: int | None) -> Mapping[str, int]:
        if layer is None or not self.tower.config.use_swiglu_ffn:
            return super().calls(layer)
        return {"attention": 1, "norm": 2, "activation": 0, "gate": 1}
