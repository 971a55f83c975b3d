"""User teachers that cheat or raise, installed as plugins and run by `palaestra teach`."""

import json
from pathlib import Path

import processes
import pytest

PLUGIN = """
from palaestra.core.records import Example, Lesson, Message, Split

POLITE = "Please answer: "


class Honest:
    def __init__(self, task, skills=()):
        self.task, self.skills = task, skills or tuple(task.skills())

    def examples(self, size, generator):
        each = -(-size // len(self.skills))
        return [e for skill in self.skills for e in self.task.write_examples(skill, "", each, generator)][:size]

    def write(self, state, size, generator):
        return Lesson(tuple(self.examples(size, generator)))


class CopiesTest(Honest):
    split, before = Split.TEST, ""

    def stolen(self, size):
        problems = self.task.problems(self.split, 3 if self.split is Split.TEST else 2, 0, self.skills)
        copies = [
            Example((Message("user", self.before + p.messages[-1].text),), p.metadata["worked"], p.skill)
            for p in problems
        ]
        return (copies * size)[:size]

    def write(self, state, size, generator):
        return Lesson(tuple(self.stolen(size)))


class CopiesValidation(CopiesTest):
    split, before = Split.VALIDATION, POLITE


class HalfCopied(CopiesTest):
    before = POLITE

    def write(self, state, size, generator):
        return Lesson((*self.stolen(size // 2), *self.examples(size - size // 2, generator)))


class ReturnsList(Honest):
    def write(self, state, size, generator):
        return self.examples(size, generator)


class Raises(Honest):
    def write(self, state, size, generator):
        return {}["lesson"]


class WrongExample(Honest):
    def write(self, state, size, generator):
        return Lesson((Example((Message("teacher", "1+1?"),), "2", "addition"),))
"""
COMMAND = "from palaestra.cli.main import main\nmain()\n"
NAMES = ("CopiesTest", "CopiesValidation", "HalfCopied", "ReturnsList", "Raises", "WrongExample")
TEACH = [
    "teach", "--skill", "addition", "--skill", "geometry", "--rounds", "1", "--lesson-size", "8", "--validation", "2",
    "--test", "3", "--epochs", "1", "--threads", "1", "--answer-tokens", "24",
]  # fmt: skip


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command, beside an installed package with teachers."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "own_teachers.py").write_text(PLUGIN)
    (folder / "palaestra_command.py").write_text(COMMAND)
    info = folder / "own_teachers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-teachers\nVersion: 1.0\n")
    points = "\n".join(f"{name} = own_teachers:{name}" for name in NAMES)
    (info / "entry_points.txt").write_text(f"[palaestra.teachers]\n{points}\n")
    return folder / "palaestra_command.py"


def find_line(text: str) -> int:
    return next(number for number, line in enumerate(PLUGIN.splitlines(), 1) if text in line)


def write_line(name: str) -> int:
    """The line of a teacher's own `write`."""
    return find_line(f"class {name}") + PLUGIN.split(f"class {name}")[1].split("    def write")[0].count("\n")


@pytest.mark.parametrize(
    ("teacher", "expected"),
    [
        ("CopiesTest", "repeats a test problem 8"),
        ("CopiesValidation", "repeats a validation problem 8"),
        ("ReturnsList", f"returned list (own_teachers.py, line {write_line('ReturnsList')})"),
        ("Raises", f"KeyError: 'lesson' (own_teachers.py, line {find_line('lesson' + chr(34) + ']')})"),
        ("WrongExample", "examples.1.messages.1.role: "),
    ],
)  # fmt: skip
def test_cheating_or_broken_teacher_ends_without_a_gain(
    teacher: str, expected: str, command: Path, tmp_path: Path
) -> None:
    result = processes.run_script(command, *TEACH, "--teacher", teacher, "--out", tmp_path / "run")
    assert result.returncode == 2, result
    assert result.stderr.strip().count("\n") == 0
    assert f"teacher '{teacher}'" in result.stderr
    assert expected in result.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["gain"], summary["after"], summary["delivered"]) == (None, None, 0)
    assert expected in summary["error"]


def test_copied_examples_are_dropped_and_counted(command: Path, tmp_path: Path) -> None:
    result = processes.run_script(command, *TEACH, "--teacher", "HalfCopied", "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert "examples: 8 ordered, 4 delivered, 4 fewer than were ordered" in result.stdout
    assert "dropped by checks: overlap: repeats a test problem 4" in result.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["ordered"], summary["delivered"], summary["examples"]) == (8, 4, 4)
    assert summary["dropped"] == {"overlap: repeats a test problem": 4}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "of 8 ordered" in page
    assert "overlap: repeats a test problem 4" in page
