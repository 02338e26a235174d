"""The composition language: what is understood, and what an error says and where."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vitreous as vt
from vitreous.errors import SpecError
from vitreous.methods import registry
from vitreous.methods.combinators import Plus, SkipPlus, Smooth
from vitreous.methods.decomposition import DecompX
from vitreous.methods.input_gradient import IntegratedGradients

UNDERSTOOD = {
    "decompx": DecompX(),
    " decompx ( ) ": DecompX(),
    "decompx(3)": DecompX(layer=3),
    "decompx(layer=-1)": DecompX(layer=-1),
    "skipplus(decompx)": SkipPlus(DecompX()),
    "skipplus(base=decompx, start=2)": SkipPlus(DecompX(), start=2),
    "skipplus(decompx, start=none)": SkipPlus(DecompX()),
    "plus(decompx, via=subnetwork)": Plus(DecompX(), via="subnetwork"),
    "plus(decompx, via='subnetwork')": Plus(DecompX(), via="subnetwork"),
    'plus(decompx, 0, "layers")': Plus(DecompX(), via="layers"),
    "smooth(skipplus(decompx), samples=20, sigma=1e-1)": Smooth(SkipPlus(DecompX()), 20, 0.1),
    "smooth(ig(5, baseline=1))": Smooth(IntegratedGradients(5, 1.0)),
    "chefer2": vt.get_method("generic"),
}


@pytest.mark.parametrize("spec", UNDERSTOOD)
def test_understood(spec):
    assert vt.get_method(spec) == UNDERSTOOD[spec]
    assert vt.get_method(UNDERSTOOD[spec].spec) == UNDERSTOOD[spec]


def test_canonical_spec_is_the_shortest():
    assert vt.get_method("smooth( skipplus(base=decompx ,start=none), samples=10)").spec == "smooth(skipplus(decompx))"
    assert vt.get_method("ig(steps=7)").spec == "integrated_gradients(steps=7)"
    assert vt.get_method("plus(ixg(layer=0), via=layers)").spec == "plus(ixg, via=layers)"


# spec, the character the complaint points at (1-based), part of the complaint
REFUSED = [
    ("", 1, "expected a method name"),
    ("genric", 1, "did you mean generic or globenc?"),
    ("smooth(genric)", 8, "unknown method 'genric'"),
    ("smooth(generic, samples=)", 25, "expected a value"),
    ("smooth(generic, samples=2.5)", 25, "samples of smooth takes int"),
    ("smooth(generic, samples=many)", 25, "samples of smooth takes int"),
    ("smooth(generic, samples=generic(1))", 25, "samples of smooth is not a method"),
    ("smooth(generic samples=2)", 16, "expected ',' or ')'"),
    ("smooth(generic", 15, "expected ',' or ')'"),
    ("smooth(generic))", 16, "nothing more was expected"),
    ("smooth(generic, smaples=2)", 17, "did you mean samples?"),
    ("smooth(generic, 1, 2.0, true, mean, 3)", 37, "smooth takes 5 arguments"),
    ("smooth(generic, base=ixg)", 17, "base is given twice"),
    ("smooth", 1, "smooth needs base"),
    ("smooth(3)", 8, "base of smooth takes method"),
    ("smooth(generic, samples=0)", 1, "at least 1"),
    ("generic@bold", 9, "no preset 'bold'"),
    ("generic@", 9, "expected a preset name"),
    ("plus(ixg, via=teleport)", 1, "'teleport' is not one of"),
    ("plus(saliency, via=layers)", 1, "no maps by layer"),
    ("ixg $", 5, "cannot be read"),
    ("ixg(layer=1)(2)", 13, "nothing more"),
    ("ixg,", 4, "nothing more"),
    ("1", 1, "expected a method name"),
]


@pytest.mark.parametrize(("spec", "place", "complaint"), REFUSED)
def test_refused_with_the_place(spec, place, complaint):
    with pytest.raises(SpecError) as caught:
        vt.get_method(spec)
    text = str(caught.value)
    assert complaint in text
    assert f"at character {place}:" in text
    assert "\n" not in text
    assert spec[: place - 1] + "▸" in text


def test_deep_nesting_is_refused_and_not_a_stack_overflow():
    with pytest.raises(SpecError, match="nested more than 20 deep"):
        vt.get_method("plus(" * 5000 + "ixg" + ")" * 5000)


def test_other_types_are_refused():
    with pytest.raises(SpecError, match="int"):
        vt.get_method(3)


def assert_one_line(text):
    assert len(text.splitlines()) == 1


ANY_TEXT = st.text(alphabet="abgeinrcplusxmoth_@(),= 0123456789.-+'\"\n", max_size=40) | st.text(max_size=20)


@settings(max_examples=2_000)
@given(ANY_TEXT)
def test_any_text_is_a_method_or_one_line(text):
    method_or_one_line(text)


@pytest.mark.slow
@settings(max_examples=20_000)
@given(ANY_TEXT)
def test_a_great_deal_of_text_is_a_method_or_one_line(text):
    method_or_one_line(text)


def method_or_one_line(text):
    try:
        method = vt.get_method(text)
    except SpecError as error:
        assert_one_line(str(error))
    else:
        assert vt.get_method(method.spec) == method


def nested():
    leaves = st.sampled_from(["ixg", "generic", "decompx(layer=1)", "rollout(start=1)", "ig(steps=3)", "centre"])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            inner.map(lambda s: f"plus({s})"),
            st.tuples(inner, inner, st.sampled_from(["rank", "mean"])).map(
                lambda t: f"consensus({t[0]}, {t[1]}, combine={t[2]})"
            ),
            st.sampled_from(
                ["top:3", "best-worst", "7", '"7"', "'lynx, cougar'", "'true'", '"jack-o\'-lantern|pan"']
            ).map(lambda c: f"var(ixg, classes={c})"),
            st.tuples(inner, st.integers(0, 3)).map(lambda t: f"skipplus({t[0]}, start={t[1]})"),
            st.tuples(inner, st.integers(1, 9), st.floats(0, 2)).map(lambda t: f"smooth({t[0]}, {t[1]}, sigma={t[2]})"),
        ),
        max_leaves=4,
    )


@given(nested())
def test_every_composition_survives_its_spec(spec):
    method = vt.get_method(spec)
    assert vt.get_method(method.spec) == method
    assert vt.get_method(method.spec).spec == method.spec


# -- the registry --------------------------------------------------------------------------------------------------


def test_the_list_is_complete_data():
    names = [info.name for info in vt.list_methods()]
    assert len(names) == len(set(names))
    asked = """raw_attention rollout generic attcam gradient ixg decompx gradcam hirescam saliency integrated_gradients
    smooth plus skipplus random constant centre edges"""
    assert set(asked.split()) <= set(names)
    for info in vt.list_methods():
        if not info.factory.__module__.startswith("vitreous."):
            continue  # registered by another test
        assert info.family
        assert info.summary
        assert info.cost_text
        if info.family != "control" and info.name != "logprob":  # nobody's method, only another target
            behind = (*info.papers, *info.builds_on)
            assert behind, info.name
            assert all(paper.bibtex().startswith("@") for paper in behind)


def test_what_is_our_own_names_no_paper_as_its_proposer():
    """It says what it builds on, in the lists and in the text."""
    own = {info.name: info for info in vt.list_methods() if info.family == "combinator" and not info.papers}
    assert set(own) >= {"witness", "refine", "consensus", "logprob"}
    for name, key in (
        ("witness", "mehri2024skipplus"),
        ("refine", "ribeiro2016why"),
        ("consensus", "bhatt2020evaluating"),
    ):
        assert [paper.key for paper in own[name].builds_on] == [key]
        text = " ".join((own[name].factory.__doc__ or "").split())
        assert "Our own; it builds on" in text
        assert own[name].builds_on[0].authors.split(",")[0] in text
    assert not vt.list_methods()[0].builds_on
    by_name = {info.name: info for info in (*vt.list_methods(), *vt.list_metrics())}
    assert not any(
        by_name[name].papers for name in ("grad_rollout", "rank_sensitivity", "part_correlation", "shortcut")
    )
    assert by_name["plus"].papers[0].key == by_name["skipplus"].papers[0].key == "mehri2024skipplus"


def test_third_parties_join_by_entry_points(monkeypatch):
    """An entry point's import registers the method; from then on it is found by name."""

    class Entry:
        def load(self):
            @vt.register_method("three", family="control", class_specific=False, cost=(0, 0))
            @dataclass(frozen=True)
            class Three(vt.Method):
                """Three everywhere."""

            return Three

    offered = lambda group: [Entry()] if group == "vitreous.methods" else []  # noqa: E731
    monkeypatch.setattr("vitreous.registry.registry.entry_points", offered)
    monkeypatch.setattr(registry.REGISTRY, "complete", False)
    monkeypatch.setattr(registry.REGISTRY, "by_name", dict(registry.REGISTRY.by_name))
    monkeypatch.setattr(registry.REGISTRY, "aliases", dict(registry.REGISTRY.aliases))
    assert vt.get_method("three").info.summary == "Three everywhere."
    assert "three" in [info.name for info in vt.list_methods()]


def test_a_name_is_given_once():
    with pytest.raises(SpecError, match="two methods are called 'chefer2'"):
        vt.register_method("fresh", family="x", aliases=("chefer2",))(DecompX)


def test_metrics_come_from_entry_points(monkeypatch):
    import importlib

    registry = importlib.import_module("vitreous.metrics.base")
    loaded = []
    entry = type("Entry", (), {"load": lambda self: loaded.append("their metric")})()
    offered = lambda group: [entry] if group == "vitreous.metrics" else []  # noqa: E731
    monkeypatch.setattr("vitreous.registry.registry.entry_points", offered)
    monkeypatch.setattr(registry.REGISTRY, "complete", False)
    assert "insertion" in [info.name for info in vt.list_metrics()]
    assert loaded == ["their metric"]
    vt.list_metrics()
    assert loaded == ["their metric"], "once is enough"
