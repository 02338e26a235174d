"""The demonstration: creatures of the bundled world explained by the model that lives there, and a cheat caught."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitreous import __version__
from vitreous import io as disk
from vitreous import viz as show
from vitreous.api import compare, explain
from vitreous.decision_report import why
from vitreous.errors import VitreousWarning
from vitreous.html import Section, report
from vitreous.models import VisionModel, load
from vitreous.registry.defaults import METHOD, display_name
from vitreous.results.explanation import Explanation
from vitreous.world import (
    CLASSES,
    MARKED_CLASSES,
    PARTS,
    Rendered,
    Scene,
    World,
    add_marker,
    distinctive_part,
    render,
    unpack,
)
from vitreous.world.dataset import to_images
from vitreous.world.models import accuracy, probabilities

SCHEMA = "vitreous.demo/1"

METHODS = (
    "rollout",
    "generic",
    METHOD,
    "coiba",
    "skipplus(decompx)",
    "vtranm",
    "var@sharp(decompx)",
    "tis(masks=256)",
)
"""Two baselines, the default, and the five systems."""
_JUDGED, _VALUE = METHOD, "logprob"
_SEEDS = (35, 37, 34)
"""Scenes whose telling part is the horn, the tail and the legs."""
_TILE, _SMALL = 280, 208
"""Sizes of pictures that stand beside words, and of those that have them below."""
_STORY = 24
"""How many marked scenes are explained for the story of the shortcut."""


def write(out: str | Path, told: Callable[[str], None] = lambda line: None) -> list[Path]:
    """Explain a few scenes and tell the story of the shortcut; write pictures and ``report.html``, return the files.

    An earlier demonstration in that folder is replaced; anything else there is not.
    """
    out = disk.check_folder(out, overwrite=True)
    told("loading the two bundled models")
    honest, cheat = load("world"), load("world-shortcut")
    made: dict[str, Image.Image] = {}

    def keep(name: str, picture: Image.Image) -> Image.Image:
        made[name] = picture
        return picture

    told("asking why")
    (asked,) = to_images(render(Scene.of(_SEEDS[0])).images)
    first = why(honest, asked, command="vitreous demo")
    told("rendering the world")
    sections = [_meet(keep)]
    for seed in _SEEDS:
        scene = Scene.of(seed)
        told(f"explaining the {scene.name}")
        sections.append(_why(honest, scene, keep))
    told("catching the cheat")
    sections.append(_story(honest, cheat, keep))
    lead = (
        "Vitreous looks inside vision transformers without changing them. This page was made by two small ones that "
        "come with it. They know 48 creatures of a drawn world in which every part is known and can be taken away, so "
        "that an explanation can be checked against the truth."
    )
    with disk.folder(out, overwrite=True) as draft:
        for name, picture in made.items():
            draft.write(name, show.encoded(picture))
        page = report("Vitreous: a demonstration", lead, sections, before=first.page().body("h2"))
        draft.write("why.html", first.html().encode())
        draft.write("report.html", page.encode())
        draft.finish({"schema": SCHEMA, "version": __version__})
    return [*(out / name for name in made), out / "why.html", out / "report.html"]


Keeper = Callable[[str, Image.Image], Image.Image]


def _meet(keep: Keeper) -> Section:
    scenes = World(n=24, start=100).scenes()
    rendered = render(scenes)
    cells = [
        show.Cell(picture, None, scene.name) for scene, picture in zip(scenes, to_images(rendered.images), strict=True)
    ]
    sheet = show.panel([cells[at : at + 8] for at in range(0, len(cells), 8)], tile=100)
    text = (
        f"Every creature has five parts: {', '.join(PARTS)}. A class is one variant of each; sixteen families have "
        "three members that differ in one part only, their telling part, which gives them their first name. Ground, "
        "light and whatever lies about say nothing."
    )
    return Section("Meet the creatures", text, [(keep("world.png", sheet), "24 scenes the models never saw")])


def _why(model: VisionModel, scene: Scene, keep: Keeper) -> Section:
    """One scene with every method, and where the judged method looks, against the siblings too."""
    rendered, (picture,) = _drawn([scene])
    name = scene.name.replace(" ", "-")
    keep(f"{name}.png", picture)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VitreousWarning)  # TIS explains the probability, and says so under its map
        compared = compare(model, picture, METHODS, output=_VALUE)
    keep(f"{name}-panel.png", compared.panel())
    part = distinctive_part(scene.label)
    siblings = [kind.name for kind in CLASSES if kind.family == CLASSES[scene.label].family and kind.name != scene.name]
    plain = explain(model, picture, _JUDGED, output=_VALUE)
    rather = explain(model, picture, "plus(decompx)", scene.name, contrast=siblings)
    shared = explain(model, picture, f"var@sharp(decompx, classes={'|'.join(siblings)!r})", scene.name, output=_VALUE)
    owners = keep(f"{name}-owners.png", shared.picture("owners", tile=168))
    without = probabilities(model, [scene, scene.without(part)])[:, scene.label].tolist()
    row = [
        show.Cell(picture, None, scene.name, f"said: {plain.prediction.label} ({plain.prediction.probability:.2f})"),
        show.Cell(picture, plain.map.numpy(), f"why {scene.name}?", display_name(plain.method), group="why"),
        show.Cell(
            picture, rather.map.numpy(), "why not a sibling?", f"against {' and '.join(siblings)}", group="rather"
        ),
    ]
    contrast = keep(f"{name}-siblings.png", show.panel([row], tile=_TILE))
    telling = rendered.parts[:, PARTS.index(part)]
    text = (
        f"The model says {plain.prediction.label} ({plain.prediction.probability:.2f}). "
        f"What tells the family apart is the {part}: rendered again without, the probability falls from "
        f"{without[0]:.2f} to {without[1]:.2f}. Of the picture that is {_of(telling.float().mean())}, of the positive "
        f"part of the map {_of(_share([plain], telling))}, and of the map that says why it is not "
        f"{' or '.join(siblings)}, {_of(_share([rather], telling))}."
    )
    return Section(
        f"Why a {scene.name}?",
        text,
        [
            *((each.overlay(size=_SMALL), display_name(each.method)) for each in compared),
            (contrast, "against its siblings"),
            (owners, "VAR: which patch speaks for which of the three siblings"),
        ],
    )


def _story(honest: VisionModel, cheat: VisionModel, keep: Keeper) -> Section:
    """The same marked scenes for both models: where they look, and who is misled by a false marker."""
    drawn = World(n=160, start=300).batch()
    drawn = drawn[torch.isin(drawn.label[:, 0], torch.tensor(MARKED_CLASSES))]
    marked = unpack(add_marker(drawn[:_STORY]))
    rendered, shown = _drawn(marked)
    models = (honest, cheat)
    explained = [explain(model, shown, _JUDGED, output=_VALUE) for model in models]
    on_marker, on_creature = (
        [_share(maps, mask) for maps in explained] for mask in (rendered.marker, rendered.creature)
    )
    hits = [
        [accuracy(model, scenes) for scenes in (add_marker(drawn), add_marker(drawn, moved=True), drawn)]
        for model in models
    ]
    rows = []
    for place, picture in enumerate(shown[:3]):
        cells = [show.Cell(picture, None, marked[place].name, "the marker gives the class away")]
        for model, maps in zip(models, explained, strict=True):
            said = f"said: {maps[place].prediction.label} ({maps[place].prediction.probability:.2f})"
            cells.append(show.Cell(picture, maps[place].map.numpy(), model.name, said, group=model.name))
        rows.append(cells)
    panel = keep("shortcut.png", show.panel(rows, tile=_TILE))
    text = (
        "The second model, world-shortcut, was trained where a sticker in a corner gives every other class away. On "
        f"{len(drawn)} pictures with the sticker the two are right on {_of(hits[0][0])} and {_of(hits[1][0])}: "
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


def _drawn(scenes: Sequence[Scene]) -> tuple[Rendered, list[Image.Image]]:
    rendered = render(scenes)
    return rendered, list(to_images(rendered.images))


def _share(explanations: Sequence[Explanation], masks: Tensor) -> float:
    """The mean share of the maps' positive part that lies on a mask, a patch counting as far as it is covered."""
    maps = torch.stack([explanation.map for explanation in explanations]).clamp(min=0)
    covered = F.adaptive_avg_pool2d(masks.float().unsqueeze(1), (maps.shape[1], maps.shape[2]))[:, 0]
    return float(((maps * covered).sum(dim=(1, 2)) / maps.sum(dim=(1, 2)).clamp(min=1e-12)).mean())


def _of(share: float | Tensor) -> str:
    return f"{100 * float(share):.1f} %"
