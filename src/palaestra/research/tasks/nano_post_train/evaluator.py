"""Rerun the training of a submission with an unseen seed, audit it, and score the student on fresh problems.

The problems and the seed are drawn from the secret seed. Only the weights of a student are used, with nano's own architecture,
tokenizer and chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from palaestra.core.errors import TaskError
from palaestra.core.records import Problem, Sampling, Score, Split
from palaestra.models.embedded import EMBEDDED
from palaestra.models.registry import load
from palaestra.research.judge.audit import (
    find_changed_files,
    find_copied_problems,
    find_memorized_problems,
    find_picked_seed,
)
from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.tasks.task import SubmissionError
from palaestra.sandbox.rpc import last_error_line
from palaestra.tasks.base import make_task
from palaestra.tasks.evaluate import evaluate as ask

if TYPE_CHECKING:
    import torch

SCRIPT, FOLDER, WEIGHTS = "train.py", "student/", "student/model.safetensors"
PROBLEMS = 20
"""Published problems of each skill, and twins."""
MAX_CODE = 1_500_000
"""Bytes of code and data, too few for weights."""


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    import torch

    task, rng = make_task("math-skills"), evaluation.generator("problems")
    published = task.problems(Split.TEST, PROBLEMS, 0)
    twins = task.problems(Split.VALIDATION, PROBLEMS, int(rng.integers(1 << 40)))
    files = dict(evaluation.files)
    submitted = _read_weights(files.pop(WEIGHTS))
    code = {name: content for name, content in files.items() if not name.startswith(FOLDER)}
    if sum(map(len, code.values())) > MAX_CODE:
        raise SubmissionError(f"code and data must have at most {MAX_CODE} bytes together")
    parts = {name.removeprefix(FOLDER): content for name, content in files.items() if name not in code}
    findings = [find_changed_files(parts, EMBEDDED["nano"].folder), find_copied_problems(code, published, twins)]
    result = replace(evaluation, files=code).run(
        "python3", SCRIPT, "--seed", str(rng.integers(1 << 30)), read_back=(WEIGHTS,)
    )
    if not result.ok or WEIGHTS not in result.files:
        raise SubmissionError(f"{SCRIPT} with another seed wrote no {WEIGHTS}: {last_error_line(result)}")
    rerun = _read_weights(result.files[WEIGHTS])
    solved = [_solve(weights, [*published, *twins]) for weights in (submitted, rerun)]
    is_equal = all(torch.equal(submitted[name], tensor) for name, tensor in rerun.items())
    findings += [find_memorized_problems(row[: len(published)], row[len(published) :]) for row in solved]
    findings.append(find_picked_seed(solved[0], solved[1], is_equal))
    if reasons := [str(finding) for finding in findings if finding is not None]:
        raise SubmissionError("; ".join(reasons), f"the audit found {reasons[0].partition(':')[0]}", exposed=True)
    means = [sum(part) / len(part) for row in solved for part in (row[: len(published)], row[len(published) :])]
    return dict(zip(("submitted_published", "submitted", "published", "accuracy"), means, strict=True))


def _read_weights(content: bytes) -> dict[str, torch.Tensor]:
    """Read weights and compare their names and shapes with those of nano."""
    import safetensors
    import torch
    from safetensors.torch import load as read

    try:
        weights = {name: tensor.float() for name, tensor in read(content).items()}
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise SubmissionError(f"{WEIGHTS} is not a file of safetensors: {str(error)[:200]}") from None
    expected = {name: p.shape for name, p in load("nano").weights.named_parameters()}
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    if wrong := sorted({name for name, _ in shapes.items() ^ expected.items()}):
        raise SubmissionError(f"{WEIGHTS} must have the names and shapes of nano's weights; compare {wrong[:4]}")
    if not all(torch.isfinite(tensor).all() for tensor in weights.values()):
        raise SubmissionError(f"{WEIGHTS} contains numbers that are not finite")
    return weights


def _solve(weights: dict[str, torch.Tensor], problems: Sequence[Problem]) -> list[bool]:
    """Which problems nano with these weights solves."""
    from palaestra.engines.transformers import TransformersEngine

    model = load("nano")
    model.weights.float().load_state_dict(weights, strict=False)
    engine = TransformersEngine(model.weights, model.tokenizer)
    attempts = ask(
        make_task("math-skills"), problems, lambda: engine, sampling=Sampling(max_tokens=72, temperature=0.0)
    )
    for attempt in attempts:
        if not isinstance(attempt.outcome, Score):
            raise TaskError(f"problem {attempt.problem.id} was not scored: {attempt.outcome.message}")
    return [bool(attempt.correct) for attempt in attempts]
