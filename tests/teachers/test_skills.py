import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_server import Call, Reply, Server
from hypothesis import given
from hypothesis import strategies as st

from palaestra.core.errors import BudgetSpentError, SettingsError, TaskError
from palaestra.core.records import (
    Attempt,
    Completion,
    Failure,
    FailureCause,
    ImagePart,
    Message,
    Problem,
    Request,
    Score,
    Split,
    TextPart,
)
from palaestra.core.statistics import report_on
from palaestra.engines.budget import Budget
from palaestra.engines.cached import CachedEngine
from palaestra.engines.mock import MockEngine
from palaestra.engines.openai import OpenAIEngine
from palaestra.envs.lesson.state import StudentState, to_validation_attempt
from palaestra.runs.cache import Cache
from palaestra.runs.files import from_json, to_json
from palaestra.tasks.base import GenerativeTask, few_shot
from palaestra.tasks.math.task import MathSkills
from palaestra.teachers.base import Order, Written, make_teacher
from palaestra.teachers.skills import discovery as module
from palaestra.teachers.skills.discovery import Discovery
from palaestra.teachers.skills.overview import (
    agreement,
    compute_rand_index,
    contingency,
    mutual_information,
    overview,
    purity,
)
from palaestra.teachers.skills.records import Category, SkillGroup, SkillGroups, SkillMap, repair_categories
from palaestra.teachers.skills.task import Discovered, map_own_skills, original, relabel

SKILLS = {
    "sums": ("adding small numbers", "adding long numbers", "column addition"),
    "fractions": ("adding fractions", "comparing fractions"),
    "time": ("reading a clock", "counting days"),
}
HOME = {name: skill for skill, names in SKILLS.items() for name in names}
STAGES = {"Name the one": "name", "Sort them": "cluster", "further skills": "sort", "Which of": "assign"}
REFUSED = Failure(FailureCause.REFUSED, "no")
ModelReply = str | Failure


def make_problems(per_name: int = 2, start: int = 0) -> list[Problem]:
    """Make problems whose question contains the name for the model to reply, and whose id must stay hidden from it."""
    return [
        Problem(
            f"gold-{HOME[name]}/{k}/{place}",
            (Message("user", f"Question {k} about {name}?"),),
            f"secret {k}",
            HOME[name],
        )
        for k in range(start, start + per_name)
        for place, name in enumerate(HOME)
    ]


PROBLEMS = make_problems()


def list_names(text: str) -> list[str]:
    return re.findall(r"^- (.*)$", text.split("The skills:")[1].split("\n\nAnswer with")[0], re.MULTILINE)


def reply_name(text: str) -> ModelReply:
    result = re.search(r"Question \d+ about (.*)\?", text)
    return json.dumps({"skill": result[1] if result else "something"})


def reply_clusters(text: str) -> ModelReply:
    groups: dict[str, list[str]] = {}
    for name in list_names(text):
        groups.setdefault(HOME[name], []).append(name)
    return format_groups(groups)


def list_categories(text: str) -> list[str]:
    """List the categories that a prompt offers."""
    return re.findall(r"^- (\w+):", text, re.MULTILINE)


def choose_category(name: str, text: str) -> str:
    """Return the category of a name among those that the prompt offers."""
    return HOME[name] if HOME.get(name) in list_categories(text) else list_categories(text)[0]


def reply_sorted(text: str) -> ModelReply:
    groups: dict[str, list[str]] = {}
    for name in list_names(text):
        groups.setdefault(choose_category(name, text), []).append(name)
    return format_groups(groups)


def reply_category(text: str) -> ModelReply:
    result = re.search(r"Question \d+ about (.*)\?", text)
    return json.dumps({"category": choose_category(result[1] if result else "", text)})


def format_groups(groups: Mapping[str, Sequence[str]]) -> str:
    return json.dumps(
        {"categories": [{"name": n, "description": f"all {n}", "skills": list(m)} for n, m in groups.items()]}
    )


@dataclass
class Model:
    """A scripted model: its reply at each stage, as a function of the prompt."""

    name: Callable[[str], ModelReply] = reply_name
    cluster: Callable[[str], ModelReply] = reply_clusters
    sort: Callable[[str], ModelReply] = reply_sorted
    assign: Callable[[str], ModelReply] = reply_category
    calls: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = MockEngine(self.say, "scripted")

    def say(self, request: Request, index: int) -> ModelReply:
        # A question that is asked again stands at the end of a conversation that begins with it.
        text = request.messages[0].text
        stage = next(stage for start, stage in STAGES.items() if start in text)
        self.calls.append((stage, request.messages[-1].text))
        answer: ModelReply = getattr(self, stage)(text)
        return answer

    def count(self) -> dict[str, int]:
        return dict(Counter(stage for stage, _ in self.calls))


