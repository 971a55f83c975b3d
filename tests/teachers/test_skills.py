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
    Score,
    Split,
    TextPart,
)
from palaestra.core.statistics import report_on
from palaestra.engines.base import Request
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
Said = str | Failure


def problems(per_name: int = 2, start: int = 0) -> list[Problem]:
    """Problems whose question holds the name that our model gives them, and whose id holds what it must not see."""
    return [
        Problem(f"gold-{HOME[name]}/{k}/{place}", (Message("user", f"Question {k} about {name}?"),), f"secret {k}", HOME[name])
        for k in range(start, start + per_name)
        for place, name in enumerate(HOME)
    ]  # fmt: skip


PROBLEMS = problems()


def asked_names(text: str) -> list[str]:
    return re.findall(r"^- (.*)$", text.split("The skills:")[1].split("\n\nAnswer with")[0], re.MULTILINE)


def named(text: str) -> Said:
    found = re.search(r"Question \d+ about (.*)\?", text)
    return json.dumps({"skill": found[1] if found else "something"})


def clustered(text: str) -> Said:
    groups: dict[str, list[str]] = {}
    for name in asked_names(text):
        groups.setdefault(HOME[name], []).append(name)
    return groups_json(groups)


def listed(text: str) -> list[str]:
    """The categories that a question offers."""
    return re.findall(r"^- (\w+):", text, re.MULTILINE)


def best(name: str, text: str) -> str:
    """The category of a name among those that are offered."""
    return HOME[name] if HOME.get(name) in listed(text) else listed(text)[0]


def sorted_in(text: str) -> Said:
    groups: dict[str, list[str]] = {}
    for name in asked_names(text):
        groups.setdefault(best(name, text), []).append(name)
    return groups_json(groups)


def assigned(text: str) -> Said:
    found = re.search(r"Question \d+ about (.*)\?", text)
    return json.dumps({"category": best(found[1] if found else "", text)})


def groups_json(groups: Mapping[str, Sequence[str]]) -> str:
    return json.dumps(
        {"categories": [{"name": n, "description": f"all {n}", "skills": list(m)} for n, m in groups.items()]}
    )


@dataclass
class Model:
    """A scripted model: what it says at each stage, by the text of the question and how often it was asked it before."""

    name: Callable[[str], Said] = named
    cluster: Callable[[str], Said] = clustered
    sort: Callable[[str], Said] = sorted_in
    assign: Callable[[str], Said] = assigned
    calls: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = MockEngine(self.say, "scripted")

    def say(self, request: Request, index: int) -> Said:
        # A question that is asked again stands at the end of a conversation that begins with it.
        text = request.messages[0].text
        stage = next(stage for start, stage in STAGES.items() if start in text)
        self.calls.append((stage, request.messages[-1].text))
        said: Said = getattr(self, stage)(text)
        return said

    def count(self) -> dict[str, int]:
        return dict(Counter(stage for stage, _ in self.calls))


def in_turn(*answers: Said) -> Callable[[str], Said]:
    """Says one after the other, and the last one for ever."""
    left = list(answers)
    return lambda text: left.pop(0) if len(left) > 1 else left[0]


def discover(model: Model, given: Sequence[Problem] = PROBLEMS, **options: Any) -> SkillMap:
    return Discovery(model.engine).discover(given, **options)


def is_whole(found: SkillMap, given: Sequence[Problem] = PROBLEMS) -> bool:
    """Every problem is assigned to a category that exists, or unassigned; and categories share no name."""
    members = [name for category in found.categories for name in category.members]
    return (
        {p.id for p in given} == set(found.assignment) | set(found.unassigned)
        and not set(found.assignment) & set(found.unassigned)
        and set(found.assignment.values()) <= set(found.skills())
        and len(found.skills()) == len(found.categories)
        and len(members) == len(set(members))
        and set(members) <= set(found.names.values())
    )


# The three stages


