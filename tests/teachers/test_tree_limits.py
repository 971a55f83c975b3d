"""Limits apply to every policy, also to policies with invalid requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.core.errors import SettingsError
from palaestra.teachers.tree.records import Branch, Count, Leaf, TreeAction, TreeLimits, TreeState, enforce


def make_branch(name: str, accuracy: float = 0.5, leaves: dict[str, int] | None = None) -> Branch:
    """Make a skill with the given examples by subskill after one round."""
    given = {"a": 3, "b": 0, "c": 0} if leaves is None else leaves
    count = Count(round(12 * accuracy), 12)
    parts = tuple(
        Leaf(part, (n,), (Count(1, 4), Count(1, 4)), n > 0 or count.correct >= 11) for part, n in given.items()
    )
    return Branch(name, (sum(given.values()),), (count, count), parts)


NAMES = ("a", "b", "c", "d")
trees = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 1.0]),
        st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0, 0, 4]), min_size=1),
    ),
    min_size=1,
    max_size=6,
).map(
    lambda several: TreeState(
        tuple(make_branch(f"s{k}", rate, parts) for k, (rate, parts) in enumerate(several)), 1, 900
    )
)
asked = st.dictionaries(
    st.sampled_from((*NAMES, "unknown")),
    st.one_of(st.integers(-50, 200), st.just(10**30)),
)
actions = st.lists(
    st.builds(
        lambda skill, explore, allocation: TreeAction(
            skill, allocation, "because", "explore" if explore else "exploit"
        ),
        st.sampled_from(["s0", "s1", "s2", "s3", "s9"]),
        st.booleans(),
        asked,
    ),
    max_size=8,
)
limits = st.builds(
    TreeLimits,
    st.floats(0.01, 1.0),
    st.integers(0, 3),
)


@given(trees, actions, st.integers(1, 300), limits)
def test_nothing_passes_a_limit_and_all_that_can_be_spent_is(
    tree: TreeState, wanted: list[TreeAction], size: int, limit: TreeLimits
) -> None:
    taken = enforce(tree, wanted, size, limit)
    assert len({action.skill for action in taken}) == len(taken)
    for action in taken:
        skill = tree.branch(action.skill)
        assert skill is not None
        assert all(type(count) is int and count > 0 for count in action.allocation.values())
        assert sum(action.allocation.values()) <= limit.most(tree, size)
        new = {name for name in action.allocation if not skill.leaf(name).open}  # type: ignore[union-attr]
        assert len(new) <= limit.room(skill)
        assert action.kind == ("explore" if new else "exploit")
    possible = limit.most(tree, size) * len(tree.branches)
    assert sum(sum(action.allocation.values()) for action in taken) == min(size, possible)


@given(trees, actions, st.integers(1, 300), limits)
def test_whatever_was_changed_is_said(tree: TreeState, wanted: list[TreeAction], size: int, limit: TreeLimits) -> None:
    first = {action.skill: action for action in reversed(wanted)}
    taken = enforce(tree, wanted, size, limit)
    for action in taken:
        asked_for = first.get(action.skill)
        as_asked = asked_for is not None and {k: v for k, v in asked_for.allocation.items() if v} == action.allocation
        assert as_asked or "limits: " in action.reason
    strange = [action for action in wanted if action.skill not in {b.name for b in tree}]
    assert not strange or f"there is no skill '{strange[0].skill}'" in taken[0].reason


@given(trees, actions, st.integers(1, 300), limits)
def test_what_is_within_the_limits_is_left_alone(
    tree: TreeState, wanted: list[TreeAction], size: int, limit: TreeLimits
) -> None:
    once = enforce(tree, wanted, size, limit)
    assert enforce(tree, once, size, limit) == once


def test_a_cap_leaves_room_to_spend_the_lesson_on_what_is_weak() -> None:
    tree = TreeState((make_branch("weak"), make_branch("known", 1.0)), 1, 100)
    (action,) = enforce(tree, [TreeAction("weak", {"a": 100}, "all of it")], 100, TreeLimits(cap=0.2))
    assert action.allocation == {"a": 100}
    assert action.reason == "all of it"


def test_clipping_is_said_in_the_reason() -> None:
    tree = TreeState(tuple(make_branch(f"s{k}") for k in range(10)), 1, 100)
    wanted: list[TreeAction] = [
        TreeAction("s0", {"a": 90, "b": 5, "z": 5}, "more"),
        TreeAction("s1", {"b": 10, "c": 10, "a": -3}, "new", "explore"),
        *(TreeAction(f"s{k}", {"a": 10}, "same") for k in range(2, 10)),
    ]
    taken = {action.skill: action for action in enforce(tree, wanted, 100, TreeLimits(cap=0.2, open_at_once=1))}
    assert sum(taken["s0"].allocation.values()) == 20
    assert (
        "limits: b may not be opened now, there is no subskill 'z', 20 of the lesson's 100 examples"
        in taken["s0"].reason
    )
    assert set(taken["s1"].allocation) == {"b"}
    assert "c may not be opened now, -3 for a counts as 0" in taken["s1"].reason


@pytest.mark.parametrize("wrong", [{"cap": 0.0}, {"cap": 1.5}, {"open_at_once": -1}])
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        TreeLimits(**wrong)  # type: ignore[arg-type]
