"""Finding the class a user means: index, label or synonym, and what is said when that fails."""

from __future__ import annotations

import pytest
import timm.data

import vitreous as vt
from families import FAMILIES, images
from vitreous.errors import ModelError, TargetError
from vitreous.models.class_names import find_label, short_label

LABELS = ["tabby, tabby cat", "crane", "crane, a bird", "Egyptian cat", "drake"]


@pytest.fixture(scope="module")
def imagenet() -> list[str]:
    return list(timm.data.ImageNetInfo("imagenet-1k").label_descriptions())


@pytest.mark.parametrize(
    ("word", "index"),
    [
        ("tabby, tabby cat", 0),
        ("tabby", 0),
        ("tabby cat", 0),
        ("TABBY Cat", 0),
        ("Tabby, TABBY cat", 0),
        ("  tabby  ", 0),
        ("egyptian CAT", 3),
        ("crane", 1),  # a whole label comes before a synonym of another
        ("a bird", 2),
        ("0", 0),
        ("4", 4),
        (" +4 ", 4),
    ],
)
def test_finds(word: str, index: int) -> None:
    assert find_label(word, LABELS, 5) == index


def test_every_imagenet_label_and_index_is_found(imagenet: list[str]) -> None:
    for index, label in enumerate(imagenet):
        twins = [i for i, other in enumerate(imagenet) if other.lower() == label.lower()]
        if len(twins) == 1:
            assert find_label(label, imagenet, 1000) == index
        assert find_label(str(index), imagenet, 1000) == index


def test_every_imagenet_synonym_means_its_class_or_is_ambiguous(imagenet: list[str]) -> None:
    synonyms = [{name.strip().lower() for name in label.split(",")} for label in imagenet]
    for word in sorted(set().union(*synonyms)):
        owners = [i for i, label in enumerate(imagenet) if label.lower() == word]
        owners = owners or [i for i, names in enumerate(synonyms) if word in names]
        if len(owners) == 1:
            assert find_label(word, imagenet, 1000) == owners[0]
        else:
            with pytest.raises(TargetError, match="several classes"):
                find_label(word, imagenet, 1000)


def test_ambiguity_names_the_indices() -> None:
    labels = ["heron", "crane, bird", "crane, machine"]
    with pytest.raises(TargetError, match=r"'crane' names several classes: 1 \(crane, bird\), 2 \(crane, machine\)"):
        find_label("crane", labels, 3)
    with pytest.raises(TargetError, match=r"several classes: 0 \(maillot\), 1 \(maillot\); use the index"):
        find_label("maillot", ["maillot", "maillot"], 2)


@pytest.mark.parametrize("word", ["5", "-1", "99999999999999999999"])
def test_digits_out_of_range(word: str) -> None:
    with pytest.raises(TargetError, match=rf"{word} is outside 0\.\.4"):
        find_label(word, LABELS, 5)


def test_digits_can_be_labels() -> None:
    digits = ["nine", "8", "7"]
    assert find_label("7", digits, 3) == 2
    assert find_label("1", digits, 3) == 1


@pytest.mark.parametrize("word", ["+-3", "--3", "²", "", "3.5", "0x1"])
def test_almost_numbers_are_words(word: str) -> None:
    with pytest.raises(TargetError):
        find_label(word, LABELS, 5)
    with pytest.raises(TargetError):
        find_label(word, None, 5)


def test_suggestions(imagenet: list[str]) -> None:
    with pytest.raises(TargetError, match=r"'tabbi'; did you mean tabby"):
        find_label("tabbi", imagenet, 1000)
    with pytest.raises(TargetError) as caught:
        find_label("qqqqqqqq", imagenet, 1000)
    assert str(caught.value) == "no class is called 'qqqqqqqq'"


def test_no_labels_at_all() -> None:
    with pytest.raises(TargetError, match=r"'tabby' .* no labels; use an index 0\.\.4"):
        find_label("tabby", None, 5)


@pytest.mark.parametrize(("label", "short"), [("tabby, tabby cat", "tabby"), ("drake", "drake"), (" a ,b", "a")])
def test_short_label(label: str, short: str) -> None:
    assert short_label(label) == short


def test_a_view_speaks_its_labels() -> None:
    model = vt.wrap(FAMILIES["vit"](), class_names=LABELS)
    assert model.class_index("tabby") == 0
    assert model.class_index(4) == 4
    assert model.label(0) == "tabby"
    with pytest.raises(TargetError, match=r"5 is outside 0\.\.4"):
        model.class_index(5)


@pytest.mark.parametrize("count", [4, 6])
def test_labels_are_as_many_as_classes(count: int) -> None:
    """One too many is as wrong as one too few: each name may stand one class off."""
    with pytest.raises(ModelError, match=f"has 5 classes but {count} labels were given"):
        vt.wrap(FAMILIES["vit"](), class_names=[*LABELS, "unicorn"][:count])


def test_targets_by_label_and_by_index_are_one() -> None:
    model = vt.wrap(FAMILIES["vit"](), class_names=LABELS)
    image = images(model.module, 1)[0]
    named, numbered = vt.explain(model, image, "ixg", "egyptian cat"), vt.explain(model, image, "ixg", 3)
    assert named.map.equal(numbered.map)
    assert (named.target, named.label) == (3, "Egyptian cat")
