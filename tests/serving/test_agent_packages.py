"""Agents and clients of other packages play through the gateway, unmodified.

They run where `PALAESTRA_AGENTS_PYTHON` has their packages.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from scripted_engine import ScriptedEngine

from palaestra.envs.turn.games import GuessEnv
from palaestra.envs.turn.player import TurnEpisodePlayer
from palaestra.models.registry import LoadedModel
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
