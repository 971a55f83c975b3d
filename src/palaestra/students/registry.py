"""Make a student by its kind: how it learns.

A new student is a class with the interface of `palaestra.envs.lesson.student.Student`, usually a subclass of `ModelStudent`,
and a registration: in `palaestra/students/__init__.py`, with `STUDENTS.register` in a plugin, or through the entry point group
`palaestra.students`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import SettingsError, suggest
from palaestra.envs.lesson.student import STUDENTS

if TYPE_CHECKING:
    # Types only: listing the students must not load torch.
    from palaestra.envs.lesson.student import Student
    from palaestra.models.registry import LoadedModel
    from palaestra.students.supervised import Supervision


def check_student(kind: str, options: Mapping[str, object]) -> None:
    """Check a kind of student and its options.

    Raises:
        UnknownNameError: no student of that kind is registered.
        SettingsError: it has no such option, or the value is invalid.
    """
    from pydantic import TypeAdapter, ValidationError

    settings = getattr(STUDENTS.get(kind), "Settings", None)
    names = [field.name for field in fields(settings)] if settings is not None else []
    for option in options:
        if option not in names:
            known = suggest(option, names) if names else "it takes none"
            raise SettingsError(f"student '{kind}' has no option '{option}'; {known}")
    if settings is not None:
        try:
            TypeAdapter(settings).validate_json(json.dumps(dict(options)), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            raise SettingsError(f"option '{first['loc'][0]}' of student '{kind}': {first['msg'].lower()}") from error


def make_student(kind: str, model: LoadedModel, supervision: Supervision | None = None, **arguments: Any) -> Student:
    """Make a student of the kind that is registered under `kind`.

    Arguments:
        supervision: which weights are trained, and how; by default `supervision_for` the model.
        arguments: those of `ModelStudent`, and fields of the kind's `Settings`. A student does not get arguments of
            `ModelStudent` that it does not take.

    Raises:
        UnknownNameError: no student of that kind is registered.
        SettingsError: it has no such option, or a required argument is missing.
    """
    from palaestra.students.student import ModelStudent
    from palaestra.students.supervised import supervision_for

    student_class = STUDENTS.get(kind)
    shared = inspect.signature(ModelStudent).parameters
    options = {name: value for name, value in arguments.items() if name not in shared}
    check_student(kind, options)
    settings = getattr(student_class, "Settings", None)
    arguments["settings"] = settings(**options) if settings is not None else None
    parameters = inspect.signature(student_class).parameters
    student: Student = student_class(
        model,
        supervision if supervision is not None else supervision_for(model.weights),
        **{name: value for name, value in arguments.items() if name in shared and name in parameters},
    )
    return student
