"""The records of a run as tables: trajectories, lessons and evaluations.

A table is a mapping from column names to values. `TYPES` has the Arrow type of each column; a column that is not listed (a
conversation) is inferred.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.core.records import Attempt, Failure, Message, Score, Split, Trajectory
from palaestra.recipes.chat_rows import to_chat_rows
from palaestra.recipes.teach.recipe import list_lesson_rows
from palaestra.runs.run import Run

Row = dict[str, Any]
TYPES: Mapping[str, str] = {
    "iteration": "int64", "round": "int64", "position": "int64", "episode": "int64", "group": "int64", "version": "int64",
    "turns": "int64", "seed": "int64", "sample": "int64",
    "environment": "string", "prompt": "string", "completion": "string", "stop_reason": "string", "outcome": "string", "failure": "string",
    "info": "string", "skill": "string", "subskill": "string", "reference": "string", "metadata": "string",
    "problem": "string", "evidence": "string", "task": "string",
    "reward": "float64", "score": "float64", "rewards": "list<float64>", "logprobs": "list<float32>",
    "token_ids": "list<int32>", "prompt_ids": "list<int32>", "chosen": "list<bool>",
    "terminated": "bool", "truncated": "bool", "correct": "bool",
}  # fmt: skip


def list_tables(run: Run) -> dict[str, dict[str, list[Row]]]:
    """List the rows of a run by table and split. Tables without rows are left out."""
    evaluations: dict[str, list[Row]] = {}
    for phase in run.store.phases():
        evaluations.setdefault(phase.partition("/")[2], []).extend(list_attempt_rows(run, phase))
    for part in evaluations.values():
        conversations = to_chat_rows([row["messages"] for row in part])
        for row, messages in zip(part, conversations, strict=True):
            row["messages"] = messages
    trajectories = list_trajectory_rows(run) or list_research_rows(run)
    tables = {
        "trajectories": {Split.TRAIN.value: trajectories},
        "lessons": {Split.TRAIN.value: list_lesson_rows(run)},
        "evaluations": evaluations,
    }
    kept = {name: {split: rows for split, rows in splits.items() if rows} for name, splits in tables.items()}
    return {name: splits for name, splits in kept.items() if splits}


def list_trajectory_rows(run: Run) -> list[Row]:
    """List the stored episodes of reinforcement learning, with exact token ids, the mask of sampled tokens and log-probs."""
    rows = []
    for iteration in run.store.metrics():
        for position, trajectory in enumerate(run.store.trajectories(iteration)):
            rows.append({"iteration": iteration, "position": position, **to_trajectory_row(trajectory)})
    return rows


def to_trajectory_row(trajectory: Trajectory) -> Row:
    info = dict(trajectory.infos[0]) if len(trajectory.infos) == 1 else {"infos": list(trajectory.infos)}
    segments = trajectory.segments
    return {
        "environment": trajectory.environment,
        "seed": trajectory.seed,
        "episode": info.pop("episode", None),
        "group": info.pop("group", None),
        "version": info.pop("version", None),
        "turns": info.pop("turns", None),
        "prompt": info.pop("prompt", None),
        "completion": info.pop("response", None),
        "reward": trajectory.total_reward,
        "rewards": list(trajectory.rewards),
        "token_ids": [token for segment in segments for token in segment.token_ids],
        "chosen": [chosen for segment in segments for chosen in segment.chosen],
        "logprobs": [logprob for segment in segments for logprob in segment.logprobs],
        "terminated": trajectory.terminated,
        "truncated": trajectory.truncated,
        "stop_reason": info.pop("stop_reason", None),
        "failure": info.pop("failure", None),
        "info": json.dumps(info, ensure_ascii=False, default=str),
    }


def list_research_rows(run: Run) -> list[Row]:
    """List the episodes of a research run: one row per episode, with its conversation."""
    if run.recipe != "research":
        return []
    from palaestra.research.workspace.step_record import Step

    episodes = {number: run.store.steps(Step, number) for number in run.store.episodes()}
    conversations: list[Sequence[Message]] = []
    for steps in episodes.values():
        parts = [(*([step.message] if step.message is not None else ()), *step.observation) for step in steps]
        conversations.append([message for part in parts for message in part])
    rows = []
    for messages, (number, steps) in zip(to_chat_rows(conversations), episodes.items(), strict=True):
        failure = next((step.failure for step in reversed(steps) if step.failure), None)
        rows.append(
            {
                "episode": number,
                "task": str(run.settings.get("task", "")),
                "messages": messages,
                "reward": None if failure else float(sum(step.reward for step in steps)),
                "rewards": [step.reward for step in steps if step.message is not None],
                "turns": sum(step.message is not None for step in steps),
                "stop_reason": steps[-1].stop_reason,
                "outcome": str(steps[-1].info.get("outcome", "")),
                "failure": f"{failure.cause}: {failure.message}" if failure else None,
            }
        )
    return rows


def list_attempt_rows(run: Run, phase: str) -> list[Row]:
    """List the attempts of a phase. `messages` are records; `list_tables` converts those of a split together."""
    number = phase.partition("/")[0]
    iteration = int(number) if number.isdigit() else None
    return [{"iteration": iteration, **to_attempt_row(attempt)} for attempt in run.store.attempts(phase)]


def to_attempt_row(attempt: Attempt) -> Row:
    """A failed attempt has a `failure`, and neither `score` nor `correct`."""
    problem, completion, outcome = attempt.problem, attempt.completion, attempt.outcome
    return {
        "problem": problem.id,
        "sample": attempt.sample,
        "skill": problem.skill,
        "subskill": problem.subskill,
        "messages": problem.messages,
        "reference": problem.reference,
        "completion": None if completion is None else completion.text,
        "score": outcome.value if isinstance(outcome, Score) else None,
        "correct": attempt.correct,
        "failure": f"{outcome.cause}: {outcome.message}" if isinstance(outcome, Failure) else None,
        "evidence": json.dumps(dict(outcome.evidence) if isinstance(outcome, Score) else {}, ensure_ascii=False),
        "stop_reason": None if completion is None else str(completion.stop_reason),
        "prompt_ids": [] if completion is None else list(completion.prompt_ids),
        "token_ids": [] if completion is None else list(completion.token_ids),
        "logprobs": [] if completion is None else list(completion.logprobs),
        "metadata": json.dumps(dict(problem.metadata), ensure_ascii=False, default=str),
    }
