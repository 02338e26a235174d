"""``vitreous world``: scenes with known answers, as files or as one contact sheet."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from vitreous import io as disk
from vitreous.cli import options
from vitreous.cli.options import OptionGroup, ResultOptions, with_options
from vitreous.errors import VitreousError

if TYPE_CHECKING:
    from vitreous.world import Scene

app = typer.Typer(help="Scenes with known answers: draw them, look at them.", **options.TYPER)


@app.callback(invoke_without_command=True)
def _world(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


class SceneSet(str, Enum):
    """Which scenes."""

    standard = "standard"
    shortcut = "shortcut"
    moved = "moved"
    pairs = "pairs"
    difficult = "difficult"
    parts_removed = "parts-removed"


_MAX_SCENES = 100_000


_N = Annotated[int, Option(help="How many scenes.")]


@dataclass(frozen=True)
class SceneOptions(OptionGroup):
    """Which scenes, and how large they are drawn."""

    size: Annotated[int, Option(help="Side of an image in pixels.")] = 128
    start: Annotated[int, Option(help="The first scene of the split.")] = 0
    split: Annotated[str, Option(help="train, val or test; they share no scene.")] = "test"
    kind: Annotated[
        SceneSet,
        Option(
            help="standard; shortcut (a marker gives half of the classes away) or moved (it lies); pairs of creatures; "
            "difficult (easy to hard, in the order of the scenes); parts-removed (at random).",
        ),
    ] = SceneSet.standard

    def draw(self, n: int) -> list[Scene]:
        from vitreous import world

        kind = self.kind
        if not 1 <= n <= _MAX_SCENES:
            raise VitreousError(f"--n {n} must be from 1 to {_MAX_SCENES}")
        batch = world.World(self.split, n, start=self.start).batch()
        if kind in (SceneSet.shortcut, SceneSet.moved):
            batch = world.add_marker(batch, moved=kind is SceneSet.moved)
        elif kind is SceneSet.pairs:
            batch = world.pair(batch)
        elif kind is SceneSet.parts_removed:
            batch = world.remove_parts(batch, whole_share=0.0)
        elif kind is SceneSet.difficult:
            steps = max(1, n - 1)
            batch = world.Batch.cat([world.make_difficult(batch[at : at + 1], at / steps) for at in range(n)])
        return world.unpack(batch)


@app.command()
@with_options("as_json")
def render(
    out: Annotated[Path, Option(help="Folder for the images, the masks and scenes.json.", show_default=False)],
    n: _N = 16,
    *,
    scene_options: SceneOptions,
    result_options: ResultOptions,
) -> None:
    """Write scenes: one PNG each, one mask each, and all of them as JSON."""
    from vitreous.world.dataset import write

    overwrite = result_options.overwrite
    disk.check_folder(out, overwrite)
    files = write(scene_options.draw(n), out, scene_options.size, overwrite=overwrite)
    result_options.say(f"{n} scenes in {out}, described in {files[-1]}")


@app.command()
@with_options("as_json")
def show(
    out: Annotated[Path, Option(help="The image to write.")] = Path("world.png"),
    n: _N = 64,
    columns: Annotated[int, Option(min=1, max=64, help="Scenes beside each other.")] = 8,
    *,
    scene_options: SceneOptions,
    result_options: ResultOptions,
) -> None:
    """Make one contact sheet, each scene with the name of its class."""
    from vitreous import viz, world
    from vitreous.world.dataset import to_images

    disk.check_file(out, result_options.overwrite)
    scenes, size = scene_options.draw(n), scene_options.size
    cells = [
        viz.Cell(image, None, ", ".join(creature.name for creature in (scene, scene.companion) if creature))
        for scene, image in zip(scenes, to_images(world.render(scenes, size).images), strict=True)
    ]
    sheet = viz.panel([cells[at : at + columns] for at in range(0, n, columns)], tile=max(96, size))
    disk.write_file(out, viz.encoded(sheet, out), overwrite=result_options.overwrite)
    result_options.say(f"{n} scenes: {out}")
