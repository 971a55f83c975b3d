"""The parts that pages share: skills before and after, samples, costs, settings and provenance.

A part is plain data for the templates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from palaestra.core.records import Attempt, Failure, ImagePart, Json, Message, Values
from palaestra.core.statistics import measure_gain, report_on
from palaestra.recipes.settings import list_settings
from palaestra.report.formatting import short_path
from palaestra.report.svg import rate_bar
from palaestra.runs.provenance import describe_cost, read_provenance
from palaestra.runs.run import Run

SHOWN = 9
"""Maximum samples of one kind."""
LONGEST = 4000
"""Maximum characters of one text."""
LARGEST = 400_000
"""Maximum characters of an image URL; a larger image would make the page slow to open."""

T = TypeVar("T")


# Skills before and after


def make_skill_row(name: str, before: Sequence[Attempt], after: Sequence[Attempt], examples: int = 0) -> Json:
    """Compare the attempts before and after, with the examples that were taught."""
    first = report_on(before, name) if before else None
    second = report_on(after, name) if after else None
    gain = measure_gain(before, after) if before and after else None
    picture = rate_bar(first, second)
    return {"name": name, "before": first, "after": second, "gain": gain, "examples": examples, "picture": picture}


def make_skill_rows(
    skills: Iterable[str],
    before: Sequence[Attempt],
    after: Sequence[Attempt],
    examples: Callable[[str], int] = lambda skill: 0,
) -> list[Json]:
    """Make a row for each skill, the largest gain first."""
    rows = []
    for skill in skills if before else ():
        first, second = ([a for a in attempts if a.problem.skill == skill] for attempts in (before, after))
        rows.append(make_skill_row(skill, first, second, examples(skill)))
    return sorted(rows, key=lambda row: (-row["gain"].points if row["gain"] else 0.0, row["name"]))


# Samples


def compare_attempts(
    before: Sequence[Attempt],
    after: Sequence[Attempt],
    names: tuple[str, str] = ("Before", "After"),
    load: Callable[[int, Attempt], Attempt] = lambda side, attempt: attempt,
) -> list[Json]:
    """Sample the problems that became right, stayed wrong and became wrong, among those scored both times.

    Arguments:
        load: returns an attempt of a side, 0 or 1, with its texts; called for those that are shown.
    """
    first = {attempt.problem.id: attempt for attempt in before}
    pairs = [(first[attempt.problem.id], attempt) for attempt in after if attempt.problem.id in first]
    scored = [(b, a) for b, a in pairs if b.correct is not None and a.correct is not None]
    was, is_ = (name.lower() if names == ("Before", "After") else f"by {name}" for name in names)
    groups = []
    for title, explanation, outcome in (
        ("Now right", f"wrong {was}, right {is_}", (False, True)),
        ("Still wrong", f"wrong {was} and {is_}", (False, False)),
        ("Lost", f"right {was}, wrong {is_}", (True, False)),
    ):
        chosen = [pair for pair in scored if (pair[0].correct, pair[1].correct) == outcome]
        groups.append(_make_group(title, explanation, chosen, len(scored), names, load))
    return groups


def right_and_wrong(attempts: Sequence[Attempt]) -> list[Json]:
    """Sample wrong, right and failed attempts; the last only if there are any."""
    groups = []
    for title, correct in (("Wrong", False), ("Right", True), ("Failed", None)):
        chosen = [(attempt,) for attempt in attempts if attempt.correct is correct]
        if chosen or correct is not None:
            explanation = "without a score; not part of any accuracy" if correct is None else ""
            groups.append(_make_group(title, explanation, chosen, len(attempts), ("Response",)))
    return groups


def _make_group(
    title: str,
    explanation: str,
    chosen: Sequence[Sequence[Attempt]],
    total: int,
    headings: Sequence[str],
    load: Callable[[int, Attempt], Attempt] = lambda side, attempt: attempt,
) -> Json:
    shown = spread(chosen, lambda attempts: attempts[0].problem.skill)
    samples = [_make_sample([load(side, a) for side, a in enumerate(attempts)], headings) for attempts in shown]
    return {"title": title, "explanation": explanation, "count": len(chosen), "total": total, "samples": samples}


def spread(items: Sequence[T], kind: Callable[[T], str], most: int = SHOWN) -> list[T]:
    """Choose at most `most` items from as many kinds as possible, sorted by kind.

    Takes the first item of every kind, then the second, and so on. If there are more kinds than `most`, evenly spaced
    kinds are used.

    >>> spread(["a1", "a2", "b1", "c1"], lambda item: item[0], 3)
    ['a1', 'b1', 'c1']
    >>> spread(["a1", "b1", "c1", "d1"], lambda item: item[0], 2)
    ['a1', 'c1']
    """
    kinds: dict[str, list[T]] = {}
    for item in items:
        kinds.setdefault(kind(item), []).append(item)
    names = sorted(kinds)
    if len(names) > most:
        names = [names[k * len(names) // most] for k in range(most)]
    rows = range(max((len(kinds[name]) for name in names), default=0))
    taken = [kinds[name][row] for row in rows for name in names if row < len(kinds[name])]
    return sorted(taken[:most], key=kind)


def _make_sample(attempts: Sequence[Attempt], headings: Sequence[str]) -> Json:
    """One problem with the responses to it."""
    problem = attempts[0].problem
    responses = []
    for attempt, heading in zip(attempts, headings, strict=True):
        text = attempt.completion.text if attempt.completion else ""
        verdict = "right" if attempt.correct else "wrong"
        if isinstance(attempt.outcome, Failure):
            text, verdict = text or attempt.outcome.message, f"failed: {attempt.outcome.cause}"
        responses.append({"heading": heading, "text": truncate(text), "verdict": verdict})
    messages = [read_message(message) for message in problem.messages]
    if len(messages) > 1:
        messages = [f"{m.role}: {content}" for m, content in zip(problem.messages, messages, strict=True)]
    return {
        "skill": problem.skill,
        "subskill": problem.subskill,
        "question": truncate("\n\n".join(messages)),
        "reference": truncate(problem.reference),
        "responses": responses,
        "images": list_images(problem.messages),
    }


def read_message(message: Message) -> str:
    """The text of a message, with a word in place of each image."""
    if isinstance(message.content, str):
        return message.content
    return "".join("[image]" if isinstance(part, ImagePart) else part.text for part in message.content)


def list_images(messages: Iterable[Message]) -> list[str]:
    """List the images that are part of a conversation. A linked image would need a network."""
    parts = (part for m in messages if not isinstance(m.content, str) for part in m.content)
    urls = (part.url for part in parts if isinstance(part, ImagePart))
    return [url for url in urls if url.startswith("data:image/") and len(url) <= LARGEST]


def truncate(text: str, most: int = LONGEST) -> str:
    """Cut a text to `most` characters and state how many are missing."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most} more characters)"


