"""The task file: the effect of every field, and errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from registries import isolate_registries

from palaestra.core.errors import TaskError, UnknownNameError
from palaestra.core.records import Failure, FailureCause
from palaestra.research.judge.evaluation import Evaluation, SubmissionJudge, sandbox_for
from palaestra.research.tasks.data import load_data
from palaestra.research.tasks.task import RESEARCH_TASKS, Direction, Grade, InvalidSubmission, ResearchTask, load_task
from palaestra.research.workspace.env import ResearchEnv
from palaestra.research.workspace.workspace import MeasuredSolution, Workspace, load_baseline, measure, read_baseline

SHORT = {
    "name": "number",
    "title": "A large number",
    "description": "Write a number into answer.txt.",
    "metric": {"name": "value", "direction": "higher"},
    "submission": {"files": ["answer.txt"]},
}
"""What a task must say."""
EVALUATOR = """
def evaluate(evaluation):
    return {"value": float(evaluation.text("answer.txt"))}
"""
FILES = {"evaluator.py": EVALUATOR, "starter/answer.txt": "5\n"}

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a task: the fields that it must have, with others put over them, and further files."""

    def write_task(fields: dict[str, Any] | None = None, files: dict[str, str] | None = None) -> Path:
        folder = tmp_path / "task"
        for name, text in {"task.yaml": yaml.safe_dump({**SHORT, **(fields or {})}), **FILES, **(files or {})}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder

    return write_task


def make_judge(folder: Path) -> SubmissionJudge:
    task = load_task(folder)
    return SubmissionJudge(task, sandbox_for(task))


def measure_baseline(folder: Path) -> MeasuredSolution:
    judge = make_judge(folder)
    return load_baseline(judge.task, judge.sandbox, judge)


def make_workspace(folder: Path) -> Workspace:
    task = load_task(folder)
    return Workspace(task, sandbox_for(task), load_data(task))


# What is read


def test_every_field_of_the_file_is_read_as_it_stands(write: Write) -> None:
    fields: dict[str, Any] = {
        "name": "other_name", "title": "A title", "description": "What is asked.",
        "metric": {"name": "loss", "direction": "lower", "low": 0.0, "high": 9.0, "scale": 0.5, "floor": 8.0, "spread": 0.25},
        "submission": {"files": ["a.txt"], "optional": ["b/c.txt"], "largest": 77},
        "baseline": "python3 baseline.py", "reference": "python3 good.py", "starter": "begin", "evaluator": "judge.py",
        "data": "make_data.py",
        "limits": {
            "steps": 3, "seconds": 4.0, "command_seconds": 5.0, "validations": 6, "evaluation_seconds": 7.0,
            "memory": 8_000_000, "processes": 9,
        },
        "secrets": ["key.txt"], "dependencies": ["numpy"], "hide": ["yaml/loader.py"], "palaestra": True, "tags": ["cpu"],
    }  # fmt: skip
    folder = write(fields, {"judge.py": EVALUATOR, "make_data.py": "", "begin/key.txt": ""})
    task = load_task(folder)
    assert task.model_dump(mode="json") == fields
    assert set(fields) == set(ResearchTask.model_fields)
    assert (task.folder, task.metric.direction) == (folder.resolve(), Direction.LOWER)
    for part in ("metric", "submission", "limits"):
        assert set(fields[part]) == set(type(getattr(task, part)).model_fields)


