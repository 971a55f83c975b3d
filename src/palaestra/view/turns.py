"""The turn scale: the conversation of a research run step by step, and two conversations side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from starlette.responses import PlainTextResponse, Response

from palaestra.report.research import REASONS, list_validations, validation_chart
from palaestra.research.workspace.step_record import Step
from palaestra.runs.browse.steps import list_positions, read_light_steps, read_step, search_steps
from palaestra.runs.store import Store
from palaestra.view.memory import recall
from palaestra.view.pages import open_store, render
from palaestra.view.reading import PagePlace, Query, Row
from palaestra.view.runs import RunCard
from palaestra.view.steps import STEP_COLUMNS, list_texts, read_step_text, show_step, to_step_row
from palaestra.view.tables import FORMATS, DataTable, export_table
from palaestra.view.texts import LONG

STEPS = 20
"""Steps of one page."""
MOST = 4000
"""Characters of each text in a conversation; a step's own page shows more."""


def render_conversation(card: RunCard, query: Query, episode: int = 0) -> str | Response | None:
    """A page of a conversation: all steps, or those with a text."""
    text = query.get("q", "")
    with open_store(card) as store:
        episodes = store.episodes()
        if episode not in episodes and (episode or episodes):
            return None
        steps = [position for position in list_positions(store, episode) if position]
        matching = steps
        if text:
            matching = recall(card, ("steps", episode, text), lambda: _search(store, episode, text))
        if query.get("format") in FORMATS:
            rows = (to_step_row(read_step(store, Step, episode, position)) for position in matching)
            return export_table(DataTable(f"{card.id}-conversation-{episode}", STEP_COLUMNS, rows), query["format"])
        place = PagePlace.find(query, len(matching), STEPS)
        shown = matching[place.offset : place.offset + STEPS]
        rows_shown = [_show(store, card, episode, position, MOST) for position in shown]
        opening = _show(store, card, episode, 0, MOST) if episodes and place.number == 1 and not text else None
        head = _describe_episode(card, store, episode)
    return render(
        "conversation", rows=rows_shown, opening=opening, place=place, head=head, episode=episode, episodes=episodes,
        count=len(matching), total=len(steps), text=text, reasons=REASONS, query=dict(query), folder=card.folder.name,
        run=card, tab="conversation",
    )  # fmt: skip


def render_step(card: RunCard, query: Query, episode: int, position: int) -> str | None:
    """One step on a page of its own."""
    with open_store(card) as store:
        positions = list_positions(store, episode)
        if position not in positions:
            return None
        row = _show(store, card, episode, position, LONG)
    at = positions.index(position)
    # Position 0 has the first messages; it is part of the conversation's page.
    before, after = positions[at - 1] if at > 1 else None, positions[at + 1] if at + 1 < len(positions) else None
    return render(
        "step", row=row, episode=episode, before=before, after=after, page=max(0, at - 1) // STEPS + 1, query={},
        folder=card.folder.name, run=card, tab="conversation",
    )  # fmt: skip


def read_text(card: RunCard, query: Query, episode: int, position: int, name: str) -> Response | None:
    """A whole text of a step, as plain text."""
    with open_store(card) as store:
        step = read_step(store, Step, episode, position)
    text = None if step is None else read_step_text(step, name)
    return None if text is None else PlainTextResponse(text.encode("utf-8", "replace"))


def render_pair(sides: Sequence[tuple[RunCard, int]], choices: Sequence[RunCard], query: Query) -> str | None:
    """Two conversations side by side, step by step; `None` if an episode is not stored.

    Arguments:
        sides: the runs with the numbers of their episodes.
        choices: the runs to choose from.
    """
    heads, positions = [], []
    for card, episode in sides:
        with open_store(card) as store:
            if episode not in store.episodes():
                return None
            positions.append(set(list_positions(store, episode)))
            heads.append(
                {
                    "card": card,
                    "episode": episode,
                    "episodes": store.episodes(),
                    **_describe_episode(card, store, episode),
                }
            )
    place = PagePlace.find(query, max(max(known) for known in positions), STEPS)
    columns: list[dict[int, Row]] = []
    for (card, episode), known in zip(sides, positions, strict=True):
        with open_store(card) as store:
            numbers = range(place.offset + 1, place.offset + STEPS + 1)
            columns.append({n: _show(store, card, episode, n, MOST // 2) for n in numbers if n in known})
    rows = [(number, [column.get(number) for column in columns]) for number in sorted({*columns[0], *columns[1]})]
    names = list(dict.fromkeys(_list_names(choices, sides, heads)))
    left, right = (f"{card.id}:{episode}" for card, episode in sides)
    return render(
        "turns", heads=heads, rows=rows, place=place, names=names, left=left, right=right, reasons=REASONS,
        query={"left": left, "right": right}, folder="", run=None, tab="",
    )  # fmt: skip


def _list_names(
    choices: Sequence[RunCard], sides: Sequence[tuple[RunCard, int]], heads: Sequence[Row]
) -> Iterator[str]:
    """The episodes to choose from: all of the two runs, and the first of every other."""
    several = {card.id: head["episodes"] for (card, _), head in zip(sides, heads, strict=True)}
    for card in choices:
        for episode in several.get(card.id, [0]):
            yield f"{card.id}:{episode}"


def _show(store: Store, card: RunCard, episode: int, position: int, most: int) -> Row:
    address = f"/run/{quote(card.id)}/conversation/{episode}/{position}"
    return show_step(read_step(store, Step, episode, position), address, most)


def _search(store: Store, episode: int, text: str) -> list[int]:
    """The positions of the steps with a text, without the first messages."""
    wanted = text.lower()
    return [
        position
        for position in search_steps(store, episode, text)
        if position and any(wanted in part.lower() for part in list_texts(read_step(store, Step, episode, position)))
    ]


def _describe_episode(card: RunCard, store: Store, episode: int) -> Row:
    """The scores, the cost and the end of an episode."""
    light = recall(card, ("steps", episode), lambda: read_light_steps(store, Step, episode))
    last = light[-1] if light else Step(episode, 0)
    names = ("seconds", "calls", "money")
    sums = {name: sum(getattr(step, name) for step in light) for name in names}
    sums |= {name: sum(getattr(step.usage, name) for step in light) for name in ("prompt_tokens", "completion_tokens")}
    return {
        "chart": validation_chart(light) if light else None, "scores": list_validations(light), "score": last.info.get("score"),
        "metric": light[0].info.get("metric", "score") if light else "score", "stop_reason": last.stop_reason, "note": last.note,
        "sums": sums, "total": store.total(), "messages": sum(bool(step.position) for step in light),
    }  # fmt: skip
