"""``vitreous explain`` and ``vitreous compare``.

``vitreous why``: one picture, one page.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional

import typer

from vitreous import io as disk
from vitreous.cli import options
from vitreous.errors import VitreousError
from vitreous.registry import defaults
from vitreous.registry.defaults import display_name

if TYPE_CHECKING:
    from vitreous.models import VisionModel
    from vitreous.results import Archive, Explanation

__all__ = [
    "compare",
    "explain",
    "why",
]

_MOST_IN_JSON = 4096  # values; larger maps are written to files only


def explain(
    images: Annotated[list[Path], typer.Argument(help="Pictures or folders of pictures.", show_default=False)],
    model: options.Model = defaults.MODEL,
    method: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            help="A spelling such as generic or coiba(steps=10); may be repeated.", show_default="that of --effort"
        ),
    ] = None,
    effort: options.Effort = None,
    target: options.Targets = None,
    contrast: options.Contrast = None,
    output: options.Output = None,
    class_subset: options.ClassSubset = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder for the results: PICTURE/METHOD/CLASS.", show_default="explanations"),
    ] = None,
    original: Annotated[bool, typer.Option(help="Also draw the map on the original photograph.")] = False,
    html: options.Html = None,
    check: Annotated[bool, typer.Option(help="Also test how far each map can be trusted.")] = False,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    class_names: options.ClassNames = None,
    prompt: options.Prompts = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    batch_size: options.BatchSize = None,
    memory_gb: options.MemoryGb = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    resume: Annotated[bool, typer.Option(help="Do what is missing: leave out what was asked before.")] = False,
    no_cache: options.NoCache = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Explain pictures: a map, a heat map, an overlay and a manifest for each.

    Every picture is explained with every --method and for every --target. Results go to --out, in folders
    PICTURE/METHOD/CLASS; another question about a picture is another result. With --json and without --out nothing is
    written. Of several pictures, one that cannot be read is named and skipped, and the exit code is 1.
    """
    import vitreous as vt

    options.caching(no_cache)
    options.check_effort(effort, method or ())
    options.check_page(html, overwrite)
    hows = [vt.get_method(each) for each in options.spelled(method or (), "method")]
    wanted = _files(images)
    archive = None if as_json and out is None else vt.Archive(out or Path("explanations"))
    if archive is not None:
        archive.check()
        wanted = archive.once(wanted)
    vision_model = options.load(
        model, checkpoint, pretrained, img_size, num_classes, class_names, device, dtype, quiet, prompt
    )
    hows = hows or [vt.get_method(vt.recommended_method("quick" if effort is None else effort, vision_model))]
    aim: dict[str, Any] = {
        "contrast": contrast or None,
        "output": output,
        "class_subset": options.read_class_subset(class_subset),
    }
    rounds = _rounds(vision_model, hows, target or [None], {**aim, "seed": seed})
    kept: set[tuple[int, Path]] = set()
    for number, asked in enumerate(rounds):
        there = {} if archive is None else _answered(archive, wanted, asked.question)
        if there and not (overwrite or resume):
            place = next(iter(there.values()))
            raise VitreousError(f"{place} is there already; choose another --out, or add --overwrite or --resume")
        kept |= {(number, path) for path in there if not overwrite}
    lost: set[Path] = set()
    done: set[str] = set()
    shown: list[Explanation] = []
    rows: list[dict[str, Any]] = []
    verdicts: list[str] = []
    several = len(hows) > 1
    table = options.table("picture", *["method"][: int(several)], "said", "explained", "saved in")

    def skip(path: Path, error: VitreousError) -> None:
        lost.add(path)
        options.skipped(path, error)

    budget: dict[str, Any] = {
        "memory_gb": memory_gb,
        "batch_size": batch_size,
        "on_error": skip if len(wanted) > 1 else None,
    }
    for number, asked in enumerate(rounds):
        left = [path for path in wanted if (number, path) not in kept and path not in lost]
        with options.progress_bar(display_name(asked.how.spec), quiet or as_json) as bar:
            given = {**aim, **budget, "seed": seed, "progress": bar}
            for explanation in (
                vt.iter_explanations(vision_model, left, asked.how, asked.target, **given) if left else ()
            ):
                answer = explanation.identity["question"] if explanation.identity and archive is not None else ""
                if answer in done:
                    continue  # the class that was named is the predicted one, which was asked for too
                done |= {answer} - {""}
                if check:
                    explanation = replace(
                        explanation, check_result=vt.check(explanation, vision_model, memory_gb=memory_gb)
                    )
                    which = f", {display_name(explanation.method)}, {explanation.label}" if len(rounds) > 1 else ""
                    verdicts.append(f"{explanation.name}{which}: {explanation.check_result}")
                saved = None if archive is None else archive.save(explanation, overwrite=overwrite, original=original)
                rows.append(_row(explanation, saved))
                shown += [explanation] if html is not None else []
                said = f"{explanation.prediction.label} ({explanation.prediction.probability:.3f})"
                sure = "" if explanation.probability is None else f" ({explanation.probability:.3f})"
                how = [display_name(explanation.method)][: int(several)]
                table.add_row(explanation.name, *how, said, explanation.label + sure, str(saved))
    if lost and not rows:
        raise VitreousError(f"none of the {len(lost)} pictures can be read")
    if html is not None and shown:
        disk.write_file(html, vt.to_html(shown).encode(), overwrite=overwrite)
    if as_json:
        options.print_json({"schema": "vitreous.explain/1", "explanations": rows})
    elif not quiet:
        for content in (table, *verdicts) if rows else ():
            options.say(content)
        if kept:
            options.say(f"{len(kept)} left out: the same question is answered already")
    if lost:
        raise typer.Exit(1)