def test_problems_are_named_clustered_and_assigned_by_their_names() -> None:
    model = Model()
    found = discover(model, categories=3)
    assert {name: set(parts) for name, parts in found.skills().items()} == {n: set(p) for n, p in SKILLS.items()}
    assert found.assignment == {problem.id: problem.skill for problem in PROBLEMS}
    assert found.categories[0].description.startswith("all ")
    assert (found.unnamed, found.unassigned, found.repairs, found.models) == ({}, {}, (), ("scripted",))
    assert model.count() == {"name": len(PROBLEMS), "cluster": 1}
    assert is_whole(found)
    assert from_json(SkillMap, to_json(found)) == found


def test_the_model_sees_questions_and_images_and_neither_references_nor_ids_nor_worked_problems() -> None:
    picture = Message("user", (TextPart("Question 9 about adding fractions?"), ImagePart("data:image/png;base64,AA")))
    shown = (Message("user", "shown before"), Message("assistant", "worked"), picture)
    model = Model()
    discovery = Discovery(model.engine)
    discovery.assign_more(discovery.discover([*PROBLEMS, Problem("gold-x", shown, "secret")]), problems(1, start=5))
    said = [message for request in model.engine.requests for message in request.messages]
    assert not [m for m in said if re.search("secret|gold-|shown before|worked", m.text)]
    assert [m.content[1] for m in said if not isinstance(m.content, str)] == [picture.content[1]]
    told = Model()
    Discovery(told.engine, show_references=True).discover(PROBLEMS)
    assert all("secret" in text for stage, text in told.calls if stage == "name")


def test_names_that_differ_only_in_their_spelling_are_one() -> None:
    model = Model(
        name=in_turn(
            *(json.dumps({"skill": s}) for s in ["Adding-fractions", "adding  fractions.", '"ADDING_FRACTIONS"'])
        )
    )
    found = discover(model, PROBLEMS[:3])
    assert set(found.names.values()) == {"Adding-fractions"}
    assert [category.members for category in found.categories] == [("Adding-fractions",)]
    assert "cluster" not in model.count()


@pytest.mark.parametrize("bad", ["no idea", '{"skill": " . "}', json.dumps({"skill": "x" * 200}), "", REFUSED])
def test_a_problem_that_cannot_be_named_has_a_cause_and_is_assigned_by_asking(bad: Said) -> None:
    model = Model(name=lambda text: bad if "Question 0 about reading a clock" in text else named(text))
    found = discover(model)
    (unnamed,) = found.unnamed
    assert unnamed == "gold-time/0/5"
    assert found.unnamed[unnamed].cause is (FailureCause.REFUSED if bad is REFUSED else FailureCause.MALFORMED)
    assert found.assignment[unnamed] == "time"
    assert model.count()["assign"] == 1
    assert is_whole(found)


def test_what_no_stage_can_place_is_unassigned_with_its_cause_and_never_in_a_category() -> None:
    hard = "Question 0 about reading a clock"
    for bad, cause in (('{"category": "algebra"}', FailureCause.MALFORMED), (REFUSED, FailureCause.REFUSED)):
        model = Model(
            name=lambda text: REFUSED if hard in text else named(text),
            assign=lambda text, bad=bad: bad if hard in text else assigned(text),  # type: ignore[misc]
        )
        found = discover(model)
        assert {id_: failure.cause for id_, failure in found.unassigned.items()} == {"gold-time/0/5": cause}
        assert is_whole(found)
        assert model.count()["assign"] == (3 if cause is FailureCause.MALFORMED else 1)


def test_a_category_may_be_said_in_another_spelling() -> None:
    model = Model(
        name=in_turn(REFUSED, *(named(p.messages[0].text) for p in PROBLEMS[1:])),
        assign=lambda text: '{"category": "Sums."}',
    )
    assert discover(model).assignment[PROBLEMS[0].id] == "sums"


# Clustering that goes wrong

GOOD = {skill: list(names) for skill, names in SKILLS.items()}


