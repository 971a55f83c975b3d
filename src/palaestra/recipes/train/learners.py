"""Start the processes that train one policy as actors of a Ray cluster, in one placement group.

Each actor is one rank of `torch.distributed`, as if torchrun had started it. Events of rank 0 reach the driver.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from palaestra.core.errors import ExecutorError, PalaestraError, RankError
from palaestra.core.records import Event, Json, Listener, ignore
from palaestra.recipes.resume import resume
from palaestra.recipes.settings import load_run_settings
from palaestra.recipes.train.presets import fill_presets
from palaestra.recipes.train.recipe import RECIPE, TrainResult, check, train
from palaestra.recipes.train.settings import TrainSettings
from palaestra.runs.run import Run, new_folder

POLL_SECONDS = 0.5
"""Time between two looks at the events of rank 0."""
ROOM_SECONDS = 30
"""How long to wait until the cluster has room for the learners."""


def train_on_ray(
    settings: TrainSettings, learners: int, *, out: str | Path = "", address: str = "", listener: Listener = ignore
) -> TrainResult:
    """Train a language model with several processes on a Ray cluster. The policy of the result is `None`.

    Every process has one CPU core, and one GPU if the cluster has GPUs. All nodes need the run folder at the same path.

    Arguments:
        learners: number of processes.
        address: of the cluster. Empty: `RAY_ADDRESS` or the cluster of this machine; if there is none, a new one.

    Raises:
        RankError: a process or its node died. The run can be resumed.
        ExecutorError: there is no cluster, or it has no room for the processes.
    """
    from palaestra.recipes.train.build import check_processes

    settings = fill_presets(settings)
    check(settings)
    check_processes(settings, learners)
    folder = (Path(out) if out else new_folder(RECIPE)).resolve()
    Run.check_new(folder)

    def work(listener: Listener) -> TrainResult:
        return train(settings, out=folder, listener=listener)

    return _run_learners(work, learners, folder, address, listener)


def resume_on_ray(
    folder: str | Path,
    learners: int,
    *,
    address: str = "",
    listener: Listener = ignore,
    trust: bool = False,
    **changes: Any,
) -> TrainResult:
    """Resume a run of `train` with several processes on a Ray cluster; see `train_on_ray`.

    Arguments:
        trust, changes: as in `palaestra.resume`.
    """
    path = Path(folder).resolve()
    with Run.open(path, read_only=True, trust=trust) as run:
        load_run_settings(TrainSettings, run)

    def work(listener: Listener) -> TrainResult:
        result: TrainResult = resume(path, listener=listener, trust=True, **changes)  # Checked above.
        return result

    return _run_learners(work, learners, path, address, listener)


class _Learner:
    """One rank. Two threads run it: one trains, the other answers `take_events`."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def find_address(self) -> tuple[str, int]:
        """The address of this node, and a free port for the store of `torch.distributed`."""
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return ray.util.get_node_ip_address(), int(free.getsockname()[1])

    def train(
        self, work: Callable[[Listener], TrainResult], rank: int, size: int, address: tuple[str, int]
    ) -> tuple[Path, Json]:
        # Ray shows an actor only its own GPU, so the local rank is always 0.
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": "0",
            "TORCHELASTIC_RUN_ID": "ray",
            "MASTER_ADDR": address[0],
            "MASTER_PORT": str(address[1]),
            "PALAESTRA_PROGRESS": "0",
        }
        result = work(self._events.append)
        return result.folder, result.summary

    def take_events(self) -> list[Event]:
        """The events since the last call."""
        events = self._events[:]
        del self._events[: len(events)]
        return events


def _run_learners(
    work: Callable[[Listener], TrainResult], learners: int, run: Path, address: str, listener: Listener
) -> TrainResult:
    """Run `work` in every rank and return the result of rank 0. If a rank fails, all others are ended."""
    from palaestra.executors.ray import RayExecutor

    executor = RayExecutor(address)
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    gpus = int(ray.cluster_resources().get("GPU", 0) > 0)
    bundle = {"CPU": 1, **({"GPU": gpus} if gpus else {})}
    group = placement_group([bundle] * learners, strategy="PACK")
    try:
        if not group.wait(timeout_seconds=ROOM_SECONDS):
            raise ExecutorError(f"the Ray cluster has no room for {learners} learners with {bundle} each")
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": 0, "max_concurrency": 2}
        actors = [
            ray.remote(_Learner)
            .options(**options, scheduling_strategy=PlacementGroupSchedulingStrategy(group, k))
            .remote()
            for k in range(learners)
        ]
        where = ray.get(actors[0].find_address.remote())
        results = [actor.train.remote(work, k, learners, where) for k, actor in enumerate(actors)]
        waiting = results
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=POLL_SECONDS)
            for event in ray.get(actors[0].take_events.remote()):
                listener(event)
            ray.get(done)
        folder, summary = ray.get(results[0])
        return TrainResult(folder, summary, None)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PalaestraError):
            raise error.cause from error
        raise
    except ray.exceptions.RayActorError as error:
        raise RankError(
            f"one of {learners} learners on the Ray cluster died; the run can be resumed from its last checkpoint"
        ) from error
    except KeyboardInterrupt as error:
        error.add_note(f"palaestra resume {run} --learners {learners}")
        raise
    finally:
        remove_placement_group(group)  # This also ends its actors.
        executor.close()
