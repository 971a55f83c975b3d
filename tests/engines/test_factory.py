from collections.abc import Sequence
from pathlib import Path

import pytest
from chat_server import Reply, Server
from registries import isolate_registries

from palaestra.core.errors import EngineError, UnknownNameError
from palaestra.core.records import Answer, Completion, Message, Request
from palaestra.engines.base import ENGINES, BaseEngine, Price, apply_engine, get_scheme, is_remote, strip_scheme
from palaestra.engines.budget import Prices
from palaestra.engines.factory import check_model, open_cached, open_engine
from palaestra.engines.openai import OpenAIEngine
from palaestra.engines.transformers import TransformersEngine
from palaestra.runs.cache import Cache

REQUEST = Request((Message("user", "What is 3 + 4?"),))


def test_a_service_is_opened_by_its_name_and_asked_once(tmp_path: Path) -> None:
    with Server(lambda c, n: Reply("7")) as server, Cache(tmp_path / "c.sqlite") as cache:
        assert isinstance(open_engine(server.model, in_flight=2), OpenAIEngine)
        for _ in range(2):
            answer = open_cached(server.model, cache, in_flight=2).generate([REQUEST])[0][0]
            assert isinstance(answer, Completion)
            assert answer.text == "7"
        assert len(server.calls) == 1


def test_local_models_are_identified_by_their_hash(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        first, second = (open_cached("nano", cache, device="cpu", owner=owner) for owner in ("1", "2"))
        assert len(first.identity) == 40
        assert first.generate([REQUEST]) == second.generate([REQUEST])
        assert (first.spent().calls, second.spent().calls, second.spent().hits) == (1, 0, 1)
        assert first.spent().money == 0.0
        assert first.spent().unpriced == 0


def test_check_model_raises_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(EngineError, match="OPENAI_API_KEY"):
        check_model("openai:gpt-4o-mini")
    with pytest.raises(UnknownNameError, match="'nano'"):
        check_model("nanoo")
    check_model("nano")


class EchoEngine(BaseEngine):
    def __init__(self, name: str) -> None:
        self.name = self.identity = name

    @classmethod
    def list_price(cls, name: str) -> Price | None:
        return Price(1.0, 2.0) if name == "echo:loud" else None

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        return [[Completion(r.messages[-1].text)] * r.sampling.count for r in requests]


def test_a_new_engine_is_one_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate_registries(monkeypatch, ENGINES)
    ENGINES.register("echo", EchoEngine, "repeats the last message")
    check_model("echo:loud")
    assert is_remote("echo:loud")
    assert Prices().find("echo:loud") == Price(1.0, 2.0)
    with Cache(tmp_path / "c.sqlite") as cache:
        engine = open_cached("echo:loud", cache, in_flight=2)
        assert engine.generate([REQUEST])[0][0] == Completion("What is 3 + 4?")
        assert engine.spent().unpriced == 0
        quiet = open_cached("echo:quiet", cache)
        quiet.generate([REQUEST])
        assert quiet.spent().unpriced == 1


def test_a_name_without_a_scheme_is_a_local_model() -> None:
    assert [get_scheme(name) for name in ("nano", "owner/name", "transformers:nano")] == ["transformers"] * 3
    assert isinstance(open_engine("transformers:nano", device="cpu"), TransformersEngine)


def test_the_mock_scheme_always_gives_the_same_answer() -> None:
    assert open_engine("mock:Answer: 7").generate([REQUEST])[0][0].text == "Answer: 7"  # type: ignore[union-attr]


def test_an_unknown_scheme_suggests_the_nearest_engine() -> None:
    with pytest.raises(UnknownNameError, match=r"engine 'openia'.*'openai'"):
        check_model("openia:gpt-4o")


def test_an_option_moves_local_models_to_another_engine() -> None:
    names = ["nano", "owner/name", "transformers:nano", "openai:gpt-4o", "mock:7", ""]
    assert [apply_engine(name, "vllm") for name in names] == ["vllm:nano", "vllm:owner/name", *names[2:]]
    assert [apply_engine(name, "transformers") for name in names] == names
    assert [strip_scheme(name) for name in ("vllm:nano", "nano", "http://a/v1#b")] == ["nano", "nano", "//a/v1#b"]
