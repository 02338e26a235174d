"""Units on a Ray cluster: a real one without room, then of two nodes with two workers each; both are lost."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tiny_benchmark import arrays, assert_same, bench, of_folder, photos, ran, tiny
from vitreous.benchmark import executors as rays
from vitreous.benchmark.executors import run as run_engine
from vitreous.benchmark.store import status
from vitreous.errors import VitreousError, VitreousWarning

ray = pytest.importorskip("ray")
WORKERS = 2  # of each node
LATE = 120.0  # seconds that a node may take to start: on a busy machine more than Ray's own half minute


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that workers import from as this process does."""
    folder = tmp_path_factory.mktemp("code")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        patched.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield folder


@pytest.fixture(scope="module")
def cluster(code: Path) -> Iterator[Any]:
    """A cluster whose head has no room for anybody."""
    from ray._private import services
    from ray.cluster_utils import Cluster

    usual = services.get_node

    def get_node(*arguments: Any) -> Any:
        until = time.monotonic() + LATE
        while True:
            try:
                return usual(*arguments)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(services, "get_node", get_node)
        created = Cluster(initialize_head=False)
        try:
            add_node(created, num_cpus=0, include_dashboard=False)
            ray.init(address=created.address, log_to_driver=False, logging_level="ERROR")
            yield created
        finally:
            ray.shutdown()
            created.shutdown()


def add_node(cluster: Any, **arguments: Any) -> Any:
    """Add a node and wait for it, however late it is."""
    node = cluster.add_node(wait=False, **arguments)
    cluster._wait_for_node(node, timeout=LATE)
    return node


def need_nodes(cluster: Any, count: int = 1) -> None:
    """Have at least so many nodes with room for workers."""
    while len(cluster.worker_nodes) < count:
        add_node(cluster, num_cpus=WORKERS)
    until = time.monotonic() + LATE
    while ray.cluster_resources().get("CPU", 0) < count * WORKERS and time.monotonic() < until:
        time.sleep(0.2)


def test_a_cluster_without_room_is_reported_and_given_up(cluster: Any, tmp_path: Path) -> None:
    created = bench(tiny(images=2), tmp_path / "run")
    assert ray.cluster_resources().get("CPU", 0) == 0
    missing = "waiting for a CPU: the cluster has 0, of which 0 are free"
    with (
        pytest.warns(VitreousWarning, match=f"^{missing}$"),
        pytest.raises(VitreousError, match=f"^no worker of the Ray cluster was ready for . s, {missing}; what is fin"),
    ):
        run_engine(created, "ray", wait=2)
    created.work()  # nothing is held afterwards
    assert created.counts() == (2, 2)
    run_engine(created, "ray", wait=0)  # nothing is left, nobody is waited for


@pytest.mark.slow
def test_a_run_waits_for_a_node_that_joins(cluster: Any, tmp_path: Path) -> None:
    def join(done: float, total: int | None) -> None:
        need_nodes(cluster)

    created = bench(tiny(images=2), tmp_path / "run")
    assert ray.cluster_resources().get("CPU", 0) == 0  # the head has no room for anybody
    run_engine(created, "ray", progress=join, wait=LATE)
    assert created.counts() == (2, 2)
    assert created.store.failures() == {}


