import pytest

from palaestra.core.errors import MissingExtraError, PalaestraError, UnknownNameError, suggest


def test_an_unknown_name_suggests_the_nearest_and_lists_all() -> None:
    error = UnknownNameError("teacher", "skil-tree", ["no_state", "skill_tree"])
    assert str(error) == "unknown teacher 'skil-tree'; did you mean 'skill_tree'? Known: no_state, skill_tree"


@pytest.mark.parametrize(("typed", "meant"), [("NANO", "nano"), ("smolm2", "smollm2"), ("nno", "nano")])
def test_suggestions_survive_case_and_a_typing_error(typed: str, meant: str) -> None:
    assert f"did you mean '{meant}'" in suggest(typed, ["nano", "smollm2"])


def test_nothing_is_suggested_for_a_name_that_resembles_none() -> None:
    assert suggest("quasar", ["nano", "smollm2"]) == "Known: nano, smollm2"


def test_a_missing_extra_names_the_install_command() -> None:
    assert "pip install 'palaestra[lora]'" in str(MissingExtraError("peft", "lora", "training a LoRA adapter"))


def test_every_error_is_one_line() -> None:
    for error in (UnknownNameError("task", "x", ["y"]), MissingExtraError("p", "e", "f")):
        assert isinstance(error, PalaestraError)
        assert "\n" not in str(error)
