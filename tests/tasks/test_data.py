"""A user's own data as a task: files, columns, splits, and rows that cannot be used."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra import make_task
from palaestra.core.errors import SettingsError, TaskError, TooFewProblemsError, UnknownNameError
from palaestra.core.records import Completion, Problem, Score, Split
from palaestra.tasks.base import EVERY, GenerativeTask, WritableTask
from palaestra.tasks.data import DataTask
from palaestra.tasks.duplicates import find_near_duplicates
from palaestra.tasks.evaluate import draw_problems

SUMS = [{"question": f"What is {n} + {n + 1}?", "answer": str(2 * n + 1), "skill": "sums"} for n in range(60)]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def load(path: str, **options: Any) -> DataTask:
    task = make_task(path, **options)
    assert isinstance(task, DataTask)
    return task


def load_problem(path: Path, row: Mapping[str, Any], **options: Any) -> Problem:
    """The problem of a file with one row."""
    task = load(write(path / "one.jsonl", [row]), **options)
    (problem,) = (problem for split in Split for problem in task.problems(split, EVERY, 0))
    return problem


def score(task: DataTask, problem: Problem, response: str) -> float:
    outcome = task.score(problem, Completion(response))
    assert isinstance(outcome, Score), outcome
    return outcome.value


def test_every_row_is_in_one_split(tmp_path: Path) -> None:
    task = load(write(tmp_path / "sums.jsonl", SUMS))
    ids = {split: {problem.id for problem in task.problems(split, EVERY, 0)} for split in Split}
    assert sum(map(len, ids.values())) == len(set.union(*ids.values())) == 60
    assert all(ids.values())
    assert task.skills() == {"sums": ()}


def test_new_rows_move_no_old_row(tmp_path: Path) -> None:
    few, many = load(write(tmp_path / "a.jsonl", SUMS[:30])), load(write(tmp_path / "b.jsonl", SUMS))
    splits = {item.row.text: split for split in Split for item in many.items[split]}
    assert all(splits[item.row.text] is split for split in Split for item in few.items[split])


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "json", "csv", "tsv", "parquet"])
def test_formats_of_files(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"sums.{ending}"
    if ending == "jsonl.gz":
        file.write_bytes(gzip.compress("\n".join(map(json.dumps, SUMS)).encode()))
    elif ending == "json":
        file.write_text(json.dumps(SUMS), encoding="utf-8")
    elif ending == "parquet":
        pytest.importorskip("datasets").Dataset.from_list(SUMS).to_parquet(str(file))
    elif ending == "jsonl":
        write(file, SUMS)
    else:
        lines = [list(SUMS[0]), *(list(row.values()) for row in SUMS)]
        file.write_text("\n".join(("\t" if ending == "tsv" else ",").join(line) for line in lines), encoding="utf-8")
    task = load(str(file))
    assert task.name == "sums"
    assert task.scorer_name == "number"
    assert {row.answer for row in task.rows} == {row["answer"] for row in SUMS}


def test_csv_with_quotes_and_line_breaks(tmp_path: Path) -> None:
    file = tmp_path / "exam.csv"
    file.write_text('\ufeffFrage,Antwort\n"Was ist 1,5\n+ 1?","2,5"\nHallo?,"ja, ""sehr"""\n', encoding="utf-8")
    task = load(str(file), question="Frage", answer="Antwort", scorer="contains")
    assert [(row.text, row.answer) for row in task.rows] == [("Was ist 1,5\n+ 1?", "2,5"), ("Hallo?", 'ja, "sehr"')]


def test_splits_of_a_folder_and_of_a_column(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", SUMS[:40])
    write(tmp_path / "test.jsonl", SUMS[40:])
    task = load(str(tmp_path))
    assert {item.row.answer for item in task.items[Split.TEST]} == {row["answer"] for row in SUMS[40:]}
    assert len(task.items[Split.TRAIN]) + len(task.items[Split.VALIDATION]) == 40
    assert task.items[Split.VALIDATION]
    column = [{**row, "split": "dev" if n < 5 else "train" if n < 50 else "test"} for n, row in enumerate(SUMS)]
    counts = {split: len(rows) for split, rows in load(write(tmp_path / "all.jsonl", column)).items.items()}
    assert counts == {Split.TRAIN: 45, Split.VALIDATION: 5, Split.TEST: 10}


def test_a_saved_dataset_without_splits(tmp_path: Path) -> None:
    pytest.importorskip("datasets").Dataset.from_list(SUMS).save_to_disk(str(tmp_path / "sums"))
    task = load(str(tmp_path / "sums"))
    assert len(task.rows) == 60
    assert all(row.split is None for row in task.rows)


def test_an_answer_that_is_no_regular_expression_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="row 1"):
        _ = load(write(tmp_path / "bad.jsonl", [{"question": "q", "answer": "("}]), scorer="regex").rows


