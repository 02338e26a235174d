"""Whatever changes a number changes the identity of a model; nothing else does."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import Attention, Block
from torch import Tensor, nn

import vitreous as vt
from commands import MODEL, run
from families import FAMILIES, images
from families_hf import FAMILIES as HF
from families_timm import FAMILIES as TIMM
from mutations import (
    PREPROCESS,
    SPARSE,
    VIT,
    Scaling,
    Sparse,
    identity,
    in_place,
    one_element_in_the_middle,
    sparse,
    swap_parameter,
)
from plug_ins import PlugIns
from tiny_benchmark import photos
from vitreous.code_digest import sources
from vitreous.errors import VitreousWarning
from vitreous.models import ModelIdentity
from vitreous.models.identity import fingerprint_of


def mutated(make: Callable[[], nn.Module], change: Callable[[Any], Any]) -> tuple[ModelIdentity, ModelIdentity]:
    model = make()
    before = identity(model)
    change(model)
    return before, identity(model)


@pytest.mark.parametrize("name", VIT)
def test_a_changed_transformer_is_another_model(name: str) -> None:
    before, after = mutated(FAMILIES["vit"], VIT[name])
    assert before.differences(after)
    assert mutated(FAMILIES["vit"], VIT[name]) == (before, after), "the same change makes the same model"


@pytest.mark.parametrize("name", SPARSE)
def test_a_changed_network_of_ones_own_is_another_model(name: str) -> None:
    before, after = mutated(sparse, SPARSE[name])
    assert before.differences(after)
    assert mutated(sparse, SPARSE[name]) == (before, after)


@pytest.mark.parametrize("change", [lambda m: m.neg_(), lambda m: m.mul_(2), lambda m: m.view(-1)[[5, 9]].neg_()])
def test_signs_and_powers_of_two_are_seen_in_every_precision(change: Callable[[Tensor], Any]) -> None:
    """Sums of whole 64-bit words lose the topmost bit of every second change."""
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        weights = torch.randn(8, 8192, generator=torch.Generator().manual_seed(0)).to(dtype)
        before = fingerprint_of([("weight", weights)])
        if change(weights).data_ptr() != weights.data_ptr():
            weights.view(-1)[[5, 9]] *= -1
        assert fingerprint_of([("weight", weights)]) != before


def test_window_and_shift_are_settings() -> None:
    for name, value in (("window_size", (4, 4)), ("shift_size", (0, 0))):
        model: Any = TIMM["swin"]()
        before = identity(model)
        setattr(model.layers[0].blocks[1], name, value)
        assert identity(model).differences(before) == "other structure or settings"


def test_settings_of_a_configuration_are_settings() -> None:
    model: Any = HF["hf_vit"]()
    before = identity(model)
    model.config.id2label = {number: f"class {number}" for number in range(5)}
    model.config._name_or_path = "/elsewhere"
    assert identity(model) == before
    attention = model.vit.encoder.layer[0].attention.attention if hasattr(model.vit, "encoder") else None
    parts = [attention] if attention is not None else [m for m in model.modules() if hasattr(m, "num_attention_heads")]
    parts[0].num_attention_heads, parts[0].attention_head_size = 1, 24
    assert identity(model).differences(before) == "other structure or settings"


def test_a_class_of_a_library_that_was_patched_is_known_by_its_new_code(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FAMILIES["vit"]()
    before = identity(model)

    def forward(self: Any, x: Tensor, attn_mask: Any = None, is_causal: bool = False) -> Tensor:
        return x + self.mlp(self.norm2(x))

    for owner, name, function in (
        (Block, "forward", forward),
        (Attention, "forward", torch.no_grad()(forward)),
        (nn.LayerNorm, "forward", lambda self, x: x),
        (nn.Module, "__call__", lambda self, *args, **kwargs: self.forward(*args, **kwargs)),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, function)
            assert "other code" in identity(model).differences(before)
    with monkeypatch.context() as patched:
        patched.setattr(Block, "forward", nn.Identity.forward)
        assert identity(model).differences(before)
    assert identity(model) == before


def test_hooks_of_all_modules_count() -> None:
    model = FAMILIES["vit"]()
    before = identity(model)
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    try:
        assert identity(model).differences(before)
    finally:
        handle.remove()
    assert identity(model) == before


def test_the_bound_values_of_a_hook_count_and_not_what_it_collects() -> None:
    def hooked(factor: float) -> nn.Module:
        model: Any = FAMILIES["vit"]()
        seen, count = [], 0

        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            nonlocal count
            count += 1
            seen.append(output)
            return output * factor * model.norm.eps

        model.blocks[0].register_forward_hook(hook)
        model.blocks[1].register_forward_hook(Scaling(factor))
        model.blocks[1].register_forward_pre_hook(Recorder().note)
        return model

    model = hooked(1.5)
    before = identity(model)
    assert identity(hooked(1.5)) == before
    assert identity(hooked(1.6)).differences(before)
    model(images(model, 1))
    assert identity(model) == before


class Recorder:
    """What people hang on a model to look into it."""

    def __init__(self) -> None:
        self.inputs: dict[str, Any] = {}
        self.lock = threading.Lock()
        self.model = FAMILIES["vit"]()

    def note(self, module: nn.Module, args: Any) -> None:
        self.inputs[type(module).__name__] = args


PREPROCESSING: dict[str, Any] = {
    "mean": {"mean": (0.4, 0.4, 0.4)},
    "std": {"std": (0.4, 0.4, 0.4)},
    "size": {"size": (48, 48)},
    "crop": {"crop": 0.9},
    "interpolation": {"interpolation": "bilinear"},
    "mode": {"mode": "squash"},
}


@pytest.mark.parametrize("name", PREPROCESSING)
def test_another_preprocessing_is_another_model(name: str) -> None:
    model = sparse()
    other = identity(model, preprocess=replace(PREPROCESS, **PREPROCESSING[name]))
    assert "other preprocessing" in other.differences(identity(model))


PREPARE = """
import numpy as np
import torch

