import json

import numpy as np
import pytest

from palaestra.core.errors import SettingsError, UnknownNameError
from palaestra.core.records import Attempt, Example, Failure, FailureCause, Message, Problem, Report, Request, Score
from palaestra.engines.mock import MockEngine
from palaestra.envs.lesson.state import Round, StudentState, ValidationAttempt, count_examples
from palaestra.runs.files import from_json, to_json
from palaestra.tasks.math.task import MathSkills
from palaestra.teachers.base import Order, Written, make_teacher
from palaestra.teachers.skill_tree import SkillTree
from palaestra.teachers.tree.bandits import posterior
from palaestra.teachers.tree.policies import POLICIES, level, make_policy
from palaestra.teachers.tree.records import (
    Branch,
    Count,
    Leaf,
    TreeAction,
    TreeLimits,
    TreeState,
    build_tree,
    skill_rewards,
)

TASK = MathSkills()
SKILLS = TASK.skills()
EVERYTHING = {skill: dict.fromkeys(parts, 4) for skill, parts in SKILLS.items()}


def make_report(rates: dict[str, float] | float) -> Report:
    """Make a validation report with the given accuracy by skill or by skill/subskill, 12 problems per skill."""
    table = rates if isinstance(rates, dict) else {}
    default = 0.5 if isinstance(rates, dict) else rates
    slices = []
    for skill, parts in SKILLS.items():
        each = 12 // len(parts)
        leaves = []
        for part in parts:
            rate = table.get(f"{skill}/{part}", table.get(skill, default))
            leaves.append(Report(part, round(each * rate) / each, 0.0, 1.0, each, round(each * rate)))
        right = sum(leaf.correct for leaf in leaves)
        slices.append(Report(skill, right / 12, 0.0, 1.0, 12, right, {}, tuple(leaves)))
    return Report("validation", 0.5, 0.0, 1.0, 216, 108, {}, tuple(slices))


def make_state(*reports: Report, given: tuple[dict[str, dict[str, int]], ...] = (), wrong: str = "") -> StudentState:
    history = tuple(Round(a, r) for a, r in zip(given, reports[1:], strict=True))
    attempts = (ValidationAttempt("2 + 2?", "5", "no", wrong, ""),) if wrong else ()
    return StudentState(len(history), reports[-1], attempts, 0, 480, reports[0], history)


def make_rng() -> np.random.Generator:
    return np.random.default_rng(0)


class AnyWriter:
    """Writes whatever it is asked for."""

    engine: MockEngine | None = None

    def write(self, orders: list[Order], generator: np.random.Generator) -> list[Written]:
        return [
            Written(tuple(Example((Message("user", "q"),), "r", o.skill, o.subskill) for _ in range(o.count)))
            for o in orders
        ]


def test_the_tree_holds_what_was_given_and_measured() -> None:
    first = {"clock": {"past_hour": 3}, "average": {"of_four": 2}}
    tree = build_tree(make_state(make_report(0.25), make_report(0.5), given=(first,)), SKILLS)
    clock, average = tree.branch("clock"), tree.branch("average")
    assert clock is not None
    assert average is not None
    assert clock.rewards == (0.5 - clock.before,)
    assert [leaf.name for leaf in clock.opened] == ["past_hour"]
    assert (clock.total, clock.leaves[1].given, tree.round, tree.budget) == (3, (3,), 1, 480)
    # A subskill that somebody proposed in an earlier round is known from the history.
    assert [leaf.name for leaf in average.leaves] == ["of_two", "of_three", "of_four"]
    assert from_json(TreeState, to_json(tree)) == tree


def test_mastered_skill_is_open_and_a_leaf_is_its_own_subskill() -> None:
    tree = build_tree(make_state(make_report(1.0)), {"clock": SKILLS["clock"], "unheard": ()})
    mastered, unheard = tree.branches
    assert mastered.closed == ()
    assert [leaf.name for leaf in unheard.closed] == [""]


