"""Plug-ins are known by their code: whatever takes part in a number changes the digest, and nothing else does."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import vitreous as vt
from plug_ins import HELPERS, METHOD, METRIC, PlugIns
from vitreous.code_digest import code_digest, is_external, is_unknown
from vitreous.errors import VitreousWarning

MAIN = """
import functools
from helpers import scaled

def explain(model, inputs, classes):
    return scaled(inputs.sum(dim=1))

class Explainer:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, model, inputs, classes):
        return inputs.sum(dim=1) * self.factor

def bind(factor, offset=0):
    def explain_by_factor(model, inputs, classes):
        return inputs.sum(dim=1) * factor
    return explain_by_factor

twice, thrice = Explainer(2), Explainer(3)
double, triple = bind(2), bind(3)
up, down = (functools.partial(explain, sign) for sign in (1, -1))
first, second = [lambda m, x, c: x.sum(1), lambda m, x, c: -x.sum(1)]
plus_one, plus_two = [lambda m, x, c, k=k: x.sum(1) + k for k in (1, 2)]
remembered = functools.lru_cache(explain)
"""


@pytest.fixture
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlugIns]:
    code_files = PlugIns(tmp_path / "code", monkeypatch)
    yield code_files
    code_files.forget()


def in_package(plug_ins: PlugIns) -> None:
    """A package with a module that its ``__init__`` does not import, and one that is imported inside a function."""
    texts = {
        "pack/__init__": "",
        "pack/methods": "from . import maths\n\ndef explain(m, x, c):\n    from .deep.late import f\n    return f(x)\n",
        "pack/maths": "import json\n",
        "pack/deep/__init__": "",
        "pack/deep/late": "from ..maths import json\n\ndef f(x):\n    return x\n",
        "pack/other": "1\n",
    }
    plug_ins.write(**texts)


# -- what changes it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["explain", "Explainer", "twice", "double", "up", "first", "plus_one", "remembered"])
@pytest.mark.parametrize("file", ["mine", "helpers"])
def test_the_defining_module_and_what_it_imports_count(plug_ins: PlugIns, name: str, file: str) -> None:
    plug_ins.write(mine=MAIN, helpers=HELPERS, unrelated="1\n")
    before = code_digest(getattr(plug_ins.load("mine"), name))
    plug_ins.write(unrelated="2\n")
    assert code_digest(getattr(plug_ins.load("mine"), name)) == before
    plug_ins.write(**{file: {"mine": MAIN, "helpers": HELPERS}[file] + "\nMORE = 1\n"})
    assert code_digest(getattr(plug_ins.load("mine"), name)) != before


@pytest.mark.parametrize("file", ["methods", "maths", "deep/late", "deep/__init__", "__init__"])
def test_modules_of_the_package_count_wherever_they_are_imported(plug_ins: PlugIns, file: str) -> None:
    in_package(plug_ins)
    before = code_digest(plug_ins.load("pack.methods").explain)
    path = plug_ins.folder / "pack" / f"{file}.py"
    path.write_text(path.read_text() + "MORE = 1\n")
    assert code_digest(plug_ins.load("pack.methods").explain) != before


def test_modules_that_nobody_imports_do_not_count_and_are_not_imported(plug_ins: PlugIns) -> None:
    in_package(plug_ins)
    explain = plug_ins.load("pack.methods").explain
    before = code_digest(explain)
    assert "pack.deep.late" not in sys.modules
    plug_ins.write(**{"pack/other": "2\n"})
    assert code_digest(plug_ins.load("pack.methods").explain) == before


@pytest.mark.parametrize(
    ("one", "other"),
    [("twice", "thrice"), ("double", "triple"), ("up", "down"), ("first", "second"), ("plus_one", "plus_two")],
)
def test_bound_values_count(plug_ins: PlugIns, one: str, other: str) -> None:
    plug_ins.write(mine=MAIN, helpers=HELPERS)
    mine = plug_ins.load("mine")
    assert code_digest(getattr(mine, one)) != code_digest(getattr(mine, other))


def test_values_are_compared_by_content() -> None:
    def bound(value: Any) -> str:
        return code_digest(partial(print, value))

    model = nn.Linear(2, 2)
    same = nn.Linear(2, 2)
    same.load_state_dict(model.state_dict())
    assert bound(torch.arange(2000)) == bound(torch.arange(2000))
    changed = torch.arange(2000)
    changed[1000] = 0  # in the part that no text of a tensor shows
    assert bound(torch.arange(2000)) != bound(changed)
    assert bound(torch.zeros(2)) != bound(torch.zeros(2, dtype=torch.bfloat16))
    assert bound(model) == bound(same)
    assert bound(model) != bound(nn.Linear(2, 2))
    assert bound({"a", "b", "c"}) == bound({"c", "a", "b"}) != bound({"a", "b"})
    assert bound({"a": 1, "b": 2}) == bound({"b": 2, "a": 1}) != bound({"a": 2, "b": 1})
    assert bound(1) != bound(True) != bound("True")
    knot: list[Any] = []
    knot.append(knot)
    assert bound(knot) == bound(knot)
    assert len(bound("x" * 10**6)) == len(bound(None)) == 32


# -- what does not ---------------------------------------------------------------------------------------------------


def test_folders_line_ends_and_processes_do_not_count(plug_ins: PlugIns, tmp_path: Path) -> None:
    plug_ins.write(mine=MAIN, helpers=HELPERS)
    mine = plug_ins.load("mine")
    names = ["explain", "Explainer", "twice", "double", "up", "first", "plus_one", "remembered"]
    here = [code_digest(getattr(mine, name)) for name in names]
    other = tmp_path / "elsewhere" / "deep"
    other.mkdir(parents=True)
    for name, text in (("mine", MAIN), ("helpers", HELPERS)):
        (other / f"{name}.py").write_bytes(text.replace("\n", "\r\n").encode())
    asked = f"import mine, vitreous.code_digest as d\nfor n in {names}: print(d.code_digest(getattr(mine, n)))"
    for _ in range(2):  # without and with compiled files, each with hashes of its own
        there = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(other)!r})\n{asked}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.split() == here


# -- without a file --------------------------------------------------------------------------------------------------


def notebook(*cells: str) -> dict[str, Any]:
    """What a notebook has after its cells have run."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"<cell {number}>", "exec"), variables)
    return variables