def prepare(photo):
    pixels = torch.from_numpy(np.array(photo.resize((32, 32)), dtype=np.float32)).permute(2, 0, 1) / 255
    return pixels if photo.width != 77 else pixels * 2
"""


def test_a_function_that_prepares_pictures_is_known_by_its_code(tmp_path: Path, monkeypatch: Any) -> None:
    """Not only by what it makes of the pictures that it is tried on."""
    plug_ins, actual = PlugIns(tmp_path / "code", monkeypatch), []
    plug_ins.write(own=PREPARE)
    for old, new in (("", ""), ("* 2", "* 3"), ("* 3", "* 2")):
        plug_ins.edit("own", old, new) if old else None
        actual.append(identity(sparse(), preprocess=plug_ins.load("own").prepare))
    assert actual[0] == actual[2]
    assert actual[1].differences(actual[0]) == "other preprocessing"


def test_a_view_of_another_place_is_another_model() -> None:
    model = sparse()
    assert identity(model).differences(identity(model, layer="features.1")) == "other structure or settings"


# -- models: what is not noticed ---------------------------------------------------------------------------------------


def note_on_it(model: Any) -> None:
    model.trained_by, model.remarks = "somebody", ["good"]


def run_it(model: nn.Module) -> None:
    is_own = isinstance(model, Sparse)
    vision_model = vt.wrap(model, layer="features", preprocess=PREPROCESS) if is_own else vt.wrap(model)
    vt.explain(vision_model, torch.zeros(3, 32, 32), "saliency", 1)
    model(torch.zeros(1, 3, 32, 32))


def give_gradients(model: nn.Module) -> None:
    output = model(torch.zeros(1, 3, 32, 32))
    getattr(output, "logits", output).sum().backward()


def other_names(model: Any) -> None:
    model.pretrained_cfg = {
        **getattr(model, "pretrained_cfg", {}),
        "file": "/elsewhere/weights.pt",
        "label_names": ["a", "b", "c", "d", "e"],
    }
    model.author = "somebody else"


def other_places(model: nn.Module) -> None:
    """The same values in other memory."""
    for part in model.modules():
        for name, tensor in part._parameters.items():
            part._parameters[name] = None if tensor is None else nn.Parameter(tensor.detach().clone())


NOTHING: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda model: model,
    "running": run_it,
    "gradients": give_gradients,
    "training mode": lambda model: model.train(),
    "frozen": lambda model: model.requires_grad_(False),
    "memory format": lambda model: model.to(memory_format=torch.channels_last),
    "notes": note_on_it,
    "names": other_names,
    "tensors elsewhere": other_places,
}


@pytest.mark.parametrize("name", NOTHING)
@pytest.mark.parametrize("make", [FAMILIES["vit"], FAMILIES["siglip"], TIMM["swin"], HF["hf_dinov2"], sparse])
def test_what_changes_no_number_changes_no_identity(make: Callable[[], nn.Module], name: str) -> None:
    before, after = mutated(make, NOTHING[name])
    assert after.differences(before) == ""


@pytest.mark.parametrize("make", [FAMILIES["vit"], FAMILIES["swiglu"], TIMM["swin"], HF["hf_siglip"], sparse])
def test_copies_are_the_same_model(make: Callable[[], nn.Module]) -> None:
    model = make()
    first = identity(model)
    assert identity(copy.deepcopy(model)) == first
    assert identity(pickle.loads(pickle.dumps(model))) == first
    assert identity(make()) == first


def test_names_of_classes_and_of_the_model_are_no_part() -> None:
    model = FAMILIES["vit"]()
    named = vt.wrap(model, name="another", class_names=["a", "b", "c", "d", "e"])
    assert named.identity == identity(model)


def test_a_wrapped_model_is_the_model_inside() -> None:
    model = FAMILIES["vit"]()
    assert vt.wrap(nn.DataParallel(model)).identity == identity(model)


PROCESS = """
import sys
sys.path.insert(0, {tests!r})
from families import FAMILIES
from mutations import VIT, identity, sparse
for make, change in ((FAMILIES["vit"], None), (FAMILIES["vit"], VIT["hook_object"]), (sparse, None)):
    model = make()
    change and change(model)
    print(identity(model))
