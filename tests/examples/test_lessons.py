"""Run every lesson example at a tiny size, with the task's own generators and with a language model."""

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
from chat_server import Call, Reply, Server

from palaestra.tasks.base import make_task
from palaestra.tasks.code.task import CodeSkills

FOLDER = Path(__file__).parents[2] / "examples" / "lessons"
TINY = ["--rounds", "1", "--lesson-size", "4", "--validation", "1", "--test", "1"]
SAID = re.compile(r"gain -?[\d.]+ points \[-?[\d.]+, -?[\d.]+\]\n[1-9]\d* examples in 1 rounds")
WITH_A_REPORT = [
    "mathematics_open_ended", "code_open_ended", "code_skill_list", "code_skill_tree", "vision_open_ended",
    "vision_skill_tree", "tools_skill_tree",
]  # fmt: skip
BY_HAND = ["mathematics_skill_list", "mathematics_skill_tree", "vision_skill_list"]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run an example in this process, which has loaded torch already, and give what it printed."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))
    # The student has never seen a program: it goes on to the last token that its answer may have.
    monkeypatch.setattr(CodeSkills, "max_tokens", 32)

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *TINY, "--out", str(tmp_path / "run"), *arguments])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_every_example_is_run_here() -> None:
    kinds = {
        f"{family}_{kind}"
        for family in ("mathematics", "code", "vision")
        for kind in ("open_ended", "skill_list", "skill_tree")
    }
    names = {path.stem for path in FOLDER.glob("[!_]*.py")}
    assert names == {*WITH_A_REPORT, *BY_HAND} == {*kinds, "tools_skill_tree"}


@pytest.mark.backends
@pytest.mark.parametrize("name", WITH_A_REPORT[1:])
def test_example_with_a_run_measures_a_gain_and_reports_it(name: str, play: Callable[..., str], tmp_path: Path) -> None:
    printed = play(name)
    assert SAID.search(printed), printed
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["gain_low"] <= summary["gain"] <= summary["gain_high"]
    assert summary["examples"] > 0
    assert "<html" in (tmp_path / "run" / "report.html").read_text()
    assert f"report: {tmp_path / 'run' / 'report.html'}" in printed


@pytest.mark.parametrize("name", BY_HAND)
def test_example_without_a_run_measures_a_gain(name: str, play: Callable[..., str], tmp_path: Path) -> None:
    printed = play(name)
    assert SAID.search(printed), printed
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["gain_low"] <= summary["gain"] <= summary["gain_high"]
    lesson = json.loads((tmp_path / "run" / "lesson-1.json").read_text())
    assert len(lesson["examples"]) == summary["examples"] == 4
    assert (tmp_path / "run" / "validation-1.json").exists()


def test_an_example_is_a_script(tmp_path: Path) -> None:
    """In a process of its own, from any folder, with a new run folder below it."""
    result = processes.run_script(FOLDER / f"{WITH_A_REPORT[0]}.py", *TINY, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    assert SAID.search(result.stdout), result.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert {"report.html", "summary.json", "store.sqlite"} <= {path.name for path in folder.iterdir()}


def mathematics(number: int) -> dict[str, Any]:
    side, price = 31 + number % 60, 3 + number % 7
    question = (
        f"A square field has sides of {side} m. A metre of fence costs {price}. What does a fence around it cost?"
    )
    reasoning = f"4*{side}={4 * side}. {4 * side}*{price}={4 * side * price}"
    return {"question": question, "reasoning": reasoning, "answer": str(4 * side * price)}


def code(number: int) -> dict[str, Any]:
    name, least = f"above_{number % 997}", number % 50
    return {
        "statement": f"Write `{name}(x)`: the numbers of the list `x` above {least}.",
        "solution": f"def {name}(x):\n    return [n for n in x if n > {least}]",
        "tests": [f"assert {name}([{least}, {least + 1}]) == [{least + 1}]", f"assert {name}([]) == []"],
    }


def vision(number: int) -> dict[str, Any]:
    (example,) = make_task("vision-skills").write_examples("pattern", "", 1, np.random.default_rng(number))  # type: ignore[attr-defined]
    reasoning, answer = example.response.split(" Answer: ")
    return {
        "scene": example.metadata["scene"], "question": example.messages[0].content[1].text, "reasoning": reasoning,
        "answer": answer, "choices": example.metadata["choices"],
    }  # fmt: skip


def tools(number: int) -> dict[str, Any]:
    pieces = 2 + number % 90
    return {"request": f"What do {pieces} pieces of the vase cost?", "plan": f'order_cost("vase", {pieces})'}


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("mathematics_skill_tree", mathematics),
        ("code_open_ended", code),
        ("vision_skill_list", vision),
        ("tools_skill_tree", tools),
    ],
)
def test_a_language_model_writes_where_one_is_named(
    name: str, write: Callable[[int], dict[str, Any]], play: Callable[..., str], tmp_path: Path
) -> None:
    def answer(call: Call, times: int) -> Reply:
        match = re.search(r"rite (\d+) new", call.asked)
        assert match is not None
        start = int(call.body["seed"])
        data = [write(start + 13 * place) for place in range(int(match[1]))]
        return Reply(json.dumps({"hypothesis": "It has not seen any.", "data": data}))

    with Server(answer) as server:
        printed = play(name, "--teacher", server.model)
        assert server.calls
    assert SAID.search(printed), printed
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["examples"] > 0