@pytest.mark.parametrize(
    ("groups", "wanted", "told"),
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
def test_what_is_wrong_with_categories_is_told_and_then_repaired_and_reported(
    groups: dict[str, list[str]], wanted: int, told: str
) -> None:
    model = Model(cluster=lambda text: groups_json(groups))
    found = discover(model, categories=wanted)
    assert model.count()["cluster"] == 3
    answers = [text for stage, text in model.calls if stage == "cluster" and "cannot be used" in text]
    assert len(answers) == 2
    assert all(told in text for text in answers)
    assert any(told in repair for repair in found.repairs)
    assert is_whole(found)
    assert not found.unassigned
    assert len(found.categories) == (wanted or 3)
    assert discover(Model(cluster=lambda text: groups_json(groups)), categories=wanted) == found


def test_a_model_that_mends_its_answer_is_not_repaired() -> None:
    model = Model(cluster=in_turn(groups_json({"sums": GOOD["sums"]}), "sorry", groups_json(GOOD)))
    found = discover(model)
    assert found.repairs == ()
    assert model.count() == {"name": len(PROBLEMS), "cluster": 3}


def test_the_best_of_bad_answers_counts_even_where_the_last_is_none_at_all() -> None:
    some = groups_json({**GOOD, "time": ["counting days"]})
    found = discover(Model(cluster=in_turn(groups_json({"sums": GOOD["sums"]}), some, "sorry")))
    assert set(found.skills()) == set(SKILLS)
    assert found.repairs == ("in no category: 'reading a clock' (sorted by a further question)",)
    assert found.assignment == {problem.id: problem.skill for problem in PROBLEMS}


def test_a_service_that_breaks_while_an_answer_is_mended_leaves_the_stage_to_be_done_again() -> None:
    down = Failure(FailureCause.UNAVAILABLE, "down")
    half = discover(
        Model(cluster=in_turn(groups_json({"sums": GOOD["sums"]}), down)),
        keep=lambda at, _: at == "names" or pytest.fail(at),
    )
    assert half.categories == ()
    assert {failure.cause for failure in half.unassigned.values()} == {FailureCause.UNAVAILABLE}
    assert discover(Model(), known=half).repairs == ()


def test_names_are_never_guessed_into_a_category() -> None:
    """Those that the model leaves out of everything are asked about problem by problem, and may be left out there too."""
    partly = {"sums": GOOD["sums"], "fractions": GOOD["fractions"]}
    model = Model(
        cluster=lambda text: groups_json(partly),
        sort=lambda text: groups_json({"sums": ["counting days"]}),
        assign=lambda text: '{"category": "fractions"}' if "Question 0" in text else REFUSED,
    )
    found = discover(model)
    assert model.count() == {"name": len(PROBLEMS), "cluster": 3, "sort": 3, "assign": 2}
    assert found.skills() == {"sums": (*SKILLS["sums"], "counting days"), "fractions": SKILLS["fractions"]}
    assert found.skill("gold-time/0/5") == "fractions"
    assert found.subskill("gold-time/0/5") == ""
    assert found.unassigned == {"gold-time/1/5": REFUSED}
    assert found.repairs[1] == "in no category: 'reading a clock' (their problems are asked about one by one)"


@pytest.mark.parametrize("bad", ["I will not", '{"categories": []}', '{"categories": 3}', REFUSED])
def test_without_categories_every_problem_says_why_and_a_discovered_task_cannot_be_made(bad: Said) -> None:
    found = discover(Model(cluster=lambda text: bad))
    assert found.categories == ()
    assert set(found.names) == set(found.unassigned) == {p.id for p in PROBLEMS}
    assert all("there are no categories" in failure.message for failure in found.unassigned.values())
    with pytest.raises(TaskError, match="no discovered skills for task 'math-skills': there are no categories"):
        Discovered(MathSkills(), found)
    again = Model()
    assert discover(again, known=found).assignment == {problem.id: problem.skill for problem in PROBLEMS}
    assert again.count() == {"cluster": 1}


def test_where_nothing_can_be_named_nothing_is_clustered() -> None:
    model = Model(name=lambda text: REFUSED)
    found = discover(model)
    assert set(found.unassigned.values()) == {REFUSED}
    assert model.count() == {"name": len(PROBLEMS)}


def test_more_categories_than_names_make_each_name_one_and_say_so() -> None:
    model = Model()
    found = discover(model, categories=50)
    assert set(found.skills()) == set(HOME)
    assert found.repairs == ("expected 50 categories; got 7 different names (each is one)",)
    assert model.count() == {"name": len(PROBLEMS)}


def test_more_names_than_one_answer_holds_are_sorted_into_the_categories_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "NAMES_A_CALL", 4)
    model = Model()
    found = Discovery(model.engine).discover([*PROBLEMS, *[p for p in problems(2, 5) if p.skill == "time"]])
    asked = [asked_names(text) for stage, text in model.calls if stage in ("cluster", "sort")]
    assert [len(several) for several in asked] == [4, 3]
    assert {"reading a clock", "counting days"} <= set(asked[0])  # the commonest come first
    assert set(found.skills()) == {HOME[name] for name in asked[0]}
    assert {name for parts in found.skills().values() for name in parts} == set(HOME)
    assert model.count().get("assign") is None


