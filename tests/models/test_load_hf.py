"""Hugging Face models by name, folder and prompt: what is loaded, and how pictures are prepared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("transformers")

import transformers as hf

import vitreous as vt
from families_hf import FAMILIES, LABELS, build, images
from vitreous.errors import ModelError
from vitreous.models import Preprocess
from vitreous.models import registry as hub
from vitreous.models.adapters.hf import from_processor

# -- classes that are prompts --------------------------------------------------------------------------


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {word: i for i, word in enumerate(["[UNK]", "a", "photo", "of", "cat", "dog", "bird", "sleeping"])}
    words |= {"[PAD]": 96, "<s>": 97, "</s>": 98}
    built = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    built.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 97), ("</s>", 98)]
    )
    return hf.PreTrainedTokenizerFast(tokenizer_object=built, pad_token="[PAD]", eos_token="</s>", unk_token="[UNK]")


PROMPTS = ["a photo of a cat", "a photo of a sleeping dog", "bird"]


@pytest.mark.parametrize("make", ["CLIP", "Siglip"])
def test_prompts_are_classes(make: str) -> None:
    """The logits are the model's own ``logits_per_image`` for these prompts."""
    model = build(f"{make}Model", f"{make}Config")
    vision_model: Any = vt.wrap(model, prompts=PROMPTS, tokenizer=tokenizer())
    assert (vision_model.class_names, vision_model.num_classes) == (PROMPTS, 3)
    assert vision_model.class_index("a photo of a cat") == 0
    padded: Any = True if make == "CLIP" else "max_length"
    words = tokenizer()(PROMPTS, padding=padded, max_length=None if padded is True else 16, return_tensors="pt")
    if make == "Siglip":
        words = {"input_ids": words["input_ids"]}
    else:
        words = {key: words[key] for key in ("input_ids", "attention_mask")}
    with torch.no_grad():
        expected = model(**words, pixel_values=images(2)).logits_per_image
    torch.testing.assert_close(vision_model.logits(images(2)), expected, rtol=0, atol=1e-6)
    assert vt.get_method("generic").attribute(vision_model, images(2), target="bird").shape == (2, 4, 4)
    double = vision_model.module.double()
    assert vision_model.logits(images(2)).dtype == torch.float64
    double.float()


def test_prompts_that_cannot_be_read() -> None:
    model = build("CLIPModel", "CLIPConfig")
    for facts, named in [
        ({}, "no classes of its own; give prompts="),
        ({"prompts": []}, "no classes of its own"),
        ({"prompts": PROMPTS}, "needs tokenizer="),
        ({"prompts": ["cat " * 40], "tokenizer": tokenizer()}, "longer than the 16 pieces"),
        ({"text_embeds": torch.zeros(3)}, "finite numbers"),
        ({"text_embeds": torch.ones(3, 7)}, "7 wide, images 20"),
        ({"text_embeds": torch.ones(3, 20), "class_names": ["a"]}, "3 classes but 1 labels"),
    ]:
        with pytest.raises(ModelError, match=named):
            vt.wrap(model, **facts)
    with pytest.raises(ModelError, match="has classes of its own"):
        vt.wrap(FAMILIES["hf_vit"](), prompts=PROMPTS)


# -- loading -------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved ViT with labels and its processor."""
    model: Any = FAMILIES["hf_vit"]()
    model.config.id2label = dict(enumerate(LABELS))
    model.save_pretrained(tmp_path / "vit")
    processor(hf.ViTImageProcessor, size={"height": 32, "width": 32}).save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def processor(kind: Any, **settings: Any) -> Any:
    return kind(**settings)


def test_a_saved_model_comes_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = FAMILIES["hf_vit"]()
    vision_model = vt.load(f"hf/{folder}")
    assert vision_model.class_names == LABELS
    recipe = vision_model.preprocess
    assert (recipe.size, recipe.mean, recipe.std) == ((32, 32), (0.5,) * 3, (0.5,) * 3)
    assert (recipe.interpolation, recipe.crop, recipe.mode) == ("bilinear", 1.0, "squash")
    same_pixels(recipe, hf.AutoImageProcessor.from_pretrained(folder))
    torch.testing.assert_close(vision_model.logits(images(2)), vt.wrap(model).logits(images(2)))
    assert not vision_model.module.training
    monkeypatch.chdir(folder.parent)
    assert vt.load("hf/./vit", dtype="float64").dtype == torch.float64
    assert vt.load("hf/./vit", attn_implementation="eager").module.config._attn_implementation == "eager"


