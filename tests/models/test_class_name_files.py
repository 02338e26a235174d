"""Labels as people have them: lists, tables either way round, files of these; and one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import vitreous as vt
from families import FAMILIES
from vitreous.errors import ModelError
from vitreous.models.class_names import read_labels
from zoo import EVERY

NAMES = ["cat", "dog", "owl, bird", "10", "crane"]
FORMS: dict[str, Any] = {
    "list": NAMES,
    "tuple": tuple(NAMES),
    "by index": dict(enumerate(NAMES)),
    "by index, in another order": {index: NAMES[index] for index in (3, 0, 4, 1, 2)},
    "by index in digits": {str(index): name for index, name in enumerate(NAMES)},
    "by name": {name: index for index, name in enumerate(NAMES)},
    "by name in digits": {name: str(index) for index, name in enumerate(NAMES)},
    "id2label inside": {"id2label": dict(enumerate(NAMES)), "hidden_size": 24},
    "label2id inside": {"label2id": {name: index for index, name in enumerate(NAMES)}},
    "a configuration": SimpleNamespace(id2label=dict(enumerate(NAMES))),
    "a feature of a data set": SimpleNamespace(names=NAMES, num_classes=5),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    assert read_labels(FORMS[form]) == NAMES


@pytest.mark.parametrize("form", [form for form in FORMS if not form.startswith("a ")])
def test_json_files(tmp_path: Path, form: str) -> None:
    (tmp_path / "names.json").write_text(json.dumps(FORMS[form]))
    assert read_labels(tmp_path / "names.json") == NAMES
    assert read_labels(str(tmp_path / "names.json")) == NAMES


@pytest.mark.parametrize("end", ["", "\n", "\r\n\r\n  \n"])
def test_text_files(tmp_path: Path, end: str) -> None:
    (tmp_path / "names.txt").write_bytes(("\n".join(NAMES) + end).encode("utf-8-sig"))
    assert read_labels(tmp_path / "names.txt") == NAMES


@pytest.mark.parametrize(
    "name", ["vit", "swin", "tv_vit", "tv_swin"] + [n for n in ("hf_vit", "hf_swin") if n in EVERY]
)
def test_views_of_every_library_take_them(name: str) -> None:
    model = vt.wrap(EVERY[name](), class_names=FORMS["by name"])
    assert model.class_names == NAMES
    for count in (4, 6):
        with pytest.raises(ModelError, match=f"5 classes but {count} labels"):
            vt.wrap(EVERY[name](), class_names=[*NAMES, "one more"][:count])


def test_load_takes_a_file(tmp_path: Path) -> None:
    (tmp_path / "names.json").write_text(json.dumps(FORMS["by name"]))
    options = {"img_size": 32, "depth": 1, "embed_dim": 24, "num_heads": 3, "num_classes": 5}
    model = vt.load("timm/vit_tiny_patch16_224", pretrained=False, class_names=tmp_path / "names.json", **options)
    assert model.class_index("bird") == 2


def test_a_head_of_one_logit_has_two_names() -> None:
    from families import _build

    assert vt.wrap(_build(num_classes=1), class_names=["no", "yes"]).class_index("yes") == 1


WRONG: dict[str, tuple[Any, str]] = {
    "gap": ({0: "a", 1: "b", 3: "d"}, "labels hold no name for class 2, but for 3 classes up to 3"),
    "from one": ({"1": "a", "2": "b"}, "labels hold no name for class 0, but for 2 classes up to 2"),
    "index twice": ({"a": 0, "b": 1, "c": 1}, "labels name class 1 twice: 'b' and 'c'"),
    "index twice, once in digits": ({0: "a", "0": "b"}, "labels name class 0 twice: 'a' and 'b'"),
    "no index": ({"a": "b", "c": "d"}, "labels: 'a' is said to be 'b'; give names by index or indices by name"),
    "negative": ({"a": -1, "b": 0}, "labels: 'a' is said to be -1; give names by index or indices by name"),
    "yes or no": ({"a": True, "b": False}, "labels: 'a' is said to be True; give names by index or indices by name"),
    "numbers": ([0, 1, 2], "labels must be a list of names; 0 at 0 is none"),
    "empty name": (["a", " ", "c"], "labels hold no name for class 1"),
    "number": (5, "labels: a int is no list or table of class names"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_clear_line(case: str) -> None:
    inputs_given, message = WRONG[case]
    with pytest.raises(ModelError) as caught:
        vt.wrap(FAMILIES["vit"](), class_names=inputs_given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gap.txt", "cat\n\nowl\n", r"labels \S*gap\.txt hold no name for class 1"),
        ("twice.json", '{"0": "cat", "0": "dog"}', r"labels \S*twice\.json name class 0 twice: 'cat' and 'dog'"),
        ("broken.json", '["cat"', r"labels \S*broken\.json is no JSON: "),
        ("number.json", "3", r"labels \S*number\.json: a int is no list"),
        ("latin.txt", b"caf\xe9", r"labels \S*latin\.txt cannot be read: .*utf-8"),
        ("deep.json", "[" * 100_000, r"labels \S*deep\.json is no JSON: "),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, name: str, text: str | bytes, message: str) -> None:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ModelError, match=message) as caught:
        read_labels(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_no_file_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"labels \S*none\.txt cannot be read: .*No such file"):
        read_labels(tmp_path / "none.txt")