def test_equally_weak_subskills_open_in_task_order() -> None:
    tree = build_tree(make_state(make_report(0.0)), {"clock": ("within_hour", "past_hour")})
    assert [leaf.name for leaf in tree.branches[0].closed] == ["within_hour", "past_hour"]


def test_rewards_are_paired_by_problem() -> None:
    def make_attempt(skill: str, number: int, right: bool | None) -> Attempt:
        outcome = Failure(FailureCause.ENGINE, "broke") if right is None else Score(float(right))
        return Attempt(Problem(f"{skill}/{number}", (Message("user", "q"),), "", skill), None, outcome)

    first = [
        make_attempt("a", 0, False),
        make_attempt("a", 1, False),
        make_attempt("b", 0, True),
        make_attempt("b", 1, True),
    ]
    second = [
        make_attempt("a", 0, True),
        make_attempt("a", 1, None),
        make_attempt("b", 0, True),
        make_attempt("b", 1, False),
    ]
    rewards = skill_rewards([first, second])
    assert {skill: [(gain.points, gain.count) for gain in gains] for skill, gains in rewards.items()} == {
        "a": [(100.0, 1)],
        "b": [(-50.0, 2)],
    }


def test_actions_are_serialised() -> None:
    action = TreeAction("clock", {"past_hour": 3}, "new", "explore")
    assert from_json(TreeAction, to_json(action)) == action


@pytest.mark.parametrize("name", [name for name in POLICIES.names() if name != "model"])
def test_every_policy_fills_each_lesson_and_gives_reasons(name: str) -> None:
    for observed in (
        make_state(make_report(0.25)),
        make_state(make_report(1.0)),
        make_state(make_report(0.0), make_report(0.5), given=(EVERYTHING,)),
        make_state(make_report(0.5), make_report(0.25), make_report(0.25), given=({"clock": {"past_hour": 5}}, {})),
    ):
        for size in (1, 160):
            lesson = make_teacher("skill_tree", TASK, policy=name).write(observed, size, make_rng())
            assert len(lesson.examples) == size
            assert all(decision.reason for decision in lesson.decisions)
            assert {decision.action for decision in lesson.decisions} <= {"explore", "exploit"}
            assert make_teacher("skill_tree", TASK, policy=name).write(observed, size, make_rng()) == lesson


def decide(name: str, observed: StudentState, **options: object) -> dict[str, object]:
    teacher = make_teacher("skill_tree", TASK, policy=name, **options)
    assert isinstance(teacher, SkillTree)
    return {action.skill: action for action in teacher.decide(observed, 180, make_rng())}


def test_alternating_explores_and_exploits_in_turn() -> None:
    first = decide("alternating", make_state(make_report(0.25)))
    assert {action.kind for action in first.values()} == {"explore"}
    some = {skill: {parts[0]: 5} for skill, parts in SKILLS.items()}
    second = decide("alternating", make_state(make_report(0.25), make_report(0.5), given=(some,)))
    assert {action.kind for action in second.values()} == {"exploit"}
    assert set(second["clock"].allocation) == {"within_hour"}
    third = decide("alternating", make_state(make_report(0.25), make_report(0.5), make_report(0.5), given=(some, some)))
    assert {action.kind for action in third.values()} == {"explore"}


def test_balanced_opens_all_and_fills_evenly() -> None:
    item = {skill: {parts[0]: 6} for skill, parts in SKILLS.items()}
    grown = decide("balanced", make_state(make_report(0.25), make_report(0.25), given=(item,)), open_at_once=1)
    assert grown["geometry"].allocation == {"perimeter": 2, "area": 8}
    every = {skill: dict.fromkeys(parts, 6) for skill, parts in SKILLS.items()}
    full = decide("balanced", make_state(make_report(0.25), make_report(0.25), given=(every,)))
    assert full["geometry"].kind == "exploit"
    assert sorted(full["geometry"].allocation.values()) == [3, 3, 4]
    assert sum(level(7, {"a": 9, "b": 0}).values()) == 7


