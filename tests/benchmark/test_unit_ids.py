"""Golden ids: units are files of these names, so that they may change only on purpose, in a commit that says so."""

from __future__ import annotations

from dataclasses import replace

from run_files import SETTING, score_unit
from vitreous.benchmark.units import Unit, digest_of
from vitreous.metrics import EvaluationConfig

OTHER = replace(
    SETTING,
    has_labels=True,
    least_confidence=0.25,
    threads=3,
    metric_digests={"insertion": "code"},
    modes=("given", "label"),
    evaluation=EvaluationConfig(
        target="label",
        output="prob",
        class_subset=(3, 5),
        precision="float16",
        interpolation="nearest",
        tie_breaking="raster",
        nan_policy="lowest",
        memory_gb=2.5,
        images_per_unit=8,
        attribution_batch=4,
        forward_batch=2,
    ),
)


def test_ids_are_what_they_were() -> None:
    maps = Unit.of(SETTING, 0, 7, ["a" * 8, "b" * 8], ["ours", "generic"], modes=["given"])
    assert (maps.id, score_unit("ab").id) == ("eb71394ad27f10db01c72321b4383977", "c7dc8abe27259a6ad10bbef868681bdf")
    assert score_unit("ab", 3, OTHER, metrics=["insertion"]).id == "4ea83485c85ddfc5773dfbeef24d45e1"
    assert score_unit("ab", 3, OTHER, metrics=["deletion"]).id == "9e8519d828690cdc1a635ebc6d9758f7"
    assert (SETTING.identity, OTHER.identity) == (
        "6eb88b896ec6be42d5396764efca94d5",
        "2d207ff39b7d6d2c4eaf9e9bb693ad40",
    )
    assert digest_of({"b": (1, 2.5, None), "a": float("nan")}) == "043b37e9c75967065afdafc1158c83e5"
