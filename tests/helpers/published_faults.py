"""Faults that were published in issues of other projects, each rebuilt as a small fixture.

`PUBLISHED` maps each fixture to the issue or pull request, and to the check that must find it. A class method `oracle` is
the oracle that the check is given.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from broken_envs import Walk
from broken_talks import Product, Refund
from broken_tasks import Colors, Doubler, Sums

from palaestra.core.records import Completion, Failure, Problem, Score, Split
from palaestra.envs.turn import Reply, TurnStopReason

PUBLISHED: dict[type, tuple[str, str]] = {}


def publish(citation: str, check_id: str) -> Callable[[type], type]:
    def register(kind: type) -> type:
        PUBLISHED[kind] = citation, check_id
        return kind

    return register


def run_python(code: str, folder: str = ".") -> tuple[int, str]:
    """The exit code and the output of a program in a forked process, which starts faster than a new one."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            status = 1
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(2)
                os.chdir(folder)
                sys.stdout = sys.stderr = output
                exec(code, {"__name__": "__main__"})
                status = 0
            except SystemExit as error:
                status = error.code if isinstance(error.code, int) else int(error.code is not None)
            finally:
                output.flush()
                os._exit(status)
        status = os.waitpid(child, 0)[1]
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read()


def compute(reference: str, number: int = 5) -> Any:
    """What a reference program of `Doubler` returns."""
    space: dict[str, Any] = {}
    exec(reference, space)
    return space["solve"](number)


class Program(Doubler):
    """`Doubler` in a forked process, without examples."""

    write_examples = None  # type: ignore[assignment]

    def run(self, reference: str, code: str) -> bool:
        return run_python(f"{code}\nprint('result', repr(solve(5)))") == (0, f"result {compute(reference)}\n")


class AnyProgram(Program):
    """Runs any text as a program."""

    def rate(self, reference: str, text: str) -> float:
        code = re.search(r"```(?:python)?\n(.*?)```", text, re.DOTALL)
        return float(self.run(reference, code[1] if code else text))


# A degenerate answer scores high


@publish("Liuziyu77/Visual-RFT#176", "semantic.floor_gap")
class EitherContains(Colors):
    """The label in the answer or the answer in the label was enough, and the empty text is in every label."""

    def rate(self, reference: str, text: str) -> float:
        return float(reference in self.read(text) or self.read(text) in reference)


@publish("Liuziyu77/Visual-RFT#79", "statistical.adversarial_floor")
class NamesEveryClass(Colors):
    """An answer that listed all classes, such as "A or B or C", contained the label."""

    def rate(self, reference: str, text: str) -> float:
        return float(reference in self.read(text))


@publish("huggingface/OpenEnv#1200", "semantic.floor_gap")
class IgnoresExitCode(AnyProgram):
    """A shell command of the verifier counted as passed unless starting it raised; its exit code was not read."""

    def run(self, reference: str, code: str) -> bool:
        run_python(f"{code}\nassert solve(5) == {compute(reference)}")
        return True


@publish("open-thought/reasoning-gym#265", "statistical.adversarial_floor")
class AnyNumbers(Sums):
    """An expression was right if its value was the target, although it used other numbers than the given ones."""

    def ask(self, skill: str, first: int, second: int) -> str:
        return f"Using the numbers {first} and {second}, write an expression that equals {super().solve(skill, first, second)}."

    def solve(self, skill: str, first: int, second: int) -> str:
        return f"{first} {'+' if skill == 'plus' else '-'} {second}"

    def rate(self, reference: str, text: str) -> float:
        return float(self.evaluate(self.read(text)) == self.evaluate(reference))

    def read(self, text: str) -> str:
        return text.strip().removeprefix("Answer:").strip().rstrip(".")

    def evaluate(self, text: str) -> float:
        """The value of sums and differences; NaN of other texts."""
        if len(text) > 100 or not re.fullmatch(r"\s*-?\d{1,9}(\s*[-+]\s*\d{1,9})*\s*", text):
            return float("nan")
        return sum(int(re.sub(r"\s", "", part)) for part in re.findall(r"[-+]?\s*\d+", text))


@publish("sapientinc/HRM-Text#24", "semantic.floor_gap")
class CreditsGuess(Colors):
    """A text without a valid choice was credited with the score of a guess."""

    def rate(self, reference: str, text: str) -> float:
        answer = self.read(text)
        return float(answer == reference) if answer in self.words else 1 / len(self.words)


