"""Convolutional networks with every metric: VAR over their methods, regions and parts that are known, FunnyBirds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch.nn import functional as F

import vitreous as vt
from families import images
from families_cnn import FAMILIES
from reference_localization import SLOW, pixels
from reference_var import definition
from vitreous.benchmark.protocol import read
from vitreous.world import World
from vitreous.world.models import ADAPTER

WORLD = World(n=2, start=3)


@pytest.fixture(scope="module")
def creatures() -> vt.VisionModel:
    """The network of the bundled world, untrained: whatever it predicts, its evaluation is the same."""
    torch.manual_seed(3)
    return vt.wrap(ADAPTER.load("world-cnn", pretrained=False).eval())


# -- VAR ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["resnet", "tv_densenet"])
@pytest.mark.parametrize("base", ["gradcam", "input_x_gradient", "guided_backprop", "saliency"])
def test_var_is_its_definition_over_separate_runs(family: str, base: str) -> None:
    model = vt.wrap(FAMILIES[family]())
    model.module.double()
    x = images(model, 2)
    result, extras = vt.get_method(f"var({base}, classes='3,0,2', preset=sharp)").attribute(model, x, 3, extras=True)
    apart = [vt.get_method(base).attribute(model, x, target=c).numpy() for c in (3, 0, 2)]
    for i in range(2):
        expected, q = definition(np.stack([item[i] for item in apart]), "sharp")
        assert np.allclose(extras["distribution"][i], q, atol=1e-9)
        assert np.allclose(result[i], expected, atol=1e-9)
    assert (result != 0).any()
    assert (result == 0).any()


def test_var_of_guided_backpropagation_is_refused_where_there_is_no_relu() -> None:
    model = FAMILIES["tv_convnext"]()
    with pytest.raises(vt.VitreousError, match="ReLUs only"):
        vt.get_method("var(guided_backprop)").attribute(model, images(model, 1))


def test_var_on_the_pixels_of_the_image() -> None:
    """As the protocols spell it: enlarged before classes are compared."""
    model = FAMILIES["resnet"]()
    x = images(model, 1)
    assert vt.get_method("var(gradcam, upsample=true)").attribute(model, x).shape == (1, 32, 32)


# -- known regions and parts -------------------------------------------------------------------------------------------


def test_localisation_is_that_of_the_map_enlarged() -> None:
    """Every localisation metric, against loops over pixels."""
    model = vt.wrap(FAMILIES["resnet"]())
    x = images(model, 2)
    mask = np.zeros((32, 32), dtype=bool)
    mask[4:19, 8:21] = True
    truths = [vt.Annotation(mask), vt.Annotation(~mask)]
    table = vt.evaluate(
        model, x, ["gradcam"], list(SLOW), annotations=truths, labels=[0, 1], target="label", n_bootstrap=1
    )
    maps = torch.cat([vt.get_method("gradcam").attribute(model, x[i : i + 1], target=i) for i in range(2)])
    for metric, slow in SLOW.items():
        fine = pixels(maps, "nearest" if metric == "average_precision" else "bilinear")
        expected = [slow(fine[i], truths[i].mask, np.ones((32, 32))) for i in range(2)]
        np.testing.assert_allclose(table["gradcam", metric], expected, atol=1e-5)


def test_parts_against_the_network_called_directly(creatures: vt.VisionModel) -> None:
    """Each part painted over in turn, ranks by scipy; and what the map gives to one of them."""
    values = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    scored = ["part_correlation", "shortcut"]
    table = vt.evaluate(
        creatures, list(WORLD.images()), {"noise": values}, scored, annotations=list(WORLD.annotations()), n_bootstrap=1
    )
    fine = F.interpolate(values[:, None], (128, 128), mode="bilinear", align_corners=False)[:, 0].numpy()
    for image, (picture, truth) in enumerate(zip(WORLD.images(), WORLD.annotations(), strict=True)):
        x = creatures.preprocess.to_tensor(picture)
        provided, lost = [], []
        with torch.no_grad():
            complete = creatures.module(x[None])[0]
            best = int(complete.argmax())
            for mask in (part for part in truth.parts.values() if part.any()):
                painted = torch.where(torch.from_numpy(mask), x.mean(dim=(1, 2), keepdim=True), x)
                lost.append(float(complete[best] - creatures.module(painted[None])[0, best]))
                provided.append(float(fine[image][mask].sum()))
        assert table["noise", "part_correlation"][image] == pytest.approx(spearmanr(provided, lost)[0], abs=1e-6)
    assert np.isnan(table["noise", "shortcut"]).all()  # no scene here has a marker


def test_funnybirds(creatures: vt.VisionModel) -> None:
    """An oracle that knows what every part is worth has the right order; falls are those of the scenes themselves."""
    result = vt.funnybirds(creatures, ["gradcam", "guided_backprop"], WORLD, oracle=True, n_bootstrap=10)
    assert result.checks["oracle"].sd == pytest.approx(np.ones(len(WORLD)))
    for name in ("gradcam", "guided_backprop"):
        assert np.isfinite(result.checks[name].sd).all()
        assert result.score(name, "sd") < 1


# -- other metrics -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["insertion", "deletion", "road", "sensitivity_n", "mprt@var"])
def test_pixels_are_painted_where_tokens_cannot_be_left_out(metric: str) -> None:
    model = vt.wrap(FAMILIES["tv_vgg"]())
    table = vt.evaluate(model, images(model, 2), ["gradcam"], [metric], n_bootstrap=1, controls=False)
    assert np.isfinite(table["gradcam", metric]).all()


def test_removing_tokens_is_refused() -> None:
    model = vt.wrap(FAMILIES["tv_vgg"]())
    with pytest.raises(vt.VitreousError, match="tokens out"):
        vt.evaluate(model, images(model, 2), ["gradcam"], ["token_deletion_aopc"], n_bootstrap=1)


@pytest.mark.parametrize(
    ("label", "family"),
    [("ResNet50", "tv_resnet"), ("DenseNet121", "tv_densenet"), ("ConvNeXt", "tv_convnext")],
)
@pytest.mark.filterwarnings("ignore::vitreous.VitreousWarning")
def test_every_row_of_a_protocol_runs_on_its_kind_of_network(label: str, family: str) -> None:
    protocol = read("var-table3")
    model = next(item for item in protocol.models if item.label == label)
    rows = protocol.methods_of(model)
    assert ("GBP" in rows, "LRP + VAR" in rows) == (label != "ConvNeXt",) * 2
    vision_model = vt.wrap(FAMILIES[family]())
    x = images(vision_model, 1)
    for spec in rows.values():
        result = vt.get_method(spec.replace("steps=128", "steps=2")).attribute(
            vision_model, x, compare_classes=[0, 1, 2]
        )
        assert torch.isfinite(result).all()
