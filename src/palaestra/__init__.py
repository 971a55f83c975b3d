"""Palaestra: language models learn inside Gymnasium environments, at three time-scales.

Importing this registers the environments with Gymnasium and loads neither torch nor transformers.
What is named below is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import palaestra.envs  # noqa: F401  (registers the environments)
from palaestra.version import __version__

if TYPE_CHECKING:
    from palaestra.envs.lesson import LessonEnv
    from palaestra.recipes.evaluate import EvaluateSettings, evaluate
    from palaestra.recipes.pretrain import PretrainSettings, pretrain
    from palaestra.recipes.teach import TeachSettings, teach
    from palaestra.tasks.base import make_task
    from palaestra.teachers.base import make_teacher

__all__ = [
    "EvaluateSettings",
    "LessonEnv",
    "PretrainSettings",
    "TeachSettings",
    "__version__",
    "evaluate",
    "make_task",
    "make_teacher",
    "pretrain",
    "teach",
]

_HOMES = {
    "EvaluateSettings": "palaestra.recipes.evaluate",
    "LessonEnv": "palaestra.envs.lesson",
    "PretrainSettings": "palaestra.recipes.pretrain",
    "TeachSettings": "palaestra.recipes.teach",
    "evaluate": "palaestra.recipes.evaluate",
    "make_task": "palaestra.tasks.base",
    "make_teacher": "palaestra.teachers.base",
    "pretrain": "palaestra.recipes.pretrain",
    "teach": "palaestra.recipes.teach",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'palaestra' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
