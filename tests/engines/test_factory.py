from pathlib import Path

import pytest
from chat_server import Reply, Server

from palaestra.core.errors import EngineError, UnknownNameError
from palaestra.core.records import Completion, Message
from palaestra.engines.base import Request
from palaestra.engines.factory import check_model, open_cached, open_engine
from palaestra.engines.openai import OpenAIEngine
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


def test_weights_are_opened_by_their_name_and_known_by_their_hash(tmp_path: Path) -> None:
    with Cache(tmp_path / "c.sqlite") as cache:
        first, second = (open_cached("nano", cache, device="cpu", owner=owner) for owner in ("1", "2"))
        assert len(first.identity) == 40
        assert first.generate([REQUEST]) == second.generate([REQUEST])
        assert (first.spent().calls, second.spent().calls, second.spent().hits) == (1, 0, 1)
        assert first.spent().money == 0.0
        assert first.spent().unpriced == 0


def test_a_model_that_cannot_be_asked_is_known_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(EngineError, match="OPENAI_API_KEY"):
        check_model("openai:gpt-4o-mini")
    with pytest.raises(UnknownNameError, match="did you mean 'nano'"):
        check_model("nanoo")
    check_model("nano")
