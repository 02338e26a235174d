"""Hugging Face's CLIP and SigLIP: zero-shot, where the classes are prompts, and with a trained classifier.

Zero-shot logits are ``exp(scale) cos(image, text) (+ bias)``. The text tower runs once, when the view is made; what is
explained is how the image came near a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models.adapters.hf_vit import HALVES, HFModel
from vitreous.models.preprocess import Preprocess
from vitreous.models.shared_copy import copy_structure

__all__ = ["HFTower", "HFZeroShot"]

CLIP = Preprocess(mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711), crop=1.0)
"""What CLIP's image processor does unless told otherwise."""


class HFTower(HFModel):
    """``CLIPForImageClassification`` and ``SiglipForImageClassification``: a linear head on the mean of the patches.

    CLIP's mean is taken before the last norm, which has no part in it; SigLIP's after it.
    """

    places: ClassVar = {"norm1": ("layer_norm1",), "attn": ("self_attn",), "norm2": ("layer_norm2",), "mlp": ("mlp",)}

    def _tower(self) -> Any:
        self._siglip = not hasattr(self.module.vision_model, "pre_layrnorm")
        self.usual = HALVES if self._siglip else CLIP  # type: ignore[misc]
        return self.module.vision_model

    def _reading(self) -> tuple[int, str]:
        return 0 if self._siglip else 1, "avg"

    def _refuse_unseen_attention(self) -> None:
        super()._refuse_unseen_attention()
        attention = self.tower.encoder.layers[0].self_attn
        if hasattr(attention, "_shape") and self.tower.config._attn_implementation == "eager":
            raise ModelError(
                f"{self.name}: the written-out attention of this old transformers has no axis for its heads; "
                'load it with attn_implementation="sdpa"'
            )

    def embed(self, inputs: Tensor) -> Tensor:
        tokens = super().embed(inputs)
        return tokens if self._siglip else self.tower.pre_layrnorm(tokens)

    def forward_head(self, tokens: Tensor) -> Tensor:
        if self._siglip:
            tokens = self.tower.post_layernorm(tokens)
        return self.module.classifier(tokens[:, self.num_prefix_tokens :].mean(dim=1))  # type: ignore[no-any-return]

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        if layer is None:
            return {"attention": 0, "norm": int(self._siglip), "activation": 0}
        return super().operation_counts(layer)


class HFZeroShot(HFTower):
    """``CLIPModel`` and ``SiglipModel`` with the classes they are asked about.

    ``prompts`` with their ``tokenizer`` (known if the model was loaded by name), or ``text_embeds [classes, width]``
    from elsewhere with ``labels``. Prompts are their own labels.
    """

    def __init__(
        self,
        model: Any,
        name: str | None = None,
        class_names: list[str] | None = None,
        preprocess: Preprocess | None = None,
        img_size: int | tuple[int, int] | None = None,
        prompts: Sequence[str] | None = None,
        tokenizer: Any = None,
        text_embeds: Tensor | None = None,
    ) -> None:
        self._given = prompts, tokenizer, text_embeds
        super().__init__(model, name, class_names, preprocess, img_size)
        del self._given

    def _reading(self) -> tuple[int, str]:
        if not self._siglip:
            return 1, "token"
        if not getattr(self.tower, "use_head", True):
            raise ModelError(f"{self.name} has no pooling head, so that images and prompts cannot be compared")
        return 0, "map"

    def _classes(self) -> int:
        prompts, tokenizer, text = self._given
        self._prompts = None if prompts is None else [str(prompt) for prompt in _several(prompts)]
        if text is None:
            text = self._read(self._prompts, tokenizer)
        if not isinstance(text, Tensor) or text.ndim != 2 or not len(text) or not torch.isfinite(text).all():
            raise ModelError(f"{self.name}: text_embeds must be finite numbers [classes, width]")
        if text.shape[1] != self._text_width:
            raise ModelError(f"{self.name}: text_embeds are {text.shape[1]} wide, images {self._text_width}")
        text = text.detach().to(self.device, self.dtype)
        self.text = text / text.norm(p=2, dim=-1, keepdim=True)
        return len(text)

    @property
    def _text_width(self) -> int:
        return int(self.embed_dim if self._siglip else self.module.visual_projection.out_features)

    def _labels(self, classes: int) -> list[str] | None:
        return self._prompts

    def _read(self, prompts: list[str] | None, tokenizer: Any) -> Tensor:
        """Run the text tower; SigLIP was trained on prompts padded to their full length, without a mask."""
        if not prompts:
            raise ModelError(
                f"{self.name} has no classes of its own; give prompts=[…], or text_embeds= with class_names="
            )
        if tokenizer is None:
            raise ModelError(f"{self.name} needs tokenizer= to read prompts (or load it by name), or text_embeds=")
        longest = self.module.text_model.config.max_position_embeddings
        if self._siglip:
            words = tokenizer(prompts, padding="max_length", max_length=longest, return_tensors="pt")
            words = {"input_ids": words["input_ids"]}
        else:
            words = tokenizer(prompts, padding=True, return_tensors="pt")
            words = {key: words[key] for key in ("input_ids", "attention_mask")}
        if words["input_ids"].shape[1] > longest:
            raise ModelError(f"{self.name}: a prompt is longer than the {longest} pieces that its text tower reads")
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            encoded = copy_structure(self.module).get_text_features(
                **{key: value.to(self.device) for key, value in words.items()}
            )
        return encoded if isinstance(encoded, Tensor) else encoded.pooler_output

    # -- the head --------------------------------------------------------------------------------------

    def forward_head(self, tokens: Tensor) -> Tensor:
        if self._siglip:
            image = self.tower.head(self.tower.post_layernorm(tokens))
        else:
            image = self.module.visual_projection(self.tower.post_layernorm(tokens[:, 0, :]))
        return self._compare(image)

    def get_pooling_module(self) -> nn.Module | None:
        return self.tower.head if self._siglip else None

    def reference_forward(self, inputs: Tensor) -> Tensor:
        image = self.module.get_image_features(pixel_values=inputs, **self._interpolated(inputs))
        return self._compare(image if isinstance(image, Tensor) else image.pooler_output)

    def _compare(self, image: Tensor) -> Tensor:
        image = image / image.norm(p=2, dim=-1, keepdim=True)
        # classes first in the product, as the model has it; images first in all that follows, as rules count on it
        logits = torch.matmul(self.text.to(image), image.t()).t() * self.module.logit_scale.exp()
        return logits + self.module.logit_bias if self._siglip else logits  # type: ignore[no-any-return]

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        if layer is None and self._siglip:
            return {"attention": 1, "norm": 3, "activation": 1}  # the length of the image's vector is a norm too
        return {"attention": 0, "norm": 2, "activation": 0} if layer is None else super().operation_counts(layer)


def _several(prompts: Sequence[str]) -> Sequence[str]:
    return [prompts] if isinstance(prompts, str) else prompts
