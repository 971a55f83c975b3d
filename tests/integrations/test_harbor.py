"""Task folders of Harbor as research tasks. Published folders come from Harbor's package, which is fetched by `make test-backends`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from palaestra.core.errors import TaskError
from palaestra.core.records import Failure, FailureCause
from palaestra.envs.turn.base import TurnStopReason
from palaestra.integrations.harbor import HarborTask, load_harbor
from palaestra.integrations.harbor.files import parse_dockerfile
from palaestra.recipes.research.recipe import run_research
from palaestra.research.judge.evaluation import make_judge, sandbox_for
from palaestra.research.tasks.task import Grade, JudgeResult, load_task
from palaestra.research.workspace.env import ResearchEnv

PACKAGE = "harbor==0.25.0"
TEST = """#!/bin/bash
if [ "$(cat greeting.txt)" = "Hello, world!" ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))


def write_folder(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    return write_folder(
        tmp_path / "hello-world",
        {
            "instruction.md": "Write greeting.txt as /app/notes/style.txt says.",
            "task.toml": 'version = "1.0"\n[verifier]\ntimeout_sec = 20.0\n[agent]\ntimeout_sec = 60.0\n',
            "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\nENV LANGUAGE=en\nCOPY notes /app/notes\n",
            "environment/notes/style.txt": "Hello, world!\n",
            "solution/solve.sh": "#!/bin/bash\ncp /solution/text greeting.txt\n",
            "solution/text": "Hello, world!\n",
            "tests/test.sh": TEST,
        },
    )


def judge(task: HarborTask, files: Mapping[str, bytes]) -> JudgeResult:
    return make_judge(task, sandbox_for(task)).judge(files, "test")


def test_the_solution_gets_1_and_doing_nothing_0(hello: Path, tmp_path: Path) -> None:
    solved = run_research(task=str(hello), agent="reference", out=str(tmp_path / "solved"))
    idle = run_research(task=str(hello), agent="baseline", out=str(tmp_path / "idle"))
    assert (solved.summary["best_submission"], idle.summary["best_submission"]) == (1.0, 0.0)


def test_agent_sees_neither_tests_nor_solution(hello: Path) -> None:
    env = ResearchEnv(hello, parser="identity")
    try:
        observation, _ = env.reset(seed=0)
        assert "Write greeting.txt as /app/notes/style.txt says." in observation.messages[-1].text
        observation, *_ = env.step(
            "pwd; cat notes/style.txt; echo $LANGUAGE; ls /tests /solution /logs; find / -name test.sh -not -path '/usr/*' 2>/dev/null"
        )
        text = observation.messages[-1].text
        assert "/app\nHello, world!\nen\n" in text
        assert "solve.sh" not in text
        assert "/test.sh" not in text
        env.step("cp notes/style.txt greeting.txt")
        _, reward, terminated, _, info = env.step("submit")
        assert (reward, terminated, info["score"], info["isolation"]) == (1.0, True, 1.0, "one sandbox")
    finally:
        env.close()


@pytest.mark.backends
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", "exit code 3"),
        ("echo nan > /logs/verifier/reward.txt", "reward.txt: expected finite"),
        ("echo > /logs/verifier/reward.txt", "empty"),
        ('echo \'{"reward": "1"}\' > /logs/verifier/reward.json', "reward.json: expected finite"),
        ('echo \'{"a": 1, "b": 0}\' > /logs/verifier/reward.json', "a, b"),
        ("sleep 30", "its limit of"),
    ],
)
def test_a_verifier_that_fails_is_a_failure(hello: Path, script: str, message: str) -> None:
    write_folder(hello, {"tests/test.sh": f"#!/bin/bash\n{script}\n", "task.toml": "[verifier]\ntimeout_sec = 1.0\n"})
    outcome = judge(load_harbor(hello, check=False), {})
    assert isinstance(outcome, Failure)
    assert outcome.cause is FailureCause.SCORER
    assert message in outcome.message


def test_a_verifier_that_fails_ends_the_episode_as_a_failure(hello: Path) -> None:
    broken = TEST.replace("else echo 0", "elif [ -e greeting.txt ]; then exit 3; else echo 0")
    env = ResearchEnv(load_harbor(write_folder(hello, {"tests/test.sh": broken})), parser="identity")
    try:
        env.reset(seed=0)
        env.step("echo wrong > greeting.txt")
        _, reward, *_, info = env.step("submit")
        assert (reward, info["score"], info["stop_reason"]) == (0.0, None, TurnStopReason.FAILED)
        assert info["failure"].cause is FailureCause.SCORER
    finally:
        env.close()


