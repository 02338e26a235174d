"""The golden numbers of the specification sheets, from an unmodified timm model in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import vitreous as vt
from families import golden

MODEL, IMAGE = golden()


def attribute(spec, target=2):
    return vt.get_method(spec).attribute(MODEL, IMAGE, target=target)[0]


def test_the_golden_model_is_the_golden_model():
    expected = [0.71619, 1.0677, 0.83548254, -0.47118, 1.15685, -0.77445, 0.00048726]
    assert MODEL(IMAGE)[0].tolist() == pytest.approx(expected, abs=5e-5)
    assert MODEL(IMAGE)[0, 2].item() == pytest.approx(0.8354825375, abs=1e-10)


# sum, max, arg max, entries 0, 50, 101, 195
TABLE = {
    "raw_attention": (0.996433418, 0.0117300088, 95, 0.00602640024, 0.00696250219, 0.00461077857, 0.00313784085),
    "rollout": (0.932343126, 0.00658849419, 0, 0.00658849419, 0.00446832898, 0.00468541632, 0.00450073619),
    "rollout(start=1)": (0.871060792, 0.00685458026, 178, 0.0057306762, 0.00397844909, 0.00424380456, 0.00347754601),
    "generic": (0.267971885, 0.00388684684, 171, 0.00141267959, 0.00209148846, 0.00207339317, 0.00168219576),
    "rollout@vit_explain": (36.0278653, 1, 162, 0.39714603, 0.0388245448, 0.0596583581, 0.018144422),
    "rollout(0, max, 0.9, released)": (32.7915461, 1, 70, 0.313977725, 0.0805855074, 0.0793349204, 0.0443489409),
    "rollout(0, min, 0.9, released)": (17.0168664, 1, 90, 0.0240211303, 0.259764275, 0.0139318767, 0.0107202599),
    "grad_rollout": (0.1448499, 0.00294691189, 171, 2.29709044e-05, 0.00101815467, 0.00117986855, 0.00142602031),
    "grad_rollout@vit_explain": (27.4157334, 1, 40, 0.0826104455, 0.241834662, 0.169311426, 0.147262056),
    "generic@bt": (0.160674815, 0.00345176035, 171, 2.43678985e-05, 0.00116012015, 0.00130631508, 0.00165492247),
    "gradsam": (0.000830048563, 8.30476211e-06, 158, 5.35121175e-06, 4.52983207e-06, 5.22030783e-06, 4.86658249e-06),
    "cat": (-0.167669631, 0.00852360129, 58, -0.00178711024, 0.00123319427, 0.000225663767, -0.00270460257),
    "attcat": (-0.00283677865, 1.42921788e-05, 61, -3.90309036e-05, -1.62338832e-05, -1.9730486e-06, -1.00072962e-05),
    "attcat@released": (
        -0.00105795304,
        3.68595502e-05,
        58,
        -6.83837629e-06,
        1.10266872e-05,
        1.69862508e-06,
        -1.24525858e-05,
    ),
    "legrad(last=2)": (0.218029839, 0.00254217505, 19, 0.00131466806, 0.00134342718, 0.000985958168, 0.000468919194),
    "legrad": (0.792628534, 0.00994589888, 166, 0.00295105689, 0.0057547551, 0.00516464241, 0.00330615189),
    "plus(ixg)": (-0.167669631, 0.00852360129, 58, -0.00178711024, 0.00123319427, 0.000225663767, -0.00270460257),
}


@pytest.mark.parametrize("spec", TABLE)
def test_token_maps(spec):
    total, largest, place, *entries = TABLE[spec]
    actual = attribute(spec).flatten()
    if largest == 1:  # the script divides by the maximum
        actual = actual / actual.max()
    assert actual.sum().item() == pytest.approx(total, rel=1e-8)
    assert actual.max().item() == pytest.approx(largest, rel=1e-8)
    assert actual.argmax().item() == place
    assert actual[[0, 50, 101, 195]].tolist() == pytest.approx(entries, rel=1e-8)


@pytest.mark.parametrize(
    ("unchanged", "preset"),
    [
        ("rollout", "rollout@vit_explain"),
        ("grad_rollout", "grad_rollout@vit_explain"),
        ("generic", "generic@bt"),
        ("attcat", "attcat@released"),
        ("gradsam", "gradsam@plus"),
    ],
)
def test_presets_differ_from_the_formula(unchanged, preset):
    """Released code and formula rank the patches differently."""
    one, other = (attribute(spec).flatten().argsort() for spec in (unchanged, preset))
    assert (one != other).float().mean() > 0.5


def test_presets_that_are_compositions():
    assert torch.allclose(attribute("gradsam@plus") * 4, attribute("plus(generic)"), rtol=1e-10)
    assert torch.allclose(attribute("attcat@plus"), attribute("plus(attixg)"), rtol=1e-10, atol=1e-18)
    assert torch.allclose(attribute("cat"), attribute("plus(ixg)"), rtol=1e-10)


def test_attcam_after_the_published_post_processing():
    """ReLU and min-max are the release's. Maps of three classes are negative everywhere; the release gives NaN."""
    displayed = attribute("attcam", target=0).flatten().clamp(min=0)
    displayed = (displayed - displayed.min()) / (displayed.max() - displayed.min())
    assert displayed.sum().item() == pytest.approx(3.83071985, rel=1e-8)
    assert displayed.argmax().item() == 41
    assert displayed[[0, 50, 101, 195]].tolist() == [0, 0, 0, 0]
    for target in (2, 4, 5):
        assert (attribute("attcam", target=target) <= 0).all()


# mean, value at (100, 37), flat arg max of the 224 x 224 map
CAMS = {"gradcam": (0.0350109, 0.002567, 37624), "hirescam": (0.0299936, 0.007229, 23255)}


@pytest.mark.parametrize("spec", CAMS)
def test_cams_after_the_published_post_processing(spec):
    """The usual tail: ReLU, scale at 14 x 14, enlarge, ReLU, scale again."""
    mean, value, place = CAMS[spec]

    def rescale(m):
        m = m - m.min()
        return m / (1e-7 + m.max())

    small = rescale(attribute(spec).clamp(min=0)).float()
    large = F.interpolate(small[None, None], size=(224, 224), mode="bilinear", align_corners=False)[0, 0]
    large = rescale(large.clamp(min=0))
    assert large.mean().item() == pytest.approx(mean, abs=5e-7)
    assert large[100, 37].item() == pytest.approx(value, abs=5e-6)
    assert large.argmax().item() == place


def test_pixel_gradients():
    assert attribute("saliency").sum().item() == pytest.approx(44.9655535, rel=1e-8)
    actual = attribute("integrated_gradients")
    assert actual.sum().item() == pytest.approx(0.0292804716, rel=1e-8)
    with torch.no_grad():
        difference = MODEL(IMAGE)[0, 2] - MODEL(torch.zeros_like(IMAGE))[0, 2]
    assert actual.sum().item() == pytest.approx(difference.item(), abs=1e-9)  # completeness