def reply_in_turn(*answers: ModelReply) -> Callable[[str], ModelReply]:
    """Reply with one answer after the other, then always with the last."""
    left = list(answers)
    return lambda text: left.pop(0) if len(left) > 1 else left[0]


def discover(model: Model, given: Sequence[Problem] = PROBLEMS, **options: Any) -> SkillMap:
    return Discovery(model.engine).discover(given, **options)


def is_whole(skill_map: SkillMap, given: Sequence[Problem] = PROBLEMS) -> bool:
    """Every problem is assigned to a category that exists, or unassigned; and categories share no name."""
    members = [name for category in skill_map.categories for name in category.members]
    return (
        {p.id for p in given} == set(skill_map.assignment) | set(skill_map.unassigned)
        and not set(skill_map.assignment) & set(skill_map.unassigned)
        and set(skill_map.assignment.values()) <= set(skill_map.skills())
        and len(skill_map.skills()) == len(skill_map.categories)
        and len(members) == len(set(members))
        and set(members) <= set(skill_map.names.values())
    )


# The three stages


def test_problems_are_named_clustered_and_assigned() -> None:
    model = Model()
    result = discover(model, categories=3)
    assert {name: set(parts) for name, parts in result.skills().items()} == {n: set(p) for n, p in SKILLS.items()}
    assert result.assignment == {problem.id: problem.skill for problem in PROBLEMS}
    assert result.categories[0].description.startswith("all ")
    assert (result.unnamed, result.unassigned, result.repairs, result.models) == ({}, {}, (), ("scripted",))
    assert model.count() == {"name": len(PROBLEMS), "cluster": 1}
    assert is_whole(result)
    assert from_json(SkillMap, to_json(result)) == result


def test_model_sees_questions_and_images_but_no_references() -> None:
    picture = Message("user", (TextPart("Question 9 about adding fractions?"), ImagePart("data:image/png;base64,AA")))
    shown = (Message("user", "shown before"), Message("assistant", "worked"), picture)
    model = Model()
    discovery = Discovery(model.engine)
    discovery.assign_more(
        discovery.discover([*PROBLEMS, Problem("gold-x", shown, "secret")]), make_problems(1, start=5)
    )
    answer = [message for request in model.engine.requests for message in request.messages]
    assert not [m for m in answer if re.search("secret|gold-|shown before|worked", m.text)]
    assert [m.content[1] for m in answer if not isinstance(m.content, str)] == [picture.content[1]]
    reported = Model()
    Discovery(reported.engine, show_references=True).discover(PROBLEMS)
    assert all("secret" in text for stage, text in reported.calls if stage == "name")


def test_names_that_differ_only_in_their_spelling_are_one() -> None:
    model = Model(
        name=reply_in_turn(
            *(json.dumps({"skill": s}) for s in ["Adding-fractions", "adding  fractions.", '"ADDING_FRACTIONS"'])
        )
    )
    result = discover(model, PROBLEMS[:3])
    assert set(result.names.values()) == {"Adding-fractions"}
    assert [category.members for category in result.categories] == [("Adding-fractions",)]
    assert "cluster" not in model.count()


@pytest.mark.parametrize("bad", ["no idea", '{"skill": " . "}', json.dumps({"skill": "x" * 200}), "", REFUSED])
def test_unnamed_problem_has_a_cause_and_is_assigned_by_asking(bad: ModelReply) -> None:
    model = Model(name=lambda text: bad if "Question 0 about reading a clock" in text else reply_name(text))
    result = discover(model)
    (unnamed,) = result.unnamed
    assert unnamed == "gold-time/0/5"
    assert result.unnamed[unnamed].cause is (FailureCause.REFUSED if bad is REFUSED else FailureCause.MALFORMED)
    assert result.assignment[unnamed] == "time"
    assert model.count()["assign"] == 1
    assert is_whole(result)


def test_unplaced_problem_is_unassigned_with_its_cause() -> None:
    hard = "Question 0 about reading a clock"
    for bad, cause in (('{"category": "algebra"}', FailureCause.MALFORMED), (REFUSED, FailureCause.REFUSED)):
        model = Model(
            name=lambda text: REFUSED if hard in text else reply_name(text),
            assign=lambda text, bad=bad: bad if hard in text else reply_category(text),  # type: ignore[misc]
        )
        result = discover(model)
        assert {id_: failure.cause for id_, failure in result.unassigned.items()} == {"gold-time/0/5": cause}
        assert is_whole(result)
        assert model.count()["assign"] == (3 if cause is FailureCause.MALFORMED else 1)


