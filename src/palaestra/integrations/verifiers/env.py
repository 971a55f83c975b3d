"""`palaestra/Verifiers-v0`: the environments of the package verifiers as turn environments."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from palaestra.core.errors import EnvError
from palaestra.core.records import Message, Split
from palaestra.core.settings import check_integer
from palaestra.envs.base import Options
from palaestra.envs.turn.foreign import ForeignEnv, ForeignStep, ForeignVectorEnv
from palaestra.integrations import load_library
from palaestra.tasks.base import get_split

if TYPE_CHECKING:
    import verifiers.v1 as vf

    from palaestra.integrations.verifiers.runner import EpisodeRunner

_HARNESS = "palaestra_chat"
"""The name under which verifiers finds our harness."""


class VerifiersEnv(ForeignEnv["EpisodeRunner"]):
    """An environment of verifiers (version 1 of its interface). The reward of an episode comes with its last turn.

    An episode plays one task of the environment's taskset: with `n` tasks in the split, the seed `s` plays task `s % n`. A
    message of the agent answers one model call. The toolsets of the tasks are `tools`, and all tasks must have the same; `info["tool_calls"]` and
    `info["tool_errors"]` count the calls and those that were answered with an error. Tasks that need a container are
    failures. If an environment has several agents, give all but one of them a `client` in `env_kwargs`.

    Arguments:
        env_id: the installed package of the environment, as for `vf-eval`.
        split: the tasks to use, by the hash of their keys; the splits are disjoint.
        tasks: the maximum number of tasks that are read, before they are split.
        arguments: arguments of `ForeignEnv`. `env_kwargs` are fields of the environment's configuration, for example
            `{"taskset": {"difficulty": 2}}`.
    """

    held_out: ClassVar[Options] = {"split": "test"}
    keeps_generator = False

    def __init__(self, env_id: str, *, split: str = "train", tasks: int = 500, **arguments: Any) -> None:
        if split not in list(Split):
            raise EnvError(f"split must be one of {', '.join(Split)}; got {split!r}")
        self.split, self.max_tasks = Split(split), check_integer("tasks", tasks, minimum=1)
        self._tasks: list[vf.Task] = []
        self._role = ""
        self._messages_seen: Sequence[Message] = ()
        super().__init__(env_id, **arguments)

    def make(self) -> EpisodeRunner:
        package = _load_verifiers()
        from palaestra.integrations.verifiers.runner import EpisodeRunner

        env = package.load_environment(self._configure(package))
        tasks = islice(iter(env.taskset), self.max_tasks)
        self._tasks = [task for task in tasks if get_split(f"verifiers|{task.key}") is self.split]
        if not self._tasks:
            raise EnvError(f"{self.env_id} has no {self.split} tasks among its first {self.max_tasks}")
        runner = EpisodeRunner(env)
        if self._tasks[0].toolsets(self._tasks[0].config) or env.taskset.toolsets(env.taskset.config):
            _start_episode(runner, self._tasks[0])  # The first model call names the tools.
            self.tools = runner.tools
        return runner

    def start(self, env: EpisodeRunner, seed: int | None, options: Options) -> str:
        if options:
            raise EnvError(f"{self.env_id} takes no options of reset; got {dict(options)}")
        assert seed is not None
        event = _start_episode(env, self._tasks[seed % len(self._tasks)])
        if list(env.tools) != list(self.tools):
            raise EnvError(f"the tasks of {self.env_id} have different tools; expected the same in all of them")
        self._messages_seen = event
        return str(event[-1].text)

    def opening(self, options: Options) -> Sequence[Message]:
        messages = super().opening(options)
        return [*self._messages_seen[:-1], *messages]

    def play(self, env: EpisodeRunner, text: str) -> ForeignStep:
        return self.play_message(env, Message("assistant", text))

    def play_message(self, env: EpisodeRunner, message: Message) -> ForeignStep:
        event = env.answer(message)
        if isinstance(event, Sequence):
            known = len(self._messages_seen)
            if event[:known] != self._messages_seen or len(event) <= known + 1:
                raise EnvError(f"{self.env_id} changes earlier messages of its conversation; expected it to grow")
            self._messages_seen = event
            if message.tool_calls:
                return _read_answers(event[known + 1 :])
            return ForeignStep("\n".join(message.text for message in event[known + 1 :]))
        if not event.ok:
            raise RuntimeError(_describe_errors(event))
        traces = [trace for trace in event.traces if len(event.traces) == 1 or trace.agent.name == self._role]
        reward = sum(trace.reward for trace in traces)
        return ForeignStep("", float(reward), terminated=True)

    def _configure(self, package: ModuleType) -> vf.EnvConfig:
        """The configuration of the environment, with our harness for the agent that the policy plays."""
        data = {**self.env_kwargs, "taskset": {**self.env_kwargs.get("taskset", {}), "id": self.env_id}}
        kind = package.env_config_type(self.env_id, data.get("id", ""))
        roles = [name for name, field in kind.model_fields.items() if isinstance(field.default, package.AgentConfig)]
        free = [role for role in roles if not data.get(role, {}).get("client")]
        if len(free) != 1:
            raise EnvError(f"{self.env_id} has the agents {', '.join(roles)}; give all but one a client in env_kwargs")
        self._role = free[0]
        own = {"harness": {"id": _HARNESS}, "runtime": {"type": "subprocess"}}
        return package.resolve_env_config({**data, self._role: {**data.get(self._role, {}), **own}})


class VerifiersVectorEnv(ForeignVectorEnv):
    """`VerifiersEnv` in slots. Takes the arguments of both."""

    kind = VerifiersEnv


def _load_verifiers() -> ModuleType:
    """Import verifiers and make our harness known to it. Raises `MissingExtraError` if it is not installed."""
    package = load_library("verifiers.v1", "verifiers", "verifiers", "an environment of verifiers")
    from palaestra.integrations.verifiers import harness

    sys.modules.setdefault(_HARNESS, harness)  # verifiers finds harnesses by the name of a top-level module.
    return package


def _start_episode(runner: EpisodeRunner, task: vf.Task) -> Sequence[Message]:
    """Start an episode and return the messages of its first model call."""
    event = runner.start(task)
    if not isinstance(event, Sequence):
        raise RuntimeError(f"the episode ended before the first message: {_describe_errors(event)}")
    return event


def _read_answers(messages: Sequence[Message]) -> ForeignStep:
    """The answers to the tool calls of a message."""
    answers = [message for message in messages if message.role == "tool"]
    errors = sum(message.text.startswith("error: ") for message in answers)
    info = {"tool_calls": len(answers), "tool_errors": errors}
    return ForeignStep("", is_invalid=errors > 0, info=info, messages=messages)


def _describe_errors(episode: vf.Episode) -> str:
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    return "; ".join(f"{error.type}: {error.message}" for error in errors) or "no error is known"
