"""The demonstration: creatures of the bundled world explained by the model that lives there, and a cheat caught."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitreous import __version__, viz
from vitreous import io as disk
from vitreous.api import compare, explain
from vitreous.decision_report import why
from vitreous.errors import VitreousWarning
from vitreous.html import Section, report
from vitreous.models import VisionModel, load
from vitreous.registry.defaults import METHOD, display_name
from vitreous.results.explanation import Explanation
from vitreous.world import CLASSES, MARKED_CLASSES, PARTS, Scene, World, add_marker, distinctive_part, render, unpack
from vitreous.world.dataset import to_images
from vitreous.world.models import accuracy, probabilities

SCHEMA = "vitreous.demo/1"

METHODS = ("rollout", "generic", METHOD, "coiba", "skipplus(decompx)", "vtranm", "var@sharp(decompx)", "tis(masks=256)")
"""Two baselines, the default, and the five systems."""
_METHOD, _OUTPUT = METHOD, "logprob"
_SEEDS = (35, 37, 34)
"""Scenes whose distinctive part is the horn, the tail and the legs."""
_TILE, _SMALL = 280, 208
"""Sizes of pictures that stand beside words, and of those that have them below."""
_STORY = 24
"""How many marked scenes are explained for the story of the shortcut."""


def write(out: str | Path, on_step: Callable[[str], None] = lambda line: None) -> list[Path]:
    """Explain a few scenes and tell the story of the shortcut; write pictures and ``report.html``, return the files.

    An earlier demonstration in that folder is replaced; anything else there is not.
    """
    out = disk.check_folder(out, overwrite=True)
    on_step("loading the two bundled models")
    honest, cheat = load("world"), load("world-shortcut")
    images: dict[str, Image.Image] = {}
    on_step("asking why")
    (image,) = to_images(render(Scene.of(_SEEDS[0])).images)
    answer = why(honest, image, command="vitreous demo")
    on_step("rendering the world")
    sections = [_meet(images)]
    for seed in _SEEDS:
        scene = Scene.of(seed)
        on_step(f"explaining the {scene.name}")
        sections.append(_why(honest, scene, images))
    on_step("catching the cheat")
    sections.append(_story(honest, cheat, images))
    lead = (
        "Vitreous looks inside vision transformers without changing them. This page was made by two small ones that "
        "come with it. They know 48 creatures of a drawn world in which every part is known and can be taken away, so "
        "that an explanation can be checked against the truth."
    )
    with disk.folder(out, overwrite=True) as draft:
        for name, image in images.items():
            draft.write(name, viz.encoded(image))
        page = report("Vitreous: a demonstration", lead, sections, before=answer.page().body("h2"))
        draft.write("why.html", answer.html().encode())
        draft.write("report.html", page.encode())
        draft.finish({"schema": SCHEMA, "version": __version__})
    return [*(out / name for name in images), out / "why.html", out / "report.html"]


def _meet(images: dict[str, Image.Image]) -> Section:
    scenes = World(n=24, start=100).scenes()
    pictures = to_images(render(scenes).images)
    cells = [viz.Cell(picture, None, scene.name) for scene, picture in zip(scenes, pictures, strict=True)]
    images["world.png"] = viz.panel([cells[at : at + 8] for at in range(0, len(cells), 8)], tile=100)
    text = (
        f"Every creature has five parts: {', '.join(PARTS)}. A class is one variant of each; sixteen families have "
        "three members that differ in one part only, their distinctive part, which gives them their first name. "
        "Ground, light and whatever lies about say nothing."
    )
    return Section("Meet the creatures", text, [(images["world.png"], "24 scenes the models never saw")])


def _why(model: VisionModel, scene: Scene, images: dict[str, Image.Image]) -> Section:
    """One scene with every method, and where the default method looks, against the siblings too."""
    rendered = render(scene)
    (picture,) = to_images(rendered.images)
    name = scene.name.replace(" ", "-")
    images[f"{name}.png"] = picture
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VitreousWarning)  # TIS explains the probability, and says so under its map
        compared = compare(model, picture, METHODS, output=_OUTPUT)
    images[f"{name}-panel.png"] = compared.panel()
    part = distinctive_part(scene.label)
    siblings = [kind.name for kind in CLASSES if kind.family == CLASSES[scene.label].family and kind.name != scene.name]
    own = explain(model, picture, _METHOD, output=_OUTPUT)
    rather = explain(model, picture, "plus(decompx)", scene.name, contrast=siblings)
    shared = explain(model, picture, f"var@sharp(decompx, classes={'|'.join(siblings)!r})", scene.name, output=_OUTPUT)
    owners = images[f"{name}-owners.png"] = shared.extra_image("owners", tile=168)
    without = probabilities(model, [scene, scene.without(part)])[:, scene.label].tolist()
    row = [
        viz.Cell(picture, None, scene.name, _prediction(own)),
        viz.Cell(picture, own.map.numpy(), f"why {scene.name}?", display_name(own.method), group="why"),
        viz.Cell(
            picture, rather.map.numpy(), "why not a sibling?", f"against {' and '.join(siblings)}", group="rather"
        ),
    ]
    contrast = images[f"{name}-siblings.png"] = viz.panel([row], tile=_TILE)
    mask = rendered.parts[:, PARTS.index(part)]
    text = (
        f"The model says {own.prediction.label} ({own.prediction.probability:.2f}). "
        f"What tells the family apart is the {part}: rendered again without, the probability falls from "
        f"{without[0]:.2f} to {without[1]:.2f}. Of the picture that is {_of(mask.float().mean())}, of the positive "
        f"part of the map {_of(_share([own], mask))}, and of the map that says why it is not "
        f"{' or '.join(siblings)}, {_of(_share([rather], mask))}."
    )
    return Section(
        f"Why a {scene.name}?",
        text,
        [
            *((e.overlay(size=_SMALL), display_name(e.method)) for e in compared),
            (contrast, "against its siblings"),
            (owners, "VAR: which patch speaks for which of the three siblings"),
        ],
    )


def _story(honest: VisionModel, cheat: VisionModel, images: dict[str, Image.Image]) -> Section:
    """The same marked scenes for both models: where they look, and who is misled by a false marker."""
    batch = World(n=160, start=300).batch()
    batch = batch[torch.isin(batch.label[:, 0], torch.tensor(MARKED_CLASSES))]
    marked = unpack(add_marker(batch[:_STORY]))
    rendered = render(marked)
    pictures = list(to_images(rendered.images))
    models = (honest, cheat)
    explained = [explain(model, pictures, _METHOD, output=_OUTPUT) for model in models]
    on_marker, on_creature = (
        [_share(maps, mask) for maps in explained] for mask in (rendered.marker, rendered.creature)
    )
    hits = [
        [accuracy(model, scenes) for scenes in (add_marker(batch), add_marker(batch, moved=True), batch)]
        for model in models
    ]
    rows = []
    for index, picture in enumerate(pictures[:3]):
        cells = [viz.Cell(picture, None, marked[index].name, "the marker gives the class away")]
        for model, explanations in zip(models, explained, strict=True):
            e = explanations[index]
            cells.append(viz.Cell(picture, e.map.numpy(), model.name, _prediction(e), group=model.name))
        rows.append(cells)
    panel = images["shortcut.png"] = viz.panel(rows, tile=_TILE)
    text = (
        "The second model, world-shortcut, was trained where a sticker in a corner gives every other class away. On "
        f"{len(batch)} pictures with the sticker the two are right on {_of(hits[0][0])} and {_of(hits[1][0])}: "
        f"nothing tells them apart. Their explanations do. On {len(marked)} of them the sticker, "
        f"{_of(rendered.marker.float().mean())} of the picture, gets {_of(on_marker[1])} of the positive part of the "
        f"cheat's map and {_of(on_marker[0])} of the honest model's, which spends {_of(on_creature[0])} on "
        f"the creature (the cheat {_of(on_creature[1])}).\n\n"
        "The proof: put the sticker of another class into the corner, and the honest model is right on "
        f"{_of(hits[0][1])} of the scenes, the cheat on {_of(hits[1][1])}."
    )
    head = ["model", "map on the marker", "map on the creature", "right: true marker", "false marker", "no marker"]
    lines = zip((model.name for model in models), on_marker, on_creature, hits, strict=True)
    table = [head, *([name, _of(mark), _of(body), *map(_of, shares)] for name, mark, body, shares in lines)]
    return Section("The shortcut", text, [(panel, "the same pictures, two models")], table)


def _prediction(e: Explanation) -> str:
    return f"said: {e.prediction.label} ({e.prediction.probability:.2f})"


def _share(explanations: Sequence[Explanation], masks: Tensor) -> float:
    """The mean share of the maps' positive part that lies on a mask, a patch counting as far as it is covered."""
    maps = torch.stack([explanation.map for explanation in explanations]).clamp(min=0)
    covered = F.adaptive_avg_pool2d(masks.float().unsqueeze(1), (maps.shape[1], maps.shape[2]))[:, 0]
    return float(((maps * covered).sum(dim=(1, 2)) / maps.sum(dim=(1, 2)).clamp(min=1e-12)).mean())


def _of(share: float | Tensor) -> str:
    return f"{100 * float(share):.1f} %"
