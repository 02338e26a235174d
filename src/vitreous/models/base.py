"""A ``VisionModel``: a model, unmodified, plus the few facts and verbs everyone needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from vitreous.code_digest import is_external
from vitreous.errors import ModelError, TargetError
from vitreous.models.checkpoints import Recipe
from vitreous.models.class_names import check_index, find_label, short_label
from vitreous.models.identity import ModelIdentity, Snapshot
from vitreous.models.pooling import Pooling, infer_pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.shared_copy import copy_structure, verify
from vitreous.models.structure import Weights, Windows

if TYPE_CHECKING:
    from vitreous.models.submodels import LogitLens, PermutedHeadModel, SubModel

__all__ = ["VisionModel"]

V = TypeVar("V", bound="VisionModel")


class VisionModel(ABC):
    """What the rest of the house may know about a model.

    The three verbs satisfy ``finish(run(embed(x))) == model(x)``. Layers are 0-based and ranges half-open:
    ``run(tokens, start, stop)`` applies blocks ``start .. stop - 1``. Adapters subclass this, one file per
    family; nobody else learns an architecture's name.
    """

    module: nn.Module
    name: str
    family: str
    depth: int
    embed_dim: int
    num_heads: int
    num_prefix_tokens: int
    pooling: Pooling
    preprocess: Preprocess
    num_classes: int
    class_names: list[str] | None = None
    can_drop_tokens: bool = True
    """Whether patch tokens can be left out without touching the model."""
    attention: str = "global"
    """Where attention reaches: ``everywhere`` (a matrix between all tokens), inside ``windows``, or ``nowhere``."""
    has_patch_embedding: bool = True
    """Whether what comes before the first block makes tokens of patches; otherwise its first layer is just a layer."""
    has_residual_stream: bool = True
    """Whether all blocks add to one stream of tokens, so that what it says from layer to layer can be summed."""
    is_relu_only: bool = False
    """Whether its activations are ReLUs, beside sigmoids that weigh channels."""
    unavailable_points: Mapping[str, str] = {}
    """Places inside a block that cannot be shown, and why."""
    branch_point: str = "norm1"
    """The place of a block's first norm: what attention gets, or what it adds where the norm ends the branch."""
    cam_point: str = "norm1"
    """Where class activation maps look in the last block: the last place whose patches still reach every logit."""
    stages: tuple[range, ...] = ()
    """The layers of each stage of a hierarchical model; empty where all layers share one grid."""
    has_known_head: bool = True
    """Whether what follows the last block is the family's own: only then is its content declared (``calls(None)``)."""
    builder_digest: str = ""
    """A digest of the code that built the model, where that is not of Vitreous."""
    load_recipe: Recipe | None = None
    """How it was loaded; ``None`` for a model that was in hand."""
    source_model: VisionModel | None = None
    """The user's view, where this is a twin of it: hooks and flags on a twin's modules are nobody else's."""
    declared_pooling: Pooling | None = None
    """What the adapter said of the pooling, once it was compared with the model."""
    identity_extras: tuple[Any, ...] = ()
    """What this view takes of its model, where another view of the same class could take something else."""
    deviations: Mapping[str, str] = {}
    """Where the model is not as its library built it, and how: path to hook, adapter or class. Read by ``prove``."""
    deviating_layers: frozenset[int] = frozenset()
    """The blocks in which that is so."""

    # -- the three verbs -------------------------------------------------------------------------------

    @abstractmethod
    def embed(self, inputs: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` to tokens ``[B, N, D]`` as they enter block 0."""

    @abstractmethod
    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        """Apply one block; ``keep`` tells which patches the tokens are, where some were left out."""

    @abstractmethod
    def forward_head(self, tokens: Tensor) -> Tensor:
        """Tokens after the last block to logits ``[B, classes]``."""

    def forward_blocks(
        self, tokens: Tensor, start: int = 0, stop: int | None = None, keep: Tensor | None = None
    ) -> Tensor:
        """Apply blocks ``start .. stop - 1``; after ``pick`` pass the same ``keep``: blocks may know positions."""
        for layer in range(start, self.depth if stop is None else stop):
            tokens = self.forward_block(layer, tokens, keep)
        return tokens

    # -- facts about places ----------------------------------------------------------------------------

    @abstractmethod
    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        """Rows and columns of patches at a layer, for these inputs (for the model's own size if ``None``).

        Without a layer, the grid that images are cut into: that of the first block, unless a family says otherwise.
        """

    def last_grid(self, inputs: Tensor | None = None) -> tuple[int, int]:
        """Rows and columns of what leaves the last block."""
        return self.grid(inputs, self.depth - 1)

    def hook_point(self, layer: int, name: str) -> nn.Module:
        """Return the module of a block whose output is called ``name``, one of ``sites``."""
        if name not in self.hook_points:
            why = self.unavailable_points.get(name, f"it has {', '.join(self.hook_points)}")
            raise ModelError(f"{self.name} cannot show {name} of block {layer}: {why}")
        return self._hook_point(layer, name)

    @abstractmethod
    def _hook_point(self, layer: int, name: str) -> nn.Module:
        """Return that module, for a name that the family can show.

        The names are ``norm1``, ``attn``, ``norm2`` and ``mlp``; ``attn`` and ``mlp`` are the vectors added to the
        residual stream, LayerScale included.
        """

    @property
    def hook_points(self) -> tuple[str, ...]:
        """The places inside a block that can be shown."""
        return tuple(name for name in ("norm1", "attn", "norm2", "mlp") if name not in self.unavailable_points)

    @abstractmethod
    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        """How often each kind of rule must match inside a block, or inside ``finish`` for ``None``.

        The kinds are ``attention``, ``norm`` and ``activation``. A pass that steers the backward compares what
        it saw with this, so that an operation nobody recognised cannot go unnoticed.
        """

    def get_block(self, layer: int) -> nn.Module:
        """Return the module of a block, which gets tokens and gives tokens."""
        raise ModelError(f"{self.name} does not tell its blocks, so that nothing around it can be looked through")

    def get_pooling_module(self) -> nn.Module | None:
        """Return the module that pools by attention, where there is one."""
        return None

    def embed_dim_at(self, layer: int) -> int:
        """Return the length of the token vectors that enter a block."""
        return self.embed_dim

    def windows(self, layer: int) -> Windows | None:
        """Return which patches of ``grid(layer=layer)`` see each other, where that is not all of them."""
        return None

    def is_standard(self, layer: int) -> bool:
        """Whether a block is as its library built it, so that what is known of its class holds without a test."""
        return layer not in self.deviating_layers

    def branch(self, layer: int, name: str) -> tuple[nn.Module, Tensor | None]:
        """Return the module whose output, times a gain if there is one, ``attn`` or ``mlp`` adds to the stream."""
        return self.hook_point(layer, name), None

    def describe_deviation(self, layer: int) -> str:
        """Say where a block is not as its library built it, and how."""
        if self.is_standard(layer):
            return "its own code"
        modules = {id(part) for part in self.get_block(layer).modules()}
        told = [f"{why} at {path}" for path, why in self.deviations.items() if self._has(path, modules)]
        return ", ".join(told[:3]) + (", …" if len(told) > 3 else "")

    def _has(self, path: str, modules: set[int]) -> bool:
        return id(self.module.get_submodule(path)) in modules

    @property
    def has_own_pooling(self) -> bool:
        """Whether only the adapter can tell how tokens are pooled: one of another package, or one without tokens."""
        return self.attention == "none" or is_external(type(self))

    def read_pooling(self) -> Pooling | None:
        """Return how tokens are pooled, as the model does it now; ``None`` where nothing depends on any token."""
        if self.declared_pooling is None:
            self.declared_pooling = self.pooling
        return infer_pooling(self, self.declared_pooling)

    def weights(self, layer: int) -> Weights:
        """Return how attention's values reach the residual stream: only methods that cut it into shares ask."""
        raise ModelError(f"{self.name} does not tell its projections, so that its stream cannot be cut into shares")

    # -- what follows from them ------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.module.parameters()).dtype

    def logits(self, inputs: Tensor, keep: Tensor | None = None) -> Tensor:
        """Bare forward in evaluation mode and the model's own precision, without gradients.

        With ``keep``, patch indices ``[B, k]``, only those patch tokens are run; prefix tokens always stay.
        """
        inputs = self.cast(inputs)
        self.verify(inputs)
        seen = self.shared_copy()
        with torch.autocast(inputs.device.type, enabled=False), torch.no_grad():
            tokens = seen.embed(inputs)
            if keep is not None:
                keep = keep.to(tokens.device)
                tokens = seen.select_tokens(tokens, keep)
            return seen.forward_head(seen.forward_blocks(tokens, keep=keep))

    def shared_copy(self: V, own_tensors: bool = False) -> V:
        """Return this view of a structural copy of its model, in evaluation mode, that shares the weights.

        With ``own_tensors`` it shares no buffer; otherwise it does, but for those that a forward is known to write.
        Everything that runs the model does so on a twin of its own: the user's modules are never touched.
        """
        if self.source_model is not None:
            return self
        copied = copy_structure(self, VisionModel, own_tensors=own_tensors)
        copied.source_model = self
        return copied

    def verify(self, inputs: Tensor) -> None:
        """Refuse a model whose own forward says something else than this view: tried once, on the first inputs."""
        if self.source_model is None:
            self._check_values(inputs)
            verify(self, inputs)

    @property
    def identity(self) -> ModelIdentity:
        """What its numbers depend on beside the inputs; every byte of the weights is read."""
        return Snapshot(self).identity

    def snapshot(self) -> Snapshot:
        """Return what the model is now, for a result in memory; its weights are read when the identity is asked for."""
        return Snapshot.of_result(self)

    @property
    def fingerprint(self) -> str:
        """The identity in one text: digests of weights, structure and preprocessing, and of code after a plus."""
        return str(self.identity)

    def select_tokens(self, tokens: Tensor, keep: Tensor) -> Tensor:
        """Return the prefix tokens and the patch tokens ``keep`` (``[B, k]``), each with the position it had."""
        if not self.can_drop_tokens:
            raise ModelError(
                f"{self.name} cannot leave tokens out: its layers need the whole grid; mask their embeddings instead"
            )
        patches = tokens.shape[1] - self.num_prefix_tokens
        whole = keep.dtype in (torch.int64, torch.int32, torch.int16, torch.uint8)
        if keep.ndim != 2 or keep.shape[0] != tokens.shape[0] or not whole:
            given = f"{list(keep.shape)} of {keep.dtype}"
            raise ModelError(f"keep must be integer patch indices [{tokens.shape[0]}, k], got {given}")
        wrong = keep[(keep < 0) | (keep >= patches)]
        if wrong.numel():
            raise ModelError(f"keep holds patch {int(wrong[0])}, outside 0..{patches - 1}")
        keep = keep.long()
        index = (keep + self.num_prefix_tokens).unsqueeze(-1).expand(-1, -1, tokens.shape[-1])
        return torch.cat([tokens[:, : self.num_prefix_tokens], tokens.gather(1, index)], dim=1)

    def wrap_in(self, module: nn.Module, path: str, **facts: Any) -> VisionModel:
        """Return the view of a larger model that has this one's at ``path``; what is around it runs as it is."""
        from vitreous.models.custom import WrappedModel

        return WrappedModel(module, self, path, **facts)

    def suffix(self, layer: int, inputs: Tensor | None = None) -> SubModel:
        """Return the sub-network that starts at block ``layer``; its inputs are tokens, its outputs logits.

        With the tokens kept, this is also the cached prefix: run the first blocks once, explain the rest often.
        ``inputs`` tells the size of the images where the model takes any.
        """
        from vitreous.models.submodels import SubModel

        return SubModel(self, layer, inputs)

    def logit_lens(self, layer: int, each: bool = False) -> LogitLens:
        """Return one block alone, its output read by the model's own head: on the mean token, or on each (``each``)."""
        from vitreous.models.submodels import LogitLens

        return LogitLens(self, layer, each)

    def permute_head(self, seed: int = 0) -> PermutedHeadModel:
        """Return this view with its head shuffled: all that ``finish`` does gets the channels in a random order.

        This is the head with its weights dealt out anew among the channels; the model itself is not touched.
        """
        from vitreous.models.submodels import PermutedHeadModel

        return PermutedHeadModel(self, seed)

    def reference_forward(self, inputs: Tensor) -> Tensor:
        """Run the model's own forward and return its logits: what ``finish(run(embed(x)))`` must equal."""
        output = self.module(inputs)
        return output if isinstance(output, Tensor) else output.logits

    def cast(self, inputs: Tensor) -> Tensor:
        """Move inputs to the model's device and dtype."""
        self._check_values(inputs)
        return inputs.to(self.device, self.dtype)

    def _check_values(self, inputs: Tensor) -> None:
        """Refuse what has no values, and a model of images that are not in three colours."""
        if self.device.type == "meta":
            raise ModelError(f"{self.name} has no weights: it is on the meta device; load them first")
        if inputs.is_meta:
            raise ModelError("the inputs have no values: they are on the meta device")
        if self.attention != "none":
            first = next((module for module in self.module.modules() if isinstance(module, nn.Conv2d)), None)
            is_patches = first is not None and first.kernel_size == first.stride
            if first is not None and is_patches and first.in_channels != 3:
                raise ModelError(f"{self.name} takes images of {first.in_channels} channels; only 3 are supported")

    def check_inputs(self, inputs: Tensor) -> None:
        """Refuse inputs that the model cannot take, by name and shape."""
        self._check_values(inputs)
        height, width = self.preprocess.size
        if inputs.ndim != 4 or inputs.shape[1] != 3:
            raise ModelError(f"{self.name} takes images [B, 3, {height}, {width}], got {list(inputs.shape)}")
        if inputs.shape[0] == 0:
            raise ModelError("the batch is empty")
        if not inputs.is_floating_point():
            raise ModelError(f"the inputs are {inputs.dtype}; give normalised images in floating point")
        if not torch.isfinite(inputs).all():
            raise ModelError("the inputs contain values that are not finite")

    def class_index(self, word: int | str) -> int:
        """Return the class index of an index, a label or a synonym."""
        if isinstance(word, bool) or not isinstance(word, int | str):
            raise TargetError(f"{word!r} is neither a class index nor a label")
        outputs = max(self.num_classes, 2)  # a head of one logit tells two classes apart
        return find_label(word, self.class_names, outputs) if isinstance(word, str) else check_index(word, outputs)

    def label(self, index: int) -> str:
        """Return the first name of a class, or ``"class i"`` where the model has no names."""
        return (
            short_label(self.class_names[index])
            if self.class_names and index < len(self.class_names)
            else f"class {index}"
        )

    def total_operations(self, start: int = 0) -> Counter[str]:
        """Return the declared rule matches of blocks ``start ..`` and ``finish`` together."""
        total: Counter[str] = Counter(self.operation_counts(None))
        for layer in range(start, self.depth):
            total.update(self.operation_counts(layer))
        return total

    def __repr__(self) -> str:
        height, width = self.grid()
        return (
            f"View({self.name}: {self.depth} blocks, {height}x{width} patches, {self.num_prefix_tokens} prefix tokens, "
            f"{self.pooling.kind} pooling, {self.num_classes} classes)"
        )
