import json
import threading
from pathlib import Path

import pytest

from palaestra.core.errors import BudgetSpentError, SettingsError, TotalSpentError
from palaestra.core.records import Usage
from palaestra.engines.budget import Budget, Price, Prices
from palaestra.runs.provenance import Spending


def test_a_call_waits_for_running_calls_before_it_fails() -> None:
    budget = Budget(max_tokens=100)
    [first] = budget.reserve(80)
    assert not budget.reserve(80)
    budget.settle(first, Usage(10, 10))
    [second] = budget.reserve(80)
    budget.settle(second, Usage(40, 40))
    with pytest.raises(BudgetSpentError, match=r"100 .*100 tokens"):
        budget.reserve(1)


def test_a_call_of_unknown_cost_counts_at_its_most() -> None:
    budget = Budget(max_cost=1.0)
    [call] = budget.reserve(10, 0.7)
    budget.settle(call, None)
    with pytest.raises(BudgetSpentError, match=r"\$0\.7000 .*\$1\.0000"):
        budget.reserve(10, 0.4)


def test_what_was_spent_before_counts() -> None:
    with pytest.raises(BudgetSpentError, match=r"12 calls .*12 "):
        Budget(max_calls=12, spent=Spending(calls=12)).reserve()


def test_a_call_must_fit_into_the_budget_of_all_runs_too() -> None:
    whole = Budget(max_cost=1.0, spent=Spending(money=0.2), error=TotalSpentError, advice="ask for more")
    limited, other = Budget(max_cost=0.7, within=whole), Budget(within=whole)
    assert other.limits_money
    [first] = limited.reserve(10, 0.5)
    assert not other.reserve(10, 0.5)  # It may yet fit, once the other run's call has ended.
    limited.settle(first, Usage(1, 1), 0.1)
    [second] = other.reserve(10, 0.5)
    other.settle(second, None)
    assert (limited.money, other.money, whole.money) == pytest.approx((0.1, 0.5, 0.8))
    with pytest.raises(BudgetSpentError, match="--max-cost"):
        limited.reserve(10, 0.65)
    with pytest.raises(TotalSpentError, match="ask for more"):
        other.reserve(10, 0.3)
    assert limited.reserve(10, 0.1)


@pytest.mark.parametrize("bad", [{"max_cost": -1.0}, {"max_calls": -1}, {"max_cost": float("nan")}])
def test_limits_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=next(iter(bad))):
        Budget(**bad)  # type: ignore[arg-type]


def test_threads_share_a_budget_without_passing_it() -> None:
    budget, passed = Budget(max_calls=50), []

    def spend() -> None:
        while True:
            try:
                calls = budget.reserve(1)
            except BudgetSpentError:
                return
            for call in calls:
                passed.append(call)
                budget.settle(call, Usage(1, 0))

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passed) == budget.calls == budget.tokens == 50


def test_prices_are_by_the_million() -> None:
    assert Price(2.5, 10.0).cost(Usage(1_000_000, 100_000)) == 3.5


def test_the_users_prices_come_first_and_may_be_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"gpt-4o": [1, 2], "azure:*": {"prompt": 3, "completion": 4}, "http://gpu*": [0, 0]}))
    monkeypatch.setenv("PALAESTRA_PRICES", str(path))
    prices = Prices.load()
    assert prices.find("openai:gpt-4o") == prices.find("openai:gpt-4o-2024-08-06") == Price(1.0, 2.0)
    assert prices.find("azure:mine") == Price(3.0, 4.0)
    assert prices.find("http://gpu7:8000/v1#big") == Price(0.0, 0.0)
    assert prices.find("openai:gpt-4o-mini") == Price(0.15, 0.60)
    assert prices.find("https://elsewhere/v1#big") is None
    monkeypatch.delenv("PALAESTRA_PRICES")
    assert Prices.load().find("azure:mine") is None


def test_prices_match_by_model_name_on_any_server() -> None:
    own = Prices({"big": Price(10.0, 20.0), "small-*": Price(1.0, 2.0)})
    assert own.find("http://127.0.0.1:8000/v1#big") == own.find("https://gpu/v1#big-2025-01-31") == Price(10.0, 20.0)
    assert own.find("https://gpu/v1#small-7b") == Price(1.0, 2.0)
    # Nobody else is taken to ask what OpenAI does, and a server on this machine asks nothing.
    assert Prices().find("https://gpu/v1#gpt-4o") is None
    assert Prices().find("http://localhost:8000/v1#gpt-4o") == Price(0.0, 0.0)
    assert Prices().find("openai:gpt-4o-2024-08-06") == Prices().find("azure:gpt-4o") == Price(2.5, 10.0)


@pytest.mark.parametrize(
    "content", ["no json", "[]", '{"a": [1]}', '{"a": {"prompt": 1}}', '{"a": [1, -1]}', '{"a": [1, "2"]}']
)
def test_a_price_table_that_is_none_is_one_clear_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text(content)
    with pytest.raises(SettingsError, match="price") as caught:
        Prices.load(tmp_path / "prices.json")
    assert "\n" not in str(caught.value)
