"""``vitreous world``: scenes with known answers, as files or as one contact sheet."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitreous import io as disk
from vitreous.cli import options
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
_N = Annotated[int, typer.Option(help="How many scenes.")]
_Size = Annotated[int, typer.Option(help="Side of an image in pixels.")]
_Start = Annotated[int, typer.Option(help="The first scene of the split.")]
_Split = Annotated[str, typer.Option(help="train, val or test; they share no scene.")]
_Kind = Annotated[
    SceneSet,
    typer.Option(
        "--kind",
        help="standard; shortcut (a marker gives half of the classes away) or moved (it lies); pairs of creatures; "
        "difficult (easy to hard, in the order of the scenes); parts-removed (at random).",
    ),
]


@app.command()
def render(
    out: Annotated[Path, typer.Option(help="Folder for the images, the masks and scenes.json.", show_default=False)],
    n: _N = 16,
    size: _Size = 128,
    start: _Start = 0,
    split: _Split = "test",
    kind: _Kind = SceneSet.standard,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Write scenes: one PNG each, one mask each, and all of them as JSON."""
    from vitreous.world.dataset import write

    disk.check_folder(out, overwrite)
    files = write(_scenes(kind, n, start, split), out, size, overwrite=overwrite)
    if not quiet:
        options.say(f"{n} scenes in {out}, described in {files[-1]}")


@app.command()
def show(
    out: Annotated[Path, typer.Option(help="The image to write.")] = Path("world.png"),
    n: _N = 64,
    size: _Size = 128,
    start: _Start = 0,
    split: _Split = "test",
    kind: _Kind = SceneSet.standard,
    columns: Annotated[int, typer.Option(min=1, max=64, help="Scenes beside each other.")] = 8,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Make one contact sheet, each scene with the name of its class."""
    from vitreous import viz, world
    from vitreous.world.dataset import to_images

    disk.check_file(out, overwrite)
    scenes = _scenes(kind, n, start, split)
    cells = [
        viz.Cell(image, None, ", ".join(creature.name for creature in (scene, scene.companion) if creature))
        for scene, image in zip(scenes, to_images(world.render(scenes, size).images), strict=True)
    ]
    sheet = viz.panel([cells[at : at + columns] for at in range(0, n, columns)], tile=max(96, size))
    disk.write_file(out, viz.encoded(sheet, out), overwrite=overwrite)
    if not quiet:
        options.say(f"{n} scenes: {out}")


def _scenes(kind: SceneSet, n: int, start: int, split: str) -> list[Scene]:
    from vitreous import world

    if not 1 <= n <= _MAX_SCENES:
        raise VitreousError(f"--n {n} must be from 1 to {_MAX_SCENES}")
    batch = world.World(split, n, start=start).batch()
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
