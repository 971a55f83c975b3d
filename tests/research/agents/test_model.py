"""A model as the agent: text, tools, and the stop reason of every limit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import Call, Reply, Server, calling, error

from palaestra.core.records import Completion, Failure, Message, Request, Sampling, ToolCall
from palaestra.envs.turn.base import Conversation, TurnStopReason
from palaestra.recipes.research.recipe import make_context, run_research
from palaestra.recipes.research.settings import ResearchSettings
from palaestra.research.agents import Halt
from palaestra.research.agents.model import ModelAgent
from palaestra.research.tasks.task import load_task
from palaestra.research.workspace.workspace import Step
from palaestra.runs.run import Run

Play = Callable[..., dict[str, Any]]


@pytest.fixture
def play(number: Path, tmp_path: Path) -> Play:
    def run(server: Server, **values: Any) -> dict[str, Any]:
        settings = {"task": str(number), "cache": str(tmp_path / "calls.sqlite"), "strategy": False, **values}
        return run_research(agent="model", model=server.model, out=tmp_path / "run", **settings).summary

    return run


def script_commands(*commands: str) -> Callable[[Call, int], Reply]:
    """A model that gives these commands in turn, each in a fenced block."""

    def script(call: Call, before: int) -> Reply:
        turn = sum(message["role"] == "assistant" for message in call.body["messages"])
        return Reply(f"I do this.\n```\n{commands[turn]}\n```")

    return script


def test_a_served_model_works_submits_and_is_paid_for(play: Play, tmp_path: Path) -> None:
    with Server(script_commands("echo 20 > answer.txt", "validate", "submit")) as server:
        s = play(server)
        assert len(server.calls) == 3
    assert (s["stop_reason"], s["best_submission"], s["best_attempt"], s["steps"]) == ("submitted", 21.0, 20.0, 3)
    assert (s["calls"], s["model"]) == (3, server.model)
    assert (s["prompt_tokens"], s["completion_tokens"]) == (server.prompt_tokens, server.completion_tokens)
    last = server.calls[-1].body["messages"]
    assert [message["role"] for message in last] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert "20" in last[-1]["content"]
    with Run.open(tmp_path / "run", read_only=True) as run:
        steps = run.store.steps(Step, 0)
    assert [step.action for step in steps] == ["", "echo 20 > answer.txt", "validate", "submit"]
    assert all(step.seconds >= step.thinking >= 0 for step in steps)
    exported = json.loads((tmp_path / "run" / "trajectory.json").read_text())
    assert [message["role"] for message in exported["messages"]] == [*(m["role"] for m in last), "assistant", "user"]
    assert exported["rewards"][-1] == s["reward"] == 1.5


def test_penalties_are_a_part_of_the_reward_of_a_run(play: Play) -> None:
    def script(call: Call, before: int) -> Reply:
        return Reply("No command." if len(call.body["messages"]) > 2 else "```\nrm answer.txt\n```")

    with Server(script) as server:
        s = play(server, format_penalty=0.5)
    assert (s["stop_reason"], s["reward"], s["best_submission"], s["format_errors"]) == (
        "format",
        pytest.approx(-2.1),
        None,
        3,
    )


def test_a_served_model_calls_tools_and_is_answered_by_number(play: Play) -> None:
    turns = [
        calling("bash", '{"command": "echo 30 > answer.txt"}', text="I write it."),
        calling("bash", "{not json", id="call_a"),  # The same number as before: some servers count anew.
        calling("submit", "{}", id=""),
    ]

    def script(call: Call, before: int) -> Reply:
        return turns[sum(message["role"] == "assistant" for message in call.body["messages"])]

    with Server(script) as server:
        s = play(server, tools=True)
    assert (s["stop_reason"], s["best_submission"], s["tools"]) == ("submitted", 31.0, True)
    first, _, last = (call.body for call in server.calls)
    names = [tool["function"]["name"] for tool in first["tools"]]
    assert {"bash", "edit", "validate", "submit"} <= set(names)
    assert "edit FIRST:LAST" not in first["messages"][0]["content"]  # Offered as tools, and not described.
    roles = [message["role"] for message in last["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]
    output = [m for m in last["messages"] if m["role"] == "assistant"]
    answered = [m["tool_call_id"] for m in last["messages"] if m["role"] == "tool"]
    assert answered == [m["tool_calls"][0]["id"] for m in output]
    assert len(set(answered)) == 2
    assert output[0]["content"] == "I write it."
    assert output[0]["tool_calls"][0]["function"] == {
        "name": "bash",
        "arguments": '{"command": "echo 30 > answer.txt"}',
    }
    assert "not JSON" in last["messages"][-1]["content"]


def test_the_cost_limit_ends_with_what_is_there(play: Play) -> None:
    with Server(script_commands("echo 20 > answer.txt", "validate", "submit")) as server:
        s = play(server, max_calls=2)
        assert len(server.calls) == 2
    assert (s["stop_reason"], s["best_submission"], s["steps"]) == ("cost", 21.0, 2)
    assert s["note"] == "the budget is spent: 2 calls made, at most 2 allowed"  # It has ended: nothing to resume.


def test_context_error_of_a_service_ends_the_episode(play: Play) -> None:
    def script(call: Call, before: int) -> Reply:
        if len(call.body["messages"]) > 2:
            return error(400, "this model's maximum context length is 100 tokens", code="context_length_exceeded")
        return Reply("```\necho 20 > answer.txt\n```")

    with Server(script) as server:
        s = play(server)
    assert (s["stop_reason"], s["best_submission"], s["failures"]) == ("context", 21.0, {})


def test_an_engine_that_fails_ends_the_episode_without_a_score(play: Play) -> None:
    def script(call: Call, before: int) -> Reply:
        if len(call.body["messages"]) > 4:
            return error(400, "the model has thrown up", code="x")
        return Reply(
            "```\necho 20 > answer.txt; validate\n```" if len(call.body["messages"]) == 2 else "```\nvalidate\n```"
        )

    with Server(script) as server:
        s = play(server)
    assert (s["stop_reason"], s["best_submission"], s["best_attempt"]) == ("failed", None, 20.0)
    assert s["failures"] == {"invalid_request": 1}
    assert "thrown up" in s["failure"]["message"]


def test_the_same_run_again_makes_no_call(play: Play, number: Path, tmp_path: Path) -> None:
    with Server(script_commands("echo 20 > answer.txt", "submit")) as server:
        first = play(server)
        calls = len(server.calls)
        again = run_research(
            task=str(number),
            agent="model",
            model=server.model,
            out=tmp_path / "again",
            strategy=False,
            cache=str(tmp_path / "calls.sqlite"),
        ).summary
        assert len(server.calls) == calls
    assert (again["best_submission"], again["calls"], first["calls"]) == (21.0, 0, 2)


def test_nano_talks_nonsense_and_ends_by_its_format(number: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    for name in ("system", "task", "format_error"):
        (prompts / f"{name}.md.j2").write_text("Go on.")
    s = run_research(
        task=str(number),
        agent="model",
        model="nano",
        prompts=str(prompts),
        strategy=False,
        answer_tokens=8,
        device="cpu",
        cache=str(tmp_path / "calls.sqlite"),
        out=tmp_path / "run",
    ).summary
    assert (s["stop_reason"], s["steps"], s["format_errors"]) == ("format", 3, 3)
    assert s["best_submission"] == s["baseline"]  # What was there was handed in.
    assert s["prompt_tokens"] > 0


def test_a_prompt_that_leaves_nano_no_room_is_not_asked(number: Path, tmp_path: Path) -> None:
    s = run_research(
        task=str(number),
        agent="model",
        model="nano",
        device="cpu",
        cache=str(tmp_path / "c.sqlite"),
        out=tmp_path / "run",
    ).summary
    assert (s["stop_reason"], s["steps"], s["calls"]) == ("context", 0, 0)
    assert s["best_submission"] == s["baseline"]
    assert "nano reads 256" in s["note"]


class RecordingEngine:
    """An engine that writes down what it is asked, and counts words."""

    name, context = "recording", 0

    def __init__(self, answer: str = "tried 20, next 30") -> None:
        self.requests: list[Request] = []
        self.answer = answer

    def generate(self, requests: Any) -> list[list[Completion | Failure]]:
        self.requests += requests
        return [[Completion(self.answer)] for _ in requests]

    def prompt_tokens(self, request: Request) -> int:
        return sum(len(message.text.split()) for message in request.messages)


def agent_with(number: Path, engine: RecordingEngine, *history: str) -> ModelAgent:
    from dataclasses import replace

    context = make_context(ResearchSettings(task=str(number), history=history), load_task(number))
    agent = ModelAgent("nano", replace(context, engine=lambda name: engine, sampling=Sampling(max_tokens=50)))
    agent.begin(0, [])
    return agent


def conversation(*observations: str) -> Conversation:
    messages = [Message("system", "rules"), Message("user", "the task")]
    for k, seen in enumerate(observations):
        messages += [Message("assistant", f"action {k}"), Message("user", seen)]
    return Conversation(tuple(messages))


def read_last_request(engine: RecordingEngine) -> list[str]:
    return [message.text for message in engine.requests[-1].messages]


def test_older_observations_are_replaced_by_their_length(number: Path) -> None:
    engine = RecordingEngine()
    agent_with(number, engine, "last:1").act(conversation("one\ntwo\nthree", "four", "five"))
    assert read_last_request(engine) == [
        "rules",
        "the task",
        "action 0",
        "(3 lines omitted)",
        "action 1",
        "(1 line omitted)",
        "action 2",
        "five",
    ]


def test_windows_of_files_that_are_shown_again_are_closed(number: Path) -> None:
    first = "[file /workspace/a.py, 3 lines]\n1|x = 1\n2|\n3|y = 2\n\n(open file: a.py)"
    other = "[file /workspace/b.py, 1 line, read-only]\n1|z = 3\n(5 more lines below)\nand more"
    engine = RecordingEngine()
    agent_with(number, engine, "closed_windows").act(conversation(first, other, first.replace("y = 2", "y = 9")))
    reply = read_last_request(engine)
    assert reply[3].splitlines()[0] == "(the window of /workspace/a.py was closed: 3 lines; it was shown again later)"
    assert reply[3].endswith("(open file: a.py)")
    assert "y = 2" not in reply[3]
    assert reply[5] == other
    assert "y = 9" in reply[7]


def test_over_the_budget_the_model_sums_the_older_part_up_once(number: Path) -> None:
    engine = RecordingEngine()
    agent = agent_with(number, engine, "summary:40")
    long = "word " * 12
    talk = conversation(long, long, long, long)
    agent.act(talk)
    assert len(engine.requests) == 2
    asked, reply = engine.requests[0].messages[0].text, read_last_request(engine)
    assert "action 0" in asked
    assert "the task" in asked
    assert reply[1].startswith("the task\n\n")
    assert "tried 20, next 30" in reply[1]
    assert [message.role for message in engine.requests[1].messages[:3]] == ["system", "user", "assistant"]
    assert engine.prompt_tokens(engine.requests[1]) <= 40
    # The next message needs no new summary, and an agent that is made anew knows the old one.
    other = agent_with(number, engine, "summary:40")
    other.restore(agent.state())
    for item in (agent, other):
        before = len(engine.requests)
        item.act(Conversation((*talk.messages, Message("assistant", "action 4"), Message("user", "ok"))))
        assert len(engine.requests) == before + 1
        assert "tried 20, next 30" in read_last_request(engine)[1]


def test_a_summary_never_parts_a_call_from_its_answer(number: Path) -> None:
    engine = RecordingEngine()
    messages = [Message("system", "rules"), Message("user", "the task")]
    for k in range(6):
        call = ToolCall("bash", '{"command": "ls"}', f"c{k}")
        messages += [Message("assistant", "", (call,)), Message("tool", "word " * 10, tool_call_id=f"c{k}")]
    agent_with(number, engine, "summary:40").act(Conversation(tuple(messages)))
    sent = engine.requests[-1].messages
    calls = {call.id for message in sent for call in message.tool_calls}
    assert {message.tool_call_id for message in sent if message.role == "tool"} == calls
    assert calls


def test_a_context_of_ones_own_is_looked_at_before_asking(number: Path) -> None:
    from dataclasses import replace

    engine = RecordingEngine()
    context = make_context(ResearchSettings(task=str(number), context=20), load_task(number))
    agent = ModelAgent("nano", replace(context, engine=lambda name: engine, sampling=Sampling(max_tokens=50)))
    agent.begin(0, [])
    halt = agent.act(conversation("word " * 20))
    assert isinstance(halt, Halt)
    assert halt.reason is TurnStopReason.CONTEXT
    assert not engine.requests


def test_wrong_history_processors_are_said_at_once(number: Path) -> None:
    from palaestra.core.errors import SettingsError, UnknownNameError

    for spec, kind in (
        ("last", SettingsError),
        ("summary:x", SettingsError),
        ("closed_windows:3", SettingsError),
        ("lst:3", UnknownNameError),
    ):
        with pytest.raises(kind):
            agent_with(number, RecordingEngine(), spec)