def test_a_node_is_killed_while_it_works(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_nodes(cluster, 2)
    node = next(iter(cluster.worker_nodes))
    outcome, there, lost = rays._RayDriver._hand_out, set[str](), list[str]()

    def kill(self: Any) -> None:
        """Kill the second node as soon as units are on their way on both."""
        outcome(self)
        there.update(flight.node for flight in self.flights.values())
        mine = [flight.job.unit.id for flight in self.flights.values() if flight.node == node.node_id]
        if not lost and len(there) == 2 and mine:
            lost.extend(mine)
            cluster.remove_node(node, allow_graceful=False)

    monkeypatch.setattr(rays._RayDriver, "_hand_out", kill)
    protocol = tiny(images=16, metrics=("deletion(steps=4)",))
    created, seen = bench(protocol, tmp_path / "ray"), []
    run_engine(created, "ray", progress=lambda done, total: seen.append((done, total)), wait=LATE)
    assert lost
    assert created.counts() == (16, 16)
    assert seen[0] == (0, 16)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    result = status(created.store)
    assert set(lost) <= result.failures.keys()
    for unit in lost:
        (why,) = created.store.info(unit)["retried"]
        assert why.startswith(f"lost with its worker on node {node.node_id[:12]}: Actor")
    ran(protocol, tmp_path / "local")
    assert_same(tmp_path / "ray", tmp_path / "local")


def test_what_an_actor_refuses_is_reported(cluster: Any, tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 2)
    created = bench(of_folder(folder), tmp_path / "run")
    (folder / "0001.png").write_bytes((folder / "0000.png").read_bytes())
    need_nodes(cluster)
    with pytest.raises(VitreousError, match=r"^0001\.png of folder has changed"):
        run_engine(created, "ray", workers=1, wait=LATE)
    with created.store.claim(created.store.plans()[0].units[0].id) as mine:
        assert mine  # nothing is held afterwards


def test_a_worker_with_other_code_refuses(cluster: Any, tmp_path: Path, code: Path) -> None:
    need_nodes(cluster)
    text = "def explain(model, inputs, classes):\n    return inputs.sum(dim=1)\n"
    (code / "explainers_of_a_cluster.py").write_text(text)
    created = bench(tiny(images=2, methods=("explainers_of_a_cluster:explain",)), tmp_path / "run")
    (code / "explainers_of_a_cluster.py").write_text(text.replace("inputs.sum", "-inputs.sum"))
    with pytest.raises(VitreousError, match=r"^explainers_of_a_cluster:explain is not what this run was planned with"):
        run_engine(created, "ray", workers=1, wait=LATE)
    assert created.counts() == (0, 2)


def test_workers_that_find_no_place_are_given_up(cluster: Any, tmp_path: Path) -> None:
    @ray.remote
    class Other:
        def ready(self) -> bool:
            return True

    need_nodes(cluster)
    room = int(ray.cluster_resources()["CPU"])
    others = [Other.options(num_cpus=1).remote() for _ in range(room)]
    assert all(ray.get([other.ready.remote() for other in others], timeout=LATE))
    created = bench(tiny(images=2), tmp_path / "run")
    missing = f"waiting for a worker to start on a CPU: the cluster has {room}, of which 0 are free beside it"
    try:
        with pytest.warns(VitreousWarning, match=missing), pytest.raises(VitreousError, match=missing):
            run_engine(created, "ray", wait=2)
    finally:
        for other in others:
            ray.kill(other)


@pytest.mark.slow
def test_a_cluster_that_is_lost_is_given_up_and_what_is_finished_stays(cluster: Any, tmp_path: Path) -> None:
    def lose(done: float, total: int | None) -> None:
        for node in list(cluster.worker_nodes) if done else ():
            cluster.remove_node(node, allow_graceful=False)

    protocol = tiny(images=16, metrics=("deletion(steps=4)",))
    created = bench(protocol, tmp_path / "ray")
    need_nodes(cluster)
    with (
        pytest.warns(VitreousWarning, match="^waiting for a"),
        pytest.raises(VitreousError, match=r"^no worker of the Ray cluster was ready .* and the same command goes on$"),
    ):
        run_engine(created, "ray", progress=lose, wait=20)
    done = arrays(tmp_path / "ray").keys()
    assert 0 < len(done) < 16
    created.work()
    ran(protocol, tmp_path / "local")
    assert_same(tmp_path / "ray", tmp_path / "local")


@pytest.mark.parametrize("error", [Exception("The current node\ntimed out during startup."), SystemExit(1)])
def test_a_cluster_that_does_not_start_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def init(**arguments: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(VitreousError, match=r"^a Ray cluster could not be started here: [^\n]*$"):
        run_engine(bench(tiny(images=2), tmp_path / "run"), "ray")


def test_what_to_wait_must_be_a_time_and_is_of_ray(tmp_path: Path) -> None:
    created = bench(tiny(images=2), tmp_path / "run")
    with pytest.raises(VitreousError, match=r"wait=nan must be at least 0"):
        run_engine(created, "ray", wait=float("nan"))
    with pytest.raises(VitreousError, match=r"wait=5 belongs to the engine ray"):
        run_engine(created, "local", wait=5)


def test_without_ray_there_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(VitreousError, match=r"^the engine ray needs Ray: pip install 'vitreous\[ray\]'$"):
        run_engine(bench(tiny(images=2), tmp_path / "run"), "ray")


def test_a_cluster_that_is_not_there_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # whatever other tests have open
    with pytest.raises(VitreousError, match=r"^a Ray cluster could not be reached at 127\.0\.0\.1:1: .*refused"):
        run_engine(bench(tiny(images=2), tmp_path / "run"), "ray", address="127.0.0.1:1")
