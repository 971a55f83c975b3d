r"""The tasks of published problems: GSM8K and MATH."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.core.errors import MissingExtraError, SettingsError, TaskError, TooFewProblemsError, UnknownNameError
from palaestra.core.records import Completion, Failure, Problem, Score, Split
from palaestra.tasks import sources
from palaestra.tasks.base import GenerativeTask, Task, make_task
from palaestra.tasks.math.equivalence import sympy_process
from palaestra.tasks.math.published import INSTRUCTION, LEVELS, OPERATIONS, STEPS, TYPES, WorkedTask

DATA = Path(os.environ.get("PALAESTRA_DATA") or Path(__file__).parents[4] / "shared" / "data")


def gsm8k_rows(count: int, split: str) -> list[dict[str, str]]:
    """Rows in the published format, of all step counts and operations."""
    rows = []
    for k in range(count):
        steps, sign = k % 5 + 2, "+*"[k // 5 % 2]
        value, lines = k + 2, []
        for _ in range(steps):
            after = value + 3 if sign == "+" else value * 3
            lines.append(f"That makes {value} {sign} 3 = <<{value}{sign}3={after}>>{after} eggs.")
            value = after
        rows.append(
            {
                "question": f"{split}: Ann has {k + 2} eggs. How many then?",
                "answer": "\n".join(lines) + f"\n#### {value:,}",
            }
        )
    return rows


def math_rows(count: int, split: str) -> list[dict[str, str]]:
    """Rows in the published format: problem, level, type, solution."""
    rows = []
    for k in range(count):
        kind, level = list(TYPES)[k % 7], k // 7 % 5 + 1
        solution = f"Half of it is ${k}$. So we get $\\frac{{{k}}}{{2}} = \\boxed{{\\frac{{{k}}}{{2}}}}$."
        rows.append(
            {
                "problem": f"{split}: What is half of ${k}$?",
                "level": f"Level {level}",
                "type": kind,
                "solution": solution,
            }
        )
    return rows


@pytest.fixture
def gsm8k(tmp_path: Path) -> Path:
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    (folder / "test.jsonl").write_text("\n".join(map(json.dumps, gsm8k_rows(40, "test"))) + "\n")
    # A train row that repeats a test question: it must not be taught.
    train = [*gsm8k_rows(400, "train"), gsm8k_rows(1, "test")[0]]
    with gzip.open(folder / "train.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, train)))
    return folder


@pytest.fixture
def math(tmp_path: Path) -> Path:
    """One split as lines, the other as its authors publish it: a file a problem."""
    folder = tmp_path / "math"
    folder.mkdir()
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, math_rows(2800, "train"))))
    for k, row in enumerate(math_rows(140, "test")):
        file = folder / "test" / TYPES[row["type"]] / f"{k}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(row))
    return folder


def make_worked_task(name: str, **options: Any) -> WorkedTask:
    task = make_task(name, **options)
    assert isinstance(task, WorkedTask)
    return task


def value(task: Task, problem: Problem, text: str) -> float:
    outcome = task.score(problem, Completion(text))
    assert isinstance(outcome, Score)
    return outcome.value


def test_listing_the_tasks_loads_nothing() -> None:
    code = (
        "import sys; from palaestra.tasks.base import GenerativeTask, make_task; [make_task(n).skills() for n in ('gsm8k', 'math')]; "
        "print([m for m in ('sympy', 'math_verify', 'torch', 'datasets', 'latex2sympy2_extended') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
    assert isinstance(make_task("gsm8k"), GenerativeTask)
    assert isinstance(make_task("math"), GenerativeTask)


def test_gsm8k_is_sliced_by_steps_and_operations(gsm8k: Path) -> None:
    task = make_worked_task("gsm8k", path=str(gsm8k))
    assert task.skills() == dict.fromkeys(STEPS, OPERATIONS)
    problems = task.problems(Split.TEST, 8, 0)
    assert len({p.id for p in problems}) == len(problems) == 40
    for problem in problems:
        assert len(problem.metadata["worked"].splitlines()) == STEPS.index(problem.skill) + 3
        assert problem.subskill == ("additive" if "+" in problem.metadata["worked"] else "multiplicative")
        assert "<<" not in problem.metadata["worked"]
        assert value(task, problem, problem.metadata["worked"]) == 1.0
        assert value(task, problem, f"#### {problem.reference}") == 1.0
        assert value(task, problem, f"The answer is {problem.reference}1.") == 0.0
        assert value(task, problem, "I do not know.") == 0.0


def test_math_is_balanced_by_type_and_level(math: Path) -> None:
    task = make_worked_task("math", path=str(math))
    assert task.skills() == dict.fromkeys(TYPES.values(), LEVELS)
    problems = task.problems(Split.VALIDATION, 10, 0)
    cells = {
        (s, level): sum((p.skill, p.subskill) == (s, level) for p in problems)
        for s in TYPES.values()
        for level in LEVELS
    }
    assert set(cells.values()) == {2}
    for problem in problems[:10]:
        assert value(task, problem, problem.metadata["worked"]) == 1.0
        assert value(task, problem, rf"\boxed{{{problem.reference} + \sqrt{{2}}}}") == 0.0


@pytest.mark.parametrize("name", ["gsm8k", "math"])
def test_no_question_is_in_two_splits(name: str, request: pytest.FixtureRequest) -> None:
    task = make_worked_task(name, path=str(request.getfixturevalue(name)))
    asked = {s: {i.question for i in task._load()[s]} for s in Split}
    taught = {
        e.messages[-1].text
        for skill in task.skills()
        for e in task.write_examples(skill, "", 200, np.random.default_rng(0))
    }
    assert not asked[Split.TRAIN] & asked[Split.VALIDATION]
    assert not asked[Split.TEST] & (asked[Split.TRAIN] | asked[Split.VALIDATION])
    assert taught <= {f"{question}\n\n{INSTRUCTION}" for question in asked[Split.TRAIN]}
    share = len(asked[Split.VALIDATION]) / (len(asked[Split.VALIDATION]) + len(asked[Split.TRAIN]))
    assert 0.08 < share < 0.22


def test_problems_depend_on_the_seed_alone(gsm8k: Path) -> None:
    first, again, other = (make_task("gsm8k", path=str(gsm8k)).problems(Split.TEST, 4, seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_shots_are_train_problems_that_are_not_taught(gsm8k: Path) -> None:
    task = make_task("gsm8k", path=str(gsm8k), shots=3)
    assert isinstance(task, GenerativeTask)
    problems = task.problems(Split.TEST, 2, 0)
    assert {len(p.messages) for p in problems} == {7}
    assert len({p.messages[:6] for p in problems}) == 1
    shown = {message.text for message in problems[0].messages[:6:2]}
    assert all(text.startswith("train") for text in shown)
    examples = [e for skill in task.skills() for e in task.write_examples(skill, "", 300, np.random.default_rng(0))]
    assert not shown & {e.messages[-1].text for e in examples}
    with pytest.raises(SettingsError, match=r"'shots'.* -1"):
        make_task("gsm8k", shots=-1)


def test_examples_spread_over_the_levels_and_repeat(math: Path) -> None:
    task = make_worked_task("math", path=str(math))
    examples = task.write_examples("algebra", "", 50, np.random.default_rng(0))
    assert [sum(e.subskill == level for e in examples) for level in LEVELS] == [10] * 5
    assert len(task.write_examples("algebra", "level_1", 100, np.random.default_rng(0))) == 100
    with pytest.raises(UnknownNameError, match="'level_1'"):
        task.write_examples("algebra", "level1", 1, np.random.default_rng(0))


def test_percent_signs_count_unless_asked_for(gsm8k: Path) -> None:
    task = make_worked_task("gsm8k", path=str(gsm8k))
    asks = Problem("a", (), "10", metadata={"question": "A tenth is eaten. What percentage is that?"})
    other = Problem("b", (), "10", metadata={"question": "He gave 20 percent away. How many are left?"})
    assert value(task, asks, r"\boxed{10\%}") == value(task, asks, r"\boxed{10}") == 1.0
    assert value(task, other, r"\boxed{10\%}") == 0.0
    unsigned = Problem(
        "c", (), "10", metadata={"question": "What is the rate? Give it as a percentage without the sign."}
    )
    assert value(task, unsigned, r"\boxed{10}\%") == value(task, unsigned, r"\boxed{10}") == 1.0


def test_answers_in_the_words_of_the_question(gsm8k: Path) -> None:
    task = make_worked_task("gsm8k", path=str(gsm8k))
    for text in (
        "Final Answer: The largest $n$ is 34.",
        "Final Answer: The number of eggs that $A$ has is 34.",
        "Final Answer: Ann has 34 eggs, and $x$ is unknown.",
        "The answer is that Ann has $34 left.",
        "**Final Answer:** There are **34** eggs.",
    ):
        assert value(task, Problem("a", (), "34"), text) == 1.0, text
        assert value(task, Problem("a", (), "35"), text) == 0.0, text


@pytest.mark.parametrize(
    ("response", "reference", "right"),
    [
        (r"So $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}", 1.0),  # A box is enough: no phrase is needed.
        (r"\boxed{\frac12}", "0.5", 1.0),
        (r"\boxed{1,2}", "12", 0.0),
        (r"\boxed{12}", "1,2", 0.0),
        (r"\boxed{1,200}", "1200", 1.0),
        ("[invalidanswer]", "[invalidanswer]", 0.0),
        (r"\boxed{}", r"\boxed{}", 0.0),
    ],
)
def test_verdicts_of_math(response: str, reference: str, right: float) -> None:
    pytest.importorskip("math_verify", reason="the scorer of MATH needs palaestra[math]")
    task = make_worked_task("math")
    assert value(task, Problem("a", (), reference), response) == right


def test_evidence_of_a_score(gsm8k: Path) -> None:
    task = make_worked_task("gsm8k", path=str(gsm8k))
    score = task.score(Problem("a", (), "18"), Completion(r"So \boxed{\text{She makes } \$18 \text{ a day}}"))
    assert isinstance(score, Score)
    assert score.value == 1.0
    assert score.evidence["found"] == "boxed"
    silent = task.score(Problem("a", (), "18"), Completion("Hm."))
    assert isinstance(silent, Score)
    assert (silent.value, silent.evidence["found"], silent.evidence["note"]) == (0.0, "no answer", "no answer")


def test_a_reference_that_is_no_number_is_a_failure(gsm8k: Path) -> None:
    assert isinstance(make_task("gsm8k").score(Problem("a", (), "lost"), Completion("5")), Failure)


def test_lists_parquet_and_saved_datasets_are_read_like_lines(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    tables = {split: datasets.Dataset.from_list(math_rows(70, split)) for split in ("train", "test")}
    for split, table in tables.items():
        (tmp_path / "list").mkdir(exist_ok=True)
        (tmp_path / "list" / f"{split}.json").write_text(json.dumps(math_rows(70, split)))
        (tmp_path / "table" / "data").mkdir(exist_ok=True, parents=True)
        table.to_parquet(str(tmp_path / "table" / "data" / f"{split}-00000-of-00001.parquet"))
    datasets.DatasetDict(tables).save_to_disk(str(tmp_path / "saved"))
    problems = [
        make_task("math", path=str(tmp_path / kind)).problems(Split.TEST, 5, 0) for kind in ("list", "table", "saved")
    ]
    assert problems[0] == problems[1] == problems[2]


def test_invalid_data_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "?", "answer": "no mark"}\n')
    (tmp_path / "test.jsonl").write_text('{"question": "?"}\n')
    monkeypatch.delenv("PALAESTRA_DATA", raising=False)
    with pytest.raises(TaskError, match=r"row 1: .*'answer'"):
        make_task("gsm8k", path=str(tmp_path)).problems(Split.TEST, 1, 0)
    (tmp_path / "test.jsonl").write_text('{"question": "?", "answer": "#### 5"}\n')
    with pytest.raises(TaskError, match="'#### NUMBER'"):
        make_task("gsm8k", path=str(tmp_path)).problems(Split.TEST, 1, 0)
    with pytest.raises(TaskError, match="/nowhere/at/all"):
        make_task("gsm8k", path="/nowhere/at/all").problems(Split.TEST, 1, 0)
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(TaskError, match="no 'test' split"):
        make_task("math", path=str(empty)).problems(Split.TEST, 1, 0)
    with pytest.raises(TooFewProblemsError):
        make_task("gsm8k", path=str(write_gsm8k(tmp_path))).problems(Split.TEST, 1000, 0)
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"palaestra\[data\]"):
        make_task("gsm8k").problems(Split.TEST, 1, 0)
    monkeypatch.setattr(sympy_process, "find_spec", lambda name: None)
    sympy_process.get_client.cache_clear()
    with pytest.raises(MissingExtraError, match=r"palaestra\[math\]"):
        make_task("math").problems(Split.TEST, 1, 0)


def write_gsm8k(folder: Path) -> Path:
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, gsm8k_rows(40, split))))
    return folder


def test_the_hub_is_queried_for_the_published_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.delenv("PALAESTRA_DATA", raising=False)
    asked = []

    def load(hub: str, config: str | None, split: str) -> list[dict[str, str]]:
        asked.append((hub, config, split))
        return gsm8k_rows(40, split)

    monkeypatch.setattr(datasets, "load_dataset", load)
    make_task("gsm8k").problems(Split.TEST, 1, 0)
    make_task("gsm8k", path="some/where").problems(Split.TEST, 1, 0)
    assert asked == [
        ("openai/gsm8k", "main", "test"),
        ("openai/gsm8k", "main", "train"),
        ("some/where", None, "test"),
        ("some/where", None, "train"),
    ]


def test_the_folder_below_palaestra_data_is_read(gsm8k: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_DATA", str(gsm8k.parent))
    assert len(make_task("gsm8k").problems(Split.TEST, 2, 0)) == 10


@pytest.mark.skipif(
    not (DATA / "gsm8k").is_dir(), reason="GSM8K is not there; PALAESTRA_DATA names the folder that holds it"
)
def test_every_reference_solution_of_gsm8k() -> None:
    task = make_worked_task("gsm8k", path=str(DATA / "gsm8k"))
    rows = []
    for split in ("train", "test"):
        with gzip.open(DATA / "gsm8k" / f"{split}.jsonl.gz", "rt", encoding="utf-8") as file:
            rows += [json.loads(line) for line in file]
    assert len(rows) == 8792
    for row in rows:
        problem = Problem("a", (), row["answer"].rpartition("####")[2].strip(), metadata={"question": row["question"]})
        assert value(task, problem, row["answer"]) == 1.0, row
        assert value(task, problem, f"{row['answer']}1") == 0.0, row
    assert sum(len(items) for items in task._load().values()) == 8792
