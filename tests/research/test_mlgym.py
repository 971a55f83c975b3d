"""Tasks in MLGym's format from a small checkout of our own, run with all four entry points."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import ANY

import pytest

from palaestra.core.errors import SettingsError, TaskError, UnknownNameError
from palaestra.core.records import Failure
from palaestra.research.judge.evaluation import make_judge, sandbox_for
from palaestra.research.mlgym import MLGymTask, load_mlgym, mlgym_names
from palaestra.research.mlgym.files import EntryPoint, guess_direction
from palaestra.research.mlgym.judge import scores_in
from palaestra.research.tasks.records import Grade, InvalidSubmission
from palaestra.research.workspace.workspace import Workspace, load_baseline, measure

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


def judged(task: MLGymTask, *commands: str) -> Grade | InvalidSubmission | Failure:
    """What is judged after these commands in a fresh workspace."""
    sandbox = sandbox_for(task)
    judge = make_judge(task, sandbox)
    with Workspace(task, sandbox, judge.data) as workspace:
        for command in commands:
            workspace.execute(command)
        files = workspace.submission()
    assert isinstance(files, dict)
    return judge.judge(files, "test")


def test_a_csv_task_runs_where_its_evaluator_expects_it_and_its_answers_are_out_of_sight(checkout: Path) -> None:
    task = load_mlgym(checkout, "rows", metric="accuracy")
    assert (task.name, task.metric.direction.value, task.submission.files) == (
        "rows",
        "higher",
        ("submission.csv",),
    )
    assert "four rows" in task.description
    sandbox = sandbox_for(task)
    judge = make_judge(task, sandbox)
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
    assert judged(task) == InvalidSubmission(
        "the evaluator needs a configuration as a .yaml file in the workspace; it has none"
    )
    made = judged(load_mlgym(checkout, "lm"), "echo 3.5 > loss.txt")
    assert isinstance(made, Grade), made
    assert made.score == 3.5


def test_a_submission_that_the_evaluator_cannot_read_is_no_score(checkout: Path) -> None:
    task = load_mlgym(checkout, "rows", metric="accuracy")
    made = judged(task, "printf 'label\\na\\n' > submission.csv")
    assert isinstance(made, InvalidSubmission)
    assert "1 predictions for 4 rows" in made.reason
    made = judged(task, "ln -s /etc/passwd submission.csv")
    assert isinstance(made, InvalidSubmission)
    assert "submission.csv" in made.reason


def test_a_recorded_baseline_is_taken_and_another_is_measured_once(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(checkout / "cache"))
    task = load_mlgym(checkout, "gameTask")
    sandbox = sandbox_for(task)
    assert load_baseline(task, sandbox, make_judge(task, sandbox)).test.score == 0.5
    task = load_mlgym(checkout, "rows", metric="accuracy")
    sandbox = sandbox_for(task)
    assert load_baseline(task, sandbox, make_judge(task, sandbox)).test.score == 0.5
    assert len(list((checkout / "cache" / "research").glob("*.json"))) == 1


def test_what_is_missing_or_wrong_is_said(checkout: Path, tmp_path: Path) -> None:
    assert mlgym_names(checkout) == ["game", "lm", "model", "rows"]
    with pytest.raises(UnknownNameError, match="did you mean 'game'"):
        load_mlgym(checkout, "gane")
    with pytest.raises(TaskError, match="is not an MLGym checkout"):
        load_mlgym(tmp_path / "data", "game")
    (checkout / "data/rows/public/rows.csv").unlink()
    (checkout / "data/rows/public").rmdir()
    with pytest.raises(TaskError, match="download them as described in its README"):
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


def test_of_scores_that_differ_none_is_taken_and_words_within_a_line_are_no_score() -> None:
    """Both may be words of the submission, which the evaluator repeats."""
    scores = '{"r2": 0.5, "rmse": 2.0}\n'
    assert scores_in(f'first row: {{"r2": 999}}\n{scores}last row: {{"r2": 999}}\n', "r2") == {"r2": 0.5, "rmse": 2.0}
    assert scores_in(f'{scores}{{"r2": 999}}\n', "r2") is None
    assert scores_in(f'{scores}  {{"r2":\n 0.5}}\n', "r2") == {"r2": 0.5}
    assert scores_in('scores: {"r2": 0.5}', "r2") == {"r2": 0.5}
    assert scores_in('scores: {"r2": 0.5}, {"r2": 0.6}', "r2") is None


@pytest.mark.parametrize(
    ("way", "names"),
    [
        ("lower", "loss val_loss valLoss MSE mse_test MAE_valid Test_MSE_mean rmse cross_entropy mape rmsle brier FID "
                  "bits_per_byte cost n_decisions runtime_seconds Time error_rate perplexity"),
        ("higher", "accuracy Score sentiment_accuracy power exact_answer apples lossless_accuracy neg_loss time_survived "
                   "reward R2 r2 BLEU f1_macro win_rate"),
    ],
)  # fmt: skip
def test_the_direction_goes_by_the_words_of_a_name(way: str, names: str) -> None:
    assert {name: str(guess_direction(name)) for name in names.split()} == dict.fromkeys(names.split(), way)


def change(checkout: Path, task: str, *pairs: tuple[str, str]) -> None:
    """Put other words into a task file."""
    path = checkout / f"configs/tasks/{task}.yaml"
    text = path.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_a_metric_that_no_file_names_is_the_one_that_the_baseline_gets(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(checkout / "cache"))
    task = load_mlgym(checkout, "rows")
    assert (task.metric.name, task.name) == ("accuracy", "rows")
    evaluator = checkout / "data/rows/evaluate.py"
    evaluator.write_text(evaluator.read_text().replace('"accuracy":', '"rmse": 3.5, "accuracy":'))
    with pytest.raises(SettingsError, match=r"its evaluator returns rmse, accuracy; select one with"):
        load_mlgym(checkout, "rows")
    for metric, value in (("rmse", 3.5), ("accuracy", 0.5)):  # MeasuredSolution once, and each by its own.
        task = load_mlgym(checkout, "rows", metric=metric)
        sandbox = sandbox_for(task)
        assert load_baseline(task, sandbox, make_judge(task, sandbox)).test.score == value
    assert len(list((checkout / "cache" / "research").glob("*.json"))) == 2
    task = load_mlgym(checkout, "rows", metric="bleu")
    with pytest.raises(
        TaskError, match=r"expected .bleu. among the scores of task .*; got the first score, rmse, accuracy"
    ):
        load_baseline(task, sandbox, make_judge(task, sandbox))


def test_a_task_is_called_as_it_was_asked_for(checkout: Path) -> None:
    names = ["game", "game.yaml", "tasks/game.yaml", "gameTask"]
    assert [load_mlgym(checkout, name).name for name in names] == ["game", "game", "game", "gameTask"]


def test_a_baseline_in_a_folder_is_run_there_and_that_of_a_language_model_by_torchrun(checkout: Path) -> None:
    write(checkout, {"data/rows/base/make.py": "", "data/rows/other.py": ""})
    change(checkout, "rows", ("data/rows/baseline.py", "data/rows/base\n  - data/rows/other.py"))
    for named, command in (("base/make.py", "base/make.py"), ("data/rows/base/make.py", "base/make.py"),
                           ("data/rows/other.py", "other.py"), ("gone/away.py", "away.py")):  # fmt: skip
        text = (checkout / "configs/tasks/rows.yaml").read_text()
        change(checkout, "rows", ("baseline_paths:\n", f"baseline_paths:\n  - {named}\n"))
        assert load_mlgym(checkout, "rows", metric="accuracy").baseline == f"python {command}"
        (checkout / "configs/tasks/rows.yaml").write_text(text)
    change(checkout, "lm", ("baseline_scores", "baseline_paths:\n  - train.py\nbaseline_scores"))
    assert load_mlgym(checkout, "lm").baseline == "torchrun --nproc_per_node=1 --standalone train.py"


def test_the_configuration_of_a_model_may_lie_beside_its_checkpoint(checkout: Path) -> None:
    put = "mkdir checkpoints; echo '1 1 3' > checkpoints/w.txt; echo 'weights: w.txt' > checkpoints/config.yaml"
    outcome = judged(load_mlgym(checkout, "model"), put)
    assert isinstance(outcome, Grade)
    assert outcome.score == 4.0


def test_data_of_a_hub_that_are_not_there_are_said_and_those_that_are_are_shown(checkout: Path) -> None:
    path = checkout / "configs/datasets/rows.yaml"
    path.write_text(path.read_text().replace("is_local: true\n", ""))
    assert "a hub" not in load_mlgym(checkout, "rows", metric="accuracy").description
    path.write_text(path.read_text().replace("data/rows/public", "someone/rows"))
    task = load_mlgym(checkout, "rows", metric="accuracy")
    assert task.description.endswith("Data of a hub that are not here, and there is no network: someone/rows.")
    outside = checkout.parent / "outside"
    outside.mkdir(exist_ok=True)
    path.write_text(path.read_text().replace("someone/rows", "data/link") + "is_local: true\n")
    (checkout / "data/link").symlink_to(outside)
    with pytest.raises(TaskError, match="leads out of the checkout"):
        load_mlgym(checkout, "rows", metric="accuracy")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("training_timeout: 60", "training_timeout: -5", "training_timeout"),
        ("training_timeout: 60", "training_timeout: .nan", "training_timeout"),
        ("Score: 0.5", "Score: .nan", "baseline_scores"),
        (
            "evaluation_paths:\n  - evaluate.py",
            "evaluation_paths: []",
            "needs an evaluator .* evaluation_paths has nothing",
        ),
        ("evaluation_paths:\n  - evaluate.py", "evaluation_paths: [judge.py]", "evaluation_paths has judge.py"),
        ("training_timeout: 60", "secret_files: ['***']", r"secret_files: '\*\*\*' is neither a path nor a pattern"),
    ],
)
def test_a_task_file_with_what_cannot_be_is_one_line(checkout: Path, old: str, new: str, said: str) -> None:
    change(checkout, "game", (old, new))
    with pytest.raises(TaskError, match=said) as caught:
        load_mlgym(checkout, "game")
    assert "\n" not in str(caught.value)


def test_files_that_are_no_utf_8_are_no_obstacle(checkout: Path) -> None:
    (checkout / "configs/tasks/another.yaml").write_bytes(b"id: \xff\xfe\n")
    (checkout / "needs.txt").write_bytes(b"numpy\n\xff\xfe\nno-such-package-here\n")
    change(checkout, "game", ("training_timeout: 60", "requirements_path: needs.txt"))
    assert "no-such-package-here" in load_mlgym(checkout, "gameTask").description


def test_an_entry_point_that_is_left_out_reads_a_table(checkout: Path) -> None:
    change(checkout, "rows", ("task_entrypoint: CSVSubmissionTasks\n", ""))
    assert load_mlgym(checkout, "rows", metric="accuracy").file.task_entrypoint is EntryPoint.CSV


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
    return load_mlgym(checkout, "game", submission="target.py")


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
    judge = make_judge(game, sandbox_for(game))
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
    assert scores_in(text, "loss") == {"loss": 0.25}
    assert scores_in(text, "LOSS", first=True) == {"loss": 0.25}
    assert scores_in(text, "accuracy") == {"Loss": 3.0}