def test_task_is_loaded_by_folder_and_by_entry_point(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write()
    isolate_registries(monkeypatch, RESEARCH_TASKS)
    RESEARCH_TASKS.register("theirs", folder)
    assert load_task(str(folder)) == load_task(folder) == load_task("theirs")
    with pytest.raises(UnknownNameError, match="'theirs'"):
        load_task("theire")


# What is refused


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        *(({name: None}, f"field {name} is missing") for name in SHORT),
        ({"metric": {"direction": "higher"}}, "field metric.name is missing"),
        ({"metric": {"name": "value"}}, "field metric.direction is missing"),
        ({"submission": {"optional": ["a"]}}, "field submission.files is missing"),
        ({"titel": "x", "title": None}, "field titel; .*'title'"),
        ({"metric": {"nam": "value", "direction": "higher"}}, "field metric.nam; .*'name'"),
        ({"limits": {"step": 1}}, "field limits.step; .*'steps'"),
        ({"submission": {"files": ["a"], "biggest": 1}}, "field submission.biggest; .*'largest'"),
        ({"name": "My task"}, "name: .*pattern"),
        ({"description": ""}, "description: .*1 character"),
        (
            {"metric": {"name": "v", "direction": "up"}},
            "metric.direction: .*'up'",
        ),
        ({"metric": {"name": "v", "direction": "lower", "scale": 0}}, "metric.scale: .*greater"),
        (
            {"metric": {"name": "v", "direction": "lower", "low": 2, "high": 1}},
            "low .*below .*high",
        ),
        ({"submission": {"files": []}}, "submission.files: .*1 item"),
        ({"submission": {"files": ["a"], "largest": 0}}, "submission.largest: .*greater"),
        (
            {"submission": {"files": ["../model.py"]}},
            "submission.files.0: .*'../model.py'",
        ),
        ({"submission": {"files": ["a", "/etc/passwd"]}}, "got '/etc/passwd'"),
        ({"submission": {"files": [""]}}, "submission.files.0: .*''"),
        (
            {"submission": {"files": ["a"], "optional": ["b/../../c"]}},
            "submission.optional.0: .*relative path",
        ),
        ({"secrets": ["../evaluator.py"]}, "secrets.0: .*relative path"),
        ({"hide": ["/usr/lib"]}, "hide.0: .*relative path"),
        *(
            ({"limits": {name: -1}}, f"limits.{name}: .*greater")
            for name in (
                "steps",
                "seconds",
                "command_seconds",
                "validations",
                "evaluation_seconds",
                "memory",
                "processes",
            )
        ),
        ({"palaestra": "perhaps"}, "palaestra: .*boolean"),
        ({"dependencies": "numpy"}, "dependencies: .*'numpy'"),
        ({"evaluator": "judge.py"}, "judge.py, which is missing"),
        ({"data": "data.py"}, "data.py, which is missing"),
        ({"starter": "begin"}, "starter folder begin"),
        ({"starter": "."}, r"starter: .*'\.'"),
        ({"starter": ".."}, "starter: .*relative path"),
        ({"evaluator": "/etc/passwd"}, "evaluator: .*'/etc/passwd'"),
        ({"evaluator": ""}, "evaluator: .*relative path"),
        ({"data": "../data.py"}, "data: .*relative path"),
        (
            {"evaluator": "starter/answer.txt"},
            r"starter/answer.txt \(evaluator\)",
        ),
        ({"data": "starter/answer.txt"}, r"starter/answer.txt \(data\)"),
        *(
            ({"limits": {name: number}}, f"limits.{name}: .*finite")
            for name in ("seconds", "command_seconds", "evaluation_seconds", "steps")
            for number in (math.inf, math.nan)
        ),
        *(
            (
                {"metric": {"name": "v", "direction": "lower", name: number}},
                f"metric.{name}: .*finite",
            )
            for name in ("low", "high", "scale")
            for number in (math.inf, math.nan)
        ),
        ({"secrets": ["key.txt"]}, "secret key.txt, .*starter"),
    ],
)
def test_a_mistake_is_named_in_one_line(write: Write, fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(TaskError, match=expected) as caught:
        load_task(write(fields))
    assert "\n" not in str(caught.value)
    assert "task.yaml" in str(caught.value)
    assert SHORT["description"] not in str(caught.value)  # Nobody wants to read the file again.


def test_starter_link_to_hidden_files_is_refused(write: Write) -> None:
    folder = write(files={"reference/answer.txt": "50\n"})
    link = folder / "starter" / "link"
    for target, expected in (
        ("evaluator.py", r"evaluator\.py \(evaluator\)"),
        ("reference/answer.txt", r"\(reference\)"),
    ):
        link.symlink_to(folder / target)
        with pytest.raises(TaskError, match=expected):
            load_task(folder)
        link.unlink()
    load_task(folder)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("name: [", "as YAML"), ("- a", "mapping .*list"), (None, "has none")],
)  # fmt: skip
def test_a_file_that_is_none_is_said(write: Write, text: str | None, expected: str) -> None:
    path = write() / "task.yaml"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(TaskError, match=expected):
        load_task(path.parent)


