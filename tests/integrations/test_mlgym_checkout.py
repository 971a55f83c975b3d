"""A real MLGym checkout, named by PALAESTRA_MLGYM: roles, scores and data as published.

The checkout is not part of this project because of its licence. Without the variable these tests are skipped. The missing
data of two tasks are generated in a copy.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from palaestra.core.errors import TaskError
from palaestra.integrations.mlgym import load_mlgym
from palaestra.integrations.mlgym.agent_file import agent_settings
from palaestra.recipes.research.recipe import run_research
from palaestra.research.agents.base import AgentContext, make_agent
from palaestra.research.judge.evaluation import make_judge, sandbox_for
from palaestra.research.tasks.task import Grade, Isolation
from palaestra.research.workspace.commands import Session
from palaestra.research.workspace.workspace import Workspace
from palaestra.sandbox import make_sandbox

CHECKOUT = Path(os.environ.get("PALAESTRA_MLGYM", ""))
pytestmark = pytest.mark.skipif(
    not os.environ.get("PALAESTRA_MLGYM"), reason="PALAESTRA_MLGYM names no checkout of MLGym"
)
GAMES = ("battleOfSexes", "blotto", "prisonersDilemma")
DEFECT = "def row_strategy(history):\n    return 1\n"
COOPERATE = "def target_column_strategy(history):\n    return 0\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the small parts, with fewer games to be quick, and with problems for the solver."""
    shutil.copytree(CHECKOUT / "configs", tmp_path / "configs")
    for name in (*GAMES, "3SATTime", "titanic"):
        shutil.copytree(CHECKOUT / "data" / name, tmp_path / "data" / name)
    for name in GAMES:
        path = tmp_path / "data" / name / "evaluate.py"
        path.write_text(path.read_text().replace("10, 10000)", "10, 300)"))
    rng, problems = random.Random(0), []
    for number in range(6):
        formula = [[rng.choice((-1, 1)) * item for item in rng.sample(range(1, 7), 3)] for _ in range(20)]
        values = (dict(zip(range(1, 7), bits, strict=True)) for bits in product((False, True), repeat=6))
        solved = any(all(any(v[abs(x)] == (x > 0) for x in clause) for clause in formula) for v in values)
        problems.append((number, 6, 20, formula, solved, None))
    (tmp_path / "data/3SATTime/data").mkdir()
    (tmp_path / "data/3SATTime/data/dataset.pkl").write_bytes(pickle.dumps(problems))
    return tmp_path


def score_in_mlgym(folder: Path, files: dict[str, str], where: Path) -> dict[str, float]:
    """The scores of a submission by the evaluator as it is, in one process."""
    shutil.copytree(folder, where)
    for name, text in files.items():
        (where / name).write_text(text)
    scores: dict[str, float] = json.loads(subprocess.check_output([sys.executable, "evaluate.py"], cwd=where))
    return scores


def judge_files(checkout: Path, name: str, **files: str) -> Grade:
    task = load_mlgym(checkout, name)
    created = make_judge(task, sandbox_for(task)).judge({f"{k}.py": text.encode() for k, text in files.items()}, "test")
    assert isinstance(created, Grade), created
    return created


@pytest.mark.parametrize(("name", "file"), [*((game, "strategy.py") for game in GAMES), ("3SATTime", "heuristic.py")])
def test_the_submission_is_the_file_that_the_agent_edits(checkout: Path, name: str, file: str) -> None:
    assert load_mlgym(checkout, name).submission.files == (file,)
    assert load_mlgym(checkout, name, submission="other.py").submission.files == ("other.py",)


def test_strategy_scores_as_in_mlgym(checkout: Path, tmp_path: Path) -> None:
    """The opponent draws at random: 3,000 rounds have a standard error of about 0.04."""
    output = score_in_mlgym(checkout / "data/prisonersDilemma", {"strategy.py": DEFECT}, tmp_path / "plain")["Score"]
    created = judge_files(
        checkout, "prisonersDilemma", strategy=DEFECT, target=COOPERATE, evaluate="print('{\"Score\": 9}')"
    )
    assert created.isolation is Isolation.SEPARATE
    assert created.score == pytest.approx(output, abs=0.2)
    assert created.score == pytest.approx(2.62, abs=0.15)  # 2.37 is the starter's own, 5.0 against one that cooperates.


@pytest.mark.parametrize("name", ["battleOfSexes", "blotto"])
def test_deterministic_strategy_meets_the_original_opponent(checkout: Path, name: str) -> None:
    strategy = "def row_strategy(history):\n    return " + ("0\n" if name != "blotto" else "[0, 24, 24, 24, 24, 24]\n")
    created = judge_files(
        checkout, name, strategy=strategy, target="def target_column_strategy(history):\n    return None\n"
    )
    assert (created.isolation, -1 <= created.score <= 2) == (Isolation.SEPARATE, True)


def test_heuristic_uses_the_original_solver(checkout: Path, tmp_path: Path) -> None:
    own = (checkout / "data/3SATTime/heuristic.py").read_text()
    created = judge_files(checkout, "3SATTime", heuristic=own, solver="class DPLL: pass\n")
    assert created.isolation is Isolation.SHARED
    output = score_in_mlgym(checkout / "data/3SATTime", {}, tmp_path / "plain")
    assert {**created.scores, "Time": 0} == {**output, "Time": 0}
    assert load_mlgym(checkout, "3SATTime").metric.direction.value == "lower"


