"""An agent cannot change its score except by its submission: the original evaluator judges outside its sandbox."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palaestra.envs.turn import TurnStopReason
from palaestra.research.tasks.data import load_data
from palaestra.research.tasks.task import load_task
from palaestra.research.workspace.env import ResearchEnv

KIND = 'def choose(mine, theirs):\n    return "C"\n'
"""A strategy whose score is known to differ from the baseline's."""


def block(command: str) -> str:
    return f"I try this.\n```\n{command}\n```"


def write(text: str, name: str = "strategy.py") -> str:
    return f"cat > {name} <<'END_OF_FILE'\n{text}\nEND_OF_FILE"


@pytest.fixture(scope="module")
def env() -> Iterator[ResearchEnv]:
    created = ResearchEnv("prisoners_dilemma")
    yield created
    created.close()


@pytest.fixture(scope="module")
def honest_scores(env: ResearchEnv) -> dict[str, Any]:
    """What the kind strategy is worth, and the starter's."""
    return {"kind": play(env, write(KIND), "submit")["score"], "starter": play(env, "submit")["score"]}


def play(env: ResearchEnv, *commands: str) -> dict[str, Any]:
    """The `info` of the last step of an episode of these commands."""
    env.reset(seed=0)
    info: dict[str, Any] = {}
    for command in commands:
        _, reward, terminated, truncated, info = env.step(block(command))
        info["reward"] = reward
        if terminated or truncated:
            break
    return info


def test_the_kind_strategy_and_the_starter_are_told_apart(honest_scores: dict[str, Any]) -> None:
    assert honest_scores["kind"] != honest_scores["starter"]


@pytest.mark.parametrize(
    "attempt",
    [
        "find / -name evaluator.py -o -name task.yaml 2>/dev/null | while read f; do echo 'def evaluate(e): return {\"points\": 5}' > $f; done",
        "echo 'def evaluate(e): return {\"points\": 5}' > evaluator.py; echo 'metric: {}' > task.yaml",
        "mkdir -p palaestra/research && echo 'raise SystemExit' > palaestra/__init__.py; echo 'print(5)' > sitecustomize.py",
        "echo '{\"points\": 5.0}'; echo 'points on the test split: 5.0'; echo 'Submitted. points on the test split: 5 (baseline 1)'",
        "printf 'submit\\nvalidate\\n' > note.txt; cat note.txt; echo submit; bash -c 'submit' ; (exit 0)",
        "true && submit",
        "exit 3",
        "kill -9 $$",
        "kill -9 -1",
        "exec 1>&- 2>&-",
        "exec >/dev/null 2>&1; set -e; false",
        "alias cat=submit; function python3 { :; }; PATH=/nowhere",
        "chmod -R 000 . 2>/dev/null; chmod -R u+rwX .; rm -rf /tmp/* /home/* 2>/dev/null",
    ],
)
def test_an_attempt_changes_no_score(env: ResearchEnv, honest_scores: dict[str, Any], attempt: str) -> None:
    info = play(env, write(KIND), attempt, "submit")
    assert info["stop_reason"] is TurnStopReason.SUBMITTED
    assert info["score"] == honest_scores["kind"]


@pytest.mark.parametrize(
    "code",
    [
        "print('{\"points\": 5.0}')\n" + KIND,
        'import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b\'{"value": ["D"]}\\n\')\n    except OSError:\n        pass\n'
        + KIND,
        "import sys, atexit\natexit.register(print, '{\"points\": 5.0}')\n" + KIND,
        "import builtins, json\njson.dumps = lambda *a, **k: '{\"value\": 5}'\n" + KIND,
    ],
)
def test_a_submission_that_forges_gets_no_better_score(
    env: ResearchEnv, honest_scores: dict[str, Any], code: str
) -> None:
    info = play(env, write(code), "submit")
    score = info.get("score")
    assert score is None or score <= honest_scores["kind"] + 1e-9


def test_a_process_left_behind_changes_nothing_after_submit(env: ResearchEnv, honest_scores: dict[str, Any]) -> None:
    # Judging takes longer than it takes the process to come.
    slow = "import time\n" + KIND.replace("return", "time.sleep(0.001 * (not mine))\n    return") + "time.sleep(2.0)\n"
    late = "(sleep 1; echo 'def choose(m, t): return \"D\"' > strategy.py) >/dev/null 2>&1 &"
    assert play(env, write(slow), f"{late} true", "submit")["score"] == honest_scores["kind"]
    assert env._workspace is not None
    assert 'return "D"' in env._workspace.execute("cat strategy.py").text


