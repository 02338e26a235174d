"""What the views of all timm families share: facts from timm's configuration, refusals, and plain columns of blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar

import timm.data
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from vitreous.errors import HeadError, ModelError
from vitreous.models.base import VisionModel
from vitreous.models.class_names import check_count
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.structure import Weights
from vitreous.models.transforms import timm_preprocess

__all__ = ["TimmColumn", "TimmModel", "norms"]

_WEIGHT_NORMS = parametrizations.__name__
_SCALES = {"attn": ("ls1", "gamma_1"), "mlp": ("ls2", "gamma_2")}
"""Where a block keeps LayerScale: a module in some families, a parameter in others."""


class TimmModel(VisionModel):
    """A timm model: name, labels and preprocessing are read from its configuration.

    A family is one subclass in one file. It says which classes it takes (``accepts``), in which timm modules their
    names are listed (``modules``, less those that contain a word of ``left_out``), which blocks it understands
    (``parts``), and how foreign checkpoints of the family become timm's (``convert``).
    """

    family = "timm"
    module: Any  # torch types the attributes of a module as tensors
    accepts: ClassVar[tuple[type[nn.Module], ...]]
    modules: ClassVar[tuple[str, ...]]
    left_out: ClassVar[tuple[str, ...]] = ()
    parts: ClassVar[tuple[tuple[type[nn.Module], type[nn.Module]], ...]]
    """Pairs of block and attention."""
    wanted: ClassVar[str]
    """Those pairs, in words."""
    convert: ClassVar[Callable[[dict[str, Tensor], nn.Module], dict[str, Tensor]]]

    def __init__(
        self,
        model: nn.Module,
        name: str | None = None,
        class_names: list[str] | None = None,
        preprocess: Preprocess | None = None,
        headless: bool = False,
    ) -> None:
        config = getattr(model, "pretrained_cfg", None) or {}
        self.module = model
        self.name = name or f"timm/{config.get('architecture') or type(model).__name__}"
        self._refuse_unknown_parts()
        self.has_known_head = not headless
        self.depth = len(self._blocks)
        self.num_heads = max(block.attn.num_heads for block in self._blocks)
        self.embed_dim = self.module.num_features
        self.num_prefix_tokens = getattr(model, "num_prefix_tokens", 0)
        self.pooling = (
            self._pooling()
            if self.has_known_head or self.get_pooling_module()
            else Pooling("avg", self.num_prefix_tokens)
        )
        self.num_classes = 0 if headless else self._outputs()
        self.class_names = class_names or config.get("label_names") or imagenet_labels(self.num_classes)
        check_count(self.name, class_names, self.num_classes)
        if self.class_names is not None and len(self.class_names) < self.num_classes:
            raise ModelError(
                f"{self.name} has {self.num_classes} classes but {len(self.class_names)} labels were given"
            )
        self.preprocess = preprocess or self._preprocess()

    @property
    def _blocks(self) -> list[Any]:
        """The blocks, bottom first."""
        return list(self.module.blocks)

    def _pooling(self) -> Pooling:
        return Pooling(self.module.global_pool or "none", self.num_prefix_tokens)

    def get_block(self, layer: int) -> nn.Module:
        return self._blocks[layer]  # type: ignore[no-any-return]

    def _any_size(self) -> bool:
        """Whether images of another size than the configured one may come."""
        return False

    def _outputs(self) -> int:
        """Return how many classes the head tells apart, whatever the model was built for."""
        heads = self.module.get_classifier()
        heads = heads if isinstance(heads, tuple) else (heads,)
        if any(head is None or isinstance(head, nn.Identity) for head in heads):
            raise ModelError(f"{self.name} has no classifier; give num_classes= and a checkpoint with a head")
        if not all(type(head) is nn.Linear for head in heads):
            raise HeadError(f"{self.name} has a head of its own, {type(heads[0]).__name__}")
        return int(heads[0].out_features)

    def _refuse_unknown_parts(self) -> None:
        for layer, block in enumerate(self._blocks):
            attention = getattr(block, "attn", None)
            if (type(block), type(attention)) not in self.parts:
                raise ModelError(
                    f"{self.name}: block {layer} is a {type(block).__name__} with {type(attention).__name__}; "
                    f"only {self.wanted} are supported"
                )
        if 0 in self.module.patch_embed.grid_size:
            size, patch = self.module.patch_embed.img_size, self.module.patch_embed.patch_size
            raise ModelError(f"{self.name}: an image of {size} holds no patch of {patch}")

    def _preprocess(self) -> Preprocess:
        config = timm.data.resolve_model_data_config(self.module)
        size = self.module.patch_embed.img_size
        return timm_preprocess(config if size is None else {**config, "input_size": (3, *size)})

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        embed, given = self.module.patch_embed, tuple(inputs.shape[-2:])
        size = tuple(embed.img_size or self.preprocess.size)
        if given != size and not self._any_size():
            raise ModelError(f"{self.name} takes images [B, 3, {size[0]}, {size[1]}], got {list(inputs.shape)}")
        if any(side % patch for side, patch in zip(given, embed.patch_size, strict=True)) and not embed.dynamic_img_pad:
            raise ModelError(f"{self.name}: an image of {given} cannot be cut into patches of {embed.patch_size}")


class TimmColumn(TimmModel):
    """A timm model whose blocks stand in one column and see all tokens: ViT, BEiT, EVA."""

    wanted = "pre-norm blocks with plain attention"

    def forward_head(self, tokens: Tensor) -> Tensor:
        return self.module.forward_head(self.module.norm(tokens))  # type: ignore[no-any-return]

    def get_pooling_module(self) -> nn.Module | None:
        return getattr(self.module, "attn_pool", None)

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        height, width = self.module.patch_embed.grid_size
        return int(height), int(width)

    @property
    def unavailable_points(self) -> Mapping[str, str]:  # type: ignore[override]
        block = self.module.blocks[0]
        hidden = [name for name, (_, parameter) in _SCALES.items() if getattr(block, parameter, None) is not None]
        return dict.fromkeys(hidden, "its LayerScale is a parameter, not a module")

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        block = self.module.blocks[layer]
        module, _ = _SCALES.get(name, ("", ""))
        scaled = getattr(block, module, None)
        point: nn.Module = getattr(block, name) if scaled is None or isinstance(scaled, nn.Identity) else scaled
        return point

    def branch(self, layer: int, name: str) -> tuple[nn.Module, Tensor | None]:
        if name not in self.unavailable_points:
            return super().branch(layer, name)
        block = self.module.blocks[layer]
        return getattr(block, name), getattr(block, _SCALES[name][1])

    def weights(self, layer: int) -> Weights:
        block = self.module.blocks[layer]
        if getattr(block.attn, "gate", None) is not None:
            raise ModelError(f"{self.name} gates what attention brings, so that its stream cannot be cut into shares")
        scales = [getattr(block, module, getattr(block, vector, None)) for module, vector in _SCALES.values()]
        inner = getattr(block.attn, "norm", None)
        return Weights.of(block.norm1, block.attn.proj, block.norm2, inner=inner, scales=(scales[0], scales[1]))

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        if layer is None:
            pool = getattr(self.module, "attn_pool", None)
            pools = [] if pool is None else [pool]
            return {
                "attention": len(pools),
                "norm": norms(self.module.norm, self.module.fc_norm, *pools),
                "activation": sum(each.mlp is not None for each in pools),
            }
        block = self.module.blocks[layer]
        gated_mlp = hasattr(block.mlp, "gate_last") or hasattr(block.mlp, "fc1_g")
        gated_attention = getattr(block.attn, "gate", None) is not None
        return {
            "attention": 1,
            "norm": norms(block),
            "activation": int(not gated_mlp) + int(gated_attention),
            "gate": int(gated_mlp),
        }


def norms(*parts: nn.Module) -> int:
    """Return how many normalisations these modules hold; torch's ways to normalise a weight are none."""
    kinds = [type(module) for part in parts for module in part.modules()]
    return sum("norm" in kind.__name__.lower() and kind.__module__ != _WEIGHT_NORMS for kind in kinds)


@cache
def imagenet_labels(classes: int) -> list[str] | None:
    subset = timm.data.infer_imagenet_subset({"num_classes": classes})
    return list(timm.data.ImageNetInfo(subset).label_descriptions()) if subset else None
