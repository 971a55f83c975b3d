"""The command line, run in its own process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import processes
import pytest

TEACH = ["teach", "--skill", "addition", "--skill", "geometry", "--rounds", "1", "--lesson-size", "12", "--validation", "2", "--test", "3", "--epochs", "1", "--threads", "1"]  # fmt: skip


def palaestra(*arguments: str | Path, cwd: Path | None = None) -> processes.Completed:
    return processes.run_command(*arguments, cwd=cwd, env={"COLUMNS": "100"})


def read_error(result: processes.Completed) -> str:
    """Check that a command ended with a one-line error, and return the line."""
    assert result.returncode == 2, result
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.fixture(scope="module")
def teach_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command")
    result = palaestra(*TEACH, "--seed", "3", cwd=folder)
    assert result.returncode == 0, result.stderr
    last = result.stdout.strip().splitlines()[-1]
    assert last.startswith("run: runs/teach-")
    assert "gain in points" in result.stdout
    return folder / last.removeprefix("run: ")


def test_teach_leaves_a_run_with_summary_and_report(teach_run: Path) -> None:
    assert json.loads((teach_run / "summary.json").read_text())["seed"] == 3
    assert "<svg" in (teach_run / "report.html").read_text()


def test_report_and_resume_name_the_folder_last(teach_run: Path) -> None:
    for command in ("report", "resume"):
        result = palaestra(command, teach_run)
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip().splitlines()[-1] == f"run: {teach_run}"


def test_a_study_ends_with_a_table_and_a_page(tmp_path: Path) -> None:
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
        (["teach", "--task", "math-skils"], "'math-skills'"),
        (["teach", "--teacher", "skil_tree"], "'skill_tree'"),
        (["teach", "--student", "nanoo"], "'nano'"),
        (["teach", "--skill", "clok"], "'clock'"),
        (["evaluate", "--model", "/no/such/folder"], "/no/such/folder"),
        (["teach", "--skill", "clock", "--skill", "clock"], "given twice"),
        (["teach", "--rounds", "x"], "--rounds"),
        (["teach", "--roundz", "3"], "--roundz"),
        (["teech"], "teech"),
        (["resume"], "RUN"),
        (["teach", "--out", "x" * 300], "x" * 300),
        (["teach", "--device", "nowhere"], "'nowhere'"),
        (["evaluate", "--split", "tests"], "'split'"),
        (["teach", "--rounds", "0"], "at least 1; got 0"),
        (["teach", "--settings", "missing.json"], "missing.json"),
        (["resume", "nowhere"], "nowhere does not exist"),
        (["report", "nowhere"], "nowhere does not exist"),
        (["list", "teacher"], "'teachers'"),
        (["models", "get", "smolm2"], "'smollm2'"),
        (["pretrain", "--width", "33"], "multiple of 32"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(arguments: list[str], expected: str, tmp_path: Path) -> None:
    assert expected in read_error(palaestra(*arguments, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("content", "expected"), [({"roundz": 3}, "'rounds'"), ({"rounds": "x"}, "'rounds'")])
def test_a_bad_settings_file_is_one_line(content: object, expected: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(content))
    assert expected in read_error(palaestra("teach", "--settings", "s.json", cwd=tmp_path))
    assert [f.name for f in tmp_path.iterdir()] == ["s.json"]


def test_a_run_folder_in_use_is_refused(teach_run: Path) -> None:
    from palaestra.runs.run import Run

    with Run.open(teach_run):
        assert f"pid {os.getpid()}" in read_error(palaestra("resume", teach_run))


def test_a_corrupt_run_folder_is_refused_and_left_as_it_is(teach_run: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(teach_run, tmp_path / "run")
    (tmp_path / "run" / "store.sqlite").write_bytes(b"not a database, whatever the name says" * 50)
    assert "damaged" in read_error(palaestra("resume", tmp_path / "run"))
    assert (tmp_path / "run" / "store.sqlite").read_bytes().startswith(b"not a database")


@pytest.mark.parametrize("settings", [{"rounds": "x"}, {"roundz": 1}, []])
def test_damaged_settings_of_a_run_are_one_line(teach_run: Path, tmp_path: Path, settings: object) -> None:
    import shutil

    shutil.copytree(teach_run, tmp_path / "run")
    (tmp_path / "run" / "settings.json").write_text(json.dumps({"format": 1, "recipe": "teach", "settings": settings}))
    assert "damaged" in read_error(palaestra("resume", tmp_path / "run"))


def test_a_bare_command_and_help_explain_themselves() -> None:
    for arguments in ((), ("--help",), ("teach", "--help")):
        result = palaestra(*arguments)
        assert "Usage" in result.stdout + result.stderr
    assert palaestra("--version").stdout.strip() == "0.1.0"


def test_an_existing_run_is_not_overwritten(teach_run: Path) -> None:
    before = (teach_run / "summary.json").read_bytes()
    assert "palaestra resume" in read_error(palaestra(*TEACH, "--out", teach_run))
    assert (teach_run / "summary.json").read_bytes() == before


def test_another_seed_cannot_be_given_to_a_run(teach_run: Path) -> None:
    assert "the run's seed 3" in read_error(palaestra("resume", teach_run, "--seed", "4"))


def test_the_gain_table_fits_eighty_columns() -> None:
    from io import StringIO

    from rich.console import Console

    from palaestra.cli.terminal import gain_table

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
def train_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    result = palaestra(*TRAIN, "--seed", "2", "--out", folder / "run")
    assert result.returncode == 0, result.stderr
    assert "iteration 3/3: reward" in result.stdout
    assert "held out, after: reward" in result.stdout
    assert result.stdout.strip().splitlines()[-1] == f"run: {folder / 'run'}"
    return folder / "run"


def test_train_leaves_a_run_with_summary_report_and_policy(train_run: Path) -> None:
    summary = json.loads((train_run / "summary.json").read_text())
    assert (summary["recipe"], summary["seed"], summary["iterations"]) == ("train", 2, 3)
    assert "<svg" in (train_run / "report.html").read_text()
    assert (train_run / "model" / "policy.safetensors").exists()
    result = palaestra("resume", train_run)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--env", "CartPol-v1"], "did you mean 'CartPole-v1'"),
        (["train", "--env", "CartPole-v1", "--policy", "lm"], "'lm' does not fit CartPole-v1"),
        (["train", "--algorithm", "sarsa"], "algorithm 'sarsa'"),
        (["train", "--env-option", "nonsense=1"], "no option 'nonsense'"),
        (["train", "--env-option", "task=nonsense"], "task 'nonsense'"),
        (["train", "--algorithm", "ppo", "--gamma", "1.5"], "'gamma': expected 0 to 1; got 1.5"),
        (
            ["train", "--algorithm", "grpo", "--gae-lambda", "1"],
            "'gae_lambda' is for ppo",
        ),
        (["train", "--learning-rate", "inf"], "'learning_rate': expected a finite number; got inf"),
        (["teach", "--learning-rate", "nan"], "'learning_rate': expected a finite number; got nan"),
        (["teach", "--student-option", "size=1"], "'supervised' has no option 'size'"),
        (["teach", "--task", "vision-skills", "--student", "nano"], "it reads text only"),
        (["evaluate", "--task", "vision-skills", "--model", "nano"], "'nano' reads text only"),
        (["evaluate", "--device", "nonsense"], "'device': "),
        (["train", "--out", "settings.json/run"], "settings.json is a file"),
        (["teach", "--out", "/proc/run"], "/proc/run"),
        (["train", "--env-option", 'skills=["clok"]'], "'clock'"),
        (["train-reward", "--datasets-path", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_bad_training_input_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "settings.json").touch()
    result = palaestra(*arguments, cwd=tmp_path)
    assert message in read_error(result)
    assert "load" not in result.stdout
    assert not (tmp_path / "runs").exists()


def test_train_reward_prints_accuracy_and_saves_the_model(tmp_path: Path) -> None:
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

    printed = palaestra("list", "environments").stdout
    ours = [name for name, spec in gymnasium.registry.items() if str(spec.entry_point).startswith(package.__name__)]
    for name in ours:
        assert name in printed
        if name.startswith("palaestra/"):  # The others are second names, in the description of the first.
            assert "scale: " in next(line for line in printed.splitlines() if line.split()[:1] == [name])


def test_the_package_can_be_run_as_a_module() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "palaestra", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "0.1.0"
