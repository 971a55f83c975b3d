"""Turn environments around those of other packages: time limits, checked results, the caller's seeds."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from palaestra.core.errors import EnvError, RewardError
from palaestra.core.foreign import ForeignCallError, GlobalRandom, call_foreign
from palaestra.core.records import Example, Failure, FailureCause, Message
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_number
from palaestra.envs.base import Info, Options, ResetOptions
from palaestra.envs.turn.base import Conversation, Reply, TurnEnv, TurnStopReason
from palaestra.envs.turn.vector import TurnVectorEnv
from palaestra.envs.wrappers.slots import NonFiniteError, read_bootstrap

_MAX_TURNS = 100
_MAX_CALL_SECONDS = 60.0
_CHECKED_SEEDS = 3
"""Seeds that `_check_seed` compares."""

EnvT = TypeVar("EnvT")
"""The class of an environment in its package."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ForeignStep:
    """The result of one action in the environment of another package.

    Arguments:
        text: what the agent reads next.
        is_invalid: the text of the agent was no legal action.
        messages: what the agent reads next, instead of `text`; for example the answers of tools.
    """

    text: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    is_invalid: bool = False
    info: Options = field(default_factory=dict)
    messages: Sequence[Message] = ()


class ForeignEnv(TurnEnv, Generic[EnvT]):
    """Base class of the adapters. Subclasses make an environment, start its episodes and play its turns.

    An environment that raises or does not return in time ends its episode as a failure with the cause `environment`, and
    is made again. A reward or observation that is not finite is such a failure too. A result that breaks the
    environment's own interface raises an `EnvError`. An episode ends at `max_turns` at the latest. An action that is not
    legal is answered in the conversation; `info["invalid_actions"]` counts them.

    `reset(seed=s)` resets the other package's environment with the seed `s`, and its `options` are the options of that
    reset. A reset without a seed continues the environment's own generator, as in Gymnasium. An environment that has not
    had a seed yet, that was made again, or that keeps no generator gets a seed from `self.np_random`.

    Arguments:
        env_id: the name of the environment in its package.
        env_kwargs: arguments of the environment.
        prompt: the first message, instead of the environment's own instructions. It may contain `{observation}`.
        invalid_penalty: subtracted from the reward of a turn without a legal action.
        max_call_seconds: time limit of one call of the environment.
        verify_seed: in a vector environment, compare episodes with the same seed before the first one (`_check_seed`).
    """

    shares_random: bool = True
    """Whether the package draws from the global random generators."""
    keeps_generator: bool = True
    """Whether a reset without a seed continues the generator of the last seed."""
    sample_actions: Sequence[str | Message] = ("1", "2", "3", "0")
    """Actions that `_check_seed` plays."""

    def __init__(
        self,
        env_id: str,
        env_kwargs: Options | None = None,
        prompt: str = "",
        invalid_penalty: float = 0.0,
        *,
        max_turns: int = _MAX_TURNS,
        max_seconds: float = 0.0,
        max_call_seconds: float = _MAX_CALL_SECONDS,
        verify_seed: bool = True,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns, max_seconds=max_seconds, render_mode=render_mode)
        self.env_id, self.env_kwargs, self.prompt = env_id, dict(env_kwargs or {}), prompt
        self.invalid_penalty = check_number("invalid_penalty", invalid_penalty, minimum=0)
        self.max_call_seconds = check_number("max_call_seconds", max_call_seconds, minimum=0.001)
        self.verify_seed, self._random = verify_seed, GlobalRandom(0)
        self._env: EnvT | None = None
        self._seed: int | None = None
        self._is_seeded = False
        self._invalid_actions = 0
        try:
            self.bootstrap_truncated = read_bootstrap(self._get_env(), self.bootstrap_truncated)
        except ForeignCallError as error:
            raise EnvError(f"cannot make {self.env_id}: {error}") from error

    # Defined by subclasses

    @abstractmethod
    def make(self) -> EnvT:
        """Make the environment of the other package."""

    @abstractmethod
    def start(self, env: EnvT, seed: int | None, options: Options) -> str:
        """Start an episode. Returns its first text.

        Arguments:
            seed: the seed of the reset; `None` continues the environment's generator.
            options: the options of the reset.
        """

    @abstractmethod
    def play(self, env: EnvT, text: str) -> ForeignStep:
        """Play one turn with the agent's text."""

    def play_message(self, env: EnvT, message: Message) -> ForeignStep:
        """Play one turn with the agent's message. Overridden by environments with tools."""
        return self.play(env, message.text)

    # The contract of `TurnEnv`

    def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> tuple[Conversation, Info]:
        self._seed = seed
        return super().reset(seed=seed, options=options)

    def opening(self, options: Options) -> Sequence[Message]:
        seed = self._seed
        if seed is None and not (self._is_seeded and self.keeps_generator):
            seed = int(self.np_random.integers(2**31))
        if seed is not None:
            self._random = GlobalRandom(seed)
        self._invalid_actions = 0
        text = self._call("reset", self.start, self._get_env(), seed, options)
        self._is_seeded = True
        return [Message("user", self.prompt.replace("{observation}", text) if self.prompt else text)]

    def respond(self, message: Message) -> Reply:
        try:
            step = self._call("step", self.play_message, self._get_env(), message)
        except (ForeignCallError, NonFiniteError) as error:
            return Reply(failure=Failure(FailureCause.ENVIRONMENT, str(error)))
        self._invalid_actions += step.is_invalid
        stop = None
        if step.terminated:
            stop = TurnStopReason.SOLVED if step.reward > 0 else TurnStopReason.LOST
        elif step.truncated:
            stop = TurnStopReason.STEPS
        penalty = self.invalid_penalty if step.is_invalid else 0.0
        info = {**step.info, "invalid_actions": self._invalid_actions}
        messages = tuple(step.messages) or ((Message("user", step.text),) if step.text else ())
        return Reply(messages, step.reward - penalty, stop, info=info)

    def close(self) -> None:
        super().close()
        self._drop()

    def _get_env(self) -> EnvT:
        if self._env is None:
            self._env = self._call("the constructor", self.make)
        return self._env

    def _call(self, what: str, function: Callable[..., T], *arguments: object) -> T:
        """Call the other package. After an error its environment is made again."""
        try:
            with self._random.active() if self.shares_random else nullcontext():
                return call_foreign(f"{what} of {self.env_id}", function, *arguments, seconds=self.max_call_seconds)
        except Exception:
            self._drop()
            raise

    def _drop(self) -> None:
        env, self._env, self._is_seeded = self._env, None, False
        if env is not None:
            with suppress(Exception):  # Closing a broken environment may fail as well.
                call_foreign(f"close of {self.env_id}", self.release, env, seconds=self.max_call_seconds)

    def release(self, env: EnvT) -> None:
        """Close the environment of the other package."""
        if callable(close := getattr(env, "close", None)):
            close()


