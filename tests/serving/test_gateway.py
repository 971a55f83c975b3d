"""The capture gateway with the official `openai` client: which calls are recorded, and which are rejected."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from published_templates import ENDS, load_tokenizer
from pydantic import BaseModel
from scripted_engine import ScriptedEngine

from palaestra.chat.encoder import ChatEncoder
from palaestra.chat.tool_formats import find_call_start
from palaestra.cli.serve import _make_session_server
from palaestra.core.errors import SettingsError
from palaestra.core.records import Completion, Message, Sampling, StopReason, ToolCall, Usage
from palaestra.core.seeding import Seeds
from palaestra.engines.transformers import TransformersEngine
from palaestra.envs.turn.games import CalculatorEnv, GuessEnv
from palaestra.envs.turn.player import TurnEpisodePlayer
from palaestra.kernels.operations import filter_logits
from palaestra.models.registry import LoadedModel
from palaestra.rl.agent_loop import make_captured_rollout, to_episodes
from palaestra.rl.policies.engine import correct_importance
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.turns import TurnEpisode
from palaestra.serving.capture import CapturedCall, CaptureSession, decode_answer
from palaestra.serving.gateway import CaptureServer, ServerThread
from palaestra.serving.session_server import SessionServer

QUESTION = [{"role": "user", "content": "Guess a number from 1 to 8."}]
EXACT = {"extra_body": {"return_token_ids": True}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]


@pytest.fixture(scope="module")
def thread(nano: LoadedModel) -> Iterator[ServerThread]:
    engine = TransformersEngine(nano.weights, nano.tokenizer, "nano", processed_logprobs=True)
    thread = ServerThread(CaptureServer(engine, "nano", temperature=1.3, max_tokens=8, api_key="secret"))
    yield thread
    thread.close()


@pytest.fixture
def gateway(thread: ServerThread) -> CaptureServer:
    assert isinstance(thread.server, CaptureServer)
    return thread.server


@cache
def make_client() -> openai.OpenAI:
    return openai.OpenAI(base_url="http://127.0.0.1", api_key="none", max_retries=0)


@contextmanager
def connect(thread: ServerThread, session: str, key: str = "secret") -> Iterator[openai.OpenAI]:
    """A client of a session. All share one HTTP client, which takes a while to make."""
    yield make_client().with_options(base_url=f"{thread.url}/sessions/{session}/v1", api_key=key)


def fetch(url: str, body: Any = None, key: str = "secret") -> tuple[int, Any]:
    """Status and JSON of a GET request, or of a POST request with a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_edited_conversation_starts_a_new_sequence(thread: ServerThread, gateway: CaptureServer) -> None:
    session = gateway.open_session(Seeds(1))
    with connect(thread, session.name) as client:
        first = client.chat.completions.create(model="gpt-4o", messages=QUESTION, **EXACT)
        answer = first.choices[0].message
        # An agent sends the client's own object back, or strips the text.
        messages = [
            *QUESTION,
            {"role": "assistant", "content": f" {answer.content}\n"},
            {"role": "user", "content": "+ 2?"},
        ]
        second = client.chat.completions.create(model="", messages=messages, temperature=1.3, **EXACT)
        edited = [*QUESTION, {"role": "assistant", "content": "Seven."}, {"role": "user", "content": "+ 2?"}]
        third = client.chat.completions.create(model="", messages=edited, **EXACT)
    sampled = first.prompt_token_ids + first.choices[0].token_ids
    assert second.prompt_token_ids[: len(sampled)] == sampled
    assert third.prompt_token_ids[: len(sampled)] != sampled
    continued, other = session.build_sequences()
    if len(continued.ends) == 1:
        continued, other = other, continued
    assert continued.ids == second.prompt_token_ids + second.choices[0].token_ids
    assert [continued.ids[k] for k in continued.chosen] == first.choices[0].token_ids + second.choices[0].token_ids
    assert other.ids == third.prompt_token_ids + third.choices[0].token_ids
    assert [other.ids[k] for k in other.chosen] == third.choices[0].token_ids


