"""The arithmetic of the protocol against the definitions, written out with sets and loops."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from scipy import stats

import vitreous as vt
from funnybirds_sets import TABLE, P, smallest, subsets
from vitreous.evaluation.funnybirds_scores import Importances, Interventions, disjoint_pairs, sufficient_sets
from vitreous.metrics.similarity import rank_correlation
from vitreous.results.funnybirds import COLUMNS, FunnyBirdsChecks, FunnyBirdsResult

K, N = 3, 24
LEVELS = np.array([0.0, 0.05, 0.1, 0.2, 0.35, 0.5])


def bits(parts: Any) -> int:
    return sum(2**part for part in parts)


@pytest.fixture(scope="module")
def facts() -> Interventions:
    draw = np.random.default_rng(3)
    labels = draw.integers(0, 48, N)
    labels[0] = int(np.flatnonzero(disjoint_pairs(TABLE)[:, 0] < 0)[0])  # a class without a pair
    remaining = draw.normal(size=(N, 2**P, 48)) + 2
    for image, label in enumerate(labels):  # each part tells of the classes that have it, some more than others
        for subset in subsets(range(P)):
            weight = [0.2, 0.5, 1, 2, 3]
            remaining[image, bits(subset)] += sum(weight[p] * (TABLE[:, p] == TABLE[label, p]) for p in subset)
    remaining[1, -1, labels[1]] -= 40  # wrong, and a negative logit
    without = remaining[:, -1][:, None] + draw.normal(scale=0.5, size=(N, K, 48))
    without[2, 1:] = without[3] = np.nan  # fewer objects, none
    return Interventions(labels, remaining, without, TABLE)


def found_by(facts: Interventions, seed: int) -> Importances:
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(N, P + K)) + 0.4
    values[:, :P] = values[:, :P].round(1)  # ties
    values[np.isnan(np.concatenate([np.zeros((N, P)), facts.without[:, :, 0]], axis=1))] = np.nan
    totals = draw.uniform(0.5, 6, N)
    totals[4], totals[5], values[6, :P] = -1.0, 0.0, 0.5
    values[7], totals[7] = np.nan, np.nan  # a map that was left out
    return Importances(values, totals)


def important(actual: Importances, image: int, t: float) -> set[int]:
    return {k for k, value in enumerate(actual.values[image]) if value > t * actual.totals[image]}


def fall(facts: Interventions, image: int, k: int, label: int) -> float:
    entire = facts.with_parts[image, bits(range(P)), label]
    if k < P:
        return float(entire - facts.with_parts[image, bits(set(range(P)) - {k}), label])
    return float(entire - facts.without[image, k - P, label])


def there(facts: Interventions, image: int) -> list[int]:
    return [*range(P), *(P + k for k in range(K) if not np.isnan(facts.without[image, k, 0]))]


def test_minimal_sufficient_sets() -> None:
    for label, actual in enumerate(sufficient_sets(TABLE)):
        assert sorted(actual) == sorted(map(bits, smallest(label)))
        telling = {vt.world.PARTS.index(vt.world.distinctive_part(label))}
        assert all(bits(telling) & item for item in actual), "siblings differ in nothing else"
    with pytest.raises(vt.VitreousError, match="classes 0 and 1 have the same parts"):
        sufficient_sets(np.array([[1, 2], [1, 2], [3, 4]]))


def test_pairs() -> None:
    """Three parts differ, the two shared ones are disjoint, and the first such pair is taken."""
    for label, (one, other) in enumerate(disjoint_pairs(TABLE).tolist()):
        alike = {k: {p for p in range(P) if TABLE[k, p] == TABLE[label, p]} for k in range(48)}
        fits = [(a, b) for a, b in combinations(range(48), 2) if len(alike[a]) == len(alike[b]) == 2]
        fits = [(a, b) for a, b in fits if not alike[a] & alike[b]]
        assert (one, other) == (fits[0] if fits else (-1, -1))


def test_accuracy_and_background(facts: Interventions) -> None:
    for image, label in enumerate(facts.labels):
        entire = facts.with_parts[image, 31]
        assert facts.accuracy()[image] == (max(range(48), key=lambda k: entire[k]) == label)
        objects = [k for k in there(facts, image) if k >= P]
        matter = [k for k in objects if fall(facts, image, k, label) >= 0.05 * abs(entire[label])]
        assert facts.background()[image].tolist() == [len(matter), len(objects)]
    assert 0 < facts.background()[:, 0].sum() < facts.background()[:, 1].sum()


def test_completeness(facts: Interventions) -> None:
    target, pred = found_by(facts, 1), found_by(facts, 2)
    csdc, pc = facts.data_check(target, LEVELS), facts.preservation(pred, LEVELS)
    dc, d = facts.deletion(pred, LEVELS), facts.distractibility(target, LEVELS)
    seen = set()
    for image, (place, t) in product(range(N), enumerate(LEVELS)):
        label, message = int(facts.labels[image]), int(facts.with_parts[image, 31].argmax())
        if np.isnan(target.totals[image]):
            assert all(np.isnan(item[image, place]) for item in (csdc, pc, dc, d))
            continue
        mine = important(target, image, t)
        if message != label:
            assert np.isnan(csdc[image, place])
        else:
            best = max(len(subset & mine) / len(subset) for subset in smallest(label))
            assert csdc[image, place] == pytest.approx(best)
        parts = {p for p in important(pred, image, t) if p < P}
        assert pc[image, place] == (facts.with_parts[image, bits(parts)].argmax() == message)
        assert dc[image, place] == (facts.with_parts[image, bits(set(range(P)) - parts)].argmax() != message)
        enough = 0.05 * abs(facts.with_parts[image, 31, label])
        idle = {k for k in there(facts, image) if fall(facts, image, k, label) < enough}
        expected = 1 - len(mine & idle) / len(idle) if idle else math.nan
        assert d[image, place] == pytest.approx(expected, nan_ok=True)
        seen.add(bool(idle))
    assert seen == {True, False}
    assert len(np.unique(csdc[~np.isnan(csdc)])) > 2


def test_single_deletion(facts: Interventions) -> None:
    target = found_by(facts, 1)
    scores = facts.single_deletion(target)
    for image, label in enumerate(facts.labels):
        falls = [fall(facts, image, p, label) for p in range(P)]
        values = target.values[image, :P]
        flat = np.isnan(values).any() or len(set(values)) == 1
        expected = math.nan if flat else (stats.spearmanr(values, falls)[0] + 1) / 2
        assert scores[image] == pytest.approx(expected, nan_ok=True)
    assert np.isnan(scores[[6, 7]]).all()
    ties = np.array([[1.0, 1, 2, 2, 3], [0, 0, 0, 0, 0]])
    expected = stats.spearmanr(ties[0], np.arange(5.0))[0]
    assert rank_correlation(ties, np.tile(np.arange(5.0), (2, 1))) == pytest.approx([expected, math.nan], nan_ok=True)


def test_target_sensitivity(facts: Interventions) -> None:
    one, other = found_by(facts, 4), found_by(facts, 5)
    pairs = disjoint_pairs(TABLE)
    scores = facts.target_sensitivity(one, other, pairs)
    used = 0
    for image, label in enumerate(facts.labels):
        first, second = pairs[label]
        if first < 0 or np.isnan(one.totals[image]):
            assert np.isnan(scores[image])
            continue
        alike = [{p for p in range(P) if TABLE[k, p] == TABLE[label, p]} for k in (first, second)]
        logits = facts.with_parts[image]
        hurt = [[logits[31, k] - logits[bits(set(range(P)) - subset), k] for subset in alike] for k in (first, second)]
        if not (hurt[0][0] > hurt[0][1] and hurt[1][1] > hurt[1][0]):
            assert np.isnan(scores[image])
            continue
        sums = [[sum(actual.values[image, p] for p in subset) for actual in (one, other)] for subset in alike]
        assert scores[image] == (int(sums[0][0] > sums[0][1]) + int(sums[1][1] > sums[1][0])) / 2
        used += 1
    assert used > 5
    assert np.isnan(scores[0]), "without a pair there is no check"


def test_oracles_of_sets_pass_one_of_the_two_checks(facts: Interventions) -> None:
    """Maps that hold the joint falls of the two sets score at least 1/2 wherever an image is not skipped."""
    pairs = disjoint_pairs(TABLE)
    chosen = np.where(pairs[facts.labels] < 0, facts.labels[:, None], pairs[facts.labels])
    rows = zip(chosen, facts.labels, strict=True)
    alike = [[{p for p in range(P) if TABLE[k, p] == TABLE[y, p]} for k in row] for row, y in rows]

    def joint(which: int) -> Importances:
        values = np.zeros((N, P + K))
        for image, (sets, label) in enumerate(zip(alike, chosen[:, which], strict=True)):
            for subset in sets:
                left = facts.with_parts[image, bits(set(range(P)) - subset), label]
                values[image, list(subset)] = (facts.with_parts[image, 31, label] - left) / len(subset)
        return Importances(values, np.ones(N))

    scores = facts.target_sensitivity(joint(0), joint(1), pairs)
    assert (~np.isnan(scores)).sum() > 5
    assert (scores[~np.isnan(scores)] >= 0.5).all()


def result(facts: Interventions, n_bootstrap: int = 200) -> FunnyBirdsResult:
    levels = np.append(LEVELS, 0.12)
    actual = {}
    for seed, name in enumerate(("a", "b")):
        target, pred = found_by(facts, 10 + seed), found_by(facts, 20 + seed)
        one, other = found_by(facts, 30 + seed), found_by(facts, 40 + seed)
        curves = [
            facts.data_check(target, levels),
            facts.preservation(pred, levels),
            facts.deletion(pred, levels),
            facts.distractibility(target, levels),
        ]
        sensitivity = facts.target_sensitivity(one, other, disjoint_pairs(TABLE))
        actual[name] = FunnyBirdsChecks(np.stack(curves, axis=1), facts.single_deletion(target), sensitivity)
    names = tuple(f"bird {image}" for image in range(N))
    strange = {"a": {"zero": 0}, "b": {"zero": 2}}
    return FunnyBirdsResult(
        names,
        ("a", "b"),
        LEVELS,
        0.12,
        facts.accuracy(),
        facts.background(),
        actual,
        strange,
        {"d": 1},
        n_bootstrap=n_bootstrap,
    )


def slow(table: FunnyBirdsResult, name: str, images: Any, at: str) -> dict[str, float]:
    """Every column from the per-image scores of some images, with repetitions."""
    actual, images = table.checks[name], list(images)

    def mean(values: Any) -> float:
        has_map = [v for v in values if not np.isnan(v)]
        return sum(has_map) / len(has_map) if has_map else math.nan

    def checks(subset: Any, place: int) -> list[float]:
        return [mean(actual.curves[i, row, place] for i in subset) for row in range(4)]

    def complete(four: list[float]) -> float:
        return ((four[0] + four[1] + four[2]) / 3 + four[3]) / 2

    def best(subset: Any) -> int:
        scores = [complete(checks(subset, place)) for place in range(len(LEVELS))]
        return scores.index(max(scores))

    if at == "split":
        even, odd = [i for i in images if i % 2 == 0], [i for i in images if i % 2]
        pair = [checks(even, best(odd)), checks(odd, best(even))]
        four = [(x + y) / 2 for x, y in zip(*pair, strict=True)]
        com = sum(map(complete, pair)) / 2
    else:
        four = checks(images, len(LEVELS) if at == "fixed" else best(images))
        com = complete(four)
    sd, ts = mean(actual.sd[i] for i in images), mean(actual.ts[i] for i in images)
    harmful, count = (sum(table.background[i, row] for i in images) for row in (0, 1))
    acc = mean(table.accuracy[i] for i in images)
    return dict(zip(COLUMNS, [acc, 1 - harmful / count, *four, sd, ts, com, sd, ts, (com + sd + ts) / 3], strict=True))


@pytest.mark.parametrize("at", ["best", "split", "fixed"])
def test_aggregation(facts: Interventions, at: str) -> None:
    table = result(facts)
    for name in table.methods:
        expected = slow(table, name, range(N), at)
        assert {column: table.score(name, column, at) for column in COLUMNS} == pytest.approx(expected)
    assert table.score("a", "com", "best") >= max(table.score("a", "com", item) for item in ("split", "fixed"))


def test_intervals_choose_the_threshold_anew(facts: Interventions) -> None:
    from vitreous.metrics.bootstrap import resamples

    table = result(facts, n_bootstrap=60)
    weights = np.concatenate(list(resamples(N, 60, 0)))
    rows = [slow(table, "a", np.repeat(np.arange(N), row.astype(int)), "best") for row in weights]
    for column in COLUMNS:
        values = [row[column] for row in rows]
        assert table.interval("a", column) == pytest.approx(np.quantile(values, [0.025, 0.975]))
    gap = table.difference("a", "b", "sd")
    assert gap.mean == pytest.approx(table.score("a", "sd") - table.score("b", "sd"))
    assert gap.low <= gap.mean <= gap.high
    assert 2.0 ** (1 - N) <= gap.p <= 1
    assert table.difference("a", "a").p == 1


def test_saved_and_loaded(facts: Interventions, tmp_path: Any) -> None:
    table = result(facts)
    again = FunnyBirdsResult.load(table.save(tmp_path / "funnybirds.json"))
    assert str(again) == str(table)
    assert again.to_json() == table.to_json()
    np.testing.assert_array_equal(again.per_image("a", "pc"), table.per_image("a", "pc", table.threshold("a")))
    lines = table.save(tmp_path / "funnybirds.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 3 * len(COLUMNS)
    assert "2 zero" in str(table)
    assert "skipped: 1 in d" in str(table)
    assert "<td>" in table._repr_html_()
    assert table.to_markdown().startswith("| method | Acc. |")
    with pytest.raises(vt.VitreousError, match="is there already"):
        table.save(tmp_path / "funnybirds.json")
    with pytest.raises(vt.VitreousError, match="must end in"):
        table.save(tmp_path / "funnybirds.txt")
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(vt.VitreousError, match="is no FunnyBirds result"):
        FunnyBirdsResult.load(tmp_path / "other.json")


def test_bad_questions(facts: Interventions) -> None:
    table = result(facts)
    for ask, message in {
        lambda: table.score("c", "sd"): "no method 'c'",
        lambda: table.score("a", "speed"): "column='speed' is not one of acc",
        lambda: table.score("a", "sd", "worst"): "at='worst' is not one of best",
        lambda: table.per_image("a", "com"): "com is made of all images together",
        lambda: table.per_image("a", "pc", 0.4): "at=0.4 is not one of the thresholds",
    }.items():
        with pytest.raises(vt.VitreousError, match=message):
            ask()


def test_nothing_right_is_no_completeness(facts: Interventions) -> None:
    """Without a right answer there is no CSDC, hence neither Com. nor a mean; nothing is made up."""
    table = result(facts)
    for actual in table.checks.values():
        actual.curves[:, 0] = np.nan
    assert all(math.isnan(table.score("a", column)) for column in ("csdc", "com", "mean"))
    assert math.isnan(table.threshold("a"))
    assert not math.isnan(table.score("a", "sd"))
    assert " - " in str(table)


def test_radar(facts: Interventions, tmp_path: Any) -> None:
    """The outline of a method is its row of the table."""
    pytest.importorskip("matplotlib")
    table = result(facts)
    name = table.methods[0]
    figure = table.plot([name], at="fixed", path=tmp_path / "radar.svg")
    assert (tmp_path / "radar.svg").read_text().startswith("<?xml")
    (axes,) = figure.axes
    columns = ("acc", "bi", "csdc", "pc", "dc", "d", "sd", "ts")
    outline = {round(float(np.hypot(*point)), 6) for line in axes.lines for point in zip(*line.get_data(), strict=True)}
    for column in columns:
        score = table.score(name, column, "fixed")
        assert math.isnan(score) or round(score, 6) in outline
    with pytest.raises(vt.VitreousError, match="'nobody'"):
        table.plot(["nobody"])
