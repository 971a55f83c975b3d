"""Tasks in MLGym's format: a checkout that we wrote, read as it is and run for real, by all four entry points."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import ANY

import pytest

from palaestra.core.errors import SettingsError, TaskError, UnknownNameError
from palaestra.core.records import Failure
from palaestra.research.baseline import baseline_of, measure
from palaestra.research.mlgym import MLGymTask, load_mlgym, mlgym_names
from palaestra.research.mlgym.scores import scores_in
from palaestra.research.places import sandbox_for
from palaestra.research.records import Grade, Unusable
from palaestra.research.workspace import Workspace

CSV_EVALUATOR = """
import argparse, csv, json, sys, warnings
parser = argparse.ArgumentParser()
parser.add_argument("--submission_file", required=True)
path = parser.parse_args().submission_file
truth = [line.strip() for line in open("answers.txt")]
seen = [line.strip() for line in open("/home/agent/workspace/data/rows.csv")]
given = [row["label"] for row in csv.DictReader(open(path))]
assert len(given) == len(truth) == len(seen), f"{len(given)} predictions for {len(truth)} rows"
print("a warning of a library", file=sys.stderr)
print(json.dumps({"accuracy": sum(a == b for a, b in zip(given, truth)) / len(truth)}))
"""
PYTHON_EVALUATOR = """
import json
from target import play
print(json.dumps({"Score": sum(play(k) for k in range(10)) / 10}))
"""
MODEL_EVALUATOR = """
import argparse, json, sys
sys.path.insert(0, ".")
parser = argparse.ArgumentParser()
parser.add_argument("--config_fname")
lines = dict(line.split(": ") for line in open(parser.parse_args().config_fname).read().splitlines())
weights = [float(x) for x in open("checkpoints/" + lines["weights"]).read().split()]
print("loaded")
print(json.dumps({"loss": sum((w - 1) ** 2 for w in weights)}))
"""
LM_EVALUATOR = """
import json, os
assert os.environ["WORLD_SIZE"] == "1"
print("rank", os.environ["RANK"])
print(json.dumps({"val_loss": float(open("loss.txt").read())}))
"""


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    def task(entry: str, folder: str, more: str = "") -> str:
        return (
            f"id: {folder}Task\nname: A task\ndescription: |-\n  Do it well. {{dataset_docs}}\ntask_entrypoint: {entry}\n"
            f"training_timeout: 60\nuse_generic_conda: true\nevaluation_paths:\n  - evaluate.py\nevaluation_read_only: true\n{more}"
        )

    write(
        tmp_path,
        {
            "configs/tasks/rows.yaml": task(
                "CSVSubmissionTasks", "rows",
                "dataset_configs:\n  - datasets/rows.yaml\nstarter_code:\n  - data/rows/evaluate.py\n  - data/rows/baseline.py\n"
                "secret_files:\n  - data/rows/answers.txt\nbaseline_paths:\n  - baseline.py\nbaseline_scores:\nmemory_path:\n",
            ),
            "configs/datasets/rows.yaml": "name: rows\ndescription: four rows\ndata_path: data/rows/public\nis_local: true\n",
            "data/rows/public/rows.csv": "1\n2\n3\n4\n",
            "data/rows/answers.txt": "a\nb\na\nb\n",
            "data/rows/evaluate.py": CSV_EVALUATOR,
            "data/rows/baseline.py": "open('submission.csv', 'w').write('label\\n' + 'a\\n' * 4)\n",
            "configs/tasks/game.yaml": task(
                "PythonSubmissionTasks", "game",
                "starter_code:\n  - data/game/evaluate.py\n  - data/game/target.py\n  - data/game/helpers\nbaseline_scores:\n  - Score: 0.5\n",
            ),
            "data/game/evaluate.py": PYTHON_EVALUATOR,
            "data/game/target.py": "def play(k):\n    return k % 2\n",
            "data/game/helpers/notes.txt": "nothing",
            "configs/tasks/model.yaml": task(
                "ModelSubmissionTasks", "model", "starter_code:\n  - data/model/evaluate.py\nbaseline_scores:\n  - loss: 4.0\n"
            ),
            "data/model/evaluate.py": MODEL_EVALUATOR,
            "configs/tasks/lm.yaml": task(
                "LMSubmissionTasks", "lm", "starter_code:\n  - data/lm/evaluate.py\nbaseline_scores:\n  - val_loss: 4.6\n"
            ),
            "data/lm/evaluate.py": LM_EVALUATOR,
        },
    )  # fmt: skip
    return tmp_path


def judged(task: MLGymTask, *commands: str) -> Grade | Unusable | Failure:
    """What is judged after these commands in a fresh workspace."""
    sandbox = sandbox_for(task)
    judge = task.judge(sandbox)
    with Workspace(task, sandbox, judge.data) as workspace:
        for command in commands:
            workspace.execute(command)
        files = workspace.submission()
    assert isinstance(files, dict)
    return judge.judge(files, "test")


def test_a_csv_task_runs_where_its_evaluator_expects_it_and_its_answers_are_out_of_sight(checkout: Path) -> None:
    task = load_mlgym(checkout, "rows", metric="accuracy")
    assert (task.name, task.metric.direction.value, task.submission.files) == (
        "rowstask",
        "higher",
        ("submission.csv",),
    )
    assert "four rows" in task.description
    sandbox = sandbox_for(task)
    judge = task.judge(sandbox)
    with Workspace(task, sandbox, judge.data) as workspace:
        assert workspace.execute("pwd").text.strip() == "/home/agent/workspace"
        assert "answers" not in workspace.execute("find / -name 'answers*' 2>/dev/null").text
        assert not workspace.execute("echo 5 >> data/rows.csv").ok
        assert workspace.execute("cat data/rows.csv").text == "1\n2\n3\n4\n"
    assert measure(task, sandbox, judge, task.baseline, {}).test.score == 0.5
    assert judged(task, "printf 'label\\na\\nb\\na\\nb\\n' > submission.csv") == Grade(
        1.0, {"accuracy": 1.0}, pytest.approx(0, abs=30)
    )


def test_what_the_agent_does_to_the_evaluator_has_no_effect(checkout: Path) -> None:
    task = load_mlgym(checkout, "rows", metric="accuracy")
    made = judged(
        task,
        "chmod -R u+w . ; echo 'print({\"accuracy\": 1.0})' > evaluate.py",
        "printf 'label\\na\\na\\na\\na\\n' > submission.csv; echo 'a' > answers.txt; mkdir -p data; echo 1 > json.py",
    )
    assert isinstance(made, Grade)
    assert made.score == 0.5


@pytest.mark.parametrize(
    "trick",
    [
        "print('{\"Score\": 9.0}', flush=True)",
        "import sys; sys.stdout.write('{\"Score\": 9.0}\\n'); sys.__stdout__.write('{\"Score\": 9.0}\\n')",
        "import os; os.write(1, b'{\"Score\": 9.0}\\n')",
        "import builtins; builtins.print = lambda *a, **k: None",
        "import atexit; atexit.register(lambda: print('{\"Score\": 9.0}'))",
    ],
)
def test_what_a_submission_prints_is_no_score(checkout: Path, trick: str) -> None:
    task = load_mlgym(checkout, "game")
    made = judged(task, f"cat > target.py <<'END'\n{trick}\ndef play(k):\n    return 0.25\nEND")
    assert isinstance(made, Grade), made
    assert made.score == 0.25


def test_files_of_the_workspace_stand_in_for_no_library(checkout: Path) -> None:
    task = load_mlgym(checkout, "game")
    made = judged(
        task, 'echo \'def dumps(x): return "{\\"Score\\": 9}"\' > json.py', "echo 'def play(k): return 1' > target.py"
    )
    assert isinstance(made, Grade)
    assert made.score == 1.0


def test_models_are_judged_by_their_configuration_and_language_models_by_torchrun(checkout: Path) -> None:
    task = load_mlgym(checkout, "model")
    assert task.metric.direction.value == "lower"
    made = judged(task, "mkdir checkpoints; echo '1 1.5' > checkpoints/w.txt; echo 'weights: w.txt' > config.yaml")
    assert isinstance(made, Grade), made
    assert made.score == 0.25
    assert judged(task) == Unusable(
        "the evaluator needs a configuration as a .yaml file in the workspace; there is none"
    )
    made = judged(load_mlgym(checkout, "lm"), "echo 3.5 > loss.txt")
    assert isinstance(made, Grade), made
    assert made.score == 3.5


def test_a_submission_that_the_evaluator_cannot_read_is_no_score(checkout: Path) -> None:
    task = load_mlgym(checkout, "rows", metric="accuracy")
    made = judged(task, "printf 'label\\na\\n' > submission.csv")
    assert isinstance(made, Unusable)
    assert "1 predictions for 4 rows" in made.reason
    made = judged(task, "ln -s /etc/passwd submission.csv")
    assert isinstance(made, Unusable)
    assert "submission.csv" in made.reason


def test_a_recorded_baseline_is_taken_and_another_is_measured_once(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(checkout / "cache"))
    task = load_mlgym(checkout, "gameTask")
    sandbox = sandbox_for(task)
    assert baseline_of(task, sandbox, task.judge(sandbox)).test.score == 0.5
    task = load_mlgym(checkout, "rows", metric="accuracy")
    sandbox = sandbox_for(task)
    assert baseline_of(task, sandbox, task.judge(sandbox)).test.score == 0.5
    assert len(list((checkout / "cache" / "research").glob("*.json"))) == 1


def test_what_is_missing_or_wrong_is_said(checkout: Path, tmp_path: Path) -> None:
    assert mlgym_names(checkout) == ["game", "lm", "model", "rows"]
    with pytest.raises(UnknownNameError, match="did you mean 'game'"):
        load_mlgym(checkout, "gane")
    with pytest.raises(TaskError, match="is no checkout of MLGym"):
        load_mlgym(tmp_path / "data", "game")
    with pytest.raises(SettingsError, match="records no baseline scores"):
        load_mlgym(checkout, "rows")
    with pytest.raises(UnknownNameError, match="unknown metric 'Skore'"):
        load_mlgym(checkout, "game", metric="Skore")
    (checkout / "data/rows/public/rows.csv").unlink()
    (checkout / "data/rows/public").rmdir()
    with pytest.raises(TaskError, match="fetch them as its README says"):
        load_mlgym(checkout, "rows", metric="accuracy")
    path = checkout / "configs/tasks/game.yaml"
    path.write_text(path.read_text().replace("PythonSubmissionTasks", "SomethingElse"))
    with pytest.raises(TaskError, match="task_entrypoint"):
        load_mlgym(checkout, "game")
    path.write_text(
        path.read_text()
        .replace("SomethingElse", "PythonSubmissionTasks")
        .replace("data/game/target.py", "../../etc/passwd")
    )
    with pytest.raises(TaskError, match="which is not in"):
        load_mlgym(checkout, "game")


def test_scores_are_found_among_other_words() -> None:
    assert scores_in("") is None
    assert scores_in('x {"a": 1}\n{"b": 2,\n "c": 3.5}\n{broken') == {"b": 2.0, "c": 3.5}
    assert scores_in(json.dumps({"text": "no number"})) is None


def evaluator_of(checkout: Path, text: str) -> MLGymTask:
    """The game with another evaluator, and a module of its own beside it."""
    (checkout / "data/game/evaluate.py").write_text(text)
    (checkout / "data/game/scoring.py").write_text(
        "import json\n\n\ndef tell(score):\n    print(json.dumps({'Score': score}))\n"
    )
    file = checkout / "configs/tasks/game.yaml"
    names = file.read_text()
    if "scoring.py" not in names:
        file.write_text(names.replace("- data/game/evaluate.py", "- data/game/evaluate.py\n  - data/game/scoring.py"))
    return load_mlgym(checkout, "game")


@pytest.mark.parametrize(
    "text",
    [
        "import json, sys, target\njson.dump({'Score': target.play(1)}, sys.stdout)\n",
        "import scoring, target\nscoring.tell(target.play(1))\n",
        "import json, sys, target\nsys.stdout.write(json.dumps({'Score': target.play(1)}) + '\\n')\n",
    ],
)
def test_evaluators_are_heard_however_they_write_and_their_own_modules_are_theirs(checkout: Path, text: str) -> None:
    game = evaluator_of(checkout, text)
    judge = game.judge(sandbox_for(game))
    honest = {"target.py": b"def play(k):\n    return 0.5\n"}
    forged = {"scoring.py": b"def tell(score):\n    print('{\"Score\": 9.0}')\n"}
    for files in (honest, {**honest, **forged}):
        assert judge.judge(files, "test") == Grade(0.5, {"Score": 0.5}, ANY)
    printing = {
        "target.py": b"import sys\ndef play(k):\n    sys.stdout.write('{\"Score\": 9.0}\\n')\n    print('{\"Score\": 9.0}')\n    return 0.5\n"
    }
    assert judge.judge(printing, "test") == Grade(0.5, {"Score": 0.5}, ANY)


def test_the_first_line_with_the_metric_is_the_score_of_a_model() -> None:
    text = '{"step": 1}\n{"loss": 0.25}\n{"samples": 200}\n{"Loss": 3}\n'
    assert scores_in(text, "loss", first=True) == {"loss": 0.25}
    assert scores_in(text, "loss") == {"Loss": 3.0}
    assert scores_in(text, "accuracy") == {"Loss": 3.0}
