"""What a model looks like before and after an explanation, and one spec of every registered method."""

from __future__ import annotations

import torch
from torch import nn

# One spec of every registered method, and some compositions; a new method joins by being registered.
SHORT = {
    "tis": "tis(masks=20)",
    "tam": "tam(steps=4)",
    "bt_h": "bt_h(steps=4)",
    "bt_t": "bt_t(steps=4)",
    "iia": "iia(steps=2)",
    "rise": "rise(masks=20)",
    "lime": "lime(samples=40)",
    "kernel_shap": "kernel_shap(samples=40)",
    "hsic": "hsic(masks=20, cells=4)",
    "refine": "refine(generic, masks=16)",
    "integrated_gradients": "integrated_gradients(steps=4)",
    "guided_ig": "guided_ig(steps=4)",
    "blur_ig": "blur_ig(steps=4)",
    "xrai": "xrai(steps=2, side=64)",
    "gradient_shap": "gradient_shap(samples=3)",
    "coiba": "coiba(steps=5, samples=4)",
    "iba": "iba(steps=5, samples=4)",
    "iba_star": "iba_star(steps=4, samples=2)",
}


class State:
    """Everything about a model that an explanation must leave as it found it."""

    def __init__(self, model: nn.Module) -> None:
        self.training = [module.training for module in model.modules()]
        self.weights = {name: value.clone() for name, value in model.state_dict().items()}
        self.flags = [(p.requires_grad, p.grad is None, p.dtype) for p in model.parameters()]
        self.hooks = [
            (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in model.modules()
        ]
        self.fused = [module.fused_attn for module in model.modules() if hasattr(module, "fused_attn")]
        self.modes = torch._C._len_torch_function_stack()
        self.grad = torch.is_grad_enabled()
        self.random = torch.get_rng_state()

    def assert_same(self, model: nn.Module) -> None:
        other = State(model)
        for name, value in vars(self).items():
            if name == "weights":
                assert all(torch.equal(value[key], other.weights[key]) for key in value)
            elif name == "random":
                assert torch.equal(value, other.random), "the global random state was used"
            else:
                assert value == getattr(other, name), f"{name} was changed"
