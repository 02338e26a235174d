"""Threads: a plain call of the user's model sees the untouched model, and our own threads do not see each other."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import images
from zoo import EVERY

METHODS = [
    "coiba(steps=3, samples=2)",
    "tis(masks=32)",
    "skipplus(decompx)",
    "generic",
    "var(ixg)",
    "smooth(gradcam, samples=3)",
    "vtranm",
    "integrated_gradients(steps=4)",
    "ablationcam",
    "legrad",
]


@pytest.fixture(autouse=True)
def _one_thread_each() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # how many threads share a product decides its last bits
    yield
    torch.set_num_threads(before)


def threads_agree(threads: int, methods: list[str], families: list[str], seconds: float) -> int:
    """Let threads explain the same inputs again and again beside one that calls the models plainly."""
    models = {family: EVERY[family]() for family in families}
    inputs = {family: images(model, 2) for family, model in models.items()}
    jobs = [(family, method) for family in families for method in methods]
    expected = {job: attributed(models[job[0]], inputs[job[0]], job[1]) for job in jobs}
    with torch.no_grad():
        reference = {family: logits(model(inputs[family])) for family, model in models.items()}
    end, wrong, done = time.monotonic() + seconds, [], [0]
    stop = threading.Event()

    def explain(start: int) -> None:
        place = start
        while time.monotonic() < end:
            family, method = jobs[place % len(jobs)]
            if not torch.equal(attributed(models[family], inputs[family], method), expected[family, method]):
                wrong.append((family, method))
            place += 1
            done[0] += 1

    def call() -> None:
        while not stop.is_set():
            for family, model in models.items():
                with torch.no_grad():
                    if not torch.equal(logits(model(inputs[family])), reference[family]):
                        wrong.append((family, "plain call"))

    caller = threading.Thread(target=call)
    caller.start()
    with ThreadPoolExecutor(threads) as pool:
        for item in [pool.submit(explain, number * 3) for number in range(threads)]:
            item.result()
    stop.set()
    caller.join()
    assert not wrong, wrong[:5]
    return done[0]


def attributed(model: Any, inputs: Tensor, method: str) -> Tensor:
    return vt.get_method(method).attribute(model, inputs, target=1)


def logits(actual: Any) -> Tensor:
    return actual if isinstance(actual, Tensor) else actual.logits


def test_threads_do_not_see_each_other() -> None:
    assert threads_agree(4, METHODS[:6], ["vit", "tv_vit"], 6) > 6


@pytest.mark.slow
def test_eight_threads_for_five_minutes() -> None:
    assert threads_agree(8, METHODS, ["vit", "hf_vit"], 300) > 80


def test_a_plain_call_beside_coiba_in_training_mode() -> None:
    """Flags too are the user's own: dropout stays on while the model is explained in another thread."""
    model = EVERY["vit"]().train()
    seen: list[bool] = []
    worker = threading.Thread(target=lambda: vt.get_method("coiba").attribute(model, images(model, 2), 1))
    worker.start()
    while worker.is_alive():
        seen.append(all(module.training for module in model.modules()))
    assert all(seen)


@pytest.mark.parametrize("family", EVERY)
def test_a_shared_copy_is_the_model_and_shares_its_weights(family: str) -> None:
    model = vt.wrap(EVERY[family]())
    model.module.requires_grad_(False)  # it decides which kernel a product takes
    inputs, copy = images(model, 2), model.shared_copy()
    with torch.no_grad():
        assert torch.equal(
            copy.forward_head(copy.forward_blocks(copy.embed(inputs))),
            model.forward_head(model.forward_blocks(model.embed(inputs))),
        )
    ours, others_own = dict(copy.module.named_parameters()), dict(model.module.named_parameters())
    assert ours.keys() == others_own.keys()
    for name, weight in ours.items():
        assert weight.data_ptr() == others_own[name].data_ptr()
        assert weight is not others_own[name]
        assert not weight.requires_grad
    assert not {id(module) for module in copy.module.modules()} & {id(module) for module in model.module.modules()}
    with torch.no_grad():
        next(iter(others_own.values())).mul_(1.5)  # training goes on, and is seen
        assert torch.equal(copy.embed(inputs), model.embed(inputs))