def test_a_part_that_cannot_be_sorted_is_reported_and_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAMES_A_CALL", 6)
    model = Model(sort=lambda text: REFUSED)
    found = Discovery(model.engine).discover(PROBLEMS)
    (sorted_later,) = found.repairs
    assert re.fullmatch(r"not sorted \(no\): '[\w ]+' \(their problems are asked about one by one\)", sorted_later)
    assert model.count()["assign"] == 2
    assert found.assignment == {problem.id: problem.skill for problem in PROBLEMS}


names_ = st.sampled_from(["a", "b", "c", "d", "B ", "unknown", ""])


@given(
    st.lists(st.tuples(st.sampled_from(["x", "y", "X", "a", " "]), st.lists(names_, max_size=6)), max_size=5),
    st.integers(0, 4),
)
def test_whatever_a_model_says_the_settled_categories_are_sound_and_good_ones_are_left_alone(
    said: list[tuple[str, list[str]]], wanted: int
) -> None:
    names = {"a": 3, "b": 1, "c": 1, "d": 2}
    made, repairs = repair_categories(
        SkillGroups(categories=[SkillGroup(name=n, skills=m) for n, m in said]), names, wanted
    )
    members = [name for category in made for name in category.members]
    assert len(members) == len(set(members))
    assert set(members) <= set(names)
    assert all(category.members for category in made)
    assert len({category.name.casefold() for category in made}) == len(made)
    assert repairs or (set(members) == set(names) and len(made) == (wanted or len(made)))
    if not wanted or len(made) == wanted:
        again = SkillGroups(categories=[SkillGroup(name=c.name, skills=list(c.members)) for c in made])
        assert repair_categories(again, {name: names[name] for name in members}, wanted)[1] == []


# Resuming


class Killed(Exception):
    pass


@pytest.mark.parametrize("stage", ["names", "categories", "assignment"])
def test_a_run_that_is_killed_after_any_stage_goes_on_and_asks_nothing_twice(stage: str) -> None:
    hard = "Question 1 about counting days"  # One has no name, so that every stage has something to ask.
    stored: dict[str, str] = {}

    def keep(at: str, found: SkillMap) -> None:
        stored[at] = to_json(found)
        if at == stage:
            raise Killed

    model = Model(name=lambda text: REFUSED if hard in text else named(text))
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
    with Cache(tmp_path / "calls.sqlite") as made:
        yield made


def reply(call: Call, before: int) -> Reply:
    said = Model().say(Request(tuple(Message(m["role"], m["content"]) for m in call.body["messages"])), 0)
    return Reply(said if isinstance(said, str) else "no")


def test_a_budget_that_is_spent_inside_a_stage_loses_nothing(cache: Cache) -> None:
    """With a server, and a cache that knows single answers."""
    with Server(reply) as server:

        def engine(calls: int | None) -> CachedEngine:
            return CachedEngine(
                OpenAIEngine(server.model, in_flight=3), cache, budget=Budget(max_calls=calls), owner="run"
            )

        with pytest.raises(BudgetSpentError):
            Discovery(engine(5)).discover(PROBLEMS)
        found = Discovery(engine(None)).discover(PROBLEMS)
        assert found.assignment == {problem.id: problem.skill for problem in PROBLEMS}
        assert len(server.calls) == len(PROBLEMS) + 1
        assert set(server.times.values()) == {1}
        assert Discovery(engine(0)).discover(PROBLEMS) == found