# What is told, and what is measured


def test_prompt_has_description_metric_limits_and_files(write: Write) -> None:
    fields = {
        "limits": {"steps": 3, "seconds": 44, "command_seconds": 55, "validations": 6},
        "submission": {"files": ["answer.txt"], "optional": ["more.txt"]},
    }
    env = ResearchEnv(write(fields))
    observation, info = env.reset(seed=0)
    env.close()
    system, user = (message.text for message in observation.messages)
    for words in (
        "# A large number", SHORT["description"], "answer.txt (optional: more.txt)", "The metric is `value`; higher is",
        "at most 6 times", "You have 3 messages and 44 seconds", "- answer.txt",
    ):  # fmt: skip
        assert words in user, words
    assert "may run for 55 seconds" in system
    assert info["metric"] == "value"


@pytest.mark.parametrize(("direction", "better", "gain"), [("higher", 7.0, 4.0), ("lower", 3.0, -4.0)])
def test_direction_and_scale_make_the_reward(write: Write, direction: str, better: float, gain: float) -> None:
    folder = write({"metric": {"name": "value", "direction": direction, "scale": 0.5}})
    env = ResearchEnv(folder)
    env.reset(seed=0)
    env.step("```\necho 7 > answer.txt\n```")
    _, reward, terminated, _, info = env.step("```\nsubmit\n```")
    env.close()
    assert (reward, terminated, info["score"], info["baseline"]) == (gain, True, 7.0, 5.0)
    assert env.task.metric.best([3.0, 5.0, 7.0]) == better
    assert env.task.metric.better(better, 5.0)


def test_a_score_beyond_its_bounds_was_judged_wrongly(write: Write) -> None:
    judge = make_judge(write({"metric": {"name": "value", "direction": "higher", "low": 1, "high": 10}}))
    for number in (b"1", b"10"):
        assert isinstance(judge.judge({"answer.txt": number}, "test"), Grade)
    for number in (b"0.9", b"10.1"):
        outcome = judge.judge({"answer.txt": number}, "test")
        assert isinstance(outcome, Failure)
        assert outcome.cause is FailureCause.SCORER
    other = make_judge(write({"metric": {"name": "loss", "direction": "lower"}}))
    outcome = other.judge({"answer.txt": b"1"}, "test")
    assert isinstance(outcome, Failure)
    assert "got ['value']" in outcome.message


@pytest.mark.parametrize(
    ("given", "score"),
    [("5", 5.0), ("np.float32(0.5)", 0.5), ("np.int64(3)", 3.0), ("np.array([2.0, 4.0]).mean()", 3.0)],
)
def test_a_score_is_an_int_or_a_float(write: Write, given: str, score: float) -> None:
    evaluator = f"import numpy as np\n\n\ndef evaluate(evaluation):\n    return {{'value': {given}}}\n"
    result = make_judge(write(files={"evaluator.py": evaluator})).judge({"answer.txt": b"1"}, "test")
    assert isinstance(result, Grade)
    assert result.score == score


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("{'value': True}", "got value of type bool"),
        ("{'value': np.bool_(1)}", "of type bool"),
        ("{'value': '0.5'}", "got value of type str"),
        ("{'value': 1.0, 'note': None}", "got note of type NoneType"),
        ("{'value': np.array([1.0])}", "got value of type ndarray"),
        ("5", "mapping of names to numbers; got int"),
    ],
)
def test_anything_else_is_a_failure_of_the_evaluator(write: Write, given: str, expected: str) -> None:
    evaluator = f"import numpy as np\n\n\ndef evaluate(evaluation):\n    return {given}\n"
    result = make_judge(write(files={"evaluator.py": evaluator})).judge({"answer.txt": b"1"}, "test")
    assert isinstance(result, Failure)
    assert result.cause is FailureCause.SCORER
    assert expected in result.message


