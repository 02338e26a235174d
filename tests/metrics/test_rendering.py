"""States drawn beside the model: in order whatever the threads do, bounded, and quiet after an error of anyone's."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from metric_probe import Probe
from vitreous.metrics import Evaluation, EvaluationConfig, Evaluator, ImageShape, Maps, RenderedStates, perturb
from vitreous.tracing.prng import PRNGKey


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


@pytest.fixture(scope="module")
def x(model: vt.VisionModel) -> Tensor:
    return images(model, 12)


@pytest.fixture(scope="module")
def maps() -> Tensor:
    return torch.randn(12, 32, 32, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class Dimmed:
    """Turns all but the top half of a map down by a random amount; some pictures take longer than others."""

    slow: bool = False

    def __call__(self, picture: np.ndarray, values: np.ndarray | None, key: int) -> tuple[np.ndarray, np.ndarray]:
        if self.slow:
            time.sleep(0.03 if key % 3 == 0 else 0)
        factor = 0.2 + (key % 1000) / 2000
        where = np.ones(picture.shape[:2], bool) if values is None else values < np.median(values)
        dim = np.where(where[..., None], (picture * factor).astype(np.uint8), picture)
        return np.stack([dim, picture]), np.array([float(dim.sum()), factor])


class Broken(Exception):
    pass


@dataclass(frozen=True)
class Failing:
    def __call__(self, picture: np.ndarray, values: np.ndarray | None, key: int) -> tuple[np.ndarray, np.ndarray]:
        raise Broken(f"picture of {picture.shape[0]} rows")


@dataclass(frozen=True)
class Misshapen:
    def __call__(self, picture: np.ndarray, values: np.ndarray | None, key: int) -> tuple[np.ndarray, np.ndarray]:
        return picture[None].astype(np.float32), np.zeros(1)


def ask(model: vt.VisionModel, x: Tensor, maps: Any, *needs: RenderedStates, **options: Any) -> Evaluation:
    probe = Probe(asked=needs)
    vt.evaluate(model, x, {"it": maps}, [probe], controls=False, n_bootstrap=1, **options)
    (heard,) = probe.heard
    return heard


def drawers() -> list[threading.Thread]:
    return [item for item in threading.enumerate() if item.name.startswith("vitreous-draw")]


def gone(patience: float = 5) -> bool:
    """Whether all drawing threads end soon."""
    end = time.monotonic() + patience
    while drawers() and time.monotonic() < end:
        time.sleep(0.01)
    return not drawers()


def scored(model: vt.VisionModel, x: Tensor, pictures: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        best = model.module(x).argmax(dim=1)
        inputs = torch.from_numpy(pictures.astype(np.float32)).permute(0, 1, 4, 2, 3) / 255
        mean, std = (torch.tensor(item).view(3, 1, 1) for item in (model.preprocess.mean, model.preprocess.std))
        logs = [
            model.module((input_ - mean) / std).log_softmax(1)[:, c] for input_, c in zip(inputs, best, strict=True)
        ]
    return torch.stack(logs).numpy()


@pytest.mark.parametrize("by", ["map", "image"])
@pytest.mark.parametrize("slow", [False, True])
def test_each_state_is_what_was_drawn_for_it(
    model: vt.VisionModel, x: Tensor, maps: Tensor, by: str, slow: bool
) -> None:
    need = RenderedStates(Dimmed(slow), 2, by)
    answers = ask(model, x, maps, need, batch_size=5)
    keys = [int(k) % 2**63 for k in PRNGKey.of_images(0, "drawn", x).keys]
    expected = [
        Dimmed()(np.asarray(model.preprocess.to_image(image)), values.double().numpy() if by == "map" else None, key)
        for image, values, key in zip(x, maps, keys, strict=True)
    ]
    np.testing.assert_array_equal(answers.numbers(need), np.stack([numbers for _, numbers in expected]))
    printed = answers.log_probability(need)
    np.testing.assert_allclose(printed, scored(model, x, np.stack([p for p, _ in expected])), atol=1e-5)
    assert gone(), "threads are left when all is done"


def test_the_number_of_threads_changes_nothing(
    model: vt.VisionModel, x: Tensor, maps: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    need, actual = RenderedStates(Dimmed(slow=True), 2), []
    for threads in (1, 3):
        monkeypatch.setattr("os.sched_getaffinity", lambda pid, threads=threads: set(range(threads)), raising=False)
        answers = ask(model, x, maps, need)
        actual.append((answers.log_probability(need), answers.numbers(need)))
    for one, other in zip(*actual, strict=True):
        np.testing.assert_array_equal(one, other)


def test_maps_left_out_are_not_drawn(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    sick = maps.clone()
    sick[3, 0, 0] = float("nan")
    need = RenderedStates(Dimmed(), 2)
    answers = ask(model, x, sick, need)
    facts, printed = answers.numbers(need), answers.log_probability(need)
    full = ask(model, x, maps, need)
    assert np.isnan(facts[3]).all()
    assert np.isnan(printed[3]).all()
    others = np.arange(12) != 3
    np.testing.assert_array_equal(facts[others], full.numbers(need)[others])
    np.testing.assert_allclose(printed[others], full.log_probability(need)[others], atol=1e-5)


def test_an_error_in_a_thread_reaches_the_caller(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    with pytest.raises(Broken, match="picture of 32 rows"):
        ask(model, x, maps, RenderedStates(Failing(), 2))
    assert gone()
    answers = ask(model, x, maps, RenderedStates(Dimmed(), 2))
    assert np.isfinite(answers.numbers(RenderedStates(Dimmed(), 2))).all(), "and the next run is sound"


def test_what_cannot_be_shown_is_refused(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    with pytest.raises(vt.VitreousError, match=r"uint8 \[2, 32, 32, 3\].*got float32 \[1, 32, 32, 3\] and 1 numbers"):
        ask(model, x, maps, RenderedStates(Misshapen(), 2))
    assert gone()


def filled(model: vt.VisionModel, x: Tensor, maps: Tensor, need: RenderedStates) -> Evaluator:
    config = EvaluationConfig(forward_batch=4)
    pool = Evaluator(model, [Probe(asked=[need])], ImageShape((32, 32), (4, 4)), ["pred"], config)
    looked = pool.runner.forward(x)
    rows = {"given": np.arange(len(x))}
    pool.add(x, looked, {"pred": looked.argmax(dim=1)}, {"it": Maps(maps, rows)})
    return pool


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_of_the_engine_stops_the_threads(
    model: vt.VisionModel, x: Tensor, maps: Tensor, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(*args: Any) -> None:
        raise error("no more")

    monkeypatch.setattr("vitreous.metrics.batch_runner.BatchRunner.add_images", fail)
    with pytest.raises(error, match="no more"):
        filled(
            model, x, maps, RenderedStates(Dimmed(slow=True), 2)
        ).finish()  # with many threads, adding waits for none of them
    assert gone()


def test_nobody_waits_for_a_pool_that_is_dropped(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    """As after an error elsewhere: what has not been begun never is."""
    pool = filled(model, x, maps, RenderedStates(Dimmed(slow=True), 2))
    assert drawers()
    del pool
    gc.collect()
    assert gone()


def test_little_waits_at_a_time(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    pool = filled(model, x, maps, RenderedStates(Dimmed(), 2))
    renderer = pool.runner.renderer
    assert len(renderer._queue) <= perturb._AHEAD * renderer._threads
    pool.finish()
    assert not renderer._queue
    assert gone()
