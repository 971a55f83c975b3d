"""verifiers: our environments in it, and its environments as turn environments. Runs in an environment with verifiers."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from chat_server import Reply, Server
from guess_player import ENV_ID, OPTIONS, SEEDS, play_ours, write_guess

from palaestra.core.errors import EnvError
from palaestra.core.records import FailureCause, Message, ToolCall
from palaestra.envs.factory import detect_kind, make_turn_env
from palaestra.envs.turn.base import TurnStopReason
from palaestra.integrations.export.base import export_environment

pytest.importorskip("verifiers")
import verifiers.v1 as vf

from palaestra.integrations.verifiers.env import VerifiersEnv
from palaestra.integrations.verifiers.runner import EpisodeRunner

pytestmark = [pytest.mark.backends, pytest.mark.filterwarnings("ignore")]  # verifiers warns of its own dependencies
CALLS = itertools.count()
"""Differs in every call, like the clock."""
CALCULATOR = "palaestra/Calculator-v0"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The exported game, installed with pip."""
    with install_package(tmp_path_factory.mktemp("export"), ENV_ID, OPTIONS):
        yield "guess-v0"


@pytest.fixture(scope="module")
def tool_package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The exported calculator with its tool, installed with pip."""
    with install_package(tmp_path_factory.mktemp("export"), CALCULATOR, {"tools": True}) as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # The tool server is another process.
        yield "calculator-v0"


@contextmanager
def install_package(root: Path, env_id: str, options: dict[str, Any]) -> Iterator[pytest.MonkeyPatch]:
    folder = export_environment(env_id, "verifiers", root / "package", options)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(root / "site"), str(folder)], check=True, timeout=120)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root / "site"))
        yield patch


def run_episode(runner: EpisodeRunner, task: Any) -> Any:
    """Play the scripted guesses of a task's seed. Returns the episode of verifiers."""
    event, turn = runner.start(task), 0
    while isinstance(event, list):
        event, turn = runner.answer(Message("assistant", write_guess(task.data.seed, turn))), turn + 1
    return event


def test_200_seeds_give_the_same_rewards_in_verifiers(package: str) -> None:
    env = vf.load_environment(vf.resolve_env_config({"taskset": {"id": package}}))
    tasks = list(env.taskset.take(len(SEEDS)))
    assert [task.data.seed for task in tasks] == list(SEEDS)
    runner = EpisodeRunner(env)
    try:
        episodes = [run_episode(runner, task) for task in tasks]
    finally:
        runner.close()
    assert [episode.ok for episode in episodes] == [True] * len(SEEDS)
    assert [episode.traces[0].reward for episode in episodes] == [play_ours(seed) for seed in SEEDS]


def test_the_command_of_verifiers_evaluates_the_package(package: str, tmp_path: Path) -> None:
    code = "from verifiers.v1.cli.eval.main import main; main()"
    with Server(lambda call, before: Reply("no number")) as server:
        options = {"--output-dir": str(tmp_path), "--model": "m", "--client.base-url": server.url, "-n": "2",
                   "--client.api-key-var": "NO_KEY", "--env.taskset.first-seed": "5"}  # fmt: skip
        arguments = [package, "--no-push", "--no-rich", *itertools.chain.from_iterable(options.items())]
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run([sys.executable, "-c", code, *arguments], env={**os.environ, **paths}, check=True, timeout=120)
    (records,) = tmp_path.rglob("traces.jsonl")
    episodes = [json.loads(line) for line in records.read_text().splitlines()]
    assert sorted(episode["task"]["data"]["seed"] for episode in episodes) == [5, 6]
    assert [episode["traces"][0]["rewards"]["reward"]["score"] for episode in episodes] == [-0.75, -0.75]