def test_titanic_scores_as_in_mlgym_with_hidden_answers(checkout: Path) -> None:
    task = load_mlgym(checkout, "titanic")
    truth = (checkout / "data/titanic/data/ground_truth.csv").read_text().splitlines()
    flipped = "\n".join([truth[0], *(f"{line[:-1]}{1 - int(line[-1])}" for line in truth[1:11]), *truth[11:]])
    assert "evaluate.py reads them, so it does not run in your workspace" in task.description
    judge = make_judge(task, sandbox_for(task))
    created = judge.judge({"submission.csv": flipped.encode()}, "test")
    assert isinstance(created, Grade)
    assert (created.scores["accuracy"], created.isolation) == ((len(truth) - 11) / (len(truth) - 1), Isolation.NOT_RUN)
    with Workspace(task, judge.sandbox, judge.data) as workspace:
        seen = workspace.execute("find . -name '*.csv' | sort; cat $(find . -type f) | grep -c '^892,0'").text
    assert seen.split() == ["./data/test.csv", "./data/train.csv", "0"]


def test_a_dataset_configuration_that_is_missing_is_named(checkout: Path) -> None:
    with pytest.raises(TaskError, match=r"configs/datasets/housePrice\.yaml"):
        load_mlgym(checkout, "regressionHousePrice")


def test_all_published_agent_files_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path))
    for path in sorted((CHECKOUT / "configs/agents").glob("*.yaml")):
        result = agent_settings(path)
        assert (result["parser"], result["history"]) == ("last_block", ("last:5",))
        assert {"edit", "insert", "validate", "submit", "bash", "search_dir"} <= set(result["commands"])
        assert "{{ command_docs }}" in (Path(result["prompts"]) / "system.md.j2").read_text()


@pytest.mark.parametrize(
    "commands",
    [
        ["open f.txt", "edit 2:9\nx\nend_of_edit"],
        ["open f.txt", "edit 9:12\nx\ny\nend_of_edit"],
        ["open f.txt", "edit 2:1\nx\nend_of_edit"],
        ["open f.txt", "edit 2:3 f.txt\nx\nend_of_edit"],
        ["open f.txt", "insert 99\nx\nend_of_insert"],
        ["open f.txt", "insert 0\nx\nend_of_insert"],
        ["open open.txt", "edit 2:2\nx\n\nend_of_edit", "edit 1:1\ny\nend_of_edit"],
        ["open open.txt", "insert 2\n\nend_of_insert"],
        ["open f.txt 99", "edit 1:1\nx\nend_of_edit"],
        ["open f.txt 0", "edit 3:3\nx\nend_of_edit"],
        ["open g.txt", "create f.txt", "edit 1:1\nx\nend_of_edit"],
        ["create new.txt", "edit 1:1\nx\nend_of_edit"],
        ["create new.txt", "insert 1\nx\nend_of_insert"],
        ["open f.txt", "open missing.txt", "edit 1:2\nend_of_edit"],
        ["open f.txt", "goto 99", "edit 2:2\nx\nend_of_edit", "edit 2:9\ny\nend_of_edit"],
    ],
)
def test_commands_change_files_as_mlgyms_do(commands: list[str], tmp_path: Path) -> None:
    files = {"f.txt": b"a\nb\nc\n", "g.txt": b"g\n", "open.txt": b"a\nb"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    lines = [f". {CHECKOUT}/tools/{name}.sh" for name in ("defaults", "edit_linting", "insert_linting")]
    lines += [
        command.replace("\n", f" <<'{command.splitlines()[-1]}'\n", 1) if "\n" in command else command
        for command in commands
    ]
    variables = {"PATH": os.environ["PATH"], "WINDOW": "1000", "OVERLAP": "2"}
    subprocess.run(["bash", "-c", "\n".join(lines)], cwd=tmp_path, env=variables, capture_output=True, check=False)
    output = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with make_sandbox().shell(files=files) as shell:
        session = Session(shell, None)  # type: ignore[arg-type]
        for command in commands:
            session.run(command)
        assert shell.read_files(list(output)) == output


def test_a_published_trajectory_is_replayed_message_by_message(checkout: Path) -> None:
    paths = sorted((CHECKOUT / "trajectories").glob("*/*prisonersDilemma*/*.traj"))
    if not paths:
        pytest.skip("this checkout has no trajectories")
    steps = json.loads(paths[0].read_text())["trajectory"]
    agent = make_agent(f"replay:{paths[0]}", AgentContext(load_mlgym(checkout, "prisonersDilemma")))
    assert [message.text for message in agent.messages] == [step["response"] for step in steps]  # type: ignore[attr-defined]


def test_a_published_trajectory_is_replayed_with_its_scores(checkout: Path, tmp_path: Path) -> None:
    """Its edits go by the line numbers of starter files that have a notice at their head since."""
    for run, departures in ((0, 1), (3, 2)):  # They open evaluate.py, which the fixture changed, and run 3 target.py.
        path = next((CHECKOUT / "trajectories").glob(f"*/*claude-35*battleOfSexes*run_{run}/*.traj"), None)
        if path is None:
            pytest.skip("this checkout has no trajectories")
        published = [item["Score"] for item in json.loads((path.parent / "results.json").read_text())["agent"]]
        summary = run_research(
            task="battleOfSexes",
            mlgym=str(checkout),
            agent=f"replay:{path}",
            task_kwargs={"validations": 50},
            out=tmp_path / f"run-{run}",
        ).summary
        assert (summary["validations"], summary["stop_reason"]) == (len(published) - 1, "submitted")
        assert summary["best_attempt"] == pytest.approx(max(published[:-1]), abs=0.1)
        assert summary["best_submission"] == pytest.approx(published[-1], abs=0.1)
        replay = summary["replay"]
        assert replay["first_departure"] == 3
        assert "10, 300)" in replay["reason"]
        assert replay["steps"] - replay["identical"] == departures
