from palaestra.core.records import (
    Attempt,
    Completion,
    Engine,
    Event,
    Failure,
    FailureCause,
    Problem,
    Request,
    Score,
    Split,
)
from palaestra.core.statistics import report_on
from palaestra.engines.mock import MockEngine
from palaestra.runs.provenance import LedgerEntry
from palaestra.tasks import evaluate as module
from palaestra.tasks.evaluate import evaluate
from palaestra.tasks.math.task import MathSkills

TASK = MathSkills()
PROBLEMS = TASK.problems(Split.TEST, 5, 0, ["addition", "clock"])


def oracle(wrong: int = 0) -> MockEngine:
    answers = {p.messages[0].text: f"Answer: {p.reference}" for p in PROBLEMS}
    for problem in PROBLEMS[:wrong]:
        answers[problem.messages[0].text] = "no idea"
    return MockEngine(answers)


def test_right_and_wrong_answers_are_counted_in_order() -> None:
    attempts = evaluate(TASK, PROBLEMS, lambda: oracle(wrong=3))
    assert [a.problem for a in attempts] == PROBLEMS
    assert [a.correct for a in attempts] == [False] * 3 + [True] * 7


def test_a_failure_leaves_the_other_attempts() -> None:
    broken = Failure(FailureCause.ENGINE, "lost")
    texts = {p.messages[0].text: f"Answer: {p.reference}" for p in PROBLEMS}
    engine = MockEngine(
        lambda request, _: (
            broken if request.messages[-1].text == PROBLEMS[0].messages[0].text else texts[request.messages[-1].text]
        )
    )
    report = report_on(evaluate(TASK, PROBLEMS, lambda: engine))
    assert (report.accuracy, report.count, report.failures) == (1.0, 9, {"engine": 1})


def test_a_scorer_that_crashes_is_a_failure_with_its_cause() -> None:
    class Crashing(MathSkills):
        def score(self, problem: Problem, completion: Completion) -> Score | Failure:
            raise ZeroDivisionError("in the scorer")

    attempts = evaluate(Crashing(), PROBLEMS, oracle)
    assert all(isinstance(a.outcome, Failure) and a.outcome.cause is FailureCause.SCORER for a in attempts)
    assert report_on(attempts).accuracy is None


def test_an_interrupted_evaluation_resumes(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "CHUNK", 4)
    kept: list[Attempt] = []
    engine = oracle(wrong=2)
    whole = evaluate(TASK, PROBLEMS, lambda: engine, keep=lambda attempts, cost: kept.extend(attempts))
    assert kept == whole
    again = oracle(wrong=2)
    assert evaluate(TASK, PROBLEMS, lambda: again, known=kept[:4]) == whole
    assert len(again.requests) == len(PROBLEMS) - 4


def test_known_attempts_need_no_engine() -> None:
    known = evaluate(TASK, PROBLEMS, oracle)

    def fail_to_open() -> Engine:
        raise AssertionError("no engine is needed")

    assert evaluate(TASK, PROBLEMS, fail_to_open, known=known) == known


def test_keep_receives_the_cost_of_every_chunk() -> None:
    costs: list[LedgerEntry] = []
    evaluate(TASK, PROBLEMS, oracle, phase="0/test", keep=lambda attempts, cost: costs.append(cost))
    assert sum(c.calls for c in costs) == len(PROBLEMS)
    assert costs[0].phase == "0/test"
    assert costs[0].usage.completion_tokens > 0


def test_progress_and_seeds() -> None:
    events: list[Event] = []
    engine = oracle()
    evaluate(TASK, PROBLEMS, lambda: engine, listener=events.append)
    assert (events[-1].done, events[-1].total) == (10, 10)
    seeds: dict[str, Request] = {str(r.seed): r for r in engine.requests}
    assert len(seeds) == len(PROBLEMS)
