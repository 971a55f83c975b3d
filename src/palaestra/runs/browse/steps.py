"""The steps of a conversation at the turn scale."""

from __future__ import annotations

from typing import Any

from palaestra.runs.files import to_json
from palaestra.runs.store import Store, escape_like


def list_positions(store: Store, episode: int) -> list[int]:
    """Return the positions of the stored steps of an episode."""
    return [
        position
        for (position,) in store.select("SELECT position FROM steps WHERE episode = ? ORDER BY position", (episode,))
    ]


def read_step(store: Store, kind: type[Any], episode: int, position: int) -> Any:
    """Return one step as a record of `kind`; `None` if it is not stored."""
    rows = store.select("SELECT data FROM steps WHERE episode = ? AND position = ?", (episode, position))
    return store.parse(kind, rows[0][0]) if rows else None


def search_steps(store: Store, episode: int, text: str) -> list[int]:
    """Return the positions of the steps that may contain a text in a message, an action or a diff.

    The text of a tool call is JSON inside of JSON, so that it is looked for in both forms. A match may be in another field.
    """
    once = to_json(text)[1:-1]
    forms = {once, to_json(once)[1:-1]}
    like = " OR ".join("data LIKE ? ESCAPE '\\'" for _ in forms)
    query = f"SELECT position FROM steps WHERE episode = ? AND ({like}) ORDER BY position"
    rows = store.select(query, (episode, *(f"%{escape_like(form)}%" for form in forms)))
    return [position for (position,) in rows]


def read_light_steps(store: Store, kind: type[Any], episode: int) -> list[Any]:
    """Return the steps of an episode as records of `kind`, with empty messages, and without outputs, states and files."""
    removed = ", ".join(f"'$.{name}'" for name in ("action", "observation", "state", "agent", "files"))
    empty = "CASE json_type(data, '$.message') WHEN 'object' THEN '{\"role\": \"assistant\", \"content\": \"\"}' ELSE 'null' END"
    query = f"SELECT json_set(json_remove(data, {removed}), '$.message', json({empty})) FROM steps WHERE episode = ? ORDER BY position"
    return [store.parse(kind, data) for (data,) in store.select(query, (episode,))]