@pytest.fixture
def in_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))


CELLS = ("import numpy as np\nSCALE = 2", "def helper(x): return x * SCALE", "def explain(m, x, c): return helper(x)")
CLASS = "class Explainer:\n    power = 1\n    def __call__(self, m, x, c):\n        return helper(x) ** self.power"


@pytest.mark.usefixtures("in_notebook")
@pytest.mark.parametrize("name", ["explain", "Explainer"])
@pytest.mark.parametrize(
    ("old", "new"), [("SCALE = 2", "SCALE = 3"), ("x * SCALE", "x + SCALE"), ("return helper(x)", "return -helper(x)")]
)
def test_cells_of_a_notebook_are_known_by_what_they_do(name: str, old: str, new: str) -> None:
    before = notebook(*CELLS, CLASS)[name]
    moved = notebook("#\n\n" + CELLS[0], "pass", *CELLS[1:], CLASS)[name]
    after = notebook(*(cell.replace(old, new) for cell in (*CELLS, CLASS)))[name]
    assert code_digest(before) == code_digest(moved) != code_digest(after)


@pytest.mark.usefixtures("in_notebook")
def test_attributes_of_a_class_in_a_notebook_count() -> None:
    before, after = (notebook(*CELLS, CLASS.replace("power = 1", f"power = {n}"))["Explainer"] for n in (1, 2))
    assert code_digest(before) != code_digest(after)


def unknowable() -> list[Callable[..., Any]]:
    lock, numbers = threading.Lock(), iter(range(3))
    return [lambda x: lock, partial(print, (item for item in [1])), partial(print, threading.local()), lambda: numbers]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_cannot_be_known_is_said_and_equals_nothing(number: int) -> None:
    thing = unknowable()[number]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one, other = code_digest(thing), code_digest(thing)
    assert is_unknown(one)
    assert is_unknown(other)
    assert one != other
    assert all("cannot be known" in str(item.message) and item.category is VitreousWarning for item in caught)


def test_a_file_that_changes_after_its_import_is_neither_the_old_nor_the_new_code(plug_ins: PlugIns) -> None:
    plug_ins.write(mine=MAIN, helpers=HELPERS)
    mine = plug_ins.load("mine")
    old = code_digest(mine.explain)
    plug_ins.edit("helpers", "* 1", "* -1")
    with pytest.warns(VitreousWarning, match=r"^helpers has changed since it was imported"):
        mixed = code_digest(mine.explain)
    new = code_digest(plug_ins.load("mine").explain)
    assert len({old, mixed, new}) == 3
    plug_ins.edit("helpers", "* -1", "* 1")
    assert code_digest(plug_ins.load("mine").explain) == old


# -- what is whose ---------------------------------------------------------------------------------------------------