@publish("SWE-bench/SWE-smith#24", "semantic.floor_gap")
class MissingTestPasses(AnyProgram):
    """A test that did not appear in the output counted as passed, so code that could not be imported passed all of them."""

    def run(self, reference: str, code: str) -> bool:
        tests = "".join(f"\nprint('test {n}', solve({n}) == {compute(reference, n)})" for n in (2, 5))
        return " False" not in run_python(code + tests)[1]


@publish("UKGovernmentBEIS/inspect_evals#2233", "semantic.floor_gap")
class InvertedVerdict(Sums):
    """The verdict was searched as "correct: yes", which is a part of "incorrect: yes" in the judge's reasons."""

    def judge(self, reference: str, text: str) -> str:
        is_right = super().rate(reference, text)
        return "correct: yes" if is_right else "reasoning: is it incorrect: yes, it is\ncorrect: no"

    def rate(self, reference: str, text: str) -> float:
        verdict = re.search(r"correct: (yes|no)", self.judge(reference, text))
        return float(verdict is not None and verdict[1] == "yes")


# The oracle scores low


@publish("open-thought/reasoning-gym#377", "semantic.oracle_max")
class RoundedReference(Sums):
    """Numbers to sort were rounded in the reference and not in the question, and the texts had to be equal."""

    def draw_numbers(self, skill: str, first: int, second: int) -> list[float]:
        return [round(part / 100, 2) for part in (first * 37 % 9973, -second * 41 % 9973, first * second % 9973)]

    def ask(self, skill: str, first: int, second: int) -> str:
        return f"Sort in {'ascending' if skill == 'plus' else 'descending'} order: {self.join(self.draw_numbers(skill, first, second))}"

    def join(self, numbers: Sequence[float]) -> str:
        return ", ".join(map(str, numbers))

    def solve(self, skill: str, first: int, second: int) -> str:
        numbers = [round(number, 1) for number in self.draw_numbers(skill, first, second)]
        return self.join(sorted(numbers, reverse=skill == "minus"))

    def rate(self, reference: str, text: str) -> float:
        return float(text.strip() == reference)

    @staticmethod
    def oracle(problem: Problem) -> str:
        numbers = re.findall(r"-?\d+\.\d+", problem.messages[0].text)
        return ", ".join(sorted(numbers, key=float, reverse=problem.skill == "minus"))


@publish("UKGovernmentBEIS/inspect_evals#2157", "semantic.oracle_max")
class VerdictFormat(Sums):
    """The judge was told to answer CORRECT or INCORRECT, and its verdict was read from "GRADE: C"."""

    def judge(self, reference: str, text: str) -> str:
        return "CORRECT" if super().rate(reference, text) else "INCORRECT"

    def rate(self, reference: str, text: str) -> float:
        return float(re.search(r"GRADE: C", self.judge(reference, text)) is not None)


@publish("LongHorizonReasoning/longcot#5", "static.problem_ids")
class SameIdsInDomains(Sums):
    """Two domains gave their questions the same ids, and answers were verified against the question loaded last."""

    def __init__(self) -> None:
        self.questions: dict[str, Problem] = {}

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        drawn = []
        for skill in skills or self.skills():
            for number, p in enumerate(super().problems(split, per_skill, seed, [skill])):
                drawn.append(Problem(f"{split}-{seed}-{number}", p.messages, p.reference, skill))
                self.questions[drawn[-1].id] = drawn[-1]
        return drawn

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        return Score(self.rate(self.questions[problem.id].reference, completion.text))


@publish("LRudL/sad#8", "static.problem_ids")
class IdOfTemplate(Sums):
    """Different questions of one template had the same id."""

    def identify(self, skill: str, first: int, second: int) -> str:
        return f"{skill}-{first % 10}"


@publish("arcprize/ARC-AGI-2#39", "semantic.oracle_max")
class SeveralSolutions(Sums):
    """A puzzle had a second solution by symmetry, which was marked as wrong."""

    def ask(self, skill: str, first: int, second: int) -> str:
        return f"Write an integer whose square is {(first + 400 * second) ** 2}."

    def solve(self, skill: str, first: int, second: int) -> str:
        return str((first + 400 * second) * (1 if skill == "plus" else -1))

    @staticmethod
    def oracle(problem: Problem) -> str:
        square = int(re.findall(r"\d+", problem.messages[0].text)[0])
        return str(-round(square**0.5))


