"""The table of research tasks: measuring, and replacing it in a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from palaestra.core.errors import SettingsError
from palaestra.recipes.research.recipe import BEGIN, END, format_table, measure_tasks, replace_table


@pytest.mark.backends
def test_table_replaces_the_old_one(tmp_path: Path) -> None:
    shown: list[str] = []
    result = measure_tasks(["prisoners_dilemma"], lambda item: shown.append(item.task.name))
    assert shown == ["prisoners_dilemma"]
    assert result[0].reference.test.score > result[0].baseline.test.score
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nan old table\n{END}\nafter\n")
    replace_table(page, format_table(result))
    text = page.read_text()
    assert "an old table" not in text
    assert f"| `prisoners_dilemma` | points, higher | {result[0].baseline.validation.score:.4g}," in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    replace_table(page, "another")
    assert page.read_text() == f"before\n{BEGIN}\nanother\n{END}\nafter\n"


def test_a_page_without_its_marks_is_left_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(SettingsError):
        replace_table(page, "a table")
    assert page.read_text() == "nothing"
