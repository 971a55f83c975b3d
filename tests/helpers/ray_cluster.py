"""A Ray cluster of this machine for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# Ray finds a dead node by missed health checks: with its own settings after 15 seconds, with these after 2.
HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 4,
}


@contextmanager
def start_cluster() -> Iterator[Any]:
    """Start a cluster with one core and connect this process to it. A process can start one cluster only."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": HEALTH_CHECKS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TQDM_PATCH_PRINT", "0")  # Ray would replace the built-in `print` for good.
        cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()
