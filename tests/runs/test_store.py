import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.errors import RunError
from palaestra.core.records import (
    Attempt,
    Completion,
    Decision,
    Example,
    Failure,
    FailureCause,
    Lesson,
    Message,
    Problem,
    Score,
    Trajectory,
    Usage,
)
from palaestra.runs.browse import find_trajectory_keys
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.store import Store

COST = LedgerEntry("0/test", "nano", 2, Usage(10, 5), 1.5, 0.25)


def attempt(name: str, value: float | None = 1.0) -> Attempt:
    outcome = Failure(FailureCause.ENGINE, "broke") if value is None else Score(value, {"extracted": "1"})
    return Attempt(Problem(name, (Message("user", "1?"),), "1", "s", "t"), Completion("1", (4,), (-0.1,)), outcome)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store.sqlite", create=True)


def test_attempts_come_back_as_they_were_in_order(store: Store) -> None:
    attempts = [attempt("b"), attempt("a", 0.0), attempt("c", None)]
    store.add_attempts("0/test", attempts, COST)
    assert store.attempts("0/test") == attempts
    assert store.attempts("1/test") == []
    assert store.phases() == ["0/test"]


def test_a_lesson_comes_back_as_it_was(store: Store) -> None:
    lesson = Lesson(
        (Example((Message("user", "q"),), "a", "s", "t"), Example((Message("user", "r"),), "b", "s", "u")),
        (Decision("s", "explore", "open t", {"t": 1, "u": 1}),),
    )
    store.add_lesson(1, lesson, COST)
    store.add_lesson(2, Lesson(lesson.examples[:1]), COST)
    assert store.lesson(1) == lesson
    assert store.lesson(2) == Lesson(lesson.examples[:1])
    assert store.lesson(3) is None
    assert store.allocation() == {1: {("s", "t"): 1, ("s", "u"): 1}, 2: {("s", "t"): 1}}


def test_skills_are_replaced_and_forgotten_with_their_attempts(store: Store) -> None:
    store.add_skills("own", ("addition",))
    for stage, actual in (("names", ("sums",)), ("categories", ("numbers",)), ("names", ("sums", "clocks"))):
        store.add_skills(stage, actual, COST)
    store.add_attempts("0/test", [attempt("a")], COST)
    kind = tuple[str, ...]
    assert store.skills(kind) == {"own": ("addition",), "categories": ("numbers",), "names": ("sums", "clocks")}
    store.forget_skills(keep=("own", "names"))
    assert store.skills(kind) == {"own": ("addition",), "names": ("sums", "clocks")}
    assert store.attempts("0/test") == []
    assert store.total().calls == 8  # What was spent was spent.


def test_a_training_keeps_its_curve_and_hash(store: Store) -> None:
    store.add_training(1, "abc", [(1, 2.0), (2, 1.0)], COST)
    assert store.weights_sha256(1) == "abc"
    assert store.weights_sha256(2) is None
    assert store.curves() == {1: [(1, 2.0), (2, 1.0)]}


def test_the_ledger_adds_up_in_all_and_by_phase(store: Store) -> None:
    store.add_cost(COST)
    store.add_cost(COST)
    store.add_cost(LedgerEntry("1/train", seconds=3.0))
    assert store.total().seconds == 6.0
    assert store.total("0/").money == 0.5
    assert store.costs()["0/test"].prompt_tokens == 20


def test_a_step_is_stored_whole_or_not_at_all(store: Store) -> None:
    """The second attempt breaks the key: nothing of the step stays, not even its cost."""
    with pytest.raises(sqlite3.IntegrityError):
        store.add_attempts("0/test", [attempt("a"), attempt("a")], COST)
    assert store.attempts("0/test") == []
    assert store.total().calls == 0


def test_the_store_is_in_wal_mode(store: Store) -> None:
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_reader_sees_commits_while_a_writer_works(store: Store) -> None:
    store.add_cost(COST)
    reader = Store(store.path, read_only=True)
    store._db.execute("BEGIN IMMEDIATE")
    assert reader.total().calls == 2
    store._db.execute("ROLLBACK")


@pytest.mark.parametrize("content", [b"", b"this is no database at all, just text" * 100])
def test_a_file_that_is_no_store_is_one_clear_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "store.sqlite").write_bytes(content)
    with pytest.raises(RunError, match="damaged") as caught:
        Store(tmp_path / "store.sqlite")
    assert "\n" not in str(caught.value)


def test_a_record_that_does_not_parse_is_one_clear_line(store: Store) -> None:
    store.add_attempts("0/test", [attempt("a")], COST)
    store._db.execute("UPDATE attempts SET data='{\"problem\": 5}'")
    with pytest.raises(RunError, match="invalid record"):
        store.attempts("0/test")


