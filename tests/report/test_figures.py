"""Figures and tables of a report as files, curves of several runs, and results in notebooks."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from stored_runs import attempts, evaluate_run, teach_run, write_train_run

import palaestra
from palaestra.core.errors import RunError
from palaestra.core.records import Trajectory
from palaestra.recipes.teach.recipe import TeachResult
from palaestra.report import write_figures
from palaestra.report.figures import PageTable, find_tables
from palaestra.report.overlay import compare_curves, compare_to_first
from palaestra.report.page import render_with_figures

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return teach_run(tmp_path_factory.mktemp("taught") / "first")


def read_tables(folder: Path) -> dict[str, PageTable]:
    return {table.name: table for table in find_tables(render_with_figures(folder)[0])}


def test_every_figure_is_a_file_of_its_own(taught: Path, tmp_path: Path) -> None:
    paths = write_figures(taught, tmp_path / "out")
    names = {path.name for path in paths}
    assert {"curves-1.svg", "curves-1.png", "tree-1.svg", "skills-1.csv", "skills-1.tex"} <= names
    for path in paths:
        if path.suffix == ".svg":
            text = path.read_text(encoding="utf-8")
            assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
            assert "var(" not in text  # Colours by name would be black outside the page.
        elif path.suffix == ".png":
            assert path.read_bytes().startswith(PNG)


def test_a_figure_has_its_own_legend(taught: Path) -> None:
    figures = {figure.name: figure for figure in render_with_figures(taught)[1]}
    assert [words for _, words in figures["curves-2"].plot.legend] == ["round 1", "round 2"]
    assert figures["curves-1"].plot.legend == ()
    assert ">round 2</text>" in figures["curves-2"].write_svg()


def test_the_colours_of_a_png_are_those_of_the_page(taught: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    figure = render_with_figures(taught)[1][0]
    image = image_module.open(io.BytesIO(figure.write_png())).convert("RGB")
    colours = {colour for _, colour in image.getcolors(1 << 24)}
    assert {(255, 255, 255), (0x0B, 0x62, 0xA8)} <= colours  # The page, and the line `after`.


def test_a_table_reads_the_same_as_csv_and_in_the_page(taught: Path) -> None:
    tables = read_tables(taught)
    rows = list(csv.reader(io.StringIO(tables["skills-1"].write_csv())))
    assert rows[0] == ["Skill", "Before", "After", "Gain (points)", "Examples"]  # The column of pictures is left out.
    everything = next(row for row in rows if row[0] == "all skills")
    assert everything[1].startswith("40.0 %")
    assert everything[3].startswith("+30.0")


def test_a_latex_table_escapes_what_latex_reads(tmp_path: Path) -> None:
    folder = evaluate_run(tmp_path / "run", attempts(5))
    tables = read_tables(folder)
    text = tables["settings-1"].write_latex()
    assert text.startswith("\\begin{tabular}{lll}\n\\toprule\nSetting & Value & Meaning \\\\\n\\midrule\n")
    assert r"worker\_cpus" in text
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert all(len(re.findall(r"(?<!\\)&", line)) == 2 for line in lines)
    assert not re.search(r"(?<!\\)[%#_]", text)


def test_unknown_formats_are_refused(taught: Path) -> None:
    with pytest.raises(RunError, match=r"'gif'; .*svg, png, csv, tex"):
        write_figures(taught, formats=["gif"])


def test_curves_of_runs_share_a_chart_and_its_table(tmp_path: Path) -> None:
    for name, iterations in (("a", 3), ("b", 2)):
        write_train_run(tmp_path / name, iterations=iterations)
    charts = compare_curves({name: tmp_path / name for name in ("a", "b")})
    assert list(charts) == ["training reward"]
    chart = charts["training reward"]
    assert chart.content.count("<polyline") == 2
    assert [words for _, words in chart.legend] == ["a", "b"]
    (table,) = find_tables(chart.table)
    assert table.rows == [
        ["iteration", "a", "b"],
        ["1", "0.100", "0.100"],
        ["2", "0.200", "0.200"],
        ["3", "0.300", "–"],
    ]


def test_runs_are_tested_against_the_first(taught: Path, tmp_path: Path) -> None:
    second = teach_run(tmp_path / "second", failed=2)
    write_train_run(tmp_path / "other")
    rows, whole = compare_to_first({"first": taught, "second": second, "other": tmp_path / "other"})
    assert rows[0]["comparison"].gain.count == 18
    assert rows[1]["comparison"] is None
    assert "contains no answers to compare" in rows[1]["reason"]
    assert whole is None  # The whole comparison is for two runs.


def test_a_result_shows_itself_in_a_notebook(taught: Path) -> None:
    result = TeachResult(taught, {}, Trajectory("lesson", 0))
    shown = result._repr_html_()
    assert shown is not None
    assert TeachResult(taught / "gone", {}, result.trajectory)._repr_html_() is None
    assert "Gain in points" in shown
    assert 'src="data:image/svg+xml;base64,' in shown
    assert "Difference in points" in str(palaestra.compare(taught, taught)._repr_html_())
    page = palaestra.show(result)._repr_html_()
    assert page.startswith("<iframe ")
    assert "<script" not in page
    with pytest.raises(RunError, match="got int"):
        palaestra.show(3)
