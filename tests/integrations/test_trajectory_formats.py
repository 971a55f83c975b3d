"""Trajectories in formats of other systems: what is written and read is the same, and the other systems accept it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_server import Call, Reply, Server, calling
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_runs import attempts, evaluate_run, write_train_run

from palaestra.core.errors import RunError
from palaestra.core.records import ImagePart, Message, Segment, TextPart, ToolCall, Trajectory
from palaestra.integrations.export.trajectories import (
    TRAJECTORY_FORMATS,
    TrajectoryFormat,
    TrajectorySource,
    export_trajectories,
    read_trajectories,
)
from palaestra.rl.turns import TurnEpisode
from palaestra.runs.files import from_data, to_data
from palaestra.runs.run import Run

SOURCE = TrajectorySource("run-1", "training-1-0", "nano", 1_700_000_000.0)
FORMATS = ("atif", "otel")
PYTHON = os.environ.get("PALAESTRA_AGENTS_PYTHON", "")
PACKAGES = os.environ.get("PALAESTRA_HARBOR")
"""A folder with the packages harbor and opentelemetry-proto; in `repository` that of Harbor, with published files of ATIF."""

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
floats = st.floats(-30, 30)
calls = st.builds(
    ToolCall, texts, st.one_of(texts, st.dictionaries(texts, st.integers() | texts, max_size=2).map(json.dumps)), texts
)
parts = st.lists(st.builds(TextPart, texts) | st.builds(ImagePart, st.just("https://x.org/a.png")), max_size=3).map(
    tuple
)
messages = st.builds(
    Message,
    st.sampled_from(("system", "user", "assistant", "tool")),
    st.one_of(texts, parts),
    st.lists(calls, max_size=2).map(tuple),
    texts,
)
json_values = st.dictionaries(
    texts, st.one_of(texts, st.integers(-9, 9), floats, st.lists(texts, max_size=2)), max_size=2
)


@st.composite
def segments(draw: Any, own: bool) -> Segment:
    size = draw(st.integers(1, 3))
    ids = draw(st.lists(st.integers(0, 99), min_size=size, max_size=size))
    values = [draw(st.lists(floats, min_size=size, max_size=size)) for _ in range(4)]
    known = [tuple(v) if own and draw(st.booleans()) else () for v in values[1:]]
    alternatives = tuple(((3, -0.5), (4, -1.0)) for _ in ids) if own and draw(st.booleans()) else ()
    logprobs = tuple(values[0]) if own else (0.0,) * size
    return Segment(tuple(ids), (own,) * size, logprobs, *known, alternatives=alternatives)


@st.composite
def trajectories(draw: Any) -> Trajectory:
    """Episodes with messages or with texts only, with tokens for each message, for none, or in some other order."""
    info = {"group": 3, **draw(json_values)}
    talk = draw(st.lists(messages, max_size=5))
    own = sum(message.role == "assistant" for message in talk)
    if draw(st.booleans()):
        info |= {"messages": list(map(to_data, talk)), "opening": 0}
    else:
        info |= {"prompt": draw(texts), "response": draw(texts)}
        own = 1
    if draw(st.booleans()):
        info["metrics"] = [{"prompt_tokens": 3, "cost_usd": draw(floats), "seconds": 0.5} for _ in range(own)]
    order = draw(st.sampled_from(["turns", "none", "any"]))
    flags = (
        [False, True] * own if order == "turns" else draw(st.lists(st.booleans(), max_size=4)) if order == "any" else []
    )
    tokens = tuple(draw(segments(flag)) for flag in flags)
    rewards = tuple(draw(st.lists(floats, max_size=3)))
    return Trajectory(
        draw(texts), draw(st.integers(0, 9)), rewards, tokens, draw(st.booleans()), draw(st.booleans()), (info,)
    )


def get_format(name: str) -> TrajectoryFormat:
    format_: TrajectoryFormat = TRAJECTORY_FORMATS.get(name)
    return format_


def played() -> Trajectory:
    """An episode of two turns with a tool call, as training stores it."""
    call = ToolCall("add", '{"a": 1, "b": 2}', "c1")
    talk = (
        Message("system", "You have tools."),
        Message("user", "1 + 2?"),
        Message("assistant", "", (call,)),
        Message("tool", "3", tool_call_id="c1"),
        Message("assistant", "It is 3."),
    )
    episode = TurnEpisode(
        4,
        2,
        7,
        2,
        talk,
        [1, 2, 3, 4, 5, 6, 7],
        2,
        0,
        [2, 3, 6],
        [-0.1, -0.2, -0.3],
        [0.5] * 3,
        ends=[2, 3],
        rewards=[0.0, 1.0],
    )
    return episode.to_trajectory("palaestra/Calculator-v0")


@pytest.mark.parametrize("name", FORMATS)
@given(trajectory=trajectories())
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_the_same(name: str, trajectory: Trajectory) -> None:
    format_ = get_format(name)
    document = json.loads(json.dumps(format_.write(trajectory, SOURCE)))
    assert format_.recognizes(document)
    assert format_.read([document]) == [trajectory]


def test_atif_has_tokens_tools_and_rewards_in_its_own_fields() -> None:
    document = get_format("atif").write(played(), SOURCE)
    assert [step["source"] for step in document["steps"]] == ["system", "user", "agent", "agent"]
    first, second = document["steps"][2:]
    assert first["tool_calls"] == [{"tool_call_id": "c1", "function_name": "add", "arguments": {"a": 1, "b": 2}}]
    assert first["observation"] == {"results": [{"source_call_id": "c1", "content": "3"}]}
    assert second["metrics"]["prompt_token_ids"] == [1, 2, 3, 4, 5, 6]
    assert second["metrics"]["completion_token_ids"] == [7]
    assert second["metrics"]["logprobs"] == [-0.3]
    assert second["extra"] == {"reward": 1.0}
    assert document["final_metrics"]["total_completion_tokens"] == 3


def test_otel_has_the_attributes_of_the_conventions() -> None:
    document = get_format("otel").write(played(), SOURCE)
    spans = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [span["name"] for span in spans] == ["invoke_agent palaestra", "chat nano", "execute_tool add", "chat nano"]
    last = {entry["key"]: entry["value"] for entry in spans[-1]["attributes"]}
    assert json.loads(last["gen_ai.output.messages"]["stringValue"])[0]["parts"] == [
        {"type": "text", "content": "It is 3."}
    ]
    assert last["gen_ai.usage.input_tokens"] == {"intValue": "6"}
    assert last["palaestra.completion_token_ids"] == {"arrayValue": {"values": [{"intValue": "7"}]}}


@pytest.mark.parametrize("name", FORMATS)
def test_runs_are_exported_and_read(tmp_path: Path, name: str) -> None:
    write_train_run(tmp_path / "train")
    evaluate_run(tmp_path / "evaluate", attempts(3, failed=1))
    for run, count in (("train", 12), ("evaluate", 20)):
        folder = export_trajectories(tmp_path / run, tmp_path / run / name, name)
        read, problems = read_trajectories(folder)
        assert (len(read), problems) == (count, [])
    with Run.open(tmp_path / "train", read_only=True) as opened:
        stored = [t for i in opened.store.trajectory_iterations() for t in opened.store.trajectories(i)]
    assert [trajectory for _, trajectory in read_trajectories(tmp_path / "train" / name)[0]] == stored


def test_runs_without_text_cannot_be_exported(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", "train", {"env": "CartPole-v1"}).close()
    with pytest.raises(RunError, match="classic"):
        export_trajectories(tmp_path / "run", tmp_path / "out", "atif")
    assert not (tmp_path / "out").exists()


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"schema_version": "ATIF-v1.6", "steps": [{"source": "user"}]}')
    (tmp_path / "b.json").write_text("not json")
    read, [problem] = read_trajectories(tmp_path)
    assert not read
    assert "a.json is damaged" in problem


def test_otel_of_other_instrumentations_is_read() -> None:
    def span(number: int, name: str, parent: str = "", **values: str) -> dict[str, Any]:
        attributes = [{"key": f"gen_ai.{k.replace('__', '.')}", "value": {"stringValue": v}} for k, v in values.items()]
        return {
            "traceId": "t",
            "spanId": name,
            "parentSpanId": parent,
            "startTimeUnixNano": str(number),
            "attributes": attributes,
        }

    def say(role: str, text: str) -> dict[str, Any]:
        return {"role": role, "parts": [{"type": "text", "content": text}]}

    first, second = say("user", "Weather?"), say("assistant", "Rain.")
    spans = [
        span(3, "c", "a", operation__name="chat", input__messages=json.dumps([first, second, say("user", "More?")]), output__messages=json.dumps([say("assistant", "Snow.")])),
        span(2, "b", "a", operation__name="chat", request__model="gpt", input__messages=json.dumps([first]), output__messages=json.dumps([second])),
        span(1, "a", operation__name="invoke_agent", agent__name="forecaster"),
    ]  # fmt: skip
    [trajectory] = get_format("otel").read([{"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}])
    assert trajectory.environment == "forecaster"
    texts = [message["content"] for message in trajectory.infos[0]["messages"]]
    assert texts == ["Weather?", "Rain.", "More?", "Snow."]


@pytest.mark.backends
@pytest.mark.skipif(not PYTHON, reason="PALAESTRA_AGENTS_PYTHON is not set")
def test_traces_of_the_real_instrumentation_are_read(tmp_path: Path) -> None:
    def answer(call: Call, before: int) -> Reply:
        return Reply("It is 3.") if call.body["messages"][-1]["role"] == "tool" else calling("add", '{"a": 1}')

    with Server(answer) as server:
        client = Path(__file__).parents[1] / "helpers" / "otel_client.py"
        subprocess.run([PYTHON, client, server.url, tmp_path / "trace.json"], check=True, timeout=120)
    [(_, trajectory)], problems = read_trajectories(tmp_path)
    assert not problems
    messages = [from_data(Message, message) for message in trajectory.infos[0]["messages"]]
    assert [(m.role, m.text) for m in messages[:2]] == [("system", "Add."), ("user", "1 + 2?")]
    assert messages[2].tool_calls == (ToolCall("add", '{"a": 1}', "call_a"),)
    assert [(m.role, m.text) for m in messages[3:]] == [("tool", "3"), ("assistant", "It is 3.")]
    assert trajectory.environment == "adder"
    assert all(entry["prompt_tokens"] > 0 for entry in trajectory.infos[0]["metrics"])


@pytest.mark.backends
@pytest.mark.skipif(not PACKAGES, reason="needs the packages of PALAESTRA_HARBOR")
class TestRealPackages:
    @pytest.fixture(autouse=True)
    def packages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "path", [*sys.path, str(PACKAGES)])

    @given(trajectory=trajectories().filter(lambda t: t.infos[0].get("messages") != []))
    @settings(max_examples=100, deadline=None)
    def test_harbor_accepts_what_is_written(self, trajectory: Trajectory) -> None:
        from harbor.utils.trajectory_validator import TrajectoryValidator

        validator = TrajectoryValidator()
        assert validator.validate(json.loads(json.dumps(get_format("atif").write(trajectory, SOURCE)))), (
            validator.errors
        )

    @given(trajectory=trajectories())
    @settings(max_examples=100, deadline=None)
    def test_opentelemetry_accepts_what_is_written(self, trajectory: Trajectory) -> None:
        from google.protobuf.json_format import Parse
        from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
        from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

        data = Parse(json.dumps(get_format("otel").write(trajectory, SOURCE)), TracesData())
        names = {a.key for r in data.resource_spans for s in r.scope_spans for span in s.spans for a in span.attributes}
        known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
        assert {name for name in names if name.startswith("gen_ai.")} <= known

    def test_published_files_are_read(self) -> None:
        published = Path(str(PACKAGES)) / "repository" / "tests" / "golden"
        if not published.exists():
            pytest.skip("the repository of Harbor could not be fetched")
        read, problems = read_trajectories(published)
        assert not problems
        assert len(read) >= 5
        for path, trajectory in read:
            steps = json.loads(path.read_text())["steps"]
            for name in ("completion_tokens", "cost_usd"):
                known = [step["metrics"].get(name, 0) for step in steps if "metrics" in step]
                assert sum(entry.get(name, 0) for entry in trajectory.infos[0]["metrics"]) == pytest.approx(sum(known))
            calls = [call for message in trajectory.infos[0]["messages"] for call in message["tool_calls"]]
            assert [call["name"] for call in calls] == [
                c["function_name"] for step in steps for c in step.get("tool_calls", ())
            ]
            for format_ in map(get_format, FORMATS):
                assert format_.read([json.loads(json.dumps(format_.write(trajectory, SOURCE)))]) == [trajectory]