def test_only_named_files_are_submitted_up_to_the_limit(write: Write) -> None:
    fields = {"submission": {"files": ["answer.txt"], "optional": ["more.txt"], "largest": 10}}
    folder = write(fields, {"starter/other.txt": "no"})
    with make_workspace(folder) as workspace:
        assert workspace.submission() == {"answer.txt": b"5\n"}
        workspace.execute("echo 1 > more.txt")
        assert workspace.submission() == {"answer.txt": b"5\n", "more.txt": b"1\n"}
    judge = make_judge(folder)
    assert isinstance(judge.judge({"answer.txt": b"5"}, "test"), Grade)
    assert judge.judge({"more.txt": b"5"}, "test") == InvalidSubmission(
        "the submission needs answer.txt; missing or not regular files: answer.txt"
    )
    assert judge.judge({"answer.txt": b"5" * 11}, "test") == InvalidSubmission(
        "the submission exceeds the limit of 10 bytes"
    )


def test_task_file_names_starter_evaluator_and_data(write: Write) -> None:
    files = {
        "begin/answer.txt": "2\n", "judge.py": EVALUATOR.replace("float(", "3 * float("),
        "numbers.py": "def make(public, hidden, rng):\n    (public / 'a').write_text('seen')\n",
        "data.py": "def make(public, hidden, rng): ...\n",
    }  # fmt: skip
    folder = write({"starter": "begin", "evaluator": "judge.py", "data": "numbers.py"}, files)
    assert measure_baseline(folder).test.score == 6.0
    with make_workspace(folder) as workspace:
        assert workspace.execute("cat answer.txt /data/a").text == "2\nseen"


# Baseline and reference


def test_baseline_and_reference_are_made_by_commands(write: Write) -> None:
    files = {
        "starter/make.py": "open('answer.txt', 'w').write('6')",
        "reference/make.py": "open('answer.txt', 'w').write('60')",
    }
    folder = write({"baseline": "python3 make.py", "reference": "python3 make.py && echo 1 >> answer.txt"}, files)
    assert measure_baseline(folder).test.score == 6.0
    task, judge = load_task(folder), make_judge(folder)
    good = measure(task, judge.sandbox, judge, task.reference, task.reference_files())
    assert (good.test.score, good.files) == (601.0, {"answer.txt": "601\n"})


@pytest.mark.parametrize(
    ("fields", "files", "expected"),
    [
        ({}, {"starter/answer.txt": ""}, "starter files in task 'number' .*validation split: .*evaluator of number failed: ValueError"),
        ({"baseline": "true"}, {"starter/answer.txt": "x" * 40_000_000},
         "'true' in task 'number' .*validation split: .*limit of"),
        ({"baseline": "python3 make.py"}, {"starter/make.py": "1\n1 / 0\n"},
         r"'python3 make\.py' of task 'number' .*exit code 1\): Traceback .*File"),
        ({}, {"evaluator.py": "def evaluate(evaluation):\n    return {\n"}, r"evaluator\.py .*: SyntaxError: "),
        ({}, {"evaluator.py": "import math\nmath.sqrt(-1)\n"},
         r"ValueError: math domain error \(evaluator\.py, line 2\)"),
        ({}, {"evaluator.py": "import no_such_package.part\n"},
         r"evaluator\.py .*pip install no_such_package"),
        ({}, {"evaluator.py": "import sys\nsys.exit(3)\n"}, r"SystemExit: 3 \(evaluator\.py, line 2\)"),
        ({}, {"evaluator.py": "def evalate(evaluation):\n    return {}\n"}, r"evaluator\.py .*function evaluate"),
        ({"data": "data.py"}, {"data.py": "def make(public, hidden, rng):\n    part(public)\n\n\ndef part(public):\n    public.write_text('')\n"},
         "data of task 'number' .*: IsADirectoryError: "),
        ({"data": "data.py"}, {"data.py": "def make(public, hidden, rng):\n    import yaml.no_such_part\n"},
         r"data of task 'number' .*'yaml\.no_such_part' \(data\.py, line 2\)"),
        ({"data": "data.py"}, {"data.py": "def make(public, hidden, rng):\n    import no_such_package\n"},
         "data of task 'number' .*'no_such_package'"),
    ],
)  # fmt: skip
def test_errors_of_task_code_name_their_place(
    write: Write, fields: dict[str, Any], files: dict[str, str], expected: str
) -> None:
    with pytest.raises(TaskError, match=expected) as caught:
        measure_baseline(write(fields, files))
    assert "\n" not in str(caught.value)
    assert "Failure(" not in str(caught.value)
    assert "InvalidSubmission(" not in str(caught.value)


