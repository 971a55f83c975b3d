"""The conversation of a research run step by step, and two conversations side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from operator import attrgetter
from urllib.parse import quote

from starlette.responses import PlainTextResponse, Response

from palaestra.core.records import Json, ToolCall
from palaestra.envs.turn.base import transcript
from palaestra.report.formatting import plural, shorten
from palaestra.report.parts import list_images, read_message
from palaestra.report.research import REASONS, list_validations, validation_chart
from palaestra.research.workspace.workspace import Step
from palaestra.runs.browse import list_positions, read_light_steps, read_step, search_steps
from palaestra.runs.store import Store
from palaestra.view.cache import recall
from palaestra.view.export import FORMATS, Columns, export_table, read_fields
from palaestra.view.pages import ViewerPage, open_store, render
from palaestra.view.query import PagePlace, Query
from palaestra.view.runs import RunCard
from palaestra.view.texts import LONG, cut_text, split_diff, split_message

_STEPS = 20
"""Steps of one page."""
_MAX_CHARACTERS = 4000
"""Characters of each text in a conversation; a step's own page shows more."""
_MAX_DIFF_LINES = 200
_NEAR = 20
"""Episodes before and after the shown one that its page links to."""
_TITLE = 90
"""Characters of the first line of an action."""
_STEP_COLUMNS: Columns[Step] = {
    **read_fields("episode"),
    "step": attrgetter("position"),
    **read_fields("action"),
    "message": lambda step: "" if step.message is None else transcript(step.message),
    "output": lambda step: "\n\n".join(read_message(message) for message in step.observation),
    "files": lambda step: [{"path": file.path, "kind": file.kind, "diff": file.diff} for file in step.files],
    "validated": lambda step: list(step.info.get("validated") or ()),
    **read_fields("reward"),
    "seconds": lambda step: round(step.seconds, 3),
    "thinking": lambda step: round(step.thinking, 3),
    **read_fields("calls", "usage.prompt_tokens", "usage.completion_tokens", "money", "stop_reason"),
    "failure": lambda step: "" if step.failure is None else f"{step.failure.cause}: {step.failure.message}",
}


def render_conversation(card: RunCard, query: Query, episode: int = 0) -> ViewerPage | Response | None:
    """A page of a conversation: all steps, or those with a text."""
    text = query.get("q", "")
    with open_store(card) as store:
        episodes = store.episodes()
        if episode not in episodes and (episode or episodes):
            return None
        steps = [position for position in list_positions(store, episode) if position]
        matching = recall(card, ("steps", episode, text), lambda: _search(store, episode, text)) if text else steps
        if query.get("format") in FORMATS:
            rows = (_read(store, episode, position) for position in matching)
            return export_table(f"{card.id}-conversation-{episode}", _STEP_COLUMNS, rows, query["format"])
        place = PagePlace.find(query, len(matching), _STEPS)
        shown = matching[place.offset : place.offset + _STEPS]
        opening = _show(store, card, episode, 0) if episodes and place.number == 1 and not text else None
        head = _describe_episode(card, store, episode)
        rows_shown = [_show(store, card, episode, position) for position in shown]
    figures = [("page", f"Conversation {plural(len(steps), 'step')}", [head["chart"]])]
    values = {"rows": rows_shown, "opening": opening, "place": place, "head": head, "text": text, "reasons": REASONS}
    near = [number for number in episodes if abs(number - episode) <= _NEAR]
    counts = {"episode": episode, "episodes": near, "count": len(matching), "total": len(steps)}
    return render("conversation", {**values, **counts}, card, "conversation", query, figures)


