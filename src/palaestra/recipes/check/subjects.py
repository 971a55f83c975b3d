"""What is checked: an environment, a task or a research task, and the parts of it that checks examine."""

from __future__ import annotations

import copy
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces

from palaestra.core.errors import SettingsError
from palaestra.core.records import Json
from palaestra.core.registry import find_reference, is_reference, is_temporary
from palaestra.core.spaces import UnicodeText
from palaestra.envs.base import GymEnv
from palaestra.envs.factory import describe_env, get_spec
from palaestra.envs.token.base import TokenEnv, TokenVectorEnv
from palaestra.envs.turn.base import TurnEnv
from palaestra.research.tasks.task import ResearchTask, is_task_folder, load_task, task_names
from palaestra.tasks.base import TASKS, Task, make_task

_MIN_STEPS, _MAX_STEPS = 8, 120
_EPISODE_SECONDS = 0.2


@dataclass(frozen=True)
class EnvPart:
    """A Gymnasium environment that can be made again and again.

    Arguments:
        make: returns a new instance.
        env_id: the id and the options that make it in another process; empty if that is not possible.
    """

    make: Callable[[], GymEnv]
    env_id: str = ""
    options: Json = field(default_factory=dict)
    seed: int = 0

    @contextmanager
    def open(self) -> Iterator[GymEnv]:
        """Make an instance and close it afterwards."""
        env = self.make()
        try:
            yield env
        finally:
            env.close()

    @cached_property
    def steps(self) -> int:
        """The steps of an episode that a check plays: fewer if they are slow."""
        with self.open() as env:
            env.reset(seed=self.seed)
            action = env.action_space.sample()
            start = time.perf_counter()
            with suppress(Exception):  # A check says what is wrong.
                env.step(action)
            seconds = time.perf_counter() - start
        least = _MIN_STEPS if seconds < 0.5 else 2
        return int(min(_MAX_STEPS, max(least, _EPISODE_SECONDS / max(seconds, 1e-6))))

    def remake(self, **arguments: Any) -> GymEnv:
        """Make an instance with further arguments."""
        return _make(self.env_id, {**self.options, **arguments})

    @cached_property
    def takes_text(self) -> bool:
        """Whether an action is a text."""
        with self.open() as env:
            return isinstance(env.unwrapped, TurnEnv) or isinstance(env.action_space, spaces.Text | UnicodeText)


@dataclass
class Subject:
    """What the user asked to check.

    Arguments:
        name: as the user named it.
        command: the command that checks it again.
        task: the task; also that of an environment whose `task` is one.
        research: loads the research task.
    """

    name: str
    command: str
    env: EnvPart | None = None
    task: Task | None = None
    research: Callable[[], ResearchTask] | None = None
    oracle: Callable[..., Any] | None = None
    seed: int = 0


def make_subject(
    source: object,
    *,
    is_task: bool = False,
    options: Mapping[str, Any] | None = None,
    oracle: Callable[..., Any] | None = None,
    seed: int = 0,
) -> Subject:
    """Find what is to be checked.

    Arguments:
        source: an id of an environment, a reference `file.py:Class`, a research task or its folder, an environment, or a
            task with `is_task`; in Python also a class, an instance, a `Task` or a `ResearchTask`.
        options: arguments of the environment or the task.
        oracle: a function that returns the right answer: of a problem, or of an environment after its reset.

    Raises:
        PalaestraError: there is no such subject, or it cannot be made.
    """
    options = dict(options or {})
    if isinstance(source, ResearchTask):
        command = f"palaestra check {shlex.quote(str(source.folder))}"
        return Subject(source.name, command, research=lambda: source, seed=seed)
    if _is_task(source):
        name = getattr(source, "name", type(source).__name__)
        return Subject(str(name), f"palaestra.check({name})", task=source, oracle=oracle, seed=seed)  # type: ignore[arg-type]
    if isinstance(source, str | Path):
        name = str(source)
        command = _write_command(f"--task {shlex.quote(name)}" if is_task else shlex.quote(name), options)
        if not is_task and (isinstance(source, Path) or name in task_names() or is_task_folder(Path(name))):
            return Subject(name, command, research=lambda: load_task(source, **options), seed=seed)
        if is_task or _names_task(name):
            return Subject(name, command, task=make_task(name, **options), oracle=oracle, seed=seed)
        _check_spec(name)
        env = EnvPart(lambda: _make(name, options), name, options, seed)
        return Subject(name, command, env, oracle=oracle, seed=seed)
    env_id, more = describe_env(source)
    _check_spec(env_id)
    described = {**more, **options}
    if is_temporary(env_id):
        name, command = env_id.rpartition(":")[2], f"palaestra.check({env_id.rpartition(':')[2]})"
    else:
        name, command = getattr(source, "__name__", env_id), _write_command(shlex.quote(env_id), described)
    env = EnvPart(lambda: _make(env_id, described), "" if is_temporary(env_id) else env_id, described, seed)
    return Subject(name, command, env, oracle=oracle, seed=seed)


def _write_command(subject: str, options: Json) -> str:
    written = (f" --option {shlex.quote(f'{name}={value}')}" for name, value in options.items())
    return f"palaestra check {subject}{''.join(written)}"


def _is_task(source: object) -> bool:
    """Whether an object, not a class, implements the methods of `Task`."""
    return not isinstance(source, type) and all(
        callable(getattr(source, name, None)) for name in ("skills", "problems", "score")
    )


def _names_task(name: str) -> bool:
    """Whether a name is that of a task, or a reference to a class of tasks."""
    if TASKS.has(name):
        return True
    if not is_reference(name):
        return False
    try:
        kind = find_reference(name)
    except (Exception, SystemExit):  # The search for an environment reports it.
        return False
    return (
        isinstance(kind, type)
        and not issubclass(kind, gymnasium.Env)
        and all(callable(getattr(kind, method, None)) for method in ("skills", "problems", "score"))
    )


def _check_spec(env_id: str) -> None:
    """Raise unless an id has a single environment, or is a class of token environments."""
    spec = get_spec(env_id)
    if spec.entry_point is None and not _is_token_class(spec.vector_entry_point):
        raise SettingsError(f"{env_id} has a vector environment only; expected one with a single environment")


def _is_token_class(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, TokenVectorEnv)


def _make(env_id: str, options: Json) -> GymEnv:
    """Make a single environment as `gymnasium.make` does, without its checks, which this package replaces."""
    spec = get_spec(env_id)
    if spec.entry_point is None and _is_token_class(spec.vector_entry_point):
        kind: type[TokenEnv] = type(env_id.rpartition(":")[2], (TokenEnv,), {"vector_class": spec.vector_entry_point})
        return kind(**options)
    return gymnasium.make(spec, disable_env_checker=True, **copy.deepcopy(options))
