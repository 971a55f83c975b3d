"""ATIF, the Agent Trajectory Interchange Format of Harbor: written as version 1.7, read in all versions 1.x.

What the format has no field for is in `extra.palaestra`. Of the values of a step that we have no record for, only the
messages, tool calls, observations and metrics are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from mimetypes import guess_type
from typing import Any

from palaestra.core.records import ImagePart, Json, Message, TextPart, ToolCall, Trajectory
from palaestra.integrations.export.trajectories import (
    COUNTS,
    TOKEN_IDS,
    ModelTurn,
    TrajectoryFormat,
    TrajectorySource,
    TrajectoryTurns,
    join_turns,
    make_call,
    parse_arguments,
    split_turns,
)
from palaestra.version import __version__

VERSION = "ATIF-v1.7"
_METRICS = (*COUNTS, "cached_tokens", "cost_usd", *TOKEN_IDS)
"""The fields of the metrics of a step; others go to their `extra`."""
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_TOTALS = {
    "total_prompt_tokens": "prompt_tokens", "total_completion_tokens": "completion_tokens",
    "total_cached_tokens": "cached_tokens", "total_cost_usd": "cost_usd",
}  # fmt: skip


def write_atif(trajectory: Trajectory, source: TrajectorySource) -> Json:
    """Write a trajectory as an ATIF document.

    Raises:
        RunError: it has no text.
    """
    record, steps = split_turns(trajectory), list[Json]()
    for number, turn in enumerate(record.turns):
        for message in turn.before:
            _add_given(steps, message)
        has_reward = len(trajectory.rewards) == len(record.turns)
        step = _add_agent(steps, turn.message, {"reward": trajectory.rewards[number]} if has_reward else {})
        if metrics := {name: value for name, value in turn.metrics.items() if name in _METRICS}:
            step["metrics"] = metrics
        if more := {name: value for name, value in turn.metrics.items() if name not in _METRICS}:
            step.setdefault("metrics", {})["extra"] = more
    for message in record.after:
        _add_given(steps, message)
    totals: Json = {"total_steps": len(steps), "extra": {"reward": trajectory.total_reward}}
    for total, name in _TOTALS.items():
        if known := [turn.metrics[name] for turn in record.turns if name in turn.metrics]:
            totals[total] = sum(known)
    return {
        "schema_version": VERSION,
        "session_id": source.run,
        "trajectory_id": source.name,
        "agent": {"name": "palaestra", "version": __version__, "model_name": source.model},
        "steps": steps,
        "final_metrics": totals,
        "extra": {"palaestra": record.rest},
    }


def _add_agent(steps: list[Json], message: Message, extra: Json) -> Json:
    step: Json = {"step_id": len(steps) + 1, "source": "agent", "message": _write_content(message)}
    if message.tool_calls:
        step["tool_calls"] = [
            _write_call(call, f"call_{len(steps) + 1}_{k}") for k, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id:
        extra = {**extra, "tool_call_id": message.tool_call_id}
    steps.append({**step, **({"extra": extra} if extra else {})})
    return steps[-1]


def _add_given(steps: list[Json], message: Message) -> None:
    """Add a message that the model did not write. The answer of a tool is an observation of the step that called it."""
    if message.role == "assistant":
        _add_agent(steps, message, {})["is_copied_context"] = True
    elif message.role == "tool" and not message.tool_calls and steps and steps[-1]["source"] == "agent":
        calls = {call["tool_call_id"] for call in steps[-1].get("tool_calls", ())}
        result: Json = {"content": _write_content(message)}
        if message.tool_call_id in calls:
            result = {"source_call_id": message.tool_call_id, **result}
        elif message.tool_call_id:
            result["extra"] = {"tool_call_id": message.tool_call_id}
        steps[-1].setdefault("observation", {"results": []})["results"].append(result)
    else:
        role = "user" if message.role == "tool" else message.role
        step: Json = {"step_id": len(steps) + 1, "source": role, "message": _write_content(message)}
        extra: Json = {"role": message.role} if message.role != role else {}
        extra |= {"tool_call_id": message.tool_call_id} if message.tool_call_id else {}
        extra |= {"tool_calls": [_write_call(call, "") for call in message.tool_calls]} if message.tool_calls else {}
        steps.append({**step, **({"extra": extra} if extra else {})})


def _write_content(message: Message) -> str | list[Json]:
    if isinstance(message.content, str):
        return message.content
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image", "source": {"media_type": _guess_image_type(part.url), "path": part.url}}
        for part in message.content
    ]


def _guess_image_type(url: str) -> str:
    kind = url[5:].partition(";")[0] if url.startswith("data:") else guess_type(url)[0]
    return kind if kind in _IMAGES else "image/png"


def _write_call(call: ToolCall, default_id: str) -> Json:
    values = parse_arguments(call)
    written: Json = {"tool_call_id": call.id or default_id, "function_name": call.name, "arguments": values or {}}
    extra: Json = {} if values is not None else {"arguments": call.arguments}
    extra |= {} if call.id else {"id": ""}
    return {**written, **({"extra": extra} if extra else {})}


def is_atif(document: Json) -> bool:
    return str(document.get("schema_version", "")).startswith("ATIF-v1.")


def read_atif(documents: Sequence[Json]) -> list[Trajectory]:
    """Read ATIF documents. The trajectories of embedded sub-agents follow their parent's."""
    return [trajectory for document in documents for trajectory in _read_document(document)]