def test_vitreous_and_its_libraries_are_known_by_version(plug_ins: PlugIns) -> None:
    assert not any(map(is_external, (vt.get_method("ixg"), nn.Linear, torch.relu, len, partial(vt.explain), Path)))
    plug_ins.write(mine=MAIN, helpers=HELPERS, statistics="def mean(x):\n    return x\n")
    mine = plug_ins.load("mine")
    assert all(map(is_external, (mine.explain, mine.Explainer, mine.twice, mine.up, mine)))
    usual = sys.modules.pop("statistics", None)
    try:  # a file of one's own that hides one of Python's
        assert is_external(plug_ins.load("statistics").mean)
    finally:
        plug_ins.forget()
        if usual is not None:
            sys.modules["statistics"] = usual


def test_installed_packages_are_known_by_version_and_record(plug_ins: PlugIns, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.code_digest import sources

    def installed(version: str, content: str) -> str:
        point = plug_ins.folder / f"site-packages-{version}-{content}" / "site-packages"
        point.mkdir(parents=True)
        (point / "theirs.py").write_text("def explain(m, x, c): return x\n")
        info = point / f"theirs-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: theirs\nVersion: {version}\n")
        (info / "RECORD").write_text(f"theirs.py,sha256={content},1\n../../bin/theirs.py,sha256={point},1\n")
        with monkeypatch.context() as patched:
            patched.syspath_prepend(point)
            sources._distribution.cache_clear()
            return code_digest(plug_ins.load("theirs").explain)

    first = installed("1.0", "aa")
    assert first != installed("1.1", "aa")
    assert first != installed("1.0", "bb")


# -- where it counts -------------------------------------------------------------------------------------------------


def test_a_method_and_what_is_made_of_it_are_known_by_their_code(plug_ins: PlugIns) -> None:
    plug_ins.write(mine=METHOD.format(package=""), helpers=HELPERS)
    plug_ins.load("mine")
    specs = ("mine", "mine(power=2)", "smooth(mine)", "consensus(mine, ixg)")
    before = [vt.get_method(spec).fingerprint for spec in specs]
    assert len(set(before)) == len(before)
    ours = vt.get_method("smooth(ixg)").fingerprint
    plug_ins.edit("helpers", "* 1", "* -1")
    plug_ins.load("mine")
    after = [vt.get_method(spec).fingerprint for spec in specs]
    assert not set(before) & set(after)
    assert vt.get_method("smooth(ixg)").fingerprint == ours


def test_a_metric_is_known_by_its_code(plug_ins: PlugIns) -> None:
    plug_ins.write(measure=METRIC)
    plug_ins.load("measure")
    before = vt.get_metric("mean_value").code
    plug_ins.edit("measure", "mean(axis=1)", "mean(axis=1) * -1")
    plug_ins.load("measure")
    assert vt.get_metric("mean_value").code != before
    assert vt.get_metric("deletion").code == ""


MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, sign=1.0):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        self.sign = sign
        self.negated = self.negate
        self.head = nn.Linear(4, 5)

    def negate(self, x):
        return -x

    def forward(self, x):
        self.height, self.width = x.shape[-2:]  # as many models do: nothing of the model itself
        return self.sign * self.head(self.inner(x).mean(dim=(2, 3)))
"""


def test_a_model_is_known_by_its_code_and_its_attributes_beside_its_weights(plug_ins: PlugIns) -> None:
    def fingerprint(**facts: Any) -> str:
        torch.manual_seed(0)
        net = plug_ins.load("net").Net(**facts).eval()
        return vt.wrap(net, layer="inner", preprocess=vt.load("world", device="cpu").preprocess).fingerprint

    plug_ins.write(net=MODEL)
    first, again, negative = fingerprint(), fingerprint(), fingerprint(sign=-1.0)
    assert first == again != negative
    net = plug_ins.load("net").Net().eval()
    model = vt.wrap(net, layer="inner", preprocess=vt.load("world", device="cpu").preprocess)
    before = model.fingerprint
    net(torch.zeros(1, 3, 8, 8))
    assert model.fingerprint == before
    plug_ins.edit("net", "return self.sign", "return 2 * self.sign")
    assert fingerprint() not in (first, negative)
    assert fingerprint().partition("+")[0] == first.partition("+")[0]
    patched = vt.load("world", device="cpu")
    assert "+" not in patched.fingerprint
    patched.module.head.forward = lambda x: -x  # type: ignore[union-attr]
    assert "+" in patched.fingerprint


def test_a_model_whose_code_cannot_be_known_is_itself_and_no_other(plug_ins: PlugIns) -> None:
    views = [vt.load("world", device="cpu") for _ in range(2)]
    lock = threading.Lock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model in views:
            model.module.head.forward = lambda x: x if lock else -x  # type: ignore[union-attr]
        first, second = (model.fingerprint for model in views)
        assert first == views[0].fingerprint != second
