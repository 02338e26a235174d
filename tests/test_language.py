"""The field's words: no name in code, tests or manual that only the makers of this project would understand."""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NAMES = frozenset(
    """
    across aim among against asking ask_layers asks at_once bare beside betray because birds careful carry chances
    course desk drawn each flowing foreign fork found gathered given heeded how hows hows_of judged judges kept
    known listening looked_at looking made maker own_value piece plain proven read_layers rest rivals said seen_as
    shelf shelves shown sight some spelled spelling spelt substrate telling_part theirs tick told trying twin typed
    understood unsure whole wide wire witness_of yardstick yardsticks
    """.split()  # noqa: SIM905
)
"""Participles, metaphors and words with several meanings that were used as names: parameters, variables, attributes."""
FILES = frozenset(
    """
    along asked asking because beside birds bodies careful desk drawn elsewhere finding foreign gather heeded hows
    inside judge judges kinds known lines listening looking marks ofbase part parts places printed proof rays readout
    rooms rows screen several sheet shelf shelves spelling stored swaps told trying twin typed wire words work
    """.split()  # noqa: SIM905
)
OF_LIBRARIES = {"from hypothesis import": {"given"}, "os.fork(": {"fork"}}
"""Names that a library gives, by what a file says that uses it."""
CODE_BLOCK = re.compile(r"^( *)```python.*?\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def names(code: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            yield token.start[0], token.string


def private_names(code: str) -> list[str]:
    allowed = {name for use, library_names in OF_LIBRARIES.items() if use in code for name in library_names}
    return [f"line {line}: {name}" for line, name in names(code) if name in NAMES - allowed]


def sources() -> list[Path]:
    return sorted(path for folder in ("src", "tests", "docs", "benchmarks") for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", sources(), ids=relative)
def test_no_name_is_private(path: Path) -> None:
    assert not private_names(path.read_text())


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=relative)
def test_no_name_of_the_manual_is_private(path: Path) -> None:
    blocks = CODE_BLOCK.findall(path.read_text())
    assert not [name for indent, code in blocks for name in private_names(re.sub(f"^{indent}", "", code, flags=re.M))]


def test_no_file_has_a_private_name() -> None:
    assert not [relative(path) for path in sources() if path.stem.removeprefix("test_") in FILES]


def test_a_private_name_is_seen() -> None:
    assert private_names("def run(how):\n    return [each for each in how]\n") != []
    assert private_names("from hypothesis import given\n") == []
