import json

import pytest
from gymnasium import Space
from gymnasium.utils.env_checker import data_equivalence

from palaestra.core.records import Example, Lesson, Message
from palaestra.core.spaces import Choice, Rate, RecordSpace, Several, UnicodeText, Whole
from palaestra.envs.lesson.state import action_space, observation_space

SPACES = [
    UnicodeText(40), UnicodeText(9, min_length=2), Choice(("a", "b")), Whole(), Rate(), Several(UnicodeText(5), 1),
    RecordSpace(Message, {"role": Choice(("user",)), "content": UnicodeText(20)}), action_space(["addition"]), observation_space(),
]  # fmt: skip


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_samples_are_contained_and_repeat_with_the_seed(space: Space) -> None:  # type: ignore[type-arg]
    space.seed(5)
    first = [space.sample() for _ in range(20)]
    space.seed(5)
    second = [space.sample() for _ in range(20)]
    assert all(sample in space for sample in first)
    assert data_equivalence(first, second)
    space.seed(6)
    assert [space.sample() for _ in range(20)] != first


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_samples_survive_json(space: Space) -> None:  # type: ignore[type-arg]
    samples = [space.sample() for _ in range(5)]
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(samples)))) == samples


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_a_space_equals_its_like_and_refuses_masks(space: Space) -> None:  # type: ignore[type-arg]
    assert space == space
    assert space != UnicodeText(12345)
    with pytest.raises(ValueError, match="mask"):
        space.sample(mask=1)  # type: ignore[arg-type]


def test_text_of_any_script_is_valid_without_surrogates() -> None:
    space = UnicodeText(100)
    assert "Čau, 世界! \U0001f642\nline" in space
    assert "\ud800" not in space
    assert "x" * 101 not in space
    assert 5 not in space


def test_a_record_with_a_field_outside_its_space_is_outside() -> None:
    space = action_space(["addition"])
    good = Example((Message("user", "1+1?"),), "2")
    assert Lesson((good,)) in space
    assert Lesson(()) not in space
    assert Lesson((Example((Message("user", "1+1?"),), ""),)) not in space
    assert good not in space
