"""``why``: every number on the page is the model's answer to the picture beside it."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import vitreous as vt
from vitreous.evaluation.evidence import strongest
from vitreous.html import percent
from vitreous.world import Scene, render
from zoo import CNNS


def scene(seed: int = 35) -> Image.Image:
    values = render(Scene.of(seed)).images[0]
    return Image.fromarray((values.permute(1, 2, 0) * 255).round().byte().numpy())


@pytest.fixture(scope="module")
def world() -> vt.VisionModel:
    return vt.load("world")


@pytest.fixture(scope="module")
def result(world: vt.VisionModel) -> Any:
    return vt.why(world, scene())


def class_probabilities(model: vt.VisionModel, picture: Image.Image) -> torch.Tensor:
    return model.logits(model.preprocess.to_tensor(picture)[None])[0].softmax(dim=0)


def test_what_it_says_is_what_the_model_says(world: vt.VisionModel, result: Any) -> None:
    expected = class_probabilities(world, result.explanation.image)
    best = expected.argsort(descending=True)[:5].tolist()
    assert [label for _, label, _ in result.classes] == [world.label(item) for item in best]
    assert [chance for _, _, chance in result.classes] == pytest.approx(expected[best].tolist(), abs=1e-6)
    assert result.explanation.target == best[0]
    assert result.runner_up == (best[1], world.label(best[1]))
    assert result.contrast.request.contrast == (best[1],)


def test_the_contrast_is_about_what_the_model_saw() -> None:
    """Also where a picture is enlarged and its middle cut out: that is done once."""
    torch.manual_seed(0)
    model = vt.load("timm/test_vit", pretrained=False, img_size=32, device="cpu")
    assert model.preprocess.crop < 1
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 60, 3), dtype=np.uint8))
    result = vt.why(model, photo, method="ixg")
    rival = result.contrast.request.contrast[0]
    expected = vt.explain(model, photo, "ixg", result.explanation.target, contrast=rival)
    assert np.array_equal(result.contrast.image, result.explanation.image)
    assert torch.allclose(result.contrast.map, expected.map, atol=1e-6)


def test_the_tries_are_answers_to_the_pictures_shown(world: vt.VisionModel, result: Any) -> None:
    e = result.explanation
    for answer in (result.without, result.alone):
        expected = class_probabilities(world, answer.image)
        assert answer.explained == pytest.approx(float(expected[e.target]), abs=1e-6)
        assert answer.label == world.label(int(expected.argmax()))
    mask = np.kron(strongest(e.map), np.ones((e.image.height // e.map.shape[0], e.image.width // e.map.shape[1]))) > 0
    assert strongest(e.map).sum() == round(e.map.numel() / 5)
    seen, without, alone = (np.asarray(item) for item in (e.image, result.without.image, result.alone.image))
    assert (without[~mask] == seen[~mask]).all()
    assert (alone[mask] == seen[mask]).all()
    assert (without[mask] != seen[mask]).any()


def test_the_strongest_fifth() -> None:
    values = torch.tensor([[5.0, -9.0, 1.0], [4.0, 3.0, 2.0]])
    assert strongest(values).tolist() == [[True, False, False], [False, False, False]]
    assert strongest(torch.zeros(2, 5)).sum() == 2


def test_the_page_is_one_file_in_plain_words(result: Any, tmp_path: Path) -> None:
    path = result.save(tmp_path / "page.html")
    text = path.read_text()
    assert re.findall(r'(?:src|href)="(?!data:)[^"]*"', text) == []
    assert "<script" not in text
    words = unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", text, flags=re.DOTALL))
    label = result.explanation.label
    for part in (
        f"Why “{label}”?",
        f"Why not “{result.runner_up[1]}”?",
        "Put to the test",
        "Can this map be trusted?",
        "Again",
    ):
        assert part in words
    assert percent(result.without.explained) in words
    assert f"Vitreous {vt.__version__}" in words
    assert result.explanation.method in words
    assert text.count("<img") == len(re.findall(r'<img [^>]*alt="[^"]+"', text))
    assert "iframe" in result._repr_html_()
    with pytest.raises(vt.VitreousError, match="is there already"):
        result.save(path)
    with pytest.raises(vt.VitreousError, match=r"must end in \.html"):
        result.save(tmp_path / "page.png")


def test_labels_cannot_break_the_page(world: vt.VisionModel, tmp_path: Path) -> None:
    odd = vt.wrap(
        world.module,
        class_names=[f'<b>"{index}"</b>&' for index in range(world.num_classes)],
        preprocess=world.preprocess,
    )
    text = vt.why(odd, scene()).html()
    assert "<b>&#34;" not in text.replace("<b>&lt;", "")
    assert "&lt;b&gt;&#34;" in text


def test_another_class_and_another_method(world: vt.VisionModel) -> None:
    asked = vt.why(world, scene(), target=3, method="generic")
    assert asked.explanation.target == 3
    assert asked.explanation.method == "generic"
    assert asked.runner_up == asked.classes[0][:2]
    agnostic = vt.why(world, scene(), method="rollout")
    assert agnostic.contrast is None
    assert "knows no class" in agnostic.html()


def test_bad_questions(world: vt.VisionModel) -> None:
    with pytest.raises(vt.VitreousError, match="one image, got several"):
        vt.why(world, [scene(), scene(36)])
    with pytest.raises(vt.VitreousError, match="this tensor holds what no picture of 8 bits can"):
        vt.why(world, torch.randn(3, *world.preprocess.size, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(vt.VitreousError, match="not about a function"):
        vt.why(world, scene(), target=lambda logits: logits[:, 0])


@pytest.mark.parametrize(
    ("chance", "words"),
    [(0.54, "54 %"), (1.0, "100 %"), (0.9996, "100 %"), (0.0309, "3.1 %"), (0.0002, "0.02 %"), (1e-7, "under 0.01 %")],
)
def test_percent(chance: float, words: str) -> None:
    assert percent(chance) == words


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.cli import app

    monkeypatch.chdir(tmp_path)
    scene().save("horn.png")
    Path("two").mkdir()
    scene(36).save("two/a.png"), scene(37).save("two/b.png")
    done = CliRunner().invoke(app, ["why", "horn.png", "-m", "world"])
    assert done.exit_code == 0, done.output
    assert "the page is" in done.output
    assert Path("horn-why.html").stat().st_size > 50_000
    for wrong in (["horn.png"], ["horn.png", "--out", "x.pdf"], ["none.png"], ["two", "--out", "y.html"]):
        refused = CliRunner().invoke(app, ["why", *wrong, "-m", "world"])
        assert refused.exit_code != 0


@pytest.mark.parametrize("width", [390, 1400])
def test_in_a_browser(result: Any, tmp_path: Path, browser: Any, width: int) -> None:
    path = result.save(tmp_path / "page.html")
    page, report = browser.new_page(viewport={"width": width, "height": 900}), []
    page.on("console", lambda message: report.append(message.text))
    page.on("pageerror", lambda error: report.append(str(error)))
    page.goto(path.as_uri())
    breadth, images, smallest = page.evaluate(
        """() => [document.documentElement.scrollWidth,
                  [...document.images].map(each => each.complete && each.naturalWidth > 0 && each.width > 80),
                  Math.min(...[...document.querySelectorAll('main *')].filter(each => each.textContent.trim())
                      .map(each => parseFloat(getComputedStyle(each).fontSize)))]"""
    )
    page.close()
    assert report == []
    assert breadth <= width
    assert len(images) >= 6
    assert all(images)
    assert smallest >= 12


def test_pages_of_explain_and_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.cli import app

    monkeypatch.chdir(tmp_path)
    scene().save("horn.png"), scene(36).save("tail.png")
    run = CliRunner().invoke
    done = run(app, ["explain", "horn.png", "tail.png", "-m", "world", "--method", "generic", "--html", "page.html"])
    assert done.exit_code == 0, done.output
    text = Path("page.html").read_text()
    assert text.count("<section") == 2
    assert text.count("<img") == 4
    assert "generic: " in unescape(text)
    done = run(app, ["compare", "horn.png", "-m", "world", "--method", "generic,ixg", "--html", "both.html"])
    assert done.exit_code == 0, done.output
    assert Path("both.html").read_text().count("<img") == 3
    for again in (["explain", "horn.png", "--out", "new"], ["compare", "horn.png", "--out", "new.png"]):
        refused = run(app, [*again, "-m", "world", "--method", "ixg", "--html", "page.html"])
        assert "page.html is there already" in str(refused.exception)
        assert not Path(again[3]).exists()
    folder = run(app, ["compare", ".", "-m", "world", "--out", "x.png"])
    assert "compare takes one image" in str(folder.exception)


def test_a_convolutional_network_is_reported_the_same_way() -> None:
    """Without a stream of tokens, who owns which patch comes from class activation maps."""
    model = CNNS["resnet"]()
    with torch.no_grad():
        model.fc.weight *= 0.01  # so that two classes are probable
        model.fc.bias.zero_()
    vision_model = vt.wrap(model)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    result = vt.why(vision_model, Image.fromarray(pixels))
    assert result.class_assignment is not None
    assert result.class_assignment.method.startswith("var(gradcam")
    assert "Who owns which patch?" in result.html()
