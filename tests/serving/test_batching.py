"""A client that leaves `palaestra serve`: its completions end, and their slots are free."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import urlopen

import openai
import pytest
import torch

from palaestra.core.records import Message, Request, Sampling
from palaestra.engines.base import ABORTED
from palaestra.engines.transformers import TransformersEngine
from palaestra.models.registry import LoadedModel
from palaestra.serving.batching import Batcher
from palaestra.serving.gateway import CaptureServer, ServerThread
from palaestra.serving.server import OpenAIServer

STEP = 0.03
"""Seconds of one token, so that 200 tokens take 6 seconds."""
CHAT = {"messages": [{"role": "user", "content": "What is 3 + 4?"}], "max_tokens": 200}
TEXT = {"prompt": "3 + 4", "max_tokens": 200}


class EndlessEngine(TransformersEngine):
    """Writes until the token limit, slowly."""

    def __init__(self, nano: LoadedModel) -> None:
        super().__init__(nano.weights, nano.tokenizer, "nano", processed_logprobs=True)
        self.end_ids = set()

    def _extend(self, *arguments: Any) -> torch.Tensor:
        time.sleep(STEP)
        return super()._extend(*arguments)


@pytest.fixture(scope="module")
def thread(nano: LoadedModel) -> Iterator[ServerThread]:
    thread = ServerThread(CaptureServer(EndlessEngine(nano), "nano", max_tokens=200, max_batch=4))
    yield thread
    thread.close()


def read_metrics(thread: ServerThread) -> dict[str, int]:
    with urlopen(f"{thread.url}/metrics") as response:
        lines = response.read().decode().splitlines()
    return {name.removeprefix("palaestra_"): int(value) for name, value in map(str.split, lines)}


def wait_until(condition: Callable[[], bool], seconds: float = 3.0) -> float:
    """Wait for a condition; returns the seconds that it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds
        time.sleep(0.005)
    return time.monotonic() - start


def post(thread: ServerThread, path: str, body: dict[str, Any]) -> socket.socket:
    """Send a request over a plain socket and do not wait for the answer."""
    data = json.dumps(body).encode()
    host, _, port = thread.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)))
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    )
    connection.sendall(f"{head}\r\n\r\n".encode() + data)
    return connection


@pytest.mark.parametrize(
    ("path", "body", "completions"),
    [
        ("/v1/chat/completions", CHAT, 1),
        ("/v1/chat/completions", {**CHAT, "n": 4}, 4),
        ("/v1/chat/completions", {**CHAT, "stream": True, "n": 2}, 2),
        ("/v1/completions", {**TEXT, "prompt": ["3 + 4", "5 + 6"]}, 2),
        ("/v1/completions", {**TEXT, "stream": True}, 1),
        ("/sessions/one/v1/chat/completions", CHAT, 1),
        ("/sessions/one/v1/chat/completions", {**CHAT, "stream": True}, 1),
    ],
)
def test_the_slots_of_a_client_that_leaves_are_free_at_once(
    thread: ServerThread, path: str, body: dict[str, Any], completions: int
) -> None:
    if "one" not in thread.server.sessions:  # type: ignore[attr-defined]
        thread.server.open_session(name="one")  # type: ignore[attr-defined]
    before = read_metrics(thread)["requests_aborted_total"]
    connection = post(thread, path, body)
    wait_until(lambda: read_metrics(thread)["completions_running"] == completions)
    connection.close()
    seconds = wait_until(lambda: read_metrics(thread)["completions_running"] == 0)
    assert seconds < 1.0  # The rest of the answer would have taken about six.
    assert read_metrics(thread)["requests_aborted_total"] > before
    assert thread.server.sessions["one"].calls == []  # type: ignore[attr-defined]


def test_aborted_request_leaves_the_queue(thread: ServerThread) -> None:
    leaving = post(thread, "/v1/chat/completions", {**CHAT, "n": 4})
    wait_until(lambda: read_metrics(thread)["completions_running"] == 4)
    queued = post(thread, "/v1/chat/completions", CHAT)
    wait_until(lambda: read_metrics(thread)["requests_waiting"] == 1)
    queued.close()
    with openai.OpenAI(base_url=f"{thread.url}/v1", api_key="none", max_retries=0) as client:
        answers: list[Any] = []
        settings = {"model": "nano", "messages": CHAT["messages"], "temperature": 0, "max_tokens": 5}
        asking = threading.Thread(target=lambda: answers.append(client.chat.completions.create(**settings)))
        asking.start()
        leaving.close()
        asking.join(2.0)
    assert answers[0].usage.completion_tokens == 5
    metrics = read_metrics(thread)
    assert (metrics["completions_running"], metrics["requests_waiting"]) == (0, 0)


def test_a_client_that_stops_reading_a_stream_aborts_it(thread: ServerThread) -> None:
    with openai.OpenAI(base_url=f"{thread.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(model="nano", messages=CHAT["messages"], max_tokens=200, stream=True)
        next(iter(stream))
        stream.close()
        assert wait_until(lambda: read_metrics(thread)["completions_running"] == 0) < 1.0


def test_new_weights_do_not_wait_for_aborted_requests(nano: LoadedModel) -> None:
    server = CaptureServer(EndlessEngine(nano), "nano")
    request = Request((), Sampling(200), prompt_ids=(1, 2, 3))
    future = server.batcher.submit(request)
    wait_until(lambda: server.batcher.running == 1)
    future.cancel()
    start = time.monotonic()
    server.update_weights(1, lambda: None)
    assert time.monotonic() - start < 1.0
    server.close()


def test_an_aborted_request_is_answered_as_such_by_the_engine(nano: LoadedModel) -> None:
    engine, answers = TransformersEngine.from_loaded(nano), {}
    offers = [[Request((Message("user", "What is 3 + 4?"),), Sampling(8, count=2))] * 2]
    engine.generate_joining(
        lambda room: offers.pop() if offers else [],
        lambda *_: None,
        answers.__setitem__,
        lambda index: index == 0,
    )
    assert [answers[0, k] for k in range(2)] == [ABORTED, ABORTED]
    assert answers[1, 0].token_ids


def test_other_engines_finish_the_batch_after_an_abort() -> None:
    class SlowEngine:
        name = "slow"

        def generate(self, requests: list[Request]) -> list[list[Any]]:
            time.sleep(0.1)
            return [["yes"] for _ in requests]

    batcher = Batcher(SlowEngine())  # type: ignore[arg-type]
    request = Request((Message("user", "?"),))
    leaving, staying = batcher.submit(request), batcher.submit(request)
    wait_until(lambda: batcher.running == 2)
    assert leaving.cancel()
    assert staying.result() == ["yes"]
    batcher.close()


def test_open_requests_are_counted_and_limited(nano: LoadedModel) -> None:
    thread = ServerThread(OpenAIServer(EndlessEngine(nano), "nano", max_requests=1))
    connection = post(thread, "/v1/chat/completions", CHAT)
    wait_until(lambda: thread.server.batcher.running == 1)
    with openai.OpenAI(base_url=f"{thread.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.RateLimitError):
            client.models.list()
        assert urlopen(f"{thread.url}/health").read() == b"ok"
        connection.close()
        wait_until(lambda: thread.server.batcher.running == 0)
        assert client.models.list().data
    thread.close()
