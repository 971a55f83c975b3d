"""The report of a run is self-contained, agrees with the store, and escapes model output."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from html_pages import HtmlPage, read_report
from stored_runs import attempt, attempts, cost, create, evaluate_run, lesson, teach_run

from palaestra.core.errors import PalaestraError, RunError
from palaestra.core.records import (
    Attempt,
    Completion,
    ImagePart,
    Message,
    Problem,
    Report,
    Score,
    TextPart,
)
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.report import write_report
from palaestra.report.charts import MetricPoint, smooth, thin
from palaestra.report.diagrams import allocation_rows, build_skill_nodes
from palaestra.report.parts import compare_attempts, spread
from palaestra.report.svg import element, ticks
from palaestra.runs.run import Run

HOSTILE = "</script><b>bold</b><img src=x onerror=alert(1)> & \"quoted\" 'too'"


def read(folder: Path) -> tuple[str, HtmlPage]:
    page = read_report(folder)
    return page.markup, page


def test_the_report_lies_in_the_run_folder_and_its_tags_balance(tmp_path: Path) -> None:
    folder = teach_run(tmp_path / "run")
    assert write_report(folder) == folder / "report.html"
    assert not list(folder.glob("*.partial"))
    _, page = read(folder)
    assert {"html", "svg", "table", "details"} <= {tag for tag, _ in page.elements}


def test_the_page_is_whole_by_itself(tmp_path: Path) -> None:
    text, page = read(teach_run(tmp_path / "run"))
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "img", "iframe", "object"}
    for name in ("src", "xlink:href"):
        assert page.with_attribute(name) == []
    assert page.links == []
    assert "http://" not in text
    assert "https://" not in text
    assert "@import" not in text
    assert "url(" not in text


def test_text_of_models_is_shown_as_text(tmp_path: Path) -> None:
    text, page = read(teach_run(tmp_path / "run", text=HOSTILE, reason=HOSTILE))
    assert "<b>bold" not in text
    assert "onerror=alert(1)>" not in text
    assert HOSTILE in page.text
    assert not [tag for tag, attributes in page.elements if tag == "img" or "onerror" in attributes]


def test_names_of_subskills_are_escaped_in_the_pictures(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with create(folder, TeachSettings()) as run:
        run.store.add_lesson(1, lesson(("<b>skill", '"><script>x', 3)), cost("1/lesson"))
    text, page = read(folder)
    assert "<script" not in text
    assert "<b>skill" not in text
    assert [a["data-subskill"] for a in page.with_attribute("data-subskill")] == ['"><script>x']


def test_the_headline_holds_the_figures_of_the_summary(tmp_path: Path) -> None:
    _, page = read(teach_run(tmp_path / "run"))
    assert "Test before 40.0 %" in page.text
    assert "8 of 20 right" in page.text
    assert "Test after 70.0 %" in page.text
    assert "14 of 20 right" in page.text
    # Agresti and Min by hand: up 6.5, down 0.5, total 22; 100 * 6 / 22 and 196 * sqrt(7 - 36 / 22) / 22.
    assert "Gain in points +30.0 +6.6 to +47.9" in page.text
    assert "Rounds 2" in page.text
    assert "Examples 12" in page.text
    assert "Seed 7" in page.text
    assert "bbbb2222cccc" in page.text
    assert "bbbb2222cccc3333" not in page.text
    assert "has not ended" not in page.text


def test_each_skill_has_its_interval_gain_and_examples(tmp_path: Path) -> None:
    text, _ = read(teach_run(tmp_path / "run"))
    table = text[text.index('id="skills"') : text.index('id="curves"')]
    rows = dict(re.findall(r'<tr><th scope="row">(\w+)</th>(.*?)</tr>', table, re.S))
    clock = HtmlPage(rows["clock"]).text
    assert "0.0 %" in clock
    assert "0.0–27.8 %" in clock
    assert "0 of 10 right" in clock
    assert "40.0 %" in clock
    assert "16.8–68.7 %" in clock
    assert "+40.0" in clock
    assert clock.endswith("4 ")
    assert HtmlPage(rows["addition"]).text.endswith("8 ")


def test_failures_stand_beside_the_accuracy(tmp_path: Path) -> None:
    _, page = read(teach_run(tmp_path / "run", failed=4))
    assert "Test before 50.0 %" in page.text
    assert "8 of 16 right, 4 failed" in page.text
    assert "12 of 100 attempts: engine 12" in page.text
    assert "on 16 problems scored both times" in page.text


def test_the_tree_has_a_node_for_each_subskill(tmp_path: Path) -> None:
    text, page = read(teach_run(tmp_path / "run"))
    nodes = {(a["data-skill"], a["data-subskill"]) for a in page.with_attribute("data-subskill")}
    assert nodes == {
        ("addition", "carry"),
        ("addition", "plain"),
        ("clock", "midnight"),
        ("clock", "past_hour"),
        ("clock", "within_hour"),
    }
    nodes = dict(re.findall(r'<g data-skill="\w+" data-subskill="(\w+)">(.*?)</g>', text, re.S))
    assert "8 examples, first in round 1" in nodes["carry"]
    assert ">1</text>" in nodes["carry"]
    assert "3 examples, first in round 2" in nodes["past_hour"]
    assert 'class="node a3"' in nodes["past_hour"]
    assert "no examples" in nodes["plain"]
    assert "round-name" not in nodes["plain"]
    assert "node unknown" in nodes["midnight"]


def test_an_area_of_the_tree_is_proportional_to_the_examples(tmp_path: Path) -> None:
    text, _ = read(teach_run(tmp_path / "run"))
    nodes = dict(re.findall(r'data-subskill="(\w+)"><circle[^>]* r="([\d.]+)"', text))
    assert float(nodes["carry"]) ** 2 / float(nodes["past_hour"]) ** 2 == pytest.approx(8 / 3, rel=0.01)


def test_decisions_are_listed_by_round_with_their_reasons(tmp_path: Path) -> None:
    _, page = read(teach_run(tmp_path / "run", reason="the weakest of all"))
    assert "Round 1: 6 examples explore 1" in page.text
    assert "Round 2: 6 examples explore 3" in page.text
    assert "the weakest of all" in page.text


def test_rewards_are_shown_by_skill_and_round(tmp_path: Path) -> None:
    text, _ = read(teach_run(tmp_path / "run", reason=HOSTILE))
    table = text[text.index('<table class="rewards">') :]
    rows = dict(re.findall(r'<tr[^>]*><th scope="row">([\w ]+)</th>(.*?)</tr>', table[: table.index("</table>")], re.S))
    assert list(rows) == ["all skills", "addition", "clock"]
    # 8, 10 and 13 of 20 are right, addition having the first 10: by hand 100 (2 ± 1.96 sqrt(3 - 4 / 12)) / 12.
    assert "+10.0" in rows["all skills"]
    cells = [HtmlPage(cell).text.strip() for cell in re.findall(r"<td>.*?</td>", rows["addition"], re.S)]
    assert cells[0].startswith("+20.0 −10.0 to +43.3, n 10 6 examples explore")
    assert cells[1].startswith("0.0 −16.3 to +16.3, n 10 2 examples explore")
    clock = [HtmlPage(cell).text.strip() for cell in re.findall(r"<td>.*?</td>", rows["clock"], re.S)]
    assert clock[0].endswith("0 examples")
    assert clock[1].startswith("+30.0 −4.4 to +54.4, n 10 4 examples explore explore")
    assert 'title="&lt;/script&gt;' in rows["addition"]


def test_the_round_that_is_kept_is_named_and_marked(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with create(folder, TeachSettings(rounds=3, keep="best", start="last")) as run:
        store = run.store
        store.add_attempts("0/validation", attempts(8), cost("0/validation"))
        store.add_attempts("0/test", attempts(8), cost("0/test"))
        for round_, right in ((1, 13), (2, 10), (3, 13)):
            store.add_lesson(round_, lesson(("addition", "carry", 6)), cost(f"{round_}/lesson"))
            store.add_training(round_, f"{round_}" * 16, [(1, 1.0)], cost(f"{round_}/train"))
            store.add_attempts(f"{round_}/validation", attempts(right), cost(f"{round_}/validation"))
        _, page = read(folder)
        assert "Best so far: the student after round 1 of 3" in page.text
        store.add_attempts("1/test", attempts(14), cost("1/test"))
        run.write_summary({"recipe": "teach", "kept_round": 1})
        text, page = read(folder)
    assert "Kept: the student after round 1 of 3, taught 6 examples" in page.text
    assert "with 65.0 % [43.3–81.9 %; 13 of 20 right]" in page.text
    assert "Test after 70.0 %" in page.text
    assert "111111111111" in page.text
    assert text.count("kept: round 1</title>") == 1
    assert "Every round continues from the last one" in page.text


def test_samples_are_sorted_by_what_became_of_them(tmp_path: Path) -> None:
    before = [
        attempt("s", "", 0, False),
        attempt("s", "", 1, False),
        attempt("s", "", 2, True),
        attempt("s", "", 3, True),
    ]
    after = [
        attempt("s", "", 0, True),
        attempt("s", "", 1, False),
        attempt("s", "", 2, False),
        attempt("s", "", 3, None),
    ]
    groups = {group["title"]: group for group in compare_attempts(before, after)}
    for title, number in (("Now right", 0), ("Still wrong", 1), ("Lost", 2)):
        assert [sample["reference"] for sample in groups[title]["samples"]] == [f"reference {number}"]
        assert groups[title]["total"] == 3  # A failure is no comparison.


def test_samples_are_spread_over_the_skills() -> None:
    items = [f"{skill}{number}" for skill in "abcdef" for number in range(5)]
    assert [item[0] for item in spread(items, lambda item: item[0], 6)] == list("abcdef")
    assert spread(items, lambda item: item[0], 3) == ["a0", "c0", "e0"]
    assert spread(items[:3], lambda item: item[0], 9) == ["a0", "a1", "a2"]


@pytest.mark.parametrize("steps", range(7))
def test_a_running_run_shows_the_results_so_far(tmp_path: Path, steps: int) -> None:
    folder = tmp_path / "run"
    with create(folder, TeachSettings(rounds=2)) as run:
        store = run.store
        moves: list[Any] = [
            lambda: store.add_attempts("0/validation", attempts(8), cost("0/validation")),
            lambda: store.add_attempts("0/test", attempts(8), cost("0/test")),
            lambda: store.add_lesson(1, lesson(("addition", "carry", 6)), cost("1/lesson")),
            lambda: store.add_training(1, "aaaa1111", [(1, 2.0)], cost("1/train")),
            lambda: store.add_attempts("1/validation", attempts(10)[:7], cost("1/validation")),
            lambda: store.add_attempts("1/validation", attempts(10)[7:], cost("1/validation")),
        ]
        for move in moves[:steps]:
            move()
        # The run is still locked by its own process: a report must not need the lock.
        _, page = read(folder)
    assert "The run has not ended." in page.text
    assert f"{1 if steps == 6 else 0} of 2 rounds are done" in page.text
    assert ("Test before 40.0 %" in page.text) == (steps >= 2)
    assert ("round 1: validation (7 of 20 attempts)" in page.text) == (steps == 5)


def test_a_half_finished_evaluation_is_in_no_curve(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with create(folder, TeachSettings(rounds=2)) as run:
        run.store.add_attempts("0/validation", attempts(8), cost("0/validation"))
        run.store.add_lesson(1, lesson(("addition", "carry", 6)), cost("1/lesson"))
        run.store.add_attempts("1/validation", attempts(8)[:8], cost("1/validation"))
    text, _ = read(folder)
    assert "round 0, 0 examples: 40.0 %" in text
    assert "round 1, 6 examples" not in text


def test_costs_are_listed_by_phase_with_their_sum(tmp_path: Path) -> None:
    _, page = read(teach_run(tmp_path / "run"))
    assert "round 2: training 60.0" in page.text
    assert re.search(r"all 97\.0 180 9\D900 19\D800 \$4\.50", page.text)


def test_settings_are_listed_and_changed_ones_marked(tmp_path: Path) -> None:
    text, page = read(teach_run(tmp_path / "run"))
    assert "Examples in one lesson" in page.text
    assert re.search(r"<code>seed</code></td><td>7 <span class=\"dot\"", text)
    assert re.search(r"<code>engine_batch</code></td><td>128</td>", text)


def test_an_evaluation_shows_accuracy_failures_and_subskills(tmp_path: Path) -> None:
    _, page = read(evaluate_run(tmp_path / "run", attempts(8, failed=4)))
    assert "small-model on math-skills" in page.text
    assert "Accuracy, validation split 50.0 % 28.0–72.0 %" in page.text
    assert "Right 8 of 16 scored" in page.text
    assert "Failures 4 engine 4" in page.text
    assert "past_hour 0.0 % 0.0–43.4 % 0 5 0" in page.text
    assert "within_hour 0.0 % 0.0–79.3 % 0 1 4" in page.text
    for title in ("Wrong 8 of 20", "Right 8 of 20", "Failed 4 of 20"):
        assert title in page.text
    assert "has not ended" not in page.text


def test_an_evaluation_that_has_not_ended_says_so(tmp_path: Path) -> None:
    _, page = read(evaluate_run(tmp_path / "run", attempts(8)[:3], ended=False))
    assert "The run has not ended. This page shows the 3 attempts so far." in page.text


def test_an_evaluation_where_everything_failed_has_no_accuracy(tmp_path: Path) -> None:
    _, page = read(evaluate_run(tmp_path / "run", attempts(0, failed=20)))
    assert "Accuracy, validation split – –" in page.text
    assert "Failures 20 engine 20" in page.text


def test_problems_without_skill_and_with_images_can_be_reported(tmp_path: Path) -> None:
    parts = (TextPart("What is this? "), ImagePart("https://example.org/cat.png"))
    problem = Problem("p", (Message("system", "Be brief."), Message("user", parts)), "a cat")
    text, page = read(evaluate_run(tmp_path / "run", [Attempt(problem, Completion("a dog"), Score(0.0))]))
    assert "system: Be brief. user: What is this? [image]" in page.text
    assert "https://" not in text
    assert "not divided by skill" in page.text


def test_folders_that_hold_no_run_are_refused_in_one_line(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path):
        with pytest.raises(RunError, match=str(folder)):
            write_report(folder)
    with Run.create(tmp_path / "other", "juggle", {}):
        pass
    with pytest.raises(RunError, match=r"'juggle' .*evaluate, teach"):
        write_report(tmp_path / "other")
    assert not (tmp_path / "other" / "report.html").exists()


def test_a_damaged_store_is_an_error_of_ours(tmp_path: Path) -> None:
    folder = evaluate_run(tmp_path / "run", attempts(8))
    (folder / "store.sqlite").write_bytes(b"not a database at all" * 100)
    with pytest.raises(PalaestraError):
        write_report(folder)


def test_a_tree_without_subskills_has_its_skills() -> None:
    report = Report("all", 0.5, 0.1, 0.9, 2, 1, {}, (Report("addition", 0.5, 0.1, 0.9, 2, 1),))
    (node,) = build_skill_nodes(report, {1: {("addition", ""): 4}})
    assert (node.name, node.examples, node.first_round, node.children) == ("addition", 4, 1, ())


def test_heat_reaches_from_none_to_the_most() -> None:
    rows = allocation_rows({1: {("a", "x"): 10}, 2: {("a", "x"): 1, ("a", "y"): 5}})
    assert rows == [("a", "x", [(10, 5), (1, 1)]), ("a", "y", [(0, 0), (5, 3)])]


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    curve = [(step, 1.0) for step in range(1, 5001)]
    drawn = thin(curve)
    assert len(drawn) <= 402
    assert drawn[0][0] == 1
    assert drawn[-1][0] == 5000
    points = [MetricPoint(step, step, value, value - 1, value + 1) for step, value in curve]
    assert smooth(points, 0.9)[-1].value == pytest.approx(1.0)
    assert smooth(points[:1], 0.9) == points[:1]


def test_ticks_are_round_and_within_the_axis() -> None:
    assert ticks(40, 70, 5) == [40, 50, 60, 70]
    assert ticks(0, 0.9, 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert ticks(3, 3) == [3]


def test_elements_escape_attributes_and_text() -> None:
    assert element("text", "<&>", x=1.0, data_name='"<') == '<text x="1" data-name="&#34;&lt;">&lt;&amp;&gt;</text>'


def test_rehearsed_examples_are_counted_by_skill(tmp_path: Path) -> None:
    folder = teach_run(tmp_path / "run")
    with Run.open(folder) as run:
        run.store.add_attempts("0/rehearsal", attempts(8), cost("0/rehearsal"))
    text, _ = read(folder)
    table = text[text.index('id="skills"') : text.index('id="curves"')]
    rows = dict(re.findall(r'<tr[^>]*><th scope="row">([\w ]+)</th>(.*?)</tr>', table, re.S))
    correct = Counter(a.problem.skill for a in attempts(8) if a.correct)
    assert correct.total() > 0
    for name, count in {**correct, "all skills": correct.total()}.items():
        assert f"and {count} rehearsed" in rows[name]
