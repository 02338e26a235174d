"""``vitreous explain``, ``vitreous compare`` and ``vitreous why``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from vitreous import io as disk
from vitreous.cli import options
from vitreous.cli.options import ModelOptions, with_model_options
from vitreous.errors import VitreousError
from vitreous.registry import defaults
from vitreous.registry.defaults import display_name

if TYPE_CHECKING:
    from vitreous.models import VisionModel
    from vitreous.results import Archive, Explanation

_MAX_JSON_VALUES = 4096  # larger maps are written to files only


@with_model_options()
def explain(
    images: Annotated[list[Path], typer.Argument(help="Images or folders of images.", show_default=False)],
    model: options.Model = defaults.MODEL,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A spec such as generic or coiba(steps=10); may be repeated.", show_default="that of --effort"
        ),
    ] = None,
    effort: options.Effort = None,
    target: options.Targets = None,
    contrast: options.Contrast = None,
    output: options.Output = "logit",
    class_subset: options.ClassSubset = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results: IMAGE/METHOD/CLASS.", show_default="explanations"),
    ] = None,
    original: Annotated[bool, typer.Option(help="Also draw the map on the original photograph.")] = False,
    html: options.Html = None,
    check: Annotated[bool, typer.Option(help="Also test how far each map can be trusted.")] = False,
    model_options: ModelOptions = options.ANY_MODEL,
    batch_size: options.BatchSize = None,
    memory_gb: options.MemoryGb = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    resume: Annotated[bool, typer.Option(help="Do what is missing: leave out what was asked before.")] = False,
    no_cache: options.NoCache = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Explain images: a map, a heat map, an overlay and a manifest for each.

    Every image is explained with every --method and for every --target. Results go to --out, in folders
    IMAGE/METHOD/CLASS; another question about an image is another result. With --json and without --out nothing is
    written. Of several images, one that cannot be read is named and skipped, and the exit code is 1.
    """
    import vitreous as vt

    options.switch_cache_off(no_cache)
    options.check_effort(effort, method or ())
    options.check_output(html, overwrite, ".html", ".htm")
    methods = list(map(vt.get_method, options.read_specs(method, "method")))
    files = options.find_images(images)
    archive = None if as_json and out is None else vt.Archive(out or Path("explanations"))
    if archive is not None:
        archive.check()
        files = archive.unique(files)
    vision_model = model_options.load(model, quiet)
    methods = methods or [vt.get_method(vt.recommended_method(effort or "quick", vision_model))]
    query: dict[str, Any] = {"contrast": contrast or None, "output": output, "seed": seed}
    query["class_subset"] = options.read_class_subset(class_subset)
    jobs = plan_jobs(vision_model, methods, target or [None], query, files)
    num_answered = _leave_out_answered(jobs, archive, overwrite, resume)
    results = _Results(archive, overwrite, original, keep=html is not None, show_method=len(methods) > 1)
    limits = {"memory_gb": memory_gb, "batch_size": batch_size}
    skipped = _run_jobs(vision_model, jobs, {**query, **limits}, results, check, quiet or as_json, len(files) == 1)
    _write_page(html, results.explanations, overwrite)
    results.print(quiet, as_json, num_answered)
    if skipped:
        raise typer.Exit(1)


def _write_page(path: Path | None, results: Any, overwrite: bool) -> None:
    import vitreous as vt

    if path is not None and len(results):
        disk.write_file(path, vt.to_html(results).encode(), overwrite=overwrite)


def _run_jobs(
    model: VisionModel,
    jobs: Sequence[ExplainJob],
    query: dict[str, Any],
    results: _Results,
    check: bool,
    quiet: bool,
    is_single: bool,
) -> set[Path]:
    """Explain all images of all jobs; return those that cannot be read. A single image must be readable."""
    import vitreous as vt

    skipped: set[Path] = set()

    def on_error(path: Path, error: VitreousError) -> None:
        skipped.add(path)
        options.print_skipped(path, error)

    query = {**query, "on_error": None if is_single else on_error}
    for job in jobs:
        left = [path for path in job.images if path not in skipped]
        with options.progress_bar(display_name(job.method.spec), quiet) as bar:
            explanations = vt.iter_explanations(model, left, job.method, job.target, progress=bar, **query)
            for explanation in explanations if left else ():
                if results.is_known(explanation):
                    continue
                if check:
                    checked = vt.check(explanation, model, memory_gb=query["memory_gb"])
                    explanation = replace(explanation, check_result=checked)
                results.add(explanation, is_only=len(jobs) == 1)
    if skipped and not results.rows:
        raise VitreousError(f"none of the {len(skipped)} images can be read")
    return skipped