def test_linked_submissions_are_no_submissions(env: ResearchEnv) -> None:
    for link in (
        "rm strategy.py; ln -s /etc/passwd strategy.py",
        "mv strategy.py s.py; ln -s s.py strategy.py",
        "rm strategy.py; mkfifo strategy.py",
        "rm strategy.py; mkdir strategy.py",
    ):
        env.reset(seed=0)
        env.step(block(link))
        observation, reward, terminated, truncated, info = env.step(block("submit"))
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert "cannot be judged" in observation.messages[-1].text
        assert "score" not in info or info["score"] is None


def test_host_and_hidden_files_are_out_of_sight(env: ResearchEnv, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("palaestra-secret-word")
    other = ResearchEnv("prisoners_dilemma")
    try:
        other.reset(seed=0)
        other.step(block("echo palaestra-other-word > other_secret.txt; sleep 100 >/dev/null 2>&1 &"))
        env.reset(seed=0)
        for command in (
            f"cat {secret}", "ls -d /proc/*/cwd/other* 2>/dev/null",
            "find / '(' -name 'other_secret*' -o -path '*research/tasks*' -o -name evaluator.py -exec grep -q 'def evaluate' {} ';' ')' -print 2>/dev/null",
            "ps aux 2>/dev/null | grep 'sleep 100' | grep -v grep", "env | grep -i -E 'key|token|palaestra'",
            "python3 -c 'import palaestra.research.tasks' 2>/dev/null && echo found it",
        ):  # fmt: skip
            output = env.step(block(command))[0].messages[-1].text
            for word in ("palaestra-secret-word", "palaestra-other-word", "evaluator.py", "prisoners", "found it"):
                assert word not in output.replace(command, ""), (command, output)
    finally:
        other.close()


@pytest.mark.parametrize("name", ["sat_branching", "digit_images", "tabular_regression"])
def test_no_file_of_the_hidden_data_is_in_a_workspace(name: str) -> None:
    task = load_task(name)
    hidden = load_data(task).hidden
    assert hidden is not None
    files = [path.read_bytes() for path in hidden.rglob("*") if path.is_file()]
    assert files
    env = ResearchEnv(name)
    try:
        env.reset(seed=0)
        assert env._workspace is not None
        contents = {*files, *task.starter_files().values()}
        digests = {hashlib.sha256(content).hexdigest(): content for content in contents}
        sizes = " -o ".join(f"-size {size}c" for size in {len(content) for content in contents})
        result = env._workspace.execute(
            f"find / -path /proc -prune -o -type f '(' {sizes} ')' -exec sha256sum {{}} + 2>/dev/null"
            f" | grep -oF -e {' -e '.join(digests)}",
            timeout=60,
        ).text
        # The starter's own files show that the search finds what is there.
        assert {digests[line] for line in result.split()} == contents - set(files)
        if name == "digit_images":
            output = env.step(
                block("python3 -c 'from sklearn.datasets import load_digits as d; print(d().target.sum())'")
            )
            assert "FileNotFoundError" in output[0].messages[-1].text
    finally:
        env.close()


def test_huge_and_binary_submissions_are_refused_with_a_word(env: ResearchEnv) -> None:
    env.reset(seed=0)
    env.step(block("head -c 3000000 /dev/urandom > strategy.py"))
    output = env.step(block("submit"))[0].messages[-1].text
    assert "limit of 1000000 bytes" in output
    env.step(block("head -c 3000 /dev/urandom > strategy.py"))
    observation, _, terminated, _, _ = env.step(block("submit"))
    assert not terminated
    assert "cannot be judged" in observation.messages[-1].text


def test_submission_limits_hold() -> None:
    task = load_task("prisoners_dilemma")
    quick = task.model_copy(update={"limits": task.limits.model_copy(update={"evaluation_seconds": 1.0})})
    env = ResearchEnv(quick)
    try:
        for code in (
            "while True: pass",
            "x = []\nwhile True: x.append(' ' * 10**7)",
            "import os\nwhile True: os.fork()",
        ):
            env.reset(seed=0)
            env.step(block(write(code)))
            start = time.monotonic()
            observation, _, terminated, _, _ = env.step(block("submit"))
            assert not terminated
            assert "cannot be judged" in observation.messages[-1].text
            assert time.monotonic() - start < 20
    finally:
        env.close()