def test_a_category_may_be_said_in_another_spelling() -> None:
    model = Model(
        name=reply_in_turn(REFUSED, *(reply_name(p.messages[0].text) for p in PROBLEMS[1:])),
        assign=lambda text: '{"category": "Sums."}',
    )
    assert discover(model).assignment[PROBLEMS[0].id] == "sums"


# Clustering that goes wrong

GOOD = {skill: list(names) for skill, names in SKILLS.items()}


@pytest.mark.parametrize(
    ("groups", "wanted", "fault"),
    [
        ({**GOOD, "time": [*GOOD["time"], "algebra"]}, 0, "not in the list of skills: 'algebra'"),
        ({**GOOD, "time": [*GOOD["time"], "column addition"]}, 0, "in more than one place: 'column addition'"),
        ({**GOOD, "time": ["counting days"]}, 0, "in no category: 'reading a clock'"),
        ({**GOOD, "nothing": []}, 0, "hold no skill of the list: 'nothing'"),
        ({**GOOD, "Sums ": []}, 0, "more than once: 'sums'"),
        ({**GOOD, " ": ["reading a clock"]}, 0, "a name is empty"),
        (GOOD, 4, "exactly 4 categories that hold skills of the list; got 3"),
        (GOOD, 2, "exactly 2 categories that hold skills of the list; got 3"),
    ],
)
def test_category_faults_are_prompted_repaired_and_reported(
    groups: dict[str, list[str]], wanted: int, fault: str
) -> None:
    model = Model(cluster=lambda text: format_groups(groups))
    result = discover(model, categories=wanted)
    assert model.count()["cluster"] == 3
    answers = [text for stage, text in model.calls if stage == "cluster" and "cannot be used" in text]
    assert len(answers) == 2
    assert all(fault in text for text in answers)
    assert any(fault in repair for repair in result.repairs)
    assert is_whole(result)
    assert not result.unassigned
    assert len(result.categories) == (wanted or 3)
    assert discover(Model(cluster=lambda text: format_groups(groups)), categories=wanted) == result


def test_a_model_that_mends_its_answer_is_not_repaired() -> None:
    model = Model(cluster=reply_in_turn(format_groups({"sums": GOOD["sums"]}), "sorry", format_groups(GOOD)))
    result = discover(model)
    assert result.repairs == ()
    assert model.count() == {"name": len(PROBLEMS), "cluster": 3}


def test_best_of_bad_answers_counts_if_the_last_is_unreadable() -> None:
    some = format_groups({**GOOD, "time": ["counting days"]})
    result = discover(Model(cluster=reply_in_turn(format_groups({"sums": GOOD["sums"]}), some, "sorry")))
    assert set(result.skills()) == set(SKILLS)
    assert result.repairs == ("in no category: 'reading a clock' (sorted by a further question)",)
    assert result.assignment == {problem.id: problem.skill for problem in PROBLEMS}


def test_engine_failure_during_repair_leaves_stage_open() -> None:
    down = Failure(FailureCause.UNAVAILABLE, "down")
    half = discover(
        Model(cluster=reply_in_turn(format_groups({"sums": GOOD["sums"]}), down)),
        keep=lambda at, _: at == "names" or pytest.fail(at),
    )
    assert half.categories == ()
    assert {failure.cause for failure in half.unassigned.values()} == {FailureCause.UNAVAILABLE}
    assert discover(Model(), known=half).repairs == ()


def test_names_are_never_guessed_into_a_category() -> None:
    """Those that the model leaves out of everything are asked about problem by problem, and may be left out there too."""
    partly = {"sums": GOOD["sums"], "fractions": GOOD["fractions"]}
    model = Model(
        cluster=lambda text: format_groups(partly),
        sort=lambda text: format_groups({"sums": ["counting days"]}),
        assign=lambda text: '{"category": "fractions"}' if "Question 0" in text else REFUSED,
    )
    result = discover(model)
    assert model.count() == {"name": len(PROBLEMS), "cluster": 3, "sort": 3, "assign": 2}
    assert result.skills() == {"sums": (*SKILLS["sums"], "counting days"), "fractions": SKILLS["fractions"]}
    assert result.skill("gold-time/0/5") == "fractions"
    assert result.subskill("gold-time/0/5") == ""
    assert result.unassigned == {"gold-time/1/5": REFUSED}
    assert result.repairs[1] == "in no category: 'reading a clock' (their problems are asked about one by one)"


