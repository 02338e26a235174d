"""The model inside: parallel and compiled wrappers are taken off, what cannot be looked into is refused.

A forward in another thread, in a replica or in compiled code is not seen by an observer, so the module inside is used.
The wrapper stays as it is. Shards, scripts, graphs and quantised weights have no such module inside.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from vitreous.errors import ModelError

__all__ = ["unwrap"]

_SHARDED = {"FullyShardedDataParallel", "FSDPModule"}
_QUANTISED = ("torch.ao.nn.", "torch.nn.quantized", "bitsandbytes.", "torchao.", "optimum.quanto", "auto_gptq", "awq")


def unwrap(module: Any) -> nn.Module:
    """Return the module inside any nest of ``DataParallel``, ``DistributedDataParallel`` and ``torch.compile``."""
    while True:
        if isinstance(module, DataParallel | DistributedDataParallel):
            module = module.module
        elif type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod"):
            module = module._orig_mod  # known by its name: importing torch._dynamo takes seconds
        else:
            break
    _refuse_programs(module)
    for name, part in module.named_modules():
        _refuse_part(type(module).__name__, name, part)
    return module  # type: ignore[no-any-return]


def _refuse_programs(module: Any) -> None:
    what = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise ModelError("a scripted or traced module cannot be looked into; give the Python module it was made from")
    if isinstance(module, torch.fx.GraphModule) or what == "ExportedProgram":
        raise ModelError(f"an exported graph ({what}) cannot be looked into; give the module it was made from")
    if not isinstance(module, nn.Module):
        raise ModelError(f"expected a View or a torch module, got {what}")


def _refuse_part(model: str, name: str, part: nn.Module) -> None:
    """Refuse a part whose weights are elsewhere or not floating point, or whose forward is compiled on its own."""
    where = f"{model}.{name}" if name else model
    kinds = type(part).__mro__
    if any(kind.__name__ in _SHARDED for kind in kinds):
        raise ModelError(
            f"{where} is sharded (FSDP): no process holds the whole model; gather the weights into a plain module first"
        )
    if isinstance(part, torch.jit.ScriptModule):
        raise ModelError(f"{where} is scripted or traced and cannot be looked into; give the Python module")
    values = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
    if any(value.is_meta for value in values):
        raise ModelError(f"{where} has no weights yet: it is on the meta device; load them first")
    homes = {kind.__module__ for each in (part, *values) for kind in type(each).__mro__}
    if any(home.startswith(_QUANTISED) for home in homes) or any(value.is_quantized for value in values):
        raise ModelError(f"{where} is quantised ({kinds[0].__name__}): it has no gradients; give the model in float")
    if name and part._compiled_call_impl is not None:
        raise ModelError(f"{where} is compiled in place and cannot be looked into; explain the model before compiling")