def test_threshold_explores_where_the_last_reward_was_small() -> None:
    some = {skill: {parts[0]: 5} for skill, parts in SKILLS.items()}
    observed = make_state(make_report(0.25), make_report({"clock": 0.75, "percent": 0.25}), given=(some,))
    actions = decide("threshold", observed, threshold=0.1)
    assert (actions["clock"].kind, actions["percent"].kind) == ("exploit", "explore")


@pytest.mark.parametrize("name", ["ucb", "thompson"])
def test_bandit_leaves_stalled_skills_and_keeps_known_ones(name: str) -> None:
    start = {"number_theory": 0.0, "geometry": 0.0, "addition": 1.0}
    now = {"number_theory": 0.0, "geometry": 0.5, "addition": 1.0}
    taught = {skill: dict.fromkeys(parts, 6) for skill, parts in SKILLS.items()}
    actions = decide(name, make_state(make_report(start), make_report(now), given=(taught,)))
    spent = {skill: sum(action.allocation.values()) for skill, action in actions.items()}
    assert spent["geometry"] > 5 * spent.get("number_theory", 0)
    assert spent["addition"] >= 1


def test_curves_separate_known_learnable_and_unreachable() -> None:
    start = {"number_theory": 0.0, "clock/within_hour": 1.0, "clock/past_hour": 0.0}
    now = start | {"clock/past_hour": 0.5}
    taught = {skill: dict.fromkeys(parts, 8) for skill, parts in SKILLS.items()}
    known = posterior(build_tree(make_state(make_report(start), make_report(now), given=(taught,)), SKILLS))
    assert known.within["number_theory"] < 0.2 < 0.9 < known.within["clock"]
    np.testing.assert_allclose(known.weights_LG.sum(axis=1), 1.0)
    rows = {key: row for row, key in enumerate(known.keys)}
    gain_L = known.marginals(10).sum(axis=1)
    assert gain_L[rows["clock", "past_hour"]] > 5 * gain_L[rows["clock", "within_hour"]]
    assert np.isclose(known.value_L.sum(), 1.0)


def test_the_curves_bear_large_validation_sets_and_budgets() -> None:
    leaf = Leaf("p", (900,), (Count(300, 1740), Count(1200, 1740)), True)
    known = posterior(TreeState((Branch("s", (900,), leaf.measured, (leaf,)),), 1, 10**6))
    assert np.isfinite(known.weights_LG).all()
    gain_LN = known.marginals(1000)
    assert (np.diff(gain_LN[0]) <= 1e-15).all()
    assert (gain_LN > 0).all()


def test_options_of_another_policy_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"'ucb' .*'threshold'; .*optimism, keep"):
        make_teacher("skill_tree", TASK, policy="ucb", threshold=0.1)
    with pytest.raises(UnknownNameError, match="'thompson'"):
        make_policy("thomson")
    with pytest.raises(SettingsError, match="language model"):
        make_teacher("skill_tree", TASK, policy="model")


def format_actions(*actions: dict[str, object]) -> str:
    return json.dumps({"actions": actions})


def test_the_model_reads_the_history_and_is_held_to_the_limits() -> None:
    text = format_actions(
        {"skill": "clock", "action": "explore", "reason": "it is weak",
         "allocation": [{"subskill": "past_hour", "examples": 500}, {"subskill": "seconds", "examples": 5}]},
        {"skill": "percent", "action": "exploit", "reason": "it answers",
         "allocation": [{"subskill": "tenths", "examples": -7}, {"subskill": "halves", "examples": 40}]},
        {"skill": "cooking", "action": "explore", "reason": "why not", "allocation": []},
    )  # fmt: skip
    engine = MockEngine(lambda request, index: text)
    observed = make_state(make_report(0.25), make_report(0.5), given=({"percent": {"tenths": 5, "halves": 2}},))
    actions = decide("model", observed, engine=engine, cap=0.2)
    prompt = engine.requests[0].messages[-1].text
    for part in (
        "180 examples",
        "percent: 4/12, 8/12; examples 7; rewards +33",
        "- past_hour: 2/6, 3/6; examples 0; closed",
    ):
        assert part in prompt
    assert actions["clock"].allocation == {"past_hour": 36}
    assert "no subskill 'seconds', 36 of" in actions["clock"].reason
    assert "-7 for tenths counts as 0" in actions["percent"].reason
    assert sum(sum(action.allocation.values()) for action in actions.values()) == 180
    assert any("no skill 'cooking'" in action.reason for action in actions.values())


