"""A ``VisionModel``: a model, unmodified, plus the few facts and verbs everyone needs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from vitreous.code_digest import is_external
from vitreous.errors import ModelError, TargetError
from vitreous.models.class_names import check_count, check_index, find_label, short_label
from vitreous.models.identity import ModelIdentity, Snapshot
from vitreous.models.pooling import Pooling, infer_pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.shared_copy import copy_structure, exact_pass, remembered, verify
from vitreous.models.structure import Weights, Windows, count_operations

if TYPE_CHECKING:
    from vitreous.models.checkpoints import LoadRecipe
    from vitreous.models.submodels import LogitLens, PermutedHeadModel, SubModel

V = TypeVar("V", bound="VisionModel")


class VisionModel(ABC):
    """A model, unmodified, plus the few facts and verbs that everyone needs.

    Three verbs take the model apart: ``forward_head(forward_blocks(embed(x))) == model(x)``, which is verified on the
    first inputs. Layers are 0-based and ranges half-open: ``forward_blocks(tokens, start, stop)`` applies blocks
    ``start .. stop - 1``. ``wrap`` and ``load`` return one; an adapter is a subclass, one file for each family.

    Notes
    -----
    The facts:

    - ``module``: the model itself;
    - ``name`` and ``family``: for captions, tables and errors; the family is the adapter's;
    - ``depth``, ``embed_dim``, ``num_heads``: blocks, length of a token vector, attention heads;
    - ``num_prefix_tokens``: tokens before the patches: class token, distillation token, registers;
    - ``pooling``: how the tokens after the last block become one vector, a ``Pooling``;
    - ``preprocess``: how a photograph becomes an input, a ``Preprocess``;
    - ``num_classes``: length of the logits;
    - ``class_names``: names of the classes in the order of their indices, or ``None``.

    Examples
    --------
    >>> inputs = torch.stack([model.preprocess.inputs(image)[0]])
    >>> tokens = model.forward_blocks(model.embed(inputs))
    >>> torch.allclose(model.forward_head(tokens), model.logits(inputs), atol=1e-5)
    True
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
    """Where attention reaches: ``global`` (a matrix between all tokens), ``windowed``, or ``none``."""
    has_patch_embedding: bool = True
    """Whether what comes before the first block makes tokens of patches; otherwise its first layer is just a layer."""
    has_residual_stream: bool = True
    """Whether all blocks add to one stream of tokens, so that what each of them adds can be summed."""
    is_relu_only: bool = False
    """Whether its activations are ReLUs, beside sigmoids that weigh channels."""
    unavailable_points: Mapping[str, str] = {}
    """Hook points inside a block that do not exist, and why."""
    branch_point: str = "norm1"
    """The hook point of a block's first norm: what attention gets, or what it adds where the norm ends the branch."""
    cam_point: str = "norm1"
    """Where class activation maps look in the last block: the last point whose patches still reach every logit."""
    stages: tuple[range, ...] = ()
    """The layers of each stage of a hierarchical model; empty where all layers share one grid."""
    has_known_head: bool = True
    """Whether what follows the last block is the family's own: only then are its operations counted."""
    has_gated_mlp: bool = False
    """Whether the MLP of a block weighs one branch by an activation of another."""
    builder_digest: str = ""
    """A digest of the code that built the model, where that is not of Vitreous."""
    load_recipe: LoadRecipe | None = None
    """How it was loaded; ``None`` for a model that was in hand."""
    source_model: VisionModel | None = None
    """The user's model, where this is a shared copy of it."""
    declared_pooling: Pooling | None = None
    """The pooling that the adapter declares, once it was compared with the model."""
    identity_extras: tuple[Any, ...] = ()
    """What distinguishes this way to take the module apart from another one of the same class."""
    deviations: Mapping[str, str] = {}
    """Where the model is not as its library built it, and how: path to hook, adapter or class."""
    deviating_layers: frozenset[int] = frozenset()
    """The blocks in which that is so."""
    _counts: dict[int | None, Mapping[str, int]] | None = None

    def _set_classes(self, count: int, class_names: list[str] | None, usual: list[str] | None = None) -> None:
        """Set the number and names of classes; ``usual`` names are taken where there are as many, or no head."""
        check_count(self.name, class_names, count)
        self.num_classes = count
        self.class_names = class_names or (usual if usual and count in (0, len(usual)) else None)

    # -- the three verbs -------------------------------------------------------------------------------

    @abstractmethod
    def embed(self, inputs: Tensor) -> Tensor:
        """Return the tokens ``[B, N, D]`` of images ``[B, 3, H, W]``, as they enter block 0."""

    @abstractmethod
    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        """Apply one block; ``keep`` ``[B, k]`` says which patches the tokens are, where some were left out."""

    @abstractmethod
    def forward_head(self, tokens: Tensor) -> Tensor:
        """Return the logits ``[B, classes]`` of tokens after the last block."""

    def forward_blocks(
        self, tokens: Tensor, start: int = 0, stop: int | None = None, keep: Tensor | None = None
    ) -> Tensor:
        """Apply blocks ``start .. stop - 1``.

        Parameters
        ----------
        tokens : Tensor
            ``[B, N, D]`` as they enter block ``start``.
        start, stop : int, default 0 and the depth
            The half-open range of blocks.
        keep : Tensor, optional
            After ``select_tokens`` the same patch indices: blocks may know positions.

        Returns
        -------
        Tensor
            The tokens that leave block ``stop - 1``.
        """
        for layer in range(start, self.depth if stop is None else stop):
            tokens = self.forward_block(layer, tokens, keep)
        return tokens

    # -- facts about layers ----------------------------------------------------------------------------

    @abstractmethod
    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        """Return rows and columns of patches at the input of a layer.

        For these inputs, or for the model's own size. Without a layer, the grid that images are cut into: that of the
        first block, unless a family says otherwise.
        """

    def last_grid(self, inputs: Tensor | None = None) -> tuple[int, int]:
        """Return rows and columns of what leaves the last block."""
        return self.grid(inputs, self.depth - 1)

    def hook_point(self, layer: int, name: str) -> nn.Module:
        """Return the module of a block whose output is called ``name``, one of ``hook_points``."""
        if name not in self.hook_points:
            why = self.unavailable_points.get(name, f"it has {', '.join(self.hook_points)}")
            raise ModelError(f"{self.name} cannot show {name} of block {layer}: {why}")
        return self._hook_point(layer, name)

    @abstractmethod
    def _hook_point(self, layer: int, name: str) -> nn.Module:
        """Return that module, for a name that is available.

        The names are ``norm1``, ``attn``, ``norm2`` and ``mlp``; ``attn`` and ``mlp`` are the vectors added to the
        residual stream, LayerScale included.
        """

    @property
    def hook_points(self) -> tuple[str, ...]:
        """The points inside a block whose values can be recorded."""
        return tuple(name for name in ("norm1", "attn", "norm2", "mlp") if name not in self.unavailable_points)

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        """Return how often each kind of operation runs inside a block, or inside ``forward_head`` for ``None``.

        The kinds are ``attention``, ``norm``, ``activation``, and ``gate`` for the activation of a gated MLP. A pass
        that steers the backward compares what it met with this, so that an operation that it does not recognise cannot
        go unnoticed. Counted once in the autograd graph, for one forward, unless a family declares it.
        """
        if self.source_model is None:
            return self._operation_counts(layer)
        if self._counts is None:
            self._counts = {n: self.source_model.operation_counts(n) for n in (None, *range(self.depth))}
        return self._counts[layer]

    def _operation_counts(self, layer: int | None) -> Mapping[str, int]:
        key = ("operations", type(self), self.identity_extras, self.preprocess.size)
        return remembered(self.module, key, self._count_operations)[layer]

    def _count_operations(self) -> dict[int | None, dict[str, int]]:
        counts: dict[int | None, dict[str, int]] = {None: {}}
        copy = self.shared_copy()
        with exact_pass(self, gradients=True), torch._C.DisableTorchFunction():
            count, width = copy.num_prefix_tokens + math.prod(copy.grid()), copy.embed_dim_at(0)
            tokens = torch.randn(1, count, width, generator=torch.Generator().manual_seed(0))
            tokens = tokens.to(self.device, self.dtype)
            for layer in range(copy.depth):
                output = copy.forward_block(layer, tokens.detach().requires_grad_())
                counts[layer], tokens = count_operations(output, by_hand=True), output
                counts[layer]["attention"] = max(counts[layer]["attention"], int(self.attention != "none"))
                if self.has_gated_mlp:
                    counts[layer] |= {"activation": counts[layer]["activation"] - 1, "gate": 1}
            if self.has_known_head:
                counts[None] = count_operations(copy.forward_head(tokens.detach().requires_grad_()), by_hand=True)
        return counts

    def total_operations(self, start: int = 0) -> Counter[str]:
        """Return the operation counts of blocks ``start ..`` and the head together."""
        return sum((Counter(self.operation_counts(layer)) for layer in (None, *range(start, self.depth))), Counter())

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
        """Return which patches of ``grid(layer=layer)`` attend to each other, where that is not all of them."""
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
        modules = {id(module) for module in self.get_block(layer).modules()}
        paths = [path for path in self.deviations if id(self.module.get_submodule(path)) in modules]
        reasons = [f"{self.deviations[path]} at {path}" for path in paths[:3]]
        return ", ".join(reasons) + (", …" if len(paths) > 3 else "")

    @property
    def has_own_pooling(self) -> bool:
        """Whether only the adapter knows how tokens are pooled: one of another package, or one without tokens."""
        return self.attention == "none" or is_external(type(self))

    def read_pooling(self) -> Pooling | None:
        """Return how tokens are pooled, as the model does it now; ``None`` where nothing depends on any token."""
        if self.declared_pooling is None:
            self.declared_pooling = self.pooling
        return infer_pooling(self, self.declared_pooling)

    def weights(self, layer: int) -> Weights:
        """Return how attention's values reach the residual stream, for methods that cut it into contributions."""
        raise ModelError(f"{self.name} does not tell its projections, so that its stream cannot be cut into shares")

    # -- what follows from them ------------------------------------------------------------------------

    def _blank_image(self) -> Tensor:
        """Return one input of zeros, of the model's own size."""
        return torch.zeros(1, 3, *self.preprocess.size, dtype=self.dtype, device=self.device)

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return next(self.module.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The model's own precision."""
        return next(self.module.parameters()).dtype

    def logits(self, inputs: Tensor, keep: Tensor | None = None) -> Tensor:
        """Run the model in evaluation mode and its own precision, without gradients.

        Parameters
        ----------
        inputs : Tensor
            Normalised images ``[B, 3, H, W]``.
        keep : Tensor, optional
            Patch indices ``[B, k]``: only those patch tokens are run; prefix tokens always stay.

        Returns
        -------
        Tensor
            ``[B, classes]``.
        """
        inputs = self.cast(inputs)
        self.verify(inputs)
        copy = self.shared_copy()
        with torch.autocast(inputs.device.type, enabled=False), torch.no_grad():
            tokens = copy.embed(inputs)
            if keep is not None:
                keep = keep.to(tokens.device)
                tokens = copy.select_tokens(tokens, keep)
            return copy.forward_head(copy.forward_blocks(tokens, keep=keep))

    def shared_copy(self: V, own_tensors: bool = False) -> V:
        """Return this with a structural copy of its module, in evaluation mode, that shares the weights.

        With ``own_tensors`` it shares no buffer; otherwise it does, but for those that a forward is known to write.
        Everything that runs the model does so on a copy of its own: the user's modules are never touched.
        """
        if self.source_model is not None:
            return self
        copied = copy_structure(self, VisionModel, own_tensors=own_tensors)
        copied.source_model = self
        return copied

    def verify(self, inputs: Tensor) -> None:
        """Refuse a model whose own forward says something else than its parts: tried once, on the first inputs."""
        if self.source_model is None:
            self._check_values(inputs)
            verify(self, inputs)

    @property
    def identity(self) -> ModelIdentity:
        """What its numbers depend on beside the inputs; every byte of the weights is read."""
        return Snapshot(self).identity

    def snapshot(self) -> Snapshot:
        """Return what the model is now, for a result in memory; weights are read when the identity is needed."""
        return Snapshot.of_result(self)

    @property
    def fingerprint(self) -> str:
        """The identity in one text: digests of weights, structure and preprocessing, and of code after a plus."""
        return str(self.identity)

    def select_tokens(self, tokens: Tensor, keep: Tensor) -> Tensor:
        """Return the prefix tokens and the patch tokens ``keep`` (``[B, k]``), each with the position it had."""
        if not self.can_drop_tokens:
            reason = "its layers need the whole grid; mask their embeddings instead"
            raise ModelError(f"{self.name} cannot leave tokens out: {reason}")
        patches = tokens.shape[1] - self.num_prefix_tokens
        is_integer = keep.dtype in (torch.int64, torch.int32, torch.int16, torch.uint8)
        if keep.ndim != 2 or keep.shape[0] != tokens.shape[0] or not is_integer:
            got = f"{list(keep.shape)} of {keep.dtype}"
            raise ModelError(f"keep must be integer patch indices [{tokens.shape[0]}, k], got {got}")
        wrong = keep[(keep < 0) | (keep >= patches)]
        if wrong.numel():
            raise ModelError(f"keep holds patch {int(wrong[0])}, outside 0..{patches - 1}")
        index = (keep.long() + self.num_prefix_tokens).unsqueeze(-1).expand(-1, -1, tokens.shape[-1])
        return torch.cat([tokens[:, : self.num_prefix_tokens], tokens.gather(1, index)], dim=1)

    def wrap_in(self, module: nn.Module, path: str, **facts: Any) -> VisionModel:
        """Return a larger model that has this one at ``path``; what is around it runs as it is."""
        from vitreous.models.submodels import WrappedModel

        return WrappedModel(module, self, path, **facts)

    def suffix(self, layer: int, inputs: Tensor | None = None) -> SubModel:
        """Return the sub-network that starts at block ``layer``; its inputs are tokens, its outputs logits.

        With the tokens kept, this is also the cached prefix: run the first blocks once, explain the rest often.

        Parameters
        ----------
        layer : int
            Its first block.
        inputs : Tensor, optional
            Images whose size the tokens are of, where the model takes any size.

        Returns
        -------
        SubModel
            ``f_l`` of the PLUS paper.
        """
        from vitreous.models.submodels import SubModel

        return SubModel(self, layer, inputs)

    def logit_lens(self, layer: int, per_token: bool = False) -> LogitLens:
        """Return one block alone, its output read by the model's own head: on the mean token, or token by token."""
        from vitreous.models.submodels import LogitLens

        return LogitLens(self, layer, per_token)

    def permute_head(self, seed: int = 0) -> PermutedHeadModel:
        """Return this model with its head shuffled: all that ``forward_head`` does gets channels in a random order.

        This is the head with its weights dealt out anew among the channels; the model itself is not touched.
        """
        from vitreous.models.submodels import PermutedHeadModel

        return PermutedHeadModel(self, seed)

    def reference_forward(self, inputs: Tensor) -> Tensor:
        """Run the model's own forward and return its logits: what the three verbs together must equal."""
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
            conv = next((module for module in self.module.modules() if isinstance(module, nn.Conv2d)), None)
            if conv is not None and conv.kernel_size == conv.stride and conv.in_channels != 3:
                raise ModelError(f"{self.name} takes images of {conv.in_channels} channels; only 3 are supported")

    def check_inputs(self, inputs: Tensor) -> None:
        """Refuse inputs that the model cannot take, by name and shape."""
        self._check_values(inputs)
        if inputs.ndim != 4 or inputs.shape[1] != 3:
            self._check_size(inputs)
        if inputs.shape[0] == 0:
            raise ModelError("the batch is empty")
        if not inputs.is_floating_point():
            raise ModelError(f"the inputs are {inputs.dtype}; give normalised images in floating point")
        if not torch.isfinite(inputs).all():
            raise ModelError("the inputs contain values that are not finite")

    def _check_size(self, inputs: Tensor, size: tuple[int, ...] | None = None, advice: str = "") -> None:
        """Refuse images that are not in three colours and of one size: that of the preprocessing unless given."""
        height, width = size or self.preprocess.size
        if tuple(inputs.shape[1:]) != (3, height, width):
            raise ModelError(f"{self.name} takes images [B, 3, {height}, {width}], got {list(inputs.shape)}{advice}")

    def class_index(self, word: int | str) -> int:
        """Return the class index of an index, a name or a synonym.

        Raises
        ------
        TargetError
            Where there is no such class, or several.
        """
        if isinstance(word, bool) or not isinstance(word, int | str):
            raise TargetError(f"{word!r} is neither a class index nor a label")
        outputs = max(self.num_classes, 2)  # a head of one logit tells two classes apart
        return find_label(word, self.class_names, outputs) if isinstance(word, str) else check_index(word, outputs)

    def label(self, index: int) -> str:
        """Return the first name of a class, or ``"class i"`` where the model has no names."""
        names = self.class_names or []
        return short_label(names[index]) if index < len(names) else f"class {index}"

    def __repr__(self) -> str:
        height, width = self.grid()
        return (
            f"VisionModel({self.name}: {self.depth} blocks, {height}x{width} patches, {self.num_prefix_tokens} prefix "
            f"tokens, {self.pooling.kind} pooling, {self.num_classes} classes)"
        )
