"""The processes of one training run: rank 0 drives the run and records it, the others follow its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from palaestra.core.errors import SettingsError
from palaestra.core.events import ignore
from palaestra.core.interrupts import HeldInterrupts
from palaestra.learn.algorithms import ALGORITHMS
from palaestra.learn.distributed import broadcast, world_size
from palaestra.recipes.executor_settings import INLINE
from palaestra.recipes.train.loop import Loop, load_newest_checkpoint
from palaestra.recipes.train.settings import TrainSettings, make_config, unwrap


def check_processes(settings: TrainSettings, processes: int) -> None:
    """Raise if a run cannot be trained by several processes.

    Raises:
        SettingsError: the policy is not a language model, the algorithm is for one process, there are too few episodes, or
            the run samples ahead without workers.
    """
    if processes == 1:
        return
    if settings.policy != "lm":
        raise SettingsError(
            f"{processes} processes train language models only; start '{settings.env}' without torchrun"
        )
    algorithm = unwrap(settings.algorithm)
    if not ALGORITHMS.get(algorithm).distributed:
        raise SettingsError(
            f"the algorithm '{algorithm}' trains in one process; got {processes} (see Algorithm.distributed)"
        )
    if settings.max_staleness and settings.executor == INLINE:
        raise SettingsError(
            f"setting 'executor': {processes} processes sample ahead (max_staleness {settings.max_staleness}) on workers "
            "only; expected processes:N or ray"
        )
    group_size, episodes = make_config(algorithm, settings.hyperparameters).group_size, unwrap(settings.episodes)
    if episodes < processes * group_size:
        raise SettingsError(
            f"setting 'episodes': expected at least {processes * group_size}, one group of {group_size} for each of "
            f"{processes} processes; got {episodes}"
        )
    if 0 < unwrap(settings.evaluation) < processes:
        raise SettingsError(f"setting 'evaluation': expected 0 or at least {processes}, one for each process")


def lead(step: str, *arguments: Any) -> None:
    """Tell the other processes that rank 0 begins a step in which they take part."""
    if world_size() > 1:
        broadcast((step, arguments))


def follow(loop: Loop) -> tuple[str, dict[str, Any]]:
    """Take part in the steps that rank 0 announces, until the end. Returns the run's folder and summary.

    The first Ctrl-C or SIGTERM is left to rank 0, which saves its work and announces the end.
    """
    nothing: tuple[str, tuple[Any, ...]] = ("", ())
    with HeldInterrupts():
        while True:
            step, arguments = broadcast(nothing)
            if step == "end":
                folder, summary = arguments
                return folder, summary
            if step == "load":
                load_newest_checkpoint(Path(arguments[0]), loop)
            elif step == "iterate":
                iteration, remaining = arguments
                loop.iterate(iteration, remaining, ignore)
            elif step == "evaluate":
                loop.evaluate(arguments[0], None, ignore)
            elif step == "gather weights":
                loop.weights()
            elif step == "gather state":
                loop.weights()
                loop.algorithm.optimizer.state()
            elif step == "save model":
                loop.save_model(Path())