def test_rewards_by_name(hello: Path) -> None:
    script = '#!/bin/bash\necho \'{"tests": 0.5, "speed": 2}\' > /logs/verifier/reward.json\necho 1 > /logs/verifier/reward.txt\n'
    write_folder(hello, {"tests/test.sh": script})
    outcome = judge(load_harbor(hello, metric="speed", check=False), {})
    assert isinstance(outcome, Grade)
    assert (outcome.score, outcome.scores) == (2.0, {"tests": 0.5, "speed": 2.0})


def test_a_task_whose_own_solution_gets_nothing_is_rejected(hello: Path) -> None:
    write_folder(hello, {"tests/test.sh": TEST.replace("Hello, world!", "Downloaded")})
    with pytest.raises(TaskError, match=r"solution 0 .*workspace 0"):
        ResearchEnv(hello).reset(seed=0)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"environment/Dockerfile": "FROM node:20\n"}, "(FROM node:20)"),
        ({"environment/Dockerfile": "FROM ubuntu\nRUN make install\n"}, "(RUN make install)"),
        (
            {"environment/Dockerfile": "FROM ubuntu\nRUN pip install no-such-package\n"},
            "RUN pip install no-such-package",
        ),
        ({"environment/Dockerfile": "FROM ubuntu\nRUN mkdir -p /app && rm -r /app/notes\n"}, "(RUN rm -r /app/notes)"),
        ({"environment/Dockerfile": "FROM ubuntu\nCOPY notes /etc/notes\n"}, "files in /"),
        ({"environment/docker-compose.yaml": ""}, "docker-compose"),
        ({"task.toml": "[[steps]]\nname = 'a'\n"}, "several steps"),
        ({"task.toml": "[verifier]\ntimeout_sec = -1\n"}, "verifier.timeout_sec"),
        ({"task.toml": "verifier"}, "as TOML"),
    ],
)
def test_what_cannot_run_here_is_an_error_of_one_line(hello: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(TaskError) as raised:
        sandbox_for(load_task(write_folder(hello, files)))
    assert message in str(raised.value)


def test_tests_of_outside_files_need_a_passing_solution(hello: Path) -> None:
    write_folder(hello, {"tests/test.sh": TEST.replace("greeting.txt", "/tmp/out/greeting.txt")})
    assert load_harbor(hello).prepare_sandbox("bubblewrap")
    (hello / "solution" / "solve.sh").unlink()
    with pytest.raises(TaskError, match=r"/tmp/out/greeting\.txt.* /app "):
        sandbox_for(load_harbor(hello))


def test_installed_packages_need_no_image(hello: Path) -> None:
    text = "FROM ghcr.io/x/ubuntu-24-04:1\nRUN apt-get update && apt-get install -y bash \\\n  && rm -rf /var/lib/apt/lists/*\nRUN pip3 install numpy==1.0\n"
    assert len(list(parse_dockerfile(text))) == 3
    task = load_harbor(write_folder(hello, {"environment/Dockerfile": text}))
    assert task.prepare_sandbox("bubblewrap")["place"] == "/app"


@pytest.mark.backends
def test_terminal_bench_verifiers_run_pytest_offline(hello: Path) -> None:
    script = TEST_WITH_UVX
    tests = "from pathlib import Path\n\ndef test_greeting():\n    assert Path('/app/greeting.txt').read_text() == 'Hello, world!\\n'\n"
    write_folder(hello, {"tests/test.sh": script, "tests/test_outputs.py": tests})
    task = load_harbor(hello)
    good, bad = (judge(task, files) for files in ({"greeting.txt": b"Hello, world!\n"}, {}))
    assert isinstance(good, Grade)
    assert isinstance(bad, Grade)
    assert (good.score, bad.score) == (1.0, 0.0)


TEST_WITH_UVX = """#!/bin/bash
curl -LsSf https://astral.sh/uv/0.9.7/install.sh | sh
source $HOME/.local/bin/env
uvx -p 3.13 -w pytest==8.4.1 -w pytest-json-ctrf==0.3.5 pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA
if [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""
ENGINE = """#!{python}
import io, json, os, sys, tarfile
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(arguments) + "\\n")
if arguments[:2] == ["image", "inspect"]:
    if not os.path.exists({built!r}):
        sys.exit(1)
    print("/srv/work")
elif arguments[0] in ("build", "pull"):
    open({built!r}, "w").close()
elif arguments[0] == "run":
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        entry = tarfile.TarInfo("./readme.txt")
        entry.size = 3
        archive.addfile(entry, io.BytesIO(b"abc"))
