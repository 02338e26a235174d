"""timm's EVA family: EVA, EVA-02, DINOv3, Perception Encoder and ViTs with rotary positions."""

from __future__ import annotations

from timm.layers import AttentionRope, pos_embed_sincos
from timm.models.eva import Eva, EvaAttention, EvaBlock, checkpoint_filter_fn
from torch import Tensor

from vitreous.models.timm.common import TimmColumn

__all__ = ["TimmEva"]


class TimmEva(TimmColumn):
    """A timm ``Eva`` made of pre-norm blocks: queries and keys are turned by an angle that depends on the place.

    The angles come from the grid of patches and are asked of the model at every block. A number of tokens does not
    tell a grid, so images of another size than the configured one are refused, even where the model could take them.
    """

    accepts = (Eva,)
    modules = ("eva",)
    left_out = ("eva02_enormous_",)  # post-norm
    parts = ((EvaBlock, EvaAttention), (EvaBlock, AttentionRope))
    convert = checkpoint_filter_fn

    def embed(self, inputs: Tensor) -> Tensor:
        model = self.model
        tokens, _ = model._pos_embed(model.patch_embed(inputs))
        return model.norm_pre(tokens)  # type: ignore[no-any-return]

    def block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.model.blocks[layer](tokens, rope=self._angles(layer, keep))  # type: ignore[no-any-return]

    def _angles(self, layer: int, keep: Tensor | None) -> Tensor | None:
        """Return sines and cosines for the patches: ``[N, d]``, or ``[H, N, d]`` where each block learns its own.

        With ``keep``, those of each image's patches: ``[B, 1, k, d]`` or ``[B, H, k, d]``.
        """
        model, rope = self.model, self.model.rope
        if rope is None:
            return None
        if model.rope_mixed:  # get_embed would compute all blocks' angles for each block
            places = rope._get_grid_values(self.grid()) if rope.t_x is None else (rope.t_x, rope.t_y)
            angles: Tensor = pos_embed_sincos.get_mixed_freqs(rope.freqs[:, layer], *places)
        else:
            angles = rope.get_embed(self.grid()) if model.dynamic_img_size else rope.get_embed()
        if keep is None:
            return angles
        picked = angles[..., keep.long(), :]  # the images stand where the patches stood
        return picked.transpose(0, 1) if model.rope_mixed else picked.unsqueeze(1)