@pytest.mark.parametrize("bad", ["I will not", '{"categories": []}', '{"categories": 3}', REFUSED])
def test_without_categories_there_is_no_discovered_task(bad: ModelReply) -> None:
    result = discover(Model(cluster=lambda text: bad))
    assert result.categories == ()
    assert set(result.names) == set(result.unassigned) == {p.id for p in PROBLEMS}
    assert all("there are no categories" in failure.message for failure in result.unassigned.values())
    with pytest.raises(TaskError, match=r"'math-skills': .*no categories"):
        Discovered(MathSkills(), result)
    again = Model()
    assert discover(again, known=result).assignment == {problem.id: problem.skill for problem in PROBLEMS}
    assert again.count() == {"cluster": 1}


def test_where_nothing_can_be_named_nothing_is_clustered() -> None:
    model = Model(name=lambda text: REFUSED)
    result = discover(model)
    assert set(result.unassigned.values()) == {REFUSED}
    assert model.count() == {"name": len(PROBLEMS)}


def test_more_categories_than_names_make_one_of_each_name() -> None:
    model = Model()
    result = discover(model, categories=50)
    assert set(result.skills()) == set(HOME)
    assert result.repairs == ("expected 50 categories; got 7 different names (each is one)",)
    assert model.count() == {"name": len(PROBLEMS)}


