"""`run_episode`: DataEnvGym's call, one episode of a teacher in a lesson environment.

`palaestra.teach` adds a resumable run folder, a summary with intervals and a report. This is the plain loop, for an
environment and a teacher of your own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from palaestra.core.errors import SettingsError
from palaestra.core.records import Lesson, Report
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_integer
from palaestra.runs.files import to_json, write_text
from palaestra.teachers.base import write_lesson

if TYPE_CHECKING:
    from palaestra.envs.lesson import LessonEnv
    from palaestra.teachers.base import Teacher


def run_episode(
    environment: LessonEnv,
    data_generation_agent: Teacher,
    io_provider: str | Path | None = None,
    stop_at_num_training_data: int | None = None,
    num_iterations: int = 10,
    *,
    data_per_iteration: int = 120,
    seed: int = 0,
) -> dict[int, dict[str, Report]]:
    """Run teaching rounds until a limit on iterations, data or the environment is reached.

    Arguments:
        environment: a `LessonEnv`, wrapped or not.
        data_generation_agent: the teacher.
        io_provider: a folder for the lessons and reports of each iteration; `None` writes nothing.
        stop_at_num_training_data: the maximum number of examples over all iterations.
        num_iterations: the maximum number of rounds.
        data_per_iteration: the number of examples that the teacher is asked for in one round.
        seed: the seed of all randomness.

    Returns:
        The reports by iteration, each with `validation`; 0 is the student before training. `test` exists for the student
        before training and for the kept student: that of the last iteration, or with `keep="best"` the best
        (`kept_round` of the environment).

    Example:
        >>> from palaestra import LessonEnv, make_teacher, run_episode                   # doctest: +SKIP
        >>> env = LessonEnv(rounds=3, budget=300)                                        # doctest: +SKIP
        >>> reports = run_episode(env, make_teacher("skill_list", env.task), num_iterations=3)  # doctest: +SKIP
    """
    limit = stop_at_num_training_data
    check_integer("num_iterations", num_iterations, minimum=1, error=SettingsError)
    check_integer("data_per_iteration", data_per_iteration, minimum=1, error=SettingsError)
    check_integer("stop_at_num_training_data", 1 if limit is None else limit, minimum=1, error=SettingsError)
    state, info = environment.reset(seed=seed)
    reports = {0: {"validation": info["report"], "test": info["test"]}}
    _write_iteration(io_provider, 0, None, reports[0])
    for iteration in range(1, num_iterations + 1):
        left = state.budget if limit is None else min(state.budget, limit - state.examples)
        generator = Seeds(seed).derive("teacher", iteration).generator()
        name = type(data_generation_agent).__name__
        lesson = write_lesson(data_generation_agent, name, state, min(data_per_iteration, left), generator)
        state, _, terminated, truncated, info = environment.step(lesson)
        over = terminated or truncated
        reports[iteration] = {"validation": info["report"]}
        if "test" in info and not over:
            reports[iteration]["test"] = info["test"]
        _write_iteration(io_provider, iteration, lesson, reports[iteration])
        if over or (limit is not None and state.examples >= limit):
            break
    if not over:  # The environment has not ended the episode.
        info = cast("LessonEnv", environment.unwrapped).finish()
    if info["kept_round"]:
        reports[info["kept_round"]]["test"] = info["test"]
        _write_iteration(io_provider, info["kept_round"], None, {"test": info["test"]})
    return reports


def _write_iteration(
    folder: str | Path | None, iteration: int, lesson: Lesson | None, reports: dict[str, Report]
) -> None:
    if folder is None:
        return
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for name, content in {"lesson": lesson, **reports}.items():
        if content is not None:
            write_text(place / f"{name}-{iteration}.json", to_json(content))
