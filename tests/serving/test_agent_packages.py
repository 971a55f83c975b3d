"""Agents and clients of other packages play through the gateway, unmodified.

They run where `PALAESTRA_AGENTS_PYTHON` has their packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from captured_tokens import list_answers, measure_drift
from coding_agents import SHELLS, write_command
from scripted_engine import ForcedEngine, ScriptedEngine, make_wide_model

from palaestra.core.seeding import Seeds
from palaestra.engines.transformers import TransformersEngine
from palaestra.envs.turn.base import TurnEnv
from palaestra.envs.turn.games import CalculatorEnv, GuessEnv
from palaestra.envs.turn.player import TurnEpisodePlayer
from palaestra.models.registry import LoadedModel
from palaestra.serving.capture import CaptureSession
from palaestra.serving.gateway import CaptureServer, ServerThread

HELPERS = Path(__file__).parents[1] / "helpers"
PYTHON = os.environ.get("PALAESTRA_AGENTS_PYTHON", "")
pytestmark = [pytest.mark.backends, pytest.mark.skipif(not PYTHON, reason="PALAESTRA_AGENTS_PYTHON is not set")]


def list_variables(thread: ServerThread, session: CaptureSession) -> dict[str, str]:
    """The variables of an agent of `palaestra train`. Nothing else but the path reaches it."""
    url = f"{thread.url}/sessions/{session.name}"
    return {
        "PATH": os.environ["PATH"],
        "OPENAI_BASE_URL": f"{url}/v1",
        "ANTHROPIC_BASE_URL": url,
        "OPENAI_API_KEY": "secret",
        "ANTHROPIC_API_KEY": "secret",
        "OPENAI_MODEL": "nano",
        "ENV_URL": f"{url}/env",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }


def play(variables: dict[str, str], *words: str, folder: Path | None = None) -> str:
    """Run a player to its end. Returns what it printed."""
    program = subprocess.run(
        words, env=variables, capture_output=True, text=True, timeout=180, cwd=folder, stdin=subprocess.DEVNULL
    )
    assert program.returncode == 0, program.stdout[-2000:] + program.stderr[-2000:]
    return program.stdout.strip()


@pytest.fixture(scope="module")
def wide(nano: LoadedModel) -> LoadedModel:
    return make_wide_model(nano)


def write_call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def write_fields(**fields: str) -> str:
    """An answer in the format of DSPy."""
    return "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in (fields | {"completed": ""}).items()).strip()


NUMBERS = (4, 6, 7)
CALLS = [write_call("guess", number=number) for number in NUMBERS]
CODE = [f"Thought: try.\n<code>\nprint(guess({number}))\n</code>" for number in NUMBERS]
STEPS = [
    write_fields(next_thought="Try.", next_tool_name="guess", next_tool_args=f'{{"number": {number}}}')
    for number in NUMBERS
]
LAST_STEP = write_fields(next_thought="Stop.", next_tool_name="finish", next_tool_args="{}")
TOOL_AGENTS = [
    # The agent, the answers of the model up to the end of the game and after it, and the lengths of the sequences in calls.
    ("openai-agents", CALLS, ["done"], [3]),
    ("langgraph", CALLS, ["done"], [3]),
    ("langchain", CALLS, ["done"], [3]),
    ("pydantic-ai", CALLS, ["done"], [3]),
    ("inspect", CALLS, [write_call("submit", answer="done")], [3]),
    # These write the earlier calls into the prompt anew, so each call of the model is a sequence.
    ("smolagents CodeAgent", CODE, ['Thought: done.\n<code>\nfinal_answer("done")\n</code>'], [1, 1, 1]),
    (
        "smolagents ToolCallingAgent",
        [call.removeprefix('<tool_call>\n{"name":') for call in CALLS],
        [write_call("final_answer", answer="done").removeprefix('<tool_call>\n{"name":')],
        [1, 1, 1],
    ),
    ("dspy", STEPS, [LAST_STEP, write_fields(reasoning="It is 7.", answer="done")], [1, 1, 1]),
    # The summary and what follows it are sequences of their own.
    ("langchain summary", [*CALLS[:2], "Higher than 6.", CALLS[2]], ["It was 7.", "done"], [1, 1, 2]),
]


@pytest.mark.parametrize(("agent", "texts", "late", "lengths"), TOOL_AGENTS, ids=[case[0] for case in TOOL_AGENTS])
def test_agents_play_an_episode_with_exact_tokens(
    wide: LoadedModel, agent: str, texts: list[str], late: list[str], lengths: list[int]
) -> None:
    words = (PYTHON, str(HELPERS / "tool_agents.py"), *agent.split())
    assert check_episode(wide, texts, late, lengths, lambda variables: play(variables, *words)) == "done"


@pytest.mark.parametrize("agent", SHELLS)
def test_coding_agents_play_an_episode_with_exact_tokens(wide: LoadedModel, tmp_path: Path, agent: str) -> None:
    tool, argument, rest = SHELLS[agent]
    texts = [write_call(tool, **{argument: f"./guess {number}"}, **rest) for number in NUMBERS]
    submit = write_call(tool, **{argument: "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})

    def run(variables: dict[str, str]) -> str:
        words, more = write_command(agent, tmp_path, PYTHON, variables)
        if shutil.which(words[0], path=more["PATH"]) is None:
            pytest.skip(f"{words[0]} is not installed")
        return play(variables | more, *words, folder=tmp_path)

    check_episode(wide, texts, [submit if agent == "mini-swe-agent" else "done"], [3], run)


def check_episode(
    model: LoadedModel,
    texts: Sequence[str],
    late: Sequence[str],
    lengths: list[int],
    run: Callable[[dict[str, str]], str],
) -> str:
    """Let an agent win a game and check its tokens. Returns its output.

    Arguments:
        texts, late: what the model answers up to the end of the game and after it.
        lengths: the number of calls of each sequence.
        run: runs the agent with these variables.
    """
    engine = ForcedEngine(model, *texts, *late)
    thread = ServerThread(CaptureServer(engine, "nano", api_key="secret", max_tokens=200))
    player = TurnEpisodePlayer(GuessEnv(low=7, high=7), seed=0)
    session = thread.server.open_session(player=player)
    try:
        output = run(list_variables(thread, session))
    finally:
        thread.close()
    assert (player.rewards, str(player.stop_reason)) == ([0.0, 0.0, 1.0], "solved")
    assert len(engine.requests) == len(texts) + len(late)
    assert list_answers(session) == sorted(list(engine.encode(text)) for text in texts)
    assert sorted(len(sequence.ends) for sequence in session.build_sequences()) == lengths
    assert measure_drift(model.weights, session) < 1e-5
    return output


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
    play(list_variables(thread, session), PYTHON, str(HELPERS / "api_player.py"), api, *options)
    assert player.is_over
    return session, sum(player.rewards)


APIS = [
    ("chat", "stream"),
    ("litellm",),
    ("litellm", "stream"),
    ("messages",),
    ("messages", "stream"),
    ("responses",),
    ("responses", "stream"),
    ("chained-responses", "stream"),
]


@pytest.mark.parametrize("api", APIS, ids=" ".join)
def test_apis_record_the_same_sampled_episode(
    nano: LoadedModel, nano_thread: ServerThread, api: tuple[str, ...]
) -> None:
    expected, _ = record(nano_thread, GuessEnv(attempts=4), "chat")
    session, _ = record(nano_thread, GuessEnv(attempts=4), *api)
    assert session.to_plain()["sequences"] == expected.to_plain()["sequences"]
    (sequence,) = session.build_sequences()
    assert len(sequence.chosen) > 4
    assert measure_drift(nano.weights, session) < 1e-5


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
