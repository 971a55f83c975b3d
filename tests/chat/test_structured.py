import json
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_server import Call, Reply, Server
from pydantic import BaseModel, Field

from palaestra.chat.structured import ask, find_candidates, parse_answer, response_format, strict_schema
from palaestra.core.records import Completion, Failure, FailureCause, Message, Request, Sampling
from palaestra.engines.cached import CachedEngine
from palaestra.engines.mock import MockEngine
from palaestra.engines.openai import OpenAIEngine
from palaestra.runs.cache import Cache


class Datum(BaseModel):
    question: str
    answer: int = Field(ge=0)


class Lesson(BaseModel):
    data: list[Datum]
    note: str = ""


GOOD = '{"question": "2+2?", "answer": 4}'
FOUR = Datum(question="2+2?", answer=4)


def question(text: str) -> Request:
    return Request((Message("user", text),), Sampling(max_tokens=100))


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"\n {GOOD}\n",
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```\nDone.",
        f"Here it is: {GOOD} I hope {{this}} helps [1].",
        f'<think>maybe {{"question": "?"}} or {{"question": "draft", "answer": 1}}</think> {GOOD}',
        f'{{"question": "draft", "answer": 1}}\n{GOOD}',
        '{"question": "a } and a { in a string, 2+2?", "answer": 4}'.replace("a } and a { in a string, ", ""),
    ],
)
def test_right_json_is_found_wherever_it_stands(text: str) -> None:
    assert parse_answer(Completion(text), Datum) == FOUR


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("I would rather not.", "no JSON"),
        ('{"question": "2+2?", "ans', "Invalid JSON"),
        ('{"question": "2+2?"}', "answer: Field required"),
        ('{"question": "2+2?", "answer": "four"}', "answer: Input should be a valid integer"),
        ('{"question": "2+2?", "answer": -4}', "greater than or equal to 0"),
        ("[" * 100_000, "Invalid JSON"),
        ("x" * 10_000_000, "no JSON"),
        ('{"a":' * 50_000, "Invalid JSON"),
    ],
)
def test_parse_describes_the_error(text: str, complaint: str) -> None:
    results = parse_answer(Completion(text), Datum)
    assert isinstance(results, str)
    assert complaint in results
    assert len(results) < 500


def test_a_page_of_brackets_costs_no_hour() -> None:
    assert len(list(find_candidates("[{" * 500_000))) <= 2


FAULTS: dict[str, tuple[Callable[[Call, int], Reply], int, FailureCause | None, str]] = {
    "truncated JSON": (
        lambda c, n: Reply(GOOD[:20], finish="length") if is_first_request(c) else Reply(GOOD),
        2,
        None,
        "",
    ),
    "wrong schema": (lambda c, n: Reply('{"question": 5}') if is_first_request(c) else Reply(GOOD), 2, None, ""),
    "empty": (lambda c, n: Reply("") if is_first_request(c) else Reply(GOOD), 2, None, ""),
    "prose": (lambda c, n: Reply(f"Gladly. {GOOD} Anything else?"), 1, None, ""),
    "wrong for ever": (lambda c, n: Reply('{"answer": 4}'), 3, FailureCause.MALFORMED, "question: Field required"),
    "empty for ever": (lambda c, n: Reply(""), 3, FailureCause.MALFORMED, "it is empty"),
    "refusal": (lambda c, n: Reply(None, message={"refusal": "No."}), 1, FailureCause.REFUSED, "No."),
    "10 MB": (lambda c, n: Reply("y" * 10_000_000), 1, FailureCause.MALFORMED, "more than"),
}


def is_first_request(call: Call) -> bool:
    return len(call.body["messages"]) == 1


@pytest.mark.parametrize("name", FAULTS)
def test_invalid_answers_are_retried_with_the_error(name: str, tmp_path: Path) -> None:
    fault, calls, cause, message = FAULTS[name]

    def script(call: Call, before: int) -> Reply:
        return fault(call, before) if call.body["messages"][0]["content"] == "bad" else Reply(GOOD)

    with Server(script) as server, Cache(tmp_path / "c.sqlite") as cache:
        engine = CachedEngine(OpenAIEngine(server.model, in_flight=4), cache)
        for _ in range(2):
            answers = ask(engine, [question(text) for text in ("good", "bad", "fine")], Datum)
            assert (answers[0], answers[2]) == (FOUR, FOUR)
            if cause is None:
                assert answers[1] == FOUR
            else:
                assert isinstance(answers[1], Failure)
                assert answers[1].cause is cause
                assert message in answers[1].message
            # The whole dance is in the cache: the second time makes no call.
            assert len(server.calls) == engine.spent().calls == 2 + calls
        again = [call.body for call in server.calls if not is_first_request(call)]
        assert len(again) == calls - 1
        for body in again:
            assert "cannot be used" in body["messages"][-1]["content"]
            assert all(m["content"] for m in body["messages"])
            assert body["response_format"]["json_schema"]["name"] == "Datum"


def test_all_open_questions_of_a_try_are_asked_together() -> None:
    engine = MockEngine(
        lambda request, index: GOOD if len(request.messages) > 1 or "2" in request.messages[0].text[:2] else "?"
    )
    batches: list[int] = []
    generate = engine.generate
    engine.generate = lambda requests: (batches.append(len(requests)), generate(requests))[1]  # type: ignore[method-assign, assignment, func-returns-value]
    assert ask(engine, [question(f"q{k}") for k in range(4)], Datum) == [FOUR] * 4
    assert batches == [4, 3]


def test_schema_is_in_the_prompt_and_retries_have_new_seeds() -> None:
    engine = MockEngine(lambda request, index: "?")
    failure = ask(engine, [question("q")], Datum, tries=2)[0]
    assert isinstance(failure, Failure)
    assert failure.cause is FailureCause.MALFORMED
    first, second = engine.requests
    assert '"answer"' in first.messages[-1].text
    assert first.schema == second.schema == ""
    assert first.seed != second.seed
    assert second.messages[: len(first.messages)] == first.messages


def test_check_adds_conditions() -> None:
    engine = MockEngine(lambda request, index: GOOD.replace("4", "5") if len(request.messages) > 1 else GOOD)
    results = ask(engine, [question("q")], Datum, check=lambda index, datum: "" if datum.answer == 5 else "too easy")
    assert results == [Datum(question="2+2?", answer=5)]
    assert "too easy" in engine.requests[1].messages[-1].text


def test_no_questions_need_no_engine() -> None:
    assert ask(MockEngine({}), [], Datum) == []


def test_strict_schema_requires_all_and_only_named_keys() -> None:
    strict = strict_schema(Lesson.model_json_schema())
    assert strict is not None
    assert strict["required"] == ["data", "note"]
    assert strict["additionalProperties"] is False
    assert strict["properties"]["data"] == {"items": {"$ref": "#/$defs/Datum"}, "type": "array"}
    assert strict["$defs"]["Datum"]["required"] == ["question", "answer"]
    assert strict["properties"]["note"] == {"type": "string"}


def test_a_property_may_be_called_like_a_keyword() -> None:
    class Odd(BaseModel):
        title: str
        default: int

    strict = strict_schema(Odd.model_json_schema())
    assert strict is not None
    assert list(strict["properties"]) == ["title", "default"]


def test_schema_with_free_keys_is_not_strict() -> None:
    class Free(BaseModel):
        counts: dict[str, int]

    sent = response_format(json.dumps(Free.model_json_schema()))["json_schema"]
    assert sent["strict"] is False
    assert sent["schema"] == Free.model_json_schema()
