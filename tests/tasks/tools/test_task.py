"""The task `tools-skills`: problems, lessons, and scoring by the plan."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from palaestra.core.errors import SandboxError, SettingsError, UnknownNameError
from palaestra.core.records import Attempt, Completion, Failure, FailureCause, Problem, Score, Split, ToolCall
from palaestra.sandbox import make_sandbox
from palaestra.tasks.base import GenerativeTask
from palaestra.tasks.tools.library import LIBRARY
from palaestra.tasks.tools.plans import Call, CallResult, Plan, openai_calls, read_plan, short_calls
from palaestra.tasks.tools.requests import ARITHMETIC, RIVALS, SKILLS, ToolDraft
from palaestra.tasks.tools.task import ToolsSkills

TASK = ToolsSkills()


@pytest.fixture(scope="module")
def calls() -> Iterator[ToolsSkills]:
    """The task with tool calls, whose sandbox is shared: some hundred scores a second."""
    try:
        make_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))
    task = ToolsSkills("calls", "short", distractors=3)
    yield task
    task.close()


@pytest.fixture(scope="module")
def programs() -> Iterator[ToolsSkills]:
    try:
        make_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))
    task = ToolsSkills()
    yield task
    task.close()


def score_answer(task: ToolsSkills, problem: Problem, text: str) -> Score:
    score = task.score(problem, Completion(text))
    assert isinstance(score, Score), score
    return score


def test_skills_and_levels() -> None:
    assert isinstance(TASK, GenerativeTask)
    assert len(TASK.skills()) >= 10
    assert all(len(parts) >= 2 for parts in TASK.skills().values())
    levels = Counter(problem.metadata["level"] for problem in TASK.problems(Split.TRAIN, 12, 0))
    assert set(levels) == {1, 2, 3, 4}
    assert min(levels.values()) >= 15


def test_subskill_is_the_shape_of_the_plan() -> None:
    for problem in TASK.problems(Split.TRAIN, 15, 1):
        plan = Plan.from_data(problem.metadata["plan"])
        assert plan.shape == problem.subskill == problem.metadata["type"]
        used = {need for call in plan.calls for need in call.needs()}
        assert used == set(range(len(plan.calls) - 1))
        assert json.loads(problem.reference) == plan.execute()[-1].value


def test_wordings_name_all_values() -> None:
    """What is not in the words could not be known."""
    rng = np.random.default_rng(0)
    for recipe in [item for kinds in SKILLS.values() for recipes in kinds.values() for item in recipes]:
        assert len(recipe.wordings) >= 2, recipe.plan
        for wording in recipe.wordings:
            assert all(f"{{{name}}}" in wording for name in recipe.places), wording
        draft = recipe.draw(rng)
        assert len(draft.plan.calls) == recipe.level <= 4
        assert "{" not in draft.question


def test_problems_have_stable_ids() -> None:
    problems = TASK.problems(Split.TEST, 6, 0)
    assert problems == ToolsSkills().problems(Split.TEST, 6, 0)
    assert problems != TASK.problems(Split.TEST, 6, 1)
    assert len({problem.id for problem in problems}) == len(problems)
    for problem in problems:
        assert json.loads(json.dumps(problem.metadata)) == problem.metadata
    other = ToolsSkills("calls", "short", distractors=0).problems(Split.TEST, 6, 0)
    assert [problem.id for problem in other] == [problem.id for problem in problems]


def test_no_plan_is_in_two_splits() -> None:
    plans: dict[Split, set[str]] = {}
    for split in Split:
        drawn = [problem for seed in range(2) for problem in TASK.problems(split, 12, seed)]
        plans[split] = {Plan.from_data(problem.metadata["plan"]).canonical() for problem in drawn}
    for item, other in ((Split.TRAIN, Split.TEST), (Split.TRAIN, Split.VALIDATION), (Split.TEST, Split.VALIDATION)):
        assert not plans[item] & plans[other]
    taught = {e.messages[0].text for e in TASK.write_examples("people", "", 300, np.random.default_rng(0))}
    assert not taught & {p.messages[0].text for p in TASK.problems(Split.TEST, 40, 3, ["people"])}


def test_number_of_problems() -> None:
    for skill in TASK.skills():
        assert len(TASK.problems(Split.TEST, 40, 0, [skill])) == 40


def test_offered_tools() -> None:
    task = ToolsSkills(distractors=4)
    for problem, fewer in zip(task.problems(Split.TRAIN, 9, 0), TASK.problems(Split.TRAIN, 9, 0), strict=True):
        needed = {call["name"] for call in problem.metadata["plan"]}
        offered = problem.metadata["offered"]
        assert needed <= set(offered)
        assert len(set(offered)) == len(offered) == len(needed) + 4
        assert set(fewer.metadata["offered"]) <= set(offered)
        assert [tool["function"]["name"] for tool in problem.metadata["tools"]] == offered
        for name in set(offered) - needed:
            assert LIBRARY[name].domain != ARITHMETIC
            assert not any(name in RIVALS.get(own, ()) for own in needed)
            assert f"{LIBRARY[name].signature}: {LIBRARY[name].description}" in problem.messages[0].text


def test_most_calls() -> None:
    task = ToolsSkills(most_calls=2)
    assert {problem.metadata["level"] for problem in task.problems(Split.TRAIN, 9, 0)} == {1, 2}
    assert set(ToolsSkills(most_calls=1).skills()) < set(task.skills()) <= set(TASK.skills())


def test_plan_is_right_in_both_forms(calls: ToolsSkills, programs: ToolsSkills) -> None:
    for task, per_skill in ((programs, 3), (calls, 15)):
        for problem in task.problems(Split.TEST, per_skill, 0):
            score = score_answer(task, problem, problem.metadata["worked"])
            assert score.value == 1.0, (problem, score)
            assert score.evidence["outcome"] == "right"
            level = problem.metadata["level"]
            assert score.evidence["calls"] == f"{level} of {level}"


def test_lessons_score_full(calls: ToolsSkills, programs: ToolsSkills) -> None:
    for form, prompt, judge in (
        ("program", "short", programs), ("calls", "full", calls), ("calls", "short", calls), ("program", "full", programs),
    ):  # fmt: skip
        task = ToolsSkills(form, prompt)
        task.judge = judge.judge
        for skill in ("deadlines", "text"):
            problems = task.problems(Split.TRAIN, 6 if form == "calls" else 2, 5, [skill])
            examples = task.write_examples(skill, "", 4, np.random.default_rng(5))
            assert all(example.skill == skill and example.response for example in examples)
            for problem in problems:
                assert score_answer(task, problem, problem.metadata["worked"]).value == 1.0


def test_examples_have_the_prompts_of_problems() -> None:
    for example in TASK.write_examples("money", "chain", 5, np.random.default_rng(0)):
        assert (example.skill, example.subskill) == ("money", "chain")
        assert example.messages[0].text.startswith("Tools:\n")
        assert "answer(" in example.response
        assert example.response.startswith("1. ")
    with pytest.raises(UnknownNameError, match="'money'"):
        TASK.write_examples("mony", "", 1, np.random.default_rng(0))


def vary_plan(plan: Plan, offered: list[str]) -> Iterator[tuple[str, list[Call]]]:
    """Plans that are a little wrong, each with what is wrong."""
    values = [call.value for call in plan.execute()]

    def with_call(place: int, call: Call) -> list[Call]:
        return [*plan.calls[:place], call, *plan.calls[place + 1 :]]

    for place, call in enumerate(plan.calls):
        for other in offered:
            if other != call.tool:
                names = [parameter.name for parameter in LIBRARY[other].parameters]
                yield (
                    "other tool",
                    with_call(place, Call(other, dict(zip(names, call.arguments.values(), strict=False)))),
                )
        for name, value in call.arguments.items():
            if isinstance(value, CallResult):
                for earlier in range(place):
                    if values[earlier] != values[value.call]:
                        yield (
                            "other flow",
                            with_call(place, Call(call.tool, {**call.arguments, name: CallResult(earlier)})),
                        )
            elif not isinstance(value, list):
                new = value + 1 if isinstance(value, int | float) else f"{value} x"
                yield "other argument", with_call(place, Call(call.tool, {**call.arguments, name: new}))
        if len(plan.calls) > 1:
            yield "missing call", [_without(item, place, values) for item in plan.calls if item is not call]
    again = Call(plan.calls[0].tool, dict(plan.calls[0].arguments))
    moved = [Call(item.tool, _moved(item.arguments)) for item in plan.calls]
    yield "extra call", [again, *moved]


def _without(call: Call, gone: int, values: list[Any]) -> Call:
    """A call with the value in the place of the result of one that is gone."""

    def new(value: Any) -> Any:
        if isinstance(value, list):
            return [new(item) for item in value]
        if not isinstance(value, CallResult):
            return value
        return values[gone] if value.call == gone else CallResult(value.call - (value.call > gone))

    return Call(call.tool, {name: new(value) for name, value in call.arguments.items()})


def _moved(value: Any) -> Any:
    if isinstance(value, CallResult):
        return CallResult(value.call + 1)
    if isinstance(value, dict):
        return {name: _moved(item) for name, item in value.items()}
    return [_moved(item) for item in value] if isinstance(value, list) else value


def test_changed_plans_are_wrong(calls: ToolsSkills) -> None:
    forgiving = ToolsSkills("calls", "short", distractors=3, extra_calls=True)
    forgiving.judge = calls.judge
    outcomes: dict[str, Counter[str]] = {}
    for problem in calls.problems(Split.VALIDATION, 4, 2):
        plan = Plan.from_data(problem.metadata["plan"])
        for what, changed in vary_plan(plan, problem.metadata["offered"]):
            text = json.dumps(short_calls(Plan(tuple(changed))))
            score = score_answer(calls, problem, text)
            assert score.value == 0.0, (what, text, problem)
            outcomes.setdefault(what, Counter())[score.evidence["outcome"]] += 1
            if what == "extra call":
                assert score_answer(forgiving, problem, text).value == 1.0
            elif what != "other tool":
                assert score_answer(forgiving, problem, text).value == 0.0
    assert set(outcomes) == {"other tool", "other flow", "other argument", "missing call", "extra call"}
    assert set(outcomes["extra call"]) == {"extra_calls"}
    assert set(outcomes["missing call"]) == {"wrong_calls"}
    assert set(outcomes["other argument"]) <= {"wrong_arguments"}
    assert outcomes["other tool"].most_common(1)[0][0] in ("wrong_calls", "wrong_arguments")


def test_order_of_calls(calls: ToolsSkills) -> None:
    problem = next(
        p for p in calls.problems(Split.TEST, 12, 0, ["shop"]) if [c["name"] for c in p.metadata["plan"]][-1] == "total"
    )
    first, second, last = openai_calls(Plan.from_data(problem.metadata["plan"]))
    assert score_answer(calls, problem, json.dumps([second, first, last])).value == 1.0
    score = score_answer(calls, problem, json.dumps([first, last, second]))
    assert (score.value, score.evidence["outcome"]) == (0.0, "wrong_order")
    assert score.evidence["detail"] == "call_3 needs the result of call_2, which comes later"
    lost = json.dumps([first, last]).replace("call_2", "call_9")
    score = score_answer(calls, problem, lost)
    assert (score.value, score.evidence["outcome"]) == (0.0, "wrong_arguments")


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("I do not know.", "no_plan"),
        ('[{"name": "no_such_tool", "arguments": {}}]', "wrong_calls"),
        ('[{"name": "weekday", "arguments": {"date": "2024-01-01"}}]' * 3, "wrong_calls"),
        (json.dumps([{"name": "weekday", "arguments": {"date": "2024-01-01"}}] * 17), "too_many_calls"),
    ],
)
def test_answers_without_a_plan(calls: ToolsSkills, text: str, outcome: str) -> None:
    problem = calls.problems(Split.TEST, 1, 0, ["text"])[0]
    score = score_answer(calls, problem, text)
    assert (score.value, score.evidence["outcome"]) == (0.0, outcome)
    assert score.evidence["detail"]


def test_short_prompts_fit_the_embedded_student() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(files("palaestra") / "assets" / "nano" / "tokenizer.json"))
    for form, most_calls in (("program", 3), ("calls", 2)):
        task = ToolsSkills(form, "short", distractors=1, most_calls=most_calls)
        problems = task.problems(Split.TRAIN, 12, 0)
        answers = [len(tokenizer.encode(problem.metadata["worked"]).ids) + 1 for problem in problems]
        prompts = [len(tokenizer.encode(problem.messages[0].text).ids) + 4 for problem in problems]
        assert max(answers) <= task.max_tokens
        assert np.mean(np.add(prompts, answers) <= 256) > 0.99, form


def test_metric_of_calls(calls: ToolsSkills) -> None:
    problem = next(p for p in calls.problems(Split.TEST, 9, 0, ["calendar"]) if p.metadata["level"] == 2)
    half = json.dumps(problem.metadata["plan"][:1])
    attempts = [
        Attempt(problem, Completion(text), calls.score(problem, Completion(text)))
        for text in (half, problem.metadata["worked"], "?")
    ]
    attempts.append(Attempt(problem, None, Failure(FailureCause.ENGINE, "gone")))
    score = calls.metrics(attempts)["calls made"]
    assert (score.value, score.count) == (0.5, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"answer_form": "prose"}, "'answer_form' of tools-skills: .*'prose'"),
        ({"prompt": "long"}, "'prompt' .*'long'"),
        ({"distractors": -1}, "'distractors' .*-1"),
        ({"distractors": True}, "'distractors' .*True"),
        ({"most_calls": 5}, "'most_calls' .*5"),
        ({"extra_calls": "no"}, "'extra_calls' .*'no'"),
        ({"seconds": 0}, r"'seconds' .*0\.01; "),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ToolsSkills(**options)


def test_unknown_sandbox() -> None:
    with pytest.raises(UnknownNameError, match="'bubblewrap'"):
        ToolsSkills(sandbox="bubblewrp")


def ask(task: ToolsSkills, question: str, plan: str, **values: Any) -> Problem:
    return task.problem("clock", "chain", ToolDraft(question, read_plan(plan, values)))


def test_other_path_unless_order_is_prescribed(calls: ToolsSkills) -> None:
    plan = "local_time(add_minutes(time, minutes), town, other)"
    towns = sorted(
        {
            town
            for problem in calls.problems(Split.VALIDATION, 5, 0, ["travel"])
            for call in problem.metadata["plan"]
            for town in _towns(call)
        }
    )
    values: dict[str, Any] = {"time": "08:15", "minutes": 50, "town": towns[0], "other": towns[1]}
    swapped = [
        {"name": "local_time", "arguments": {"time": "08:15", "town": towns[0], "other": towns[1]}},
        {"name": "add_minutes", "arguments": {"time": "$call_1", "minutes": 50}},
    ]
    free = ask(calls, "When is it 50 minutes after 08:15, by the clocks of the other town?", plan, **values)
    assert score_answer(calls, free, json.dumps(swapped)).evidence["detail"] == "another path to the same result"
    assert score_answer(calls, free, json.dumps(swapped)).value == 1.0
    bound = ask(calls, "First add 50 minutes to 08:15, then take the local time of the other town.", plan, **values)
    assert score_answer(calls, bound, json.dumps(swapped)).value == 0.0
    assert score_answer(calls, bound, json.dumps(short_calls(read_plan(plan, values)))).value == 1.0


def test_paths_without_a_tool_are_wrong(calls: ToolsSkills) -> None:
    problem = ask(
        calls, "Which day is 5 days after 2024-01-01?", "weekday(add_days(date, days))", date="2024-01-01", days=5
    )

    def value(*call: tuple[str, dict[str, Any]]) -> float:
        return score_answer(
            calls, problem, json.dumps([{"name": name, "arguments": given} for name, given in call])
        ).value

    days = ("add_days", {"date": "2024-01-01", "days": 5})
    assert value(days, ("weekday", {"date": "$call_1"})) == 1.0
    assert value(("weekday", {"date": "2024-01-06"})) == 0.0
    assert value(("add_days", {"date": "2024-01-06", "days": 0}), ("weekday", {"date": "$call_1"})) == 0.0
    assert value(("add_days", {"date": "2024-01-01", "days": 12}), ("weekday", {"date": "$call_1"})) == 0.0
    assert value(("weekday", {"date": "2024-01-06"}), days) == 0.0
    assert value(days, ("weekday", {"date": "2024-01-13"})) == 0.0


@pytest.mark.parametrize("form", ["program", "calls"])
def test_native_calls(calls: ToolsSkills, form: str) -> None:
    task = ToolsSkills(form, distractors=3)
    task.judge = calls.judge
    for problem in task.problems(Split.TEST, 2, 1):
        plan = Plan.from_data(problem.metadata["plan"])
        native = tuple(
            ToolCall(item["function"]["name"], item["function"]["arguments"], item["id"]) for item in openai_calls(plan)
        )
        right = task.score(problem, Completion("", tool_calls=native))
        assert isinstance(right, Score)
        assert right.value == 1.0
        assert task.score(problem, Completion("I called them.", tool_calls=native)).value == 1.0  # type: ignore[union-attr]
        for wrong in (native[:-1], (*native[:-1], ToolCall(native[-1].name, "{", "x")), (*native, native[0])):
            assert task.score(problem, Completion("", tool_calls=wrong)).value == 0.0  # type: ignore[union-attr]


def _towns(call: dict[str, Any]) -> list[str]:
    return [call["arguments"][name] for name in ("town", "other") if isinstance(call["arguments"].get(name), str)]
