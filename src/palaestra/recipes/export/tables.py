"""The records of a run as tables: trajectories, lessons and evaluations.

A table is a mapping from column names to values. `TYPES` has the Arrow type of each column; a column that is not listed (a
conversation) is inferred.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palaestra.chat.rendering import to_chat_call
from palaestra.core.records import (
    Attempt,
    Example,
    Failure,
    ImagePart,
    Json,
    Message,
    Score,
    Split,
    TextPart,
    Trajectory,
)
from palaestra.runs.files import write_text
from palaestra.runs.run import Run

Row = Json
LESSONS = "lessons.jsonl"
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
_TOKENS = ("token_ids", "chosen", "logprobs")
"""Fields of a segment with one value per token."""


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
    return [
        {"iteration": iteration, "position": position, **to_trajectory_row(trajectory)}
        for iteration in run.store.metrics()
        for position, trajectory in enumerate(run.store.trajectories(iteration))
    ]


def to_trajectory_row(trajectory: Trajectory) -> Row:
    info = dict(trajectory.infos[0]) if len(trajectory.infos) == 1 else {"infos": list(trajectory.infos)}
    return {
        "environment": trajectory.environment,
        "seed": trajectory.seed,
        **{name: info.pop(name, None) for name in ("episode", "group", "version", "turns", "prompt")},
        "completion": info.pop("response", None),
        "reward": trajectory.total_reward,
        "rewards": list(trajectory.rewards),
        **{name: [value for segment in trajectory.segments for value in getattr(segment, name)] for name in _TOKENS},
        "terminated": trajectory.terminated,
        "truncated": trajectory.truncated,
        **{name: info.pop(name, None) for name in ("stop_reason", "failure")},
        "info": json.dumps(info, ensure_ascii=False, default=str),
    }


def list_research_rows(run: Run) -> list[Row]:
    """List the episodes of a research run: one row per episode, with its conversation."""
    if run.recipe != "research":
        return []
    from palaestra.recipes.research.episode_player import list_messages
    from palaestra.research.workspace.workspace import Step

    episodes = {number: run.store.steps(Step, number) for number in run.store.episodes()}
    conversations = to_chat_rows([list_messages(steps) for steps in episodes.values()])
    rows = []
    for messages, (number, steps) in zip(conversations, episodes.items(), strict=True):
        failure = next((step.failure for step in reversed(steps) if step.failure), None)
        rewards = [step.reward for step in steps if step.message is not None]
        row = {
            "episode": number,
            "task": str(run.settings.get("task", "")),
            "messages": messages,
            "reward": None if failure else float(sum(step.reward for step in steps)),
            "rewards": rewards,
            "turns": len(rewards),
            "stop_reason": steps[-1].stop_reason,
            "outcome": str(steps[-1].info.get("outcome", "")),
            "failure": f"{failure.cause}: {failure.message}" if failure else None,
        }
        rows.append(row)
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
        **{name: list(getattr(completion, name, ())) for name in ("prompt_ids", "token_ids", "logprobs")},
        "metadata": json.dumps(dict(problem.metadata), ensure_ascii=False, default=str),
    }


def list_lesson_rows(run: Run) -> list[Row]:
    """List every example that was taught as a row of a table.

    Each row has `messages` (roles and contents; the response is the last message of the assistant), `round`, `position`,
    `skill`, `subskill`, `reference`, and `metadata` as JSON text. All rows have the same fields with the same types.
    """
    rows: list[tuple[int, int, Example]] = []
    for round_ in run.store.lesson_rounds():
        lesson = run.store.lesson(round_)
        rows += [(round_, position, example) for position, example in enumerate(lesson.examples if lesson else ())]
    conversations = [(*example.messages, Message("assistant", example.response)) for _, _, example in rows]
    return [
        {
            "messages": messages,
            "round": round_,
            "position": position,
            "skill": example.skill,
            "subskill": example.subskill,
            "reference": example.reference,
            "metadata": json.dumps(dict(example.metadata), ensure_ascii=False, default=str),
        }
        for messages, (round_, position, example) in zip(to_chat_rows(conversations), rows, strict=True)
    ]


def write_lessons(run: Run) -> Path:
    """Write the rows of `list_lesson_rows` to `lessons.jsonl` in the run folder, one object per line. Returns its path."""
    path = run.folder / LESSONS
    write_text(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in list_lesson_rows(run)))
    return path


def to_chat_rows(conversations: Sequence[Sequence[Message]]) -> list[list[Row]]:
    """Convert conversations to lists of messages with `role` and `content`.

    If any message has images, every content is a list of parts. If any has tool calls, every message has `tool_calls` and
    `tool_call_id`.

    >>> to_chat_rows([[Message("user", "1 + 1?")]])
    [[{'role': 'user', 'content': '1 + 1?'}]]
    """
    messages = [message for conversation in conversations for message in conversation]
    in_parts = any(not isinstance(message.content, str) for message in messages)
    with_calls = any(message.tool_calls or message.tool_call_id for message in messages)
    return [[_to_row(message, in_parts, with_calls) for message in conversation] for conversation in conversations]


def _to_row(message: Message, in_parts: bool, with_calls: bool) -> Row:
    content: Any = message.content
    if in_parts:
        parts = content if content and not isinstance(content, str) else (TextPart(message.text),)
        content = [
            {"type": "image", "text": None, "url": part.url}
            if isinstance(part, ImagePart)
            else {"type": "text", "text": part.text, "url": None}
            for part in parts
        ]
    row = {"role": message.role, "content": content}
    if with_calls:
        row["tool_calls"] = list(map(to_chat_call, message.tool_calls))
        row["tool_call_id"] = message.tool_call_id
    return row
