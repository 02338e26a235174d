"""What is explained: classes, rivals, values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import vitreous as vt
from families import FAMILIES, images
from vitreous.errors import TargetError
from vitreous.tracing import Context, Target, probabilities

MODEL = FAMILIES["vit"]()
VIEW = vt.wrap(MODEL, class_names=["tabby, tabby cat", "boxer", "crane", "lynx, catamount", "cougar"])
LOGITS = torch.tensor([[1.0, -2.0, 0.5, 3.0, 0.0], [0.2, 0.1, 4.0, -1.0, 2.0]], dtype=torch.float64)


def score(target=None, contrast=None, output="logit", logits=LOGITS):
    return Target.of(VIEW, len(logits), target, contrast, output).score(logits)


@pytest.mark.parametrize(
    ("target", "classes"),
    [
        (None, [3, 2]),
        ("pred", [3, 2]),
        (1, [1, 1]),
        ("1", [1, 1]),
        ("Tabby Cat", [0, 0]),
        (["boxer", 4], [1, 4]),
        ((0, "catamount"), [0, 3]),
        (torch.tensor([2, 0]), [2, 0]),
        (np.array([2, 0]).tolist(), [2, 0]),
        ([np.int64(2), torch.tensor(0)], [2, 0]),
    ],
)
def test_classes(target, classes):
    expected = [LOGITS[0, classes[0]], LOGITS[1, classes[1]]]
    assert score(target).tolist() == [value.item() for value in expected]


def test_values_are_logit_probability_and_its_logarithm():
    weights = [np.exp(row) / np.exp(row).sum() for row in LOGITS.numpy()]
    assert score(0, output="prob").tolist() == pytest.approx([row[0] for row in weights])
    assert score(0, output="logprob").tolist() == pytest.approx([np.log(row[0]) for row in weights])


@pytest.mark.parametrize("output", ["logit", "prob", "logprob"])
def test_contrast_subtracts_the_mean_of_its_classes(output):
    entry = [score(c, output=output) for c in range(5)]
    assert torch.allclose(score("lynx", contrast="cougar", output=output), entry[3] - entry[4])
    assert torch.allclose(score("lynx", ["cougar", 0], output), entry[3] - (entry[4] + entry[0]) / 2)


def test_against_one_class_is_the_same_for_logits_and_log_probabilities():
    assert torch.allclose(score(3, contrast=4), score(3, contrast=4, output="logprob"))


def test_a_head_of_one_logit_tells_two_classes_apart():
    one = torch.tensor([[2.0], [-1.0]], dtype=torch.float64)
    sigmoid = [1 / (1 + np.exp(-2.0)), 1 / (1 + np.exp(1.0))]
    assert score(1, logits=one).tolist() == [2.0, -1.0]
    assert score(0, logits=one).tolist() == [-2.0, 1.0]
    assert score(logits=one).tolist() == [2.0, 1.0]  # the predicted class of each
    assert score(1, output="prob", logits=one).tolist() == pytest.approx(sigmoid)
    assert score(0, output="logprob", logits=one).tolist() == pytest.approx(np.log(1 - np.array(sigmoid)))
    assert probabilities(one).shape == (2, 2)
    assert probabilities(one).sum(dim=1).tolist() == pytest.approx([1, 1])


def test_a_model_with_one_logit_is_explained_for_both_classes():
    model = FAMILIES["vit"]()
    model.reset_classifier(1)
    x = images(model, 2)
    up, down = (vt.get_method("ixg").attribute(model, x, target=c) for c in (1, 0))
    assert torch.equal(up, -down)
    e = vt.explain(model, x[0])
    assert e.target == int(model(x[:1])[0, 0] > 0)
    assert e.probability >= 0.5


def test_a_callable_target_reads_the_logits():
    actual = Target.of(VIEW, 2, lambda logits: logits[:, 0] - logits[:, 1]).score(LOGITS)
    assert actual.tolist() == [3.0, pytest.approx(0.1)]
    x = images(MODEL, 2)
    difference = vt.get_method("ixg").attribute(VIEW, x, target=lambda logits: logits[:, 3] - logits[:, 4])
    assert torch.allclose(difference, vt.get_method("ixg").attribute(VIEW, x, target=3, contrast=4), atol=1e-5)


def test_gradients_follow_the_value():
    """d p_c = p_c d log p_c: maps of the two differ by that factor."""
    x = images(MODEL, 2)
    prob = vt.get_method("ixg").attribute(VIEW, x, target=2, output="prob")
    log = vt.get_method("ixg").attribute(VIEW, x, target=2, output="logprob")
    factor = probabilities(MODEL(x))[:, 2].detach().view(-1, 1, 1)
    assert torch.allclose(prob, factor * log, atol=1e-6)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"target": 5}, "5 is outside 0..4"),
        ({"target": -1}, "-1 is outside"),
        ({"target": "taby"}, "did you mean tabby"),
        ({"target": [0, 1, 2]}, "3 targets for 2 images"),
        ({"target": 0.5}, "0.5"),
        ({"target": [0.5, 1]}, "0.5 is neither"),
        ({"target": [None, 1]}, "None is neither"),
        ({"target": 0, "contrast": 9}, "9 is outside"),
        ({"target": 0, "contrast": []}, "names no class"),
        ({"target": 0, "output": "odds"}, "'odds' is not one of logit, prob, logprob"),
        ({"target": lambda z: z, "contrast": 1}, "callable target"),
        ({"target": 0, "contrast": lambda z: z}, "neither a class nor a list"),
    ],
)
def test_refused(asked, complaint):
    with pytest.raises(TargetError, match=complaint.replace("(", r"\(")):
        score(**asked)


def test_a_callable_of_the_wrong_shape_is_refused():
    with pytest.raises(TargetError, match="one number per image"):
        score(lambda logits: logits)


def test_the_prediction_is_fixed_on_the_clean_image():
    """Noisy copies explain the class of the image itself, not their own."""
    live = Context(VIEW, images(MODEL, 2), Target.of(VIEW, 2))
    derived = live.with_inputs(torch.randn(6, 3, 32, 32), repeat=3)
    predicted = MODEL(images(MODEL, 2)).argmax(dim=1)
    assert derived.target.classes.tolist() == predicted.repeat_interleave(3).tolist()
