"""Outputs of a replayed run against the recorded ones."""

from __future__ import annotations

import pytest

from palaestra.research.agents.comparison import (
    Window,
    find_answer_difference,
    find_difference,
    find_score_difference,
    map_line,
)

LISTED = "total 8\ndrwxr-xr-x 2 agent mlgym 4096 Nov 20 17:58 ./\n-rwxrwxr-x 1 agent mlgym 2577 Nov 18 13:09 run.py*\n"


@pytest.mark.parametrize(
    ("recorded", "observed"),
    [
        ("a\n\nb  \n", "a\nb"),
        ("<f at 0x7f3a>", "<f at 0x55d0c1>"),
        ("took 3.21 seconds, 12 it/s", "took 0.4 seconds, 9 it/s"),
        ("2024-11-20 17:58:01,123 start", "2026-01-02 03:04:05,678 start"),
        ("loss 0.412, accuracy 0.91", "loss 0.409, accuracy 0.93"),
        ("payoff -0.0030", "payoff 0.0012"),
        ("\x1b[31mred\x1b[0m", "red"),
        (LISTED, "total 4\ndrwxr-xr-x 1 root root 60 Jan  2 03:04 .\n-rw-r--r-- 1 root root 99 Jan  2 03:04 run.py\n"),
        ("/bin/bash: line 77: foo: command not found", "bash: line 3: foo: command not found"),
        ('File "/opt/conda/lib/python3.11/site-packages/a.py"', 'File "/usr/lib/python3.11/a.py"'),
    ],
)
def test_what_varies_is_no_difference(recorded: str, observed: str) -> None:
    assert find_answer_difference("ls -la" if recorded is LISTED else "python a.py", recorded, observed, {}) == ""


@pytest.mark.parametrize(
    ("recorded", "observed", "difference"),
    [
        ("a\nb", "a\nc", "'c' instead of 'b'"),
        ("a\nb", "a", "the end of the output instead of 'b'"),
        ("a", "a\nb", "'b' instead of the end of the output"),
        ("", "Traceback", "'Traceback' instead of the end of the output"),
        ("won 12 games", "won 13 games", "'won 13 games' instead of 'won 12 games'"),
        ("loss 0.40", "loss 0.50", "'loss 0.50' instead of 'loss 0.40'"),
        ("loss 0.40", "loss nan", "'loss nan' instead of 'loss 0.40'"),
        ("x" * 500, "y", f"'y' instead of '{'x' * 119}…'"),
    ],
)
def test_the_first_difference_is_named(recorded: str, observed: str, difference: str) -> None:
    assert find_difference(recorded, observed) == difference


def show(path: str, *lines: str) -> str:
    """A window of MLGym."""
    return "\n".join(
        [f"[File: {path} ({len(lines)} lines total)]", *(f"{k}:{line}" for k, line in enumerate(lines, 1))]
    )


def show_ours(path: str, *lines: str) -> str:
    return "\n".join([f"[file {path}, {len(lines)} lines]", *(f"{k}|{line}" for k, line in enumerate(lines, 1))])


REFUSED = show("/w/a.py", "x") + "\nYour changes have NOT been applied."
OUR_REFUSAL = "The edit was not applied, because it adds 1 new error to the file:\n" + show_ours("/w/a.py", "x")


@pytest.mark.parametrize(
    ("action", "recorded", "observed", "part"),
    [
        ("edit 1:2\nx", show("/w/a.py", "x"), "1 line replaced by 1.\n" + show_ours("/w/a.py", "x"), ""),
        ("edit 1:2\nx", REFUSED, OUR_REFUSAL, ""),
        ("edit 1:2\nx", show("/w/a.py", "x"), OUR_REFUSAL, "edit did not ('The edit was not applied"),
        ("edit 1:2\nx", REFUSED, show_ours("/w/a.py", "x"), "edit showed or changed a file; when recorded, it did not"),
        ("open a.py", show("/w/a.py", "x"), show_ours("/w/b.py", "x"), "/w/b.py instead of /w/a.py is open"),
        ("open a.py", show("/w/a.py", "x", "y"), show_ours("/w/a.py", "x", "z"), "/w/a.py has 'z' instead of 'y'"),
        ("open a.py", "File a.py not found", "'a.py' does not exist.", ""),
        ("search_file x", 'Found 2 matches for "x" in /w/a.py:\n...', "[2 lines with 'x' in a.py]\n...", ""),
        ("search_file x", 'Found 2 matches for "x" in /w/a.py:\n...', "No line of a.py holds 'x'.", "0 instead of 2"),
        ("validate", "Evaluation Score: {'Score': 1.34}", "Score on the test split: 1.35 (baseline 1)", ""),
        ("validate", "Evaluation Score: {'Score': 1.34}", "Score on the test split: 1.22 (baseline 1)", "is 1.22 instead of 1.34"),
        ("validate", "Evaluation Score: {'Score': 1.34}", "cannot be judged", "no score instead of 1.34 ('cannot"),
        ("validate", "Failed to decode metrics", "cannot be judged", ""),
    ],
)  # fmt: skip
def test_answers_of_commands_are_compared_by_their_effect(action: str, recorded: str, observed: str, part: str) -> None:
    difference = find_answer_difference(action, recorded, observed, {})
    assert part in difference
    assert bool(part) == bool(difference)


def test_scores_are_compared_by_name() -> None:
    assert find_score_difference({"Score": 1.3368}, {"Score": 1.34, "other": 2.0}) == ""
    assert find_score_difference({"Score": 1.3368}, {"Score": 1.226}) == "Score: the score is 1.226 instead of 1.3368"
    assert find_score_difference({"Score": 1.3368}, {}).startswith("Score: no score instead of 1.3368")


@pytest.mark.parametrize(("number", "start", "end"), [(1, 1, 3), (2, 1, 3), (3, 4, 4), (4, 5, 5), (9, 10, 10)])
def test_lines_are_found_again_in_a_file_that_was_changed(number: int, start: int, end: int) -> None:
    then, now = Window.read(show("/w/a.py", "t1", "t2", "a", "b")), Window.read(show_ours("/w/a.py", *"xyzab"))
    assert then is not None
    assert now is not None
    assert (map_line(then, now, number), map_line(then, now, number, is_end=True)) == (start, end)
