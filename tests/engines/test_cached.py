import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import Call, Reply, Server, error

from palaestra.core.errors import BudgetSpentError, SettingsError
from palaestra.core.records import (
    Completion,
    Failure,
    FailureCause,
    ImagePart,
    Message,
    Request,
    Sampling,
    TextPart,
    Usage,
)
from palaestra.engines.budget import Budget, Price, Prices
from palaestra.engines.cached import CachedEngine, request_keys
from palaestra.engines.mock import MockEngine
from palaestra.engines.openai import OpenAIEngine
from palaestra.engines.openai_endpoint import RetryPolicy
from palaestra.runs.cache import Cache

QUICK = RetryPolicy(first=0.01, longest=0.05, total=20.0, tries=4)


def ask(text: str, seed: int = 0, **sampling: Any) -> Request:
    return Request((Message("user", text),), Sampling(**sampling), seed)


def echo(call: Call, before: int) -> Reply:
    return Reply(f"said {call.asked}")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with Cache(tmp_path / "calls.sqlite") as store:
        yield store


def mock(cache: Cache, **settings: Any) -> CachedEngine:
    return CachedEngine(
        MockEngine(lambda request, index: f"{request.messages[-1].text}{index}"), cache, identity="m", **settings
    )


def test_the_same_again_makes_no_call_and_costs_nothing(cache: Cache) -> None:
    requests = [ask("a", count=2), ask("b"), ask("c", seed=1)]
    first, again = mock(cache, owner="1"), mock(cache, owner="2")
    answers = first.generate(requests)
    assert again.generate(requests) == answers
    assert again.engine.requests == []  # type: ignore[attr-defined]
    assert (first.spent().calls, first.spent().hits) == (4, 0)
    assert first.spent().usage == Usage(4, 8)
    assert (again.spent().calls, again.spent().hits, again.spent().tokens) == (0, 4, 0)


def test_the_same_question_twice_in_a_batch_is_asked_once(cache: Cache) -> None:
    engine = mock(cache)
    answers = engine.generate([ask("a"), ask("b"), ask("a"), ask("a", seed=1)])
    assert [several[0].text for several in answers] == ["a0", "b0", "a0", "a0"]  # type: ignore[union-attr]
    assert len(engine.engine.requests) == 3  # type: ignore[attr-defined]


def test_only_what_is_missing_is_asked_of_a_service(cache: Cache) -> None:
    with Server(lambda c, n: Reply(f"{n}")) as server:
        engine = CachedEngine(OpenAIEngine(server.model, in_flight=1), cache)
        two = engine.generate([ask("a", temperature=1.0, count=2)])[0]
        four = engine.generate([ask("a", temperature=1.0, count=4)])[0]
        assert four[:2] == two
        assert len(server.calls) == 4


def test_everything_that_determines_the_answer_is_in_the_key(tmp_path: Path) -> None:
    base = ask("a", temperature=0.5)
    others = [
        ask("b", temperature=0.5),
        ask("a", temperature=0.6),
        ask("a", temperature=0.5, max_tokens=3),
        ask("a", temperature=0.5, top_p=0.9),
        ask("a", temperature=0.5, top_k=3),
        ask("a", temperature=0.5, stop=("x",)),
        ask("a", seed=1, temperature=0.5),
        replace(base, schema="{}"),
        Request((Message("system", "a"),), base.sampling),
        Request((Message("user", (TextPart("a"),)),), base.sampling),
    ]
    keys = [request_keys("m", request)[0] for request in [base, *others]] + [request_keys("n", base)[0]]
    assert len(set(keys)) == len(keys)
    assert request_keys("m", ask("a", temperature=0.5, count=3))[0] == keys[0]
    image, other = tmp_path / "1.png", tmp_path / "2.png"
    image.write_bytes(b"x")
    other.write_bytes(b"x")
    seen = [request_keys("m", Request((Message("user", (ImagePart(str(path)),)),)))[0] for path in (image, other)]
    assert seen[0] == seen[1]
    image.write_bytes(b"y")
    assert request_keys("m", Request((Message("user", (ImagePart(str(image)),)),)))[0] != seen[0]


def test_an_engine_without_identity_is_rejected(cache: Cache) -> None:
    with pytest.raises(SettingsError, match="identity"):
        CachedEngine(MockEngine({}), cache)
    CachedEngine(MockEngine({"a": "before training"}), cache, identity="1").generate([ask("a")])
    after = CachedEngine(MockEngine({"a": "after"}), cache, identity="2").generate([ask("a")])
    assert after[0][0].text == "after"  # type: ignore[union-attr]