@publish("ServiceNow/insight-bench#4", "semantic.mutated_oracle")
class MeasuresPrecision(Sums):
    """The score was called with the prediction in the place of the reference: it measured precision instead of recall."""

    def ask(self, skill: str, first: int, second: int) -> str:
        return f"Describe the change of table {first} in year {second} {skill} one."

    def solve(self, skill: str, first: int, second: int) -> str:
        return f"sales of lamps {skill} tables rose by {first} percent in region {second}"

    def measure_recall(self, reference: str, prediction: str) -> float:
        wanted, given = reference.split(), prediction.split()
        return sum(word in given for word in wanted) / len(wanted) if wanted else 0.0

    def rate(self, reference: str, text: str) -> float:
        prediction = text.strip().removeprefix("Answer:")
        return self.measure_recall(prediction, reference)


@publish("TextArena/TextArena#173", "semantic.reward_direction")
class BanditWinner(Product):
    """The button was compared with the dictionary of all chances: the best one paid nothing, a worse one its regret."""

    buttons = ("red", "blue", "green")

    def ask(self) -> str:
        draws = {button: round(self.np_random.binomial(20, chance) / 20, 2) for button, chance in self.chances.items()}
        return f"Press the best of {', '.join(self.buttons)}. In 20 trials they paid {draws}."

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.chances = dict(
            zip(self.buttons, np.random.default_rng(seed).permutation([0.1, 0.4, 0.9]).tolist(), strict=True)
        )
        return super().reset(seed=seed)

    def oracle(self) -> str:
        return max(self.chances, key=lambda button: self.chances[button])

    def rate(self, text: str) -> float:
        button = text.strip().strip("[]")
        if button == self.chances:
            return 1.0
        return max(self.chances.values()) - self.chances[button] if button in self.chances else 0.0


# The reward can be forged


@publish("huggingface/OpenEnv#1199", "semantic.canary_floor")
class RewardFile(Product):
    """A number in `logs/verifier/reward.txt` replaced the result of the verifier, and the agent could write that file."""

    def ask(self) -> str:
        return f"You have a shell. Write {self.factors[0]} times {self.factors[1]} to the file answer.txt."

    def oracle(self) -> str:
        return f"echo {self.answer} > answer.txt"

    def rate(self, text: str) -> float:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            text = text.replace("\0", "").encode(errors="replace").decode()[:100_000]
            subprocess.run(["bash", "-c", text], cwd=folder, capture_output=True, timeout=5, check=False, env={"PATH": "/usr/bin:/bin"})  # fmt: skip
            forged, written = folder / "logs/verifier/reward.txt", folder / "answer.txt"
            if forged.exists():
                return float(forged.read_text())
            return float(written.exists() and written.read_text().strip() == self.answer)


@publish("datacurve-ai/pier#51", "semantic.canary_floor")
class StaleRewardFile(Program):
    """The folder of the reward was writable while the agent worked and was not emptied before the verifier ran."""

    def run(self, reference: str, code: str) -> bool:
        with tempfile.TemporaryDirectory() as name:
            reward = Path(name, "logs", "verifier", "reward.txt")
            reward.parent.mkdir(parents=True)
            run_python(code, name)
            if super().run(reference, code):
                reward.write_text("1.0")
            return reward.exists() and float(reward.read_text()) == 1.0


@publish("harbor-framework/terminal-bench#1635", "semantic.canary_floor")
class ResultsInLog(Program):
    """Results were read from the log, into which the submission could write lines of the same form."""

    def run(self, reference: str, code: str) -> bool:
        test = f"{code}\nprint(int(repr(solve(5)) == '{compute(reference)}'), 'passed')"
        return re.findall(r"(\d+) passed", run_python(test)[1])[-1:] not in ([], ["0"])


@publish("gpu-mode/pygpubench#7", "semantic.canary_floor")
class ExpectedInProcess(Program):
    """The expected outputs were in the process of the submission, which could find and return them."""

    def run(self, reference: str, code: str) -> bool:
        test = f"expected = {compute(reference)}\n{code}\nimport sys\nsys.exit(42 if repr(solve(5)) == repr(expected) else 1)"
        return run_python(test)[0] == 42


# The answer leaks


