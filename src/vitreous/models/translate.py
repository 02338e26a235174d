"""The names that timm, Hugging Face and torchvision give to the tensors of one architecture, the plain ViT.

Each library's table is taken apart into parts with common names, timm's, in which queries, keys and values are three
parts; from these the other library's table is put together. Whatever has no common name keeps its own, so that it is
told as missing or unexpected: nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

__all__ = ["translate"]

_SIGNS = {
    "timm": re.compile(r"blocks\.0\.attn\.qkv\.weight"),
    "Hugging Face": re.compile(r"(?:(?:vit|deit)\.)?(?:encoder\.layer|layers)\.0\.attention\.\S+\.weight"),
    "torchvision": re.compile(r"encoder\.layers\.encoder_layer_0\.self_attention\.in_proj_weight"),
}
"""A name by which the tables of each library are known."""

_BLOCKS = {
    "Hugging Face": re.compile(r"(?:(?:vit|deit)\.)?(?:encoder\.layer|layers)\.(\d+)\.(.+)\.(weight|bias)"),
    "torchvision": re.compile(r"encoder\.layers\.encoder_layer_(\d+)\.(.+)[._](weight|bias)"),
}
_OTHERS = re.compile(r"(?:(?:vit|deit)\.)?(?:embeddings\.)?(.+?)((?:\.(?:weight|bias))?)")

_ENDS = {
    "cls_token": "cls_token",
    "distillation_token": "dist_token",
    "position_embeddings": "pos_embed",
    "patch_embeddings.projection": "patch_embed.proj",
    "layernorm": "norm",
    "classifier": "head",
    "cls_classifier": "head",
    "distillation_classifier": "head_dist",
    "class_token": "cls_token",
    "conv_proj": "patch_embed.proj",
    "encoder.pos_embedding": "pos_embed",
    "encoder.ln": "norm",
    "heads.head": "head",
}
_BLOCK_ENDS = {
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "attention.attention.query": "attn.q",
    "attention.attention.key": "attn.k",
    "attention.attention.value": "attn.v",
    "attention.output.dense": "attn.proj",
    "attention.q_proj": "attn.q",
    "attention.k_proj": "attn.k",
    "attention.v_proj": "attn.v",
    "attention.o_proj": "attn.proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "ln_1": "norm1",
    "ln_2": "norm2",
    "self_attention.in_proj": "attn.qkv",
    "self_attention.out_proj": "attn.proj",
    "mlp.0": "mlp.fc1",
    "mlp.3": "mlp.fc2",
    "mlp.linear_1": "mlp.fc1",
    "mlp.linear_2": "mlp.fc2",
}


def translate(tensors: Mapping[str, Tensor], model: nn.Module) -> tuple[dict[str, Tensor], str]:
    """Return tensors under the names of a model, and whose names they had if those are another library's."""
    wanted = model.state_dict()
    given, asked = _language(tensors), _language(wanted)
    same = given == asked and not (given == "Hugging Face" and tensors.keys() != wanted.keys())
    reads_token = getattr(model, "global_pool", "token") == "token"
    if given is None or asked is None or same or not reads_token:
        return dict(tensors), ""
    parts = _parts(tensors, given)
    made: dict[str, Tensor] = {}
    used: set[str] = set()
    for name in wanted:
        common = _common(name, asked)
        pieces = _pieces(common)
        if all(piece in parts for piece in pieces):
            values = [parts[piece][1] for piece in pieces]
            made[name] = values[0] if len(values) == 1 else torch.cat(values)
            used.update(parts[piece][0] for piece in pieces)
    made.update((name, tensor) for name, tensor in tensors.items() if name not in used)
    return made, f"{given}'s names"


def _language(tensors: Mapping[str, Tensor]) -> str | None:
    found = [language for language, sign in _SIGNS.items() if any(map(sign.fullmatch, tensors))]
    return found[0] if len(found) == 1 else None


def _parts(tensors: Mapping[str, Tensor], language: str) -> dict[str, tuple[str, Tensor]]:
    """Return the parts of a table by their common names, each with the name it had."""
    parts: dict[str, tuple[str, Tensor]] = {}
    for name, tensor in tensors.items():
        pieces = _pieces(_common(name, language))
        if tensor.ndim and len(tensor) % len(pieces) == 0:
            cut = tensor.chunk(len(pieces))
            parts.update((piece, (name, part)) for piece, part in zip(pieces, cut, strict=True))
    return parts


def _common(name: str, language: str) -> str:
    if language == "timm":
        return name
    block = _BLOCKS[language].fullmatch(name)
    if block is not None:
        return f"blocks.{block[1]}.{_BLOCK_ENDS.get(block[2], block[2])}.{block[3]}"
    other = _OTHERS.fullmatch(name)
    end = None if other is None else _ENDS.get(other[1])
    return name if other is None or end is None else end + other[2]


def _pieces(common: str) -> list[str]:
    """Return queries, keys and values where a name stands for all three, else the name alone."""
    if ".attn.qkv." not in common:
        return [common]
    return [common.replace(".qkv.", f".{letter}.") for letter in "qkv"]
