import hashlib
import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import processes
import pytest
from chat_server import Call, Reply, Server

from palaestra.core.records import Lesson
from palaestra.runs.run import Run
from palaestra.tasks.math.task import MathSkills
from palaestra.teachers.quality.base import Inspection

DELAY = 0.1
"""Seconds that the model thinks, so that kills find calls under way."""
SKILLS = ("geometry", "percent")


def hash_call(body: Mapping[str, Any]) -> str:
    """Return a hash of the body of a call, its mark."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def reply_to(call: Call, times: int) -> Reply:
    """Reply with content that depends on the call only and contains its mark. Every fourth first reply is not JSON."""
    own, number = hash_call(call.body), int(hash_call(call.body), 16)
    asked = call.body["messages"]
    if number % 4 == 0 and len(asked) == 2:
        return Reply(f"{own}: I would rather not.", delay=DELAY)
    if "actions" in json.dumps(call.body.get("response_format", "")):
        shares = [
            {
                "skill": skill,
                "action": "explore",
                "reason": own,
                "allocation": [{"subskill": part, "examples": 2} for part in parts[:2]],
            }
            for skill, parts in MathSkills().skills().items()
            if skill in SKILLS
        ]
        return Reply(json.dumps({"actions": shares}), delay=DELAY)
    wanted = int((re.search(r"rite (\d+) new", json.dumps(asked)) or ["", "1"])[1])
    data = []
    for k in range(wanted):
        left, right = 100 + number % 700 + 7 * k, 11 + number % 83 + k
        worked = f"{left}+{right}={left + right}"
        data.append({"question": f"What is {left}+{right}?", "reasoning": worked, "answer": str(left + right)})
    return Reply(json.dumps({"hypothesis": own, "data": data}), delay=DELAY)


def find_marks(texts: Iterable[str]) -> set[str]:
    """Find the marks in replies."""
    return {match[0] for text in texts if (match := re.search(r"[0-9a-f]{16}", text))}


def drop_costs(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the time and the counts of calls from a summary."""
    return {name: value for name, value in summary.items() if name not in ("seconds", "calls", "unmeasured_calls")}


def lessons(run: Run) -> list[Lesson | None]:
    return [run.store.lesson(round_) for round_ in run.store.lesson_rounds()]


@pytest.mark.parametrize(
    ("teacher", "kills", "seed"),
    [
        pytest.param(["--teacher", "open_ended", "--teacher-option", "per_error=2"], 20, 3, id="open_ended"),
        pytest.param(
            ["--teacher", "skill_tree", "--teacher-option", "policy=model", "--teacher-option", "cap=1.0"],
            3,
            4,
            id="skill_tree",
            marks=pytest.mark.backends,
        ),
    ],
)
def test_killed_run_with_a_model_as_writer_asks_nothing_twice(
    teacher: list[str], kills: int, seed: int, tmp_path: Path
) -> None:
    """The lessons, the metrics and the weights are those of a run that was left alone.

    A call is over once its answer is in the cache, in one transaction with its cost. From that instant on no process
    makes it again. A call that was under way at a kill, whose answer nobody has, is asked again, at most once a life;
    the ledger counts it as unmeasured. Which process makes a call, the server knows by its key.
    """
    with Server(reply_to) as server:
        driver = Path(__file__).with_name("killing_writer.py")
        result = processes.run_script(driver, tmp_path, server.model, str(kills), str(seed), *teacher)
        assert result.returncode == 0, result.stderr[-3000:]
        asked: dict[str, list[str]] = defaultdict(list)
        for call in server.calls:
            asked[call.headers["authorization"].removeprefix("Bearer ")].append(hash_call(call.body))
    outcome = json.loads(result.stdout.strip().splitlines()[-1])
    assert outcome["kills"] == kills

    with Run.open(tmp_path / "alone", read_only=True) as first:
        alone = drop_costs(first.summary or {})
        assert (first.summary or {})["unmeasured_calls"] == 0
        assert alone["examples"] >= 12
        wanted = set(asked["alone/0"])
        assert len(asked["alone/0"]) == len(wanted) > 0
        for name in outcome["answered"]:
            with Run.open(tmp_path / name, read_only=True) as run:
                assert drop_costs(run.summary or {}) == alone
                assert lessons(run) == lessons(first)
                assert run.store.inspections(Inspection) == first.store.inspections(Inspection)
                for phase in first.store.phases():
                    assert run.store.attempts(phase) == first.store.attempts(phase)
                assert run.store.curves() == first.store.curves()
            assert not list((tmp_path / name).rglob("*.partial"))

    under_way = 0
    for name, lives in outcome["answered"].items():
        known: set[str] = set()
        requests = 0
        for life, answers in enumerate(lives):
            now = asked[f"{name}/{life}"]
            assert len(now) == len(set(now))
            assert known.isdisjoint(now)
            assert set(now) <= wanted
            known |= find_marks(answers)
            requests += len(now)
        assert known == wanted
        with closing(sqlite3.connect(tmp_path / f"{name}.sqlite")) as cache:
            noted, measured = cache.execute("SELECT COUNT(*), SUM(measured) FROM calls").fetchone()
        assert measured == len(wanted)
        # A kill may come after a call was noted and before it was sent, never the other way round.
        assert measured <= requests <= noted <= measured + 3 * (len(lives) - 1)
        with Run.open(tmp_path / name, read_only=True) as run:
            assert (run.summary or {})["unmeasured_calls"] == noted - measured
        under_way += noted - measured
    assert under_way >= kills // 6, "too few kills fell into calls to tell anything"