def test_names_beyond_one_reply_join_the_first_categories(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_NAMES_A_CALL", 4)
    model = Model()
    result = Discovery(model.engine).discover([*PROBLEMS, *[p for p in make_problems(2, 5) if p.skill == "time"]])
    asked = [list_names(text) for stage, text in model.calls if stage in ("cluster", "sort")]
    assert [len(several) for several in asked] == [4, 3]
    assert {"reading a clock", "counting days"} <= set(asked[0])  # the commonest come first
    assert set(result.skills()) == {HOME[name] for name in asked[0]}
    assert {name for parts in result.skills().values() for name in parts} == set(HOME)
    assert model.count().get("assign") is None


def test_unsorted_part_is_reported_and_asked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NAMES_A_CALL", 6)
    model = Model(sort=lambda text: REFUSED)
    result = Discovery(model.engine).discover(PROBLEMS)
    (sorted_later,) = result.repairs
    assert re.fullmatch(r"not sorted \(no\): '[\w ]+' \(their problems are asked about one by one\)", sorted_later)
    assert model.count()["assign"] == 2
    assert result.assignment == {problem.id: problem.skill for problem in PROBLEMS}


names_ = st.sampled_from(["a", "b", "c", "d", "B ", "unknown", ""])


@given(
    st.lists(st.tuples(st.sampled_from(["x", "y", "X", "a", " "]), st.lists(names_, max_size=6)), max_size=5),
    st.integers(0, 4),
)
def test_repaired_categories_are_valid_for_any_reply(groups: list[tuple[str, list[str]]], wanted: int) -> None:
    names = {"a": 3, "b": 1, "c": 1, "d": 2}
    built, repairs = repair_categories(
        SkillGroups(categories=[SkillGroup(name=n, skills=m) for n, m in groups]), names, wanted
    )
    members = [name for category in built for name in category.members]
    assert len(members) == len(set(members))
    assert set(members) <= set(names)
    assert all(category.members for category in built)
    assert len({category.name.casefold() for category in built}) == len(built)
    assert repairs or (set(members) == set(names) and len(built) == (wanted or len(built)))
    if not wanted or len(built) == wanted:
        again = SkillGroups(categories=[SkillGroup(name=c.name, skills=list(c.members)) for c in built])
        assert repair_categories(again, {name: names[name] for name in members}, wanted)[1] == []


# Resuming


class Killed(Exception):
    pass


@pytest.mark.parametrize("stage", ["names", "categories", "assignment"])
def test_killed_run_resumes_after_any_stage_without_new_calls(stage: str) -> None:
    hard = "Question 1 about counting days"  # One has no name, so that every stage has something to ask.
    stored: dict[str, str] = {}

    def keep(at: str, result: SkillMap) -> None:
        stored[at] = to_json(result)
        if at == stage:
            raise Killed

    model = Model(name=lambda text: REFUSED if hard in text else reply_name(text))
    whole = discover(Model(name=model.name))
    with pytest.raises(Killed):
        discover(model, keep=keep)
    assert list(stored)[-1] == stage
    resumed = discover(model, known=from_json(SkillMap, stored[stage]))
    assert resumed == whole
    assert model.count() == {"name": len(PROBLEMS), "cluster": 1, "assign": 1}
    assert discover(model, known=resumed, keep=lambda *_: pytest.fail("nothing is new")) == whole
    assert model.count() == {"name": len(PROBLEMS), "cluster": 1, "assign": 1}


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with Cache(tmp_path / "calls.sqlite") as built:
        yield built


def reply(call: Call, before: int) -> Reply:
    text = Model().say(Request(tuple(Message(m["role"], m["content"]) for m in call.body["messages"])), 0)
    return Reply(text if isinstance(text, str) else "no")


def test_a_budget_that_is_spent_inside_a_stage_loses_nothing(cache: Cache) -> None:
    """With a server, and a cache that knows single answers."""
    with Server(reply) as server:

        def engine(calls: int | None) -> CachedEngine:
            return CachedEngine(
                OpenAIEngine(server.model, in_flight=3), cache, budget=Budget(max_calls=calls), owner="run"
            )

        with pytest.raises(BudgetSpentError):
            Discovery(engine(5)).discover(PROBLEMS)
        result = Discovery(engine(None)).discover(PROBLEMS)
        assert result.assignment == {problem.id: problem.skill for problem in PROBLEMS}
        assert len(server.calls) == len(PROBLEMS) + 1
        assert set(server.times.values()) == {1}
        assert Discovery(engine(0)).discover(PROBLEMS) == result


def test_a_service_is_held_to_the_categories_by_an_enumeration(cache: Cache) -> None:
    with Server(reply) as server:
        discovery = Discovery(OpenAIEngine(server.model))
        result = discovery.assign_more(discovery.discover(PROBLEMS), make_problems(1, start=7))
        shapes = [c.body["response_format"]["json_schema"] for c in server.calls if c.asked.startswith("Which of")]
        assert len(shapes) == len(HOME)
        assert all(set(s["schema"]["properties"]["category"]["enum"]) == set(result.skills()) for s in shapes)
        assert all(shape["strict"] for shape in shapes)


def test_only_transient_failures_are_retried() -> None:
    down = Failure(FailureCause.UNAVAILABLE, "down")
    first, second = "Question 0 about reading a clock", "Question 0 about counting days"
    broken = Model(
        name=lambda text: down if first in text else REFUSED if second in text else reply_name(text),
        assign=lambda text: down,
    )
    stored: list[SkillMap] = []
    half = discover(broken, keep=lambda at, result: stored.append(result))
    assert set(half.unassigned.values()) == {down}
    back = Model()
    assert discover(back, known=half).unassigned == {}
    assert back.count() == {"assign": 2}
    early = Model()
    discover(early, known=stored[0])
    assert early.count() == {"name": 1, "cluster": 1, "assign": 1}


# More problems, other categories


def test_unseen_problems_are_assigned_to_known_categories() -> None:
    model, new = Model(), make_problems(1, start=9)
    discovery = Discovery(model.engine)
    before = discovery.discover(PROBLEMS)
    asked = len(model.calls)
    result = discovery.assign_more(before, [*PROBLEMS, *new, *new])
    assert [stage for stage, _ in model.calls[asked:]] == ["assign"] * len(new)
    assert {p.id: result.skill(p.id) for p in new} == {p.id: p.skill for p in new}
    assert (result.categories, result.names) == (before.categories, before.names)
    assert before.missing(new) == new
    assert result.missing(new) == []
    assert discovery.assign_more(result, new) == result
    with pytest.raises(SettingsError):
        discovery.assign_more(SkillMap(), new)


def test_later_problems_are_named_before_clustering() -> None:
    stored: dict[str, SkillMap] = {}
    discover(Model(), PROBLEMS[:5], keep=lambda at, result: stored.update({at: result}))
    model = Model()
    result = discover(model, PROBLEMS, known=stored["names"])
    assert model.count() == {"name": len(PROBLEMS) - 5, "cluster": 1}
    assert result.assignment == {problem.id: problem.skill for problem in PROBLEMS}


def test_clustering_again_to_another_number_names_nothing() -> None:
    two = {"numbers": [*SKILLS["sums"], *SKILLS["fractions"]], "time": SKILLS["time"]}
    model, new = Model(), make_problems(1, start=9)[-2:]
    discovery = Discovery(model.engine)
    before = discovery.assign_more(discovery.discover(PROBLEMS, categories=3), new)
    model.calls.clear()
    model.cluster = lambda text: format_groups(two)
    kept: list[str] = []
    result = discovery.recluster(before, [*PROBLEMS, *new], categories=2, keep=lambda at, _: kept.append(at))
    assert set(result.skills()) == set(two)
    assert result.wanted == 2
    assert model.count() == {"cluster": 1, "assign": len(new)}
    assert kept == ["categories", "assignment"]
    assert is_whole(result, [*PROBLEMS, *new])
    assert discovery.discover([*PROBLEMS, *new], categories=2, known=before) == result  # the same by another way
    with pytest.raises(SettingsError, match="no names"):
        discovery.recluster(SkillMap(), PROBLEMS, categories=2)


# Gold skills and agreement


def make_map(labels: Mapping[str, str] | None = None) -> SkillMap:
    result = labels if labels is not None else {"p": "a"}
    return SkillMap({"p": "n"}, tuple(Category(name) for name in sorted(set(result.values()))), result)


def test_gold_skills_are_the_tasks_own_and_ask_nobody() -> None:
    task = MathSkills()
    own = task.problems(Split.VALIDATION, 2, 0)
    gold = map_own_skills(task, [*own, Problem("odd", (), "")])
    assert gold.skills() == task.skills()
    assert gold.assignment == {problem.id: problem.skill for problem in own}
    assert list(gold.unassigned) == ["odd"]
    assert all(gold.subskill(problem.id) == problem.subskill for problem in own)
    assert map_own_skills(task, relabel(own, make_map())).assignment == gold.assignment
    single = type("Single", (), {"name": "single", "skills": lambda self: {"functions": ()}})()
    with pytest.raises(TaskError, match="no skills"):
        map_own_skills(single, own)


def test_agreement_counts_what_it_compared_and_what_it_left_out() -> None:
    gold = make_map({"1": "a", "2": "a", "3": "b", "4": "b", "5": "b"})
    result = replace(make_map({"1": "x", "2": "x", "3": "y", "4": "z", "9": "z"}), unassigned={"5": REFUSED})
    same = agreement(gold, gold)
    assert (same.adjusted_rand, same.mutual_information, same.purity) == (1.0, 1.0, 1.0)
    some = agreement(result, gold)
    assert (some.problems, some.left_out, some.categories, some.gold) == (4, 2, 3, 2)
    assert some.adjusted_rand == pytest.approx(4 / 7)
    assert some.purity == 1.0
    assert some.mutual_information == pytest.approx(0.8)  # entropies log 2 and 1.5 log 2, of which log 2 is shared
    nothing = agreement(SkillMap(), gold)
    assert (nothing.adjusted_rand, nothing.purity, nothing.problems, nothing.left_out) == (None, None, 0, 5)


def test_agreement_has_the_known_values_of_the_literature() -> None:
    # The example of Hubert and Arabie's index in Yeung and Ruzzo (2001): 0.313.
    item, other = "aab" + "bbbb" + "ccc", "xyz"
    cells = np.array([[1, 1, 0], [1, 2, 1], [0, 0, 4]])
    assert compute_rand_index(cells) == pytest.approx(0.313, abs=5e-4)
    # Manning, Raghavan and Schuetze, Introduction to Information Retrieval, figure 16.4: 0.71 and 0.36 (by the mean).
    book = np.array([[5, 1, 0], [1, 4, 1], [2, 0, 3]])
    assert purity(book) == pytest.approx(0.71, abs=5e-3)
    assert mutual_information(book) == pytest.approx(0.36, abs=5e-3)
    assert compute_rand_index(contingency(item, item)) == 1.0
    assert compute_rand_index(contingency("aaa", other)) == 0.0
    assert mutual_information(contingency("aaa", other)) == 0.0
    assert purity(contingency("aaa", other)) == pytest.approx(1 / 3)


labels = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("wxyz")), min_size=1, max_size=40)


