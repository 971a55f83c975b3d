"""Executors, and a Ray cluster that all tests of executors share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ray_cluster import start_cluster

from palaestra.executors.base import Executor, open_executor


@pytest.fixture(scope="package")
def cluster() -> Iterator[Any]:
    """A cluster with one core; this process is its driver."""
    with start_cluster() as cluster:
        yield cluster


@pytest.fixture
def two_nodes(cluster: Any) -> Any:
    """A cluster of two nodes with one core each. The second one may be killed."""
    if len(cluster.list_all_nodes()) < 2:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
    return cluster


def open_by_name(request: pytest.FixtureRequest) -> Iterator[Executor]:
    if request.param == "ray":
        request.getfixturevalue("two_nodes")
    with open_executor(request.param) as opened:
        yield opened


RAY = pytest.param("ray", marks=pytest.mark.backends)
"""A cluster takes seconds to start; `make test` starts one in test_executors.py only."""
executor = pytest.fixture(params=["inline", "processes:2", RAY], name="executor")(open_by_name)
parallel = pytest.fixture(params=["processes:2", RAY], name="parallel")(open_by_name)
local = pytest.fixture(params=["inline", "processes:2"], name="local")(open_by_name)
"""For what all executors share: Ray's actors take seconds to start."""