"""


@pytest.mark.parametrize(("section", "call"), [("", "build"), ('[environment]\ndocker_image = "a/b:1"\n', "pull")])
def test_the_image_of_a_task_is_built_or_pulled_once(
    hello: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str, call: str
) -> None:
    log, built = tmp_path / "log", tmp_path / "built"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/podman").write_text(ENGINE.format(python=sys.executable, log=str(log), built=str(built)))
    (tmp_path / "bin/podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    write_folder(hello, {"environment/Dockerfile": "FROM node:20\nRUN npm install\n", "task.toml": section})
    for _ in range(2):
        task = load_harbor(hello)
        options = task.prepare_sandbox("podman")
        assert (options["place"], task.starter_files()) == ("/srv/work", {"readme.txt": b"abc"})
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert [arguments[0] for arguments in calls if arguments[0] != "image"] == [call, "run", "run"]
    assert options["image"] == ("a/b:1" if section else calls[1][2])


# Published folders


@pytest.fixture(scope="module")
def harbor_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The contents of Harbor's package. It needs a later Python than ours and is only read."""
    folder = tmp_path_factory.mktemp("harbor")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--python-version",
        "3.13",
        "--only-binary=:all:",
    ]
    subprocess.run([*command, "-d", str(folder), PACKAGE], check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    return folder / "harbor"


def copy_folder(source: Path, target: Path) -> Path:
    return write_folder(
        target, {p.relative_to(source).as_posix(): p.read_text() for p in source.rglob("*") if p.is_file()}
    )


@pytest.mark.backends
def test_a_published_task_of_harbor_is_verified(harbor_package: Path, tmp_path: Path) -> None:
    """Harbor ships the task that annotates a task folder; its command fills in the instruction and the agent's files."""
    folder = copy_folder(harbor_package / "cli/annotator/annotate-task-template", tmp_path / "annotate")
    answer = json.dumps({"readme": "# Task", "description": "One sentence."})
    write_folder(
        folder,
        {
            "instruction.md": (harbor_package / "cli/annotator/annotate-task.md").read_text(),
            "solution/solve.sh": f"#!/bin/bash\necho '{answer}' > annotate-result.json\n",
        },
    )
    runs = {a: run_research(task=str(folder), agent=a, out=str(tmp_path / a)) for a in ("reference", "baseline")}
    assert {agent: run.summary["best_submission"] for agent, run in runs.items()} == {"reference": 1.0, "baseline": 0.0}


@pytest.mark.backends
def test_harbor_template_with_pytest_is_verified(harbor_package: Path, tmp_path: Path) -> None:
    """What `harbor init` writes, with a test and a solution filled in."""
    template = harbor_package / "cli/template-task"
    folder = write_folder(
        tmp_path / "squares",
        {
            **{name: (template / name).read_text() for name in ("task.toml", "environment/Dockerfile")},
            "instruction.md": "Write the squares of 1 to 5 to squares.txt, one per line.",
            "solution/solve.sh": "#!/bin/bash\nfor n in 1 2 3 4 5; do echo $((n * n)); done > squares.txt\n",
            "tests/test.sh": (template / "shared-pytest-tests/test.sh").read_text(),
            "tests/test_outputs.py": (template / "pytest-tests/test_outputs.py").read_text().replace(
                "pass", "assert open('squares.txt').read().split() == [str(n * n) for n in range(1, 6)]"
            ),
        },
    )  # fmt: skip
    runs = {a: run_research(task=str(folder), agent=a, out=str(tmp_path / a)) for a in ("reference", "baseline")}
    assert {agent: run.summary["best_submission"] for agent, run in runs.items()} == {"reference": 1.0, "baseline": 0.0}


@pytest.mark.backends
def test_a_task_with_an_image_runs_in_a_container(hello: Path, tmp_path: Path) -> None:
    """Needs an engine that can start containers, and images."""
    engine = next((name for name in ("docker", "podman") if starts_containers(name)), "")
    if not engine:
        pytest.skip("no engine can start containers here")
    write_folder(
        hello, {"environment/Dockerfile": "FROM python:3.11-slim\nWORKDIR /app\nRUN echo Hello, world! > style.txt\n"}
    )
    solved = run_research(task=str(hello), agent="reference", sandbox=engine, out=str(tmp_path / "solved"))
    assert solved.summary["best_submission"] == 1.0


def starts_containers(engine: str) -> bool:
    try:
        command = [engine, "run", "--rm", "python:3.11-slim", "true"]
        return subprocess.run(command, capture_output=True, timeout=300, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
