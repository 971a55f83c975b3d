import pytest

from palaestra.tasks.math.base import AnswerKind, equal, extract

N, C, L = AnswerKind.NUMBER, AnswerKind.CLOCK, AnswerKind.LIST


@pytest.mark.parametrize(
    ("response", "kind", "expected"),
    [
        ("3*4=12. Answer: 12", N, "12"),
        ("Answer: 12 nuts", N, "12"),
        ("The answer is 1,200.", N, "1,200"),
        ("Answer: 5. No, wait. Answer: 7", N, "7"),
        ("I think it is 9", N, "9"),
        ("Answer: none", N, None),
        ("The total was 9. Answer: unknown", N, None),
        ("", N, None),
        ("Answer: -3", N, "-3"),
        ("Answer: 5/12", N, "5/12"),
        ("It is 3:05 now, so 4:10", C, "4:10"),
        ("Answer: 12", C, None),
        ("Answer: 3, 5, 8", L, "3, 5, 8"),
        ("Answer: 3", L, None),
    ],
)
def test_extraction(response: str, kind: AnswerKind, expected: str | None) -> None:
    assert extract(response, kind) == expected


@pytest.mark.parametrize(
    ("given", "expected", "kind", "same"),
    [
        ("12", "12", N, True), ("12.0", "12", N, True), ("1,200", "1200", N, True), ("10/24", "5/12", N, True),
        ("0.5", "1/2", N, True), ("5/0", "5", N, False), ("5/0", "6/0", N, False), ("12", "21", N, False),
        ("4:05", "04:05", C, True), ("4:05", "4:50", C, False), ("3,5,8", "3, 5, 8", L, True), ("5,3,8", "3, 5, 8", L, False),
    ],
)  # fmt: skip
def test_equality(given: str, expected: str, kind: AnswerKind, same: bool) -> None:
    assert equal(given, expected, kind) is same


def test_a_list_of_two_numbers_is_not_read_as_one_number() -> None:
    extracted = extract("Answer: 1,2", N)
    assert extracted == "1"
    assert not equal(extracted, "12", N)
