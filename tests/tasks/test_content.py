"""The texts and tables of the tasks."""

import ast
from pathlib import Path

import palaestra
from palaestra.tasks import content
from palaestra.tasks.content import read_brief, read_content

FOLDER = Path(content.__file__).parent
SOURCE = "".join(file.read_text() for file in Path(palaestra.__file__).parent.rglob("*.py"))


def test_every_table_is_read() -> None:
    tables = {file.stem for file in FOLDER.glob("*.json")}
    assert tables == {"code", "math", "mnms", "sessions", "snippets"}
    for name in tables:
        assert read_content(name)
        assert f'read_content("{name}")' in SOURCE


def test_a_brief_is_one_paragraph() -> None:
    briefs = sorted(file.stem for file in (FOLDER / "briefs").glob("*.txt"))
    assert len(briefs) > 10
    for name in briefs:
        assert "\n" not in read_brief(name)
        assert read_brief(name).endswith((".", "== 3"))


def test_parts_of_programs_are_valid_python() -> None:
    parts = read_content("code")
    for name in ("which", "change", "together", "orders", "letters", "words", "word_changes"):
        for _, code, *numbers in parts[name]:
            for number in numbers[0] if numbers else [0]:
                ast.parse(code.replace("{k}", str(number)).replace("{list}", "values"), mode="eval")
