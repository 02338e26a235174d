"""Units on a Ray cluster: a real one of two nodes with two workers each; one is killed while it works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench_tiny import assert_same, bench, of_folder, photos, ran, tiny
from vitreous.bench.engines import rays
from vitreous.bench.engines import run as run_engine
from vitreous.bench.engines.progress import status
from vitreous.errors import VitreousError

ray = pytest.importorskip("ray")
WORKERS = 2  # of each node


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
def test_a_run_waits_for_a_node_that_joins(cluster: Any, tmp_path: Path) -> None:
    def join(done: float, total: int | None) -> None:
        if not cluster.worker_nodes:
            cluster.add_node(num_cpus=WORKERS)

    made = bench(tiny(images=2), tmp_path / "run")
    assert ray.cluster_resources().get("CPU", 0) == 0  # the head has no room for anybody
    run_engine(made, "ray", progress=join)
    assert made.counts() == (2, 2)
    assert made.store.failures() == {}


def test_a_node_is_killed_while_it_works(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    while len(cluster.worker_nodes) < 2:
        node = cluster.add_node(num_cpus=WORKERS)
    told, there, lost = rays._Driver._tell, set[str](), list[str]()

    def kill(self: Any) -> None:
        """Kill the second node as soon as units are on their way on both."""
        told(self)
        there.update(flight.node for flight in self.flights.values())
        mine = [flight.job.unit.id for flight in self.flights.values() if flight.node == node.node_id]
        if not lost and len(there) == 2 and mine:
            lost.extend(mine)
            cluster.remove_node(node, allow_graceful=False)

    monkeypatch.setattr(rays._Driver, "_tell", kill)
    protocol = tiny(images=24, metrics=("deletion(steps=4)",))
    made, seen = bench(protocol, tmp_path / "ray"), []
    run_engine(made, "ray", progress=lambda done, total: seen.append((done, total)))
    assert lost
    assert made.counts() == (24, 24)
    assert seen[0] == (0, 24)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    found = status(made.store)
    assert set(lost) <= found.failures.keys()
    for unit in lost:
        (why,) = made.store.said(unit)["retried"]
        assert why.startswith(f"lost with its worker on node {node.node_id[:12]}: Actor")
    ran(protocol, tmp_path / "local")
    assert_same(tmp_path / "ray", tmp_path / "local")


def test_what_an_actor_refuses_is_told(cluster: Any, tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 2)
    made = bench(of_folder(folder), tmp_path / "run")
    (folder / "0001.png").write_bytes((folder / "0000.png").read_bytes())
    with pytest.raises(VitreousError, match=r"^0001\.png of folder has changed"):
        run_engine(made, "ray", workers=1)
    with made.store.claim(made.store.plans()[0].units[0].id) as mine:
        assert mine  # nothing is held afterwards


def test_without_ray_there_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(VitreousError, match=r"^the engine ray needs Ray: pip install 'vitreous\[ray\]'$"):
        run_engine(bench(tiny(images=2), tmp_path / "run"), "ray")


def test_a_cluster_that_is_not_there_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # whatever other tests have open
    with pytest.raises(VitreousError, match=r"^a Ray cluster could not be reached at 127\.0\.0\.1:1: .*refused"):
        run_engine(bench(tiny(images=2), tmp_path / "run"), "ray", address="127.0.0.1:1")