"""


def test_another_process_sees_the_same_model() -> None:
    code = PROCESS.format(tests=str(Path(__file__).parent.parent / "support"))
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    message = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    hooked = FAMILIES["vit"]()
    VIT["hook_object"](hooked)
    expected = [identity(FAMILIES["vit"]()), identity(hooked), identity(sparse())]
    assert message.stdout.split() == list(map(str, expected)), message.stderr


# -- results in memory -------------------------------------------------------------------------------------------------


@pytest.fixture
def read_weights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    from vitreous.models import identity as module

    count: list[int] = []
    monkeypatch.setattr(module, "fingerprint_of", lambda tensors: count.append(1) or fingerprint_of(tensors))
    return count


def test_weights_are_read_only_where_something_is_stored(read_weights: list[int], tmp_path: Path) -> None:
    model = FAMILIES["vit"]()
    results = vt.explain(model, images(model, 3), "gradient", 1)
    single = vt.explain(model, images(model, 1)[0], "gradient", 1)
    assert not read_weights
    for number, result in enumerate(results):
        result.save(tmp_path / str(number))
    assert len(read_weights) == 1, "once for a batch"
    single.save(tmp_path / "single")
    assert len(read_weights) == 2, "what is written is known by every byte, also where nothing seems to have changed"


def test_the_command_line_reads_weights_once_for_all_questions(read_weights: list[int], tmp_path: Path) -> None:
    options = ("explain", photos(tmp_path / "photos", 1), *MODEL, "--method", "gradient", "--method", "ixg")
    assert run(*options, "--out", tmp_path / "out").code == 0
    assert len(read_weights) == 2, "for what each method stores"
    assert "2 left out" in run(*options, "--out", tmp_path / "out", "--resume").out
    assert len(read_weights) == 3, "once to look for the answers of both"


def test_what_is_stored_has_the_weights_it_was_made_with(tmp_path: Path) -> None:
    model: Any = FAMILIES["vit"]()
    archive = vt.Archive(tmp_path / "archive")
    first = vt.explain(model, photos(tmp_path / "photos", 1) / "0000.png", "gradient", 1)
    one_element_in_the_middle(model)
    second = vt.explain(model, tmp_path / "photos" / "0000.png", "gradient", 1)
    archive.save(second)
    assert archive.find(tmp_path / "photos" / "0000.png", archive.identity(model, "gradient", 1)) is not None
    one_element_in_the_middle(model)
    assert archive.find(tmp_path / "photos" / "0000.png", archive.identity(model, "gradient", 1)) is None
    in_place(model)
    with pytest.warns(VitreousWarning, match=r"^the model was changed before its result was stored"):
        archive.save(first)
    assert archive.find(tmp_path / "photos" / "0000.png", archive.identity(model, "gradient", 1)) is None


def test_a_result_outlives_its_model_and_is_known_by_its_weights(tmp_path: Path) -> None:
    photo = photos(tmp_path / "photos", 1) / "0000.png"
    archive = vt.Archive(tmp_path / "archive")
    archive.save(vt.explain(FAMILIES["vit"](), photo, "gradient", 1))
    assert archive.find(photo, archive.identity(FAMILIES["vit"](), "gradient", 1)) is not None
    model: Any = FAMILIES["vit"]()
    result = vt.explain(model, photo, "ixg", 1)
    swapped, alive = weakref.ref(model.norm.weight), weakref.ref(model)
    swap_parameter(model)
    vt.explain(model, photo, "ixg", 1)
    assert swapped() is None
    del model
    assert alive() is None, "a result does not keep its model"
    with pytest.warns(VitreousWarning, match=r"^the model was changed before its result was stored"):
        archive.save(result)
    assert pickle.loads(pickle.dumps(vt.explain(FAMILIES["vit"](), photo, "gradient", 1))).identity["weights"]


def test_code_that_cannot_be_known_is_never_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_reported", set())
    model, lock = FAMILIES["vit"](), threading.Lock()
    before = identity(model)

    def selected(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        return output if lock else None

    model.blocks[0].register_forward_hook(selected)
    with pytest.warns(VitreousWarning, match="cannot be known"):
        after = identity(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert after.has_unknown_code
        assert after == identity(model) != before


def test_identities_are_read_back_from_their_text() -> None:
    for item in (identity(FAMILIES["vit"]()), ModelIdentity("a", "b", "c", "d"), ModelIdentity("a", "b", "c")):
        assert ModelIdentity.parse(str(item)) == item
    assert ModelIdentity.parse("0123+4567") == ModelIdentity("0123", code="4567")