class ExplainJob(NamedTuple):
    """One method and one target over images."""

    method: Any
    target: str | None
    identity: Any
    images: list[Path]


def plan_jobs(
    model: VisionModel,
    methods: Sequence[Any],
    targets: Sequence[str | None],
    query: dict[str, Any],
    images: Sequence[Path],
) -> list[ExplainJob]:
    """Return every method with every target, each question once."""
    import vitreous as vt

    jobs: list[ExplainJob] = []
    for method, target in product(methods, targets):
        identity = vt.Archive.identity(model, method, target, **query)
        if all(identity != job.identity for job in jobs):
            jobs.append(ExplainJob(method, target, identity, list(images)))
    return jobs


def _leave_out_answered(jobs: Sequence[ExplainJob], archive: Archive | None, overwrite: bool, resume: bool) -> int:
    """Leave out images of which the same was asked before; return how many there are."""
    if archive is None:
        return 0
    count = 0
    for job in jobs:
        answers = {path: folder for path in job.images if (folder := archive.find(path, job.identity)) is not None}
        if answers and not (overwrite or resume):
            folder = next(iter(answers.values()))
            raise VitreousError(f"{folder} is there already; choose another --out, or add --overwrite or --resume")
        if not overwrite:
            job.images[:] = [path for path in job.images if path not in answers]
            count += len(answers)
    return count


@dataclass
class _Results:
    """Saves explanations, and collects what is printed about them."""

    archive: Archive | None
    overwrite: bool
    original: bool
    keep: bool
    """Whether the explanations are needed later."""
    show_method: bool
    rows: list[dict[str, Any]] = field(default_factory=list)
    cells: list[list[str]] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    explanations: list[Explanation] = field(default_factory=list)
    questions: set[str] = field(default_factory=set)

    def is_known(self, explanation: Explanation) -> bool:
        """Whether the class that was named is the predicted one, which was asked for too."""
        if explanation.identity is None or self.archive is None:
            return False
        question = explanation.identity["request"]
        is_known = question in self.questions
        self.questions.add(question)
        return is_known

    def add(self, explanation: Explanation, is_only: bool) -> None:
        if explanation.check_result is not None:
            which = "" if is_only else f", {display_name(explanation.method)}, {explanation.label}"
            self.verdicts.append(f"{explanation.name}{which}: {explanation.check_result}")
        folder = None
        if self.archive is not None:
            folder = self.archive.save(explanation, overwrite=self.overwrite, original=self.original)
        self.rows.append(_to_json(explanation, folder))
        self.explanations += [explanation] if self.keep else []
        prediction, probability = explanation.prediction, explanation.probability
        self.cells.append(
            [
                explanation.name,
                *([display_name(explanation.method)] if self.show_method else []),
                f"{prediction.label} ({prediction.probability:.3f})",
                explanation.label + ("" if probability is None else f" ({probability:.3f})"),
                str(folder),
            ]
        )

    def print(self, quiet: bool, as_json: bool, num_answered: int) -> None:
        if as_json:
            options.print_json({"schema": "vitreous.explain/1", "explanations": self.rows})
        elif not quiet:
            table = options.table("image", *(["method"] if self.show_method else []), "said", "explained", "saved in")
            for cells in self.cells:
                table.add_row(*cells)
            for content in (table, *self.verdicts) if self.rows else ():
                options.say(content)
            if num_answered:
                options.say(f"{num_answered} left out: the same question is answered already")


