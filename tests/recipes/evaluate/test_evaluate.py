"""Evaluation runs, and the comparison of two runs."""

import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from chat_server import Call, Reply, Server, error
from rich.console import Console

from palaestra import compare, evaluate
from palaestra.cli.terminal import comparison_table, report_table
from palaestra.core.errors import BudgetSpentError, RunError, SettingsError, TaskError
from palaestra.core.records import Completion, Event, Message, Problem, Score, Split
from palaestra.core.statistics import pass_at_k
from palaestra.engines.openai_endpoint import RETRY
from palaestra.recipes.evaluate import recipe
from palaestra.report import write_comparison, write_report
from palaestra.runs.run import Run
from palaestra.tasks.base import TASKS, make_task
from palaestra.tasks.evaluate import choose

SKILLS = ["addition", "long_multiplication"]
SAMPLED = {"skills": SKILLS, "problems": 4, "samples": 5, "temperature": 1.0, "seed": 1}


@pytest.fixture(scope="module")
def sampled_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sampled"
    evaluate(out=folder, **SAMPLED)
    return folder


def test_several_answers_to_each_problem_give_pass_at_k(sampled_run: Path) -> None:
    with Run.open(sampled_run, read_only=True) as run:
        attempts, summary = run.store.attempts("0/test"), run.summary
    assert summary is not None
    assert Counter(a.problem.id for a in attempts) == {a.problem.id: 5 for a in attempts}
    assert [a.sample for a in attempts[:5]] == [0, 1, 2, 3, 4]
    assert len({a.completion.text for a in attempts if a.completion}) > 8  # They are not copies of one answer.
    passed = Counter({a.problem.id: 0 for a in attempts}) + Counter(a.problem.id for a in attempts if a.correct)
    for k in (1, 2, 4, 5):
        expected = sum(pass_at_k(5, passed[p], k) for p in {a.problem.id for a in attempts}) / 8
        assert summary["measures"][f"pass@{k}"]["value"] == pytest.approx(expected)
    assert summary["measures"]["pass@1"]["value"] == pytest.approx(summary["report"]["accuracy"])
    assert (summary["report"]["count"], summary["problems"], summary["samples"]) == (40, 8, 5)