def compare(
    image: Annotated[Path, typer.Argument(help="A picture.", show_default=False)],
    method: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            help="A spelling; may be repeated, or hold several with commas.",
            show_default=f"{','.join(defaults.COMPARISON_METHODS)} and that of --effort",
        ),
    ] = None,
    model: options.Model = defaults.MODEL,
    effort: options.Effort = None,
    target: options.Targets = None,
    contrast: options.Contrast = None,
    output: options.Output = None,
    class_subset: options.ClassSubset = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The panel, a picture file.", show_default="IMAGE-compare.png"),
    ] = None,
    html: options.Html = None,
    tile: Annotated[int, typer.Option(min=48, max=1024, help="Size of each picture in the panel.")] = 320,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    class_names: options.ClassNames = None,
    prompt: options.Prompts = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    memory_gb: options.MemoryGb = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    no_cache: options.NoCache = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Explain one picture with several methods, side by side in one labelled panel; one row for each --target."""
    import vitreous as vt

    options.caching(no_cache)
    options.check_effort(effort)
    options.check_page(html, overwrite)
    hows = [vt.get_method(each) for each in options.spelled(method, "method")] if method else None
    files = _files([image])
    if len(files) != 1:
        raise VitreousError(f"compare takes one picture, {image} has {len(files)}")
    (image,) = files
    place = out or Path(f"{disk.safe_name(image.stem)}-compare.png")
    if options.is_there(place) and not overwrite:
        raise VitreousError(f"{place} is there already; choose another --out or add --overwrite")
    vision_model = options.load(
        model, checkpoint, pretrained, img_size, num_classes, class_names, device, dtype, quiet, prompt
    )
    asked: dict[str, Any] = {"contrast": contrast or None, "output": output, "seed": seed, "memory_gb": memory_gb}
    asked["class_subset"] = options.read_class_subset(class_subset)
    with options.progress_bar("comparing", quiet or as_json) as bar:
        comparison = vt.compare(vision_model, image, hows, target or None, effort=effort, progress=bar, **asked)
    comparison.save(place, overwrite=overwrite, tile=tile)
    if html is not None:
        disk.write_file(html, vt.to_html(comparison).encode(), overwrite=overwrite)
    if as_json:
        rows = [_row(each, None) for each in comparison]
        options.print_json({"schema": "vitreous.compare/1", "panel": str(place), "explanations": rows})
    elif not quiet:
        said = comparison[0].prediction
        options.say(
            f"{vision_model.name} said {said.label} ({said.probability:.3f}); {len(comparison)} maps in {place}"
        )


class _Round(NamedTuple):
    """One method and one target over all pictures."""

    how: Any
    target: str | None
    question: Any


def _rounds(
    model: VisionModel, hows: Sequence[Any], targets: Sequence[str | None], asked: dict[str, Any]
) -> list[_Round]:
    """Return every method with every target, each question once."""
    import vitreous as vt

    rounds: list[_Round] = []
    for how in hows:
        for target in targets:
            question = vt.question(model, how, target, **asked)
            if all(question != each.question for each in rounds):
                rounds.append(_Round(how, target, question))
    return rounds


def _answered(archive: Archive, wanted: Sequence[Path], question: Any) -> dict[Path, Path]:
    """Return the pictures of which the same was asked before, with the places of the answers."""
    return {path: place for path in wanted if (place := archive.find(path, question)) is not None}


def _files(given: Sequence[Path]) -> list[Path]:
    """Return the pictures meant, those of a folder in order; a missing one is an error before anything is loaded."""
    import vitreous as vt

    return [image_file for path in given for image_file in vt.image_files(path)]


def _row(each: Explanation, place: Path | None) -> dict[str, Any]:
    """Return one explanation as JSON: its manifest, where it was saved, and the map if it is small."""
    small = each.map.numel() <= _MOST_IN_JSON
    return {
        **each.manifest(),
        "folder": None if place is None else str(place),
        "map": each.map.tolist() if small else None,
    }


def why(
    image: Annotated[Path, typer.Argument(help="A picture.", show_default=False)],
    model: options.Model = defaults.MODEL,
    target: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Class index or label.", show_default="the prediction"),
    ] = None,
    effort: options.Effort = None,
    method: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="A spelling such as generic.", show_default="that of --effort"),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The page, a .html file.", show_default="IMAGE-why.html"),
    ] = None,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    class_names: options.ClassNames = None,
    prompt: options.Prompts = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    memory_gb: options.MemoryGb = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    no_cache: options.NoCache = False,
    quiet: options.Quiet = False,
) -> None:
    """Say why the model sees what it sees in a picture: one page to read, for anyone.

    The page has what the model says, where it saw it, what it says without that and with that alone, why not the next
    class, and how far all this can be trusted.
    """
    import vitreous as vt

    options.caching(no_cache)
    options.check_effort(effort, [] if method is None else [method])
    if method is not None:
        vt.get_method(method)
    place = out or Path(f"{disk.safe_name(image.stem)}-why.html")
    options.check_page(place, overwrite)
    files = vt.image_files(image)
    if len(files) != 1:
        raise VitreousError(f"why takes one picture, {image} has {len(files)}")
    vision_model = options.load(
        model, checkpoint, pretrained, img_size, num_classes, class_names, device, dtype, quiet, prompt
    )
    typed = shlex.join(["vitreous", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("vitreous", "__main__") else None
    found = vt.why(vision_model, files[0], method, target, effort=effort, seed=seed, memory_gb=memory_gb, command=typed)
    saved = found.save(place, overwrite=overwrite)
    if not quiet:
        options.say(str(found))
        options.say(f"the page is {saved}")
