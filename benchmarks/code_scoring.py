"""Are programs judged rightly, and how fast? HumanEval's and MBPP's own solutions, and those broken on purpose.

Every published solution must pass. Then one operator or constant of each is changed, and what plain Python (the tests
run in the program's own process, nothing isolated) says of the result is what our judge must say. On the CodeContests
file a program that prints what is expected must pass, and one that prints it altered must fail. `--data FOLDER` holds
`humaneval`, `mbpp` and `code_contests_test`. Ratio: programs a second through two sandboxes over those by a plain subprocess.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from _common import arguments, finish

from palaestra.core.records import Failure
from palaestra.tasks.code.formats import CodeProblem, Functions, Stdio
from palaestra.tasks.code.judge import ProgramJudge
from palaestra.tasks.code.published import MBPP, CodeContests, HumanEval

MUTANTS = 3
SECONDS = 10


def main() -> None:
    options = arguments(__doc__ or "", data="folder with humaneval, mbpp and code_contests_test")
    if not options.data:
        print("give --data FOLDER; without it there is nothing to judge")
        print(json.dumps({"benchmark": "code_scoring", "skipped": "no --data"}))
        sys.exit(0 if options.quick else 2)
    judge, table = ProgramJudge(trusted=True), {}
    sets: dict[str, Any] = {"humaneval": HumanEval, "mbpp": MBPP}
    for name, kind in sets.items():
        problems = list(kind(os.path.join(options.data, name)).read_all())[: 20 if options.quick else None]
        table[name] = functions(judge, problems)
        print(name, table[name], flush=True)
    contests = list(CodeContests(os.path.join(options.data, "code_contests_test")).read_all())
    table["code_contests"] = programs(judge, contests[: 10 if options.quick else None])
    print("code_contests", table["code_contests"], flush=True)
    human = table["humaneval"]
    finish("code_scoring", human["programs_per_second"] / human["plain_per_second"], threads=os.cpu_count(), sets=table)


def functions(judge: ProgramJudge, problems: list[CodeProblem]) -> dict[str, Any]:
    start = time.perf_counter()
    right = spread(lambda p: check_program(judge, p, p.solution), problems)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    plainly = spread(lambda p: plain(p, p.solution), problems)
    plain_seconds = time.perf_counter() - start
    broken = [(p, code) for p in problems for code in mutants(p)]
    wanted = spread(lambda pair: plain(*pair), broken)
    verdicts = spread(lambda pair: check_program(judge, *pair), broken)
    unlike = [p.id for (p, _), a, b in zip(broken, wanted, verdicts, strict=True) if a is not None and a != b]
    return {
        "problems": len(problems), "solutions_passed": sum(x is True for x in right), "plainly_passed": sum(x is True for x in plainly),
        "mutants": len(broken), "mutants_that_fail": sum(x is False for x in wanted), "judged_otherwise": unlike,
        "problems_with_a_failing_mutant": len({p.id for (p, _), a in zip(broken, wanted, strict=True) if a is False}),
        "programs_per_second": round(len(problems) / seconds, 1), "plain_per_second": round(len(problems) / plain_seconds, 1),
    }  # fmt: skip


def programs(judge: ProgramJudge, problems: list[CodeProblem]) -> dict[str, Any]:
    """Programs that know what is expected, by what they read."""

    def cheat(problem: CodeProblem, alter: bool) -> str:
        assert isinstance(problem.tests, Stdio)
        known = dict(zip(problem.tests.inputs, problem.tests.outputs, strict=True))
        # One character of the last word: of a decimal number its first digit, as the last ones may differ.
        change = (
            "at = max(out.rfind(' '), out.rfind('\\n')) + 1\n"
            "at = next((k for k in range(at, len(out)) if out[k].isdigit()), at) if '.' in out[at:] else len(out) - 1\n"
            "out = out[:at] + ('7' if out[at : at + 1] != '7' else '3') + out[at + 1 :]\n"
        )
        program = f"import sys\nknown = {known!r}\nout = known[sys.stdin.read()].strip()\n"
        return f"{program}{change if alter else ''}print(out)\n"

    good = spread(lambda p: check_program(judge, p, cheat(p, False)), problems)
    bad = spread(lambda p: check_program(judge, p, cheat(p, True)), problems)
    return {
        "problems": len(problems),
        "exact_passed": sum(x is True for x in good),
        "altered_failed": sum(x is False for x in bad),
    }


def check_program(judge: ProgramJudge, problem: CodeProblem, code: str) -> bool | None:
    verdict = judge.judge(problem.tests, code, problem.seconds, problem.memory)
    return None if isinstance(verdict, Failure) else verdict.passed


def plain(problem: CodeProblem, code: str) -> bool | None:
    """What Python itself says, with tests and program in one process; `None` where it takes too long."""
    assert isinstance(problem.tests, Functions)
    end = f"\ncheck({problem.wanted})\n" if problem.tests.takes_function else "\n"
    whole = f"{code}\n{problem.tests.code}{end}"
    if problem.tests.given:  # Helpers of the question are not the program's to define.
        load = f"program = {{}}\nexec({code!r}, program)\n"
        whole = f"{load}{problem.tests.given}\n{problem.tests.code}\ncheck(program[{problem.wanted!r}])\n"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", whole], capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode == 0


class Change(ast.NodeTransformer):
    """The n-th operator or constant, changed."""

    def __init__(self, place: int) -> None:
        self.place, self.seen = place, -1

    def _here(self) -> bool:
        self.seen += 1
        return self.seen == self.place

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if self._here():
            node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if self._here():
            swap = {
                ast.Lt: ast.GtE,
                ast.Gt: ast.LtE,
                ast.LtE: ast.Gt,
                ast.GtE: ast.Lt,
                ast.Eq: ast.NotEq,
                ast.NotEq: ast.Eq,
            }
            node.ops = [swap.get(type(op), type(op))() for op in node.ops]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) is int and self._here():
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node


def mutants(problem: CodeProblem) -> list[str]:
    """Some programs that differ from the solution in one place."""
    counter = Change(-1)
    counter.visit(ast.parse(problem.solution))
    places = np.random.default_rng(0).permutation(counter.seen + 1)[:MUTANTS]
    return [ast.unparse(ast.fix_missing_locations(Change(int(k)).visit(ast.parse(problem.solution)))) for k in places]


def spread(work: Any, items: list[Any]) -> list[Any]:
    """As many side by side as there are cores."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(work, items))


if __name__ == "__main__":
    main()
