"""Tasks in MLGym's format from a small checkout of our own, run with all four entry points."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import ANY

import pytest

from palaestra.core.errors import SettingsError, TaskError, UnknownNameError
from palaestra.core.records import Failure
from palaestra.integrations.mlgym import MLGymTask, load_mlgym, mlgym_names
from palaestra.integrations.mlgym.files import EntryPoint, guess_direction
from palaestra.integrations.mlgym.judge import scores_in
from palaestra.research.judge.evaluation import make_judge, sandbox_for
from palaestra.research.tasks.task import Grade, InvalidSubmission
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
                "CSVSubmissionTasks",
                "rows",
                "dataset_configs:\n  - datasets/rows.yaml\nstarter_code:\n  - data/rows/evaluate.py\n  - data/rows/baseline.py\n"
                "secret_files:\n  - data/rows/answers.txt\nbaseline_paths:\n  - baseline.py\nbaseline_scores:\nmemory_path:\n",
            ),
            "configs/datasets/rows.yaml": "name: rows\ndescription: four rows\ndata_path: data/rows/public\nis_local: true\n",
            "data/rows/public/rows.csv": "1\n2\n3\n4\n",
            "data/rows/answers.txt": "a\nb\na\nb\n",
            "data/rows/evaluate.py": CSV_EVALUATOR,
            "data/rows/baseline.py": "open('submission.csv', 'w').write('label\\n' + 'a\\n' * 4)\n",
            "configs/tasks/game.yaml": task(
                "PythonSubmissionTasks",
                "game",
                "starter_code:\n  - data/game/evaluate.py\n  - data/game/target.py\n  - data/game/helpers\nbaseline_scores:\n  - Score: 0.5\n",
            ),
            "data/game/evaluate.py": PYTHON_EVALUATOR,
            "data/game/target.py": "def play(k):\n    return k % 2\n",
            "data/game/helpers/notes.txt": "nothing",
            "configs/tasks/model.yaml": task(
                "ModelSubmissionTasks",
                "model",
                "starter_code:\n  - data/model/evaluate.py\nbaseline_scores:\n  - loss: 4.0\n",
            ),
            "data/model/evaluate.py": MODEL_EVALUATOR,
            "configs/tasks/lm.yaml": task(
                "LMSubmissionTasks",
                "lm",
                "starter_code:\n  - data/lm/evaluate.py\nbaseline_scores:\n  - val_loss: 4.6\n",
            ),
            "data/lm/evaluate.py": LM_EVALUATOR,
        },
    )
    return tmp_path


def run_and_judge(task: MLGymTask, *commands: str) -> Grade | InvalidSubmission | Failure:
    """What is judged after these commands in a fresh workspace."""
    sandbox = sandbox_for(task)
    judge = make_judge(task, sandbox)
    with Workspace(task, sandbox, judge.data) as workspace:
        for command in commands:
            workspace.execute(command)
        files = workspace.submission()
    assert isinstance(files, dict)
    return judge.judge(files, "test")


def test_csv_task_hides_its_answers(checkout: Path) -> None:
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
    assert run_and_judge(task, "printf 'label\\na\\nb\\na\\nb\\n' > submission.csv") == Grade(
        1.0, {"accuracy": 1.0}, pytest.approx(0, abs=30)
    )


def test_what_the_agent_does_to_the_evaluator_has_no_effect(checkout: Path) -> None:
    task = load_mlgym(checkout, "rows", metric="accuracy")
    created = run_and_judge(
        task,
        "chmod -R u+w . ; echo 'print({\"accuracy\": 1.0})' > evaluate.py",
        "printf 'label\\na\\na\\na\\na\\n' > submission.csv; echo 'a' > answers.txt; mkdir -p data; echo 1 > json.py",
    )
    assert isinstance(created, Grade)
    assert created.score == 0.5


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
    created = run_and_judge(task, f"cat > target.py <<'END'\n{trick}\ndef play(k):\n    return 0.25\nEND")
    assert isinstance(created, Grade), created
    assert created.score == 0.25


def test_files_of_the_workspace_stand_in_for_no_library(checkout: Path) -> None:
    task = load_mlgym(checkout, "game")
    created = run_and_judge(
        task, 'echo \'def dumps(x): return "{\\"Score\\": 9}"\' > json.py', "echo 'def play(k): return 1' > target.py"
    )
    assert isinstance(created, Grade)
    assert created.score == 1.0


def test_models_and_language_models_are_judged(checkout: Path) -> None:
    task = load_mlgym(checkout, "model")
    assert task.metric.direction.value == "lower"
    created = run_and_judge(
        task, "mkdir checkpoints; echo '1 1.5' > checkpoints/w.txt; echo 'weights: w.txt' > config.yaml"
    )
    assert isinstance(created, Grade), created
    assert created.score == 0.25
    assert run_and_judge(task) == InvalidSubmission(
        "the evaluator needs a configuration as a .yaml file in the workspace; it has none"
    )
    created = run_and_judge(load_mlgym(checkout, "lm"), "echo 3.5 > loss.txt")
    assert isinstance(created, Grade), created
    assert created.score == 3.5


def test_unreadable_submission_has_no_score(checkout: Path) -> None:
    task = load_mlgym(checkout, "rows", metric="accuracy")
    created = run_and_judge(task, "printf 'label\\na\\n' > submission.csv")
    assert isinstance(created, InvalidSubmission)
    assert "1 predictions for 4 rows" in created.reason
    created = run_and_judge(task, "ln -s /etc/passwd submission.csv")
    assert isinstance(created, InvalidSubmission)
    assert "submission.csv" in created.reason


def test_baseline_is_recorded_or_measured_once(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(UnknownNameError, match="'game'"):
        load_mlgym(checkout, "gane")
    with pytest.raises(TaskError, match="configs/tasks"):
        load_mlgym(tmp_path / "data", "game")
    (checkout / "data/rows/public/rows.csv").unlink()
    (checkout / "data/rows/public").rmdir()
    with pytest.raises(TaskError, match="README"):
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
    with pytest.raises(TaskError, match=r"starter code .*etc/passwd"):
        load_mlgym(checkout, "game")


def test_scores_are_found_among_other_words() -> None:
    assert scores_in("") is None
    assert scores_in('x {"a": 1}\n{"b": 2,\n "c": 3.5}\n{broken') == {"b": 2.0, "c": 3.5}
    assert scores_in(json.dumps({"text": "no number"})) is None


def test_differing_scores_and_scores_within_lines_do_not_count() -> None:
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


def test_unnamed_metric_is_the_only_baseline_score(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(checkout / "cache"))
    task = load_mlgym(checkout, "rows")
    assert (task.metric.name, task.name) == ("accuracy", "rows")
    evaluator = checkout / "data/rows/evaluate.py"
    evaluator.write_text(evaluator.read_text().replace('"accuracy":', '"rmse": 3.5, "accuracy":'))
    with pytest.raises(SettingsError, match="rmse, accuracy"):
        load_mlgym(checkout, "rows")
    for metric, value in (("rmse", 3.5), ("accuracy", 0.5)):  # MeasuredSolution once, and each by its own.
        task = load_mlgym(checkout, "rows", metric=metric)
        sandbox = sandbox_for(task)
        assert load_baseline(task, sandbox, make_judge(task, sandbox)).test.score == value
    assert len(list((checkout / "cache" / "research").glob("*.json"))) == 2
    task = load_mlgym(checkout, "rows", metric="bleu")
    with pytest.raises(TaskError, match=r"bleu.*rmse, accuracy"):
        load_baseline(task, sandbox, make_judge(task, sandbox))


def test_a_task_is_called_as_it_was_asked_for(checkout: Path) -> None:
    names = ["game", "game.yaml", "tasks/game.yaml", "gameTask"]
    assert [load_mlgym(checkout, name).name for name in names] == ["game", "game", "game", "gameTask"]


def test_baseline_commands(checkout: Path) -> None:
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


def test_model_configuration_may_be_beside_the_checkpoint(checkout: Path) -> None:
    put = "mkdir checkpoints; echo '1 1 3' > checkpoints/w.txt; echo 'weights: w.txt' > checkpoints/config.yaml"
    outcome = run_and_judge(load_mlgym(checkout, "model"), put)
    assert isinstance(outcome, Grade)
    assert outcome.score == 4.0


def test_missing_hub_data_are_listed(checkout: Path) -> None:
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
    with pytest.raises(TaskError, match="out of the checkout"):
        load_mlgym(checkout, "rows", metric="accuracy")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("training_timeout: 60", "training_timeout: -5", "training_timeout"),
        ("training_timeout: 60", "training_timeout: .nan", "training_timeout"),
        ("Score: 0.5", "Score: .nan", "baseline_scores"),
        (
            "evaluation_paths:\n  - evaluate.py",
            "evaluation_paths: []",
            "evaluation_paths has nothing",
        ),
        ("evaluation_paths:\n  - evaluate.py", "evaluation_paths: [judge.py]", r"evaluation_paths .*judge\.py"),
        ("training_timeout: 60", "secret_files: ['***']", r"secret_files: '\*\*\*'"),
    ],
)
def test_a_task_file_with_what_cannot_be_is_one_line(checkout: Path, old: str, new: str, expected: str) -> None:
    change(checkout, "game", (old, new))
    with pytest.raises(TaskError, match=expected) as caught:
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


def replace_evaluator(checkout: Path, text: str) -> MLGymTask:
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
def test_evaluator_output_counts_however_it_is_written(checkout: Path, text: str) -> None:
    game = replace_evaluator(checkout, text)
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
