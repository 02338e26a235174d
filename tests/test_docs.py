"""The manual is true: its Python and its commands run, its links lead somewhere, it names no machine.

All blocks of a page run in order, in one namespace and one temporary directory that holds `photo.jpg` and
`photos/`. A block below a line `<!-- no run: reason -->` is not run, but it has to be valid Python.
"""

from __future__ import annotations

import contextlib
import glob
import io
import re
import shlex
import sys
import textwrap
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

import vitreous as vt
from vitreous.methods.registry import MethodInfo

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = sorted({*PAGES, *ROOT.glob("*.md")})

FENCE = re.compile(r"^(?P<indent>\s*)(?P<ticks>`{3,}|~{3,})\s*(?P<language>[\w+-]*)")
NO_RUN = re.compile(r"^\s*<!-- no run: \S.*-->\s*$")
LINK = re.compile(r"""\]\(\s*<?([^\s)>]+)|^\s*\[[^\]^]+\]:\s+<?([^\s>]+)|(?:src|href)=["']([^"']+)["']""", re.M)
MACHINE = re.compile(r"(?<![\w.])/(?:tmp|root|work|home)/")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the page's line of its first line, and whether it runs."""

    language: str
    text: str
    line: int
    runs: bool


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> Iterator[Block]:
    lines = text.splitlines()
    above, i = "", 0
    while i < len(lines):
        opening = FENCE.match(lines[i])
        if not opening:
            above = lines[i] if lines[i].strip() else above
            i += 1
            continue
        start = i = i + 1
        # The closing fence is at least as long as the opening one and has nothing after it.
        closing = re.compile(rf"^\s*{re.escape(opening['ticks'])}{re.escape(opening['ticks'][0])}*\s*$")
        while i < len(lines) and not closing.match(lines[i]):
            i += 1
        body = textwrap.dedent("\n".join(lines[start:i]))
        yield Block(opening["language"], body, start + 1, not NO_RUN.match(above))
        above, i = "", i + 1


def prose(text: str) -> str:
    """The page without its code."""
    lines_of_text, fence = [], ""
    for line in text.splitlines():
        match = FENCE.match(line)
        if fence:
            fence = "" if line.strip().startswith(fence) else fence
        elif match:
            fence = match["ticks"]
        else:
            lines_of_text.append(line)
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", "\n".join(lines_of_text))


def commands(block: Block) -> Iterator[tuple[int, list[str]]]:
    """The arguments of each `$ vitreous …` line, with its line number; a trailing backslash continues."""
    lines = block.text.splitlines()
    for i, line in enumerate(lines):
        if not line.startswith("$ vitreous"):
            continue
        command, j = line[2:], i
        while command.endswith("\\") and j + 1 < len(lines):
            j += 1
            command = command[:-1] + lines[j].lstrip("> ")
        words = shlex.split(command, comments=True)
        yield block.line + i, [match for word in words for match in sorted(glob.glob(word)) or [word]]


def run_python(page: Path, block: Block, namespace: dict[str, object]) -> None:
    where = f"{name(page)}:{block.line}"
    try:
        # Blank lines in front make the line numbers of a traceback those of the page.
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    except SyntaxError as error:
        pytest.fail(f"{name(page)}:{error.lineno}: not valid Python: {error.msg}", pytrace=False)
    if not block.runs:
        return
    try:
        exec(code, namespace)
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(page)]
        where = f"{name(page)}:{frames[-1].lineno}" if frames else where
        raised = "".join(traceback.format_exception(error))
        pytest.fail(f"{where}: {type(error).__name__}: {error}\n\n{raised}", pytrace=False)