def test_a_dataset_of_the_hub(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for name, rows in (("train", SUMS[:40]), ("test", SUMS[40:])):
        datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / f"{name}.parquet"))
    task = load(f"hf:{tmp_path}")
    assert len(task.items[Split.TEST]) == 20
    with pytest.raises(TaskError):
        _ = load(f"hf:{tmp_path}/nothing").rows


def test_near_duplicates_share_a_split(tmp_path: Path) -> None:
    base = "Tom has 5 red apples in his old basket and buys 7 more at the market on a sunny day. How many has he got"
    texts = [f"{base}?", f"{base.upper()} ?", f"{base} now?", base.replace("5", "6"), "Who wrote Faust?"]
    keys = find_near_duplicates(texts)
    assert keys[0] == keys[1] == keys[2]
    assert len(set(keys)) == 3
    assert find_near_duplicates(texts[::-1])[::-1] == keys
    task = load(write(tmp_path / "twice.jsonl", [{"question": text, "answer": "12"} for text in texts]))
    splits = {item.row.text: split for split in Split for item in task.items[split]}
    assert splits[texts[0]] is splits[texts[1]] is splits[texts[2]]


@pytest.mark.parametrize(
    ("row", "question", "answer"),
    [
        ({"prompt": "2 + 2 =", "completion": " 4"}, "2 + 2 =", "4"),
        ({"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Ho"}]}, "Hi", "Ho"),
        ({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}, "Hi", "Ho"),
        ({"prompt": "Sky?", "chosen": "blue", "rejected": "red"}, "Sky?", "blue"),
        ({"chosen": [{"role": "user", "content": "Sky?"}, {"role": "assistant", "content": "blue"}],
          "rejected": [{"role": "user", "content": "Sky?"}, {"role": "assistant", "content": "red"}]}, "Sky?", "blue"),
        ({"instruction": "Add.", "input": "1 2", "output": "3"}, "Add.\n\n1 2", "3"),
        ({"question": "q", "answer": "so 3 + 4 = 7\n#### 7"}, "q", "7"),
        ({"problem": "p", "solution": r"It is \boxed{\frac12}."}, "p", r"\frac12"),
        ({"question": "Which?", "choices": ["red", "blue"], "answer": 1}, "Which?\n\nA. red\nB. blue", "blue"),
        ({"question": "Which?", "choices": {"text": ["red", "blue"], "label": ["A", "B"]}, "answer": "A"},
         "Which?\n\nA. red\nB. blue", "red"),
    ],
)  # fmt: skip
def test_rows_of_usual_formats(tmp_path: Path, row: dict[str, Any], question: str, answer: str) -> None:
    problem = load_problem(tmp_path, row)
    assert (problem.messages[-1].text, problem.reference) == (question, answer)


def test_conversations_keep_their_earlier_turns(tmp_path: Path) -> None:
    chat = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user", "assistant")]
    problem = load_problem(tmp_path, {"messages": chat})
    assert [message.role for message in problem.messages] == ["system", "user", "assistant", "user"]


def test_template_and_system_message(tmp_path: Path) -> None:
    row = {"text": "fine film", "label": "positive"}
    problem = load_problem(tmp_path, row, template="Positive or negative? {text}", system="Be brief.")
    assert [message.text for message in problem.messages] == ["Be brief.", "Positive or negative? fine film"]
    with pytest.raises(SettingsError, match="review"):
        load_problem(tmp_path, row, template="{review}")


def test_images_beside_the_file(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (4, 4), "red").save(tmp_path / "red.png")
    problem = load_problem(tmp_path, {"question": "Color?", "image": "red.png", "answer": "red"})
    assert problem.messages[-1].has_image
    with pytest.raises(TaskError, match="blue"):
        load_problem(tmp_path, {"question": "Color?", "image": "blue.png", "answer": "blue"})


def test_train_rows_become_examples(tmp_path: Path) -> None:
    task = load(write(tmp_path / "sums.jsonl", SUMS))
    assert isinstance(task, GenerativeTask)
    assert isinstance(task, WritableTask)
    train = {item.row.text: item.row.answer for item in task.items[Split.TRAIN]}
    examples = task.write_examples("sums", "", 100, np.random.default_rng(0))
    assert len(examples) == 100
    assert all(train[example.messages[-1].text] == example.response for example in examples)
    written = task.datum(question="What is 3 + 3?", response="3 + 3 = 6. Answer: 6", answer="6")
    assert task.make_example(written, "sums", "").reference == "6"
    assert all(text not in task.brief() for text in (item.row.text for item in task.items[Split.TEST]))