def test_first_prompt_is_tried_at_a_typical_size(cache: Cache) -> None:
    """A thousand bytes may be a thousand tokens; the first answer shows that they are few, and the rest go."""
    usage = {"prompt_tokens": 200, "completion_tokens": 2, "total_tokens": 202}
    body = {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}], "usage": usage}
    with Server(lambda c, n: Reply(raw=json.dumps(body).encode())) as server:
        engine = CachedEngine(OpenAIEngine(server.model), cache, budget=Budget(max_tokens=900))
        assert len(engine.generate([ask(f"{k}" * 1000, max_tokens=4) for k in range(4)])) == 4
        with pytest.raises(BudgetSpentError, match=r"808 .*900 tokens"):
            engine.generate([ask("x" * 1000, max_tokens=4)])


def test_only_temporary_failures_are_sent_again(cache: Cache) -> None:
    script = {"long": Failure(FailureCause.CONTEXT_LENGTH, "x"), "broke": Failure(FailureCause.ENGINE, "x")}
    engine = CachedEngine(MockEngine(script), cache, identity="m")
    for _ in range(2):
        engine.generate([ask("long"), ask("broke")])
    assert [r.messages[-1].text for r in engine.engine.requests] == ["long", "broke", "broke"]  # type: ignore[attr-defined]


def test_phases_and_owners_are_counted_apart(cache: Cache) -> None:
    engine = mock(cache, owner="run")
    engine.at("1/lesson").generate([ask("a"), ask("b")])
    engine.at("2/lesson").generate([ask("a"), ask("c")])
    mock(cache, owner="other").generate([ask("d")])
    assert [engine.spent(phase).calls for phase in ("1/", "2/", "")] == [2, 1, 3]
    assert engine.spent("2/").hits == 1
    entry = engine.spent("1/").entry("1/lesson", engine.name, 2.5)
    assert (entry.calls, entry.usage, entry.seconds) == (2, Usage(2, 4), 2.5)


# Money


def test_money_is_in_the_ledger_and_unknown_prices_are_marked(cache: Cache) -> None:
    with Server(echo) as server:
        for owner, prices, money, unpriced in (
            ("priced", Prices({server.model: Price(1e6, 2e6)}), 2 * (1 * 1 + 6 * 2), 0),
            ("free", Prices(), 0.0, 0),  # A server on this machine.
        ):
            engine = CachedEngine(OpenAIEngine(server.model, identity=owner), cache, prices=prices, owner=owner)
            engine.generate([ask("a"), ask("b")])
            assert (engine.spent().money, engine.spent().unpriced) == (money, unpriced)
        other = OpenAIEngine(server.model.replace("127.0.0.1", "127.0.0.2"))
        other.pool = OpenAIEngine(server.model).pool
        engine = CachedEngine(other, cache, owner="unknown")
        engine.generate([ask("a"), ask("b")])
        assert (engine.spent().money, engine.spent().unpriced) == (0.0, 2)
        with pytest.raises(SettingsError, match="PALAESTRA_PRICES"):
            CachedEngine(other, cache, budget=Budget(max_cost=1.0))


# Budgets


@pytest.mark.parametrize(
    "limit",
    [{"max_calls": 7}, {"max_tokens": 7 * 40}, {"max_cost": 0.0007}],
    ids=["calls", "tokens", "cost"],
)
@pytest.mark.parametrize("in_flight", [1, 8])
def test_spent_budget_stops_calls_and_a_larger_one_resumes(limit: dict[str, Any], in_flight: int, cache: Cache) -> None:
    prices = {"http://127.0.0.1*": Price(2.5, 2.5)}  # 40 tokens are 100 millionths.
    requests = [ask(f"question number {k:03} of many", max_tokens=12) for k in range(20)]
    with Server(lambda c, n: Reply("x" * 12, delay=0.01)) as server:

        def engine(**limits: Any) -> CachedEngine:
            budget = Budget(**limits, spent=cache.spent("run"))
            service = OpenAIEngine(server.model, in_flight=in_flight)
            return CachedEngine(service, cache, budget=budget, prices=Prices(prices), owner="run")

        first = engine(**limit)
        with pytest.raises(BudgetSpentError, match="--max-"):
            first.generate(requests)
        spent = first.spent()
        assert spent.calls <= 7
        assert spent.tokens <= 7 * 40
        assert spent.money <= 0.0007
        # Once the first answers have shown how long prompts are, the room is used.
        assert spent.calls >= 5
        assert spent.usage == Usage(server.prompt_tokens, server.completion_tokens)
        with pytest.raises(BudgetSpentError):
            engine(**limit).generate(requests)
        answers = engine(**{name: 10 * value for name, value in limit.items()}).generate(requests)
        assert all(isinstance(several[0], Completion) for several in answers)
        assert len(server.calls) == 20
        assert max(server.times.values()) == 1


