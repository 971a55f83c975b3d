"""Learners on a Ray cluster: the runs of one process, a node that dies, and workers beside the learners."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "helpers")]

from ray_cluster import start_cluster
from test_ranks import CASES, assert_equal_runs, copy_unfinished, make_job

from palaestra import train
from palaestra.core.errors import ExecutorError, RankError
from palaestra.core.records import Event
from palaestra.recipes.train.learners import resume_on_ray, train_on_ray
from palaestra.recipes.train.presets import make_settings


def main(folder: Path) -> None:
    train(progress=False, **make_job(CASES["sequence"], folder / "one"))  # type: ignore[arg-type]
    values = make_job(CASES["sequence"], folder / "two")
    out = values.pop("out")
    with start_cluster() as cluster:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        events: list[Event] = []
        settings = make_settings(values)
        result = train_on_ray(settings, 2, out=out, listener=events.append)
        assert result.folder == folder / "two"
        assert [event.round for event in events if event.phase == "iteration"] == [1, 2]
        assert_equal_runs(folder / "one", folder / "two")
        copy_unfinished(folder / "two", folder / "again")

        # The second node dies: the driver reports it, and the run resumes with the rank that has room.
        def kill(event: Event) -> None:
            if event.phase == "iteration" and event.done == 1:
                cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)

        dying = make_settings({**values, "iterations": 100_000})
        with pytest.raises(RankError):
            train_on_ray(dying, 2, out=folder / "dying", listener=kill)
        with pytest.raises(ExecutorError, match="3 learners"):
            resume_on_ray(folder / "again", 3)
        resume_on_ray(folder / "again", 1)
        assert_equal_runs(folder / "one", folder / "again")

        # Two learners, and a worker that plays the episodes.
        cluster.add_node(num_cpus=2)
        cluster.wait_for_nodes()
        train_on_ray(replace(settings, executor="ray"), 2, out=folder / "workers")
        assert_equal_runs(folder / "one", folder / "workers")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
