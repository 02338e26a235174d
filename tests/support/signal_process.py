"""Ctrl-C at random moments of a method: `python signals.py METHOD COUNT`. The model stays what it was, each time."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from torch import nn

import vitreous as vt
from families import FAMILIES, images


def state(model: nn.Module) -> Any:
    """Everything that a pass could leave behind."""
    modules = [
        (
            module.training,
            *module._forward_hooks,
            *module._forward_pre_hooks,
            *module._backward_hooks,
            sorted(vars(module)),
        )
        for module in model.modules()
    ]
    weights = [
        (parameter.requires_grad, parameter.grad is None, parameter._version) for parameter in model.parameters()
    ]
    return (
        modules,
        weights,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
    )


def main(spec: str, count: int) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    model = FAMILIES["vit"]().train()
    model.blocks[1].eval()
    model.blocks[0].mlp.fc1.weight.requires_grad_(False)
    model.blocks[2].register_forward_hook(lambda *_: None)
    inputs, method, draw = images(model, 2), vt.get_method(spec), random.Random(0)
    began = time.monotonic()
    expected = method.attribute(model, inputs, 1)
    method.attribute(model, inputs, 1)
    length, before, hit = (time.monotonic() - began) / 2, state(model), 0
    for _ in range(count):
        timer = threading.Timer(draw.uniform(0, length), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            while timer.is_alive():
                method.attribute(model, inputs, 1)
            method.attribute(model, inputs, 1)  # the signal may come after the timer's end
        except KeyboardInterrupt:
            hit += 1
        timer.join()
        assert state(model) == before
    assert hit == count
    assert torch.equal(method.attribute(model, inputs, 1), expected)
    sys.stdout.write(f"{count} interrupts, {hit} arrived\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