def test_samples_do_not_depend_on_the_order_of_calls(thread: ServerThread, gateway: CaptureServer) -> None:
    other = [{"role": "user", "content": "Guess a number from 2 to 9."}]

    def ask(seeds: Seeds, *conversations: Any) -> list[list[int]]:
        session = gateway.open_session(seeds)
        with connect(thread, session.name) as client:
            for messages in conversations:
                client.chat.completions.create(model="", messages=messages, seed=1, n=2)
        gateway.close_session(session)
        return [sequence.ids for sequence in session.build_sequences()]

    forward = ask(Seeds(1), QUESTION, other, QUESTION)
    assert forward == ask(Seeds(1), other, QUESTION, QUESTION) != ask(Seeds(2), QUESTION, other, QUESTION)
    assert len(forward) == 6
    assert len(set(map(tuple, forward))) > 2  # A repeated prompt is sampled anew.


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"temperature": 0}, "temperature: expected a number above 0"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"tool_choice": "required"}, "tool_choice: expected one of the offered tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "sub"}}, "tools": TOOLS}, "tool_choice"),
        ({"messages": [{"role": "nobody", "content": ""}]}, "role"),
        ({"messages": []}, "messages"),
    ],
)
def test_calls_that_cannot_be_learned_from_are_rejected(
    thread: ServerThread, gateway: CaptureServer, given: dict[str, Any], reason: str
) -> None:
    session = gateway.open_session()
    with connect(thread, session.name) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "", "messages": QUESTION, **given})
    assert reason in caught.value.message
    assert session.calls == []


def test_the_policys_sampling_overrides_the_agents_if_told_so(nano: LoadedModel) -> None:
    engine = ScriptedEngine(nano, "7")
    thread = ServerThread(CaptureServer(engine, override_sampling=True, max_tokens=8, temperature=0.5))
    session = thread.server.open_session()
    with connect(thread, session.name) as client:
        developer = {"role": "developer", "content": "Be short."}
        client.chat.completions.create(
            model="", messages=[developer, *QUESTION], temperature=0, top_p=0.5, max_tokens=99, stop=["x"]
        )
    sampling = engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens, sampling.stop) == (0.5, 1.0, 8, ("x",))
    thread.close()


def test_unknown_sessions_paths_and_keys_are_openai_errors(thread: ServerThread, gateway: CaptureServer) -> None:
    session = gateway.open_session()
    with connect(thread, session.name, key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.chat.completions.create(model="", messages=QUESTION)
    with connect(thread, session.name) as client:
        assert [model.id for model in client.models.list()] == ["nano"]
        with pytest.raises(openai.NotFoundError, match="chat/completions"):
            client.embeddings.create(model="", input="3 + 4?")
        gateway.close_session(session)
        with pytest.raises(openai.NotFoundError, match="has ended"):
            client.chat.completions.create(model="", messages=QUESTION)
    assert session.calls == []
    assert fetch(f"{thread.url}/sessions/none/env")[0] == 404


def test_a_conversation_that_does_not_fit_is_marked(thread: ServerThread, gateway: CaptureServer) -> None:
    session = gateway.open_session()
    with connect(thread, session.name) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="", messages=[{"role": "user", "content": "12 " * 5000}])
    assert caught.value.code == "context_length_exceeded"
    assert session.context_exceeded


def test_tool_calls_are_parsed_recorded_and_continued(nano: LoadedModel) -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>'
    engine = ScriptedEngine(nano, call)
    thread = ServerThread(CaptureServer(engine, max_tokens=64))
    session = thread.server.open_session()
    with connect(thread, session.name) as client:
        answer = client.chat.completions.create(model="", messages=QUESTION, tools=TOOLS).choices[0]
        assert answer.finish_reason == "tool_calls"
        (asked,) = answer.message.tool_calls
        result = {"role": "tool", "tool_call_id": asked.id, "content": "7"}
        client.chat.completions.create(model="", messages=[*QUESTION, answer.message, result], tools=TOOLS)
        # Other tools are another prompt, so this call continues nothing.
        client.chat.completions.create(model="", messages=[*QUESTION, answer.message, result])
    first, second, _ = engine.requests
    assert second.prompt_ids[: len(first.prompt_ids + engine.ids)] == first.prompt_ids + engine.ids
    long, alone = sorted(session.build_sequences(), key=lambda sequence: -len(sequence.ends))
    assert (long.ends, alone.ends) == ([len(engine.ids), 2 * len(engine.ids)], [len(engine.ids)])
    assert long.calls == 2
    thread.close()


