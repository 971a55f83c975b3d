"""A folder with files of ATIF and OTLP, shown as a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from stored_runs import HOSTILE, write_train_run

from palaestra.integrations.export.trajectories import export_trajectories
from palaestra.view import make_app
from palaestra.view.trajectories import import_trajectories

FOREIGN = {
    "schema_version": "ATIF-v1.6",
    "session_id": "s",
    "agent": {"name": "terminator", "version": "2", "model_name": "some/model"},
    "steps": [
        {"step_id": 1, "source": "user", "message": f"Make a file. {HOSTILE}"},
        {
            "step_id": 2,
            "source": "agent",
            "message": "I make it.",
            "reasoning_content": "How?",
            "tool_calls": [{"tool_call_id": "c", "function_name": "bash", "arguments": {"command": "touch a"}}],
            "observation": {"results": [{"source_call_id": "c", "content": [{"type": "text", "text": "made it"}]}]},
            "metrics": {
                "prompt_tokens": 1200,
                "completion_tokens": 7,
                "cost_usd": 0.25,
                "prompt_token_ids": [1, 2],
                "completion_token_ids": [11, 12],
                "logprobs": [-0.5, -1.5],
            },
        },
    ],
}


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    write_train_run(tmp_path / "run", iterations=1)
    for name in ("atif", "otel"):
        export_trajectories(tmp_path / "run", tmp_path / "files" / name, name)
    (tmp_path / "files" / "agent.json").write_text(json.dumps(FOREIGN))
    (tmp_path / "files" / "result.json").write_text('{"reward": 1}')
    imported, problems = import_trajectories(tmp_path / "files", tmp_path / "shown")
    assert imported is not None
    assert not problems
    return TestClient(make_app([imported]))


def test_list_has_all_files_with_their_cost(client: TestClient) -> None:
    page = client.get("/run/files/").text
    assert "9 in files" in page
    assert page.count("training-00001-0000") == 8
    for text in ("agent.json", "terminator", "some/model", "$0.2500"):
        assert text in page
    assert "result.json" not in page


def test_conversation_shows_calls_and_observations(client: TestClient) -> None:
    page = client.get("/run/files/conversation/0").text
    for text in ("I make it.", "How?", "touch a", "made it", "agent.json", "200 tokens in, 7 out"):
        assert text in page
    assert "<script>alert" not in page
    assert client.get("/turns?left=files:0&right=files:1").status_code == 200


def test_tokens_keep_their_log_probs(client: TestClient) -> None:
    record = client.get("/run/files/episodes/0/0?format=json").json()
    assert [segment["logprobs"] for segment in record["segments"]] == [[0.0, 0.0], [-0.5, -1.5]]
    assert client.get("/run/files/episodes/0/0").status_code == 200
    assert client.get("/run/files/episodes?q=step+1").text.count("data-row") == 8


def test_folder_without_trajectories_is_left_to_the_list(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    assert import_trajectories(tmp_path, tmp_path / "new") == (None, [])
    assert not (tmp_path / "new").exists()
