"""Environments of OpenEnv as turn environments. The tests with the real package run where `PALAESTRA_OPENENV_PYTHON` has it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from palaestra.core.errors import EnvError, UnknownNameError
from palaestra.core.records import FailureCause, Message, ToolCall
from palaestra.core.registry import make_absolute
from palaestra.envs.factory import detect_kind, make_turn_env
from palaestra.envs.turn.base import TurnStopReason
from palaestra.envs.turn.vector import TurnVectorEnv
from palaestra.integrations.export.base import export_environment
from palaestra.integrations.openenv.env import OpenEnvEnv
from palaestra.integrations.openenv.served import read_action_format, write_observation

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("PALAESTRA_OPENENV_PYTHON", "")
real = [pytest.mark.backends, pytest.mark.skipif(not PYTHON, reason="PALAESTRA_OPENENV_PYTHON is not set")]
FAULTS = (
    "raises_in_reset",
    "raises_in_step",
    "never_ends",
    "nan",
    "no_reward",
    "ignores_seed",
    "blocks_in_reset",
    "blocks_in_step",
)


@contextmanager
def run_server(app: str, folder: Path) -> Iterator[str]:
    """Serve an app with the real package. Yields the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT / "src", ROOT / "tests/helpers"))),
    }
    command = [PYTHON, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    with subprocess.Popen(command, cwd=folder, env=environment) as server:
        try:
            for _ in range(600):
                assert server.poll() is None, "the server has ended"
                try:
                    urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def fake() -> Iterator[str]:
    from openenv_game import serve_game

    with serve_game() as url:
        yield url


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_server("openenv_game:app", tmp_path_factory.mktemp("game")) as url:
        yield url


@pytest.fixture(params=["fake", pytest.param("served", marks=real)])
def url(request: pytest.FixtureRequest) -> str:
    """The game of `openenv_game`, on a server of ours and on one of the real package."""
    address: str = request.getfixturevalue(request.param)
    return address


def search(env: TurnVectorEnv, seeds: list[int]) -> list[float]:
    """The rewards of a binary search from 1 to 8, one episode for each seed."""
    observations, _ = env.reset(seed=seeds)
    ranges, rewards = [(1, 8)] * len(seeds), [0.0] * len(seeds)
    for _ in range(3):
        guesses = [(low + high) // 2 for low, high in ranges]
        observations, gains, *_ = env.step([f"Is it {guess}?" for guess in guesses])
        for slot, (low, high) in enumerate(ranges):
            is_higher = observations[slot].messages[-1].text == "Higher."
            ranges[slot] = (guesses[slot] + 1, high) if is_higher else (low, max(low, guesses[slot] - 1))
            rewards[slot] += gains[slot]
    return rewards


def test_a_server_is_played_and_seeds_hold(url: str) -> None:
    assert detect_kind(f"openenv:{url}", {}) == "turn"
    env = make_turn_env(f"openenv:{url}", 8, {}, autoreset=False)
    try:
        rewards = search(env, list(range(8)))
        assert search(env, list(range(8))) == rewards
        assert 5 <= sum(rewards) <= 8
        assert set(rewards) <= {0.0, 1.0}
        text = env.reset(seed=0)[0][0].messages[-1].text
        assert text == "Guess a number from 1 to 8.\nAn action is a number."
    finally:
        env.close()


def test_a_message_without_an_action_is_answered_and_counted(url: str) -> None:
    env = OpenEnvEnv(url, invalid_penalty=0.5)
    try:
        env.reset(seed=0)
        observation, reward, terminated, _, info = env.step("no idea")
        assert observation.messages[-1].text == "That is not an action. An action is a number."
        assert (reward, terminated, info["invalid_actions"]) == (-0.5, False, 1)
    finally:
        env.close()


def test_an_action_against_the_schema_is_answered(url: str) -> None:
    env = OpenEnvEnv(url, action="json")
    try:
        env.reset(seed=0)
        observation, *_, info = env.step('{"guess": "many"}')
        assert observation.messages[-1].text.startswith("That is not an action: ")
        assert info["invalid_actions"] == 1
        assert env.step('I say {"guess": 3}')[0].messages[-1].text in ("Higher.", "Lower.", "Right.")
    finally:
        env.close()


def play_fault(url: str, fault: str) -> tuple[float, dict[str, Any]]:
    """Play one episode with a fault. Returns the last reward and info."""
    options = {
        "reset_options": {"fault": fault},
        "max_turns": 3,
        "max_call_seconds": 0.3,
        "verify_seed": fault == "ignores_seed",
    }
    env = make_turn_env(f"openenv:{url}", 1, options, failures="mark", autoreset=False)
    try:
        _, infos = env.reset(seed=3)
        if not infos["active"][0]:
            return 0.0, {name: infos[name][0] for name in ("stop_reason", "failure")}
        while True:
            _, rewards, terminated, truncated, infos = env.step(["0"])
            if terminated[0] or truncated[0]:
                return float(rewards[0]), infos["final_info"][0]
    finally:
        env.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_server_gets_a_failure_or_an_error(url: str, fault: str) -> None:
    if fault == "ignores_seed":
        with pytest.raises(EnvError, match=r"127\.0\.0\.1:\d+ .*seed 0"):
            play_fault(url, fault)
        return
    _, info = play_fault(url, fault)
    if fault == "never_ends":
        assert info["stop_reason"] is TurnStopReason.STEPS
        return
    assert info["stop_reason"] is TurnStopReason.FAILED
    assert info["failure"].cause is FailureCause.ENVIRONMENT
    expected = {"raises": "EXECUTION_ERROR: no", "blocks": "0.3 seconds", "nan": "finite", "no": "gave no reward"}
    assert expected[fault.partition("_")[0]] in info["failure"].message


def test_a_closed_connection_is_a_failure(fake: str) -> None:
    _, info = play_fault(fake, "closes")
    assert info["stop_reason"] is TurnStopReason.FAILED
    assert "ConnectionClosed" in info["failure"].message


def test_an_answer_that_breaks_the_protocol_is_an_error(fake: str) -> None:
    with pytest.raises(EnvError, match="message of OpenEnv"):
        play_fault(fake, "breaks_the_protocol")


def test_a_missing_server_is_an_error_of_one_line() -> None:
    with pytest.raises(EnvError, match=r"http://127\.0\.0\.1:9/schema"):
        OpenEnvEnv("http://127.0.0.1:9")


def test_arguments_of_a_class_are_rejected_for_a_server(fake: str) -> None:
    with pytest.raises(EnvError, match="reset_options"):
        OpenEnvEnv(fake, env_kwargs={"level": 1})


def test_texts_become_actions_by_the_schema() -> None:
    move = {
        "$defs": {"Move": {"enum": ["UP", "DOWN"], "type": "string"}},
        "properties": {"action": {"$ref": "#/$defs/Move"}},
    }
    assert read_action_format(move).parse("I go down, then up") == {"action": "UP"}
    assert read_action_format(move).parse("I stay") is None
    assert read_action_format(move).describe() == "Actions: UP, DOWN."
    pair = {"properties": {"row": {"type": "integer"}, "word": {"type": "string"}}, "required": ["row", "word"]}
    assert read_action_format(pair).parse('first {"row": 1} then {"row": 2, "word": "a"}') == {"row": 2, "word": "a"}
    assert read_action_format(pair, "word").parse("anything at all") == {"word": "anything at all"}
    with pytest.raises(UnknownNameError, match="'word'"):
        read_action_format(pair, "wrod")
    with pytest.raises(EnvError, match="'board'"):
        write_observation({"hint": "Higher."}, ("board",))


def test_the_path_of_a_class_with_a_prefix_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_absolute("openenv:games.py:Env") == f"openenv:{tmp_path}/games.py:Env"
    assert make_absolute("openenv:http://localhost:8000") == "openenv:http://localhost:8000"


class TestTheRealPackage:
    pytestmark = real

    def test_the_environment_of_openenv_init_is_played(self, tmp_path: Path) -> None:
        subprocess.run(
            [PYTHON, "-m", "openenv.cli", "init", "echo_env", "-o", str(tmp_path)], check=True, capture_output=True
        )
        with run_server("echo_env.server.app:app", tmp_path) as url:
            env = make_turn_env(f"openenv:{url}", 1, {"observation": "echoed_message", "max_turns": 2}, autoreset=False)
            (observation,), _ = env.reset(seed=0)
            assert observation.messages[-1].text == "Echo Env environment ready!"
            (observation,), rewards, *_ = env.step(["Hello"])
            assert (observation.messages[-1].text, rewards[0]) == ("Hello", 0.5)
            with pytest.raises(EnvError, match="CAPACITY_REACHED"):  # The server of the template allows one session.
                OpenEnvEnv(url)
        *_, infos = env.step(["The server has ended."])
        assert infos["final_info"][0]["failure"].cause is FailureCause.ENVIRONMENT
        env.close()

    def test_an_exported_environment_gives_the_same_rewards(self, tmp_path: Path) -> None:
        folder = export_environment("palaestra/Guess-v0", "openenv", tmp_path / "package", {"high": 16})
        install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(tmp_path / "site")]
        subprocess.run([PYTHON, "-m", *install, str(folder)], check=True, capture_output=True)
        path = os.pathsep.join(map(str, (tmp_path / "site", ROOT / "src")))
        with run_server("guess_v0.server.app:app", tmp_path / "site") as url:
            played = subprocess.run(
                [PYTHON, "-c", PLAY_EXPORT, url, str(folder)],
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                check=True,
            )
            report = json.loads(played.stdout)
            assert report["served"] == report["ours"]
            assert len(report["ours"]) == 200
            assert 0.3 < sum(report["ours"]) / 200 < 0.7
            # OpenEnv's own validators. A lock file would fix versions of packages.
            assert all("uv.lock" in issue for issue in report["issues"])
            assert report["passed"]
            env = make_turn_env(f"openenv:{url}", 4, {"observation": "text"}, autoreset=False)
            assert env.reset(seed=0)[0][0].messages[-1].text == "Guess a number from 1 to 16."
            env.close()

    def test_50_seeds_are_the_episodes_of_openenvs_client(self, served: str) -> None:
        played = subprocess.run(
            [PYTHON, "-c", PLAY_CLIENT, served],
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests/helpers")},
            capture_output=True,
            check=True,
        )
        env, episodes = OpenEnvEnv(served, prompt="{observation}"), []
        for seed in range(50):
            turns: list[Any] = [env.reset(seed=seed)[0].messages[-1].text]
            for guess in (4, 2, 6):
                observation, reward, over, *_ = env.step(str(guess))
                turns.append([observation.messages[-1].text, reward, over])
                if over:
                    break
            episodes.append(turns)
        env.close()
        assert episodes == json.loads(played.stdout)
        assert len({str(episode) for episode in episodes}) > 3

    def test_tools_are_offered_and_called(self, served: str) -> None:
        env = OpenEnvEnv(f"{served}/tools", max_turns=2)
        env.reset(seed=0)
        assert [tool["function"]["name"] for tool in env.tools] == ["add"]
        calls = (ToolCall("add", '{"first": 2, "second": 40}', "a"), ToolCall("add", '{"first": "x"}', "b"))
        observation, reward, terminated, _, info = env.step(Message("assistant", "", calls))
        assert observation.messages[-2].text == "42"
        assert observation.messages[-1].text.startswith("error: ")
        assert (info["tool_calls"], info["tool_errors"], reward, terminated) == (2, 1, 0.0, False)
        assert "Call one of the tools: add." in env.step("42")[0].messages[-1].text
        env.close()

    def test_a_class_in_the_process_is_played_like_its_server(self, served: str) -> None:
        script = """
import json, sys
from palaestra.integrations.export.base import export_environment
from palaestra.integrations.openenv.env import OpenEnvEnv
env = OpenEnvEnv(sys.argv[1])
episodes = []
for seed in range(20):
    texts = [env.reset(seed=seed)[0].messages[-1].text]
    for guess in (4, 2, 6):
        observation, reward, terminated, truncated, info = env.step(str(guess))
        texts.append([observation.messages[-1].text, reward, terminated])
        if terminated or truncated:
            break
    episodes.append(texts)
env.close()
print(json.dumps(episodes))
"""
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests/helpers")))
        runs = []
        for python, env_id in ((PYTHON, "openenv_game:GuessingEnvironment"), (sys.executable, served)):
            completed = subprocess.run(
                [python, "-c", script, env_id], env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=True
            )
            runs.append(json.loads(completed.stdout))
        assert runs[0] == runs[1]
        assert {episode[-1][1] for episode in runs[0]} == {0.0, 1.0}


PLAY_CLIENT = """
import json, sys
from openenv.core.generic_client import GenericEnvClient

episodes = []
with GenericEnvClient(base_url=sys.argv[1]).sync() as client:
    for seed in range(50):
        turns = [client.reset(seed=seed).observation["hint"]]
        for guess in (4, 2, 6):
            result = client.step({"guess": guess})
            turns.append([result.observation["hint"], result.reward, result.done])
            if result.done:
                break
        episodes.append(turns)
print(json.dumps(episodes))
"""
PLAY_EXPORT = """
import json, sys
from pathlib import Path
import gymnasium, palaestra
from guess_v0 import GuessV0Action, GuessV0Env
from openenv.cli._validation import validate_multi_mode_deployment, validate_running_environment

def search(reset, step):
    low, high, total, done = 1, 16, 0.0, False
    reset()
    while not done:
        guess = (low + high) // 2
        text, reward, done = step(f"Answer: {guess}")
        low, high = (guess + 1, high) if text == "Higher." else (low, guess - 1)
        total += reward
    return total

url, folder = sys.argv[1:]
served, ours = [], []
with GuessV0Env(base_url=url).sync() as client:
    def step_served(message):
        result = client.step(GuessV0Action(message=message))
        return result.observation.text, result.reward, result.done
    served = [search(lambda: client.reset(seed=seed), step_served) for seed in range(200)]
env = gymnasium.make("palaestra/Guess-v0", high=16)
def step_ours(message):
    conversation, reward, terminated, truncated, _ = env.step(message)
    return conversation.messages[-1].text, reward, terminated or truncated
ours = [search(lambda: env.reset(seed=seed), step_ours) for seed in range(200)]
issues = validate_multi_mode_deployment(Path(folder))[1]
print(json.dumps({"served": served, "ours": ours, "issues": issues, "passed": validate_running_environment(url)["passed"]}))
"""
