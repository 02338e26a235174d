"""``vitreous explain`` and ``vitreous compare``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from vitreous import disk
from vitreous.cli import options
from vitreous.errors import VitreousError
from vitreous.words import defaults

if TYPE_CHECKING:
    from vitreous import Explanation

__all__ = ["compare", "explain"]

_MOST_IN_JSON = 4096  # values; larger maps are written to files only


def explain(
    images: Annotated[list[Path], typer.Argument(help="Pictures or folders of pictures.", show_default=False)],
    model: options.Model = defaults.MODEL,
    method: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="A spelling such as generic or coiba(steps=10).", show_default="that of --effort"),
    ] = None,
    effort: options.Effort = None,
    target: options.Target = None,
    against: options.Against = None,
    value: options.Value = "logit",
    classes: options.Classes = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder for the results: PICTURE/METHOD/CLASS.", show_default="explanations"),
    ] = None,
    original: Annotated[bool, typer.Option(help="Also draw the map on the original photograph.")] = False,
    check: Annotated[bool, typer.Option(help="Also test how far each map can be trusted.")] = False,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    labels: options.Labels = None,
    prompt: options.Prompts = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    batch_size: Annotated[Optional[int], typer.Option(min=1, help="Pictures at once.")] = None,  # noqa: UP045
    memory: options.Memory = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    resume: Annotated[bool, typer.Option(help="Do what is missing: leave out what was asked before.")] = False,
    no_cache: options.NoCache = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Explain pictures: a map, a heat map, an overlay and a manifest for each.

    Results go to --out, in folders PICTURE/METHOD/CLASS; another question about a picture is another result. With
    --json and without --out nothing is written. Of several pictures, one that cannot be read is named and skipped, and
    the exit code is 1.
    """
    import vitreous as vt

    options.caching(no_cache)
    options.check_effort(effort, method)
    how = None if method is None else vt.method(method)
    wanted = _files(images)
    archive = None if as_json and out is None else vt.Archive(out or Path("explanations"))
    if archive is not None:
        archive.check()
    view = options.load(model, checkpoint, pretrained, img_size, num_classes, labels, device, dtype, quiet, prompt)
    how = how or vt.method(vt.effort("quick" if effort is None else effort, view))
    only = options.classes(classes)
    aim: dict[str, Any] = {"target": target, "against": against or None, "value": value, "classes": only, "seed": seed}
    question = vt.question(view, how, **aim)
    kept: dict[Path, Path] = {}
    if archive is not None:
        wanted = archive.once(wanted)
        kept = {path: place for path in wanted if (place := archive.find(path, question)) is not None}
    if kept and not (overwrite or resume):
        place = next(iter(kept.values()))
        raise VitreousError(f"{place} is there already; choose another --out, or add --overwrite or --resume")
    left = [path for path in wanted if path not in kept] if resume and not overwrite else wanted
    rows: list[dict[str, Any]] = []
    verdicts: list[str] = []
    table = options.table("picture", "said", "explained", "saved in")
    with options.progress_bar(how.spelling, quiet or as_json) as bar:
        skip = options.skipped if len(wanted) > 1 else None
        budget = {"memory": memory, "batch_size": batch_size, "progress": bar, "on_error": skip}
        for each in vt.explain_each(view, left, how, **aim, **budget) if left else ():
            if check:
                each = replace(each, checkup=vt.check(each, view, memory=memory))
                verdicts.append(f"{each.name}: {each.checkup}")
            saved = None if archive is None else archive.save(each, overwrite=overwrite, original=original)
            rows.append(_row(each, saved))
            said = f"{each.prediction.label} ({each.prediction.probability:.3f})"
            given = "" if each.probability is None else f" ({each.probability:.3f})"
            table.add_row(each.name, said, each.label + given, str(saved))
    if left and not rows:
        raise VitreousError(f"none of the {len(left)} pictures can be read")
    if as_json:
        options.print_json({"schema": "vitreous.explain/1", "explanations": rows})
    elif not quiet:
        for content in (table, *verdicts) if rows else ():
            options.say(content)
        if len(left) < len(wanted):
            options.say(f"{len(wanted) - len(left)} left out: the same question is answered already")
    if len(rows) < len(left):
        raise typer.Exit(1)


def compare(
    image: Annotated[Path, typer.Argument(help="A picture.", show_default=False)],
    methods: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            help="Spellings, separated by commas.", show_default=f"{','.join(defaults.COMPARED)} and that of --effort"
        ),
    ] = None,
    model: options.Model = defaults.MODEL,
    effort: options.Effort = None,
    target: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="Class index or label; repeated, one row each."),
    ] = None,
    against: options.Against = None,
    value: options.Value = "logit",
    classes: options.Classes = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The panel, a picture file.", show_default="IMAGE-compare.png"),
    ] = None,
    tile: Annotated[int, typer.Option(min=48, max=1024, help="Size of each picture in the panel.")] = 224,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    labels: options.Labels = None,
    prompt: options.Prompts = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    memory: options.Memory = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    no_cache: options.NoCache = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Explain one picture with several methods, side by side in one labelled panel."""
    import vitreous as vt

    options.caching(no_cache)
    options.check_effort(effort)
    hows = None if methods is None else [vt.method(spelling) for spelling in options.split(methods)]
    if hows == []:
        raise VitreousError("--methods names no method")
    (image,) = _files([image])[:1]
    place = out or Path(f"{disk.safe_name(image.stem)}-compare.png")
    if options.is_there(place) and not overwrite:
        raise VitreousError(f"{place} is there already; choose another --out or add --overwrite")
    view = options.load(model, checkpoint, pretrained, img_size, num_classes, labels, device, dtype, quiet, prompt)
    asked: dict[str, Any] = {"against": against or None, "value": value, "seed": seed, "memory": memory}
    asked["classes"] = options.classes(classes)
    with options.progress_bar("comparing", quiet or as_json) as bar:
        comparison = vt.compare(view, image, hows, target or None, effort=effort, progress=bar, **asked)
    comparison.save(place, overwrite=overwrite, tile=tile)
    if as_json:
        rows = [_row(each, None) for each in comparison]
        options.print_json({"schema": "vitreous.compare/1", "panel": str(place), "explanations": rows})
    elif not quiet:
        said = comparison[0].prediction
        options.say(f"{view.name} said {said.label} ({said.probability:.3f}); {len(comparison)} maps in {place}")


def _files(given: Sequence[Path]) -> list[Path]:
    """Return the pictures meant, those of a folder in order; a missing one is an error before anything is loaded."""
    import vitreous as vt

    return [each for path in given for each in vt.image_files(path)]


def _row(each: Explanation, place: Path | None) -> dict[str, Any]:
    """Return one explanation as JSON: its manifest, where it was saved, and the map if it is small."""
    small = each.map.numel() <= _MOST_IN_JSON
    return {
        **each.manifest(),
        "folder": None if place is None else str(place),
        "map": each.map.tolist() if small else None,
    }
