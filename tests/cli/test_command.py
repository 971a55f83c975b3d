"""The command line, run in its own process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm

TEACH = ["teach", "--skill", "addition", "--skill", "geometry", "--rounds", "1", "--lesson-size", "12", "--validation", "2", "--test", "3", "--epochs", "1", "--threads", "1"]  # fmt: skip


def palaestra(*arguments: str | Path, cwd: Path | None = None) -> warm.Completed:
    return warm.command(*arguments, cwd=cwd, env={"COLUMNS": "100"})


def refused(result: warm.Completed) -> str:
    """The one line of an error that a user can act on."""
    assert result.returncode == 2, result
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command")
    result = palaestra(*TEACH, "--seed", "3", cwd=folder)
    assert result.returncode == 0, result.stderr
    last = result.stdout.strip().splitlines()[-1]
    assert last.startswith("run: runs/teach-")
    assert "gain in points" in result.stdout
    return folder / last.removeprefix("run: ")


def test_teach_leaves_a_run_with_summary_and_report(run: Path) -> None:
    assert json.loads((run / "summary.json").read_text())["seed"] == 3
    assert "<svg" in (run / "report.html").read_text()


def test_report_and_resume_of_a_finished_run_name_the_folder_last(run: Path) -> None:
    for command in ("report", "resume"):
        result = palaestra(command, run)
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip().splitlines()[-1] == f"run: {run}"


def test_a_study_ends_with_a_table_and_a_page_that_leads_to_its_runs(tmp_path: Path) -> None:
    study = tmp_path / "study"
    result = palaestra(*TEACH, "--teacher", "no_state,skill_list", "--keep", "best", "--out", study)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-2:] == [f"report: {study / 'report.html'}", f"study: {study}"]
    for name in ("no_state", "skill_list"):
        assert f'href="{name}-seed0/report.html"' in (study / "report.html").read_text()
        assert "Kept: " in (study / f"{name}-seed0" / "report.html").read_text()
    (study / "report.html").unlink()
    assert palaestra("report", study).returncode == 0
    assert (study / "report.html").exists()


def test_evaluate_prints_a_table_and_takes_a_settings_file(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps({"skills": ["addition"], "problems": 9, "seed": 2}))
    result = palaestra("evaluate", "--settings", tmp_path / "s.json", "--problems", "4", "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["report"]["count"], summary["seed"]) == (4, 2)
    assert "100.0 %" in result.stdout
    assert result.stdout.strip().splitlines()[-1] == f"run: {tmp_path / 'run'}"


def test_list_names_everything_and_loads_no_torch() -> None:
    result = palaestra("list")
    for name in ("math-skills", "skill_tree", "nano", "smollm2", "palaestra/Lesson-v0", "geometry"):
        assert name in result.stdout
    code = "import sys; from palaestra.cli.main import app; from typer.testing import CliRunner; CliRunner().invoke(app, ['list']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_models_lists_the_registry() -> None:
    result = palaestra("models", "list")
    assert "nano" in result.stdout
    assert palaestra("models", "get", "nano").stdout.strip().endswith("nano")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["teach", "--task", "math-skils"], "did you mean 'math-skills'"),
        (["teach", "--teacher", "skil_tree"], "did you mean 'skill_tree'"),
        (["teach", "--student", "nanoo"], "did you mean 'nano'"),
        (["teach", "--skill", "clok"], "did you mean 'clock'"),
        (["evaluate", "--model", "/no/such/folder"], "/no/such/folder is neither a folder nor a hub id"),
        (["teach", "--skill", "clock", "--skill", "clock"], "given twice"),
        (["teach", "--rounds", "x"], "--rounds"),
        (["teach", "--roundz", "3"], "--roundz"),
        (["teech"], "teech"),
        (["resume"], "RUN"),
        (["teach", "--out", "x" * 300], "x" * 300),
        (["teach", "--device", "nowhere"], "torch cannot compute on 'nowhere'"),
        (["evaluate", "--split", "tests"], "setting 'split'"),
        (["teach", "--rounds", "0"], "expected at least 1; got 0"),
        (["teach", "--settings", "missing.json"], "settings file missing.json does not exist"),
        (["resume", "nowhere"], "nowhere does not exist"),
        (["report", "nowhere"], "nowhere does not exist"),
        (["list", "teacher"], "did you mean 'teachers'"),
        (["models", "get", "smolm2"], "did you mean 'smollm2'"),
        (["pretrain", "--width", "33"], "multiple of 32"),
    ],
)
def test_bad_input_is_one_line_with_exit_code_2_and_nothing_written(
    arguments: list[str], expected: str, tmp_path: Path
) -> None:
    assert expected in refused(palaestra(*arguments, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "expected"), [({"roundz": 3}, "did you mean 'rounds'"), ({"rounds": "x"}, "setting 'rounds'")]
)
def test_a_bad_settings_file_is_one_line(content: object, expected: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(content))
    assert expected in refused(palaestra("teach", "--settings", "s.json", cwd=tmp_path))
    assert [f.name for f in tmp_path.iterdir()] == ["s.json"]


def test_a_run_folder_in_use_is_refused(run: Path) -> None:
    from palaestra.runs.run import Run

    with Run.open(run):
        assert f"pid {os.getpid()}" in refused(palaestra("resume", run))


def test_a_corrupt_run_folder_is_refused_and_left_as_it_is(run: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "store.sqlite").write_bytes(b"not a database, whatever the name says" * 50)
    assert "damaged" in refused(palaestra("resume", tmp_path / "run"))
    assert (tmp_path / "run" / "store.sqlite").read_bytes().startswith(b"not a database")


@pytest.mark.parametrize("settings", [{"rounds": "x"}, {"roundz": 1}, []])
def test_damaged_settings_of_a_run_are_one_line(run: Path, tmp_path: Path, settings: object) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "settings.json").write_text(json.dumps({"format": 1, "recipe": "teach", "settings": settings}))
    assert "damaged" in refused(palaestra("resume", tmp_path / "run"))


def test_a_bare_command_and_help_explain_themselves() -> None:
    for arguments in ((), ("--help",), ("teach", "--help")):
        result = palaestra(*arguments)
        assert "Usage" in result.stdout + result.stderr
    assert palaestra("--version").stdout.strip() == "0.1.0"


def test_an_existing_run_is_not_overwritten(run: Path) -> None:
    before = (run / "summary.json").read_bytes()
    assert "palaestra resume" in refused(palaestra(*TEACH, "--out", run))
    assert (run / "summary.json").read_bytes() == before


def test_another_seed_cannot_be_given_to_a_run(run: Path) -> None:
    assert "the run's seed 3" in refused(palaestra("resume", run, "--seed", "4"))


def test_the_table_of_gains_fits_eighty_columns_with_nothing_cut_off() -> None:
    from io import StringIO

    from rich.console import Console

    from palaestra.cli.tables import gain_table

    row = {"problems": 25, "examples": 1000, "gain": -100.0, "gain_low": -100.0, "gain_high": -100.0} | {
        f"{when}{which}": value
        for when in ("before", "after")
        for which, value in (("", 100.0), ("_low", 87.0), ("_high", 100.0))
    }
    out = StringIO()
    Console(width=80, file=out).print(
        gain_table({**row, "by_skill": {"long_multiplication": row, "empty": row | {"gain": None}}})
    )
    assert "…" not in out.getvalue()
    assert "-100 [-100, -100]" in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 80


TRAIN = ["train", "--env", "CartPole-v1", "--iterations", "3", "--num-envs", "4", "--n-steps", "16", "--evaluation", "3", "--threads", "1"]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    result = palaestra(*TRAIN, "--seed", "2", "--out", folder / "run")
    assert result.returncode == 0, result.stderr
    assert "iteration 3/3: reward" in result.stdout
    assert "held out, after: reward" in result.stdout
    assert result.stdout.strip().splitlines()[-1] == f"run: {folder / 'run'}"
    return folder / "run"


def test_train_leaves_a_run_with_summary_report_and_policy(trained: Path) -> None:
    summary = json.loads((trained / "summary.json").read_text())
    assert (summary["recipe"], summary["seed"], summary["iterations"]) == ("train", 2, 3)
    assert "<svg" in (trained / "report.html").read_text()
    assert (trained / "model" / "policy.safetensors").exists()
    result = palaestra("resume", trained)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--env", "CartPol-v1"], "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'"),
        (["train", "--env", "CartPole-v1", "--policy", "lm"], "policy 'lm' does not fit CartPole-v1"),
        (["train", "--algorithm", "sarsa"], "unknown algorithm 'sarsa'"),
        (["train", "--env-option", "nonsense=1"], "palaestra/CoT-v0 has no option 'nonsense'"),
        (["train", "--env-option", "task=nonsense"], "unknown task 'nonsense'"),
        (["train", "--algorithm", "ppo", "--gamma", "1.5"], "setting 'gamma': expected 0 to 1; got 1.5"),
        (
            ["train", "--algorithm", "grpo", "--gamma", "1"],
            "setting 'gamma' is for ppo and reinforce; got algorithm 'grpo'",
        ),
        (["train", "--critic-rate=0.1"], "option '--critic-rate' is now '--critic-learning-rate'"),
        (["train", "--slots", "4"], "option '--slots' is now '--num-envs'"),
        (["train", "--steps", "4"], "option '--steps' is now '--n-steps'"),
        (["train", "--learning-rate", "inf"], "setting 'learning_rate': expected a finite number; got inf"),
        (["teach", "--learning-rate", "nan"], "setting 'learning_rate': expected a finite number; got nan"),
        (["teach", "--student-option", "size=1"], "student 'supervised' has no option 'size'; it takes none"),
        (["teach", "--task", "vision-skills"], "the problems have images, and the model 'nano' reads text only"),
        (["evaluate", "--task", "vision-skills"], "the problems have images, and the model 'nano' reads text only"),
        (["evaluate", "--device", "nonsense"], "setting 'device': torch cannot compute on 'nonsense'"),
        (["train", "--out", "settings.json/run"], "settings.json is a file, not a folder"),
        (["teach", "--out", "/proc/run"], "/proc/run"),
        (["train", "--env-option", 'skills=["clok"]'], "did you mean 'clock'"),
        (["train-reward", "--datasets-path", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_bad_training_input_is_one_line_before_a_model_is_loaded(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "settings.json").touch()
    result = palaestra(*arguments, cwd=tmp_path)
    assert message in refused(result)
    assert "load" not in result.stdout
    assert not (tmp_path / "runs").exists()


def test_train_reward_prints_accuracy_before_and_after_and_saves_the_model(tmp_path: Path) -> None:
    rows = [{"prompt": f"say {k}", "chosen": f"{k} {k} yes", "rejected": f"{k} no"} for k in range(40)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    result = palaestra(
        "train-reward", "--datasets-path", "pairs.jsonl", "--epochs", "1", "--threads", "1", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert "accuracy" in result.stdout
    last = result.stdout.strip().splitlines()[-1]
    assert last.startswith("model: runs/reward-")
    assert (tmp_path / last.removeprefix("model: ") / "config.json").exists()


def test_help_has_groups_and_defaults() -> None:
    printed = palaestra("teach", "--help").stdout
    for group in ("Task", "Model", "Teacher", "Learning", "Run"):
        assert f"─ {group} ─" in printed
    assert "[default: (skill_tree)]" in printed
    for command in ("train", "evaluate", "research"):
        assert "[default:" in palaestra(command, "--help").stdout


def test_a_bare_command_says_what_can_be_done() -> None:
    result = palaestra()
    assert (result.returncode, result.stderr) == (0, "")
    for name in ("train", "teach", "evaluate", "research", "resume", "models"):
        assert f" {name} " in result.stdout
    result = palaestra("models")
    assert (result.returncode, result.stderr) == (0, "")
    assert "palaestra models get NAME" in result.stdout


def test_every_environment_is_listed_with_a_description() -> None:
    import gymnasium

    import palaestra as package
    from palaestra.envs import ALIASES

    printed = palaestra("list", "environments").stdout
    ours = [name for name, spec in gymnasium.registry.items() if str(spec.entry_point).startswith(package.__name__)]
    for name in ours:
        line = next(line for line in printed.splitlines() if line.split()[:1] == [ALIASES.get(name, name)])
        assert "scale: " in line
        assert name in printed


def test_the_package_can_be_run_as_a_module() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "palaestra", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "0.1.0"
