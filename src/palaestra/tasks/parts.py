"""Train, validation and test parts of data sets that are published without them.

Most of a benchmark stays test. The part of a problem depends on the problem alone, not on a seed or on other problems.
"""

from __future__ import annotations

import hashlib
from datetime import date

from palaestra.core.records import Split

TRAIN_PERCENT = 20
VALIDATION_PERCENT = 20


def part_by_hash(identity: str) -> Split:
    """The part of a problem, by the hash of its id: 20 % train, 20 % validation, 60 % test.

    >>> str(part_by_hash("HumanEval/0")), str(part_by_hash("HumanEval/3"))
    ('test', 'train')
    """
    bucket = int.from_bytes(hashlib.blake2b(f"part|{identity}".encode(), digest_size=8).digest()) % 100
    if bucket < TRAIN_PERCENT:
        return Split.TRAIN
    return Split.VALIDATION if bucket < TRAIN_PERCENT + VALIDATION_PERCENT else Split.TEST


def part_by_date(day: date, validation_from: date, test_from: date) -> Split:
    """The part of a problem by its date: the oldest are train, the newest test.

    >>> str(part_by_date(date(2024, 1, 1), date(2023, 9, 1), date(2024, 1, 1)))
    'test'
    """
    if day >= test_from:
        return Split.TEST
    return Split.VALIDATION if day >= validation_from else Split.TRAIN
