"""``vitreous explain``, ``vitreous compare`` and ``vitreous why``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer import Argument, Option

import vitreous as vt
from vitreous import io as disk
from vitreous.cli import options
from vitreous.cli.options import LimitOptions, ModelOptions, QueryOptions, ResultOptions, with_options
from vitreous.errors import VitreousError
from vitreous.registry import defaults
from vitreous.registry.defaults import display_name

_MAX_JSON_VALUES = 4096  # larger maps are written to files only


@with_options()
def explain(
    images: Annotated[list[Path], Argument(help="Images or folders of images.", show_default=False)],
    model: options.Model = defaults.MODEL,
    method: Annotated[
        list[str] | None,
        Option(help="A spec such as generic or coiba(steps=10); may be repeated.", show_default="that of --effort"),
    ] = None,
    effort: options.Effort = None,
    target: options.Targets = None,
    out: Annotated[
        Path | None, Option(help="Folder for the results: IMAGE/METHOD/CLASS.", show_default="explanations")
    ] = None,
    original: Annotated[bool, Option(help="Also draw the map on the original photograph.")] = False,
    html: options.Html = None,
    check: Annotated[bool, Option(help="Also test how far each map can be trusted.")] = False,
    resume: Annotated[bool, Option(help="Do what is missing: leave out what was asked before.")] = False,
    no_cache: options.NoCache = False,
    *,
    query_options: QueryOptions,
    model_options: ModelOptions,
    limit_options: LimitOptions,
    result_options: ResultOptions,
) -> None:
    """Explain images: a map, a heat map, an overlay and a manifest for each.

    Every image is explained with every --method and for every --target. Results go to --out, in folders
    IMAGE/METHOD/CLASS; another question about an image is another result. With --json and without --out nothing is
    written. Of several images, one that cannot be read is named and skipped, and the exit code is 1.
    """
    options.check_effort(effort, method or ())
    result_options.check(html, ".html", ".htm")
    methods = list(map(vt.get_method, options.read_specs(method, "method")))
    files = options.find_images(images)
    archive = None if result_options.as_json and out is None else vt.Archive(out or Path("explanations"))
    if archive is not None:
        archive.check()
        files = archive.unique(files)
    vision_model = model_options.load(model, result_options.quiet)
    methods = methods or [vt.get_method(vt.recommended_method(effort or "quick", vision_model))]
    results = _Results(archive, result_options, original, keep=html is not None, show_method=len(methods) > 1)
    query, targets = query_options.chosen(), target or (None,)
    jobs = _plan_jobs(vision_model, product(methods, targets), query, files, results, resume)
    skipped = _run_jobs(vision_model, jobs, {**query, **limit_options.chosen()}, results, check, len(files) == 1)
    _write_page(html, results.explanations, result_options.overwrite)
    results.print(num_answered=len(jobs) * len(files) - sum(len(job.images) for job in jobs))
    if skipped:
        raise typer.Exit(1)


class _Job(NamedTuple):
    """One method and one target over images."""

    method: Any
    target: str | None
    identity: Any
    images: list[Path]


def _plan_jobs(
    model: vt.VisionModel,
    questions: Iterable[tuple[Any, str | None]],
    query: dict[str, Any],
    images: Sequence[Path],
    results: _Results,
    resume: bool,
) -> list[_Job]:
    """Return every method with every target, each question once, with the images of which it was not asked before."""
    jobs: list[_Job] = []
    archive, overwrite = results.archive, results.options.overwrite
    # all of them before the first search, which reads the weights for all
    identities = [(*question, vt.Archive.identity(model, *question, **query)) for question in questions]
    for method, target, identity in identities:
        if any(identity == job.identity for job in jobs):
            continue
        folders = {path: None if archive is None else archive.find(path, identity) for path in images}
        folder = next(filter(None, folders.values()), None)
        if folder is not None and not (overwrite or resume):
            raise VitreousError(f"{folder} is there already; choose another --out, or add --overwrite or --resume")
        left = [path for path in images if overwrite or folders[path] is None]
        jobs.append(_Job(method, target, identity, left))
    return jobs


def _run_jobs(
    model: vt.VisionModel,
    jobs: Sequence[_Job],
    query: dict[str, Any],
    results: _Results,
    check: bool,
    is_single: bool,
) -> set[Path]:
    """Explain all images of all jobs; return those that cannot be read. A single image must be readable."""
    skipped: set[Path] = set()

    def on_error(path: Path, error: VitreousError) -> None:
        skipped.add(path)
        options.print_skipped(path, error)

    query = {**query, "on_error": None if is_single else on_error}
    for job in jobs:
        left = [path for path in job.images if path not in skipped]
        with results.options.progress_bar(display_name(job.method.spec)) as bar:
            explanations = vt.iter_explanations(model, left, job.method, job.target, progress=bar, **query)
            for explanation in explanations if left else ():
                if results.is_known(explanation):
                    continue
                if check:
                    checked = vt.check(explanation, model, memory_gb=query.get("memory_gb"))
                    explanation = replace(explanation, check_result=checked)
                results.add(explanation, is_only=len(jobs) == 1)
    if skipped and not results.rows:
        raise VitreousError(f"none of the {len(skipped)} images can be read")
    return skipped


@dataclass
class _Results:
    """Saves explanations, and collects what is printed about them."""

    archive: vt.Archive | None
    options: ResultOptions
    original: bool
    keep: bool
    """Whether the explanations are needed later."""
    show_method: bool
    rows: list[dict[str, Any]] = field(default_factory=list)
    cells: list[list[str]] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    explanations: list[vt.Explanation] = field(default_factory=list)
    questions: set[str] = field(default_factory=set)

    def is_known(self, explanation: vt.Explanation) -> bool:
        """Whether the class that was named is the predicted one, which was asked for too."""
        if explanation.identity is None or self.archive is None:
            return False
        question = explanation.identity["request"]
        is_known = question in self.questions
        self.questions.add(question)
        return is_known

    def add(self, explanation: vt.Explanation, is_only: bool) -> None:
        method, label, folder = display_name(explanation.method), explanation.label, None
        if explanation.check_result is not None:
            which = "" if is_only else f", {method}, {label}"
            self.verdicts.append(f"{explanation.name}{which}: {explanation.check_result}")
        if self.archive is not None:
            folder = self.archive.save(explanation, overwrite=self.options.overwrite, original=self.original)
        self.rows.append(_to_json(explanation, folder))
        self.explanations += [explanation] if self.keep else []
        top, probability = explanation.prediction, explanation.probability
        explained = label if probability is None else f"{label} ({probability:.3f})"
        cells = [explanation.name, method, f"{top.label} ({top.probability:.3f})", explained, str(folder)]
        self.cells.append(cells)

    def print(self, num_answered: int) -> None:
        if self.options.as_json:
            options.print_json({"schema": "vitreous.explain/1", "explanations": self.rows})
        columns = ["image", "method", "said", "explained", "saved in"]
        table = options.table(*(name for name in columns if name != "method" or self.show_method))
        for cells in self.cells:
            table.add_row(*(cells if self.show_method else [cells[0], *cells[2:]]))
        for content in (table, *self.verdicts) if self.rows else ():
            self.options.say(content)
        if num_answered:
            self.options.say(f"{num_answered} left out: the same question is answered already")


def _to_json(explanation: vt.Explanation, folder: Path | None) -> dict[str, Any]:
    """Return one explanation as JSON: its manifest, where it was saved, and the map if it is small."""
    is_small = explanation.map.numel() <= _MAX_JSON_VALUES
    return {
        **explanation.manifest(),
        "folder": None if folder is None else str(folder),
        "map": explanation.map.tolist() if is_small else None,
    }


def _write_page(path: Path | None, results: Any, overwrite: bool) -> None:
    if path is not None and len(results):
        disk.write_file(path, vt.to_html(results).encode(), overwrite=overwrite)


@with_options()
def compare(
    image: options.Image,
    method: Annotated[
        list[str] | None,
        Option(
            help="A spec; may be repeated, or hold several with commas.",
            show_default=f"{','.join(defaults.COMPARISON_METHODS)} and that of --effort",
        ),
    ] = None,
    model: options.Model = defaults.MODEL,
    effort: options.Effort = None,
    target: options.Targets = None,
    out: Annotated[Path | None, Option(help="The panel, an image file.", show_default="IMAGE-compare.png")] = None,
    html: options.Html = None,
    tile: Annotated[int, Option(min=48, max=1024, help="Size of each image in the panel.")] = 320,
    memory_gb: options.MemoryGb = None,
    no_cache: options.NoCache = False,
    *,
    query_options: QueryOptions,
    model_options: ModelOptions,
    result_options: ResultOptions,
) -> None:
    """Explain one image with several methods, side by side in one labelled panel; one row for each --target."""
    options.check_effort(effort)
    result_options.check(html, ".html", ".htm")
    methods = list(map(vt.get_method, options.read_specs(method, "method"))) or None
    image = options.find_image(image, "compare")
    path = out or Path(f"{disk.safe_name(image.stem)}-compare.png")
    result_options.check(path)
    vision_model = model_options.load(model, result_options.quiet)
    query: dict[str, Any] = {"effort": effort, "memory_gb": memory_gb, **query_options.chosen()}
    with result_options.progress_bar("comparing") as bar:
        comparison = vt.compare(vision_model, image, methods, target or None, progress=bar, **query)
    comparison.save(path, overwrite=result_options.overwrite, tile=tile)
    _write_page(html, comparison, result_options.overwrite)
    if result_options.as_json:
        rows = [_to_json(explanation, None) for explanation in comparison]
        options.print_json({"schema": "vitreous.compare/1", "panel": str(path), "explanations": rows})
    top = comparison[0].prediction
    saved = f"{len(comparison)} maps in {path}"
    result_options.say(f"{vision_model.name} said {top.label} ({top.probability:.3f}); {saved}")


@with_options("contrast", "output", "class_subset", "as_json")
def why(
    image: options.Image,
    model: options.Model = defaults.MODEL,
    target: Annotated[str | None, Option(help="Class index or label.", show_default="the prediction")] = None,
    effort: options.Effort = None,
    method: Annotated[str | None, Option(help="A spec such as generic.", show_default="that of --effort")] = None,
    out: Annotated[Path | None, Option(help="The page, a .html file.", show_default="IMAGE-why.html")] = None,
    memory_gb: options.MemoryGb = None,
    no_cache: options.NoCache = False,
    *,
    query_options: QueryOptions,
    model_options: ModelOptions,
    result_options: ResultOptions,
) -> None:
    """Say why the model sees what it sees in an image: one page to read, for anyone.

    The page has what the model says, where it saw it, what it says without that and with that alone, why not the next
    class, and how far all this can be trusted.
    """
    options.check_effort(effort, [] if method is None else [method])
    if method is not None:
        vt.get_method(method)
    path = out or Path(f"{disk.safe_name(image.stem)}-why.html")
    result_options.check(path, ".html", ".htm")
    image = options.find_image(image, "why")
    vision_model = model_options.load(model, result_options.quiet)
    command = shlex.join(["vitreous", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("vitreous", "__main__") else None
    query: dict[str, Any] = {"effort": effort, "memory_gb": memory_gb, "command": command, **query_options.chosen()}
    answer = vt.why(vision_model, image, method, target, **query)
    saved = answer.save(path, overwrite=result_options.overwrite)
    result_options.say(str(answer))
    result_options.say(f"the page is {saved}")
