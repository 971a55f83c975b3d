"""The data sets of reasoning-gym as tasks."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path

import pytest

from palaestra.core.errors import MissingExtraError, SettingsError, TaskError, UnknownNameError
from palaestra.core.records import Completion, Failure, Problem, Score, Split
from palaestra.core.seeding import Seeds
from palaestra.integrations.reasoning_gym import ReasoningGym
from palaestra.tasks.base import TASKS, make_task

DATASETS = (
    "acre", "ab", "advanced_geometry", "aiw", "base_conversion", "basic_arithmetic", "binary_matrix", "bitwise_arithmetic",
    "caesar_cipher", "chain_sum", "color_cube_rotation", "complex_arithmetic", "count_bits", "countdown", "cryptarithm",
    "decimal_arithmetic", "family_relationships", "fraction_simplification", "futoshiki", "gcd", "gsm_symbolic",
    "isomorphic_strings", "knights_knaves", "largest_island", "lcm", "letter_counting", "letter_jumble", "list_functions",
    "maze", "mini_sudoku", "n_queens", "needle_haystack", "number_sequence", "number_sorting", "palindrome_generation",
    "polynomial_multiplication", "pool_matrix", "products", "puzzle24", "self_reference", "shortest_path",
    "simple_equations", "simple_integration", "spell_backward", "spiral_matrix", "string_insertion", "syllogism",
    "time_intervals", "tsumego", "word_sorting",
)  # fmt: skip
backends = pytest.mark.backends


def answer(problem: Problem, text: str, **options: object) -> Score | Failure:
    return make_task(f"reasoning_gym:{problem.skill}", **options).score(problem, Completion(text))


def first(name: str, **options: object) -> Problem:
    return make_task(f"reasoning_gym:{name}", **options).problems(Split.TEST, 1, seed=0)[0]


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(
        "palaestra.integrations.find_spec", lambda name: None if name == "reasoning_gym" else known(name)
    )
    with pytest.raises(MissingExtraError, match=r"palaestra\[reasoning-gym\]"):
        make_task("reasoning_gym:chain_sum")
    assert "reasoning_gym:NAME" in TASKS.descriptions()


@backends
@pytest.mark.parametrize("name", DATASETS)
def test_a_reference_is_right_and_nonsense_is_wrong(name: str) -> None:
    task = make_task(f"reasoning_gym:{name}", levels=[0])
    for problem in task.problems(Split.TEST, 2, seed=0):
        outcome = task.score(problem, Completion(f"I think.\nAnswer: {problem.reference}"))
        assert isinstance(outcome, Score)
        assert outcome.value == 1.0
        wrong = task.score(problem, Completion("Answer: zq"))
        assert isinstance(wrong, Failure) or wrong.value == 0.0
        silent = task.score(problem, Completion(problem.reference.replace("nswer", "")))
        assert isinstance(silent, Score)
        assert (silent.value, silent.evidence["outcome"]) == (0.0, "no_answer")


@backends
@pytest.mark.parametrize("name", ["chain_sum", "list_functions", "pool_matrix", "letter_counting"])
def test_problems_depend_on_their_seed_only(name: str) -> None:
    def draw(split: Split, seed: int) -> list[Problem]:
        return make_task(f"reasoning_gym:{name}").problems(split, 12, seed)

    assert draw(Split.TRAIN, 1) == draw(Split.TRAIN, 1)
    questions = {split: {p.messages for seed in (1, 2) for p in draw(split, seed)} for split in Split}
    assert all(len(own) > 12 for own in questions.values())
    assert not questions[Split.TRAIN] & questions[Split.TEST]
    assert not questions[Split.TRAIN] & questions[Split.VALIDATION]
    assert not questions[Split.VALIDATION] & questions[Split.TEST]
    task = make_task(f"reasoning_gym:{name}")
    lesson = task.write_examples(name, "", 60, Seeds(0).generator())  # type: ignore[attr-defined]
    assert not {example.messages for example in lesson} & questions[Split.TEST]


@backends
@pytest.mark.parametrize("name", ["chain_sum", "gcd", "letter_counting", "maze"])
def test_50_problems_are_those_of_the_package_with_their_seeds(name: str) -> None:
    import reasoning_gym

    task = make_task(f"reasoning_gym:{name}", levels=[])
    for problem in task.problems(Split.TRAIN, 50, seed=3):
        dataset = reasoning_gym.create_dataset(name, seed=problem.metadata["seed"], size=1)
        assert problem.messages[-1].text.startswith(dataset[0]["question"].strip())
        for answer in (dataset[0]["answer"], "7"):
            outcome = task.score(problem, Completion(f"Answer: {answer}"))
            assert isinstance(outcome, Score)
            assert float(outcome.evidence["package_score"]) == pytest.approx(
                dataset.score_answer(answer, dataset[0]), 1e-3
            )


@backends
def test_a_copy_in_another_process_scores_alike() -> None:
    task = make_task("reasoning_gym:gcd")
    problem = task.problems(Split.TEST, 1, seed=0)[0]
    outcome = pickle.loads(pickle.dumps(task)).score(problem, Completion(f"Answer: {problem.reference}"))
    assert outcome == Score(1.0, {"extracted": problem.reference, "expected": problem.reference, "package_score": "1"})


@backends
def test_data_sets_are_skills_and_levels_subskills() -> None:
    task = make_task("reasoning_gym:chain_sum+gcd", levels=[0, 3])
    assert task.skills() == {"chain_sum": ("level_0", "level_3"), "gcd": ("level_0", "level_3")}
    problems = task.problems(Split.TRAIN, 8, seed=0, skills=["chain_sum"])
    lengths = {p.subskill: max(len(q.messages[0].text) for q in problems if q.subskill == p.subskill) for p in problems}
    assert lengths["level_0"] < lengths["level_3"]
    assert {p.metadata["level"] for p in problems} == {"level_0", "level_3"}
    assert make_task("reasoning_gym:chain_sum", levels=[], config={"max_terms": 3}).skills() == {
        "chain_sum": ("default",)
    }


@backends
def test_partial_scores_need_partial_credit() -> None:
    problem = first("chain_sum")
    text = f"Answer: {problem.reference} or 999"
    strict, lenient = answer(problem, text), answer(problem, text, partial_credit=True)
    assert isinstance(strict, Score)
    assert isinstance(lenient, Score)
    assert (strict.value, float(strict.evidence["package_score"])) == (0.0, pytest.approx(lenient.value, abs=1e-3))
    assert 0.0 < lenient.value < 1.0
    assert answer(first("countdown"), "Answer: 1 + 1", partial_credit=True).value == 0.05  # type: ignore[union-attr]


@backends
@pytest.mark.parametrize("name", ["countdown", "puzzle24", "n_queens", "spiral_matrix", "string_insertion", "binary_matrix",
                                  "polynomial_multiplication", "simple_integration"])  # fmt: skip
def test_no_answer_runs_as_code(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    problem = first(name)
    for code in (
        f"open({str(mark)!r}, 'w').write('x')",
        f"__import__('pathlib').Path({str(mark)!r}).touch()",
        "9**9**9**9",
    ):
        outcome = answer(problem, f"Answer: {code}")
        assert isinstance(outcome, Score)
        assert outcome.value == 0.0
    assert not mark.exists()


@backends
def test_other_valid_solution_is_right_but_a_list_of_it_is_not() -> None:
    task = ReasoningGym("n_queens", config={"min_remove": 7, "max_remove": 7}, levels=[])
    (problem,) = task.problems(Split.TEST, 1, seed=0)
    boards = task._generate("n_queens", "default", problem.metadata["seed"])["metadata"]["valid_answers"]
    other = next(board for board in boards if board != problem.reference)
    assert task.score(problem, Completion(f"Answer: {other}")).value == 1.0  # type: ignore[union-attr]
    rows = [row.split() for row in other.splitlines()]
    assert task.score(problem, Completion(f"Answer: {rows}")).value == 0.0  # type: ignore[union-attr]


@backends
def test_bad_names_and_options_are_answered_clearly() -> None:
    with pytest.raises(UnknownNameError, match="'chain_sum'"):
        make_task("reasoning_gym:chainsum")
    with pytest.raises(SettingsError, match=r"chain_sum .*0 to 10"):
        make_task("reasoning_gym:chain_sum", levels=[50])
    with pytest.raises(SettingsError, match=r"chain_sum .*colour"):
        make_task("reasoning_gym:chain_sum", config={"colour": 1})
    with pytest.raises(TaskError, match="reference answers"):
        make_task("reasoning_gym:propositional_logic").write_examples(  # type: ignore[attr-defined]
            "propositional_logic", "", 1, Seeds(0).generator()
        )
