"""The stored episodes of a train run: the list, and one episode token by token beside the others of its group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from palaestra.core.records import Trajectory
from palaestra.report.parts import truncate
from palaestra.runs.files import to_json
from palaestra.runs.store import Store
from palaestra.view.colours import NAMES, make_colouring
from palaestra.view.pages import open_store, render
from palaestra.view.reading import PAGE, read_number
from palaestra.view.runs import RunCard
from palaestra.view.tables import DataTable
from palaestra.view.tokens import ShownSegment, ShownToken, find_tokenizer, read_segments

MOST_TOKENS = 3000
"""Tokens of an episode on one page."""
MOST_TOKENS_BESIDE = 400
"""Tokens of the other episodes of the group."""
LIST_COLUMNS = (
    "iteration", "position", "group", "reward", "tokens", "logprob", "stop", "failure", "prompt", "response"
)  # fmt: skip
TOKEN_COLUMNS = (
    "place", "segment", "id", "text", "sampled", "logprob", "advantage", "entropy", "reference_logprob", "divergence",
    "alternatives",
)  # fmt: skip


def render_episodes(card: RunCard, query: Mapping[str, str]) -> str:
    """A page of the stored episodes of a train run."""
    number, iteration = max(1, read_number(query, "page") or 1), read_number(query, "iteration")
    with open_store(card) as store:
        stored, count = store.find_trajectories(
            iteration=iteration, text=query.get("q", ""), limit=PAGE, offset=(number - 1) * PAGE
        )
        iterations = store.trajectory_iterations()
    rows = [{"iteration": i, "position": p, **_describe(trajectory)} for i, p, trajectory in stored]
    return render(
        "episodes", rows=rows, count=count, number=number, pages=max(1, -(-count // PAGE)), iterations=iterations,
        iteration=iteration, query=dict(query), folder=card.folder.name, run=card, tab="episodes",
    )  # fmt: skip


def make_episode_table(card: RunCard, query: Mapping[str, str]) -> DataTable:
    """The episodes that match the query, of all pages."""
    iteration, text = read_number(query, "iteration"), query.get("q", "")

    def read_rows() -> Iterator[dict[str, Any]]:
        # The rows may be read in different threads, and a connection belongs to one.
        with open_store(card) as store:
            keys = store.find_trajectory_keys(iteration=iteration, text=text)
        for start in range(0, len(keys), PAGE):
            with open_store(card) as store:
                stored = [(*key, store.trajectory(*key)) for key in keys[start : start + PAGE]]
            for i, p, trajectory in stored:
                if trajectory is not None:
                    yield {"iteration": i, "position": p, **_describe(trajectory)}

    return DataTable(f"{card.id} episodes", LIST_COLUMNS, read_rows())


def render_episode(card: RunCard, iteration: int, position: int, query: Mapping[str, str]) -> str | None:
    """One episode token by token, beside the others of its group; `None` if it is not stored.

    The query has `colour`, a key of `NAMES`; `start`, the first token that is shown; and `at`, the token whose values
    are shown below.
    """
    with open_store(card) as store:
        trajectory = store.trajectory(iteration, position)
        if trajectory is None:
            return None
        others = _read_others(store, trajectory, iteration, position)
    tokenizer = find_tokenizer(card.folder, card.settings)
    size = sum(len(segment.token_ids) for segment in trajectory.segments)
    at = read_number(query, "at")
    start = max(0, read_number(query, "start") or 0)
    if "start" not in query and at is not None:
        start = at // MOST_TOKENS * MOST_TOKENS
    members = []
    for k, (i, p, t) in enumerate([(iteration, position, trajectory), *others]):
        part = (start, MOST_TOKENS) if k == 0 else (0, MOST_TOKENS_BESIDE)
        members.append({"iteration": i, "position": p, "segments": read_segments(t, tokenizer, *part), **_describe(t)})
    rewards = [member["reward"] for member in members if not member["failure"]]
    mean = sum(rewards) / len(rewards) if rewards else None
    tokens = [token for member in members for token in _list_tokens(member["segments"])]
    known = {name: any(getattr(token, name) is not None for token in tokens) for name in NAMES}
    colour = query.get("colour", "logprob")
    colour = colour if known.get(colour) else "logprob"
    colouring = make_colouring(colour, (getattr(token, colour) for token in tokens))
    own = _list_tokens(members[0]["segments"])
    return render(
        "episode", members=members, iteration=iteration, position=position, decoded=tokenizer is not None, mean=mean,
        names=NAMES, known=known, colour=colour, colouring=colouring, tokens=own, start=start, size=size,
        current=next((token for token in own if token.place == at), None), step=MOST_TOKENS, beside=MOST_TOKENS_BESIDE,
        query=dict(query), folder=card.folder.name, run=card, tab="episodes",
    )  # fmt: skip


def read_episode_json(card: RunCard, iteration: int, position: int) -> str | None:
    """The record of an episode as JSON; `None` if it is not stored."""
    with open_store(card) as store:
        trajectory = store.trajectory(iteration, position)
    return None if trajectory is None else to_json(trajectory)


def make_token_table(card: RunCard, iteration: int, position: int) -> DataTable | None:
    """All tokens of an episode with their values; `None` if it is not stored."""
    with open_store(card) as store:
        trajectory = store.trajectory(iteration, position)
    if trajectory is None:
        return None
    segments = read_segments(trajectory, find_tokenizer(card.folder, card.settings))
    rows = (
        {
            "place": token.place, "segment": segment.title, "id": token.id, "text": token.text, "sampled": token.own,
            **{name: getattr(token, name) for name in ("logprob", "advantage", "entropy", "reference_logprob", "divergence")},
            "alternatives": [[a.id, a.text, a.logprob] for a in token.alternatives],
        }
        for segment in segments
        for token in segment.tokens
    )  # fmt: skip
    return DataTable(f"{card.id} episode {iteration} {position}", TOKEN_COLUMNS, rows)


def _read_others(
    store: Store, trajectory: Trajectory, iteration: int, position: int
) -> list[tuple[int, int, Trajectory]]:
    """The other stored episodes of the group."""
    group = _info(trajectory).get("group")
    if group is None:
        return []
    stored, _ = store.find_trajectories(iteration=iteration, group=group)
    return [(i, p, other) for i, p, other in stored if p != position]


def _list_tokens(segments: Sequence[ShownSegment]) -> list[ShownToken]:
    return [token for segment in segments for token in segment.tokens]


def _describe(trajectory: Trajectory) -> dict[str, Any]:
    info = _info(trajectory)
    own = [v for s in trajectory.segments for v, chosen in zip(s.logprobs, s.chosen, strict=True) if chosen]
    advantages = [value for segment in trajectory.segments for value in segment.advantages]
    entropies = [value for segment in trajectory.segments for value in segment.entropies]
    reference = [value for segment in trajectory.segments for value in segment.reference_logprobs]
    return {
        "prompt": str(info.get("prompt", "")), "response": str(info.get("response", "")), "reward": trajectory.total_reward,
        "stop": str(info.get("stop_reason", "")), "tokens": len(own), "failure": truncate(str(info.get("failure", ""))),
        "size": sum(len(segment.token_ids) for segment in trajectory.segments), "group": info.get("group"),
        "logprob": _mean(own), "advantage": _mean(advantages), "is_shared": len(set(advantages)) == 1, "entropy": _mean(entropies),
        "divergence": sum(own) - sum(reference) if reference else None, "info": {name: truncate(str(value)) for name, value in info.items()}, "seed": trajectory.seed,
    }  # fmt: skip


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _info(trajectory: Trajectory) -> Mapping[str, Any]:
    return trajectory.infos[0] if trajectory.infos else {}
