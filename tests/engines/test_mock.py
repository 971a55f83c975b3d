from palaestra.core.records import Engine, Failure, FailureCause, Message, Request, Sampling
from palaestra.engines.mock import MockEngine


def test_the_mock_is_an_engine_and_follows_its_script() -> None:
    engine = MockEngine(lambda request, index: f"{request.messages[-1].text} {index}")
    assert isinstance(engine, Engine)
    answers = engine.generate([Request((Message("user", "hi"),), Sampling(count=2))])
    assert [a.text for a in answers[0]] == ["hi 0", "hi 1"]  # type: ignore[union-attr]


def test_what_the_script_lacks_is_a_failure_and_not_silence() -> None:
    answer = MockEngine({}).generate([Request((Message("user", "hi"),))])[0][0]
    assert isinstance(answer, Failure)
    assert answer.cause is FailureCause.ENGINE
