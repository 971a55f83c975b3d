"""Which students there are, by how they learn.

A new one is a class with the methods of `palaestra.learn.student.Student`, most simply a `ModelStudent`, and a
registration: here, in `STUDENTS` of a program, or through the entry point group `palaestra.students`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import SettingsError, suggest
from palaestra.core.registry import Registry

if TYPE_CHECKING:
    # Only the types: a list of students is to load no torch.
    from palaestra.engines.models import LoadedModel
    from palaestra.learn.student import Scorer, Start, Student
    from palaestra.learn.supervised import Supervision

STUDENTS = Registry("student", "palaestra.students")
STUDENTS.register("supervised", "palaestra.learn.student:SupervisedStudent", "learns the responses word by word")
STUDENTS.register(
    "preference", "palaestra.learn.preference:PreferenceStudent", "prefers the responses to wrong ones of its own (DPO)"
)
STUDENTS.register(
    "practice", "palaestra.learn.practice:PractisingStudent", "tries the problems itself, rewarded by the scorer (GRPO)"
)


def check_student(kind: str, options: Mapping[str, Any]) -> None:
    """Raise for a way of learning that does not exist, an option that it does not have, or a value that it refuses.

    Raises:
        UnknownNameError: no student learns that way.
        SettingsError: it has no such option, or not with that value.
    """
    settings = getattr(STUDENTS.get(kind), "Settings", None)
    known = [field.name for field in fields(settings)] if settings is not None else []
    for option in options:
        if option not in known:
            raise SettingsError(
                f"student '{kind}' has no option '{option}'; {suggest(option, known) if known else 'it takes none'}"
            )
    try:
        if settings is not None:
            settings(**options)
    except TypeError as error:
        raise SettingsError(f"student '{kind}' has an option of the wrong type: {error}") from error


def make_student(
    kind: str,
    model: LoadedModel,
    supervision: Supervision | None = None,
    *,
    start: Start = "base",
    score: Scorer | None = None,
    environment: Callable[..., Any] | None = None,
    batch_size: int = 128,
    keep_every: float = 120.0,
    **options: Any,
) -> Student:
    """The student that learns in the way that is registered under `kind`.

    Arguments:
        supervision: what is trained, and how fast; by default what suits the model's size.
        start: `"base"` trains from the base on all data, `"last"` goes on from the last round with the new data.
        score: judges answers to the questions of examples; `"practice"` needs it, `"preference"` takes it to find
            the student's own wrong answers.
        environment: makes token environments, for example `palaestra.envs.token.TokenVectorEnv`; for `"practice"`.
        options: fields of the kind's `Settings`.

    Raises:
        UnknownNameError: no student learns that way.
        SettingsError: it has no such option, or lacks something.
    """
    from palaestra.learn.supervised import supervision_for

    made = STUDENTS.get(kind)
    check_student(kind, options)
    offered = {
        "settings": made.Settings(**options) if getattr(made, "Settings", None) is not None else None,
        "start": start,
        "score": score,
        "environment": environment,
        "batch_size": batch_size,
        "keep_every": keep_every,
    }
    taken = inspect.signature(made).parameters
    student: Student = made(
        model,
        supervision if supervision is not None else supervision_for(model.weights),
        **{name: value for name, value in offered.items() if name in taken},
    )
    return student