# Costs, settings, provenance


def describe_learner(settings: Values) -> str:
    """The model that a run trains or asks: the language model, the policy with its size, or the agent.

    >>> describe_learner({"policy": "mlp", "model": "nano", "layers": 2, "width": 64})
    'mlp 2×64'
    """
    policy = settings.get("policy") or "lm"
    if policy != "lm":
        size = f" {settings['layers']}×{settings['width']}" if policy != "cnn" and "layers" in settings else ""
        return f"{policy}{size}"
    model = settings.get("student") or settings.get("model") or settings.get("agent") or ""
    return short_path(str(model).rstrip("/"))


def make_appendix(run: Run, kind: type[Any], unpriced_phases: tuple[str, ...] = ()) -> Json:
    """Collect the costs by phase, the settings and the provenance of a run.

    Arguments:
        kind: the dataclass of the run's settings.
        unpriced_phases: suffixes of the phases whose calls have no known price.
    """
    total = run.store.total()
    costs: list[Json] = [
        {"phase": phase, "total": cost, "unpriced": bool(cost.calls) and phase.endswith(unpriced_phases)}
        for phase, cost in run.store.costs().items()
    ]
    unpriced = int((run.summary or {}).get("unpriced_calls") or 0)
    calls = unpriced or sum(row["total"].calls for row in costs if row["unpriced"])
    return {
        "costs": costs,
        "total": total,
        "unpriced": unpriced,
        "money": describe_cost({"cost": total.money, "unpriced_calls": calls}),
        "settings": setting_rows(run.settings, kind),
        "provenance": read_provenance(run.folder),
    }


def setting_rows(settings: Values, kind: type[Any]) -> list[Json]:
    """List settings with their documentation from the fields of `kind`."""
    known = {name: (default, help_) for name, default, help_ in list_settings(kind)}
    rows = []
    # Hyperparameters are documented by the config of the algorithm; here each is a row.
    values = {**settings, **settings.get("hyperparameters", {})}
    values.pop("hyperparameters", None)
    for name, value in values.items():
        default, help_ = known.get(name, (None, ""))
        changed = name in known and value != (list(default) if isinstance(default, tuple) else default)
        text = "(empty)" if value == "" else str(value)
        if isinstance(value, list):
            text = ", ".join(str(part) for part in value) or "(none)"
        rows.append({"name": name, "value": text, "help": help_, "changed": changed})
    return rows
