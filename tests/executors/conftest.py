"""A Ray cluster of two nodes for the tests of executors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of two nodes with one core each; this process is its driver."""
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_TQDM_PATCH_PRINT", "0")  # Ray would replace the built-in `print` for good.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
