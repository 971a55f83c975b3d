"""Replaying line numbers of a published trajectory on files that have grown at the top."""

import pytest

from palaestra.core.records import Message
from palaestra.research.agents.replay import shift_lines

THEN = [
    "[File: /w/a.py (10 lines total)]\n1:x = 1",
    "[File: /w/b.py (5 lines total)]\n1:y",
    "[File: /w/a.py (12 lines total)]",
]
NOW = ["[file /w/a.py, 13 lines]\n1|# new", "[file /w/b.py, 5 lines]\n1|y", "[file /w/a.py, 15 lines]"]


def make_conversation(answers: list[str]) -> list[Message]:
    pairs = [(Message("assistant", "..."), Message("user", answer)) for answer in answers]
    return [Message("user", "Begin."), *(message for pair in pairs for message in pair)]


@pytest.mark.parametrize(
    ("steps", "block", "expected"),
    [
        (1, "edit 1:10\nnew\nend_of_edit", "edit 4:13\nnew\nend_of_edit"),
        (1, "insert 0\nnew\nend_of_insert", "insert 3\nnew\nend_of_insert"),
        (1, "goto 7", "goto 10"),
        (2, "edit 1:2\nnew\nend_of_edit", "edit 1:2\nnew\nend_of_edit"),
        (3, "edit 2:3\nnew\nend_of_edit", "edit 5:6\nnew\nend_of_edit"),
        (1, "python a.py 1:10", "python a.py 1:10"),
        (1, "editor 1", "editor 1"),
        (0, "edit 1:10\nnew\nend_of_edit", "edit 1:10\nnew\nend_of_edit"),
    ],
)
def test_numbers_move_with_the_file_that_is_open(steps: int, block: str, expected: str) -> None:
    text = "I edit 1:10.\n```\n{}\n```"
    assert shift_lines(text.format(block), THEN[:steps], make_conversation(NOW[:steps])) == text.format(expected)


def test_only_the_last_block_is_an_action() -> None:
    text = "First\n```\nedit 1:2\n```\nor rather\n```python\nedit 3:4\nx\nend_of_edit\n```\n"
    assert shift_lines(text, THEN[:1], make_conversation(NOW[:1])) == text.replace("3:4", "6:7")
