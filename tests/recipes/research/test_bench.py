"""A bench: tasks x agents x seeds, standings, and resuming after a kill."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from chat_server import Call, Reply, Server
from number_task import number_task
from rich.console import Console

from palaestra.cli.terminal import standings_tables
from palaestra.core.errors import EngineError, RunError, SettingsError, TaskError, TotalSpentError
from palaestra.core.records import Event
from palaestra.recipes.progress import RunProgress
from palaestra.recipes.research.bench import bench, read_bench, resume
from palaestra.recipes.research.settings import ResearchSettings
from palaestra.report import write_report
from palaestra.research.standings.standings import BASELINE, Measure


@pytest.fixture(scope="module")
def number_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(number_task(tmp_path_factory.mktemp("task")))


def test_a_good_solution_is_ranked_above_submit_the_baseline(number_folder: str, tmp_path: Path) -> None:
    shown: list[Event] = []
    result = bench(
        tasks=[number_folder, "prisoners_dilemma"],
        agents=["baseline", "reference"],
        seeds=1,
        workers=2,
        out=tmp_path / "bench",
        listener=shown.append,
    )
    assert result.ended
    assert sorted(event.done for event in shown if event.phase == "bench") == [1, 2, 3, 4]
    assert result.standings is not None
    for measure in Measure:
        profile = result.standings.profile(measure)
        assert profile.area("reference").area > profile.area("baseline").area
        # Who submits the baseline is as good as the baseline, and feasible everywhere.
        assert profile.area("baseline").area == pytest.approx(profile.area(BASELINE).area)
        assert profile.area("baseline").feasible == 2
    summary = json.loads((tmp_path / "bench" / "summary.json").read_text())
    assert (summary["runs"], summary["failures"], summary["stop_reasons"]) == (4, {}, {"submitted": 4})
    assert {row["stop_reason"] for row in summary["rows"]} == {"submitted"}
    with open(tmp_path / "bench" / "table.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["agent"], float(row["best_submission"]) > float(row["baseline"])) for row in rows][:2] == [
        ("baseline", False),
        ("reference", True),
    ]
    page = write_report(tmp_path / "bench").read_text()
    assert len(list((tmp_path / "bench").rglob("provenance.json"))) == 5  # Of the bench and of each run.
    assert 'id="provenance"' in page
    assert "2 agents on 2 tasks" in page
    assert 'href="prisoners_dilemma/reference-seed0/report.html"' in page
    assert all((episode.folder / "report.html").exists() for episode in result.episodes)
    # Again, it has nothing to play.
    shown.clear()
    assert resume(tmp_path / "bench", listener=shown.append).standings == result.standings
    assert shown == []


PROGRAM = """
import sys
from pathlib import Path
from palaestra.recipes.research.bench import bench
bench(tasks=[sys.argv[1]], agents=["baseline", "script:" + sys.argv[3]], seeds=2, workers=2, out=sys.argv[2])
"""


def test_a_killed_bench_goes_on_and_plays_no_finished_run_again(number_folder: str, tmp_path: Path) -> None:
    slow = tmp_path / "slow.txt"
    slow.write_text("echo 20 > answer.txt\n%%\nsleep 1.5\n%%\nsubmit\n")
    folder = tmp_path / "bench"
    arguments = [sys.executable, "-c", PROGRAM, number_folder, str(folder), str(slow)]
    process = subprocess.Popen(arguments, env=os.environ | {"OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    # Killed when one run has ended and another one is under way.
    while time.monotonic() < deadline:
        actual = read_bench(folder).episodes if (folder / "bench.json").exists() else ()
        if any(e.summary for e in actual) and any(
            not e.summary and (e.folder / "settings.json").exists() for e in actual
        ):
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {
        e.folder: (e.folder / "summary.json").stat().st_mtime_ns for e in read_bench(folder).episodes if e.summary
    }
    assert 0 < len(before) < 4
    assert not (folder / "summary.json").exists()
    assert "The bench has not ended" in write_report(folder).read_text()
    result = resume(folder)
    assert result.ended
    assert [e.summary["best_submission"] for e in result.episodes if e.summary] == [6.0, 21.0, 6.0, 21.0]
    assert all((path / "summary.json").stat().st_mtime_ns == when for path, when in before.items())


def test_a_run_that_cannot_be_made_stops_no_other(number_folder: str, tmp_path: Path) -> None:
    settings = ResearchSettings(cache=str(tmp_path / "calls.sqlite"))
    nobody = "model:http://127.0.0.1:9/v1#nobody"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palaestra.engines.openai_endpoint.RetryPolicy.wait", lambda *_: None)
        with pytest.raises(EngineError, match="no server answers"):
            bench(settings, tasks=[number_folder], agents=[nobody, "baseline"], out=tmp_path / "bench")
    actual = read_bench(tmp_path / "bench")
    assert [e.summary is not None for e in actual.episodes] == [False, True]
    assert not (tmp_path / "bench" / "summary.json").exists()


def test_total_cost_stops_the_bench_and_more_resumes_it(
    number_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"http://127.0.0.1*": [100.0, 100.0]}))
    monkeypatch.setenv("PALAESTRA_PRICES", str(prices))
    commands = ["echo 20 > answer.txt", "cat answer.txt", "submit"]

    def answer(call: Call, before: int) -> Reply:
        return Reply(f"```\n{commands[sum(message['role'] == 'assistant' for message in call.body['messages'])]}\n```")

    def run_bench(name: str, total: float) -> dict[str, float]:
        settings = ResearchSettings(model=server.model, answer_tokens=50, cache=str(tmp_path / f"{name}.sqlite"))
        bench(
            settings, tasks=[number_folder], agents=["model"], seeds=4, workers=2, total_cost=total, out=tmp_path / name
        )
        return json.loads((tmp_path / name / "summary.json").read_text())

    with Server(answer) as server:
        cost = run_bench("free", 0.0)["cost"]
        assert (len(server.calls), cost > 0) == (12, True)
        server.calls.clear()
        with pytest.raises(TotalSpentError, match=r"--total-cost\. [0-3] of 4 runs"):
            run_bench("limited", 0.6 * cost)
        assert not (tmp_path / "limited" / "summary.json").exists()
        # Nobody was told that there is no money: no run has ended by it, and no dollar too many was spent.
        actual = read_bench(tmp_path / "limited")
        assert {e.summary["stop_reason"] for e in actual.episodes if e.summary} <= {"submitted"}
        created = len(server.calls)
        assert 3 <= created < 12
        with pytest.raises(TotalSpentError):  # What was spent before counts.
            run_bench("limited", 0.6 * cost)
        assert len(server.calls) == created
        after = run_bench("limited", 2 * cost)
        assert len(server.calls) == 12
        assert after["cost"] == pytest.approx(cost)
        assert after["total_cost"] == 2 * cost
    prices.write_text("{}")
    with pytest.raises(SettingsError, match="price of https://elsewhere"):
        bench(
            ResearchSettings(model="https://elsewhere/v1#x"),
            tasks=[number_folder],
            agents=["model"],
            total_cost=1.0,
            out=tmp_path / "x",
        )
    assert not (tmp_path / "x").exists()


def test_folder_tasks_go_by_their_name(number_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.txt").write_text("echo 20 > answer.txt\n%%\nsubmit\n")
    monkeypatch.chdir(tmp_path)
    result = bench(tasks=[os.path.relpath(number_folder)], agents=["script:good.txt"], out="bench")
    assert [(e.task, e.agent) for e in result.episodes] == [("number", "script:good.txt")]
    assert (tmp_path / "bench" / "number" / "script_good.txt-seed0").is_dir()
    with open(tmp_path / "bench" / "table.csv", newline="") as stream:
        assert [(row["task"], row["agent"]) for row in csv.DictReader(stream)] == [("number", "script:good.txt")]
    assert number_folder not in write_report(tmp_path / "bench").read_text().split("<h2>Settings")[0]
    # One that was stopped goes on from anywhere.
    shutil.rmtree(tmp_path / "bench" / "number")
    monkeypatch.chdir(tmp_path.parent)
    again = resume(tmp_path / "bench")
    assert [e.summary["best_submission"] for e in again.episodes if e.summary] == [21.0]
    shutil.copytree(number_folder, tmp_path / "copy")
    with pytest.raises(SettingsError, match="'number'"):
        bench(tasks=[number_folder, str(tmp_path / "copy")], agents=["baseline"], out=tmp_path / "twice")


def test_a_broken_task_stops_no_other_and_leaves_no_run_behind(number_folder: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(number_folder, broken)
    (broken / "task.yaml").write_text((broken / "task.yaml").read_text().replace("name: number", "name: broken"))
    (broken / "evaluator.py").write_text("def evaluate(evaluation):\n    return {}\n")
    with pytest.raises(TaskError, match="judged"):
        bench(tasks=[str(broken), number_folder], agents=["baseline"], out=tmp_path / "bench")
    assert sorted(path.name for path in (tmp_path / "bench").iterdir()) == ["bench.json", "number", "provenance.json"]


def test_silent_agents_are_marked(number_folder: str, tmp_path: Path) -> None:
    settings = ResearchSettings(context=20, cache=str(tmp_path / "calls.sqlite"))
    nobody = "model:http://127.0.0.1:9/v1#nobody"
    shown: list[Event] = []
    result = bench(
        settings, tasks=[number_folder], agents=[nobody, "baseline"], out=tmp_path / "bench", listener=shown.append
    )
    assert (result.silent("number", nobody), result.silent("number", "baseline")) == (True, False)
    with open(tmp_path / "bench" / "table.csv", newline="") as stream:
        assert [(row["steps"], row["silent"]) for row in csv.DictReader(stream)] == [("0", "True"), ("2", "False")]
    page = " ".join(write_report(tmp_path / "bench").read_text().split())
    assert f"{nobody}: 0 messages in 1 of 1 run." in page
    assert "baseline: 0 messages" not in page
    assert page.count("1 run; 0 messages") == 2  # By attempt and by submission.
    out = StringIO()
    console = Console(width=80, file=out)
    assert result.standings is not None
    for table in standings_tables(result.standings, 80, result.silent):
        console.print(table)
    assert "6*°" in out.getvalue()
    assert "° 0 messages: the agent wrote nothing" in out.getvalue()
    out.truncate(0)
    progress = RunProgress(console)
    for event in shown:
        progress(event)
    assert f"number, {nobody}, seed 0: 6 (baseline 6), 0 messages\n" in out.getvalue()
    assert "number, baseline, seed 0: 6 (baseline 6)\n" in out.getvalue()


def test_another_bench_or_a_run_is_not_written_over(number_folder: str, tmp_path: Path) -> None:
    bench(tasks=[number_folder], agents=["baseline"], out=tmp_path / "bench")
    with pytest.raises(RunError, match="another bench"):
        bench(tasks=[number_folder], agents=["reference"], out=tmp_path / "bench")
    with pytest.raises(RunError, match="no bench"):
        bench(tasks=[number_folder], agents=["baseline"], out=next((tmp_path / "bench").glob("*/baseline-seed0")))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").touch()
    with pytest.raises(RunError, match="not empty"):
        bench(tasks=[number_folder], agents=["baseline"], out=tmp_path / "foreign")
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["thesis.tex"]


def test_wrong_names_are_said_at_once(number_folder: str, tmp_path: Path) -> None:
    for tasks, agents, expected in (
        ([number_folder], ["human"], "interactive"),
        ([number_folder], ["best_of:2:human"], "interactive"),
        ([number_folder], ["model"], "--model"),
        ([number_folder], [], "at least 1 agent"),
        ([number_folder], ["baseline", "baseline"], "once"),
        ([], ["baseline"], "at least 1 task"),
    ):
        with pytest.raises(SettingsError, match=expected):
            bench(tasks=tasks, agents=agents, out=tmp_path / "bench")
    assert not (tmp_path / "bench").exists()
