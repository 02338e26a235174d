"""Wrapped models: the same map as the model inside, the wrapper as it was; what has no inside is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

import vitreous as vt
from families import FAMILIES, images
from vitreous.errors import ModelError
from vitreous.models.registry import unwrap

METHODS = ("generic", "decompx", "saliency", "gradcam")


@pytest.fixture
def model() -> nn.Module:
    return FAMILIES["vit"]()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one."""
    if not distributed.is_available() or distributed.is_initialized():
        pytest.skip("needs torch.distributed, not in use")
    store = distributed.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "parallel": DataParallel,
    "distributed": DistributedDataParallel,
    "compiled": torch.compile,
    "parallel compiled": lambda model: DataParallel(torch.compile(model)),
    "compiled distributed": lambda model: torch.compile(DistributedDataParallel(model)),
    "twice": lambda model: torch.compile(DataParallel(DataParallel(model))),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.usefixtures("group")
def test_the_map_of_the_model_inside(model: nn.Module, wrapper: str) -> None:
    wrapped = WRAPPERS[wrapper](model.train())
    before = {name: (module.training, type(module)) for name, module in wrapped.named_modules()}
    assert unwrap(wrapped) is model
    assert vt.wrap(wrapped).module is model
    assert vt.wrap(wrapped).name == vt.wrap(model).name
    assert vt.wrap(wrapped, name="mine").name == "mine"
    for spec in METHODS:
        method = vt.get_method(spec)
        expected = method.attribute(model, images(model, 2), 1)
        assert torch.equal(method.attribute(wrapped, images(model, 2), 1), expected), spec
    assert {name: (module.training, type(module)) for name, module in wrapped.named_modules()} == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_explain_takes_a_wrapped_model(model: nn.Module) -> None:
    result = vt.explain(DataParallel(model), images(model, 2), "ixg", 1)
    expected = vt.explain(model, images(model, 2), "ixg", 1)
    for one, other in zip(result, expected, strict=True):
        assert torch.equal(one.map, other.map)
        assert one.model == other.model


# -- flags that change how a forward runs --------------------------------------------------------------


@pytest.mark.parametrize("spec", METHODS)
def test_activation_checkpointing(model: Any, spec: str) -> None:
    method = vt.get_method(spec)
    expected = method.attribute(model, images(model, 2), 1)
    model.set_grad_checkpointing(True)
    model.train()
    assert torch.equal(method.attribute(model, images(model, 2), 1), expected)
    assert model.grad_checkpointing is True
    assert model.training


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spec", ["ixg", *METHODS[1:], "smooth(ixg, samples=2)", "skipplus(decompx)"])
def test_autocast_around_the_call(model: nn.Module, spec: str, dtype: torch.dtype) -> None:
    method, inputs = vt.get_method(spec), images(model, 2)
    expected = method.attribute(model, inputs, 1)
    with torch.autocast("cpu", dtype):
        result = method.attribute(model, inputs, 1)
        assert torch.is_autocast_enabled("cpu")
        assert (inputs @ inputs).dtype == dtype
    assert result.dtype == torch.float32
    assert torch.equal(result, expected)


@pytest.mark.parametrize("spec", ["generic", "rollout"])
def test_autocast_around_a_recursion(model: nn.Module, spec: str) -> None:
    test_autocast_around_the_call(model, spec, torch.bfloat16)


# -- refusals ------------------------------------------------------------------------------------------


def _traced(model: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(model, images(model, 1))


def _quantised(model: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear})


def _exported(model: nn.Module) -> Any:
    return torch.export.export(model, (images(model, 1),))


class FullyShardedDataParallel(nn.Module):
    """Known by its name: the real one wants an accelerator."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def _one_block(change: Callable[[nn.Module], Any]) -> Callable[[nn.Module], nn.Module]:
    def changed(model: Any) -> nn.Module:
        model.blocks[1] = change(model.blocks[1])
        return model  # type: ignore[no-any-return]

    return changed


def _compiled_in_place(model: Any) -> nn.Module:
    model.blocks[1].compile()
    return model  # type: ignore[no-any-return]


REFUSED: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "traced": (_traced, "scripted or traced"),
    "parallel traced": (lambda model: DataParallel(_traced(model)), "scripted or traced"),
    "quantised": (_quantised, r"VisionTransformer\.blocks\.0\.attn\.qkv is quantised \(Linear\)"),
    "exported": (_exported, r"exported graph \(ExportedProgram\)"),
    "graph": (lambda model: torch.fx.GraphModule(model, torch.fx.Graph()), r"exported graph \(GraphModule"),
    "sharded": (FullyShardedDataParallel, r"sharded \(FSDP\)"),
    "sharded block": (_one_block(FullyShardedDataParallel), r"blocks\.1 is sharded \(FSDP\)"),
    "compiled block": (_one_block(torch.compile), "block 1 is a OptimizedModule"),
    "block compiled in place": (_compiled_in_place, r"blocks\.1 is compiled in place"),
    "without weights": (lambda model: model.to("meta"), "no weights yet: it is on the meta device"),
    "no module": (lambda model: model.forward, "expected a VisionModel or a torch module, got method"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(model: nn.Module, case: str) -> None:
    change, named = REFUSED[case]
    with pytest.raises(ModelError, match=named) as caught:
        vt.wrap(change(model))
    assert "\n" not in str(caught.value)


def test_a_saved_script_is_refused(model: nn.Module, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _traced(model).save(str(tmp_path / "model.pt"))
        with pytest.raises(ModelError, match="scripted or traced"):
            vt.wrap(torch.jit.load(str(tmp_path / "model.pt")))


@pytest.mark.usefixtures("group")
def test_the_real_fully_sharded_model_is_refused(model: nn.Module) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    try:
        sharded = fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"cannot shard here: {error}")
    with pytest.raises(ModelError, match=r"sharded \(FSDP\)"):
        vt.wrap(sharded)
