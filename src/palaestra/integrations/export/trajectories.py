"""Write the episodes of a run in formats of other systems, and read such files: `palaestra export RUN --to atif`.

A format is a `TrajectoryFormat` in a file of its own, and a row of `palaestra.integrations`. Formats exchange the turns of a
`Trajectory`: `split_turns` and `join_turns` are inverse to each other.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from palaestra.core.errors import RunError
from palaestra.core.records import Attempt, Failure, Json, Message, Score, Segment, StopReason, ToolCall, Trajectory
from palaestra.core.registry import Registry, describe_error
from palaestra.research.workspace.workspace import Step
from palaestra.runs.files import check_empty_folder, from_data, read_text, to_data, write_folder, write_text
from palaestra.runs.provenance import read_provenance
from palaestra.runs.run import Run

TRAJECTORY_FORMATS = Registry("trajectory format", "palaestra.trajectory_formats")
TOKEN_IDS = ("prompt_token_ids", "completion_token_ids", "logprobs")
"""Metrics with the tokens of a turn. The prompt has all tokens before the message."""
COUNTS = ("prompt_tokens", "completion_tokens")
_DETAILS = ("advantages", "entropies", "reference_logprobs", "alternatives")
"""Fields of a segment that are metrics of a turn, if they are known."""
_PLAIN = ("environment", "seed", "rewards", "terminated", "truncated")
"""Fields of a trajectory that formats keep as they are."""
_MAX_FILES, _MAX_DEPTH = 5000, 6
"""Maximum files that are read, and depth of their folders."""


@dataclass(frozen=True, slots=True)
class TrajectorySource:
    """Where an exported trajectory comes from.

    Arguments:
        run: the unique id of the run.
        name: of the episode, unique in the run.
        started: when the run started, in seconds of Unix time; 0.0 if it is not known.
    """

    run: str
    name: str
    model: str
    started: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """A message of the model.

    Arguments:
        before: the messages since its last one.
        metrics: those of `TOKEN_IDS`, `COUNTS`, `cost_usd` and others that are known.
    """

    before: tuple[Message, ...]
    message: Message
    metrics: Json


@dataclass(frozen=True, slots=True)
class TrajectoryTurns:
    """A trajectory as turns.

    Arguments:
        after: the messages after the model's last one.
        rest: what else the trajectory has, as plain values. Only a trajectory of ours has `has_messages` in it.
    """

    turns: tuple[ModelTurn, ...]
    after: tuple[Message, ...]
    rest: Json


@dataclass(frozen=True, slots=True)
class TrajectoryFormat:
    """A file format of trajectories.

    Arguments:
        write: the JSON document of a trajectory.
        recognizes: whether a JSON document has this format.
        read: the trajectories in the documents of one file.
    """

    write: Callable[[Trajectory, TrajectorySource], Json]
    recognizes: Callable[[Json], bool]
    read: Callable[[Sequence[Json]], list[Trajectory]]


def export_trajectories(run: Path | str, out: Path | str, to: str) -> Path:
    """Write the episodes and answers of a run, one file each, in a format of `TRAJECTORY_FORMATS`. Returns the folder.

    Raises:
        RunError: the folder is not a run, the run has no episode with text, or `out` is not empty.
    """
    format_: TrajectoryFormat = TRAJECTORY_FORMATS.get(to)
    folder = Path(out)
    check_empty_folder(folder)
    with Run.open(Path(run), read_only=True) as opened:

        def write(target: Path) -> None:
            for source, trajectory in _list_trajectories(opened):
                document = format_.write(trajectory, source)
                write_text(target / f"{source.name}.json", json.dumps(document, ensure_ascii=False))

        if next(_list_trajectories(opened), None) is None:
            raise RunError(f"{run} has no episodes with text; a classic episode cannot be written as {to}")
        write_folder(folder, write)
    return folder


def read_trajectories(folder: Path) -> tuple[list[tuple[Path, Trajectory]], list[str]]:
    """Read all files of known formats below a folder. Returns the trajectories with their files, and why files were left out."""
    formats: list[TrajectoryFormat] = [TRAJECTORY_FORMATS.get(name) for name in TRAJECTORY_FORMATS.names()]
    trajectories, problems = list[tuple[Path, Trajectory]](), list[str]()
    for count, path in enumerate(_list_files(folder, _MAX_DEPTH)):
        if count >= _MAX_FILES:
            problems.append(f"{folder} has more than {_MAX_FILES} files; the others were left out")
            break
        try:
            documents = list(_parse_documents(read_text(path)))
            for format_ in formats:
                if known := [document for document in documents if format_.recognizes(document)]:
                    trajectories += [(path, trajectory) for trajectory in format_.read(known)]
        except RunError as error:
            problems.append(str(error))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:  # A file of somebody else.
            problems.append(f"{path} is damaged: {describe_error(error)}")
    return trajectories, problems


def _list_files(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the JSON files of a folder and of those below it. Links are not followed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # It may not be read.
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and depth and not entry.name.startswith("."):
            yield from _list_files(Path(entry.path), depth - 1)
        elif entry.name.endswith((".json", ".jsonl")) and entry.is_file(follow_symlinks=False):
            yield Path(entry.path)


def _parse_documents(text: str) -> Iterator[Json]:
    """Yield the objects of a JSON file, or of the lines of a JSONL file."""
    for part in ([text], text.splitlines()):
        try:
            values = [json.loads(line) for line in part if line.strip()]
        except (ValueError, RecursionError):
            continue
        yield from (value for value in values if isinstance(value, dict))
        return


# The episodes of a run


def _list_trajectories(run: Run) -> Iterator[tuple[TrajectorySource, Trajectory]]:
    """Yield the stored episodes and answers of a run that have text."""
    settings, time = run.settings, str((read_provenance(run.folder) or {"started": {}})["started"].get("time", ""))
    model = str(settings.get("model") or settings.get("student") or settings.get("agent") or "")
    started = datetime.fromisoformat(time).timestamp() if time else 0.0
    subject = str(settings.get("task") or settings.get("env") or "")

    def source(*parts: object) -> TrajectorySource:
        name = re.sub(r"[^\w.-]+", "_", "-".join(map(str, parts)))
        return TrajectorySource(run.store.id, name, model, started)

    for iteration in run.store.trajectory_iterations():
        for position, trajectory in enumerate(run.store.trajectories(iteration)):
            if trajectory.infos and {"response", "messages"} & trajectory.infos[0].keys():
                yield source("training", f"{iteration:05d}", f"{position:05d}"), trajectory
    for phase in run.store.phases():
        for attempt in run.store.attempts(phase):
            yield source(phase, attempt.problem.id, attempt.sample), _from_attempt(attempt, subject, phase)
    for number in run.store.episodes() if run.recipe == "research" else ():
        yield source("episode", number), _from_steps(run.store.steps(Step, number), subject)


def _from_attempt(attempt: Attempt, task: str, phase: str) -> Trajectory:
    problem, answer, outcome = attempt.problem, attempt.completion, attempt.outcome
    own = [] if answer is None else [Message("assistant", answer.text, answer.tool_calls)]
    info: Json = {"phase": phase, "problem": problem.id, "sample": attempt.sample, "skill": problem.skill}
    info |= {"reference": problem.reference, "opening": len(problem.messages)}
    info["messages"] = [to_data(message) for message in (*problem.messages, *own)]
    info |= {"failure": outcome.message} if isinstance(outcome, Failure) else {"evidence": dict(outcome.evidence)}
    rewards = (outcome.value,) if isinstance(outcome, Score) else ()
    if answer is None:
        return Trajectory(task, 0, rewards, infos=(info,))
    info["metrics"] = [{name: getattr(answer.usage, name) for name in COUNTS}]
    info["stop_reason"] = str(answer.stop_reason)
    segments: tuple[Segment, ...] = ()
    if answer.is_exact:
        given = Segment(answer.prompt_ids, (False,) * len(answer.prompt_ids), (0.0,) * len(answer.prompt_ids))
        segments = (given, Segment(answer.token_ids, (True,) * len(answer.token_ids), answer.logprobs))
    is_cut = answer.stop_reason is StopReason.LENGTH
    return Trajectory(task, 0, rewards, segments, not is_cut, is_cut, (info,))


def _from_steps(steps: Sequence[Step], task: str) -> Trajectory:
    """Make the trajectory of an episode of research. Its tokens are not stored."""
    messages = [m for step in steps for m in (*((step.message,) if step.message else ()), *step.observation)]
    own, last = [step for step in steps if step.message is not None], steps[-1]
    info: Json = {"messages": list(map(to_data, messages)), "opening": len(steps[0].observation)}
    info["metrics"] = [
        {**{name: getattr(step.usage, name) for name in COUNTS}, "cost_usd": step.money, "seconds": step.seconds}
        for step in own
    ]
    info |= {"stop_reason": last.stop_reason, "outcome": str(last.info.get("outcome", ""))}
    failed = next((step.failure for step in reversed(steps) if step.failure), None)
    info |= {"failure": f"{failed.cause}: {failed.message}"} if failed else {}
    return Trajectory(task, 0, tuple(step.reward for step in own), (), not failed, False, (info,))


# Trajectories and turns


def split_turns(trajectory: Trajectory) -> TrajectoryTurns:
    """The turns of a trajectory.

    Its first info has the conversation as `messages`, of which `opening` come before the model's first one, or its texts as
    `prompt` and `response`; and `metrics`, if they are known, one object for each message of the model.

    Raises:
        RunError: it has no text.
    """
    rest: Json = {name: to_data(getattr(trajectory, name)) for name in _PLAIN}
    info = dict(trajectory.infos[0]) if trajectory.infos else {}
    rest |= {"has_messages": "messages" in info, "has_metrics": "metrics" in info}
    if "messages" in info:
        messages = tuple(from_data(Message, message) for message in info.pop("messages"))
        opening = min(int(info.get("opening", 0)), len(messages))
    elif isinstance(info.get("response"), str):
        messages, opening = (Message("user", str(info.get("prompt", ""))), Message("assistant", info["response"])), 1
    else:
        raise RunError("an episode without text cannot be written")
    places = [k for k, message in enumerate(messages) if message.role == "assistant" and k >= opening]
    metrics = info.pop("metrics", [{} for _ in places])
    tokens = _list_tokens(trajectory.segments)
    if tokens is None or len(tokens) != len(places) or len(metrics) != len(places):
        rest["segments"] = [to_data(segment) for segment in trajectory.segments]
        tokens = [{} for _ in places]
    if len(metrics) != len(places):
        info["metrics"], metrics = metrics, [{} for _ in places]
        rest["has_metrics"] = False
    starts = [0, *(place + 1 for place in places)]
    turns = tuple(
        ModelTurn(messages[start:place], messages[place], {**counts, **own, **known})
        for start, place, own, known in zip(starts, places, metrics, tokens, strict=False)
        for counts in [{} if rest["has_metrics"] or not known else _count(known)]
    )
    rest["infos"] = [info, *map(dict, trajectory.infos[1:])]
    return TrajectoryTurns(turns, messages[starts[-1] :], rest)


def _count(tokens: Json) -> Json:
    return {name: len(tokens[ids]) for name, ids in zip(COUNTS, TOKEN_IDS, strict=False)}


def _list_tokens(segments: Sequence[Segment]) -> list[Json] | None:
    """The tokens of each message of the model; `None` if the segments do not alternate between given and sampled tokens."""
    listed, known, is_given = list[Json](), list[int](), False
    for segment in segments:
        details = {name: to_data(getattr(segment, name)) for name in _DETAILS if getattr(segment, name)}
        if all(segment.chosen) and segment.token_ids:
            tokens = {"prompt_token_ids": list(known), "completion_token_ids": list(segment.token_ids)}
            listed.append({**tokens, "logprobs": list(segment.logprobs), **details})
        elif any(segment.chosen) or any(segment.logprobs) or is_given or details or not segment.token_ids:
            return None
        is_given = not all(segment.chosen)
        known += segment.token_ids
    return None if is_given else listed


def join_turns(record: TrajectoryTurns) -> Trajectory:
    """The trajectory of turns. Token ids become segments if each prompt begins with all tokens before it."""
    rest, turns = record.rest, record.turns
    messages = (*(m for turn in turns for m in (*turn.before, turn.message)), *record.after)
    info, *infos = rest.get("infos") or [{}]
    metrics = [dict(turn.metrics) for turn in turns]
    segments = tuple(from_data(Segment, segment) for segment in rest.get("segments", ())) or _join_segments(metrics)
    if "has_messages" not in rest:  # Not ours.
        info = {**info, "opening": len(turns[0].before) if turns else len(messages)}
    if rest.get("has_messages", True):
        info["messages"] = [to_data(message) for message in messages]
    if rest.get("has_metrics", any(metrics)):
        info["metrics"] = metrics
    plain = {name: rest.get(name, default) for name, default in zip(_PLAIN, ("", 0, (), True, False), strict=True)}
    return Trajectory(**{**plain, "rewards": tuple(plain["rewards"])}, segments=segments, infos=(info, *infos))


def _join_segments(metrics: Sequence[Json]) -> tuple[Segment, ...]:
    """Move the tokens of turns into segments. If they do not form one sequence, they stay where they are."""
    segments, known = list[Segment](), list[int]()
    for values in metrics:
        prompt, ids, logprobs = (values.get(name) for name in TOKEN_IDS)
        if not ids or prompt is None or prompt[: len(known)] != known or len(ids) != len(logprobs or ()):
            return ()
        given = tuple(prompt[len(known) :])
        segments += [Segment(given, (False,) * len(given), (0.0,) * len(given))] if given else []
        details = {name: values[name] for name in _DETAILS if name in values}
        plain = {"token_ids": ids, "chosen": [True] * len(ids), "logprobs": logprobs}
        segments.append(from_data(Segment, {**plain, **details}))
        known = [*prompt, *ids]
    for values in metrics:
        for name in (*TOKEN_IDS, *_DETAILS):
            values.pop(name, None)
    return tuple(segments)


def make_call(name: str, arguments: object, id_: str) -> ToolCall:
    """A tool call from arguments that are an object, or a text as the model wrote it."""
    return ToolCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False), id_)


def parse_arguments(call: ToolCall) -> Json | None:
    """The arguments of a call as an object; `None` if `make_call` would not give the same text."""
    try:
        values = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    is_same = isinstance(values, dict) and json.dumps(values, ensure_ascii=False) == call.arguments
    return values if is_same else None