def test_a_service_is_held_to_the_categories_by_an_enumeration(cache: Cache) -> None:
    with Server(reply) as server:
        discovery = Discovery(OpenAIEngine(server.model))
        found = discovery.assign_more(discovery.discover(PROBLEMS), problems(1, start=7))
        shapes = [c.body["response_format"]["json_schema"] for c in server.calls if c.asked.startswith("Which of")]
        assert len(shapes) == len(HOME)
        assert all(set(s["schema"]["properties"]["category"]["enum"]) == set(found.skills()) for s in shapes)
        assert all(shape["strict"] for shape in shapes)


def test_failures_of_the_moment_are_asked_again_and_the_others_are_not() -> None:
    down = Failure(FailureCause.UNAVAILABLE, "down")
    first, second = "Question 0 about reading a clock", "Question 0 about counting days"
    broken = Model(
        name=lambda text: down if first in text else REFUSED if second in text else named(text),
        assign=lambda text: down,
    )
    stored: list[SkillMap] = []
    half = discover(broken, keep=lambda at, found: stored.append(found))
    assert set(half.unassigned.values()) == {down}
    back = Model()
    assert discover(back, known=half).unassigned == {}
    assert back.count() == {"assign": 2}
    early = Model()
    discover(early, known=stored[0])
    assert early.count() == {"name": 1, "cluster": 1, "assign": 1}


# More problems, other categories


def test_unseen_problems_choose_among_the_categories_and_nothing_known_is_asked_again() -> None:
    model, new = Model(), problems(1, start=9)
    discovery = Discovery(model.engine)
    before = discovery.discover(PROBLEMS)
    asked = len(model.calls)
    found = discovery.assign_more(before, [*PROBLEMS, *new, *new])
    assert [stage for stage, _ in model.calls[asked:]] == ["assign"] * len(new)
    assert {p.id: found.skill(p.id) for p in new} == {p.id: p.skill for p in new}
    assert (found.categories, found.names) == (before.categories, before.names)
    assert before.missing(new) == new
    assert found.missing(new) == []
    assert discovery.assign_more(found, new) == found
    with pytest.raises(SettingsError, match="discover them first"):
        discovery.assign_more(SkillMap(), new)


def test_problems_that_come_after_the_names_are_named_before_they_are_clustered() -> None:
    stored: dict[str, SkillMap] = {}
    discover(Model(), PROBLEMS[:5], keep=lambda at, found: stored.update({at: found}))
    model = Model()
    found = discover(model, PROBLEMS, known=stored["names"])
    assert model.count() == {"name": len(PROBLEMS) - 5, "cluster": 1}
    assert found.assignment == {problem.id: problem.skill for problem in PROBLEMS}


def test_clustering_again_to_another_number_names_nothing() -> None:
    two = {"numbers": [*SKILLS["sums"], *SKILLS["fractions"]], "time": SKILLS["time"]}
    model, new = Model(), problems(1, start=9)[-2:]
    discovery = Discovery(model.engine)
    before = discovery.assign_more(discovery.discover(PROBLEMS, categories=3), new)
    model.calls.clear()
    model.cluster = lambda text: groups_json(two)
    kept: list[str] = []
    found = discovery.recluster(before, [*PROBLEMS, *new], categories=2, keep=lambda at, _: kept.append(at))
    assert set(found.skills()) == set(two)
    assert found.wanted == 2
    assert model.count() == {"cluster": 1, "assign": len(new)}
    assert kept == ["categories", "assignment"]
    assert is_whole(found, [*PROBLEMS, *new])
    assert discovery.discover([*PROBLEMS, *new], categories=2, known=before) == found  # the same by another way
    with pytest.raises(SettingsError, match="no names to cluster"):
        discovery.recluster(SkillMap(), PROBLEMS, categories=2)


