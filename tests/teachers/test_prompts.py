import re
from pathlib import Path

import pytest

from palaestra.core.errors import PromptError, SettingsError
from palaestra.core.records import Message
from palaestra.teachers.model_writer import DEFAULT_TEMPLATE
from palaestra.teachers.prompts import FOLDER, TeacherPrompts


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for name, text in {
        "writer/write.md.j2": "Write {{ count }} problems.\n{% for e in errors %}\n- {{ e.problem }}\n{% endfor %}\n",
        "writer/write.system.md.j2": "You teach {{ task }}.",
        "writer/check.md.j2": "Is {{ answer }} right?",
        "writer/broken.md.j2": "one\n{% if %}",
        "writer/divides.md.j2": "{{ 1 / count }}",
    }.items():
        (tmp_path / "ours" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ours" / name).write_text(text)
    return tmp_path / "ours"


def test_a_prompt_is_rendered_and_has_its_system_message(base: Path) -> None:
    prompts = TeacherPrompts(base=base)
    given = {"count": 2, "errors": [{"problem": "1+1"}, {"problem": "2 < 3"}], "task": "sums"}
    text = Message("user", "Write 2 problems.\n- 1+1\n- 2 < 3")
    assert prompts.messages("writer/write", **given) == (Message("system", "You teach sums."), text)
    assert prompts.messages("writer/check", answer="4") == (Message("user", "Is 4 right?"),)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"errors": []}, r"write\.md\.j2, line 1: 'count' .*'counts'"),
        ({"count": 1, "errors": [{"problm": "x"}]}, r"write\.md\.j2, line 3: .*'problem'"),
    ],
)
def test_a_variable_that_is_not_given_is_named_with_its_place(given: dict[str, object], match: str, base: Path) -> None:
    extra = {"counts": 1} if "count" not in given else {}
    with pytest.raises(PromptError, match=match) as caught:
        TeacherPrompts(base=base).render("writer/write", **given, **extra)
    assert "\n" not in str(caught.value)


def test_what_else_can_be_wrong_with_a_prompt_is_one_line_too(base: Path) -> None:
    prompts = TeacherPrompts(base=base)
    with pytest.raises(PromptError, match="'writer/write'"):
        prompts.render("writer/wrte")
    with pytest.raises(PromptError, match=r"broken\.md\.j2, line 2"):
        prompts.render("writer/broken")
    with pytest.raises(PromptError, match="ZeroDivisionError"):
        prompts.render("writer/divides", count=0)


def test_a_users_folder_replaces_one_prompt_and_leaves_the_rest(base: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "writer").mkdir(parents=True)
    (own / "writer" / "_part.md.j2").write_text("Mine: ")
    (own / "writer" / "check.md.j2").write_text("{% include 'writer/_part.md.j2' %}{{ answer }}?")
    (own / "theirs").mkdir()
    (own / "theirs" / "new.md.j2").write_text("new")
    prompts = TeacherPrompts(own, base)
    assert prompts.render("writer/check", answer=4) == "Mine: 4?"
    assert prompts.render("writer/write.system", task="sums") == "You teach sums."
    assert prompts.render("theirs/new") == "new"


def test_a_replacement_that_replaces_nothing_is_told(base: Path, tmp_path: Path) -> None:
    (tmp_path / "own" / "writer").mkdir(parents=True)
    (tmp_path / "own" / "writer" / "chek.md.j2").write_text("x")
    with pytest.raises(SettingsError, match=r"'writer/check\.md\.j2'"):
        TeacherPrompts(tmp_path / "own", base)
    with pytest.raises(SettingsError, match="nowhere"):
        TeacherPrompts(tmp_path / "nowhere", base)


def test_built_in_prompts_are_jinja() -> None:
    prompts = TeacherPrompts()
    for path in FOLDER.rglob("*.j2"):
        assert prompts._environment.get_template(str(path.relative_to(FOLDER))).filename == str(path)
    assert DEFAULT_TEMPLATE in prompts.names()


def test_every_template_uses_only_documented_variables() -> None:
    page = (Path(__file__).parents[2] / "docs" / "prompts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `\w+/(\w+)` \|.*\| (.*) \|$", page, flags=re.MULTILINE)
    documented = {kind: set(re.findall(r"`(\w+)`", variables)) for kind, variables in rows}
    prompts = TeacherPrompts()
    for name in prompts.names():
        kind = name.split("/")[-1].removesuffix(".system")
        if not kind.startswith("_"):
            assert prompts.variables(name) <= documented[kind], name
