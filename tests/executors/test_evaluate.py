"""Evaluation on executors: the same result as in this process, whatever dies."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from palaestra import evaluate, resume
from palaestra.core.errors import ExecutorError, PalaestraError
from palaestra.core.records import Event
from palaestra.runs.run import Run
from palaestra.tasks import evaluate as evaluation


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "CHUNK", 9)


def read(folder: Path) -> tuple[list[Any], dict[str, Any]]:
    """The attempts of a run, and what its summary says of them."""
    with Run.open(folder, read_only=True) as run:
        attempts = list(run.store.attempts("0/test"))
    summary = json.loads((folder / "summary.json").read_text())
    return attempts, {
        name: summary[name] for name in ("after", "problems", "calls", "prompt_tokens", "completion_tokens")
    }


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "CHUNK", 9)
        folder = tmp_path_factory.mktemp("inline") / "run"
        evaluate(model="nano", problems=3, out=folder, progress=False)
    return read(folder)


def test_a_process_gives_the_same_attempts(tmp_path: Path, inline: Any) -> None:
    evaluate(model="nano", problems=3, executor="processes:1", out=tmp_path / "run", progress=False)
    assert read(tmp_path / "run") == inline


def test_a_service_is_called_here_and_workers_score(tmp_path: Path) -> None:
    evaluate(model="mock:Answer: 7", problems=2, executor="processes:1", out=tmp_path / "run", progress=False)
    evaluate(model="mock:Answer: 7", problems=2, out=tmp_path / "other", progress=False)
    assert read(tmp_path / "run") == read(tmp_path / "other")


def test_an_interrupted_evaluation_resumes_on_another_executor(tmp_path: Path) -> None:
    model = "mock:Answer: 7"
    evaluate(model=model, problems=3, out=tmp_path / "whole", progress=False)

    def stop(event: Event) -> None:
        if event.done >= 18:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(model=model, problems=3, executor="processes:1", out=tmp_path / "run", listener=stop)
    resume(tmp_path / "run", executor="inline", progress=False)
    assert read(tmp_path / "run") == read(tmp_path / "whole")


def test_a_wrong_executor_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PalaestraError, match="executor 'thread'"):
        evaluate(model="nano", executor="thread", out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.backends
def test_a_node_killed_in_the_middle_loses_nothing(tmp_path: Path, inline: Any, two_nodes: Any) -> None:
    notices: list[str] = []
    killed: list[Event] = []

    def kill(event: Event) -> None:
        notices.extend([event.data["text"]] if "text" in event.data else [])
        if event.done == 9 and not killed:
            killed.append(event)
            # Both workers exist, and the death is known, before the evaluation goes on: its notice is then certain.
            wait_for_actors("ALIVE", 2)
            dead = count_actors("DEAD")
            two_nodes.remove_node(two_nodes.list_all_nodes()[1], allow_graceful=False)
            wait_for_actors("DEAD", dead + 1)

    evaluate(model="nano", problems=3, executor="ray", out=tmp_path / "run", listener=kill)
    assert read(tmp_path / "run") == inline
    assert any("a worker died" in text for text in notices)


DRIVER = """
import sys
from palaestra import evaluate
from palaestra.tasks import evaluate as evaluation
def wait(event):
    if event.done == 18:
        print("half", flush=True)
        sys.stdin.readline()

if __name__ == "__main__":
    evaluation.CHUNK = 9
    evaluate(model="mock:Answer: 7", problems=3, executor=sys.argv[1], out=sys.argv[2], listener=wait)
"""


HEAD = """
from ray.cluster_utils import Cluster
print(Cluster(initialize_head=True, head_node_args={"num_cpus": 1}).address, flush=True)
input()
"""


@pytest.mark.backends  # Starts two clusters: half a minute.
def test_runs_resume_elsewhere_after_a_killed_driver_or_head(tmp_path: Path, two_nodes: Any) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    pipe = subprocess.PIPE
    # In another process, because Ray keeps the address of one cluster per process.
    head = subprocess.Popen([sys.executable, "-c", HEAD], stdin=pipe, stdout=pipe, text=True)
    assert head.stdout is not None
    address = head.stdout.readline().strip()

    def start(name: str) -> subprocess.Popen[str]:
        """Start an evaluation and return in the middle of it."""
        command = [sys.executable, str(script), f"ray:{address}", str(tmp_path / name)]
        driver = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert driver.stdout is not None
        assert "half" in driver.stdout.readline()
        return driver

    killed = start("killed")
    killed.kill()
    killed.communicate()
    headless = start("headless")
    for process in [*psutil.Process(head.pid).children(recursive=True), head]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    head.communicate()
    _, errors = headless.communicate("\n", timeout=60)
    assert re.search(r"ExecutorError: the head of the Ray cluster at .* is lost .*: palaestra resume RUN", errors)
    assert headless.returncode == 2
    evaluate(model="mock:Answer: 7", problems=3, out=tmp_path / "whole", progress=False)
    for name in ("killed", "headless"):
        assert not (tmp_path / name / "summary.json").exists()
        resume(tmp_path / name, executor="ray", progress=False)
        assert read(tmp_path / name) == read(tmp_path / "whole")


def count_actors(state: str) -> int:
    from ray._private.state import actors

    return sum(actor["State"] == state for actor in actors().values())


def wait_for_actors(state: str, count: int, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while count_actors(state) < count:
        assert time.monotonic() < end, f"expected {count} actors in state {state}; got {count_actors(state)}"
        time.sleep(0.05)


@pytest.mark.backends
def test_a_cluster_without_gpus_says_so(tmp_path: Path, two_nodes: Any) -> None:
    with pytest.raises(ExecutorError, match="no room"):
        evaluate(model="nano", executor="ray", worker_gpus=1, out=tmp_path / "run", progress=False)