# Gold skills and agreement


def by_hand(labels: Mapping[str, str] | None = None) -> SkillMap:
    found = labels if labels is not None else {"p": "a"}
    return SkillMap({"p": "n"}, tuple(Category(name) for name in sorted(set(found.values()))), found)


def test_gold_skills_are_the_tasks_own_and_ask_nobody() -> None:
    task = MathSkills()
    own = task.problems(Split.VALIDATION, 2, 0)
    gold = map_own_skills(task, [*own, Problem("odd", (), "")])
    assert gold.skills() == task.skills()
    assert gold.assignment == {problem.id: problem.skill for problem in own}
    assert list(gold.unassigned) == ["odd"]
    assert all(gold.subskill(problem.id) == problem.subskill for problem in own)
    assert map_own_skills(task, relabel(own, by_hand())).assignment == gold.assignment
    single = type("Single", (), {"name": "single", "skills": lambda self: {"functions": ()}})()
    with pytest.raises(TaskError, match="no skills of its own"):
        map_own_skills(single, own)


def test_agreement_counts_what_it_compared_and_what_it_left_out() -> None:
    gold = by_hand({"1": "a", "2": "a", "3": "b", "4": "b", "5": "b"})
    found = replace(by_hand({"1": "x", "2": "x", "3": "y", "4": "z", "9": "z"}), unassigned={"5": REFUSED})
    same = agreement(gold, gold)
    assert (same.adjusted_rand, same.mutual_information, same.purity) == (1.0, 1.0, 1.0)
    some = agreement(found, gold)
    assert (some.problems, some.left_out, some.categories, some.gold) == (4, 2, 3, 2)
    assert some.adjusted_rand == pytest.approx(4 / 7)
    assert some.purity == 1.0
    assert some.mutual_information == pytest.approx(0.8)  # entropies log 2 and 1.5 log 2, of which log 2 is shared
    nothing = agreement(SkillMap(), gold)
    assert (nothing.adjusted_rand, nothing.purity, nothing.problems, nothing.left_out) == (None, None, 0, 5)


def test_agreement_has_the_known_values_of_the_literature() -> None:
    # The example of Hubert and Arabie's index in Yeung and Ruzzo (2001): 0.313.
    one, other = "aab" + "bbbb" + "ccc", "xyz"
    cells = np.array([[1, 1, 0], [1, 2, 1], [0, 0, 4]])
    assert compute_rand_index(cells) == pytest.approx(0.313, abs=5e-4)
    # Manning, Raghavan and Schuetze, Introduction to Information Retrieval, figure 16.4: 0.71 and 0.36 (by the mean).
    book = np.array([[5, 1, 0], [1, 4, 1], [2, 0, 3]])
    assert purity(book) == pytest.approx(0.71, abs=5e-3)
    assert mutual_information(book) == pytest.approx(0.36, abs=5e-3)
    assert compute_rand_index(contingency(one, one)) == 1.0
    assert compute_rand_index(contingency("aaa", other)) == 0.0
    assert mutual_information(contingency("aaa", other)) == 0.0
    assert purity(contingency("aaa", other)) == pytest.approx(1 / 3)


labels = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("wxyz")), min_size=1, max_size=40)


@given(labels, st.randoms(use_true_random=False))
def test_agreement_does_not_depend_on_names_or_order_and_is_whole_for_the_same_division(
    pairs: list[tuple[str, str]], chance: Any
) -> None:
    def figures(several: Sequence[tuple[str, str]]) -> list[float]:
        cells = contingency(*zip(*several, strict=True))
        return [compute_rand_index(cells), mutual_information(cells), purity(cells)]

    shuffled = chance.sample(pairs, len(pairs))
    renamed = dict(zip("abcd", chance.sample(["4", "3", "2", "1"], 4), strict=True))
    expected = figures(pairs)
    assert figures([(renamed[a], b) for a, b in shuffled]) == pytest.approx(expected)
    assert figures([(b, a) for a, b in pairs])[:2] == pytest.approx(expected[:2])  # purity is not symmetric
    assert figures([(a, renamed[a]) for a, _ in pairs]) == pytest.approx([1.0, 1.0, 1.0])
    assert -1.0 <= expected[0] <= 1.0
    assert 0.0 <= expected[1] <= 1.0
    assert 0.0 < expected[2] <= 1.0