@given(labels, st.randoms(use_true_random=False))
def test_agreement_is_invariant_and_one_for_equal_partitions(pairs: list[tuple[str, str]], chance: Any) -> None:
    def compute_scores(several: Sequence[tuple[str, str]]) -> list[float]:
        cells = contingency(*zip(*several, strict=True))
        return [compute_rand_index(cells), mutual_information(cells), purity(cells)]

    shuffled = chance.sample(pairs, len(pairs))
    renamed = dict(zip("abcd", chance.sample(["4", "3", "2", "1"], 4), strict=True))
    expected = compute_scores(pairs)
    assert compute_scores([(renamed[a], b) for a, b in shuffled]) == pytest.approx(expected)
    assert compute_scores([(b, a) for a, b in pairs])[:2] == pytest.approx(expected[:2])  # purity is not symmetric
    assert compute_scores([(a, renamed[a]) for a, _ in pairs]) == pytest.approx([1.0, 1.0, 1.0])
    assert -1.0 <= expected[0] <= 1.0
    assert 0.0 <= expected[1] <= 1.0
    assert 0.0 < expected[2] <= 1.0


def test_adjusted_agreement_of_random_partitions_is_near_zero() -> None:
    generator = np.random.default_rng(0)
    tables = [
        contingency([*map(str, generator.integers(5, size=60))], [*map(str, generator.integers(4, size=60))])
        for _ in range(200)
    ]
    assert abs(float(np.mean([compute_rand_index(cells) for cells in tables]))) < 0.01
    assert float(np.mean([mutual_information(cells) for cells in tables])) > 0.03


