"""`palaestra data`: a first look at a user's data, before anything is trained on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from palaestra.cli.options import document
from palaestra.cli.terminal import quiet, say
from palaestra.core.errors import SettingsError
from palaestra.core.records import Split

SHOWN = 5
"""Examples that are shown."""
MAX_SHOWN = 600
"""Characters of an example that are shown."""


@document
def data(
    path: Annotated[str, typer.Argument(metavar="FILE|FOLDER|hf:NAME")],
    task_option: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE")] = None,
    model: str = "nano",
) -> None:
    """Show what a file of your own will ask, and how answers will be scored.

    Arguments:
        path: The data, as for --task.
        task_option: An option of the task, several times: question=COLUMN, scorer=number, ...
        model: The model whose tokens are counted.
    """
    from palaestra.models import registry as models
    from palaestra.recipes.settings import parse_options
    from palaestra.tasks.base import make_task
    from palaestra.tasks.data import DataTask

    quiet()
    models.check(model)
    task = make_task(path, **parse_options(task_option or (), "task_kwargs"))
    if not isinstance(task, DataTask):
        raise SettingsError(f"expected a file, a folder or hf:NAME; got the task '{path}'; see `palaestra list skills`")
    items = [(split, item) for split in Split for item in task.items[split]]
    tokenizer = models.load(model).tokenizer
    lengths = {
        f"{kind} tokens": [len(tokenizer(text)["input_ids"]) for text in texts]
        for kind, texts in (
            ("question", [item.row.text for _, item in items]),
            ("response", [item.row.response for _, item in items if item.row.response]),
        )
    }
    groups = Counter(item.content for _, item in items)
    splits = Counter(split for split, _ in items)
    skills = Counter(item.row.skill for _, item in items)
    rows = [
        ("rows", f"{len(items)} ({', '.join(f'{splits[split]} {split}' for split in Split)})"),
        ("columns", ", ".join(f"{kind}: {name}" for kind, name in task.columns.items())),
        ("scorer", task.scorer_name),
        ("skills", ", ".join(f"{name} {count}" for name, count in skills.most_common(12))),
        *((name, _describe(values)) for name, values in lengths.items() if values),
        ("near-duplicates", f"{len(items) - len(groups)} rows; each is in the split of its like"),
    ]
    for name, value in rows:
        say(f"{name:<18}{value}")
    for split, item in sorted(items, key=lambda pair: pair[1].content)[:SHOWN]:
        answer = item.row.answer or f"tests: {item.row.tests}"
        say(f"\n{item.row.where} ({split}, {item.row.skill})")
        for message in item.row.messages:
            say(f"{message.role}: {message.text[:MAX_SHOWN]}")
        say(f"expected: {answer[:MAX_SHOWN]}")


def _describe(values: Sequence[int]) -> str:
    ordered = sorted(values)
    return f"median {ordered[len(ordered) // 2]}, 95 % at most {ordered[int(0.95 * (len(ordered) - 1))]}, maximum {ordered[-1]}"
