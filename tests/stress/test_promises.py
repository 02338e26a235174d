"""Promises: memory by a budget, one clear line instead of a traceback, nothing hostile on the terminal."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
import weakref
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import vitreous as vt
from commands import MODEL, photographs, run
from families import FAMILIES, images
from vitreous import viz as show
from vitreous.errors import VitreousError, VitreousWarning
from vitreous.methods import registry
from vitreous.registry.registry import Registry
from vitreous.tracing import Context, Target
from vitreous.tracing.memory import in_parts
from vitreous.tracing.plan import Recorder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return photographs(tmp_path)


# -- memory ------------------------------------------------------------------------------------------------------------

PEAK = """
import sys, threading, time
import torch, vitreous as vt
from timm.models.vision_transformer import VisionTransformer
view = vt.wrap(VisionTransformer(img_size=224, patch_size=16, embed_dim=24, depth=2, num_heads=2))
inputs = torch.randn({batch}, 3, 224, 224)
vt.get_method("saliency").attribute(view, inputs[:1], memory_gb=0.1)
def used():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
before = most = used()
def watch():
    global most
    while not done:
        most = max(most, used())
        time.sleep(0.001)
done = False
thread = threading.Thread(target=watch)
thread.start()
vt.get_method("{spec}").attribute(view, inputs, memory_gb=0.1)
done = True
thread.join()
print((most - before) / 2**30)
"""


def peak(spec: str, batch: int) -> float:
    """GiB that a method takes at ``memory_gb=0.1``, in a process of its own."""
    code = PEAK.format(spec=spec, batch=batch)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    return float(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of a process from /proc")
@pytest.mark.parametrize(
    ("spec", "batch", "most"),
    [
        pytest.param("smooth(saliency, samples=100)", 4, 0.2, marks=pytest.mark.slow),
        pytest.param("integrated_gradients(steps=200)", 4, 0.2, marks=pytest.mark.slow),
        ("var(saliency, classes='top:30')", 4, 0.25),
    ],
)
def test_memory_does_not_grow_with_the_job(spec: str, batch: int, most: float) -> None:
    assert peak(spec, batch) < most


@pytest.mark.parametrize(
    "options",
    ["ixg", "generic", "decompx", "saliency", "gradcam", "fullgrad", "vtranm", "legrad", "lrp", "transatt", "attnlrp"],
)
def test_a_pass_is_forgotten_without_the_garbage_collector(options: str) -> None:
    """Circles of references would keep the tensors of every pass until Python happens to look for them."""
    model = FAMILIES["vit"]()
    vision_model, x = vt.wrap(model), images(model, 2)
    vt.get_method(options).attribute(vision_model, x, 1)
    result: list[weakref.ref[Recorder]] = []
    begin = Recorder.__init__

    def noted(self: Recorder, *arguments: Any) -> None:
        begin(self, *arguments)
        result.append(weakref.ref(self))

    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Recorder, "__init__", noted)
            vt.get_method(options).attribute(vision_model, x, 1)
        assert result
        assert [item for item in result if item() is not None] == []
    finally:
        gc.enable()


def test_var_in_parts_is_var(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few classes for some images, so that the parts have to be filled up."""
    model = FAMILIES["vit"]().double()
    x = images(model, 5)
    for spec in ("var(generic, classes='top:2')", "var(saliency, classes='0,1,2')"):
        full, extras = vt.get_method(spec).attribute(model, x, extras=True)
        cut, parts = vt.get_method(spec).attribute(model, x, extras=True, memory_gb=1e-6)
        torch.testing.assert_close(cut, full)
        assert extras.keys() == parts.keys()
        for name, value in extras.items():
            torch.testing.assert_close(parts[name], value)


def test_smooth_in_parts_has_the_mean_and_deviation_of_all_copies() -> None:
    model = FAMILIES["vit"]().double()
    x, options = images(model, 2), vt.get_method("smooth(ixg, samples=7)")
    full, extras = options.attribute(model, x, 1, extras=True)
    for size in (1, 2, 6):
        cut, parts = options.attribute(model, x, 1, extras=True, batch_size=size)
        torch.testing.assert_close(cut, full)
        torch.testing.assert_close(parts["deviation"], extras["deviation"])


