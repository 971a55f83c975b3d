"""`palaestra serve` with the official `openai` client."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import uvicorn
from published_templates import load_tokenizer

from palaestra.core.access import is_loopback
from palaestra.core.records import Completion, Failure, FailureCause, Message, Request, Sampling, StopReason, Usage
from palaestra.engines.openai import OpenAIEngine
from palaestra.engines.transformers import TransformersEngine
from palaestra.models.registry import LoadedModel
from palaestra.serving.batching import Batcher, TextStream
from palaestra.serving.server import OpenAIServer

QUESTION = [{"role": "user", "content": "What is 3 + 4?"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
    }
]


class Served:
    """A server in a thread of this process."""

    def __init__(self, server: OpenAIServer) -> None:
        config = uvicorn.Config(server.make_app(), port=0, log_level="warning", timeout_graceful_shutdown=1)
        socket = config.bind_socket()
        self.url = f"http://127.0.0.1:{socket.getsockname()[1]}/v1"
        self.server, self._uvicorn = server, uvicorn.Server(config)
        self._thread = threading.Thread(target=self._uvicorn.run, kwargs={"sockets": [socket]}, daemon=True)
        self._thread.start()
        while not self._uvicorn.started:
            time.sleep(0.01)

    def connect(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0)

    def close(self) -> None:
        self._uvicorn.should_exit = True
        self._thread.join()
        self.server.close()


@pytest.fixture(scope="module")
def running_server(nano: LoadedModel) -> Iterator[Served]:
    running_server = Served(OpenAIServer(TransformersEngine.from_loaded(nano), "nano"))
    yield running_server
    running_server.close()


@pytest.fixture
def client(running_server: Served) -> Iterator[openai.OpenAI]:
    with running_server.connect() as client:
        yield client


class Scripted:
    """An engine that answers with what it is given."""

    name = "scripted"

    def __init__(self, *answers: Completion | Failure) -> None:
        self.answers = answers
        self.batches: list[int] = []

    def generate(self, requests: list[Request]) -> list[list[Completion | Failure]]:
        self.batches.append(len(requests))
        return [[self.answers[k % len(self.answers)] for k in range(r.sampling.count)] for r in requests]


def test_a_chat_completion_is_the_engines(client: openai.OpenAI, nano: LoadedModel) -> None:
    answer = client.chat.completions.create(
        model="nano", messages=QUESTION, temperature=0, logprobs=True, extra_body={"return_token_ids": True}
    )
    ((expected,),) = TransformersEngine.from_loaded(nano).generate(
        [Request((Message("user", "What is 3 + 4?"),), Sampling(512))]
    )
    assert isinstance(expected, Completion)
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", expected.text, "stop")
    assert choice.logprobs.content is not None
    assert [token.logprob for token in choice.logprobs.content] == pytest.approx(list(expected.logprobs), abs=1e-5)
    assert tuple(choice.token_ids) == expected.token_ids
    assert tuple(answer.prompt_token_ids) == expected.prompt_ids
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
    assert answer.usage.completion_tokens == expected.usage.completion_tokens
    assert [model.id for model in client.models.list()] == ["nano"]


def test_our_own_engine_reads_exact_ids_and_log_probs_from_it(running_server: Served, nano: LoadedModel) -> None:
    request = Request((Message("user", "What is 13 + 48?"),), Sampling(40))
    ((ours,),) = OpenAIEngine(
        f"{running_server.url}#nano", extra={"return_token_ids": True, "logprobs": True}
    ).generate([request])
    ((direct,),) = TransformersEngine.from_loaded(nano).generate([request])
    assert isinstance(ours, Completion)
    assert isinstance(direct, Completion)
    assert (ours.text, ours.token_ids, ours.prompt_ids) == (direct.text, direct.token_ids, direct.prompt_ids)
    assert ours.logprobs == pytest.approx(direct.logprobs, abs=1e-5)


def test_a_stream_adds_up_to_the_answer_and_comes_in_pieces(client: openai.OpenAI) -> None:
    settings = {"model": "nano", "messages": QUESTION, "temperature": 1.0, "seed": 3, "n": 2}
    whole = client.chat.completions.create(**settings)
    texts, reasons, pieces, usage = ["", ""], ["", ""], 0, None
    for chunk in client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        pieces += bool(chunk.choices)
        usage = chunk.usage or usage
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert pieces > 6
    assert usage == whole.usage


def test_limits_stop_strings_and_seeds(client: openai.OpenAI) -> None:
    cut = client.chat.completions.create(model="nano", messages=QUESTION, temperature=0, max_completion_tokens=3)
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 3)
    stopped = client.chat.completions.create(model="nano", messages=QUESTION, temperature=0, stop=["Answer"])
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("3+4=7. ", "stop")
    text = ""
    for chunk in client.chat.completions.create(
        model="nano", messages=QUESTION, temperature=0, stop=["Answer"], stream=True
    ):
        text += chunk.choices[0].delta.content or ""
    assert text == "3+4=7. "
    draw = lambda seed: client.chat.completions.create(  # noqa: E731
        model="nano", messages=QUESTION, temperature=2.0, seed=seed, n=4
    )
    first, again, other = draw(1), draw(1), draw(2)
    assert [c.message.content for c in first.choices] == [c.message.content for c in again.choices]
    assert [c.message.content for c in first.choices] != [c.message.content for c in other.choices]


def test_texts_and_token_ids_are_completed(client: openai.OpenAI, nano: LoadedModel) -> None:
    ids = nano.tokenizer.encode("3 + 4")
    by_ids, by_text = (
        client.completions.create(model="nano", prompt=prompt, max_tokens=8, temperature=0, logprobs=1)
        for prompt in (ids, "3 + 4")
    )
    ((expected,),) = TransformersEngine.from_loaded(nano).generate([Request((), Sampling(8), prompt_ids=tuple(ids))])
    assert isinstance(expected, Completion)
    assert by_ids.choices[0].text == by_text.choices[0].text == expected.text
    assert by_ids.choices[0].logprobs.token_logprobs == pytest.approx(list(expected.logprobs), abs=1e-5)
    several = client.completions.create(model="nano", prompt=["3 + 4", "5"], max_tokens=4, temperature=0)
    assert [choice.index for choice in several.choices] == [0, 1]
    streamed = client.completions.create(model="nano", prompt=ids, max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == expected.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "other"}, "model 'other'"),
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "user", "content": "3 + 4 " * 900}]}, "tokens; nano reads"),
        ({"top_logprobs": 5, "logprobs": True}, "top_logprobs"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"extra_body": {"no_such_parameter": 1}}, "no_such_parameter: "),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
                ]
            },
            "data: URLs",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_and_named(
    client: openai.OpenAI, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(openai.APIStatusError, match=message) as caught:
        client.chat.completions.create(**{"model": "nano", "messages": QUESTION} | settings)
    assert caught.value.status_code in (400, 404)


def test_calls_of_tools_are_read_from_the_text() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>'
    running_server = Served(
        OpenAIServer(Scripted(Completion(f"Let me see.\n{call}", (), (), StopReason.END, Usage(3, 4))))
    )
    with running_server.connect() as client:
        settings = {"model": "scripted", "messages": QUESTION, "tools": TOOLS}
        choice = client.chat.completions.create(**settings).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
        (tool_call,) = choice.message.tool_calls
        assert (tool_call.function.name, json.loads(tool_call.function.arguments)) == ("add", {"a": 3})
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**settings, stream=True)]
        assert "".join(chunk.delta.content or "" for chunk in chunks) == "Let me see."
        assert chunks[-1].delta.tool_calls[0].function.name == "add"
        assert chunks[-1].finish_reason == "tool_calls"
    running_server.close()


@pytest.mark.parametrize(
    ("family", "written", "content"),
    [
        ("llama3_1", '{"name": "add", "parameters": {"a": 3}}', None),
        ("gptoss", '<|channel|>commentary to=functions.add<|message|>{"a": 3}<|call|>', None),
        (
            "glm4moe",
            "Let me see.<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
            "Let me see.",
        ),
        ("gemma3", '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>', None),
    ],
)
def test_calls_are_read_in_the_format_of_the_models_template(
    nano: LoadedModel, family: str, written: str, content: str | None
) -> None:
    tokenizer = load_tokenizer(nano, family)
    ids = tuple(tokenizer.encode(written, add_special_tokens=False))
    text = str(tokenizer.decode(ids, skip_special_tokens=True))
    engine = Scripted(Completion(text, ids, (0.0,) * len(ids), StopReason.END, Usage(3, 4)))
    engine.tokenizer = tokenizer  # type: ignore[attr-defined]
    running_server = Served(OpenAIServer(engine))
    with running_server.connect() as client:
        choice = client.chat.completions.create(model="scripted", messages=QUESTION, tools=TOOLS).choices[0]
    running_server.close()
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", content)
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 3})


def test_failures_have_a_status_and_the_server_goes_on() -> None:
    class Broken(Scripted):
        def generate(self, requests: list[Request]) -> list[list[Completion | Failure]]:
            if "raise" in requests[0].messages[0].text:
                raise RuntimeError("out of memory")
            return super().generate(requests)

    running_server = Served(OpenAIServer(Broken(Failure(FailureCause.ENGINE, "the model's logits are not finite"))))
    with running_server.connect() as client:
        for content, message in (("raise", "out of memory"), ("fail", "logits are not finite")):
            with pytest.raises(openai.InternalServerError, match=message):
                client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": content}])
    running_server.close()


def test_a_key_is_asked_for() -> None:
    running_server = Served(OpenAIServer(Scripted(Completion("yes", (), (), StopReason.END)), api_key="right"))
    for key in ("wrong", "righ", "rightt"):
        with running_server.connect(key) as client, pytest.raises(openai.AuthenticationError, match="missing or wrong"):
            client.models.list()
    with running_server.connect("right") as client:
        assert client.chat.completions.create(model="scripted", messages=QUESTION).choices[0].message.content == "yes"
    running_server.close()
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "example.com")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def test_requests_of_many_clients_share_batches() -> None:
    engine = Scripted(Completion("yes", (), (), StopReason.END))
    batcher = Batcher(engine, max_batch=16, max_wait=0.2)
    request = Request((Message("user", "?"),), Sampling(1, count=2))
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda _: batcher.submit(request).result(), range(24)))
    batcher.close()
    assert all(len(several) == 2 for several in answers)
    assert sum(engine.batches) == 24
    assert max(engine.batches) == 8


def test_a_request_that_nobody_waits_for_is_not_generated(nano: LoadedModel) -> None:
    request = Request((Message("user", "What is 3 + 4?"),), Sampling(8))
    started, release = threading.Event(), threading.Event()

    def wait(*_: int) -> None:
        started.set()
        release.wait()

    batcher = Batcher(TransformersEngine.from_loaded(nano))
    first = batcher.submit(request, wait)
    started.wait()
    cancelled, last = batcher.submit(request), batcher.submit(request)
    assert cancelled.cancel()
    release.set()
    assert first.result() == last.result()
    assert batcher.aborted == 1
    batcher.close()


def test_a_stream_holds_back_what_may_change(nano: LoadedModel) -> None:
    class Bytes:
        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return bytes(ids).decode("utf-8", "replace")

    stream = TextStream(Bytes(), ["END"])
    data = "né EN END more".encode()
    pieces = [stream.add(position, byte) for position, byte in enumerate(data)]
    assert "".join(pieces) == "né EN "
    assert all("\ufffd" not in piece for piece in pieces)
    assert stream.add(0, data[0]) == ""
    assert stream.finish("né EN ") == ""


def test_the_command_serves_and_stops() -> None:
    command = [sys.executable, "-m", "palaestra.cli.main", "serve", "--model", "nano", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving nano at http://127.0.0.1:"), line
        with openai.OpenAI(base_url=line.split()[-1], api_key="none", max_retries=20) as client:
            answer = client.chat.completions.create(model="nano", messages=QUESTION, temperature=0)
        assert answer.choices[0].message.content == "3+4=7. Answer: 7"
        process.terminate()
        assert process.wait(30) in (0, 143, -15)