def test_retries_are_counted_by_stage_and_kept() -> None:
    half = {"sums": [name for name in HOME if name != "counting days"]}
    model = Model(
        name=reply_in_turn(
            "no idea", *(text for p in PROBLEMS if isinstance(text := reply_name(p.messages[0].text), str))
        ),
        cluster=reply_in_turn(
            format_groups(half), reply_clusters("The skills:\n" + "".join(f"- {name}\n" for name in HOME))
        ),
        assign=reply_in_turn("none of them", '{"category": "time"}'),
    )
    # The first answer is none, so that every problem has the name of the one before it; only the counts matter here.
    stored: dict[str, SkillMap] = {}
    discovery = Discovery(model.engine)
    result = discovery.discover(PROBLEMS, keep=lambda at, kept: stored.update({at: kept}))
    assert (stored["names"].reasked, result.reasked) == ({"names": 1}, {"names": 1, "categories": 1})
    more = discovery.assign_more(result, make_problems(1, start=9)[:1])
    assert more.reasked == {"names": 1, "categories": 1, "assignment": 1}
    assert discovery.recluster(more, PROBLEMS, categories=3).reasked == {"names": 1}
    assert discover(Model(), known=stored["names"]).reasked == {"names": 1}


def test_overview_separates_clustered_from_assigned_problems() -> None:
    hard, new = "Question 0 about reading a clock", make_problems(1, start=9)
    model = Model(name=lambda text: REFUSED if hard in text else reply_name(text))
    discovery, stages = Discovery(model.engine), {}
    result = discovery.discover(PROBLEMS, categories=3, keep=lambda at, kept: stages.update({at: kept}))
    assert overview({}) is None
    early = overview({"names": stages["names"]})
    assert early is not None
    assert (early.stage, early.rows, early.problems, early.test, early.agreement) == ("names", (), 14, 0, None)
    refused = replace(discovery.assign_more(result, new), assignment={**result.assignment, new[0].id: "time"},
                      unassigned={p.id: REFUSED for p in new[1:]})  # fmt: skip
    gold = SkillMap(assignment={p.id: p.skill for p in (*PROBLEMS, *new)})
    whole = overview({**stages, "test": refused, "own": gold})
    assert whole is not None
    assert (whole.problems, whole.test, whole.names) == (14, 7, 7)
    assert (whole.unnamed, whole.unassigned) == ({"refused": 1}, {"refused": 6})
    rows = {row.name: row for row in whole.rows}
    assert {name: (row.problems, row.test) for name, row in rows.items()} == {
        "sums": (6, 0),
        "fractions": (4, 0),
        "time": (4, 1),
    }
    assert rows["time"].names == {"counting days": 2, "reading a clock": 1}
    assert rows["time"].gold == {"time": 4}
    assert whole.agreement is not None
    assert (whole.agreement.adjusted_rand, whole.agreement.problems, whole.agreement.left_out) == (1.0, 14, 0)
    assert whole.agreement_test is None  # One problem has one skill: it divides nothing.
    plain = whole.plain()
    assert json.loads(json.dumps(plain)) == plain
    # Where the task's own skills do not divide the problems, there is nothing to agree with.
    single = overview({**stages, "own": SkillMap(assignment={p.id: "all" for p in PROBLEMS})})
    assert single is not None
    assert single.agreement is None


# How teachers use it