# Limits


def test_the_tasks_own_limits_hold_in_the_environment(write: Write) -> None:
    limits = {"steps": 3, "seconds": 0.6, "validations": 1, "command_seconds": 20}
    env = ResearchEnv(write({"limits": limits}))
    assert (env.max_turns, env.max_seconds) == (3, 0.6)
    env.reset(seed=0)
    assert "0 validations left" in env.step("```\nvalidate\n```")[0].messages[-1].text
    assert "All 1 validations are used" in env.step("```\nvalidate\n```")[0].messages[-1].text
    assert env.step("```\ntrue\n```")[4]["stop_reason"] == "steps"
    env.reset(seed=0)
    info = env.step("```\nsleep 30\n```")[4]  # Cut by the episode's time, which is shorter than the command's.
    assert info["stop_reason"] == "time"
    env.close()
    mine = ResearchEnv(env.task, max_turns=7, max_seconds=8.0)
    assert (mine.max_turns, mine.max_seconds) == (7, 8.0)


def test_workspace_limits_hold(write: Write) -> None:
    limits = {"command_seconds": 1.0, "memory": 200 << 20, "processes": 12}
    with make_workspace(write({"limits": limits})) as workspace:
        large = workspace.execute("python3 -c 'len(bytearray(500 << 20))' && echo enough")
        assert "enough" not in large.text
        many = workspace.execute("for k in $(seq 30); do sleep 0.3 & done; wait; echo enough")
        assert "enough" not in many.text
    with make_workspace(write({"limits": limits})) as workspace:
        late = workspace.execute("sleep 20; echo enough")
        assert not late.ok
        assert "ended after 1.0 s" in late.note
        assert late.seconds < 10
    with make_workspace(write()) as workspace:
        fine = workspace.execute(
            "python3 -c 'len(bytearray(500 << 20))' && for k in $(seq 30); do sleep 0 & done; wait; echo enough"
        )
        assert "enough" in fine.text


@pytest.mark.backends
def test_limits_hold_for_a_submission_that_is_judged(write: Write) -> None:
    evaluator = (
        "def evaluate(evaluation):\n"
        "    argv = evaluation.text('answer.txt').split()\n"
        "    return {'value': {'ok': 0, 'wall_time': 1}.get(evaluation.run(*argv).status.value, 9)}\n"
    )
    limits = {"evaluation_seconds": 1.0, "memory": 200 << 20, "processes": 12}
    judge = make_judge(write({"limits": limits}, {"evaluator.py": evaluator}))
    for command, value in ((b"true", 0.0), (b"sleep 20", 1.0)):
        outcome = judge.judge({"answer.txt": command}, "test")
        assert isinstance(outcome, Grade)
        assert outcome.score == value
    used = Evaluation(judge.task, {}, "test", judge.sandbox, judge.data, 0).limits()
    assert (used.cpu_seconds, used.memory, used.processes) == (1.0, 200 << 20, 12)
    assert used.wall_seconds >= 8 * used.cpu_seconds


# What is hidden, and what is needed


def test_secrets_are_in_no_workspace_and_in_no_prompt(write: Write) -> None:
    files = {"starter/key.txt": "KEY", "starter/answers/a.csv": "KEY", "starter/answers.csv": "shown"}
    env = ResearchEnv(write({"secrets": ["key.txt", "answers"]}, files))
    assert set(env.task.starter_files()) == {"answer.txt", "answers.csv"}
    observation, _ = env.reset(seed=0)
    reply = observation.messages[-1].text
    assert "answers.csv" in reply
    assert "key.txt" not in reply
    listed = env.step("```\nls -R; grep -r KEY . /data 2>/dev/null\n```")[0].messages[-1].text
    env.close()
    assert "answers.csv" in listed
    assert "key.txt" not in listed
    assert "KEY" not in listed


