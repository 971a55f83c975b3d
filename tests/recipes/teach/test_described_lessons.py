"""Whole runs in which a writer describes pictures and an image generator draws them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sketch_generator
from chat_server import Call, Reply, Server
from PIL import Image

from palaestra.core.errors import SettingsError, UnknownNameError
from palaestra.core.records import Failure
from palaestra.recipes.teach import recipe as teach
from palaestra.report import write_report
from palaestra.runs.run import Run
from palaestra.tasks.base import make_task
from palaestra.tasks.vision.image_generators.base import Description
from palaestra.teachers.quality.base import Inspection

SMALL: dict[str, Any] = {
    "task": "vision-skills", "task_kwargs": {"images": "sketch,size=64", "images_seed": 3}, "student": "nano-vlm",
    "skills": ("colour",), "rounds": 1, "lesson_size": 6, "validation": 1, "test": 1, "epochs": 1, "threads": 1,
    "teacher": "no_state", "checks": ("readable", "scorer", "picture", "duplicates"),
}  # fmt: skip
WORDS = ("a red disc", "a blue disc", "a forbidden thing", "nothing", "a green disc", "a yellow disc")


def reply_descriptions(call: Call, times: int) -> Reply:
    """Reply with two descriptions per kind of question. One of them is refused, and one gives an empty image."""
    kinds = list(make_task("vision-skills").skills()["colour"])
    asked = re.search(r'rite 2 new data .* of the kind "(\w+)"', call.asked)
    assert asked, call.asked
    first = 2 * kinds.index(asked[1])
    data = [
        {
            "description": words,
            "question": "What colour is the disc?",
            "reasoning": "There is one disc",
            "answer": words.split()[1] if " " in words else "white",
        }
        for words in WORDS[first : first + 2]
    ]
    return Reply(json.dumps({"hypothesis": "", "data": data}))


@pytest.fixture(autouse=True)
def use_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))
    sketch_generator.SketchGenerator.asked.clear()


def list_generated() -> list[str]:
    return [words for asked in sketch_generator.SketchGenerator.asked for words in asked]


def test_described_images_are_generated_once_across_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = sketch_generator.SketchGenerator.generate

    def generate_or_stop(
        self: sketch_generator.SketchGenerator, descriptions: Sequence[Description], seed: int
    ) -> list[Image.Image | Failure]:
        if len(list_generated()) + len(descriptions) > 4:
            raise KeyboardInterrupt
        return generate(self, descriptions, seed)

    with Server(reply_descriptions) as server:
        settings = SMALL | {"writer": server.model, "cache": str(tmp_path / "calls.sqlite"), "top_up": 0}
        whole = teach.teach(out=tmp_path / "whole", **settings)
        calls, once = len(server.calls), list_generated()
        assert sorted(once) == sorted(WORDS)  # Each once, though data are looked at twice: to judge, and to use them.
        schema = json.dumps(server.calls[0].body)
        assert "description" in schema
        assert "does not see the question" in schema

        # Killed while it paints, and resumed: the same lesson, and nothing that was generated is generated again.
        monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "other"))
        sketch_generator.SketchGenerator.asked.clear()
        monkeypatch.setattr(sketch_generator.SketchGenerator, "generate", generate_or_stop)
        with pytest.raises(KeyboardInterrupt):
            teach.teach(out=tmp_path / "killed", **settings)
        before = list_generated()
        assert 0 < len(before) < len(WORDS)
        monkeypatch.setattr(sketch_generator.SketchGenerator, "generate", generate)
        with Run.open(tmp_path / "killed") as run:
            resumed = teach.resume(run)
        later = list_generated()[len(before) :]
        assert {*before, *later} == set(WORDS)
        assert set(before) & set(later) <= {"a forbidden thing"}  # A refusal is no picture that could be kept.
        assert len(server.calls) == calls
    assert resumed.summary["weights_sha256"] == whole.summary["weights_sha256"]
    lessons = []
    for name in ("whole", "killed"):
        with Run.open(tmp_path / name, read_only=True) as run:
            lessons.append(run.store.lesson(1))
            (inspection,) = run.store.inspections(Inspection).values()
    assert lessons[0] == lessons[1]
    lesson = lessons[0]
    assert lesson is not None
    assert {example.metadata["description"] for example in lesson.examples} == {w for w in WORDS if "disc" in w}
    assert len(lesson.examples) == 4
    assert any(d.action == "failed" and "(refused): this is not generated" in d.reason for d in lesson.decisions)
    assert [(drop.check, drop.reason) for drop in inspection.dropped] == [("picture", "the image shows nothing")]
    assert inspection.check("picture").not_judged == 4
    assert "the image shows nothing" in write_report(tmp_path / "whole").read_text()


def test_missing_or_unknown_image_generator_is_refused_early(
    tmp_path: Path,
) -> None:
    values = SMALL | {"writer": "http://127.0.0.1:9/v1#nobody"}
    with pytest.raises(SettingsError, match="no schema"):
        teach.teach(out=tmp_path / "run", **(values | {"task": "gqa", "task_kwargs": {}, "skills": ()}))
    with pytest.raises(UnknownNameError, match="'sketch'"):
        teach.teach(out=tmp_path / "run", **(values | {"task_kwargs": {"images": "scetch"}}))
    assert not (tmp_path / "run").exists()
