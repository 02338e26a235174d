"""A real model on real photographs; left out where they are not at hand."""

from __future__ import annotations

import pytest
import torch

import vitreous as vt

# Where the animals lie in the crop of photos/catdog.jpg that the model sees, as fractions (left, top, right, bottom).
CAT = (0.25, 0.50, 1.0, 1.0)
DOG = (0.25, 0.0, 0.75, 0.55)
METHODS = ["generic", "skipplus(decompx)", "gradcam", "attcam", "ixg", "decompx", "plus(ixg)"]


@pytest.fixture(scope="module")
def model(shared):
    return vt.load("timm/deit_tiny_patch16_224", checkpoint=shared / "deit_tiny_patch16_224.fp16.safetensors")


def share(e, box):
    """The share of positive mass inside a box."""
    positive = e.upsample().clamp(min=0)
    height, width = positive.shape
    left, top, right, bottom = (round(f * s) for f, s in zip(box, (width, height, width, height), strict=True))
    return (positive[top:bottom, left:right].sum() / positive.sum()).item()


def test_cat_and_dog_get_different_maps(model, shared):
    comparison = vt.compare(model, shared / "photos/catdog.jpg", METHODS, target=["tabby", "boxer"])
    for cat, dog in zip(*comparison.rows, strict=True):
        assert (cat.map - dog.map).abs().max() > 0.1 * cat.map.abs().max(), cat.method


@pytest.mark.parametrize("method", ["generic", "skipplus(decompx)"])
@pytest.mark.parametrize("cat_class", ["tabby", "tiger cat", "Egyptian cat"])
@pytest.mark.parametrize("dog_class", ["boxer", "bull mastiff"])
def test_positive_mass_lies_on_the_animal_asked_for(model, shared, method, cat_class, dog_class):
    photo = shared / "photos/catdog.jpg"
    cat, dog = (vt.explain(model, photo, method, target=name) for name in (cat_class, dog_class))
    assert share(cat, CAT) > share(dog, CAT) + 0.1
    assert share(dog, DOG) > share(cat, DOG) + 0.1


@pytest.mark.parametrize("base", ["generic", "skipplus(decompx)"])
def test_var_keeps_what_is_the_animals_own(model, shared, base):
    """Against the other animal, more of the positive mass lies on the one asked for than without a rival."""
    photo = shared / "photos/catdog.jpg"
    for target, rival, box in (("tabby", "boxer", CAT), ("boxer", "tabby", DOG)):
        explanation = vt.explain(model, photo, base, target=target)
        compare_classes = vt.explain(model, photo, f"var({base}, classes={rival})", target=target)
        assert compare_classes.class_names == (target, rival)
        assert share(compare_classes, box) > share(explanation, box)


def test_the_model_is_as_good_as_it_should_be(model, shared):
    """Preprocessing, labels and weights together: about 70 % of these images are right, so far more than half."""
    import json

    rows = json.loads((shared / "imagenet-val-1k.json").read_text())
    rows = rows["images"] if isinstance(rows, dict) and "images" in rows else rows
    names = sorted((shared / "imagenet-val-1k").iterdir())[:64]
    right = 0
    by_name = {entry["file"].rsplit("/", 1)[-1]: entry for entry in rows}
    for e in vt.explain(model, names, "constant"):
        right += e.prediction.target == by_name[e.name]["label"]
    assert right / len(names) > 0.55


def test_labels_agree_with_the_data(model, shared):
    import json

    names = json.loads((shared / "imagenet-classes.json").read_text())
    assert len(names) == len(model.class_names) == 1000
    assert model.class_index("tabby") == 281
    assert model.class_index("boxer") == 242


def test_keeping_half_of_the_tokens_keeps_most_of_the_evidence(model, shared):
    """Token removal on a real model: the upper half by relevance beats the lower half."""
    e = vt.explain(model, shared / "photos/catdog.jpg", "skipplus(decompx)", target="bull mastiff")
    order = e.map.flatten().argsort(descending=True)
    x = model.preprocess.to_tensor(e.image).unsqueeze(0)
    upper, lower = (model.logits(x, keep=half.unsqueeze(0)).softmax(-1)[0, 243] for half in (order[:98], order[98:]))
    assert upper > lower + 0.1
    assert torch.allclose(model.logits(x, keep=order.sort().values.unsqueeze(0)), model.logits(x), atol=1e-4)