def test_a_stopped_evaluation_goes_on_to_the_same_answers(
    sampled_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palaestra.tasks.evaluate.CHUNK", 3)
    stopped = 0

    def stop(event: object) -> None:
        nonlocal stopped
        stopped += 1
        if stopped == 5:  # The start line, loading, nothing done, one chunk, two chunks.
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(out=tmp_path / "run", listener=stop, **SAMPLED)
    with Run.open(tmp_path / "run") as run:
        assert len(run.store.attempts("0/test")) == 2 * 3 * 5
        recipe.resume(run)
        again = run.store.attempts("0/test")
    with Run.open(sampled_run, read_only=True) as whole:
        expected = whole.store.attempts("0/test")
    assert [a.completion.text for a in again if a.completion] == [a.completion.text for a in expected if a.completion]
    assert [a.outcome for a in again] == [a.outcome for a in expected]


def test_limit_is_spread_over_skills_and_every_takes_all(tmp_path: Path) -> None:
    task = make_task("math-skills")
    assert len(choose(task, Split.TEST, 0, 0)) == 25 * len(task.skills())
    assert Counter(p.skill for p in choose(task, Split.TEST, 0, 0, SKILLS, limit=5)) == {SKILLS[0]: 3, SKILLS[1]: 2}
    rows = [
        {"question": f"{n}?", "answer": "1+1\n" * steps + f"#### {n}"} for n in range(20) for steps in [2 + (n > 14)]
    ]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(
            "\n".join(json.dumps(row | {"question": split + row["question"]}) for row in rows)
        )
    published = make_task("gsm8k", path=str(tmp_path))
    assert len(choose(published, Split.TEST, 0, 0)) == 20
    chosen = choose(published, Split.TEST, 0, 0, limit=12)
    assert Counter(p.skill for p in chosen) == {"two_steps": 7, "three_steps": 5}
    with pytest.raises(TaskError, match=r"'two_steps' .*15 .*16"):
        choose(published, Split.TEST, 16, 0, ["two_steps"])


def test_progress_is_reported_within_a_chunk(tmp_path: Path) -> None:
    events: list[Event] = []
    evaluate(
        model="nano", skills=("addition", "clock"), problems=25, shots=2, out=tmp_path / "run", listener=events.append
    )
    within = [event for event in events if "tokens" in event.data]
    assert within
    assert {(event.phase, event.done, event.total) for event in within} == {("0/test", 0, 50)}


def test_shots_and_a_plain_prompt_change_what_is_asked(tmp_path: Path) -> None:
    asked = {}
    for name, options in {"as it is": {}, "shown": {"shots": 1}, "plain": {"prompt": "plain", "stop": ["\n"]}}.items():
        evaluate(out=tmp_path / name, skills=["addition"], problems=1, max_tokens=24, **options)
        with Run.open(tmp_path / name, read_only=True) as run:
            asked[name] = run.store.attempts("0/test")[0]
    assert len(asked["shown"].problem.messages) == 3
    prompts = {name: attempt.completion.prompt_ids for name, attempt in asked.items() if attempt.completion}
    assert len(prompts["plain"]) < len(prompts["as it is"]) < len(prompts["shown"])
    assert asked["plain"].completion is not None
    assert "\n" not in asked["plain"].completion.text
    notes = compare(tmp_path / "as it is", tmp_path / "shown").notes
    assert "1 problems had different prompts (wording or examples)" in notes
    assert "setting 'shots' differs: 0 and 1" in notes


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"samples": 2}, "'samples': 2 answers at temperature 0"),
        ({"limit": -1}, "'limit'"),
        ({"stop": ["", "x"]}, "'stop'"),
        ({"task_kwargs": {"shots": 2}}, "'shots'"),
        ({"task_kwargs": {"pth": "x"}}, "'math-skills' has no option 'pth'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, object], expected: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        evaluate(out=tmp_path / "run", **values)
    assert expected in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_two_runs_are_compared_problem_by_problem_and_drawn(sampled_run: Path, tmp_path: Path) -> None:
    evaluate(out=tmp_path / "greedy", skills=SKILLS, problems=3, seed=1)
    result = compare(sampled_run, tmp_path / "greedy")
    outcome = result.comparison
    assert (outcome.gain.count, outcome.first.count, outcome.second.count) == (6, 30, 6)
    assert {part.name for part in outcome.parts} == set(SKILLS)
    assert 0 <= outcome.p_value <= 1
    assert "left out: 2 problems (asked of the first only)" in result.notes
    assert "setting 'temperature' differs: 1.0 and 0.0" in result.notes
    page = write_comparison(result, tmp_path / "page.html").read_text()
    assert page.count("<svg") == 4
    assert "greedy against sampled" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    report = write_report(sampled_run).read_text()
    assert "pass@4" in report


def test_runs_that_cannot_be_compared_say_why(sampled_run: Path, tmp_path: Path) -> None:
    evaluate(out=tmp_path / "other", skills=["clock"], problems=1)
    with pytest.raises(RunError, match="problem in common"):
        compare(sampled_run, tmp_path / "other")
    with Run.create(tmp_path / "empty", "evaluate", {"task": "math-skills"}):
        pass
    with pytest.raises(RunError, match="no answers"):
        compare(sampled_run, tmp_path / "empty")
    settings = json.loads((tmp_path / "other" / "settings.json").read_text())
    settings["settings"]["task"] = "gsm8k"
    (tmp_path / "other" / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(RunError, match=r"math-skills, .*gsm8k"):
        compare(sampled_run, tmp_path / "other")


def test_a_model_behind_a_service_is_asked_scored_and_paid_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = {p.messages[0].text: p.reference for p in choose(make_task("math-skills"), Split.TEST, 3, 0, SKILLS)}

    def script(call: Call, times: int) -> Reply:
        wrong = call.asked == next(iter(problems))
        if wrong and times == 0:
            return error(503, "come back later")
        return Reply("no idea" if wrong else f"Answer: {problems[call.asked]}")

    with Server(script) as server:
        (tmp_path / "prices.json").write_text(json.dumps({server.model: [1.0, 2.0]}))
        monkeypatch.setenv("PALAESTRA_PRICES", str(tmp_path / "prices.json"))
        reported: list[Event] = []
        result = evaluate(out=tmp_path / "run", model=server.model, skills=SKILLS, problems=3, listener=reported.append)
        with pytest.raises(SettingsError, match="chat template"):
            evaluate(out=tmp_path / "plain", model=server.model, prompt="plain")
    assert ["come back later" in event.data["reason"] for event in reported if event.phase == RETRY] == [True]
    summary = result.summary
    assert (summary["report"]["correct"], summary["report"]["count"]) == (5, 6)
    expected = (summary["prompt_tokens"] + 2 * summary["completion_tokens"]) / 1e6
    assert summary["cost"] == pytest.approx(expected) != 0


def test_data_that_changed_is_read_again(tmp_path: Path) -> None:
    def evaluate_number(number: int) -> str:
        for split in ("train", "test"):
            row = {"question": f"{split} {number}?", "answer": f"1+1\n2+2\n#### {number}"}
            (tmp_path / f"{split}.jsonl").write_text(json.dumps(row))
        evaluate(out=tmp_path / f"run{number}", task="gsm8k", task_kwargs={"path": tmp_path}, max_tokens=2)
        with Run.open(tmp_path / f"run{number}", read_only=True) as run:
            return run.store.attempts("0/test")[0].problem.reference

    assert (evaluate_number(1), evaluate_number(2)) == ("1", "2")


class Statements:
    """Statements that are true or false, four of seven true."""

    name = "statements"

    def skills(self) -> dict[str, tuple[str, ...]]:
        return {"truth": ()}

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        sums = [(k, k + 1, 2 * k + (1 if k < 4 else 2)) for k in range(7)]
        return [
            Problem(
                f"{a}", (Message("user", f"{a}+{b}={c}. True or false?"),), "true" if c == a + b else "false", "truth"
            )
            for a, b, c in sums
        ]

    def score(self, problem: Problem, completion: Completion) -> Score:
        return Score(float(completion.text.strip().lower() == problem.reference))


def test_yes_no_accuracy_is_shown_with_majority_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS._entries, "statements", Statements)
    evaluate(task="statements", max_tokens=4, out=tmp_path / "first")
    result = evaluate(task="statements", max_tokens=4, out=tmp_path / "second")
    compared = compare(tmp_path / "first", tmp_path / "second")
    assert result.summary["report"]["majority"] == {"answer": "true", "count": 4, "total": 7}
    assert result.summary["report"]["slices"][0]["majority"]["count"] == 4
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report_table(result.report))
    console.print(comparison_table(compared))
    pages = [
        page.read_text() for page in (write_report(result.folder), write_comparison(compared, tmp_path / "c.html"))
    ]
    for shown in (console.export_text(), *pages):
        assert "57.1 % (true, 4 of 7)" in shown
        assert "majority class" in shown.lower()
    console.print(report_table(evaluate(problems=1, skills=["addition"], out=tmp_path / "open").report))
    assert "majority" not in console.export_text()