def test_public_data_are_shown_and_hidden_data_are_not(write: Write) -> None:
    make = (
        "def make(public, hidden, rng):\n    (public / 'a').write_text('seen')\n    (hidden / 'b').write_text('KEY')\n"
    )
    folder = write({"data": "data.py"}, {"data.py": make})
    with make_workspace(folder) as workspace:
        assert workspace.execute("cat /data/*").text == "seen"
        assert not workspace.execute("touch /data/c").ok
    hidden = load_data(load_task(folder)).hidden
    assert hidden is not None
    assert (hidden / "b").read_text() == "KEY"


def test_files_of_installed_packages_are_hidden(write: Write) -> None:
    script = "python3 -c 'import yaml.loader' && echo there"
    with make_workspace(
        write({"hide": ["yaml/loader.py", "no_such_package.part/x", "yaml/no_such_file"]})
    ) as workspace:
        assert "there" not in workspace.execute(script).text
    with make_workspace(write()) as workspace:
        assert "there" in workspace.execute(script).text


def test_package_is_mounted_without_its_research_tasks(write: Write) -> None:
    script = "python3 -c 'import palaestra.core.records' && echo there; python3 -c 'import palaestra.research.tasks' && echo tasks"
    with make_workspace(write({"palaestra": True})) as workspace:
        output = workspace.execute(script).text
        assert output.startswith("there\n")
        assert "tasks" not in output.splitlines()
    with make_workspace(write()) as workspace:
        assert "there" not in workspace.execute(script).text


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        ("no_such_package", "pip install no_such_package"),
        ("no.package", "'no.package'.*pip install no$"),
        ("yaml.no_part", r"pip install 'palaestra\[research\]'"),
        ("", "package ''"),
    ],
)
def test_missing_dependency_names_its_install_command(write: Write, package: str, expected: str) -> None:
    with pytest.raises(TaskError, match=expected):
        sandbox_for(load_task(write({"dependencies": ["numpy", package]})))
    sandbox_for(load_task(write({"dependencies": ["numpy", "os.path", "yaml.loader"]})))


def test_the_extra_has_what_is_said_of_it() -> None:
    import tomllib
    from importlib.metadata import packages_distributions

    from palaestra.research.tasks.data import EXTRA

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    wanted = {line.partition(">")[0] for line in project["optional-dependencies"]["research"]}
    result = packages_distributions()
    assert {result[name][0].lower() for name in EXTRA} == wanted


# What was measured with other files does not hold


def test_the_digest_changes_with_every_file_but_the_reference(write: Write) -> None:
    folder = write({"data": "data.py"}, {"data.py": "def make(public, hidden, rng): ...\n"})
    known = {load_task(folder).digest()}
    for name, text in (
        ("starter/answer.txt", "6\n"), ("starter/new.txt", ""), ("evaluator.py", EVALUATOR + "# better"),
        ("data.py", "def make(public, hidden, rng): (public / 'a').touch()\n"), ("task.yaml", None), ("helper.py", ""),
    ):  # fmt: skip
        path = folder / name
        path.write_text(path.read_text() + "tags: [new]\n" if text is None else text)
        known.add(load_task(folder).digest())
    assert len(known) == 7
    for name in ("reference/answer.txt", "starter/__pycache__/a.pyc"):
        (folder / name).parent.mkdir()
        (folder / name).write_text("7")
        known.add(load_task(folder).digest())
    assert len(known) == 7


def test_changed_task_is_measured_again(write: Write) -> None:
    make = "def make(public, hidden, rng):\n    (public / 'a').write_text('{}')\n"
    folder = write({"data": "data.py"}, {"data.py": make.format(1)})
    assert read_baseline(load_task(folder)) is None
    assert measure_baseline(folder).test.score == 5.0
    kept = read_baseline(load_task(folder))
    assert kept is not None
    assert kept.test.score == 5.0
    write({"data": "data.py"}, {"data.py": make.format(2), "starter/answer.txt": "8\n"})
    assert read_baseline(load_task(folder)) is None
    assert measure_baseline(folder).test.score == 8.0
    public = load_data(load_task(folder)).public
    assert public is not None
    assert (public / "a").read_text() == "2"
