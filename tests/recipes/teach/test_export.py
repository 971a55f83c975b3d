"""`lessons.jsonl` contains the taught examples in a format that other trainers load."""

import json
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.records import Example, ImagePart, Lesson, Message, TextPart, ToolCall
from palaestra.recipes.export.tables import write_lessons
from palaestra.recipes.settings import to_plain
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.report import write_report
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.run import Run

PICTURE = "data:image/png;base64,iVBORw0KGgo="


def make_run(folder: Path, *lessons: Lesson) -> Run:
    run = Run.create(folder, "teach", to_plain(TeachSettings(rounds=2)))
    for round_, lesson in enumerate(lessons, 1):
        run.store.add_lesson(round_, lesson, LedgerEntry(f"{round_}/lesson"))
    return run


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def test_each_example_is_a_line_with_messages_and_metadata(tmp_path: Path) -> None:
    system = (Message("system", "Be short."), Message("user", "1 + 1?\u2028"))
    first = Example(system, "2", "sums", "small", "2", {"tests": ["a"], "level": 1})
    second = Example((Message("user", "Fläche?"),), "4", "shapes", metadata={"tests": {"b": None}})
    with make_run(tmp_path / "run", Lesson((first,)), Lesson((second,))) as run:
        path = write_lessons(run)
    result = read_rows(path)
    assert result[0]["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "1 + 1?\u2028"},
        {"role": "assistant", "content": "2"},
    ]
    assert [(row["round"], row["position"], row["skill"], row["subskill"], row["reference"]) for row in result] == [
        (1, 0, "sums", "small", "2"),
        (2, 0, "shapes", "", ""),
    ]
    assert json.loads(result[1]["metadata"]) == {"tests": {"b": None}}
    write_report(tmp_path / "run")  # Of a run that has not ended; it writes the lessons too.
    assert read_rows(path) == result


def test_pictures_and_tool_calls_keep_one_type_in_every_line(tmp_path: Path) -> None:
    seen = Example((Message("user", (ImagePart(PICTURE), TextPart("What?"))),), "A square.", "colour")
    call = Message("assistant", "", (ToolCall("add", '{"a": 1}', "c1"),))
    asked = Example((Message("user", "1 + 1?"), call, Message("tool", "2", (), "c1")), "2", "sums")
    with make_run(tmp_path / "run", Lesson((seen, asked))) as run:
        result = read_rows(write_lessons(run))
    assert result[0]["messages"][0]["content"] == [
        {"type": "image", "text": None, "url": PICTURE},
        {"type": "text", "text": "What?", "url": None},
    ]
    assert result[0]["messages"][1]["content"] == [{"type": "text", "text": "A square.", "url": None}]
    calling = result[1]["messages"][1]
    assert calling["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert result[1]["messages"][2]["tool_call_id"] == "c1"


def test_datasets_and_trl_read_the_lines_as_conversations(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    plain = [Example((Message("user", f"{k}?"),), "yes", "s", metadata={"x": k if k else ["y"]}) for k in range(3)]
    seen = Example((Message("user", (ImagePart(PICTURE), TextPart("What?"))),), "A square.", "colour")
    call = Message("assistant", "", (ToolCall("add", "{}", "c1"),))
    for name, examples in (("text", plain), ("mixed", [*plain, seen, Example((Message("user", "?"), call), "2", "s")])):
        with make_run(tmp_path / name, Lesson(tuple(examples))) as run:
            path = write_lessons(run)
        read = datasets.load_dataset(
            "json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache" / name)
        )
        assert read["skill"][:3] == ["s"] * 3
        assert read[0]["messages"][-1]["role"] == "assistant"
        assert len(read) == len(examples)
    trl = pytest.importorskip("trl.data_utils")
    assert trl.is_conversational({"messages": read_rows(tmp_path / "text" / "lessons.jsonl")[0]["messages"]})