def test_calls_that_are_repeated_count_in_the_budget(cache: Cache) -> None:
    with Server(lambda c, n: error(500)) as server:
        engine = CachedEngine(OpenAIEngine(server.model, retry_policy=QUICK), cache, budget=Budget(max_calls=3))
        with pytest.raises(BudgetSpentError):
            engine.generate([ask("a")])
        assert len(server.calls) == 3


@pytest.mark.parametrize("count", [1, 2])
def test_batch_engines_keep_the_budget(count: int, cache: Cache) -> None:
    requests = [ask(f"q{k}", count=count) for k in range(10)]
    engine = mock(cache, budget=Budget(max_calls=7))
    with pytest.raises(BudgetSpentError):
        engine.generate(requests)
    assert engine.spent().calls == 7 - 7 % count
    more = mock(cache, budget=Budget(max_calls=100, spent=cache.spent()))
    assert len(more.generate(requests)) == 10
    assert more.spent().calls == 10 * count


def test_budget_and_ledger_are_settled_after_an_error(cache: Cache) -> None:
    def broken(request: Request, index: int) -> str:
        raise OSError("gone")

    engine = CachedEngine(MockEngine(broken), cache, identity="m", budget=Budget(max_calls=5))
    with pytest.raises(OSError, match="gone"):
        engine.generate([ask("a"), ask("b")])
    assert engine.spent().unmeasured == 2
    with pytest.raises(BudgetSpentError, match="2 calls"):
        engine.generate([ask(f"c{k}", count=4) for k in range(2)])


# Several processes and threads


SHARING = """
import json, os, signal, sys, time
from pathlib import Path
import openai, openai.resources.chat.completions
from palaestra.core.records import Message
from palaestra.core.records import Request, Sampling
from palaestra.engines.cached import CachedEngine
from palaestra.engines.openai import OpenAIEngine
from palaestra.runs.cache import Cache

model, folder = sys.argv[1], Path(sys.argv[2])
requests = [Request((Message("user", f"question {k}"),), Sampling(temperature=1.0, count=2)) for k in range(20)]
children = []
for number in range(3):
    if (child := os.fork()) == 0:
        with Cache(folder / "calls.sqlite") as cache:
            engine = CachedEngine(OpenAIEngine(model, in_flight=4, identity="m"), cache, owner="run")
            texts = [[answer.text for answer in several] for several in engine.generate(requests)]
        (folder / f"{number}.json").write_text(json.dumps(texts))
        os._exit(0)
    children.append(child)
with Cache(folder / "calls.sqlite") as cache:
    while cache.spent("run").calls < 20:
        time.sleep(0.005)
os.kill(children[0], signal.SIGKILL)
for child in children:
    os.waitpid(child, 0)
"""


def test_processes_with_one_cache_send_each_request_once(tmp_path: Path) -> None:
    """One of three is killed with calls in progress, and only these are sent again."""
    with Server(lambda c, n: Reply(f"{c.asked} {c.body.get('seed')}", delay=0.05)) as server:
        subprocess.run([sys.executable, "-c", SHARING, server.model, str(tmp_path)], check=True, timeout=120)
        calls = len(server.calls)
    first, second = (json.loads((tmp_path / f"{number}.json").read_text()) for number in (1, 2))
    assert first == second
    assert len({text for texts in first for text in texts}) == 40
    with Cache(tmp_path / "calls.sqlite") as cache:
        spent = cache.spent("run")
    assert calls <= spent.calls == 40 + spent.unmeasured <= 44