def test_agreement_of_random_divisions_is_about_zero_after_the_correction_only() -> None:
    generator = np.random.default_rng(0)
    tables = [
        contingency([*map(str, generator.integers(5, size=60))], [*map(str, generator.integers(4, size=60))])
        for _ in range(200)
    ]
    assert abs(float(np.mean([compute_rand_index(cells) for cells in tables]))) < 0.01
    assert float(np.mean([mutual_information(cells) for cells in tables])) > 0.03


def test_what_was_asked_again_is_counted_by_stage_and_stays_counted() -> None:
    half = {"sums": [name for name in HOME if name != "counting days"]}
    model = Model(
        name=in_turn("no idea", *(said for p in PROBLEMS if isinstance(said := named(p.messages[0].text), str))),
        cluster=in_turn(groups_json(half), clustered("The skills:\n" + "".join(f"- {name}\n" for name in HOME))),
        assign=in_turn("none of them", '{"category": "time"}'),
    )
    # The first answer is none, so that every problem has the name of the one before it; only the counts matter here.
    stored: dict[str, SkillMap] = {}
    discovery = Discovery(model.engine)
    found = discovery.discover(PROBLEMS, keep=lambda at, kept: stored.update({at: kept}))
    assert (stored["names"].reasked, found.reasked) == ({"names": 1}, {"names": 1, "categories": 1})
    more = discovery.assign_more(found, problems(1, start=9)[:1])
    assert more.reasked == {"names": 1, "categories": 1, "assignment": 1}
    assert discovery.recluster(more, PROBLEMS, categories=3).reasked == {"names": 1}
    assert discover(Model(), known=stored["names"]).reasked == {"names": 1}


def test_an_overview_tells_the_problems_that_made_the_categories_from_those_that_chose_among_them() -> None:
    hard, new = "Question 0 about reading a clock", problems(1, start=9)
    model = Model(name=lambda text: REFUSED if hard in text else named(text))
    discovery, stages = Discovery(model.engine), {}
    found = discovery.discover(PROBLEMS, categories=3, keep=lambda at, kept: stages.update({at: kept}))
    assert overview({}) is None
    early = overview({"names": stages["names"]})
    assert early is not None
    assert (early.stage, early.rows, early.problems, early.test, early.agreement) == ("names", (), 14, 0, None)
    refused = replace(discovery.assign_more(found, new), assignment={**found.assignment, new[0].id: "time"},
                      unassigned={p.id: REFUSED for p in new[1:]})  # fmt: skip
    gold = SkillMap(assignment={p.id: p.skill for p in (*PROBLEMS, *new)})
    whole = overview({**stages, "test": refused, "own": gold})
    assert whole is not None
    assert (whole.problems, whole.test, whole.names) == (14, 7, 7)
    assert (whole.unnamed, whole.unassigned) == ({"refused": 1}, {"refused": 6})
    rows = {row.name: row for row in whole.rows}
    assert {name: (row.problems, row.test) for name, row in rows.items()} == {
        "sums": (6, 0), "fractions": (4, 0), "time": (4, 1),
    }  # fmt: skip
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


def discovered() -> tuple[MathSkills, SkillMap, list[Problem]]:
    """Two discovered skills over the own problems of a task; the last problem could not be assigned."""
    task = MathSkills()
    own = task.problems(Split.VALIDATION, 2, 0)
    home = {p.id: "numbers" if k % 2 else "words" for k, p in enumerate(own[:-1])}
    names = {p.id: f"{home[p.id]} {k % 4 // 2}" for k, p in enumerate(own[:-1])}
    members = {
        skill: tuple(sorted({names[i] for i, s in home.items() if s == skill})) for skill in ("numbers", "words")
    }
    categories = tuple(Category(skill, "", parts) for skill, parts in members.items())
    return task, SkillMap(names, categories, home, unassigned={own[-1].id: REFUSED}), own