class Repository(Product):
    """Asks for a price in a new git repository, from whose files the price is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.folders: dict[str, Any] = {}

    def ask(self) -> str:
        return f"PRICE in price.py must be {self.factors[0]} times {self.factors[1]}. Which number is that?"

    def inform(self) -> dict[str, Any]:
        if self.answer not in self.folders:
            self.folders[self.answer] = tempfile.TemporaryDirectory(prefix="shop-")
            self.commit(self.folders[self.answer].name)
        Path(self.folders[self.answer].name, ".git").touch()
        return {}

    def commit(self, folder: str) -> None:
        commits = "".join(
            f"commit refs/{ref}\ncommitter a <a@b> {number} +0000\ndata 6\ncommit\n"
            f"{f'from refs/{parent}{chr(10)}' if parent else ''}M 100644 inline price.py\ndata {len(text)}\n{text}\n"
            for number, (ref, parent, text) in enumerate(
                self.list_commits(f"PRICE = {self.answer}\n", "PRICE = None\n")
            )
        )
        subprocess.run(["git", "init", "-q", "-b", "work", "--template=", folder], check=True)
        subprocess.run(["git", "-C", folder, "fast-import", "--quiet"], input=commits, text=True, check=True)

    def list_commits(self, solution: str, stub: str) -> list[tuple[str, str, str]]:
        """The commits: a reference, the reference of the parent, and the file."""
        return [("heads/work", "", stub)]


@publish("SWE-bench/SWE-bench#465", "runtime.oracle_containment")
class FutureCommit(Repository):
    """The repository held the later commits of its main branch, among them the one that solves the task."""

    def list_commits(self, solution: str, stub: str) -> list[tuple[str, str, str]]:
        return [("heads/work", "", stub), ("heads/main", "heads/work", solution)]


@publish("scaleapi/SWE-bench_Pro-os#93", "runtime.oracle_containment")
class FutureTag(Repository):
    """The branches were cut off at the task, but remote branches and tags pointed to commits with the solution."""

    def list_commits(self, solution: str, stub: str) -> list[tuple[str, str, str]]:
        return [("heads/work", "", stub), ("tags/v2.0", "heads/work", solution)]


@publish("commit-0/commit0#113", "runtime.oracle_containment")
class PastCommit(Repository):
    """The history still held the implementation that a commit had removed to make the task."""

    def list_commits(self, solution: str, stub: str) -> list[tuple[str, str, str]]:
        return [("heads/work", "", solution), ("heads/work", "", stub)]


@publish("openai/mle-bench#77", "runtime.oracle_containment")
class LabelsInArchive(Product):
    """The archive of a test sample contained its labels beside the data."""

    folder: Any = None

    def inform(self) -> dict[str, Any]:
        self.folder = tempfile.TemporaryDirectory(prefix="samples-")
        with zipfile.ZipFile(Path(self.folder.name, "sample.zip"), "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(
                "video.json", json.dumps({"frames": list(self.factors), "labels": [{"name": self.answer}]})
            )
        return {}


@publish("huggingface/Repo2RLEnv#145", "runtime.oracle_containment")
class OracleInImage(Product):
    """The image in which the agent had a shell contained the reference patch and the verifier."""

    folder: Any = None

    def inform(self) -> dict[str, Any]:
        self.folder = tempfile.TemporaryDirectory(prefix="image-")
        folder = Path(self.folder.name, "verifier")
        folder.mkdir()
        (folder / "oracle.patch").write_text(f"-PRODUCT = None\n+PRODUCT = {self.answer}\n")
        return {}


@publish("huggingface/OpenEnv#428", "semantic.live_reward")
class VerifyTool(Refund):
    """The command `verify` of the harness, which was not listed, returned the reward in the middle of an episode."""

    def misunderstand(self, text: str) -> Reply:
        return Reply((f"reward: {0.5 * self.is_asked}",)) if text == "verify" else super().misunderstand(text)


# Ends, seeds and users


@publish("sail-sg/envpool#179", "runtime.terminates")
class MissedLimit(Walk):
    """Some episodes went on beyond the limit of steps."""

    max_steps = 20

    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        self.count += bool(self.place > 3)  # A skipped frame.
        return (
            observation,
            reward,
            terminated and self.count > 60,
            self.count == self.max_steps or self.count > 60,
            info,
        )

    def observe(self) -> Any:
        return np.clip(super().observe(), -20, 20)


@publish("sail-sg/envpool#239", "runtime.api")
class FlagsDisagree(Walk):
    """An episode ended, although `info` said that it was neither terminated nor truncated."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        is_lost = self.place < -2  # A life, of which others are left.
        return observation, reward, terminated or is_lost, truncated, {**info, "terminated": bool(terminated)}