class ForeignVectorEnv(TurnVectorEnv):
    """Environments of another package in slots. Subclasses set `kind`.

    Raises:
        EnvError: the environments ignore their seed (see `_check_seed`), unless `verify_seed` is false.
    """

    kind: ClassVar[type[ForeignEnv[Any]]]

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        if arguments.get("verify_seed", True):
            own = ("group_size", "autoreset", "failures")
            _check_seed(partial(self.kind, **{name: value for name, value in arguments.items() if name not in own}))
        super().__init__(self.kind, num_envs, **arguments)


def _check_seed(make: Callable[[], ForeignEnv[Any]]) -> None:
    """Play a few turns with the same seeds in two new environments and compare the conversations.

    Failed episodes are not compared: each is a failure when it is played.

    Raises:
        EnvError: two episodes with the same seed and the same actions differ.
    """
    env = make()
    episodes = _play_seeds(env)  # Closes it before the next one is made: a server may allow a single session.
    for seed, pair in enumerate(zip(episodes, _play_seeds(make()), strict=True)):
        for turn, (first, second) in enumerate(zip(*pair, strict=False)):
            if first != second:
                raise EnvError(
                    f"{env.env_id} ignores its seed: two episodes with seed {seed} and the same actions differ "
                    f"after {turn} turns; set verify_seed to false to train on it anyway"
                )


def find_last(text: str, names: Sequence[str]) -> str | None:
    """The last of some names in a text, in any case; `None` if there is none."""
    by_lower = {name.lower(): name for name in names}
    pattern = "|".join(re.escape(name) for name in sorted(by_lower, key=len, reverse=True))
    matches = re.findall(rf"(?<![\w-])(?:{pattern})(?!\w)", text.lower())
    return by_lower[matches[-1]] if matches else None


def random_action_examples(env: TurnEnv, actions: Sequence[str], count: int, seed: int) -> list[Example]:
    """Play random actions and return the turns as examples, for a supervised warm-up.

    They teach a small model what an action looks like and nothing about which one is good.

    Arguments:
        actions: the texts to choose from.
        count: the number of examples.

    >>> from palaestra.envs.turn.text import TextEnv
    >>> examples = random_action_examples(TextEnv("FrozenLake-v1"), ("left", "right"), count=3, seed=0)
    >>> [example.response for example in examples]
    ['right', 'left', 'right']
    """
    generator, examples, over = Seeds(seed).derive("actions").generator(), list[Example](), True
    while len(examples) < count:
        if over:
            observation, _ = env.reset(seed=int(generator.integers(2**31)))
        action = actions[int(generator.integers(len(actions)))]
        examples.append(Example(observation.messages, action))
        observation, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
    return examples


def _play_seeds(env: ForeignEnv[Any]) -> list[list[object]]:
    """Play the checked seeds and close the environment. A failed episode has no turns."""
    episodes: list[list[object]] = []
    try:
        for seed in range(_CHECKED_SEEDS):
            try:
                episodes.append(_play(env, seed))
            except (ForeignCallError, RewardError):
                episodes.append([])
    finally:
        env.close()
    return episodes


def _play(env: ForeignEnv[Any], seed: int) -> list[object]:
    """Play an episode with the sample actions. Returns the results of every turn."""
    observation, _ = env.reset(seed=seed)
    turns: list[object] = [observation.messages]
    for action in env.sample_actions:
        observation, reward, terminated, truncated, info = env.step(action)
        if "failure" in info:
            raise ForeignCallError(info["failure"].message)
        turns.append((observation.messages, reward, terminated, truncated))
        if terminated or truncated:
            break
    return turns