def test_required_calls_begin_in_the_prompt(nano: LoadedModel) -> None:
    engine = ScriptedEngine(nano, ' "add", "arguments": {"a": 3}}\n</tool_call>', ' {"a": 3}}\n</tool_call>', "?")
    thread = ServerThread(CaptureServer(engine, max_tokens=64))
    session, messages = thread.server.open_session(), list[Any](QUESTION)
    named = {"type": "function", "function": {"name": "add"}}
    with connect(thread, session.name) as client:
        for choice, start in (
            ("required", '<tool_call>\n{"name":'),
            (named, '<tool_call>\n{"name": "add", "arguments":'),
        ):
            answer = client.chat.completions.create(
                model="", messages=messages, tools=TOOLS, tool_choice=choice
            ).choices[0]
            (call,) = answer.message.tool_calls
            assert (answer.finish_reason, call.function.name, json.loads(call.function.arguments)) == (
                "tool_calls",
                "add",
                {"a": 3},
            )
            assert nano.tokenizer.decode(engine.requests[-1].prompt_ids).endswith(f"<|assistant|>{start}")
            messages += [answer.message, {"role": "tool", "tool_call_id": call.id, "content": "7"}]
        # A call that the model leaves unfinished stays text, with the start that the agent asked for.
        answer = client.chat.completions.create(
            model="", messages=messages, tools=TOOLS, tool_choice="required"
        ).choices[0]
    assert (answer.finish_reason, answer.message.content) == ("stop", '<tool_call>\n{"name":?')
    (sequence,) = session.build_sequences()
    assert sequence.ids[: len(engine.requests[-1].prompt_ids)] == list(engine.requests[-1].prompt_ids)
    assert [sequence.ids[k] for k in sequence.chosen] == [id for text in engine.texts for id in engine.encode(text)]
    thread.close()


@pytest.mark.parametrize("family", ["qwen2_5", "llama3_1", "lfm2_2_5", "glm4moe", "gemma3"])
def test_call_starts_are_those_of_the_template(nano: LoadedModel, family: str) -> None:
    encoder = ChatEncoder(load_tokenizer(nano, family), tools=json.dumps(TOOLS))
    call = ToolCall("add", '{"a": 3}', "call00001")
    messages = encoder.template.adapt([Message("user", "3 + 4?"), Message("assistant", "", (call,))])
    whole = encoder.template.render(messages, False)
    for name in ("", "add"):
        start = find_call_start(encoder.template, name)
        assert start.count("add") == bool(name)
        _, _, rest = whole.rpartition(start)
        assert encoder.tool_format.parse(start + rest, {"add": {"a": {"type": "integer"}}}).calls[0].name == "add"
        assert encoder.tokenizer.decode(encoder.encode_call_start(name)) == start


def test_response_formats_are_described_in_the_prompt(nano: LoadedModel) -> None:
    engine = ScriptedEngine(nano, '{"guess": 4}')
    thread = ServerThread(CaptureServer(engine, max_tokens=64))
    session = thread.server.open_session()

    class Guess(BaseModel):
        guess: int

    with connect(thread, session.name) as client:
        answer = client.chat.completions.parse(model="", messages=QUESTION, response_format=Guess).choices[0].message
        assert answer.parsed == Guess(guess=4)
        messages = [*QUESTION, {"role": "assistant", "content": answer.content}, {"role": "user", "content": "Higher."}]
        client.chat.completions.create(model="", messages=messages, response_format={"type": "json_object"})
    first, second = (nano.tokenizer.decode(request.prompt_ids) for request in engine.requests)
    assert '"guess"' in first
    assert second.startswith(first)
    assert '{"type": "object"}' in second
    (sequence,) = session.build_sequences()
    assert [sequence.ids[k] for k in sequence.chosen] == [*engine.ids, *engine.ids]
    thread.close()


def test_own_sampling_is_recorded_and_corrected_for(
    thread: ServerThread, gateway: CaptureServer, nano: LoadedModel
) -> None:
    session, sampled = gateway.open_session(Seeds(3)), {}
    for temperature, top_p in ((None, None), (0.6, None), (0.9, 0.7)):
        with connect(thread, session.name) as client:
            messages = [{"role": "user", "content": f"Guess a number from 1 to 8. {temperature}"}]
            client.chat.completions.create(model="", messages=messages, temperature=temperature, top_p=top_p, n=4)
        sampled[temperature or 1.3] = top_p or 1.0
    sequences = session.build_sequences()
    assert len(sequences) == 12
    rollout = make_captured_rollout(to_episodes(TurnEpisode(0, 0, 0), sequences, 1.0), 64, 0)
    for row, sequence in enumerate(sequences):
        (own,) = sequence.samplings
        assert own == {"temperature": own["temperature"], "top_p": sampled[own["temperature"]], "top_k": 0}
        logits_TV = nano.weights(torch.tensor([sequence.ids])).logits[0, sequence.chosen[0] - 1 : -1].detach()
        filtered_TV = filter_logits(logits_TV / own["temperature"], torch.tensor([[own["top_p"]]]), torch.tensor([[0]]))
        expected_T = filtered_TV.log_softmax(-1).gather(-1, torch.tensor(sequence.ids)[sequence.chosen, None])[:, 0]
        assert rollout.logprobs_BT[row][rollout.valid_BT[row]].tolist() == pytest.approx(expected_T.tolist(), abs=1e-4)
    recorded_BT = rollout.logprobs_BT
    learner_BT = LanguageModelPolicy(nano.weights, temperature=1.3).logprobs_BT(rollout)
    metrics = correct_importance(rollout, learner_BT, 1e9)
    weights_BT = (learner_BT - recorded_BT).exp()[rollout.valid_BT]
    assert metrics["importance_weight"] == pytest.approx(float(weights_BT.mean()), rel=1e-3)
    assert metrics["sampling_logprob_difference_max"] > 0.1