def render_step(card: RunCard, query: Query, episode: int, position: int) -> ViewerPage | None:
    """One step on a page of its own."""
    with open_store(card) as store:
        positions = list_positions(store, episode)
        if position not in positions:
            return None
        row = _show(store, card, episode, position, LONG)
    at = positions.index(position)
    # Position 0 has the first messages; it is part of the conversation's page.
    before, after = positions[at - 1] if at > 1 else None, positions[at + 1] if at + 1 < len(positions) else None
    place = {"before": before, "after": after, "page": max(0, at - 1) // _STEPS + 1}
    return render("step", {"row": row, "episode": episode, **place}, card, "conversation")


def render_text(card: RunCard, query: Query, episode: int, position: int, name: str) -> Response | None:
    """A whole text of a step, as plain text: `message`, `output-K`, `call-K` or `file-K`."""
    with open_store(card) as store:
        step = read_step(store, Step, episode, position)
    if step is None:
        return None
    texts = {f"output-{k}": read_message(message) for k, message in enumerate(step.observation)}
    texts |= {f"file-{k}": f"{file.kind} {file.path}\n{file.diff}" for k, file in enumerate(step.files)}
    if step.message is not None:
        texts["message"] = transcript(step.message)
        texts |= {f"call-{k}": f"{call.name} {call.arguments}" for k, call in enumerate(step.message.tool_calls)}
    return PlainTextResponse(texts[name].encode("utf-8", "replace")) if name in texts else None


def render_pair(sides: Sequence[tuple[RunCard, int]], choices: Sequence[RunCard], query: Query) -> ViewerPage | None:
    """Two conversations side by side, step by step; `None` if an episode is not stored.

    Arguments:
        sides: the runs with the numbers of their episodes.
        choices: the runs to choose from.
    """
    heads: list[Json] = []
    for card, episode in sides:
        with open_store(card) as store:
            episodes, positions = store.episodes(), set(list_positions(store, episode))
            if episode not in episodes:
                return None
            head = _describe_episode(card, store, episode)
            heads.append({"card": card, "episode": episode, "episodes": episodes, "positions": positions, **head})
    place = PagePlace.find(query, max(max(head["positions"]) for head in heads), _STEPS)
    numbers = range(place.offset + 1, place.offset + _STEPS + 1)
    columns = []
    for head in heads:
        with open_store(head["card"]) as store:
            known = [n for n in numbers if n in head["positions"]]
            columns.append({n: _show(store, head["card"], head["episode"], n, _MAX_CHARACTERS // 2) for n in known})
    rows = [(number, [column.get(number) for column in columns]) for number in sorted({*columns[0], *columns[1]})]
    # All episodes of the two runs, and the first of every other.
    several = {head["card"].id: head["episodes"] for head in heads}
    names = dict.fromkeys(f"{card.id}:{episode}" for card in choices for episode in several.get(card.id, [0]))
    chosen = dict(zip(("left", "right"), (f"{card.id}:{episode}" for card, episode in sides), strict=True))
    values = {"heads": heads, "rows": rows, "place": place, "names": names, "reasons": REASONS, **chosen}
    return render("turns", values, query=chosen)


def _describe_episode(card: RunCard, store: Store, episode: int) -> Json:
    """The scores, the cost and the end of an episode."""
    light = recall(card, ("steps", episode), lambda: read_light_steps(store, Step, episode))
    last = light[-1] if light else Step(episode, 0)
    sums = {name: sum(getattr(step, name) for step in light) for name in ("seconds", "calls", "money")}
    sums |= {name: sum(getattr(step.usage, name) for step in light) for name in ("prompt_tokens", "completion_tokens")}
    return {
        "chart": validation_chart(light) if light else None,
        "scores": list_validations(light),
        "metric": light[0].info.get("metric", "score") if light else "score",
        "file": str(light[0].info.get("file", "")) if light else "",
        "last": last,
        "sums": sums,
        "total": store.total(),
        "messages": sum(bool(step.position) for step in light),
    }


def _read(store: Store, episode: int, position: int) -> Step:
    step = read_step(store, Step, episode, position)
    assert step is not None, "the position was listed by the same store"
    return step


def _show(store: Store, card: RunCard, episode: int, position: int, length: int = _MAX_CHARACTERS) -> Json:
    """Prepare a step for a page. Texts are cut to `length` characters; whole texts are below the step's address."""
    address = f"/run/{quote(card.id)}/conversation/{episode}/{position}"
    step = _read(store, episode, position)
    message, action = step.message, step.action.strip()
    text = "" if message is None else read_message(message)
    # A script's message is its action; a model's message has it in a fenced block.
    is_action = bool(action) and text.strip() == action
    first = next((line for line in step.action.splitlines() if line.strip()), "")
    outputs, files = [], []
    for k, output in enumerate(step.observation):
        content = cut_text(read_message(output), length, f"{address}/output-{k}.txt")
        outputs.append({"role": output.role, "text": content, "images": list_images([output])})
    for k, file in enumerate(step.files):
        lines = list(split_diff(file.diff))
        hidden = max(0, len(lines) - _MAX_DIFF_LINES)
        link = f"{address}/file-{k}.txt"
        files.append({"change": file, "lines": lines[:_MAX_DIFF_LINES], "hidden": hidden, "link": link})
    return {
        "step": step,
        "address": address,
        "parts": [("code", text[:length])] if is_action else list(split_message(text[:length])),
        "missing": max(0, len(text) - length),
        "title": shorten(first or ("no readable action" if message is not None else "ended from outside"), _TITLE),
        "calls": [
            (call.name, [(n, cut_text(t, length, f"{address}/call-{k}.txt")) for n, t in _read_arguments(call)])
            for k, call in enumerate(message.tool_calls if message else ())
        ],
        "outputs": outputs,
        "files": files,
        "validated": [float(score) for score in step.info.get("validated") or ()],
        "note": step.note or str(step.info.get("format_error") or ""),
    }


def _read_arguments(call: ToolCall) -> list[tuple[str, str]]:
    """The arguments of a tool call by name, or as they were written if they are not a JSON object."""
    try:
        values = json.loads(call.arguments, strict=False)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        return [("", call.arguments)]
    return [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in values.items()]


def _search(store: Store, episode: int, text: str) -> list[int]:
    """The positions of the steps with a text, without the first messages."""
    return [
        position
        for position in search_steps(store, episode, text)
        if position and any(text.lower() in part.lower() for part in _list_texts(_read(store, episode, position)))
    ]


def _list_texts(step: Step) -> Iterator[str]:
    """Yield the texts of a step that a search looks into."""
    for message in (*((step.message,) if step.message is not None else ()), *step.observation):
        yield read_message(message)
        for call in message.tool_calls:
            yield call.name
            yield from (argument for _, argument in _read_arguments(call))
    yield step.action
    for file in step.files:
        yield f"{file.path}\n{file.diff}"