def test_a_missing_store_and_a_newer_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no store store\.sqlite"):
        Store(tmp_path / "store.sqlite")
    store = Store(tmp_path / "store.sqlite", create=True)
    store._db.execute("UPDATE meta SET value='99' WHERE key='schema'")
    store.close()
    with pytest.raises(RunError, match="schema 99"):
        Store(tmp_path / "store.sqlite")


def test_a_repeated_step_replaces_the_first(store: Store) -> None:
    from palaestra.research.workspace.workspace import Step

    for position in range(3):
        store.save_step(1, position, Step(1, position, action=f"first {position}"), [COST])
    store.save_step(0, 0, Step(0, 0))
    store.save_step(1, 1, Step(1, 1, action="again", replayed="different"))
    store.forget_steps(1, 2)
    assert store.episodes() == [0, 1]
    assert [(step.position, step.action) for step in store.steps(Step, 1)] == [(0, "first 0"), (1, "again")]
    assert store.total().calls == 3 * COST.calls


def test_trajectories_of_a_store_without_texts_are_found_too(tmp_path: Path) -> None:
    def describe(text: str, group: int) -> Trajectory:
        return Trajectory("env", 0, (1.0,), infos=({"prompt": "What?", "response": text, "group": group},))

    store = Store(tmp_path / "store.sqlite", create=True)
    for iteration in (1, 2):
        stored = [describe(f"say {iteration} 100%", 0), describe("Something ELSE", 1)]
        store.add_iteration(iteration, {}, stored, LedgerEntry(f"{iteration}/train"))

    def search() -> list[list[tuple[int, int]]]:
        queries: list[dict[str, Any]] = [
            {"text": "say"}, {"text": "0%"}, {"text": "else"}, {"text": "say_"}, {"text": "infos"},
            {"group": 1, "iteration": 2}, {"text": "What? say 2"}, {},
        ]  # fmt: skip
        return [find_trajectory_keys(store, **query) for query in queries]

    expected = [
        [(1, 0), (2, 0)], [(1, 0), (2, 0)], [(1, 1), (2, 1)], [], [], [(2, 1)], [], [(1, 0), (1, 1), (2, 0), (2, 1)],
    ]  # fmt: skip
    assert search() == expected
    store._db.execute("DROP TABLE texts")  # As in a run of an earlier version.
    assert search() == expected
    store.add_iteration(3, {}, [describe("new", 0)], LedgerEntry("3/train"))
    assert find_trajectory_keys(store, text="new") == [(3, 0)]
    store.forget_after(1)
    assert find_trajectory_keys(store) == [(1, 0), (1, 1)]
    store.close()


def test_going_back_to_a_checkpoint_forgets_the_texts(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite", create=True)
    trajectory = Trajectory("env", 0, (1.0,), infos=({"response": "word"},))
    for iteration in (1, 2):
        store.add_iteration(iteration, {"reward": 1.0, "loss": 2.0}, [trajectory], LedgerEntry(f"{iteration}/train"))
    assert store.metrics("loss") == {1: {"loss": 2.0}, 2: {"loss": 2.0}}
    store.forget_after(1)
    assert find_trajectory_keys(store, text="word") == [(1, 0)]
    store.add_iteration(2, {}, [trajectory], LedgerEntry("2/train"))
    assert find_trajectory_keys(store, text="word") == [(1, 0), (2, 0)]
    store.close()


def test_attempts_are_read_without_what_takes_the_memory(tmp_path: Path) -> None:
    problem = Problem("a", (Message("user", "q"),), "7", "skill", metadata={"level": 2})
    scored = Attempt(problem, Completion("x", (1, 2), (-0.5, -0.25), prompt_ids=(3,), usage=Usage(1, 2)), Score(1.0))
    failed = Attempt(problem, None, Failure(FailureCause.ENGINE, "broke"), sample=1)
    store = Store(tmp_path / "store.sqlite", create=True)
    store.add_attempts("0/test", [scored, failed], LedgerEntry("0/test"))
    assert store.attempt("0/test", "a", 0) == scored
    assert store.attempt("0/test", "a", 2) is None
    bare = replace(scored, completion=Completion("x", usage=Usage(1, 2)))
    assert store.attempts("0/test", with_tokens=False) == [bare, failed]
    light = replace(problem, messages=())
    assert store.outcomes("0/test") == [Attempt(light, None, Score(1.0)), replace(failed, problem=light)]
    store.close()


def test_metrics_of_earlier_versions_have_their_new_names(store: Store) -> None:
    store.add_metrics(1, {"total_decisions": 50.0, "reward": 1.0})
    assert store.metrics() == {1: {"total_actions": 50.0, "reward": 1.0}}
    assert store.metrics("total_actions") == {1: {"total_actions": 50.0}}