def test_relabelled_problems_have_discovered_skills_and_find_back() -> None:
    _, found, own = discovered()
    made = relabel(own, found)
    assert [(p.skill, p.subskill) for p in made[:-1]] == [(found.assignment[p.id], found.names[p.id]) for p in own[:-1]]
    assert (made[-1].skill, made[-1].subskill) == ("", "")
    assert [original(problem) for problem in made] == own
    assert relabel(made, found) == made
    assert from_json(Problem, to_json(made[0])) == made[0]


def test_a_discovered_task_asks_and_scores_the_same_problems_under_other_skills() -> None:
    task, found, own = discovered()
    other = Discovered(task, found)
    made = other.problems(Split.VALIDATION, 2, 0)
    assert [problem.id for problem in made] == [problem.id for problem in own]
    assert set(other.skills()) == {"numbers", "words"}
    assert {p.skill for p in other.problems(Split.VALIDATION, 2, 0, ["words"])} == {"words"}
    assert all(
        other.score(p, Completion(f"Answer: {p.reference}"))
        == Score(1.0, {"extracted": p.reference, "expected": p.reference})
        for p in made[:3]
    )
    assert (other.name, other.max_tokens, other.is_procedural) == (task.name, task.max_tokens, True)
    assert not isinstance(other, GenerativeTask)
    with pytest.raises(TaskError, match=r"36 of 36 test problems .* pass them to assign_more first"):
        other.problems(Split.TEST, 2, 0)
    assert {problem.skill for problem in other.problems(Split.TRAIN, 1, 0)} == {""}
    with pytest.raises(TaskError, match="has the discovered skill 'words'"):
        other.problems(Split.TRAIN, 1, 0, ["words"])


def test_a_discovered_task_measures_on_some_of_the_tasks_own_skills_and_has_all_train_problems() -> None:
    task, found, own = discovered()
    some = Discovered(task, found, ["addition", "clock"])
    made = some.problems(Split.VALIDATION, 2, 0)
    assert [p.id for p in made] == [p.id for p in own if p.skill in ("addition", "clock")]
    assert len(some.problems(Split.TRAIN, 1, 0)) == len(task.skills())


def test_worked_problems_can_be_shown_below_discovered_skills() -> None:
    task, found, own = discovered()
    made = Discovered(few_shot(task, 2), found).problems(Split.VALIDATION, 2, 0)
    assert [len(problem.messages) for problem in made] == [5] * len(own)
    assert made[0].skill == found.assignment[own[0].id]


class Notes:
    """A writer that writes nothing and remembers what was ordered."""

    def __init__(self) -> None:
        self.orders: list[Order] = []

    def write(self, orders: Sequence[Order], generator: np.random.Generator) -> list[Written]:
        self.orders += orders
        return [Written(()) for _ in orders]


@pytest.mark.parametrize("teacher", ["no_state", "open_ended", "skill_list", "skill_tree"])
def test_every_teacher_orders_by_discovered_skills_and_needs_a_writer_for_it(teacher: str) -> None:
    task, found, _ = discovered()
    other, notes = Discovered(task, found), Notes()
    wrong = [Attempt(problem, Completion("?"), Score(0.0)) for problem in other.problems(Split.VALIDATION, 2, 0)]
    report = report_on(wrong, "validation")
    observed = StudentState(0, report, tuple(to_validation_attempt(a, False) for a in wrong), 0, 100, report)
    make_teacher(teacher, other, writer=notes).write(observed, 20, np.random.default_rng(0))
    assert {order.skill for order in notes.orders} - {""} == {"numbers", "words"}
    assert sum(order.count for order in notes.orders) == 20
    assert {order.subskill for order in notes.orders} <= {"", *(n for parts in other.skills().values() for n in parts)}
    with pytest.raises(SettingsError, match="to a language model"):
        make_teacher(teacher, other)