def test_a_failure_in_our_environment_is_an_error_in_verifiers(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from palaestra.envs.turn.games import GuessEnv

    env = vf.load_environment(vf.resolve_env_config({"taskset": {"id": package}}))
    (task,) = env.taskset.take(1)
    monkeypatch.setattr(GuessEnv, "respond", lambda self, message: 1 / 0)
    runner = EpisodeRunner(env)
    try:
        episode = run_episode(runner, task)
    finally:
        runner.close()
    assert not episode.ok
    assert "ZeroDivisionError" in episode.errors[0].message
    assert not episode.traces[0].rewards


def test_an_environment_of_verifiers_gives_its_rewards_in_ours(package: str) -> None:
    assert detect_kind(f"verifiers:{package}", {}) == "turn"
    env = VerifiersEnv(package, tasks=60)
    try:
        assert 30 < len(env._tasks) < 60
        rewards = {}
        for seed in range(50):
            observation, _ = env.reset(seed=seed)
            assert [m.text for m in observation.messages] == ["Guess a number from 1 to 6."]
            task_seed = env._task.data.seed
            assert task_seed == env._tasks[seed % len(env._tasks)].data.seed
            over, total, turn = False, 0.0, 0
            while not over:
                _, reward, over, _, info = env.step(write_guess(task_seed, turn))
                total, turn = total + float(reward), turn + 1
            rewards[task_seed] = total
            assert info["stop_reason"] in (TurnStopReason.SOLVED, TurnStopReason.LOST)
    finally:
        env.close()
    assert len(set(rewards.values())) > 2
    assert rewards == {seed: play_ours(seed) for seed in rewards}


def test_our_recipe_trains_on_it(package: str, tmp_path: Path) -> None:
    from palaestra import train

    run = train(
        env=f"verifiers:{package}",
        model="nano",
        max_tokens=8,
        iterations=1,
        episodes=8,
        evaluation=4,
        out=str(tmp_path / "run"),
    )
    assert run.summary["failures"] == {}
    assert run.summary["episodes"] == 8


def write_action(seed: int, messages: Sequence[Message]) -> Message:
    """The next message of a scripted player of the calculator: calls, wrong calls, and right or wrong answers."""
    turn = sum(message.role == "assistant" for message in messages)
    generator = np.random.default_rng([seed, turn])
    product = re.sub("[^0-9*]", "", messages[0].text)
    right, other = ("calculate", json.dumps({"expression": product})), ("calculate", '{"expression": "1+1"}')
    wrong = [("no_such_tool", "{}"), ("calculate", "{"), ("calculate", '{"number": 1}'), ("calculate", "[]")]
    kinds = [[right], [right], [other, right], [right, right], [wrong[generator.integers(4)], right], [], []]
    calls = kinds[generator.integers(len(kinds) if turn else 5)]
    if calls:
        return Message("assistant", "", tuple(ToolCall(*call, f"c{turn}{k}") for k, call in enumerate(calls)))
    return Message("assistant", f"Answer: {messages[-1].text}")


def play_calculator(seed: int) -> tuple[float, Sequence[Message]]:
    """Play an episode of the calculator in our own environment. Returns its reward and its messages."""
    env = gymnasium.make(CALCULATOR, tools=True)
    observation, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(write_action(seed, observation.messages))
        total, over = total + float(reward), terminated or truncated
    return total, observation.messages


def test_tool_calls_give_the_same_rewards_in_verifiers(tool_package: str) -> None:
    env = vf.load_environment(vf.resolve_env_config({"taskset": {"id": tool_package}}))
    runner, rewards, ends = EpisodeRunner(env), [], set()
    try:
        for task in env.taskset.take(len(SEEDS)):
            event: Any = runner.start(task)
            reward, expected = play_calculator(task.data.seed)
            while isinstance(event, list):
                for message, ours in zip(event, expected, strict=False):
                    if message.text.startswith("error: "):  # The harness answers calls that no server can execute.
                        assert ours.text.startswith("error: ")
                    else:
                        assert message == ours
                event = runner.answer(write_action(task.data.seed, event))
            assert event.ok
            rewards.append((event.traces[0].reward, reward))
            ends.add(event.traces[0].stop_condition)
    finally:
        runner.close()
    assert [theirs for theirs, _ in rewards] == [ours for _, ours in rewards]
    assert {ours for _, ours in rewards} == {0.0, 1.0}
    assert ends == {"is_over", "user_closed"}


def test_an_exported_environment_has_the_same_tools(tool_package: str) -> None:
    ours = gymnasium.make(CALCULATOR, tools=True)
    env = VerifiersEnv(tool_package, tasks=20)
    try:
        assert list(env.tools) == list(ours.unwrapped.tools)
        observation, _ = env.reset(seed=0)
        ours.reset(seed=env._task.data.seed)
        calls = [
            ("no_such_tool", "{}"),
            ("calculate", "{"),
            ("calculate", '{"number": 1}'),
            ("calculate", '{"expression": "2*3"}'),
        ]
        message = Message("assistant", "", tuple(ToolCall(*call, f"c{k}") for k, call in enumerate(calls)))
        observation, reward, over, _, info = env.step(message)
        assert (reward, over, info["tool_calls"], info["tool_errors"]) == (0, False, 4, 3)
        expected = ours.step(message)[0].messages[-4:]
        answers = observation.messages[-4:]
        assert answers[2:] == expected[2:]
        assert [answer.text[:7] for answer in answers[:2]] == ["error: "] * 2
        first, second = ours.unwrapped.factors
        _, reward, over, _, info = env.step(f"Answer: {first * second}")
        assert (reward, over, info["stop_reason"]) == (1.0, True, TurnStopReason.SOLVED)
    finally:
        env.close()


def test_a_limit_of_verifiers_truncates_the_episode(tool_package: str) -> None:
    config = {"taskset": {"id": tool_package}, "agent": {"max_turns": 1}}
    env = vf.load_environment(vf.resolve_env_config(config))
    (task,) = env.taskset.take(1)
    runner = EpisodeRunner(env)
    try:
        runner.start(task)
        episode = runner.answer(Message("assistant", "", (ToolCall("calculate", '{"expression": "1"}', "c"),)))
    finally:
        runner.close()
    assert episode.ok
    assert (episode.traces[0].stop_condition, episode.traces[0].reward) == ("max_turns", 0.0)


def test_a_failure_in_a_tool_call_is_an_error_in_verifiers(tool_package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from palaestra.envs.turn.games import CalculatorEnv

    env = vf.load_environment(vf.resolve_env_config({"taskset": {"id": tool_package}}))
    (task,) = env.taskset.take(1)
    runner = EpisodeRunner(env)
    try:
        runner.start(task)
        monkeypatch.setattr(CalculatorEnv, "respond", lambda self, message: 1 / 0)
        episode = runner.answer(Message("assistant", "", (ToolCall("calculate", '{"expression": "1"}', "c"),)))
    finally:
        runner.close()
    assert not episode.ok
    assert "ZeroDivisionError" in str([*episode.errors, *episode.traces[0].errors])
    assert not episode.traces[0].rewards


TOOL_GAME = """
import verifiers.v1 as vf


class Notes(vf.State):
    lookups: int = 0


class Vault(vf.Toolset[vf.ToolsetConfig, Notes]):
    TOOL_PREFIX = None

    @vf.tool
    def look_up(self, key: int) -> str:
        \"\"\"The word behind a key.\"\"\"
        if key < 0:
            raise ValueError("no such key")
        self.state.lookups += 1
        return f"word{key * 7}"


class Data(vf.TaskData):
    key: int


class WordTask(vf.Task[Data, Notes]):
    @classmethod
    def toolsets(cls, config):
        return [Vault(vf.ToolsetConfig())]

    @vf.reward
    async def paid(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == f"word{self.data.key * 7}") + 0.25 * trace.state.lookups


class Words(vf.Taskset[WordTask, vf.TasksetConfig]):
    def load(self):
        return [WordTask(Data(prompt=f"The word of key {k}?", key=k), self.config.task) for k in range(20)]


__all__ = ["Words"]

if __name__ == "__main__":
    Vault.run()
"""


def test_the_tools_of_a_task_are_called_and_keep_their_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "word_game.py").write_text(TOOL_GAME)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    env = VerifiersEnv("word_game")
    try:
        (tool,) = env.tools
        assert tool["function"]["name"] == "look_up"
        assert tool["function"]["parameters"]["required"] == ["key"]
        observation, _ = env.reset(seed=0)
        key = env._task.data.key
        assert observation.messages[-1].text == f"The word of key {key}?"
        calls = [("look_up", json.dumps({"key": key})), ("look_up", '{"key": -1}'), ("look_up", "{"), ("no", "{}")]
        message = Message("assistant", "", tuple(ToolCall(*call, f"c{k}") for k, call in enumerate(calls)))
        observation, reward, over, _, info = env.step(message)
        assert (reward, over, info["tool_calls"], info["tool_errors"]) == (0, False, 4, 3)
        answers = observation.messages[-4:]
        assert [(m.role, m.tool_call_id) for m in answers] == [("tool", f"c{k}") for k in range(4)]
        assert answers[0].text == f"word{key * 7}"
        expected = ["error: .*no such key", "error: expected a JSON object", "error: there is no tool 'no'"]
        for answer, pattern in zip(answers[1:], expected, strict=True):
            assert re.match(pattern, answer.text, re.DOTALL)
        _, reward, over, _, info = env.step(answers[0].text)
        assert (reward, over, info["stop_reason"]) == (1.25, True, TurnStopReason.SOLVED)
    finally:
        env.close()


def register_bad_env() -> str:
    """An environment of verifiers with a fault that its configuration names."""

    class BadData(vf.TaskData):  # type: ignore[misc, name-defined]
        number: int

    class BadTask(vf.Task[BadData]):  # type: ignore[misc, name-defined]
        pass

    class BadTaskset(vf.Taskset[BadTask, vf.TasksetConfig]):  # type: ignore[misc, name-defined]
        def load(self) -> Any:
            return [BadTask(BadData(prompt=None, number=number), self.config.task) for number in range(20)]

    class BadEnvConfig(vf.EnvConfig):  # type: ignore[misc, name-defined]
        player: vf.AgentConfig = vf.AgentConfig()  # type: ignore[name-defined]
        fault: str = "fine"

    class BadEnv(vf.Env[BadEnvConfig]):  # type: ignore[misc, name-defined]
        async def run(self, task: Any, agents: Any) -> None:
            fault = self.config.fault
            if fault == "raises_in_reset":
                raise RuntimeError("no start")
            block(fault == "blocks_in_reset")
            shown = next(CALLS) if fault == "ignores_seed" else task.data.number
            async with agents.player.interaction(task) as interaction:
                segment = await interaction.turn(str(shown))
                if fault == "raises_in_step":
                    raise RuntimeError("no step")
                block(fault == "blocks_in_step")
                while fault == "never_ends" and not segment.terminated:
                    segment = await interaction.turn("7")
            interaction.trace.record_reward("paid", float("nan") if fault == "nan" else 1.0)

    module = ModuleType("bad_game")
    module.__dict__.update(BadTaskset=BadTaskset, BadEnv=BadEnv, __all__=["BadTaskset", "BadEnv"])
    sys.modules["bad_game"] = module
    return "verifiers:bad_game"


def block(now: bool) -> None:
    """Block the event loop, as a forgotten `time.sleep` does."""
    import threading

    if now:
        threading.Event().wait(30)


FAULTS = ("fine", "raises_in_reset", "raises_in_step", "never_ends", "nan", "blocks_in_reset", "blocks_in_step")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_environment_gets_a_failure(fault: str) -> None:
    options = {"env_kwargs": {"fault": fault}, "max_turns": 3, "max_call_seconds": 2, "verify_seed": False}
    env = make_turn_env(register_bad_env(), 1, options, failures="mark", autoreset=False)
    try:
        _, infos = env.reset(seed=3)
        over, rewards, final = (
            not infos["active"][0],
            [0.0],
            {name: infos.get(name, [None])[0] for name in ("stop_reason", "failure")},
        )
        while not over:
            _, rewards, terminated, truncated, infos = env.step(["1"])
            over = terminated[0] or truncated[0]
            final = infos["final_info"][0] if over else {}
    finally:
        env.close()
    if fault == "fine":
        assert (float(rewards[0]), final["stop_reason"]) == (1.0, TurnStopReason.SOLVED)
    elif fault == "never_ends":
        assert final["stop_reason"] is TurnStopReason.STEPS
    else:
        assert final["stop_reason"] is TurnStopReason.FAILED
        assert final["failure"].cause is FailureCause.ENVIRONMENT
        expected = {"raises": "RuntimeError: no", "blocks": "2 seconds", "nan": "finite"}
        assert expected[fault.partition("_")[0]] in final["failure"].message


def test_an_environment_that_ignores_its_seed_is_an_error() -> None:
    with pytest.raises(EnvError, match=r"bad_game .*seed 0"):
        make_turn_env(register_bad_env(), 1, {"env_kwargs": {"fault": "ignores_seed"}})


def test_an_unknown_environment_is_an_error() -> None:
    with pytest.raises(EnvError, match=r"no_such_package: .*not found"):
        VerifiersEnv("no_such_package")