@pytest.mark.parametrize(
    ("rows", "fact"),
    [
        ([{"question": "q", "answer": "1"}, {"question": " ", "answer": "2"}], "row 2"),
        ([{"question": "q", "answer": "1"}, {"question": "p"}], "row 2"),
        ([{"question": "q", "answer": "1", "split": "holdout"}], "holdout"),
        ([{"question": "q", "answer": "z", "choices": ["x", "y"]}], "row 1"),
        ([{"question": "q", "answer": "x", "choices": ["x"]}], "at least 2"),
        ([{"messages": [{"role": "assistant", "content": "Hi"}]}], "row 1"),
        ([{"messages": [{"role": "robot", "content": "Hi"}]}], "robot"),
        ([{"question": "q", "tests": 5}], "tests"),
        ([{"sentence": "q", "answer": "1"}], "sentence"),
        ([{"chosen": "Human: Hi", "rejected": "Human: Ho"}], "chosen"),
        ([], "no rows"),
    ],
)
def test_unusable_rows_are_named(tmp_path: Path, rows: list[dict[str, Any]], fact: str) -> None:
    with pytest.raises(TaskError, match=fact):
        _ = load(write(tmp_path / "bad.jsonl", rows)).rows


def test_many_unusable_rows_are_counted(tmp_path: Path) -> None:
    rows = [{"question": "q" if n % 2 else "", "answer": "1"} for n in range(20)]
    with pytest.raises(TaskError, match="10 of 20 rows"):
        _ = load(write(tmp_path / "bad.jsonl", rows)).rows


@pytest.mark.parametrize(
    ("text", "fact"), [("a,b\n1,2,3\n", "line 2"), ("a,b\n1\n", "line 2"), ('a,b\n"1,2\n', "line"), ("", "no rows")]
)
def test_damaged_tables_are_named(tmp_path: Path, text: str, fact: str) -> None:
    (tmp_path / "bad.csv").write_text(text, encoding="utf-8")
    with pytest.raises(TaskError, match=fact):
        _ = load(str(tmp_path / "bad.csv"), question="a", answer="b").rows


def test_unknown_names(tmp_path: Path) -> None:
    path = write(tmp_path / "sums.jsonl", SUMS)
    with pytest.raises(UnknownNameError, match="frage"):
        _ = load(path, question="frage").rows
    with pytest.raises(UnknownNameError, match="nummber"):
        load(path, scorer="nummber")
    with pytest.raises(SettingsError, match="colour"):
        load(path, colour="blue")
    with pytest.raises(TaskError, match="nowhere"):
        _ = load("nowhere.jsonl").rows


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([{"question": "q", "answer": "1,200"}, {"question": "p", "answer": "-3"}], "number"),
        ([{"question": "q", "answer": "1"}, {"question": "p", "answer": r"x^2 \cdot y"}], "math"),
        ([{"question": "q", "answer": "Paris"}], "exact"),
        ([{"question": "q", "answer": "B", "choices": ["x", "y"]}], "choice"),
        ([{"question": "q", "tests": ["assert f(1) == 2"]}], "code"),
    ],
)
def test_the_scorer_follows_from_the_rows(tmp_path: Path, rows: list[dict[str, Any]], name: str) -> None:
    assert load(write(tmp_path / "rows.jsonl", rows)).scorer_name == name


def test_written_examples_keep_choices_and_other_answers(tmp_path: Path) -> None:
    rows = [
        {"question": "Which?", "choices": ["red", "blue"], "answer": "blue", "split": "train"},
        {"question": "Which color?", "answer": ["colour", "color"], "split": "train"},
    ]
    for number, row in enumerate(rows):
        task = load(write(tmp_path / f"{number}.jsonl", [row]))
        (example,) = task.write_examples("questions", "", 1, np.random.default_rng(0))
        problem = task.to_problem(example)
        assert problem is not None
        assert score(task, problem, example.response) == 1.0
        assert score(task, problem, "green") == 0.0