def test_load_options(folder: Path) -> None:
    name = f"hf/{folder}"
    assert vt.load(name, num_classes=3, class_names=list("abc")).class_names == list("abc")
    larger = vt.load(name, img_size=48)
    assert (larger.preprocess.size, larger.grid()) == ((48, 48), (6, 6))
    same_pixels(larger.preprocess, hf.AutoImageProcessor.from_pretrained(folder, size={"height": 48, "width": 48}))
    untrained = vt.load(name, pretrained=False, img_size=48, num_hidden_layers=2)
    assert (untrained.depth, untrained.grid(), untrained.class_names) == (2, (6, 6), LABELS)
    assert untrained.module.vit.embeddings.position_embeddings.shape[1] == 37
    changed: Any = FAMILIES["hf_vit"]()
    with torch.no_grad():
        changed.classifier.bias += 1
    torch.save(changed.state_dict(), folder / "mine.pt")
    filled = vt.load(name, checkpoint=folder / "mine.pt")
    torch.testing.assert_close(filled.logits(images(1)), vt.wrap(changed).logits(images(1)))


def test_a_prompted_model_comes_back(tmp_path: Path) -> None:
    model = build("CLIPModel", "CLIPConfig")
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    settings = {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}}
    processor(hf.CLIPImageProcessor, **settings).save_pretrained(tmp_path)
    vision_model = vt.load(f"hf/{tmp_path}", prompts=PROMPTS)
    expected = vt.wrap(model, prompts=PROMPTS, tokenizer=tokenizer())
    torch.testing.assert_close(vision_model.logits(images(1)), expected.logits(images(1)))
    assert (vision_model.class_names, vision_model.preprocess.mode, vision_model.preprocess.crop) == (
        PROMPTS,
        "center",
        32 / 36,
    )
    assert vt.wrap(vision_model.module, prompts=["cat"]).class_names == ["cat"]  # the tokenizer is remembered
    assert vt.wrap(vision_model.module, text_embeds=torch.ones(2, 20)).class_names is None
    with pytest.raises(ModelError, match="no classes of its own"):
        vt.load(f"hf/{tmp_path}")
    with pytest.raises(ModelError, match="zero-shot model"):
        vt.load(f"hf/{tmp_path}", num_classes=3)


def test_weights_without_a_head_are_loud(tmp_path: Path) -> None:
    model: Any = FAMILIES["hf_vit"]()
    model.vit.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="hold no classifier; give num_classes="):
        vt.load(f"hf/{tmp_path}")
    with pytest.warns(vt.VitreousWarning, match="no image processor was found"):
        vision_model = vt.load(f"hf/{tmp_path}", num_classes=4, img_size=48)
    assert (vision_model.num_classes, vision_model.grid()) == (4, (6, 6))


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("hf/google/vit-base-patch16-224", {}, "hub cannot be reached"),  # HF_HUB_OFFLINE is set here
        ("hf/./nowhere", {}, "no folder 'nowhere'"),
        ("hf/{folder}/empty", {}, "no config.json"),
        ("hf/{folder}", {"num_classes": 0}, "num_classes=0"),
        ("hf/{folder}", {"pretrained": False, "nonsense": 3}, "no 'nonsense'"),
        ("hf/{folder}", {"prompts": ["cat"]}, "has classes of its own"),
        ("hf/{folder}", {"checkpoint": "nowhere.pt"}, "no checkpoint"),
    ],
)
def test_load_refuses(folder: Path, name: str, options: dict[str, Any], named: str) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(ModelError) as caught:
        vt.load(name.format(folder=folder), **options)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hub_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(hub.hub, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub.hub, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="could not fetch hf/owner/name: the model hub cannot be reached"):
        vt.load("hf/owner/name")
    (tmp_path / "models--owner--name" / "snapshots" / "0").mkdir(parents=True)
    assert hub.reachable("owner/name")


def test_other_types_are_named(tmp_path: Path) -> None:
    hf.BertConfig().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="of type 'bert'; supported: vit, deit"):
        vt.load(f"hf/{tmp_path}")


def test_code_in_a_folder_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
    (tmp_path / "config.json").write_text('{"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}')
    with pytest.raises(ModelError, match="could not load"):
        vt.load(f"hf/{tmp_path}")


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"needs the package transformers: pip install 'vitreous\[hf\]'"):
        vt.load("hf/google/vit-base-patch16-224")
    assert any(info.name == "hf/openai/clip-vit-base-patch32" for info in vt.list_models())