def _read_document(document: Json) -> list[Trajectory]:
    own = (document.get("extra") or {}).get("palaestra")
    turns, before = list[ModelTurn](), list[Message]()
    for step in document["steps"]:
        message = _read_message(step)
        if message.role != "assistant" or step.get("is_copied_context"):
            before.append(message)
        else:
            metrics = {name: value for name, value in (step.get("metrics") or {}).items() if value is not None}
            more = metrics.pop("extra", {})
            turns.append(ModelTurn(tuple(before), message, {**metrics, **more}))
            before = []
        before += [_read_result(result) for result in (step.get("observation") or {}).get("results", ())]
    if own is None:
        names = ("agent", "session_id", "trajectory_id", "continued_trajectory_ref", "notes", "final_metrics", "extra")
        info = {name: document[name] for name in names if document.get(name) is not None}
        own = {"environment": str(document["agent"]["name"]), "infos": [info]}
    trajectory = join_turns(TrajectoryTurns(tuple(turns), tuple(before), own))
    return [trajectory, *(t for part in document.get("subagent_trajectories") or () for t in _read_document(part))]


def _read_message(step: Json) -> Message:
    extra = step.get("extra") or {}
    role: Any = "assistant" if step["source"] == "agent" else extra.get("role", step["source"])
    content = _read_content(step["message"])
    if reasoning := step.get("reasoning_content"):
        text = f"<think>{reasoning}</think>\n"
        content = text + content if isinstance(content, str) else (TextPart(text), *content)
    calls = step.get("tool_calls") or (extra.get("tool_calls") if role != "assistant" else None) or ()
    return Message(role, content, tuple(map(_read_call, calls)), str(extra.get("tool_call_id") or ""))


def _read_call(call: Json) -> ToolCall:
    extra = call.get("extra") or {}
    name, id_ = str(call["function_name"]), str(extra.get("id", call["tool_call_id"]))
    return make_call(name, extra.get("arguments", call["arguments"]), id_)


def _read_result(result: Json) -> Message:
    content = _read_content(result["content"] if result.get("content") is not None else "")
    for agent in result.get("subagent_trajectory_ref") or ():
        name = agent.get("trajectory_id") or agent.get("trajectory_path") or agent.get("session_id")
        content = f"{content}[sub-agent {name}]" if isinstance(content, str) else (*content, TextPart(f"[{name}]"))
    call = result.get("source_call_id") or (result.get("extra") or {}).get("tool_call_id") or ""
    return Message("tool", content, tool_call_id=str(call))


def _read_content(content: Any) -> str | tuple[TextPart | ImagePart, ...]:
    if isinstance(content, str):
        return content
    return tuple(
        TextPart(part["text"])
        if part["type"] == "text"
        else ImagePart(part["source"]["path"])
        if part["type"] == "image"
        else TextPart(f"[{part['type']} {part['source']['path']}]")
        for part in content
    )


ATIF = TrajectoryFormat(write_atif, is_atif, read_atif)