@pytest.mark.parametrize(
    ("scorer", "row", "right", "wrong"),
    [
        ("exact", {"answer": "New York"}, "I think so. Answer: new  york.", "York"),
        ("exact", {"answer": ["colour", "color"]}, "Color", "hue"),
        ("number", {"answer": "1200"}, "That makes 1,200 in all.", "1,201"),
        ("math", {"answer": r"\frac{1}{2}"}, r"\boxed{0.5}", r"\boxed{0.4}"),
        ("choice", {"answer": "blue", "choices": ["red", "blue"]}, "B", "A"),
        ("choice", {"answer": "blue", "choices": ["red", "blue"]}, "It is blue.", "It is not blue."),
        ("regex", {"answer": r"\b19\d\d\b"}, "in 1984", "in 2084"),
        ("contains", {"answer": "Goethe"}, "It was GOETHE himself", "Schiller"),
        ("json", {"answer": '{"a": 1, "b": [2]}'}, 'Sure: {"b": [2], "a": 1}', '{"a": 2}'),
    ],
)
def test_scorers(tmp_path: Path, scorer: str, row: dict[str, Any], right: str, wrong: str) -> None:
    path = write(tmp_path / "one.jsonl", [{"question": "q", **row}])
    task = load(path, scorer=scorer)
    (problem,) = (problem for split in Split for problem in task.problems(split, EVERY, 0))
    assert score(task, problem, right) == 1.0
    assert score(task, problem, wrong) == 0.0


@pytest.mark.parametrize(
    "tests",
    [
        ["assert double(2) == 4", "assert double(0) == 0"],
        "def check(candidate):\n    assert candidate(2) == 4\n",
        [{"input": "2\n", "output": "4\n"}],
    ],
)
def test_programs_are_run_against_their_tests(tmp_path: Path, tests: Any) -> None:
    task = load(
        write(
            tmp_path / "code.jsonl", [{"question": "Double.", "tests": tests, "answer": "def double(n): return 2 * n"}]
        )
    )
    (problem,) = (problem for split in Split for problem in task.problems(split, EVERY, 0))
    program = "def double(n):\n    return {} * n\nif __name__ == '__main__':\n    print(double(int(input())))"
    assert score(task, problem, f"```python\n{program.format(2)}\n```") == 1.0
    assert score(task, problem, f"```python\n{program.format(3)}\n```") == 0.0


def test_a_function_of_the_user_scores(tmp_path: Path) -> None:
    (tmp_path / "my_scorer.py").write_text(
        "def close(response, answer, unit='?'):\n"
        "    assert unit == 'km'\n"
        "    return 1 / (1 + abs(float(response) - float(answer)))\n",
        encoding="utf-8",
    )
    path = write(tmp_path / "far.jsonl", [{"question": "How far?", "answer": "10", "unit": "km"}])
    task = load(path, scorer=f"{tmp_path / 'my_scorer.py'}:close")
    (problem,) = (problem for split in Split for problem in task.problems(split, EVERY, 0))
    assert score(task, problem, "11") == 0.5
    with pytest.raises(SettingsError, match="far"):
        load(path, scorer=f"{tmp_path / 'my_scorer.py'}:far")


@pytest.mark.parametrize("as_messages", [False, True])
def test_the_rejected_response_of_a_pair_is_kept_for_dpo(as_messages: bool, tmp_path: Path) -> None:
    def wrap(text: str) -> object:
        return [{"role": "assistant", "content": text}] if as_messages else text

    rows = [
        {"prompt": f"Is {n} odd?", "chosen": wrap("yes" if n % 2 else "no"), "rejected": wrap("no" if n % 2 else "yes")}
        for n in range(20)
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    task = make_task(str(file))
    examples = task.write_examples("questions", "", 5, np.random.default_rng(0))
    for example in examples:
        assert {example.response, example.metadata["rejected"]} == {"yes", "no"}


def test_all_rows_can_be_put_into_one_split(tmp_path: Path) -> None:
    task = load(write(tmp_path / "sums.jsonl", SUMS), split="test")
    assert [len(task.problems(split, EVERY, 0)) for split in Split] == [0, 0, 60]


def test_an_empty_split_is_answered_with_the_option(tmp_path: Path) -> None:
    with pytest.raises(TooFewProblemsError, match="split=test"):
        draw_problems(load(write(tmp_path / "one.jsonl", SUMS[:1])), Split.TEST, EVERY, 0)


def test_rows_of_hellaswag_have_choices_and_an_index(tmp_path: Path) -> None:
    row = {"ctx": "The person", "endings": ["sits.", "runs.", "sleeps.", "eats."], "label": "2"}
    task = load(write(tmp_path / "one.jsonl", [row]), question="ctx", choices="endings", answer="label", split="test")
    [problem] = task.problems(Split.TEST, EVERY, 0)
    assert (score(task, problem, "Answer: C"), score(task, problem, "Answer: B")) == (1.0, 0.0)