@pytest.fixture
def unpriced_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose price is unknown."""
    monkeypatch.delenv("PALAESTRA_PRICES", raising=False)
    with Server(lambda call, before: Reply("4")) as server:
        yield server


def test_a_model_without_a_price_is_shown_as_unpriced(
    unpriced_server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from palaestra.cli.recipes import finish_evaluate

    result = evaluate(model=unpriced_server.model.replace("127.0.0.1", "0.0.0.0"), limit=3, out=tmp_path / "run")
    s = result.summary
    assert (s["calls"], s["cost"], s["unpriced_calls"], s["unmeasured_calls"]) == (3, 0.0, 3, 0)
    assert s["prompt_tokens"] == unpriced_server.prompt_tokens
    finish_evaluate(result)
    assert ", unpriced; report:" in " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "run" / "report.html").read_text()
    assert "3 calls went to a model without a known price" in page
    assert "$0.00" not in page
    free = evaluate(model=unpriced_server.model, limit=3, out=tmp_path / "free").summary
    assert (free["cost"], free["unpriced_calls"]) == (0.0, 0)


def test_cost_limit_stops_evaluation_and_a_larger_one_resumes(
    unpriced_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prices.json").write_text('{"scripted": [1000, 1000]}')
    monkeypatch.setenv("PALAESTRA_PRICES", str(tmp_path / "prices.json"))
    with pytest.raises(BudgetSpentError, match="--max-cost"):
        evaluate(model=unpriced_server.model, max_cost=0.15, limit=12, out=tmp_path / "run")
    asked = len(unpriced_server.calls)
    assert 0 < asked < 12
    with Run.open(tmp_path / "run") as run:
        s = recipe.resume(run, max_cost=50.0).summary
    assert len(unpriced_server.calls) == 12  # What was answered before is in the run folder.
    assert s["calls"] == 12
    assert s["cost"] == pytest.approx((unpriced_server.prompt_tokens + unpriced_server.completion_tokens) / 1000)


def test_a_task_may_be_an_object(tmp_path: Path) -> None:
    notices: list[str] = []

    def listen(event: Event) -> None:
        notices.append(str(event.data.get("text", "")))

    task, small = make_task("math-skills", shots=1), {"skills": ["addition"], "problems": 2, "max_tokens": 4}
    result = evaluate(task=task, out=tmp_path / "run", listener=listen, **small)  # type: ignore[arg-type]
    assert result.report.count == 2
    assert sum("cannot be resumed" in text for text in notices) == 1