@pytest.mark.parametrize("family", ["qwen3", "deepseek_r1_distill", "gptoss", "glm4moe", "llama3_1"])
def test_sampled_reasoning_stays_under_templates_that_remove_it(nano: LoadedModel, family: str) -> None:
    tokenizer = load_tokenizer(nano, family)
    encoder, session = ChatEncoder(tokenizer), CaptureSession("a")
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>4"
    ids = tokenizer.encode(text if family == "gptoss" else "<think>\nHm.\n</think>\n\n4", add_special_tokens=False)
    sampled = (*ids, tokenizer.convert_tokens_to_ids(ENDS[family][0]))
    messages: list[Message] = [Message("system", "Be short."), Message("user", "Guess.")]
    prompts = []
    for reply in ("Higher.", "Lower.", "Higher."):
        parent, prompt = session.encode(encoder, messages)
        completion = Completion("", sampled, (-1.0,) * len(sampled), StopReason.END, Usage(), prompt)
        message = decode_answer(encoder, messages, completion)
        session.record("", CapturedCall(parent, tuple(messages), message, completion, 0, 0, Sampling()))
        assert (parent is None) == (not prompts)
        prompts.append(prompt)
        # The message passes through JSON and comes back as the agent saw it.
        messages = [*messages, Message("assistant", message.text.strip()), Message("user", reply)]
    assert prompts[1][: len(prompts[0] + sampled)] == prompts[0] + sampled
    assert prompts[2][: len(prompts[1] + sampled)] == prompts[1] + sampled
    (sequence,) = session.build_sequences()
    assert [sequence.ids[k] for k in sequence.chosen] == [*sampled] * 3


def test_an_agent_with_tools_plays_an_environment_with_tools() -> None:
    player = TurnEpisodePlayer(CalculatorEnv(tools=True), seed=0)
    state = player.observe()
    assert state["tools"][0]["function"]["name"] == "calculate"
    call = {
        "id": "call00001",
        "type": "function",
        "function": {"name": "calculate", "arguments": '{"expression": "6*7"}'},
    }
    step = player.step({"role": "assistant", "content": None, "tool_calls": [call]})
    assert step["messages"] == [{"role": "tool", "tool_call_id": "call00001", "content": "42"}]
    assert player.step("Answer: 0")["stop_reason"] == "lost"


def test_weight_updates_wait_for_running_calls(nano: LoadedModel) -> None:
    engine = ScriptedEngine(nano, "7", seconds=0.2)
    server = CaptureServer(engine, max_tokens=8)
    thread, session, events = ServerThread(server), server.open_session(), list[str]()

    with connect(thread, session.name) as client:
        messages: list[Any] = list(QUESTION)

        def ask() -> None:
            answer = client.chat.completions.create(model="", messages=messages)
            events.append("answer")
            messages.extend([answer.choices[0].message, {"role": "user", "content": "And then?"}])

        asking = threading.Thread(target=ask)
        asking.start()
        while not server.batcher.running:
            time.sleep(0.005)
        server.update_weights(1, lambda: events.append(f"update after {len(engine.requests)}"))
        asking.join()
        ask()
    assert events[0] == "update after 1" or events[:2] == ["answer", "update after 1"]
    (sequence,) = session.build_sequences()
    assert sequence.versions == [0, 1]
    thread.close()


def test_abandoned_answers_are_not_recorded(nano: LoadedModel) -> None:
    server = CaptureServer(ScriptedEngine(nano, "7", seconds=0.3), max_tokens=8)
    thread, session = ServerThread(server), server.open_session()
    with connect(thread, session.name) as client:
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(model="", messages=QUESTION, timeout=0.1)
        client.chat.completions.create(model="", messages=QUESTION)
    assert len(session.calls) == 1
    thread.close()


