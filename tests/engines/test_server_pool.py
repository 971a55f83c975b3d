"""Several servers behind one engine: queues, prompts, lost servers. Over HTTP."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from chat_server import Call, Reply, Server
from model_server import ModelServer

from palaestra.core.errors import SettingsError
from palaestra.core.records import NOTICE, Completion, Event, Message, Request, Sampling
from palaestra.engines.factory import open_engine
from palaestra.engines.openai import OpenAIEngine
from palaestra.engines.openai_endpoint import Endpoint, RetryPolicy
from palaestra.engines.server_pool import OVERLOAD, ServerPool


def ask(text: str, count: int = 1, seed: int = 0) -> Request:
    return Request((Message("user", text),), Sampling(16, temperature=1.0, count=count), seed)


def name_model(*servers: Server) -> str:
    return ",".join(server.url for server in servers) + "#scripted"


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    def answer(call: Call, before: int) -> Reply:
        return Reply(f"said {call.asked}", delay=0.02)

    with Server(answer) as first, Server(answer) as second:
        yield first, second


def test_a_name_may_have_several_addresses() -> None:
    name = "http://a:1/v1,https://b/v1#m"
    assert [endpoint.name for endpoint in Endpoint.parse_all(name)] == ["http://a:1/v1#m", "https://b/v1#m"]
    engine = open_engine(name)
    assert isinstance(engine, OpenAIEngine)
    assert engine.name == engine.identity == name
    with pytest.raises(SettingsError, match="different addresses"):
        Endpoint.parse_all("http://a:1/v1,http://a:1/v1#m")
    with pytest.raises(SettingsError, match="several addresses"):
        Endpoint.parse_all("http://a:1/v1,b:2#m")


def test_a_group_has_one_server_until_its_queue_is_long() -> None:
    pool = ServerPool(Endpoint.parse_all("http://a/v1,http://b/v1,http://c/v1#m"))
    request = ask("What is 3 + 4?", count=4)
    home = pool.choose(request)
    for _ in range(OVERLOAD):
        assert pool.choose(request) is home
        home.running += 1
    other = pool.choose(request)
    assert other is not home
    # A conversation that goes on has the same server.
    longer = Request((*request.messages, Message("assistant", "7"), Message("user", "And 8?")), Sampling())
    home.running = 0
    assert pool.choose(Request((Message("system", "s"), *request.messages), Sampling())) is pool.choose(
        Request((Message("system", "s"), *longer.messages), Sampling())
    )
    # Prompts are spread over all servers, and a lost one moves its own prompts only.
    prompts = [ask(f"What is {k}?") for k in range(60)]
    homes = [pool.choose(prompt) for prompt in prompts]
    assert {homes.count(server) > 10 for server in pool.servers} == {True}
    assert pool.lose(home)
    assert all((pool.choose(p) is before) == (before is not home) for p, before in zip(prompts, homes, strict=True))


def test_calls_are_shared_and_groups_stay_together(servers: tuple[Server, Server]) -> None:
    # With so few calls at once, no queue is long enough to move a group.
    answers = OpenAIEngine(name_model(*servers), in_flight=OVERLOAD).generate(
        [ask(f"q{k}", count=3) for k in range(20)]
    )
    assert [[answer.text for answer in group] for group in answers] == [[f"said q{k}"] * 3 for k in range(20)]  # type: ignore[union-attr]
    asked = [{call.asked for call in server.calls} for server in servers]
    assert all(asked)
    assert not asked[0] & asked[1]


def test_a_lost_server_is_replaced_and_used_again(servers: tuple[Server, Server]) -> None:
    notices: list[Event] = []
    engine = OpenAIEngine(
        name_model(*servers), retry_policy=RetryPolicy(first=5.0, longest=5.0), listener=notices.append, in_flight=8
    )
    engine.probe = 0.05
    healthy = servers[1].script
    servers[1].script = lambda call, before: Reply(cut=0)
    start = time.monotonic()
    # Until it answers a probe, which this server does at once.
    answers = engine.generate([ask(f"q{k}") for k in range(12)])
    assert all(isinstance(answer, Completion) for (answer,) in answers)
    assert time.monotonic() - start < 4  # No call waits for a retry.
    texts = [str(event.data["text"]) for event in notices if event.phase == NOTICE]
    assert any("its calls run on the other servers" in text for text in texts)
    servers[1].script = healthy
    served = len(servers[1].calls)
    # It is asked before the next calls, so it comes back within the batch.
    engine.generate([ask(f"r{k}") for k in range(60)])
    assert len(servers[1].calls) > served
    assert any("answers again" in str(event.data["text"]) for event in notices)


def test_all_servers_lost_is_a_server_that_is_down() -> None:
    with socket.socket() as free, socket.socket() as other:
        for sock in (free, other):
            sock.bind(("127.0.0.1", 0))
        urls = [f"http://127.0.0.1:{sock.getsockname()[1]}/v1" for sock in (free, other)]
    engine = OpenAIEngine(",".join(urls) + "#m", retry_policy=RetryPolicy(first=0.01, longest=0.01, tries=4))
    with pytest.raises(Exception, match="no server answers"):
        engine.generate([ask("q")])


@pytest.mark.backends  # Loads nano in two processes.
def test_a_killed_server_of_nano_loses_no_answer_and_comes_back() -> None:
    with ExitStack() as stack:
        processes = [ModelServer(stack), ModelServer(stack)]
        for process in processes:
            process.start()
        for process in processes:
            process.wait()
        notices: list[Event] = []
        name = ",".join(process.url for process in processes) + "#nano"
        engine = OpenAIEngine(name, exact=True, listener=notices.append, in_flight=16)
        requests = [ask(f"What is {k} + {k + 3}?", count=4, seed=k) for k in range(100)]
        expected = OpenAIEngine(f"{processes[0].url}#nano", exact=True).generate(requests)

        def kill() -> None:
            time.sleep(0.3)
            processes[1].kill()

        killer = threading.Thread(target=kill)
        killer.start()
        answers = engine.generate(requests)
        killer.join()
        assert any("its calls run on the other servers" in str(event.data.get("text")) for event in notices)
        # Seeds belong to requests: every answer is the one of a single server.
        assert get_ids(answers) == get_ids(expected)
        processes[1].start()
        processes[1].wait()
        engine.generate(requests)
        assert not engine.pool.lost


def get_ids(answers: Any) -> list[list[tuple[int, ...]]]:
    return [[answer.token_ids for answer in group] for group in answers]