def make_discovered_task() -> tuple[MathSkills, SkillMap, list[Problem]]:
    """Make a task, a map of its problems to two discovered skills, and the problems. The last one is unassigned."""
    task = MathSkills()
    own = task.problems(Split.VALIDATION, 2, 0)
    home = {p.id: "numbers" if k % 2 else "words" for k, p in enumerate(own[:-1])}
    names = {p.id: f"{home[p.id]} {k % 4 // 2}" for k, p in enumerate(own[:-1])}
    members = {
        skill: tuple(sorted({names[i] for i, s in home.items() if s == skill})) for skill in ("numbers", "words")
    }
    categories = tuple(Category(skill, "", parts) for skill, parts in members.items())
    return task, SkillMap(names, categories, home, unassigned={own[-1].id: REFUSED}), own


def test_relabelled_problems_lead_back_to_the_originals() -> None:
    _, result, own = make_discovered_task()
    built = relabel(own, result)
    assert [(p.skill, p.subskill) for p in built[:-1]] == [
        (result.assignment[p.id], result.names[p.id]) for p in own[:-1]
    ]
    assert (built[-1].skill, built[-1].subskill) == ("", "")
    assert [original(problem) for problem in built] == own
    assert relabel(built, result) == built
    assert from_json(Problem, to_json(built[0])) == built[0]


def test_discovered_task_has_the_same_problems_and_scores() -> None:
    task, result, own = make_discovered_task()
    other = Discovered(task, result)
    built = other.problems(Split.VALIDATION, 2, 0)
    assert [problem.id for problem in built] == [problem.id for problem in own]
    assert set(other.skills()) == {"numbers", "words"}
    assert {p.skill for p in other.problems(Split.VALIDATION, 2, 0, ["words"])} == {"words"}
    assert all(
        other.score(p, Completion(f"Answer: {p.reference}"))
        == Score(1.0, {"extracted": p.reference, "expected": p.reference})
        for p in built[:3]
    )
    assert (other.name, other.max_tokens, other.is_procedural) == (task.name, task.max_tokens, True)
    assert not isinstance(other, GenerativeTask)
    with pytest.raises(TaskError, match=r"36 of 36 test problems .*assign_more"):
        other.problems(Split.TEST, 2, 0)
    assert {problem.skill for problem in other.problems(Split.TRAIN, 1, 0)} == {""}
    with pytest.raises(TaskError, match="'words'"):
        other.problems(Split.TRAIN, 1, 0, ["words"])


def test_discovered_task_of_some_skills_has_all_train_problems() -> None:
    task, result, own = make_discovered_task()
    some = Discovered(task, result, ["addition", "clock"])
    built = some.problems(Split.VALIDATION, 2, 0)
    assert [p.id for p in built] == [p.id for p in own if p.skill in ("addition", "clock")]
    assert len(some.problems(Split.TRAIN, 1, 0)) == len(task.skills())


def test_worked_problems_can_be_shown_below_discovered_skills() -> None:
    task, result, own = make_discovered_task()
    built = Discovered(few_shot(task, 2), result).problems(Split.VALIDATION, 2, 0)
    assert [len(problem.messages) for problem in built] == [5] * len(own)
    assert built[0].skill == result.assignment[own[0].id]


class RecordingWriter:
    """A writer that writes nothing and records its orders."""

    def __init__(self) -> None:
        self.orders: list[Order] = []

    def write(self, orders: Sequence[Order], generator: np.random.Generator) -> list[Written]:
        self.orders += orders
        return [Written(()) for _ in orders]


@pytest.mark.parametrize("teacher", ["no_state", "open_ended", "skill_list", "skill_tree"])
def test_every_teacher_plans_discovered_skills_with_a_writer(teacher: str) -> None:
    task, result, _ = make_discovered_task()
    other, notes = Discovered(task, result), RecordingWriter()
    wrong = [Attempt(problem, Completion("?"), Score(0.0)) for problem in other.problems(Split.VALIDATION, 2, 0)]
    report = report_on(wrong, "validation")
    observed = StudentState(0, report, tuple(to_validation_attempt(a, False) for a in wrong), 0, 100, report)
    make_teacher(teacher, other, writer=notes).write(observed, 20, np.random.default_rng(0))
    assert {order.skill for order in notes.orders} - {""} == {"numbers", "words"}
    assert sum(order.count for order in notes.orders) == 20
    assert {order.subskill for order in notes.orders} <= {"", *(n for parts in other.skills().values() for n in parts)}
    with pytest.raises(SettingsError, match="language model"):
        make_teacher(teacher, other)