def run_command(page: Path, line: int, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.cli import main

    where = f"{name(page)}:{line}: {shlex.join(words)}"
    if {"|", ">", ">>", "<", "&&", "||", ";"} & set(words):
        pytest.fail(f"{where}: only plain commands are run here; put a 'no run' comment above", pytrace=False)
    monkeypatch.setattr(sys, "argv", words)
    wrong: object = None
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            wrong = main()
        except SystemExit as stop:
            wrong = stop.code
        except Exception:
            wrong = traceback.format_exc()
    if wrong:
        pytest.fail(f"{where}: ended with {wrong}\n\n{out.getvalue()}", pytrace=False)


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the images that the pages name."""
    (tmp_path / "photos").mkdir()
    for path, tilt in (("photo.jpg", 0), ("photos/one.jpg", 15), ("photos/two.jpg", 60)):
        ramp = Image.linear_gradient("L").rotate(tilt)
        image = Image.merge("RGB", (ramp, ramp.rotate(90), ramp.rotate(180))).crop((0, 0, 240, 200))
        image.save(tmp_path / path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("working_directory")
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "python":
            run_python(page, block, namespace)
        elif block.language == "console" and block.runs:
            for line, words in commands(block):
                run_command(page, line, words, monkeypatch)


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_links(page: Path) -> None:
    lost = []
    for groups in LINK.findall(prose(page.read_text(encoding="utf-8"))):
        link = "".join(groups)
        path = re.split(r"[#?]", link)[0]
        if re.match(r"[a-z][a-z0-9+.-]*:", link) or not path:
            continue
        goal = (page.parent / path).resolve()
        if path.startswith("/") or not goal.is_relative_to(ROOT) or not goal.exists():
            lost.append(link)
    assert not lost, f"{name(page)} links to what is not there: {lost}"


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_names_no_machine(page: Path) -> None:
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    paths = [f"{name(page)}:{i}: {line.strip()}" for i, line in lines if MACHINE.search(line)]
    assert not paths, "\n".join(paths)


# The reader of the pages deserves a test of its own: a block it overlooks would never fail.

SAMPLE = """\
Text with `[no](link.md)` and [one](there.md#part).

```python title="first"
x = 1
```

<!-- no run: needs the network -->

```python
y = fetch()
```

=== "Tab"

    ```console
    $ pip install something
    $ vitreous explain photo.jpg \\
        --method 'smooth(generic, samples=2)'  # a comment
    written
    ```

````markdown
```python
inside another block
```
[hidden](link.md)
````
"""


def test_reader() -> None:
    first, second, third, fourth = blocks(SAMPLE)
    assert (first.language, first.text, first.line, first.runs) == ("python", "x = 1", 4, True)
    assert (second.language, second.text, second.line, second.runs) == ("python", "y = fetch()", 10, False)
    assert fourth.language == "markdown"
    words = ["vitreous", "explain", "photo.jpg", "--method", "smooth(generic, samples=2)"]
    assert list(commands(third)) == [(17, words)]
    assert ["".join(groups) for groups in LINK.findall(prose(SAMPLE))] == ["there.md#part"]


def test_failure_names_page_and_line() -> None:
    block = Block("python", "x = 1\nx / 0", 7, True)
    with pytest.raises(pytest.fail.Exception, match=r"README\.md:8: ZeroDivisionError"):
        run_python(ROOT / "README.md", block, {})


@pytest.mark.parametrize(
    ("page", "heading"),
    [("architecture.md", "### Which test checks which promise"), ("numbers.md", "## What is checked against what")],
)
def test_promises_name_tests_that_exist(page: str, heading: str) -> None:
    section = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(heading)[2].partition("\n##")[0]
    paths = re.findall(r"`([\w/]+\.py)`", section)
    assert len(set(paths)) > 10
    assert [path for path in paths if not (ROOT / "tests" / path).is_file() and not (ROOT / path).is_file()] == []


def script(path: str) -> ModuleType:
    """A script of the manual, as a module."""
    spec = spec_from_file_location(Path(path).stem, ROOT / "docs" / path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def own_methods() -> list[MethodInfo]:
    """All, without what a page of the manual registers."""
    return [info for info in vt.list_methods() if info.factory.__module__.startswith("vitreous.")]


def test_the_gallery_has_every_family_and_stays_small() -> None:
    """Run ``python docs/pictures/gallery.py`` when this fails."""
    gallery = script("pictures/gallery.py")
    page = (ROOT / "docs" / "gallery.md").read_text()
    named = re.findall(r"\(pictures/(gallery[\w-]*\.png)\)", page)
    assert named == ["gallery.png", *(f"gallery-{gallery.slug(family)}.png" for family in gallery.families())]
    assert {path.name for path in (ROOT / "docs" / "pictures").glob("gallery*.png")} == set(named)
    assert sum((ROOT / "docs" / "pictures" / file).stat().st_size for file in named) < 3e6
    methods = {vt.get_method(spec).info.name for specs in gallery.families().values() for spec in specs}
    assert methods == {info.name for info in own_methods() if info.models != "ReLU"}


def test_counts_of_methods_are_those_of_the_registry() -> None:
    infos = own_methods()
    combinators, controls = (sum(info.family == family for info in infos) for family in ("combinator", "control"))
    methods = len(infos) - combinators - controls
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"{methods} methods, {combinators} combinators and {controls} controls" in readme
    assert f"{methods} [methods](methods.md) in all" in (ROOT / "docs" / "index.md").read_text()


@pytest.mark.parametrize("page", ["methods.md", "metrics.md"])
def test_tables_are_those_of_the_registries(page: str) -> None:
    """Run ``python docs/tables.py`` when this fails."""
    tables = script("tables.py")
    text = (ROOT / "docs" / page).read_text()
    assert "<!-- table: " in text
    assert tables.update_tables(text) == text
    row = next(line for line in text.splitlines() if "| faithfulness |" in line or "| 1 F |" in line)
    assert tables.update_tables(text.replace(row, row.replace("`", "", 1))) == text, "a stale line is replaced"
