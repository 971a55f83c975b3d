"""m&m's: published plans, extraction and scoring of answers, and lessons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.core.errors import SettingsError, TaskError, TooFewProblemsError
from palaestra.core.records import Attempt, Completion, Example, Message, Score, Split
from palaestra.tasks.base import EVERY, GenerativeTask, UnusableError, WritableTask, make_task
from palaestra.tasks.tools.mnms.plans import (
    TOOLS,
    check_plan,
    extract_plan,
    measure_plans,
    read_literal,
    read_nodes,
    write_plan,
)
from palaestra.tasks.tools.mnms.task import FILTERED, RAW, VERIFIED, Mnms

CAPTION = {"id": 0, "name": "image captioning", "args": {"image": "a.jpg"}}
SHORTEN = {"id": 1, "name": "text summarization", "args": {"text": "<node-0>.text"}}
FACT = {"id": 0, "name": "get year fact", "args": {"year": 2017}}
PLAN = [CAPTION, SHORTEN]


def row(number: int, plan: list[dict[str, Any]] = PLAN, alternatives: Any = None) -> dict[str, Any]:
    return {
        "id": number, "user_request": f'"Describe the image a.jpg in short. Version {number}."', "plan_str": str(plan),
        "code_str": "def solve(): ...", "alt_plans_str": None if alternatives is None else str(alternatives),
    }  # fmt: skip


def publish(folder: Path, **files: list[dict[str, Any]]) -> Path:
    """Files as the hub has them: JSON lines, in a `.json`."""
    for name, rows in files.items():
        (folder / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def value(task: Mnms, text: str) -> float:
    (problem,) = task.problems(Split.TEST, 1, 0, ["two_calls"])
    result = task.score(problem, Completion(text))
    assert isinstance(result, Score)
    return result.value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    verified = [row(k) for k in (1, 2, 3)] + [row(4, [FACT])]
    return publish(tmp_path, **{
        FILTERED: [row(1, alternatives=[[{"id": 0, "name": "image_classification", "args": {"image": "a.jpg"}}]]), row(9, [FACT])],
        VERIFIED: verified,
        RAW: [*verified, row(5), row(6, [FACT]), row(7) | {"plan_str": "[{'id':"}, row(8) | {"user_request": row(5)["user_request"]}],
    })  # fmt: skip


def test_parts_of_published_files(folder: Path) -> None:
    task = Mnms(str(folder))
    result = {split: sorted(problem.id for problem in task.problems(split, EVERY, 0)) for split in Split}
    assert result == {
        Split.TEST: ["mnms/1", "mnms/9"],
        Split.VALIDATION: ["mnms/2", "mnms/3", "mnms/4"],
        Split.TRAIN: ["mnms/5", "mnms/6"],
    }
    (problem,) = task.problems(Split.VALIDATION, 1, 0, ["one_call"])
    assert (problem.subskill, problem.metadata["level"], problem.metadata["type"]) == ("services", "1", "services")
    assert all(f"{tool.signature}: {tool.description}\n" in problem.messages[0].text for tool in TOOLS.values())
    assert [len(Mnms(str(folder), parts="published").problems(split, EVERY, 0)) for split in Split] == [0, 0, 2]


def test_missing_parts_are_made_by_hash(tmp_path: Path) -> None:
    publish(tmp_path, **{FILTERED: [row(k) for k in range(60)]})
    alone = [len(Mnms(str(tmp_path)).problems(split, EVERY, 0)) for split in Split]
    assert sum(alone) == 60
    assert alone[2] > alone[0] > 0 < alone[1]
    publish(tmp_path, **{VERIFIED: [row(k) for k in range(120)]})
    both = [len(Mnms(str(tmp_path)).problems(split, EVERY, 0)) for split in Split]
    assert (both[2], sum(both)) == (60, 120)
    assert both[1] > both[0] > 0
    with pytest.raises(TaskError, match="test_human_verified_filtered"):
        Mnms(str(tmp_path.parent)).problems(Split.TEST, EVERY, 0)


@pytest.mark.parametrize(
    "plan", ["[{'id':", "[]", "[3]", "{'name': 'count'}", "[{'id': 0, 'name': 'count', 'args': 3}]"]
)
def test_invalid_verified_plan_is_named(tmp_path: Path, plan: str) -> None:
    publish(tmp_path, **{FILTERED: [row(0), row(1) | {"plan_str": plan}]})
    with pytest.raises(TaskError, match=r"filtered\.json, row 2: ") as caught:
        Mnms(str(tmp_path)).problems(Split.TEST, EVERY, 0)
    assert "\n" not in str(caught.value)


ANSWERS = [
    ("```json\n" + json.dumps({"nodes": PLAN}) + "\n```", (1, 1, 1)),
    ("I plan: " + json.dumps(PLAN), (1, 1, 1)),
    ("\n".join(json.dumps(node) for node in PLAN), (1, 1, 1)),
    ('```python\ndef solve():\n    output0 = image_captioning(image="a.jpg")\n    output1 = text_summarization(text=output0["text"])\n    return output1\n```', (1, 1, 1)),
    ("```python\nwords = image_captioning(image='a.jpg')\nshort = text_summarization(text=f\"{words['text']}\")\n```", (1, 1, 1)),
    (json.dumps({"nodes": [CAPTION | {"name": "image_captioning"}, SHORTEN | {"args": {"text": "<node-0>.image"}}]}), (1, 1, 0)),
    (json.dumps([CAPTION, SHORTEN | {"args": {"words": "<node-0>.text"}}]), (1, 0, 0)),
    (json.dumps([SHORTEN, CAPTION]), (0, 0, 0)),
    (json.dumps([CAPTION]), (0, 0, 0)),
    (json.dumps([*PLAN, FACT]), (0, 0, 0)),
    ("image captioning, then text summarization", (0, 0, 0)),
    ("", (0, 0, 0)),
    ('{"nodes": [{"id": "x", "name": 3}]}', (0, 0, 0)),
    ("[" * 5000, (0, 0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "right"), ANSWERS)
def test_scoring_by_tools_names_and_values(folder: Path, text: str, right: tuple[int, int, int]) -> None:
    result = [value(Mnms(str(folder), match=match), text) for match in ("tools", "names", "values")]
    assert result == list(right)
    assert value(Mnms(str(folder), answer_form="code"), text) == right[0]


def test_alternative_plans(folder: Path) -> None:
    other = json.dumps([{"id": 0, "name": "image classification", "args": {"image": "a.jpg"}}])
    assert value(Mnms(str(folder)), other) == 0
    assert value(Mnms(str(folder), alternatives=True), other) == 1


def test_metrics_of_the_benchmark() -> None:
    """The figures are those of RAIVNLab/mnms for these plans; its edit distance ran over a stand-in for Levenshtein.ratio."""

    def call(name: str, place: int = 0, **args: Any) -> dict[str, Any]:
        return {"id": place, "name": name, "args": args}

    pairs = [
        (PLAN, [CAPTION | {"args": {"image": "A.jpg"}}, SHORTEN]),
        ([call("object detection", image="b.jpg"), call("count", 1, objects="<node-0>.objects")], [call("image captioning", image="b.jpg")]),
        ([call("get weather", lon="1", lat="2")], [call("get weather", lat="2"), call("summon", 1)]),
        ([FACT], [FACT | {"args": {"year": "2017"}}]),
        ([call("text generation", text="x"), call("text classification", 1, text="<node-0>.text")],
         [call("text classification", text="x"), call("text generation", 1, text="<node-0>.text")]),
    ]  # fmt: skip
    result = measure_plans([(read_nodes(gold), read_nodes(plan)) for gold, plan in pairs], list("abcde"))
    assert {name: round(100 * mean.value, 2) for name, mean in result.items()} == {
        "tool F1": round(17.171717 * 33 / 8, 2),  # Theirs is the mean over all 33 tools; 8 occur.
        "argument name F1": 62.5,
        "argument value F1": 37.5,
        "edge F1": 33.33,
        "edit distance": 36.67,
        "argument name accuracy": 40.0,
        "argument value accuracy": 40.0,
    }
    assert all(mean.low <= mean.value <= mean.high and mean.count == 5 for mean in result.values())


def test_metrics_leave_out_failures(folder: Path) -> None:
    task = Mnms(str(folder))
    (problem,) = task.problems(Split.TEST, 1, 0, ["two_calls"])
    score = task.score(problem, Completion(json.dumps(PLAN)))
    result = task.metrics([Attempt(problem, Completion(json.dumps(PLAN)), score)])
    assert (result["tool F1"].value, result["edit distance"].value) == (1.0, 0.0)
    assert task.metrics([]) == {}


@pytest.mark.parametrize("form", ["json", "code"])
def test_lessons_from_the_train_part(folder: Path, form: str) -> None:
    task = make_task("mnms", path=str(folder), answer_form=form, prompt="short")
    assert isinstance(task, GenerativeTask)
    for skill in ("one_call", "two_calls"):
        examples = task.write_examples(skill, "", 3, np.random.default_rng(0))
        assert len(examples) == 3
        for example in examples:
            problem = task.to_problem(example)  # type: ignore[attr-defined]
            assert task.score(problem, Completion(example.response)).value == 1.0  # type: ignore[union-attr]
    with pytest.raises(TaskError, match="'more_calls'"):
        task.write_examples("more_calls", "", 1, np.random.default_rng(0))
    with pytest.raises(TooFewProblemsError):
        task.problems(Split.VALIDATION, 2, 0)


def datum(*steps: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"request": "Describe a.jpg in short.", "plan": [{"tool": tool, "arguments": args} for tool, args in steps]}


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (datum(("image captioning", {"image": "a.jpg"}), ("text_summarization", {"text": "<node-0>.text"})), ""),
        (datum(("summon", {})), "'summon'"),
        (datum(("image editing", {"image": "a.jpg"})), "image editing .*image, prompt"),
        (datum(("count", {"objects": "<node-0>.objects"})), "node 0"),
        (
            datum(("count", {"objects": "x"}), ("tag", {"image": "a", "objects": "<node-0>.objects"})),
            "count .*output",
        ),
    ],
)
def test_written_plans_must_be_executable(folder: Path, plan: dict[str, Any], why: str) -> None:
    task = Mnms(str(folder))
    assert isinstance(task, WritableTask)
    written = task.datum.model_validate(plan)
    if why:
        with pytest.raises(UnusableError, match=why):
            task.make_example(written, "two_calls", "models")
        return
    example = task.make_example(written, "two_calls", "models")
    assert extract_plan(example.response) == read_nodes(PLAN) == read_nodes(read_literal(example.reference))
    assert task.execute_example(example) == Score(1.0, {})
    spoiled = Example(example.messages, example.response.replace("image captioning", "summon"), "two_calls")
    result = task.execute_example(spoiled)
    assert isinstance(result, Score)
    assert result.value == 0
    assert task.execute_example(Example((Message("user", "x"),), "no plan", "two_calls")) == Score(
        0.0, {"detail": "there is no plan"}
    )


def test_code_round_trip() -> None:
    nodes = read_nodes([
        CAPTION, SHORTEN,
        {"id": 2, "name": "image generation", "args": {"text": 'a "{vivid}" picture of <node-1>.text\nand <node-0>.text'}},
        {"id": 3, "name": "get year fact", "args": {"year": 2017}},
    ])  # fmt: skip
    check_plan(nodes)
    for form in ("json", "code"):
        assert extract_plan(write_plan(nodes, form), form) == nodes


def test_invalid_options() -> None:
    for option in ("parts", "answer_form", "prompt", "match"):
        with pytest.raises(SettingsError, match=f"'{option}' of mnms: .*'x'"):
            make_task("mnms", **{option: "x"})
