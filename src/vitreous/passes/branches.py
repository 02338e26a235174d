"""What attention and MLP of a block add to its residual stream, compared with what becomes of it.

Blocks of a known class add the two and nothing else. A hook on a block, or a forward of its own, may do otherwise, and
what methods say of the stream would then be wrong. So it is compared where a block is not as its library built it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import TraceError
from vitreous.models import View

__all__ = ["Branches", "changed_weights", "hook_middle", "refuse_without_middle"]


class Branches:
    """Watches the two branches of one block for one forward; whoever made it removes its ``handles``."""

    def __init__(self, view: View, layer: int) -> None:
        self.view, self.layer = view, layer
        self._added: dict[str, Tensor] = {}
        self.handles = [self._hook(name, *view.branch(layer, name)) for name in ("attn", "mlp")]

    def _hook(self, name: str, module: nn.Module, gain: Tensor | None) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            added = (output if isinstance(output, Tensor) else output[0]).detach()
            self._added[name] = added if gain is None else gain.detach() * added

        return module.register_forward_hook(hook)

    def check(self, parts: Mapping[str, Tensor]) -> None:
        """Refuse a block whose ``input``, ``middle`` and ``output`` differ by something else than its branches."""
        refuse_without_middle(self.view, self.layer, parts)
        for name, start, end in (("attn", "input", "middle"), ("mlp", "middle", "output")):
            before, after, added = parts[start], parts[end], self._added.get(name)
            size = 16 * torch.finfo(after.dtype).eps * torch.maximum(before.abs().max(), after.abs().max())
            if added is None or not (before + added - after).abs().max() <= size:
                raise TraceError(
                    f"{self.view.name}: block {self.layer} adds something else to its residual stream than attention "
                    f"and MLP ({self.view.describe_deviation(self.layer)}), so that what they add cannot be told"
                )


def hook_middle(view: View, layer: int, parts: dict[str, Tensor]) -> Any:
    """Note what lies between attention and MLP, before a user's own hook makes something else of it for the norm."""

    def hook(module: nn.Module, args: Any) -> None:
        parts["middle"] = args[0].detach()

    return view.site(layer, "norm2").register_forward_pre_hook(hook, prepend=True)


def refuse_without_middle(view: View, layer: int, parts: Mapping[str, Tensor]) -> None:
    """Refuse a block of which nobody saw what lies between attention and MLP."""
    if "middle" not in parts:
        raise TraceError(f"{view.name}: block {layer} never runs its second norm; what enters it is not known")


def changed_weights(view: View, layer: int) -> TraceError:
    """Return the refusal of a block whose attention weights are seen before they become what they mix with."""
    return TraceError(
        f"{view.name}: block {layer} changes its attention weights after their softmax "
        f"({view.describe_deviation(layer)}), so that those that are seen are not those that mix"
    )
