"""Agents and clients of other packages play through the gateway, unmodified.

They run where `PALAESTRA_AGENTS_PYTHON` has their packages.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_engine import ScriptedEngine

from palaestra.core.seeding import Seeds
from palaestra.engines.transformers import TransformersEngine
from palaestra.envs.turn.base import TurnEnv
from palaestra.envs.turn.games import CalculatorEnv, GuessEnv
from palaestra.envs.turn.player import TurnEpisodePlayer
from palaestra.models.registry import LoadedModel
from palaestra.rl.agent_loop import make_captured_rollout, to_episodes
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.turns import TurnEpisode
from palaestra.serving.capture import CaptureSession
from palaestra.serving.gateway import CaptureServer, ServerThread

HELPERS = Path(__file__).parents[1] / "helpers"
PYTHON = os.environ.get("PALAESTRA_AGENTS_PYTHON", "")
pytestmark = [pytest.mark.backends, pytest.mark.skipif(not PYTHON, reason="PALAESTRA_AGENTS_PYTHON is not set")]


def play(thread: ServerThread, session: CaptureSession, script: str, *arguments: str) -> str:
    """Run a player of `tests/helpers` to its end. Returns what it printed."""
    url = f"{thread.url}/sessions/{session.name}"
    variables = {
        "OPENAI_BASE_URL": f"{url}/v1",
        "ANTHROPIC_BASE_URL": url,
        "OPENAI_API_KEY": "secret",
        "ANTHROPIC_API_KEY": "secret",
        "OPENAI_MODEL": "nano",
        "ENV_URL": f"{url}/env",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }
    command = [PYTHON, str(HELPERS / script), *arguments]
    program = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=120)
    assert program.returncode == 0, program.stderr
    return program.stdout.strip()


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (
            "ToolCallingAgent",
            [
                *(f' "guess", "arguments": {{"number": {number}}}}}\n</tool_call>' for number in (4, 6, 7)),
                ' "final_answer", "arguments": {"answer": "done"}}\n</tool_call>',
            ],
        ),
        (
            "CodeAgent",
            [
                *(f"Thought: try.\n<code>\nprint(guess({number}))\n</code>" for number in (4, 6, 7)),
                'Thought: done.\n<code>\nfinal_answer("done")\n</code>',
            ],
        ),
    ],
)
def test_smolagents_plays_an_episode(nano: LoadedModel, kind: str, texts: list[str]) -> None:
    engine = ScriptedEngine(nano, *texts)
    thread = ServerThread(CaptureServer(engine, "nano", api_key="secret", max_tokens=200))
    player = TurnEpisodePlayer(GuessEnv(low=7, high=7), seed=0)
    session = thread.server.open_session(player=player)
    try:
        assert play(thread, session, "smolagents_player.py", kind) == "done"
    finally:
        thread.close()
    assert (sum(player.rewards), str(player.stop_reason)) == (1.0, "solved")
    sampled = [[s.ids[k] for k in s.chosen] for s in session.build_sequences()]
    # The agent writes its own calls anew, so each call of the model is a sequence. Calls after the end are not recorded.
    assert sorted(sampled) == sorted(list(engine.encode(text)) for text in texts[:3])


@pytest.fixture(scope="module")
def nano_thread(nano: LoadedModel) -> Iterator[ServerThread]:
    engine = TransformersEngine(nano.weights, nano.tokenizer, "nano", processed_logprobs=True)
    thread = ServerThread(CaptureServer(engine, "nano", api_key="secret", max_tokens=40))
    yield thread
    thread.close()


def record(thread: ServerThread, env: TurnEnv, api: str, *options: str) -> tuple[CaptureSession, float]:
    """Play an episode with the client of an API. Returns the session and the reward."""
    player = TurnEpisodePlayer(env, seed=0)
    session = thread.server.open_session(Seeds(2), player=player)
    play(thread, session, "api_player.py", api, *options)
    assert player.is_over
    return session, sum(player.rewards)


APIS = [("chat", "stream"), ("messages",), ("messages", "stream")]


@pytest.mark.parametrize("api", APIS, ids=" ".join)
def test_apis_record_the_same_sampled_episode(
    nano: LoadedModel, nano_thread: ServerThread, api: tuple[str, ...]
) -> None:
    expected, _ = record(nano_thread, GuessEnv(attempts=4), "chat")
    session, _ = record(nano_thread, GuessEnv(attempts=4), *api)
    assert session.to_plain()["sequences"] == expected.to_plain()["sequences"]
    (sequence,) = session.build_sequences()
    rollout = make_captured_rollout(to_episodes(TurnEpisode(0, 0, 0), [sequence], 1.0), 64, 0)
    difference_BT = LanguageModelPolicy(nano.weights).logprobs_BT(rollout) - rollout.logprobs_BT
    assert float(difference_BT[rollout.mask_BT].abs().max()) < 1e-4
    assert int(rollout.mask_BT.sum()) == len(sequence.chosen) > 4


@pytest.mark.parametrize("api", [("chat",), *APIS], ids=" ".join)
def test_apis_call_the_tools_of_an_environment(nano: LoadedModel, api: tuple[str, ...]) -> None:
    call = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "6*7"}}\n</tool_call>'
    engine = ScriptedEngine(nano, f"Look. {call}{call}", "Answer: 1")
    thread = ServerThread(CaptureServer(engine, "nano", api_key="secret", max_tokens=64))
    session, reward = record(thread, CalculatorEnv(tools=True), *api)
    thread.close()
    (sequence,) = session.build_sequences()
    assert [message.role for message in sequence.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert sequence.messages[3].text == "42"
    assert (sequence.calls, reward) == (2, 0.0)
    assert [sequence.ids[k] for k in sequence.chosen] == [id for text in engine.texts for id in engine.encode(text)]
