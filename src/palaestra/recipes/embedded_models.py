"""The embedded model that fits a task or an environment, and the check that a model can read a task."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from palaestra.core.errors import PalaestraError, SettingsError
from palaestra.core.records import Example, Split, Values
from palaestra.core.seeding import Seeds
from palaestra.engines.base import strip_scheme
from palaestra.envs.base import resolve_task, select_problems
from palaestra.models import registry as models
from palaestra.models.embedded import EMBEDDED
from palaestra.tasks.base import GenerativeTask, Task, get_hooks

_DRAWN, _MEASURED = 600, 16
"""Number of train examples that are drawn, and of the longest that are tokenized."""
_OPENINGS = {"palaestra/Research-v0": 1500, "palaestra/Writer-v0": 400}
"""Environments of long prompts, which the model for code fits, and the tokens that the first messages have at least."""


def choose_model(task: Task, skills: Sequence[str] = ()) -> str:
    """The embedded model for a task: the one that the task names if it is shipped, otherwise the first that can read the task."""
    examples = _draw_examples(task, skills)
    preferred = get_hooks(task).student
    shipped = sorted((row.name for row in EMBEDDED.values() if row.is_shipped), key=lambda name: name != preferred)
    return next((name for name in shipped if not _find_obstacle(name, examples)), shipped[0])


def choose_model_for_env(env: str, options: Values) -> str:
    """The embedded model for an environment."""
    if env in _OPENINGS and EMBEDDED["nano-coder"].is_shipped:
        return "nano-coder"
    task, skills = _find_task(env, options)
    return "nano" if task is None else choose_model(task, skills)


def check_reads_env(name: str, env: str, options: Values) -> None:
    """Raise if a model cannot read the problems of an environment, as `check_reads_task` does."""
    row, opening = EMBEDDED.get(strip_scheme(name)), _OPENINGS.get(env, 0)
    if row is not None and row.context < opening:
        able = "nano-coder" if EMBEDDED["nano-coder"].is_shipped else "smollm2"
        obstacle = f"it reads {row.context} tokens, and the first messages have more than {opening}"
        raise SettingsError(f"{name} cannot play {env}: {obstacle}; use {able}")
    task, skills = _find_task(env, options)
    if task is not None:
        check_reads_task(name, task, skills)


def _find_task(env: str, options: Values) -> tuple[Task | None, Sequence[str]]:
    """The task and the skills of an environment that is given a task."""
    if not options.get("task") or not env.startswith(("palaestra/CoT", "CoTEnv", "palaestra/Task")):
        return None, ()
    skills = options.get("skills") or ()
    task = resolve_task(options["task"], options.get("task_kwargs"))
    return task, [skills] if isinstance(skills, str) else list(skills)


def check_reads_task(name: str, task: Task, skills: Sequence[str] = ()) -> None:
    """Raise if a model cannot read the train examples of a task. Loads a tokenizer, but no weights.

    Raises:
        SettingsError: an example is longer than the model's context. The message names a model that can read it.
    """
    examples = _draw_examples(task, skills)
    if obstacle := _find_obstacle(strip_scheme(name), examples):
        able = [row.name for row in EMBEDDED.values() if row.is_shipped and not _find_obstacle(row.name, examples)]
        raise SettingsError(f"{name} cannot learn {task.name}: {obstacle}; use {(able or ['smollm2'])[0]}")


def _draw_examples(task: Task, skills: Sequence[str]) -> list[Example]:
    """The longest of many train examples; for a task that generates none, the median of its train problems.

    One example stands for all pictures, which take long to render.
    """
    examples: list[Example] = []
    if not isinstance(task, GenerativeTask):
        with suppress(PalaestraError):  # There may be no train split.
            problems = select_problems(task, Split.TRAIN, None, skills, 0)
            examples = sorted(
                (Example(problem.messages, problem.reference) for problem in problems), key=_count_characters
            )
        return examples[len(examples) // 2 :][:1]
    names, generator = list(skills or task.skills()), Seeds(0).derive("lengths").generator()
    for skill in names:
        with suppress(PalaestraError):  # A published skill may have no train problems.
            first = task.write_examples(skill, "", 1, generator)
            if any(message.has_image for example in first for message in example.messages):
                return first
            examples += first + task.write_examples(skill, "", _DRAWN // len(names), generator)
    return sorted(examples, key=_count_characters)[-_MEASURED:]


def _count_characters(example: Example) -> int:
    return sum(len(message.text) for message in example.messages) + len(example.response)


def _find_obstacle(name: str, examples: Sequence[Example]) -> str:
    """Why a model cannot read examples; empty if it can, or if its files are not on this machine."""
    from transformers import AutoConfig, AutoTokenizer

    from palaestra.chat.rendering import prompt_ids
    from palaestra.core.process import quiet_libraries
    from palaestra.models.families import context_length

    if not examples or name == "smollm2":
        return ""
    folder = Path(models.locate(name))
    if not (folder / "config.json").is_file():
        return ""
    if any(message.has_image for example in examples for message in example.messages):
        return "" if models.reads_images(name) else "it reads text only, and the problems have images"
    with quiet_libraries():
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        context = context_length(AutoConfig.from_pretrained(folder, trust_remote_code=False))
    tokenizer.model_max_length = 1 << 30  # No warning about long examples.
    longest = max(
        len(prompt_ids(tokenizer, example.messages))
        + len(tokenizer.encode(example.response, add_special_tokens=False))
        + 1
        for example in examples
    )
    return f"it reads {context} tokens, and an example has {longest}" if 0 < context < longest else ""
