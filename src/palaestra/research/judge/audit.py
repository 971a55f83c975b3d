"""Audit a post-trained model: copied or memorized test problems, changed files, a picked seed.

The published test problems are compared with twins: problems of the same kind that were drawn after the submission. An honest
submission meets both equally often and solves both equally well. Statistical findings need `MAX_P`, so that one of a thousand
honest submissions has one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from palaestra.core.records import Example, Message, Problem, Split
from palaestra.core.statistics import compute_paired_gain, fisher_test
from palaestra.tasks.leakage import HeldOut

MAX_P = 0.001
MAX_SPREAD = 5.0
"""Percentage points by which trainings with two seeds may differ, beyond the interval of the difference."""

_NOTES = {"is_local", "local_files_only", "transformers_version"}
_QUOTED = re.compile(r"""(['"])((?:\\.|(?!\1)[^\\])*)\1""")


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """Evidence against a submission.

    Arguments:
        rule: `copied problems`, `memorized problems`, `changed files` or `picked seed`.
        evidence: what was measured.
    """

    rule: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.evidence}"


def find_copied_problems(
    files: Mapping[str, bytes], published: Sequence[Problem], twins: Sequence[Problem]
) -> AuditFinding | None:
    """Screen the text of submitted files for test problems, verbatim or reworded (`palaestra.tasks.leakage`).

    Training data that covers a small pool of problems repeats some of them by chance, and as many twins.
    """
    examples = [example for content in files.values() for example in _read_examples(content)]
    counts = []
    for problems in (published, twins):
        leaks = HeldOut({Split.TEST: problems}).find(examples)
        counts.append(len({leak.problem_id for leak in leaks if leak is not None}))
    if fisher_test((counts[0], len(published)), (counts[1], len(twins))) >= MAX_P:
        return None
    evidence = (
        f"the files repeat {counts[0]} of {len(published)} published problems and {counts[1]} of {len(twins)} twins"
    )
    return AuditFinding("copied problems", evidence)


def find_memorized_problems(published: Sequence[bool], twins: Sequence[bool]) -> AuditFinding | None:
    """Compare the accuracy on published problems with that on their twins, given which of them were solved."""
    solved, fresh = (sum(published), len(published)), (sum(twins), len(twins))
    if fisher_test(solved, fresh) >= MAX_P:
        return None
    evidence = f"{solved[0]} of {solved[1]} published problems are solved, and {fresh[0]} of {fresh[1]} twins"
    return AuditFinding("memorized problems", evidence)


def find_changed_files(files: Mapping[str, bytes], base: Path) -> AuditFinding | None:
    """Compare the hashes of submitted files, by name, with the files of the base model, such as its chat template.

    Notes that transformers adds to a JSON file when it saves a model are left out.
    """
    known = [name for name in files if (base / name).is_file()]
    changed = [name for name in known if _hash(files[name]) != _hash((base / name).read_bytes())]
    return (
        AuditFinding("changed files", f"{', '.join(sorted(changed))} differ from the base model's") if changed else None
    )


def find_picked_seed(submitted: Sequence[bool], rerun: Sequence[bool], is_equal: bool) -> AuditFinding | None:
    """Compare a submitted model with that of a rerun of its training with another seed.

    Arguments:
        submitted, rerun: which problems each solved, the same problems in the same order.
        is_equal: whether both have the same weights, so that the training ignores its seed.
    """
    if is_equal:
        return AuditFinding("picked seed", "a rerun with another seed has the same weights")
    gain = compute_paired_gain(rerun, submitted)
    if gain.low <= MAX_SPREAD:
        return None
    return AuditFinding(
        "picked seed", f"the submitted model is {gain.points:.1f} points above a rerun with another seed"
    )


def _hash(content: bytes) -> str:
    try:
        settings = json.loads(content)
        content = json.dumps({name: settings[name] for name in settings.keys() - _NOTES}, sort_keys=True).encode()
    except (ValueError, AttributeError, RecursionError):
        pass  # Not an object of JSON.
    return hashlib.sha256(content).hexdigest()


def _read_examples(content: bytes) -> list[Example]:
    """The lines of a text file, as examples for the screen; none of a binary file."""
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        return []
    return [_read_example(line) for line in lines if line.strip()]


def _read_example(line: str) -> Example:
    """The texts in a line of JSON or of code, of which the last is the response; or the whole line."""
    try:
        texts = list(_list_texts(json.loads(line)))
    except (ValueError, RecursionError):
        texts = [text for _, text in _QUOTED.findall(line)]
    *asked, response = texts if len(texts) > 1 else (line, "")
    return Example((Message("user", "\n".join(asked)),), response)


def _list_texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _list_texts(part)
