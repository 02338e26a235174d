"""Methods by the names that people know, and classes by a word of their name."""

from __future__ import annotations

import pytest
import timm.data

import vitreous as vt
from commands import run
from vitreous.errors import SpecError, TargetError
from vitreous.models.class_names import find_label
from vitreous.registry.defaults import METHOD_SYNONYMS
from vitreous.registry.registry import normalize_name


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("GradCAM", "gradcam"),
        ("Grad-CAM", "gradcam"),
        ("gradcam++", "gradcam_pp"),
        ("Grad-CAM++", "gradcam_pp"),
        ("Grad CAM ++", "gradcam_pp"),
        ("GradCAMPlusPlus", "gradcam_pp"),
        ("IG", "integrated_gradients"),
        ("Integrated Gradients", "integrated_gradients"),
        ("LayerCAM", "layercam"),
        ("Score-CAM", "scorecam"),
        ("SmoothGrad", "smooth(saliency)"),
        ("Attention Rollout", "rollout"),
        ("SHAP", "kernel_shap"),
        ("KernelSHAP", "kernel_shap"),
        ("GradientShap", "gradient_shap"),
        ("Expected Gradients", "gradient_shap"),
        ("LIME", "lime"),
        ("RISE", "rise"),
        ("XRAI", "xrai"),
        ("ViT-CX", "vit_cx"),
        ("ViTCX", "vit_cx"),
        ("AtMan", "atman"),
        ("Occlusion", "occlusion"),
        ("FeatureAblation", "occlusion"),
        ("GuidedIG", "guided_ig"),
        ("Guided Integrated Gradients", "guided_ig"),
        ("BlurIG", "blur_ig"),
        ("LRP", "lrp"),
        ("AttnLRP", "attnlrp"),
        ("CP-LRP", "cp_lrp"),
        ("Partial LRP", "partial_lrp"),
        ("Transformer Attribution", "transatt"),
        ("VarGrad", "smooth(saliency, kind=variance)"),
        ("plus(AttnLRP)", "plus(attnlrp)"),
        ("plus(Grad-CAM)", "plus(gradcam)"),
        ("smooth(Grad-CAM++, samples=3)", "smooth(gradcam_pp, samples=3)"),
        ("consensus(SmoothGrad, IG)", "consensus(smooth(saliency), integrated_gradients)"),
    ],
)
def test_usual_ways_to_write_a_method(name: str, spec: str) -> None:
    assert vt.get_method(name).spec == spec


def test_every_name_is_found_in_capitals_and_with_hyphens() -> None:
    for noun, infos, created in (
        ("method", vt.list_methods(), vt.get_method),
        ("metric", vt.list_metrics(), vt.get_metric),
    ):
        for info in infos:
            if noun == "metric" or not info.is_combinator:
                written = info.name.upper().replace("_", "-")
                assert created(written).info is info


def test_no_two_names_sound_alike() -> None:
    words = [word for info in vt.list_methods() for word in (info.name, *info.aliases)]
    assert len({normalize_name(word) for word in words}) == len(words)
    assert not {normalize_name(word) for word in words} & set(METHOD_SYNONYMS)
    for spec in METHOD_SYNONYMS.values():
        vt.get_method(spec)


def test_unknown_ones_say_what_they_did() -> None:
    with pytest.raises(SpecError, match=r"is spelled smooth\(saliency\) here"):
        vt.get_method("SmoothGrad(samples=3)")
    with pytest.raises(SpecError, match="unknown method 'rolout'; did you mean rollout"):
        vt.get_method("rolout")
    with pytest.raises(SpecError, match="nothing more was expected at character 9"):
        vt.get_method("gradcam banana")


def test_lists_and_citations_take_usual_names() -> None:
    assert run("methods", "Grad-CAM").out.startswith("gradcam ")
    assert "selvaraju2017" in run("cite", "Grad-CAM").out


@pytest.fixture(scope="module")
def imagenet() -> list[str]:
    return list(timm.data.ImageNetInfo("imagenet-1k").label_descriptions())


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("cat", r"; did you mean tabby, tiger cat, Persian cat, Siamese cat or Egyptian cat\?"),
        ("Cat ", r"; did you mean tabby, tiger cat, Persian cat, Siamese cat or Egyptian cat\?"),
        ("terriers", r"terrier"),
        ("tabbi", r"; did you mean tabby"),
        ("shepherd", r"German shepherd"),
        ("qqqqqq", r"'qqqqqq'$"),
        ("", r"''$"),
    ],
)
def test_a_word_of_class_names_is_answered_with_them(imagenet: list[str], word: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        find_label(word, imagenet, 1000)
