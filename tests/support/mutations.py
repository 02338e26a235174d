"""Ways to change a model: weights by every route, settings, structure, hooks, code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.utils import parametrize

import vitreous as vt
from vitreous.models import ModelIdentity

PREPROCESS = vt.Preprocess((32, 32))


class Power:
    """A function with a setting and a counter, as people write them."""

    def __init__(self, exponent: float) -> None:
        self.exponent, self.count = exponent, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.count += 1
        return x**self.exponent


class Meter:
    def __init__(self) -> None:
        self.total = 0.0

    def note(self, value: float) -> None:
        self.total += value


class Sparse(nn.Module):
    """A network that reads some of its places only: a ratio that matters, a buffer that is not stored, a cache."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 5)
        self.drop_ratio, self.mode, self.calls = 0.25, "mean", 0
        self.settings = {"scale": 1.0, "reduce": [1, 2]}
        self.power, self.meter, self.activation = Power(1.0), Meter(), nn.functional.relu
        self.mask = torch.eye(8).to_sparse()
        self.register_buffer("table", torch.linspace(0, 1, 256), persistent=False)
        self.register_buffer("latest", torch.zeros(2), persistent=False)
        self.hidden = [nn.Linear(5, 5)]
        self.sizes: dict[Any, Any] = {}
        self.past: list[Any] = []
        self.author = "somebody"

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.height, self.width = x.shape[-2:]
        self.sizes[x.shape[-1]] = x.shape
        self.past.append(float(x.detach().mean()))
        self.latest[0] = x.mean()
        features = self.features(x).flatten(2)
        self.meter.note(1.0)
        features = features * self.power(self.table[: features.shape[-1]]) * self.settings["scale"]
        features = self.activation(self.mask.to_dense() @ features)
        left = features[..., int(self.drop_ratio * features.shape[-1]) :]
        pooled = left.mean(dim=2) if self.mode == "mean" else left.amax(dim=2)
        return self.hidden[0](self.head(pooled))


def sparse() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return Sparse().eval()


def identity(model: nn.Module, **facts: Any) -> ModelIdentity:
    if isinstance(model, Sparse):
        facts = {"layer": "features", "preprocess": PREPROCESS, **facts}
    return vt.wrap(model, **facts).identity