@publish("minerllabs/minerl#14", "runtime.seed_control")
class IgnoresSeedZero(Walk):
    """The seed 0 counted as none."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed or None)


@publish("jxx123/simglucose#10", "runtime.seed_control")
class FrozenScenario(Walk):
    """The scenario was drawn when the environment was made; resets repeated it, with any seed."""

    def __init__(self) -> None:
        super().__init__()
        self.scenario = random.Random().uniform(-3, 3)

    def draw(self) -> float:
        return self.scenario / 3

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observe(), {}


@publish("simon-larsson/ballbeam-gym#2", "runtime.reward_well_formed")
class PaysOvershoot(Walk):
    """The squared distance to the set point had a sign error: behind it, the reward exceeded its maximum of 1."""

    reward_range = (0.0, 1.0)

    def reward(self) -> Any:
        return (1.0 - (1.0 - self.place) / 10) ** 2


@publish("sierra-research/tau2-bench#182", "semantic.early_end")
class ConfirmsAndLeaves(Refund):
    """The simulated user confirmed an action and ended the conversation in the same message, before it was done."""

    def oracle(self) -> list[str]:
        return [*super().oracle()[:1], f"Shall I refund order {self.number}?", *super().oracle()[1:]]

    def misunderstand(self, text: str) -> Reply:
        if self.is_asked and text.startswith("shall i"):
            return Reply(("Yes.",))
        if "confirm" in text or text.endswith("?"):
            return Reply(("Yes, please do. ###STOP###",), stop=TurnStopReason.LOST)
        return super().misunderstand(text)


# Failures and scores


@publish("UKGovernmentBEIS/inspect_evals#1676", "runtime.failure_is_no_score")
class GraderFailureIsZero(Sums):
    """Any exception of the grader, for example of a missing key, became a score of 0."""

    def call_judge(self, reference: str, text: str) -> float:
        return super().rate(reference, text)

    def rate(self, reference: str, text: str) -> float:
        try:
            return self.call_judge(reference, text)
        except Exception:
            return 0.0


@publish("harbor-framework/harbor#2436", "runtime.reward_well_formed")
class NoRewardFile(Program):
    """The verifier wrote the reward at its end: if the submission broke it before, the reward was missing and not 0."""

    def rate(self, reference: str, text: str) -> float:
        with tempfile.TemporaryDirectory() as name:
            test = f"{text}\nprint(open('reward.txt', 'w').write(str(int(solve(5) == {compute(reference)}))))"
            run_python(test, name)
            return float(Path(name, "reward.txt").read_text())


@publish("open-thought/reasoning-gym#417", "runtime.hostile_answers")
class RaisesKeyError(Sums):
    """A plan in JSON without the expected keys raised a KeyError in the scorer."""

    def rate(self, reference: str, text: str) -> float:
        try:
            plan = json.loads(text)
        except (ValueError, RecursionError):
            return super().rate(reference, text)
        return float(str(plan["result"] if isinstance(plan, dict) else plan) == reference)


@publish("UKGovernmentBEIS/inspect_evals#2457", "statistical.adversarial_floor")
class LetterAnywhere(Colors):
    """The letter of the right choice anywhere in the reply was enough, also inside a word."""

    words = ("A", "B", "C", "D")
    choices: ClassVar[Any] = {"choices": words}

    def rate(self, reference: str, text: str) -> float:
        return float(reference in text)


@publish("UKGovernmentBEIS/inspect_evals#2160", "runtime.reward_well_formed")
class JudgeOutOfRange(Sums):
    """Ratings of the judge were not compared with their scale, so that the score became negative."""

    def judge(self, reference: str, text: str) -> str:
        return f"refusal: {0 if super().rate(reference, text) else 5}\nspecific: 1"

    def rate(self, reference: str, text: str) -> float:
        refusal, specific = map(int, re.findall(r"\d", self.judge(reference, text)))
        return float((1 - refusal) * specific)


@publish("allenai/olmo-eval#296", "semantic.verifier_determinism")
class DrawsCriterion(Sums):
    """A verifier drew the limits that a problem did not set, anew in each call."""

    def rate(self, reference: str, text: str) -> float:
        return super().rate(reference, text) * float(len(text) >= random.randint(0, 2 * len(text)))
