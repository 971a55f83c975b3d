"""How many answers to GSM8K are judged in a second, beside math-verify called by hand?

Both read the same responses, the published solutions with their answers in a box, and compare with the same
references. Ours is the whole of `task.score`: extraction, comparison and evidence. Math-verify's own parsing
of the references is not counted, as a careful user would do it once. The comparisons of MATH's kind (surds,
expressions, sets), which take a process of their own, are measured apart on a handful of forms.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

from _common import alternate, arguments, finish, median

from palaestra.core.records import Completion, Score, Split
from palaestra.tasks.base import make_task
from palaestra.tasks.math.equivalence.compare import AnswerVerdict, compare_answers

WANTED = 2000
HOW = "this benchmark needs GSM8K: a folder with train.jsonl(.gz) and test.jsonl(.gz) as OpenAI publishes them: --data FOLDER"
SYMBOLIC = (
    (r"\frac{K}{\sqrt{2}}", r"\frac{K\sqrt{2}}{2}"), (r"x^2+2\cdot Kx+K^2", "(x+K)^2"), (r"\{\sqrt{4},K+\sqrt{3}\}", r"\{2,\sqrt{3}+K\}"),
    (r"K+\sqrt{3+2\sqrt{2}}", r"K+1+\sqrt{2}"), ("y=2x+K", "2x-y+K=0"), (r"\cos Kx+\cos 2x", r"1-2\sin^2 x+\cos Kx"),
)  # fmt: skip


def main() -> None:
    options = arguments(__doc__ or "", data="the folder of GSM8K")
    if not options.data:
        print(HOW)
        if options.quick:
            print(json.dumps({"benchmark": "math_scoring", "skipped": "no --data"}))
        sys.exit(0 if options.quick else 2)
    from math_verify import parse, verify

    task = make_task("gsm8k", path=str(Path(options.data)))
    problems = [
        p for skill in task.skills() for p in task.problems(Split.TEST, 30 if options.quick else 140, 0, [skill])
    ]
    responses = [Completion(problem.metadata["worked"]) for problem in problems]
    golds = [parse(problem.reference) for problem in problems]

    def ours() -> None:
        for problem, response in zip(problems, responses, strict=True):
            score = task.score(problem, response)
            assert isinstance(score, Score)
            assert score.value == 1.0

    def theirs() -> int:
        return sum(verify(gold, parse(response.text)) for gold, response in zip(golds, responses, strict=True))

    numbers = itertools.count(11)

    def symbolic() -> None:
        number = str(next(numbers))  # Other expressions every time: what was parsed before is remembered.
        for answer, reference in SYMBOLIC:
            verdict = compare_answers(answer.replace("K", number), reference.replace("K", number))
            assert isinstance(verdict, AnswerVerdict)
            assert verdict.equal

    ours(), symbolic()  # warm up
    agreed = theirs()
    repetitions = 3 if options.quick else 7
    mine, other = alternate(repetitions, ours, theirs)
    (algebra,) = alternate(repetitions, symbolic)
    rate, their_rate = len(problems) / median(mine), len(problems) / median(other)
    print(
        f"{len(problems)} verdicts: ours {rate:,.0f}/s (wanted {WANTED:,}), math-verify {their_rate:,.0f}/s (medians of {repetitions})"
    )
    finish(
        "math_scoring",
        rate / their_rate,
        verdicts=len(problems),
        repetitions=repetitions,
        verdicts_a_second=round(rate),
        slowest_a_second=round(len(problems) / max(mine)),
        math_verify_a_second=round(their_rate),
        math_verify_right=agreed,
        wanted=WANTED,
        symbolic_a_second=round(len(SYMBOLIC) / median(algebra)),
    )


if __name__ == "__main__":
    main()