def _to_json(explanation: Explanation, folder: Path | None) -> dict[str, Any]:
    """Return one explanation as JSON: its manifest, where it was saved, and the map if it is small."""
    is_small = explanation.map.numel() <= _MAX_JSON_VALUES
    return {
        **explanation.manifest(),
        "folder": None if folder is None else str(folder),
        "map": explanation.map.tolist() if is_small else None,
    }


@with_model_options()
def compare(
    image: options.Image,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A spec; may be repeated, or hold several with commas.",
            show_default=f"{','.join(defaults.COMPARISON_METHODS)} and that of --effort",
        ),
    ] = None,
    model: options.Model = defaults.MODEL,
    effort: options.Effort = None,
    target: options.Targets = None,
    contrast: options.Contrast = None,
    output: options.Output = "logit",
    class_subset: options.ClassSubset = None,
    out: Annotated[
        Path | None, typer.Option(help="The panel, an image file.", show_default="IMAGE-compare.png")
    ] = None,
    html: options.Html = None,
    tile: Annotated[int, typer.Option(min=48, max=1024, help="Size of each image in the panel.")] = 320,
    model_options: ModelOptions = options.ANY_MODEL,
    memory_gb: options.MemoryGb = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    no_cache: options.NoCache = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Explain one image with several methods, side by side in one labelled panel; one row for each --target."""
    import vitreous as vt

    options.switch_cache_off(no_cache)
    options.check_effort(effort)
    options.check_output(html, overwrite, ".html", ".htm")
    methods = list(map(vt.get_method, options.read_specs(method, "method"))) or None
    image = options.find_image(image, "compare")
    path = out or Path(f"{disk.safe_name(image.stem)}-compare.png")
    options.check_output(path, overwrite)
    vision_model = model_options.load(model, quiet)
    query: dict[str, Any] = {"contrast": contrast or None, "output": output, "seed": seed, "memory_gb": memory_gb}
    query["class_subset"] = options.read_class_subset(class_subset)
    with options.progress_bar("comparing", quiet or as_json) as bar:
        comparison = vt.compare(vision_model, image, methods, target or None, effort=effort, progress=bar, **query)
    comparison.save(path, overwrite=overwrite, tile=tile)
    _write_page(html, comparison, overwrite)
    if as_json:
        rows = [_to_json(explanation, None) for explanation in comparison]
        options.print_json({"schema": "vitreous.compare/1", "panel": str(path), "explanations": rows})
    elif not quiet:
        top = comparison[0].prediction
        saved = f"{len(comparison)} maps in {path}"
        options.say(f"{vision_model.name} said {top.label} ({top.probability:.3f}); {saved}")


@with_model_options()
def why(
    image: options.Image,
    model: options.Model = defaults.MODEL,
    target: Annotated[str | None, typer.Option(help="Class index or label.", show_default="the prediction")] = None,
    effort: options.Effort = None,
    method: Annotated[str | None, typer.Option(help="A spec such as generic.", show_default="that of --effort")] = None,
    out: Annotated[Path | None, typer.Option(help="The page, a .html file.", show_default="IMAGE-why.html")] = None,
    model_options: ModelOptions = options.ANY_MODEL,
    memory_gb: options.MemoryGb = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    no_cache: options.NoCache = False,
    quiet: options.Quiet = False,
) -> None:
    """Say why the model sees what it sees in an image: one page to read, for anyone.

    The page has what the model says, where it saw it, what it says without that and with that alone, why not the next
    class, and how far all this can be trusted.
    """
    import vitreous as vt

    options.switch_cache_off(no_cache)
    options.check_effort(effort, [] if method is None else [method])
    if method is not None:
        vt.get_method(method)
    path = out or Path(f"{disk.safe_name(image.stem)}-why.html")
    options.check_output(path, overwrite, ".html", ".htm")
    image = options.find_image(image, "why")
    vision_model = model_options.load(model, quiet)
    command = shlex.join(["vitreous", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("vitreous", "__main__") else None
    query: dict[str, Any] = {"effort": effort, "seed": seed, "memory_gb": memory_gb, "command": command}
    answer = vt.why(vision_model, image, method, target, **query)
    saved = answer.save(path, overwrite=overwrite)
    if not quiet:
        options.say(str(answer))
        options.say(f"the page is {saved}")