def optimizer_step(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model(torch.ones(1, 3, 32, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def in_place(model: Any) -> None:
    with torch.no_grad():
        model.head.bias.add_(1e-3)


def through_data(model: Any) -> None:
    model.blocks[1].mlp.fc1.weight.data[0] += 1


def one_element_in_the_middle(model: Any) -> None:
    weight = model.blocks[1].mlp.fc2.weight.data.view(-1)
    weight[weight.numel() // 2 + 1] += 1e-3


def through_numpy(model: Any) -> None:
    model.blocks[0].attn.qkv.weight.detach().numpy()[17, 5] = 0.123


def load_state(model: nn.Module) -> None:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["head.weight"][2, 3] += 1e-3
    model.load_state_dict(state)


def assign_state(model: nn.Module) -> None:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["head.weight"][2, 3] += 1e-3
    model.load_state_dict(state, assign=True)


def swap_parameter(model: Any) -> None:
    model.norm.weight = nn.Parameter(model.norm.weight.detach() * 2)


def swap_rows(model: Any) -> None:
    weight = model.blocks[2].mlp.fc1.weight.data
    weight[[3, 4]] = weight[[4, 3]]


def drop_bias(model: Any) -> None:
    model.blocks[0].mlp.fc1.bias = None


def half(model: nn.Module) -> None:
    model.half()


def heads(model: Any) -> None:
    for block in model.blocks:
        block.attn.num_heads, block.attn.head_dim = 2, 12


def eps(model: Any) -> None:
    model.norm.eps = 1e-3


def activation(model: Any) -> None:
    for block in model.blocks:
        block.mlp.act = nn.GELU(approximate="tanh")


def pooling(model: Any) -> None:
    model.global_pool = "avg"


def scale(model: Any) -> None:
    model.blocks[1].attn.scale *= 1.1


def patch_dtype(model: Any) -> None:
    model.blocks[0].norm1.double()


def replace_module(model: Any) -> None:
    model.blocks[1].ls1 = nn.Identity()
    model.blocks[1].mlp.drop2 = nn.ReLU()


def remove_block(model: Any) -> None:
    del model.blocks[2]


def reorder_blocks(model: Any) -> None:
    model.blocks = nn.Sequential(*(model.blocks[at] for at in (1, 0, 2)))


def repeat_block(model: Any) -> None:
    model.blocks.append(model.blocks[0])


def hook(model: Any) -> None:
    model.blocks[0].register_forward_hook(lambda module, args, output: output * 1.5)


def hook_with_kwargs(model: Any) -> None:
    model.blocks[0].register_forward_hook(lambda module, args, kwargs, output: output * 1.5, with_kwargs=True)


def pre_hook(model: Any) -> None:
    model.blocks[0].register_forward_pre_hook(lambda module, args: (args[0] * 1.5,))


def backward_hook(model: Any) -> None:
    model.blocks[0].register_full_backward_hook(lambda module, grads, outputs: (grads[0] * 2,))


def backward_pre_hook(model: Any) -> None:
    model.blocks[0].register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 2,))


class Scaling:
    """A hook with a setting."""

    def __init__(self, factor: float) -> None:
        self.factor, self.outputs = factor, list[Tensor]()

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        self._note(output)
        return output * self.factor

    def _note(self, output: Tensor) -> None:
        self.outputs.append(output)


def hook_object(model: Any) -> None:
    model.blocks[0].register_forward_hook(Scaling(1.5))


def patched_instance(model: Any) -> None:
    model.blocks[1].mlp.forward = lambda tokens: -tokens


def bound_instance(model: Any) -> None:
    mlp = model.blocks[1].mlp
    mlp.forward = (lambda self, tokens: self.fc2(self.fc1(tokens))).__get__(mlp)


def other_method(model: Any) -> None:
    """A function of the library itself, in the place of another."""
    mlp = model.blocks[1].mlp
    mlp.forward = nn.Identity.forward.__get__(mlp)


def adapted(model: Any) -> None:
    class Adapted(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, tokens: Tensor) -> Tensor:
            return 1.1 * self.inner(tokens)

    model.blocks[0].mlp.fc1 = Adapted(model.blocks[0].mlp.fc1)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def parametrized(model: Any) -> None:
    parametrize.register_parametrization(model.head, "weight", Doubled())


class Pooled(VisionTransformer):
    def pool(self, x: Tensor, pool_type: str | None = None) -> Tensor:
        return x[:, 1:].amax(dim=1)


def subclass(model: Any) -> None:
    model.__class__ = Pooled


VIT: dict[str, Callable[[Any], None]] = {
    item.__name__: item
    for item in (
        *(optimizer_step, in_place, through_data, one_element_in_the_middle, through_numpy, load_state, assign_state),
        *(swap_parameter, swap_rows, drop_bias, half, heads, eps, activation, pooling, scale, patch_dtype),
        *(replace_module, remove_block, reorder_blocks, repeat_block, hook, hook_with_kwargs, pre_hook, backward_hook),
        *(backward_pre_hook, hook_object, patched_instance, bound_instance, other_method, adapted, parametrized),
        subclass,
    )
}


def _set(name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model, name, value)


SPARSE: dict[str, Callable[[Any], Any]] = {
    "buffer": lambda model: model.features[1].running_mean.add_(0.1),
    "buffer by data": lambda model: model.features[1].running_var.data.__setitem__(3, 2.0),
    "buffer that is not stored": lambda model: model.table.mul_(1.01),
    "ratio": _set("drop_ratio", 0.5),
    "word": _set("mode", "max"),
    "setting in a dictionary": lambda model: model.settings.update(scale=2.0),
    "setting in a list in it": lambda model: model.settings["reduce"].append(3),
    "setting of an object": lambda model: setattr(model.power, "exponent", 2.0),
    "tensor that is no buffer": lambda model: model.mask.values().mul_(2),
    "module that is not registered": lambda model: model.hidden[0].bias.data.fill_(3),
    "eps": lambda model: setattr(model.features[1], "eps", 0.1),
    "stride": lambda model: setattr(model.features[0], "stride", (2, 2)),
}
