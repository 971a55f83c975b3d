"""The stored episodes of a train run: the list, and one episode token by token beside the others of its group."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

from starlette.responses import Response

from palaestra.core.records import Json, Trajectory
from palaestra.report.parts import truncate
from palaestra.runs.browse import find_trajectories, find_trajectory_keys
from palaestra.runs.files import to_json
from palaestra.runs.store import Store
from palaestra.view.colors import NAMES, make_coloring
from palaestra.view.export import FORMATS, Columns, export_table, read_fields
from palaestra.view.pages import ViewerPage, open_store, render
from palaestra.view.query import PAGE, Query, read_query_number
from palaestra.view.runs import RunCard
from palaestra.view.tokens import ShownSegment, ShownToken, find_tokenizer, read_segments

MAX_TOKENS = 3000
"""Tokens of an episode on one page."""
MAX_TOKENS_BESIDE = 400
"""Tokens of the other episodes of the group."""


_LISTED = ("iteration", "position", "group", "reward", "tokens", "logprob", "stop", "failure", "prompt", "response")
_EPISODE_COLUMNS: Columns[Json] = {name: itemgetter(name) for name in _LISTED}


class _TokenRow(NamedTuple):
    segment: ShownSegment
    token: ShownToken


_TOKEN_COLUMNS: Columns[_TokenRow] = {
    **read_fields("token.place"),
    "segment": attrgetter("segment.title"),
    **read_fields("token.id", "token.text"),
    "sampled": attrgetter("token.own"),
    **read_fields("token.logprob", "token.advantage", "token.entropy", "token.reference_logprob", "token.divergence"),
    "alternatives": lambda row: [[a.id, a.text, a.logprob] for a in row.token.alternatives],
}


def render_episodes(card: RunCard, query: Query) -> ViewerPage | Response:
    """The stored episodes of a train run."""
    number, iteration = max(1, read_query_number(query, "page") or 1), read_query_number(query, "iteration")
    wanted: Json = {"iteration": iteration, "text": query.get("q", "")}
    with open_store(card) as store:
        if query.get("format") in FORMATS:
            stored = ((*key, store.trajectory(*key)) for key in find_trajectory_keys(store, **wanted))
            rows = (_describe(i, p, trajectory) for i, p, trajectory in stored if trajectory is not None)
            return export_table(f"{card.id} episodes", _EPISODE_COLUMNS, rows, query["format"])
        shown, count = find_trajectories(store, **wanted, limit=PAGE, offset=(number - 1) * PAGE)
        iterations = store.trajectory_iterations()
    values = {"rows": [_describe(*row) for row in shown], "iterations": iterations, "iteration": iteration}
    pages = {"count": count, "number": number, "pages": max(1, -(-count // PAGE))}
    return render("episodes", {**values, **pages}, card, "episodes", query)


def render_episode(card: RunCard, query: Query, iteration: int, position: int) -> ViewerPage | Response | None:
    """One episode token by token, beside the others of its group; its record as JSON, or its tokens as CSV.

    The query has `colour`, a key of `NAMES`; `start`, the first token that is shown; and `at`, the token whose values
    are shown below.
    """
    with open_store(card) as store:
        trajectory = store.trajectory(iteration, position)
        if trajectory is None:
            return None
        if query.get("format") == "json":
            return Response(to_json(trajectory), media_type="application/json")
        others = _read_others(store, trajectory, iteration, position)
    tokenizer = find_tokenizer(card.folder, card.settings)
    if query.get("format") == "csv":
        rows = (
            _TokenRow(segment, token) for segment in read_segments(trajectory, tokenizer) for token in segment.tokens
        )
        return export_table(f"{card.id} episode {iteration} {position}", _TOKEN_COLUMNS, rows, "csv")
    at = read_query_number(query, "at")
    start = max(0, read_query_number(query, "start") or 0)
    if "start" not in query and at is not None:
        start = at // MAX_TOKENS * MAX_TOKENS
    own = read_segments(trajectory, tokenizer, start, MAX_TOKENS)
    members = [{**_describe(iteration, position, trajectory), "segments": own}]
    for row in others:
        beside = read_segments(row[2], tokenizer, 0, MAX_TOKENS_BESIDE)
        members.append({**_describe(*row), "segments": beside})
    tokens = [token for member in members for segment in member["segments"] for token in segment.tokens]
    known = {name: any(getattr(token, name) is not None for token in tokens) for name in NAMES}
    color = query.get("colour", "logprob")
    color = color if known.get(color) else "logprob"
    own_tokens = [token for segment in own for token in segment.tokens]
    current = next((token for token in own_tokens if token.place == at), None)
    coloring = make_coloring(color, (getattr(token, color) for token in tokens))
    mean = _mean([member["reward"] for member in members if not member["failure"]])
    colors = {"names": NAMES, "known": known, "color": color, "coloring": coloring, "decoded": tokenizer is not None}
    parts = {"start": start, "step": MAX_TOKENS, "beside": MAX_TOKENS_BESIDE, "tokens": own_tokens, "current": current}
    return render("episode", {"members": members, "mean": mean, **colors, **parts}, card, "episodes", query)


def _read_others(
    store: Store, trajectory: Trajectory, iteration: int, position: int
) -> list[tuple[int, int, Trajectory]]:
    """The other stored episodes of the group."""
    group = _read_info(trajectory).get("group")
    if group is None:
        return []
    stored, _ = find_trajectories(store, iteration=iteration, group=group)
    return [row for row in stored if row[1] != position]


def _describe(iteration: int, position: int, trajectory: Trajectory) -> Json:
    """Summarize an episode: its texts, its reward, and the means over its sampled tokens."""
    info, segments = _read_info(trajectory), trajectory.segments
    logprobs = [v for s in segments for v, chosen in zip(s.logprobs, s.chosen, strict=True) if chosen]
    advantages = [value for segment in segments for value in segment.advantages]
    reference = [value for segment in segments for value in segment.reference_logprobs]
    return {
        "iteration": iteration,
        "position": position,
        "prompt": str(info.get("prompt", "")),
        "response": str(info.get("response", "")),
        "stop": str(info.get("stop_reason", "")),
        "failure": truncate(str(info.get("failure", ""))),
        "group": info.get("group"),
        "info": {name: truncate(str(value)) for name, value in info.items()},
        "reward": trajectory.total_reward,
        "size": sum(len(segment.token_ids) for segment in segments),
        "tokens": len(logprobs),
        "logprob": _mean(logprobs),
        "advantage": _mean(advantages),
        "is_shared": len(set(advantages)) == 1,
        "entropy": _mean([value for segment in segments for value in segment.entropies]),
        "divergence": sum(logprobs) - sum(reference) if reference else None,
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _read_info(trajectory: Trajectory) -> Json:
    return dict(trajectory.infos[0]) if trajectory.infos else {}