def test_a_photograph_in_bands_is_the_photograph(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    photo = Image.fromarray(rng.integers(0, 256, (97, 131, 3), dtype=np.uint8))
    for values in (rng.normal(size=(7, 9)), rng.random((200, 150)), np.where(rng.random((5, 4)) < 0.3, np.nan, 1.5)):
        scale = show.Scale.of([values], 99.0)
        box = (10.3, -4.0, 120.6, 90.2)
        full = np.asarray(show.overlay(photo, values, scale)), np.asarray(show.on_photo(photo, values, box, scale))
        with monkeypatch.context() as patched:
            patched.setattr(sys.modules["vitreous.viz.overlays"], "_BAND", 131 * 10)
            cut = np.asarray(show.overlay(photo, values, scale)), np.asarray(show.on_photo(photo, values, box, scale))
        for one, other in zip(full, cut, strict=True):
            assert np.abs(one.astype(int) - other.astype(int)).max() <= 1


@pytest.mark.parametrize(
    "words",
    ["could not create a primitive", "DefaultCPUAllocator: can't allocate memory: you tried", "std::bad_alloc"],
)
def test_every_way_to_say_out_of_memory_is_understood(words: str) -> None:
    def work(start: int, stop: int) -> int:
        if stop - start > 2:
            raise RuntimeError(words)
        return stop - start

    assert sum(in_parts(work, 9, 8)) == 9
    with pytest.raises(RuntimeError, match="shape"):
        in_parts(lambda start, stop: (_ for _ in ()).throw(RuntimeError("shape mismatch")), 4, 2)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_a_file_without_an_end_is_not_read_to_it(here: Path) -> None:
    for option in ("--class-names", "--labels"):
        result = run("evaluate", MODEL[1], "a.png", *MODEL[2:], option, "/dev/zero")
        assert (result.code, "not a regular file" in result.err) == (2, True)
    assert run("explain", "a.png", *MODEL, "--labels", "/dev/zero").code == 2


# -- other people's packages and broken models -------------------------------------------------------------------------


def test_a_plug_in_that_fails_takes_nothing_away(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    entry = EntryPoint("odd", "a_package_that_is_not_there:Odd", "vitreous.methods")
    monkeypatch.setattr("vitreous.registry.registry.entry_points", lambda group: [entry])
    methods: Registry[Any] = Registry("method", "vitreous.methods", ())
    with pytest.warns(VitreousWarning, match="the method odd of another package cannot be imported"):
        methods.all()
    assert methods.all() == []
    monkeypatch.setattr(registry.REGISTRY, "complete", False)
    listed = run("methods")
    assert listed.code == 0
    assert "generic" in listed.out
    assert "Traceback" not in listed.err


class Broken(nn.Module):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no such luck")


@pytest.mark.parametrize("make", [Broken, lambda: object(), lambda: None, lambda: nn.Linear(3, 3)])
def test_the_diagnosis_never_raises(make: Any) -> None:
    try:
        patient = make()
    except RuntimeError:
        patient = object.__new__(Broken)
    diagnosis = vt.diagnose(patient)
    assert not diagnosis.healthy
    assert "\n" not in diagnosis.checks[0].sentence


def test_the_diagnosis_never_raises_on_a_half_made_model() -> None:
    for damage in ("blocks", "patch_embed", "head", "norm"):
        model = FAMILIES["vit"]()
        delattr(model, damage)
        assert not vt.diagnose(model).healthy


# -- one clear line ----------------------------------------------------------------------------------------------------


def lines(ask: Any, match: str) -> None:
    with pytest.raises(VitreousError, match=match) as error:
        ask()
    assert "\n" not in str(error.value)


def test_numbers_that_are_too_large() -> None:
    lines(lambda: vt.get_method(f"coiba(steps={'9' * 5000})"), "this number is too large at character 13")
    lines(lambda: vt.get_method("smooth(ixg, sigma=1e999)"), "this number is too large")
    lines(lambda: vt.get_method("ixg(layer=²)"), "cannot be read")
    lines(lambda: vt.get_method("ixg(layer=٣)"), "cannot be read")
    model = FAMILIES["vit"]()
    x = images(model, 1)
    for seed in (2**70, -1, 1.5, "7", True):
        lines(lambda seed=seed: vt.explain(model, x, "random", seed=seed), "seed=")
        lines(lambda seed=seed: vt.evaluate(model, x, "ixg", "deletion(steps=2)", seed=seed), "seed=")
        lines(lambda seed=seed: vt.collect_activation_stats(model, noise=4, seed=seed), "seed=")
        lines(lambda seed=seed: vt.diagnose(model, seed=seed), "seed=")


def test_odd_targets_on_the_command_line(here: Path) -> None:
    for command in (("explain", "a.png", *MODEL, "--method", "ixg"), ("evaluate", MODEL[1], "a.png", *MODEL[2:])):
        for target in ("²", "٣", "9" * 5000):
            result = run(*command, "--target", target)
            assert result.code == 2
            assert result.err.count("\n") == 1
            assert "Traceback" not in result.err
    assert run("explain", "a.png", *MODEL, "--method", "random", "--seed", 2**70).code == 2


def test_sub_networks_say_what_they_take() -> None:
    model = vt.wrap(FAMILIES["vit"]())
    part = model.suffix(1)
    for tokens in (torch.zeros(0, 17, 24), torch.zeros(2, 17, 25), torch.zeros(2, 17), torch.zeros(2, 1, 24)):
        lines(lambda tokens=tokens: Context(part, tokens, Target.of(part, len(tokens), 1)).logits, "takes tokens|empty")


def test_a_model_made_in_inference_mode_is_explained() -> None:
    with torch.inference_mode():
        model = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=5).eval()
    x = torch.randn(2, 3, 32, 32)
    for options in ("ixg", "generic", "skipplus(decompx)", "coiba(steps=3)", "tis(masks=8)"):
        assert torch.isfinite(vt.get_method(options).attribute(model, x, 1)).all()


def test_statistics_of_a_wrong_shape_are_refused(tmp_path: Path) -> None:
    model = FAMILIES["vit"]()
    vision_model, x = vt.wrap(model), images(model, 12)
    result = vt.collect_activation_stats(vision_model, x)
    from dataclasses import replace

    for cut in (lambda m: m[:, :5], lambda m: m[:3]):
        moments = {
            key: type(moment)(cut(moment.mean), cut(moment.square), moment.n) for key, moment in result.moments.items()
        }
        options = vt.get_method("coiba(steps=3)")
        bad = replace(options, stats=replace(result, moments=moments))
        lines(lambda bad=bad: bad.attribute(vision_model, x[:1]), "do not fit tokens of shape")
    nothing = {
        key: type(moment)(moment.mean * float("nan"), moment.square, moment.n) for key, moment in result.moments.items()
    }
    path = replace(result, moments=nothing).save(tmp_path / "s.safetensors")
    lines(lambda: vt.ActivationStats.load(path), "holds no statistics that can be read")


def test_a_world_of_a_thousand_million_scenes(here: Path) -> None:
    for command in ("render", "show"):
        result = run("world", command, "--n", "1000000000", "--out", "x.png")
        assert (result.code, result.err.count("\n")) == (2, 1)
        assert "1000000000" in result.err


def test_deep_specs_are_read_at_once() -> None:
    spec = "ixg"
    for _ in range(19):
        spec = f"consensus({spec}, generic)"
    method = vt.get_method(spec)
    assert method.outputs("logit") == ("logit",)
    assert len(method.components()) == 39
    assert len(method.fingerprint) == 32


# -- the terminal ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes")
def test_names_that_are_no_text_are_printed_on_a_strict_terminal(here: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    Image.open("a.png").save(name)
    code = "from vitreous.cli import main; main()"
    arguments = ["explain", name, "missing.png", *MODEL, "--method", "ixg", "--out", "out"]
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code, *arguments[:2], *arguments[3:]], capture_output=True, env=strict,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    done = subprocess.run([sys.executable, "-c", code, "explain", name + "x", *MODEL], capture_output=True, env=strict,
                          check=False)  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


def test_control_characters_do_not_reach_the_terminal(here: Path) -> None:
    evil = "a\x1b[31m\x07\nb.png"
    Image.open("a.png").save(evil)
    torch.save(vt.load(MODEL[1], pretrained=False, img_size=32, num_classes=2).module.state_dict(), "w.pth")
    Path("names.json").write_text('["cat\\u001b[2J", "dog\\nfish\\u0007"]')
    labels = ("--checkpoint", "w.pth", "--num-classes", "2", "--labels", "names.json")
    for message in (
        run("explain", evil, *MODEL, *labels, "--method", "ixg", "--check", "--out", "out"),
        run("compare", evil, *MODEL, *labels, "--method", "ixg", "--tile", "48"),
        run("explain", evil, *MODEL, "--target", "\x1b[2J"),
        run("explain", "missing\x1b[2J\n.png", *MODEL),
    ):
        assert not {"\x1b", "\x07", "\r"} & set(message.out + message.err)
        assert message.err.count("\n") <= 1


def test_only_formats_that_we_mean_are_read(tmp_path: Path) -> None:
    """PostScript behind .jpg would start a program."""
    (tmp_path / "x.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    buffer = io.BytesIO()
    Image.new("RGB", (40, 40)).save(buffer, format="PCX")
    (tmp_path / "y.png").write_bytes(buffer.getvalue())
    for name in ("x.jpg", "y.png"):
        lines(lambda name=name: vt.explain(FAMILIES["vit"](), tmp_path / name, "ixg"), "is not an image")
    for kind in ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"):
        Image.new("RGB", (40, 40), (9, 99, 199)).save(tmp_path / "z.png", format=kind)
        assert vt.explain(FAMILIES["vit"](), tmp_path / "z.png", "ixg", 1).map.shape == (4, 4)
