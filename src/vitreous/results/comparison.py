"""Several explanations: of one image side by side, on a page, and in a folder."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from torch import nn

from vitreous import io as disk
from vitreous import viz
from vitreous.datasets.images import file_digest
from vitreous.errors import ImageError, TargetError, VitreousError, one_line
from vitreous.html import Section, figure, report
from vitreous.methods import Method, get_method, resolve_method
from vitreous.models import VisionModel, wrap
from vitreous.registry import check_at_least
from vitreous.registry.defaults import display_name
from vitreous.results.explanation import PERCENTILE, Explanation
from vitreous.results.storage import ResultIdentity
from vitreous.tracing import Target, TargetSpec

_OUTPUTS = {"prob": "probability", "logprob": "log-probability", "callable": "value of the function"}


class Comparison(Sequence[Explanation]):
    """Several explanations of one image side by side: one row per target, one column per method.

    Made by ``vt.compare``. A sequence of explanations, row by row; a spec gives that of the first row.

    Parameters
    ----------
    rows : sequence of sequences of Explanation
        One row per target.

    Examples
    --------
    >>> compared = vt.compare(model, image, ["rollout", "ixg"])
    >>> len(compared), compared["ixg"].method
    (2, 'ixg')
    """

    def __init__(self, rows: Sequence[Sequence[Explanation]]) -> None:
        self.rows = [list(row) for row in rows]
        self._explanations = [explanation for row in self.rows for explanation in row]

    def __len__(self) -> int:
        return len(self._explanations)

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self._explanations)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, str):
            return self._explanations[index]
        for explanation in self._explanations:
            if index in (explanation.method, display_name(explanation.method)):
                return explanation
        raise KeyError(index)

    def __repr__(self) -> str:
        first = self[0]
        lines = [
            f"Comparison of {len(self)} maps of {first.name} on {first.model}, which predicts {first.prediction}",
            f"methods: {', '.join(display_name(explanation.method) for explanation in self.rows[0])}",
            f"classes: {', '.join(str(row[0].explained) for row in self.rows)}",
        ]
        return "\n  ".join(one_line(line) for line in lines)

    def _repr_html_(self) -> str:
        return figure(self.panel(), self[0].model)

    def panel(self, *args: Any, **options: Any) -> Image.Image:
        """Return one labelled picture; the arguments are those of ``sheet``."""
        return self.sheet(*args, **options).image()

    def sheet(
        self,
        tile: int = viz.TILE,
        percentile: float = PERCENTILE,
        scale: Literal["each", "group", "panel"] = "each",
        columns: int = 4,
        zoom: float = 1.0,
    ) -> viz.Sheet:
        """Return the panel as a page on which text is text.

        Parameters
        ----------
        tile : int, default 320
            The longer side of each picture in pixels.
        percentile : float, default 99.0
            Of the sizes of the values: the strongest colour.
        scale : {"each", "group", "panel"}, default "each"
            Every map has a colour scale of its own, maps of one method share one, or all do.
        columns : int, default 4
            The most tiles in a line.
        zoom : float, default 1.0
            2 doubles the tiles and all text.

        Returns
        -------
        Sheet
            The page.
        """
        check_at_least("columns", columns, 1)
        rows: list[list[viz.Cell]] = []
        titles: list[str] = []
        for row in self.rows:
            first = row[0]
            predicted = f"predicted: {first.prediction.label} ({first.prediction.probability:.2f})"
            cells = [viz.Cell(first.image, None, first.name, predicted), *map(_cell, row)]
            width = math.ceil(len(cells) / math.ceil(len(cells) / columns))  # lines of equal length
            lines = [cells[start : start + width] for start in range(0, len(cells), width)]
            rows += lines
            specific = next((explanation for explanation in row if explanation.class_specific), first)
            titles += [specific.title, *[""] * (len(lines) - 1)]
        try:
            return viz.sheet(rows, self[0].model, percentile, tile, scale, titles, zoom)
        except ValueError as error:
            raise VitreousError(str(error)) from error

    def show(self) -> None:
        """Show the panel."""
        viz.display(self.panel())

    def save(self, path: str | Path, *, overwrite: bool = False, **options: Any) -> Path:
        """Write the panel as one picture, SVG and PDF with text as text; return the path.

        Parameters
        ----------
        path : str or Path
            Where to: the ending says in which form.
        overwrite : bool, default False
            Replace what is there.
        **options
            The arguments of ``sheet``.
        """
        disk.check_file(path, overwrite)
        disk.write_file(path, viz.encoded(self.sheet(**options), path), overwrite=overwrite)
        return Path(path)


def _cell(explanation: Explanation) -> viz.Cell:
    """Return a tile that says which method explains what of the class."""
    note = "the same for every class"
    if explanation.class_specific:
        note = " and ".join(_OUTPUTS.get(output, output) for output in explanation.output.split(" and "))
        note += "; the sign is a convention" if explanation.signed is False else ""
    spec = explanation.method
    return viz.Cell(explanation.image, explanation.map.numpy(), display_name(spec), note, spec, explanation.signed)


def to_html(results: Explanation | Comparison | Sequence[Explanation]) -> str:
    """Return a page with the maps: one section for each image, or for each target of a comparison.

    Parameters
    ----------
    results : Explanation, Comparison or sequence of Explanation
        What to show.

    Returns
    -------
    str
        One self-contained page, pictures inline.

    Examples
    --------
    >>> page = vt.to_html(vt.explain(model, images[:2], "ixg"))
    >>> page.count("<section")
    2
    """
    explanations = [results] if isinstance(results, Explanation) else list(results)
    if not explanations:
        raise VitreousError("there is nothing to show: give at least one explanation")
    if isinstance(results, Comparison):
        first = results[0]
        lead = f"{first.model} predicts {first.prediction.label} ({first.prediction.probability:.2f})."
        title = f"{first.name}, explained by {len(results.rows[0])} methods"
        return report(title, lead, [_section(row) for row in results.rows])
    by_image: dict[str, list[Explanation]] = {}
    for explanation in explanations:
        by_image.setdefault(explanation.source or explanation.name, []).append(explanation)
    models = ", ".join(dict.fromkeys(explanation.model for explanation in explanations))
    methods = ", ".join(dict.fromkeys(display_name(explanation.method) for explanation in explanations))
    lead = f"{len(explanations)} maps by {methods}. Each has its own scale: its strongest patch is 1."
    return report(f"What {models} saw", lead, [_section(group) for group in by_image.values()])


def _section(explanations: Sequence[Explanation]) -> Section:
    first = explanations[0]
    text = f"The model predicts {first.prediction.label} ({first.prediction.probability:.2f})."
    images = [(first.image, f"{first.name}, as the model sees it")]
    images += [(one.overlay(size=max(320, *one.image.size)), one.caption) for one in explanations]
    probability = "" if first.probability is None else f" {first.probability:.2f}"
    is_one_class = len({one.label for one in explanations}) == 1
    heading = f"{first.name}: why {first.label}?{probability}" if is_one_class else first.name
    return Section(heading, text, images)


# -- explanations in a folder ---------------------------------------------------------------------------


class Archive:
    """Explanations in a folder: ``IMAGE/METHOD/CLASS``, one folder for each result, names that a person can read.

    A result is never known by its name: two images of one stem get folders of their own (``cat``, ``cat-2``), and so do
    two results whose names are alike (another seed, another model). What is what stands in the manifests.

    Parameters
    ----------
    out : str or Path
        The folder. It is created when the first explanation is saved.

    Examples
    --------
    >>> archive = vt.Archive(tmp_path / "explanations")
    >>> folder = archive.save(vt.explain(model, image, "ixg"))
    >>> folder.parent.name
    'ixg'
    """

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)

    def check(self) -> None:
        """Raise before the work where nothing can be written."""
        disk.check_folder(self.out / "explanation")

    def unique(self, paths: Sequence[Path]) -> list[Path]:
        """Return these image files without those that would go to the same place: the same bytes and name."""
        return list({(path.name, _digest(path) or str(path)): path for path in reversed(paths)}.values())[::-1]

    @staticmethod
    def identity(
        model: VisionModel | nn.Module,
        method: str | Method | None = None,
        target: int | str | None = None,
        *,
        effort: str | None = None,
        contrast: TargetSpec = None,
        output: str = "logit",
        class_subset: Sequence[int | str] | None = None,
        grid: str | None = None,
        seed: int = 0,
    ) -> ResultIdentity:
        """Return what tells the explanation that ``explain`` with these arguments would make from all others.

        Parameters
        ----------
        model, method, target, effort, contrast, output, class_subset, grid, seed
            As in ``explain``.
        """
        vision_model = wrap(model)
        spec = Target.of(vision_model, 1, target, contrast, output, class_subset)
        if spec.function is not None:
            raise TargetError("a callable target has no identity; ask for a class")
        return ResultIdentity.of(vision_model, resolve_method(method, effort, vision_model), spec, grid=grid, seed=seed)

    def find(self, path: str | Path, identity: ResultIdentity) -> Path | None:
        """Return the folder of this explanation of an image file; ``None`` where it is not there.

        Parameters
        ----------
        path : str or Path
            The image file.
        identity : ResultIdentity
            From ``identity``. Identities that were made before the first search read the weights once.

        Examples
        --------
        >>> archive = vt.Archive(tmp_path / "found")
        >>> print(archive.find("photo.jpg", archive.identity(model, "ixg")))
        None
        """
        digest, stem = _digest(Path(path)), self.out / disk.safe_name(Path(path).stem)
        for image_folder in takewhile(os.path.lexists, _numbered(stem)):
            for folder in _results(image_folder):
                manifest = disk.manifest_of(folder)
                if manifest is not None and identity.matches(manifest, digest):
                    disk.recover(folder)
                    disk.recover(stem)
                    return folder
        return None

    def save(self, explanation: Explanation, *, overwrite: bool = False, original: bool = False) -> Path:
        """Write an explanation to a folder of its own, and return that; the same result is replaced if allowed."""
        if explanation.identity is None:
            raise VitreousError(f"{explanation.name} cannot be filed: a callable target has no name of its own")
        stem = disk.safe_name(Path(explanation.name).stem)
        with disk.lock(self.out / stem):  # two writers do not take the same name for two things
            folder = self._folder(explanation, explanation.identity)
            return explanation.save_folder(folder, overwrite=overwrite, original=original)

    def _folder(self, explanation: Explanation, identity: Mapping[str, str]) -> Path:
        """Return the folder of this very result, or the first free one."""
        contrast = explanation.contrast_classes
        suffix = f"-not-{'-'.join(map(disk.slug, contrast))}" if contrast else ""
        stem, name = self.out / disk.safe_name(Path(explanation.name).stem), disk.slug(explanation.label) + suffix
        owner = explanation.name, identity["image"]
        image_folder = next(folder for folder in _numbered(stem) if _is_free_for_image(folder, owner))
        base = image_folder / disk.slug(_method_name(explanation)) / disk.safe_name(name)
        return next(folder for folder in _numbered(base) if _is_free_for_result(folder, identity["request"]))


def _is_free_for_image(folder: Path, owner: tuple[str, str]) -> bool:
    """Whether the folder of an image belongs to the image of this name and digest, or to nobody."""
    if os.path.lexists(folder) and not folder.is_dir():
        return False  # a file of the user's
    manifest = next((m for m in map(disk.manifest_of, _results(folder)) if m is not None), None)
    return manifest is None or (manifest.get("name"), _identity_of(manifest).get("image")) == owner


def _is_free_for_result(folder: Path, request: str) -> bool:
    """Whether the folder of a result holds this very result, or nothing."""
    disk.recover(folder)
    manifest = disk.manifest_of(folder)
    if manifest is not None:
        return bool(_identity_of(manifest).get("request") == request)
    return not os.path.lexists(folder) or (folder.is_dir() and not disk.unlisted_files(folder))


def _digest(path: Path) -> str:
    """Return the digest of an image file; nothing if it cannot be read, which is an error when it is explained."""
    try:
        return file_digest(path)
    except ImageError:
        return ""


def _numbered(base: Path) -> Iterator[Path]:
    """Yield ``name``, ``name-2``, ``name-3`` …"""
    yield base
    for number in count(2):
        yield base.with_name(disk.safe_name(f"{base.name}-{number}"))


def _results(folder: Path) -> Iterator[Path]:
    """Yield the folders two levels down, where results are."""
    for method in sorted(folder.iterdir()) if folder.is_dir() else ():
        if method.is_dir():
            yield from (path for path in sorted(method.iterdir()) if path.is_dir())


def _method_name(explanation: Explanation) -> str:
    """Return the effort level or the spec, and the explained output unless it is the usual one or the method's own."""
    try:
        usual = " and ".join(get_method(explanation.method).outputs("logit"))
    except VitreousError:  # a method of the user's own, which no spec gives again
        usual = "logit"
    name = display_name(explanation.method)
    return name if explanation.output == usual else f"{name}-{explanation.output}"


def _identity_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    identity = manifest.get("identity")
    return identity if isinstance(identity, dict) else {}