def test_other_models_do_not_import_transformers() -> None:
    code = """
import sys, torch, vitreous as vt
vt.load("timm/vit_tiny_patch16_224", pretrained=False, depth=1)
try:
    vt.wrap(torch.nn.Linear(1, 1))
except vt.VitreousError:
    pass
vt.list_models()
assert "transformers" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- preprocessing -------------------------------------------------------------------------------------


def photograph(width: int, height: int) -> Image.Image:
    noise = torch.randint(0, 256, (height, width, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return Image.fromarray(noise.numpy())


def same_pixels(recipe: Preprocess, processor: Any) -> None:
    """A photograph of any shape is prepared as the installed processor does, and shown as it was prepared."""
    for size in ((400, 300), (61, 97), (300, 40), (7, 5)):
        photo = photograph(*size)
        tensor, seen, _ = recipe.inputs(photo)
        assert tensor.equal(processor(photo, return_tensors="pt")["pixel_values"][0])
        torch.testing.assert_close(recipe.to_tensor(seen), tensor, rtol=0, atol=1e-5)


PROCESSORS: list[tuple[str, dict[str, Any], tuple[Any, ...]]] = [
    ("ViTImageProcessor", {}, ((224, 224), "squash", 1.0, "bilinear")),
    ("DeiTImageProcessor", {}, ((224, 224), "squash", 224 / 256, "bicubic")),
    ("CLIPImageProcessor", {}, ((224, 224), "center", 1.0, "bicubic")),
    ("BitImageProcessor", {"size": {"shortest_edge": 256}}, ((224, 224), "center", 0.875, "bicubic")),
    ("SiglipImageProcessor", {"size": {"height": 64, "width": 96}}, ((64, 96), "squash", 1.0, "bicubic")),
]


@pytest.mark.parametrize(("kind", "settings", "expected"), PROCESSORS)
def test_image_processors_make_their_own_pixels(kind: str, settings: dict[str, Any], expected: tuple[Any, ...]) -> None:
    own_processor = getattr(hf, kind)(**settings)
    ours = from_processor(own_processor)
    assert (ours.size, ours.mode, ours.crop, ours.interpolation) == expected
    assert ours.mean == pytest.approx(tuple(own_processor.image_mean))
    same_pixels(ours, own_processor)


def test_a_processor_that_no_data_describes_makes_its_own_pixels() -> None:
    """ConvNeXt's resizes its shortest edge to more than that for a small input: nothing in ``size`` says so."""
    own_processor = hf.ConvNextImageProcessor(size={"shortest_edge": 64})
    ours = from_processor(own_processor)
    assert (ours.size, ours.mode) == ((64, 64), "own")
    same_pixels(ours, own_processor)
    width, height = 300, 200
    resized = int(64 / own_processor.crop_pct)
    step = height / resized
    left, top = (width - 64 * step) / 2, (height - 64 * step) / 2
    expected = (left, top, width - left, height - top)
    assert ours.inputs(photograph(width, height))[2] == pytest.approx(expected, abs=step)


@pytest.mark.parametrize(("kind", "settings"), [item[:2] for item in PROCESSORS])
def test_where_a_processor_crops(kind: str, settings: dict[str, Any]) -> None:
    """A white block is found in the input where the box says, to a fraction of a pixel of the input."""
    recipe = from_processor(getattr(hf, kind)(**settings))
    for width, height in ((500, 375), (333, 500), (515, 336)):
        pixels = np.zeros((height, width, 3), np.uint8)
        left, top, block = width // 2 - 40, height // 2 - 30, 60
        pixels[top : top + block, left : left + block] = 255
        _, seen, box = recipe.inputs(Image.fromarray(pixels))
        assert box is not None
        light = np.asarray(seen, np.float64)[..., 0]
        columns, down = (box[2] - box[0]) / recipe.size[1], (box[3] - box[1]) / recipe.size[0]
        x = box[0] + columns * np.average(np.arange(recipe.size[1]) + 0.5, weights=light.sum(axis=0))
        y = box[1] + down * np.average(np.arange(recipe.size[0]) + 0.5, weights=light.sum(axis=1))
        assert (x, y) == pytest.approx((left + block / 2, top + block / 2), abs=0.15 * max(columns, down))


@pytest.mark.parametrize("crop", [224, 336, 384, 518])
@pytest.mark.parametrize("resized", [232, 256, 438, 439, 592])
def test_a_crop_gives_the_size_it_came_from(crop: int, resized: int) -> None:
    settings = {"size": {"shortest_edge": resized}, "crop_size": {"height": crop, "width": crop}}
    result = from_processor(hf.CLIPImageProcessor(**settings))
    assert result._scaled_size(resized * 2, resized * 2) == (resized, resized)