def test_threads_with_one_cache_send_each_request_once(cache: Cache) -> None:
    started, go_on = threading.Event(), threading.Event()

    def answer(request: Request, index: int) -> str | Failure:
        started.set()
        go_on.wait(10)
        return Failure(FailureCause.ENGINE, "busy") if request.messages[-1].text == "broke" else "fine"

    engine = CachedEngine(MockEngine(answer), cache, identity="m")
    for text, wanted in (("a", 1), ("broke", 2)):
        started.clear()
        go_on.clear()
        before = len(engine.engine.requests)  # type: ignore[attr-defined]
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(engine.generate, [ask(text)])
            assert started.wait(10)
            second = pool.submit(engine.at("later").generate, [ask(text)])
            time.sleep(0.05)
            assert not second.done()
            go_on.set()
            assert first.result() == second.result()
        assert len(engine.engine.requests) - before == wanted  # type: ignore[attr-defined]


def test_a_longer_group_of_a_batch_sends_only_what_is_missing(cache: Cache) -> None:
    with Server(lambda c, n: Reply(f"{n}")) as server:
        engine = CachedEngine(OpenAIEngine(server.model), cache, budget=Budget(max_calls=4))
        two, four = engine.generate([ask("a", temperature=1.0, count=2), ask("a", temperature=1.0, count=4)])
        assert four[:2] == two
        assert len(server.calls) == 4
        assert engine.budget.calls == 4


# Kills


WORKER = """
import os, signal, sys, time
from pathlib import Path
import openai, openai.resources.chat.completions, palaestra.runs.files
from palaestra.core.records import Completion, Message
from palaestra.core.records import Request, Sampling
from palaestra.engines.cached import CachedEngine, request_keys
from palaestra.engines.openai import OpenAIEngine
from palaestra.runs.cache import Cache
import json, random

model, path, kills, seed, count = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
requests = [Request((Message("user", f"question {k}"),), Sampling(temperature=1.0)) for k in range(count)]
engine = OpenAIEngine(model, in_flight=4, identity="m")
keys = [request_keys("m", request)[0] for request in requests]


def work():
    with Cache(path) as cache:
        return [several[0] for several in CachedEngine(engine, cache, owner="run").generate(requests)]


# What is imported at a first call is imported now: every child is at work soon after its start.
engine.generate([Request((Message("user", "warm up"),))])
chance, seen, died = random.Random(seed), {}, 0
for _ in range(kills):
    with Cache(path) as cache:
        before = cache.spent("run").calls
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    # At any instant: before the first call, or some way into the work.
    goal, give_up = before + chance.randrange(14), time.monotonic() + 5
    with Cache(path) as cache:
        while cache.spent("run").calls < goal and time.monotonic() < give_up:
            time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.06))
    os.kill(child, signal.SIGKILL)
    died += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    with Cache(path) as cache:
        now = time.monotonic()
        for key in cache.get(keys):
            seen.setdefault(key, now)
answers = work()
known = {f"question {k}": seen.get(key) for k, key in enumerate(keys)}
with Cache(path) as cache:
    spent = cache.spent("run")
print(json.dumps({"died": died, "known": known, "texts": [a.text for a in answers], "calls": spent.calls,
                  "tokens": spent.tokens, "answered": sum(a.usage.prompt_tokens + a.usage.completion_tokens for a in answers),
                  "unmeasured": spent.unmeasured}))
"""


def test_finished_calls_survive_a_kill_at_any_instant(tmp_path: Path) -> None:
    count, kills = 120, 20
    with Server(lambda c, n: Reply(f"{c.asked} {c.body.get('seed')}", delay=0.03)) as server:
        command = [
            sys.executable,
            "-c",
            WORKER,
            server.model,
            str(tmp_path / "calls.sqlite"),
            str(kills),
            "7",
            str(count),
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr[-2000:]
        report = json.loads(result.stdout)
        alone = OpenAIEngine(server.model)
        calls = [call for call in server.calls if call.asked != "warm up"]
        fresh = alone.generate([ask(f"question {k}", temperature=1.0) for k in range(count)])
    assert report["died"] >= 15
    # The kills fell into the work, and the work went on from where it was.
    assert sum(known is not None for known in report["known"].values()) >= 30
    assert report["unmeasured"] >= 10
    assert report["texts"] == [several[0].text for several in fresh]  # type: ignore[union-attr]
    for call in calls:
        # After a kill, what was there already is never asked for again.
        assert report["known"][call.asked] is None or call.at < report["known"][call.asked]
    # Every call that reached the server is in the ledger; those under way at a kill are marked, and only those.
    assert report["calls"] >= len(calls)
    assert report["calls"] - count == report["unmeasured"] <= 4 * report["died"]
    assert report["tokens"] == report["answered"]
