"""Folders with trajectories in formats of other systems. The viewer shows them as a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from palaestra.core.records import Json, Message, Trajectory, Usage
from palaestra.envs.turn.base import format_transcript, transcript
from palaestra.integrations.export.trajectories import COUNTS, TrajectoryTurns, read_trajectories, split_turns
from palaestra.research.workspace.workspace import Step
from palaestra.runs.browse import read_step
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.run import Run
from palaestra.view.pages import ViewerPage, open_store, render
from palaestra.view.query import PagePlace, Query
from palaestra.view.runs import TRAJECTORIES, RunCard

_ROWS = 100
"""Trajectories on one page of the list."""


def import_trajectories(folder: Path, target: Path) -> tuple[Path | None, list[str]]:
    """Read the trajectories below a folder into a new run below `target`.

    Returns:
        The run, or `None` if there are no trajectories; and why files were left out.
    """
    read, problems = read_trajectories(folder)
    if not read:
        return None, problems
    name = folder.resolve().name
    with Run.create(target / name, TRAJECTORIES, {"task": name}) as run:
        shown, cost, usage = [], 0.0, Usage()
        for number, (path, trajectory) in enumerate(read):
            record, info = split_turns(trajectory), dict(trajectory.infos[0])
            steps = _make_steps(number, path.relative_to(folder).as_posix(), trajectory, record)
            for step in steps:
                run.store.save_step(number, step.position, step)
                cost, usage = cost + step.money, usage + step.usage
            opening = record.turns[0].before if record.turns else record.after
            answers = [m for turn in record.turns[1:] for m in (*turn.before, turn.message)]
            first = [turn.message for turn in record.turns[:1]]
            texts = {"prompt": format_transcript(opening), "response": format_transcript([*first, *answers])}
            shown.append(replace(trajectory, infos=({**texts, **info}, *trajectory.infos[1:])))
        run.store.add_iteration(0, {}, shown, LedgerEntry(TRAJECTORIES, "", 0, usage, 0.0, cost))
        run.write_summary({"recipe": TRAJECTORIES})
    return target / name, problems


def _make_steps(number: int, file: str, trajectory: Trajectory, record: TrajectoryTurns) -> list[Step]:
    """The steps of a conversation as the viewer shows it. The first one describes the trajectory."""
    info, turns = dict(trajectory.infos[0]), record.turns
    agent, metrics = info.get("agent") or {}, [turn.metrics for turn in turns]
    row: Json = {"file": file, "agent": str(agent.get("name") or trajectory.environment), "turns": len(turns)}
    row["has_tokens"] = bool(trajectory.segments)
    row |= {
        "model": str(agent.get("model_name") or ""),
        "reward": trajectory.total_reward if trajectory.rewards else None,
    }
    row |= {name: sum(values.get(name) or 0 for values in metrics) for name in (*COUNTS, "cost_usd")}
    following: Sequence[tuple[Message, ...]] = [*(turn.before for turn in turns), record.after]
    steps = [Step(number, 0, observation=following[0], info=row)]
    rewards = trajectory.rewards if len(trajectory.rewards) == len(turns) else (0.0,) * len(turns)
    for place, turn in enumerate(turns, start=1):
        text = transcript(turn.message)
        counts = (int(turn.metrics.get(name) or 0) for name in COUNTS)
        step = Step(
            number,
            place,
            turn.message,
            transcript(replace(turn.message, content="")) or next(iter(text.splitlines()), ""),
            following[place],
            rewards[place - 1],
            float(turn.metrics.get("seconds") or 0.0),
            calls=1,
            usage=Usage(*counts),
            money=float(turn.metrics.get("cost_usd") or 0.0),
        )
        steps.append(step)
    ended = str(info.get("stop_reason") or "end of the record")
    return [*steps[:-1], replace(steps[-1], stop_reason=ended, note=str(info.get("failure") or ""))]


def render_trajectories(card: RunCard, query: Query) -> ViewerPage:
    """The list of the trajectories of a folder."""
    with open_store(card) as store:
        numbers = store.episodes()
        place = PagePlace.find(query, len(numbers), _ROWS)
        shown = [(k, read_step(store, Step, k, 0)) for k in numbers[place.offset : place.offset + _ROWS]]
    rows = [{"number": k, **step.info} for k, step in shown if step is not None]
    return render("trajectories", {"rows": rows, "count": len(numbers), "place": place}, card, "overview", query)
