"""Score a teacher by the held-out gain of students that it has not seen.

The students, their examples and the problems that decide the gain are drawn from the secret seed. All teachers are judged with
the same ones, so that their scores differ by their lessons only.
"""

from __future__ import annotations

import numpy as np

from palaestra.core.statistics import mean_interval
from palaestra.envs.lesson.flat import FlatLessonVectorEnv
from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.tasks.data import load_function
from palaestra.research.tasks.task import SubmissionError

FILE, FUNCTION = "teacher.py", "plan_lessons"
STUDENTS = 8


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    options = load_function(evaluation.task.folder / evaluation.task.starter / "practice.py", "get_options")()
    rng = evaluation.generator("students")
    env = FlatLessonVectorEnv(STUDENTS, data_seed=int(rng.integers(1 << 40)), **options)
    tables_KSF, _ = env.reset(seed=rng.integers(1 << 40, size=STUDENTS).tolist())
    gains_K = np.zeros(STUDENTS)
    with evaluation.program(FILE) as program:
        for _ in range(env.rounds):
            answer = program.call(FUNCTION, list(env.skills), tables_KSF.tolist())
            tables_KSF, rewards_K, *_ = env.step(_check_actions(answer, len(env.skills)))
            gains_K += rewards_K
    gain = mean_interval((100 * gains_K).tolist())
    return {"gain": gain.value, "low": gain.low, "high": gain.high}


def _check_actions(answer: object, skills: int) -> np.ndarray:
    """Check the actions of all students, [student, skill]."""
    rows = answer if isinstance(answer, list) and len(answer) == STUDENTS else [answer]
    for row in rows:
        if len(rows) != STUDENTS or not isinstance(row, list) or len(row) != skills:
            expected = f"{FUNCTION} must return one list of {skills} numbers for each of {STUDENTS} tables"
            raise SubmissionError(f"{expected}; got {str(row)[:80]}")
        for value in row:
            if type(value) not in (int, float) or not -1 <= value <= 1:
                raise SubmissionError(f"{FUNCTION} must return numbers from -1 to 1; got {str(value)[:40]}")
    return np.array(rows, dtype=np.float32)