def test_environment_is_played_over_http(thread: ServerThread, gateway: CaptureServer) -> None:
    player = TurnEpisodePlayer(GuessEnv(), seed=0)
    session = gateway.open_session(player=player)
    url = f"{thread.url}/sessions/{session.name}/env"
    status, state = fetch(url)
    assert (status, state["messages"][0]["content"]) == (200, "Guess a number from 1 to 8.")
    assert fetch(url, key="wrong")[0] == 401
    assert fetch(url, {"message": {"role": "user", "content": "7"}})[0] == 400
    with connect(thread, session.name) as client:
        client.chat.completions.create(model="", messages=state["messages"])
        guesses = ("1", {"role": "assistant", "content": "2"}, "3")
        steps = [fetch(url, {"message": guess}) for guess in guesses]
        assert [step["done"] for _, step in steps] == [False, False, True]
        status, error = fetch(url, {"message": "3"})
        assert (status, error["error"]["code"]) == (409, "invalid_action")
        client.chat.completions.create(model="", messages=[{"role": "user", "content": "How was it?"}])
    assert len(session.calls) == 1
    assert (sum(player.rewards), player.stop_reason) == (0.0, "lost")


def test_sessions_open_on_first_call_and_end_with_a_reward(nano: LoadedModel) -> None:
    records: list[dict[str, Any]] = []
    thread = ServerThread(SessionServer(ScriptedEngine(nano, "4"), "nano", max_tokens=8, on_end=records.append))
    with connect(thread, "mine") as client:
        client.chat.completions.create(model="", messages=QUESTION)
        status, shown = fetch(f"{thread.url}/sessions/mine")
        assert (status, len(shown["sequences"])) == (200, 1)
        assert fetch(f"{thread.url}/sessions/mine/end", {"reward": "inf"})[0] == 400
        status, ended = fetch(f"{thread.url}/sessions/mine/end", {"reward": 0.5})
        with pytest.raises(openai.APIStatusError, match="has ended"):
            client.chat.completions.create(model="", messages=QUESTION)
    assert (status, ended["reward"], records) == (200, 0.5, [ended])
    (sequence,) = ended["sequences"]
    assert sum(sequence["mask"]) == len(sequence["logprobs"]) and sequence["versions"] == [0]  # noqa: PT018
    thread.close()

    def make_player(seed: int) -> TurnEpisodePlayer:
        return TurnEpisodePlayer(GuessEnv(), seed)

    thread = ServerThread(SessionServer(ScriptedEngine(nano, "4"), "nano", make_player=make_player))
    for name in "ab":
        status, opened = fetch(f"{thread.url}/sessions", {"name": name, "seed": 3})
        assert (status, opened["env_url"]) == (200, f"{thread.url}/sessions/{name}/env")
        answers = [fetch(opened["env_url"], {"message": str(guess)})[1] for guess in (1, 8)]
        assert answers[0]["reward"] + answers[1]["reward"] in (0.0, 1.0)
    assert fetch(f"{thread.url}/sessions", {"name": "b"})[0] == 409
    assert fetch(f"{thread.url}/sessions/a/end", {"reward": 1.0})[0] == 400
    assert fetch(f"{thread.url}/sessions/a/end", {})[1]["stop_reason"] in ("gave_up", "solved")
    thread.close()


def test_command_writes_ended_sessions(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    options = {"api_key": "secret", "max_tokens": 8}
    thread = ServerThread(_make_session_server("nano", "cpu", "palaestra/Guess-v0", ["high=4"], file, 0, **options))
    url = f"{thread.url}/sessions/one"
    assert fetch(f"{url}/env")[1]["messages"][0]["content"] == "Guess a number from 1 to 4."
    with connect(thread, "one") as client:
        client.chat.completions.create(model="nano", messages=QUESTION)
    status, ended = fetch(f"{url}/end", {})
    thread.close()
    assert (status, ended["stop_reason"], ended["failure"]) == (200, "gave_up", None)
    assert [json.loads(line) for line in file.read_text().splitlines()] == [ended]
    with pytest.raises(SettingsError, match="turn environment"):
        _make_session_server("nano", "cpu", "CartPole-v1", [], None, 0)
    with pytest.raises(SettingsError, match="local weights"):
        _make_session_server("mock:7", "cpu", "", [], None, 0)