def test_the_engine_of_the_writer_is_the_default() -> None:
    writer = AnyWriter()
    writer.engine = MockEngine(lambda request, index: "nothing")
    teacher = SkillTree(TASK, writer=writer, policy="model")
    teacher.write(make_state(make_report(0.25)), 20, make_rng())
    assert len(writer.engine.requests) == 3
    with pytest.raises(SettingsError, match="engine"):
        make_teacher("skill_tree", TASK, policy="model", engine="gpt")


def test_a_model_without_an_answer_is_replaced_and_that_is_said() -> None:
    engine = MockEngine(lambda request, index: "let me think")
    actions = decide("model", make_state(make_report(0.25)), engine=engine)
    assert len(engine.requests) == 3
    assert all("by 'response'" in action.reason for action in actions.values())
    assert all(
        actions[s].allocation == a.allocation for s, a in decide("response", make_state(make_report(0.25))).items()
    )


def test_subskills_are_proposed_if_none_is_left() -> None:
    def script(request: Request, index: int) -> str | Failure:
        asked = request.messages[-1].text
        if len(request.messages) == 1 and '"clock"' in asked:
            return json.dumps({"subskills": ["Past  Hour", "seconds"]})
        if '"clock"' in request.messages[0].text:
            return json.dumps({"subskills": ["seconds", "time zones"]})
        return Failure(FailureCause.REFUSED, "no")

    engine = MockEngine(script)
    teacher = SkillTree(TASK, ("clock", "percent"), writer=AnyWriter(), engine=engine, proposals=2, policy="balanced")
    given = {skill: dict.fromkeys(SKILLS[skill], 4) for skill in ("clock", "percent")}
    observed = make_state(make_report(0.25), make_report(0.5), given=(given,), wrong="clock")
    lesson = teacher.write(observed, 40, make_rng())
    allocation = count_examples(lesson)
    assert set(allocation["clock"]) == {"within_hour", "past_hour", "seconds", "time zones"}
    assert set(allocation["percent"]) == set(SKILLS["percent"])
    first = next(r for r in engine.requests if '"clock"' in r.messages[0].text)
    assert "exactly 2 new subskills" in first.messages[0].text
    assert "2 + 2?" in first.messages[0].text
    again = [r for r in engine.requests if len(r.messages) > 1]
    assert "'Past  Hour' exists already" in again[0].messages[-1].text


def test_proposals_need_a_model_and_a_writer_that_can_read() -> None:
    with pytest.raises(SettingsError, match="engine"):
        SkillTree(TASK, writer=AnyWriter(), proposals=2)
    with pytest.raises(SettingsError, match="writer"):
        SkillTree(TASK, engine=MockEngine({}), proposals=2)


def test_custom_policy_is_accepted_and_limited() -> None:
    class Greedy:
        open_at_once = 1

        def decide(
            self, tree: TreeState, size: int, limits: TreeLimits, generator: np.random.Generator
        ) -> list[TreeAction]:
            return [TreeAction("clock", {"past_hour": 10**9, "within_hour": 1}, "all to one", "explore")]

    lesson = SkillTree(TASK, policy=Greedy(), cap=0.1).write(make_state(make_report(0.25)), 180, make_rng())
    allocation = count_examples(lesson)
    assert allocation["clock"] == {"past_hour": 18}
    assert len(lesson.examples) == 180
