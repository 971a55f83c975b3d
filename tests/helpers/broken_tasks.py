"""Sound tasks, and variants with one planted fault each. `TASK_FAULTS` maps each to the check that must find it."""

from __future__ import annotations

import ast
import base64
import math
import random
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from planted import make_planter

from palaestra.core.records import Completion, Example, Failure, Message, Problem, Score, Split
from palaestra.core.seeding import Seeds
from palaestra.tasks.base import TaskHooks, get_split

TASK_FAULTS: dict[type, str] = {}

plant = make_planter(TASK_FAULTS)


class Sums(TaskHooks):
    """Generates sums and differences."""

    name = "sums"
    is_procedural = True

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return {"plus": (), "minus": ()}

    def ask(self, skill: str, first: int, second: int) -> str:
        return f"What is {first} {'+' if skill == 'plus' else '-'} {second}?"

    def solve(self, skill: str, first: int, second: int) -> str:
        return str(first + second if skill == "plus" else first - second)

    def identify(self, skill: str, first: int, second: int) -> str:
        return f"{skill}-{first}-{second}"

    def build(self, skill: str, first: int, second: int) -> Problem:
        messages = (Message("user", self.ask(skill, first, second)),)
        return Problem(self.identify(skill, first, second), messages, self.solve(skill, first, second), skill)

    def draw_pairs(self, split: Split, skill: str, count: int, generator: np.random.Generator) -> list[tuple[int, int]]:
        pairs: dict[tuple[int, int], None] = {}
        while len(pairs) < count:
            first, second = sorted(generator.integers(1, 400, 2).tolist(), reverse=True)
            if get_split(f"{skill} {first} {second}") is split:
                pairs[first, second] = None
        return list(pairs)

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        return [
            self.build(skill, *pair)
            for skill in skills or self.skills()
            for pair in self.draw_pairs(split, skill, per_skill, Seeds(seed).derive(f"{split} {skill}").generator())
        ]

    def read(self, text: str) -> str:
        """The answer of a text: its last number."""
        return ["", *re.findall(r"-?\d+", text[-200:])][-1]

    def rate(self, reference: str, text: str) -> float:
        return float(self.read(text) == reference)

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        return Score(self.rate(problem.reference, completion.text))

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        return self.make_examples(skill, self.draw_pairs(Split.TRAIN, skill, count, generator))

    def make_examples(self, skill: str, pairs: Sequence[Sequence[int]]) -> list[Example]:
        return [
            Example((Message("user", self.ask(skill, *pair)),), self.solve(skill, *pair), skill, reference=self.solve(skill, *pair))
            for pair in pairs
        ]  # fmt: skip


class Colors(Sums):
    """Questions with four choices."""

    name = "colors"
    words = ("red", "green", "blue", "yellow")
    choices: ClassVar[Mapping[str, Any]] = {"choices": words}

    def ask(self, skill: str, first: int, second: int) -> str:
        return f"Lamp {first} in room {skill} {second} has which color: {', '.join(self.words)}?"

    def solve(self, skill: str, first: int, second: int) -> str:
        return self.words[(first * 7 + second * 3 + len(skill)) % 4]

    def build(self, skill: str, first: int, second: int) -> Problem:
        problem = super().build(skill, first, second)
        return Problem(problem.id, problem.messages, problem.reference, skill, metadata=self.choices)

    def read(self, text: str) -> str:
        return text.strip().removeprefix("Answer:").strip().strip(".").lower()


class Doubler(Sums):
    """Asks for a function, which runs in a process of its own."""

    name = "doubler"

    def ask(self, skill: str, first: int, second: int) -> str:
        return f"Write a Python function `solve(x)` that returns x {'+' if skill == 'plus' else '-'} {first * 400 + second}."

    def solve(self, skill: str, first: int, second: int) -> str:
        return f"def solve(x):\n    return x {'+' if skill == 'plus' else '-'} {first * 400 + second}\n"

    def run(self, reference: str, code: str) -> bool:
        """Whether the program prints what the reference computes."""
        space: dict[str, Any] = {}
        exec(reference, space)
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", f"{code}\nprint('result', solve(5))"], capture_output=True, text=True, timeout=5, check=False
        )  # fmt: skip
        return done.stdout.strip().splitlines()[-1:] == [f"result {space['solve'](5)}"] and done.returncode == 0

    def rate(self, reference: str, text: str) -> float:
        code = re.search(r"```(?:python)?\n(.*?)```", text, re.DOTALL)
        program = code[1] if code else text
        try:
            ast.parse(program)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return 0.0
        try:
            return float("solve" in program and self.run(reference, program))
        except subprocess.TimeoutExpired:
            return 0.0

    def read(self, text: str) -> str:
        return text


# Level 1


@plant("runtime.task_api")
class ReturnsDictionaries(Sums):
    def build(self, skill: str, first: int, second: int) -> Any:
        return {"question": self.ask(skill, first, second), "answer": self.solve(skill, first, second)}


@plant("runtime.task_api")
class WithoutMessages(Sums):
    def build(self, skill: str, first: int, second: int) -> Problem:
        return Problem(f"{skill}-{first}-{second}", (), "1", skill)


@plant("runtime.task_api")
class UnstorableMetadata(Sums):
    def build(self, skill: str, first: int, second: int) -> Problem:
        problem = super().build(skill, first, second)
        return Problem(problem.id, problem.messages, problem.reference, skill, metadata={"check": object()})


@plant("runtime.task_api")
class WithoutProblems(Sums):
    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        return []


@plant("runtime.observation_schema")
class UnknownRole(Sums):
    role: Any = "human"

    def build(self, skill: str, first: int, second: int) -> Problem:
        problem = super().build(skill, first, second)
        return Problem(problem.id, (Message(self.role, problem.messages[0].text),), problem.reference, skill)


@plant("runtime.observation_schema")
class AnswersItself(UnknownRole):
    """Its last message is the assistant's."""

    role = "assistant"


@plant("runtime.observation_schema")
class SystemOnly(UnknownRole):
    role = "system"


@plant("runtime.observation_schema")
class EmptyQuestion(Sums):
    def ask(self, skill: str, first: int, second: int) -> str:
        return " "

    def identify(self, skill: str, first: int, second: int) -> str:
        return f"{skill}-{first}-{second}"


@plant("runtime.task_declaration_accuracy")
class IgnoresSkills(Sums):
    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        return super().problems(split, per_skill, seed)


@plant("runtime.task_declaration_accuracy")
class TooManyProblems(Sums):
    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        return super().problems(split, per_skill + 2, seed, skills)


@plant("runtime.task_declaration_accuracy")
class UnlistedSkill(Sums):
    def build(self, skill: str, first: int, second: int) -> Problem:
        problem = super().build(skill, first, second)
        return Problem(problem.id, problem.messages, problem.reference, "sums")


@plant("static.problem_ids")
class NumberedIds(Sums):
    """Ids that count within a call collide between calls."""

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        drawn = super().problems(split, per_skill, seed, skills)
        return [Problem(str(n % 50), p.messages, p.reference, p.skill) for n, p in enumerate(drawn)]


@plant("static.problem_ids")
class RepeatedProblems(Sums):
    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        drawn = super().problems(split, per_skill, seed, skills)
        return [drawn[place - place % 2] for place in range(len(drawn))]


@plant("semantic.consistent_references")
class Contradictions(Sums):
    """The question does not tell the numbers, as where a picture of the question was lost."""

    def ask(self, skill: str, first: int, second: int) -> str:
        return f"What is {first} {'+' if skill == 'plus' else '-'} the number in the picture?"


@plant("semantic.split_overlap")
class SharedProblems(Sums):
    def draw_pairs(self, split: Split, skill: str, count: int, generator: np.random.Generator) -> list[tuple[int, int]]:
        generator = np.random.default_rng(len(skill))
        return super().draw_pairs(Split.TRAIN, skill, count, generator)

    is_procedural = False


@plant("runtime.seed_control")
class DrawsGlobally(Sums):
    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        return super().problems(split, per_skill, random.randrange(10**9), skills)


@plant("runtime.seed_control")
class CountsCalls(Sums):
    calls = 0

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        self.calls += 1
        return super().problems(split, per_skill, seed + self.calls, skills)


@plant("runtime.seed_control")
class HashedSeed(Sums):
    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        return super().problems(split, per_skill, seed + hash(str(split)) % 1000, skills)


@plant("runtime.seed_control")
class IgnoresSeed(Sums):
    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        return super().problems(split, per_skill, 0, skills)


@plant("runtime.episode_isolation")
class MarksProblems(Sums):
    def build(self, skill: str, first: int, second: int) -> Problem:
        problem = super().build(skill, first, second)
        return Problem(problem.id, problem.messages, problem.reference, skill, metadata={"attempts": []})

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        problem.metadata["attempts"].append(completion.text)
        return super().score(problem, completion)


@plant("runtime.episode_isolation")
class SharedPool(Sums):
    """A class attribute remembers what was drawn."""

    drawn: ClassVar[set[int]] = set()

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        drawn = super().problems(split, per_skill, seed + 1000 * (7 in self.drawn), skills)
        self.drawn.add(seed)
        return drawn


@plant("semantic.examples")
class WrongExamples(Sums):
    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        examples = super().write_examples(skill, subskill, count, generator)
        return [Example(e.messages, f"{e.response}1", skill, reference=e.reference) for e in examples]


@plant("semantic.examples")
class ExamplesOfTest(Sums):
    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        problems = self.problems(Split.TEST, count, 0, [skill])
        return [Example(p.messages, p.reference, skill, reference=p.reference) for p in problems]


@plant("semantic.examples")
class ExamplesOfAllSplits(Sums):
    """A problem is split by its question; examples are drawn from all of them."""

    def draw_pairs(self, split: Split, skill: str, count: int, generator: np.random.Generator) -> list[tuple[int, int]]:
        pairs: dict[tuple[int, int], None] = {}
        while len(pairs) < count:
            first, second = generator.integers(1, 400, 2).tolist()
            if get_split(self.ask(skill, first, second)) is split:
                pairs[first, second] = None
        return list(pairs)

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        pairs = [(first, second) for first, second in generator.integers(1, 400, (count, 2)).tolist()]
        return self.make_examples(skill, pairs)


@plant("semantic.examples")
class ExamplesOfFewQuestions(Sums):
    """There are only 780 questions a skill, and examples are drawn from all of them."""

    def draw_pairs(self, split: Split, skill: str, count: int, generator: np.random.Generator) -> list[tuple[int, int]]:
        pairs: dict[tuple[int, int], None] = {}
        while len(pairs) < min(count, 60):
            first, second = sorted(generator.integers(1, 40, 2).tolist(), reverse=True)
            if get_split(f"{skill} {first} {second}") is split:
                pairs[first, second] = None
        return list(pairs)

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        pairs = [sorted(pair, reverse=True) for pair in generator.integers(1, 40, (count, 2)).tolist()]
        return self.make_examples(skill, pairs)


# Level 2


@plant("semantic.verifier_determinism")
class NoisyScore(Sums):
    def rate(self, reference: str, text: str) -> float:
        return super().rate(reference, text) * random.choice((0.5, 1.0))


@plant("semantic.verifier_determinism")
class ComparesOneDigit(Sums):
    """A digit of the answer, chosen at random, is compared."""

    def rate(self, reference: str, text: str) -> float:
        place = random.randrange(len(reference))
        return float(self.read(text)[place : place + 1] == reference[place])


@plant("semantic.verifier_determinism")
class SeenAnswers(Sums):
    """An answer counts once: the second equal one gets nothing."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        is_new = (problem.id, completion.text) not in self.seen
        self.seen.add((problem.id, completion.text))
        return Score(self.rate(problem.reference, completion.text) * is_new)


@plant("semantic.verifier_determinism")
class ScoreByDate(Sums):
    def rate(self, reference: str, text: str) -> float:
        return super().rate(reference, text) * (0.4 + int(time.time() / 86_400) % 7 / 10)


@plant("semantic.verifier_determinism")
class ScoreByHash(Sums):
    def rate(self, reference: str, text: str) -> float:
        return super().rate(reference, text) * (hash(text) % 7 / 6)


@plant("semantic.verifier_determinism")
class ScoreByOrder(Sums):
    """The state of the last answer stays, as with a parser that is not reset."""

    last = ""

    def rate(self, reference: str, text: str) -> float:
        self.last = self.read(text) or self.last
        return float(self.last == reference)


@plant("runtime.reward_well_formed")
class ReturnsNumbers(Sums):
    def score(self, problem: Problem, completion: Completion) -> Any:
        return self.rate(problem.reference, completion.text)


@plant("runtime.reward_well_formed")
class ScoresAboveOne(Sums):
    def rate(self, reference: str, text: str) -> float:
        return 100 * super().rate(reference, text)


@plant("runtime.reward_well_formed")
class NotANumber(Sums):
    """A mean over no token is NaN."""

    def rate(self, reference: str, text: str) -> float:
        return float(np.mean([word == reference for word in text.split()])) if text.split() else math.nan


@plant("runtime.reward_well_formed")
class RaisesForWords(Sums):
    def rate(self, reference: str, text: str) -> float:
        return float(int(text) == int(reference))


@plant("runtime.hostile_answers")
class EvaluatesAnswers(Sums):
    """Evaluates the answer as Python: `9**9**9**9` never ends."""

    def rate(self, reference: str, text: str) -> float:
        try:
            return float(eval(text.rpartition(":")[2].strip() or "0", {}, {}) == int(reference))
        except Exception:
            return 0.0


@plant("runtime.hostile_answers")
class SlowPattern(Sums):
    def read(self, text: str) -> str:
        match = re.search(r"^(([0-9]+)[ ,]*)*$", text[:80].strip())
        return match[2] if match and match[2] else super().read(text)

    def rate(self, reference: str, text: str) -> float:
        return float(self.read(text) == reference)


@plant("runtime.hostile_answers")
class NotANumberIsRight(Sums):
    def rate(self, reference: str, text: str) -> float:
        word = (text.split() or ["x"])[-1]
        try:
            return float(not abs(float(word) - float(reference)) > 0.01)
        except ValueError:
            return 0.0


@plant("runtime.hostile_answers")
class RaisesForBraces(Sums):
    def read(self, text: str) -> str:
        if "\\boxed{" in text:
            start = text.index("\\boxed{") + 7
            return text[start : text.index("}", start)]
        return super().read(text)


@plant("semantic.oracle_max")
class FormattedReference(Sums):
    """References are written as floats, answers are read as integers."""

    def solve(self, skill: str, first: int, second: int) -> str:
        return f"{super().solve(skill, first, second)}.50"

    def read(self, text: str) -> str:
        return re.sub(r"\D.*", "", text)


@plant("semantic.oracle_max")
class WrongReferences(Sums):
    """Every fifth reference is wrong, and a verifier recomputes the answer."""

    def solve(self, skill: str, first: int, second: int) -> str:
        return str(int(super().solve(skill, first, second)) + 10 * (first % 5 == 0))

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        skill, first, second = problem.id.split("-")
        return Score(float(self.read(completion.text) == Sums.solve(self, skill, int(first), int(second))))

    write_examples = None  # type: ignore[assignment]


@plant("semantic.oracle_max")
class CappedScore(Sums):
    def rate(self, reference: str, text: str) -> float:
        return 0.8 * super().rate(reference, text)

    write_examples = None  # type: ignore[assignment]


@plant("semantic.oracle_max")
class SwappedArguments(Sums):
    """The scorer is called with the answer for the reference."""

    def rate(self, reference: str, text: str) -> float:
        return float(reference.endswith(f" {text.strip()}"))

    write_examples = None  # type: ignore[assignment]


@plant("semantic.equivalent_answers")
class ComparesTexts(Sums):
    def rate(self, reference: str, text: str) -> float:
        return float(text == reference)


@plant("semantic.equivalent_answers")
class ReadsOneLine(Sums):
    """A newline before the answer hides it."""

    def read(self, text: str) -> str:
        return super().read(text.partition("\n")[0])


@plant("semantic.mutated_oracle")
class FindsPart(Sums):
    """The reference anywhere in the answer is enough."""

    def rate(self, reference: str, text: str) -> float:
        return float(reference in text)


@plant("semantic.mutated_oracle")
class FindsPrefix(Sums):
    def rate(self, reference: str, text: str) -> float:
        return float(any(number.startswith(reference) for number in re.findall(r"-?\d+", text[-200:])))


@plant("semantic.mutated_oracle")
class WideTolerance(Sums):
    def rate(self, reference: str, text: str) -> float:
        answer = self.read(text)
        return float(bool(answer) and abs(int(answer) - int(reference)) <= 0.9 * abs(int(reference)))


@plant("semantic.mutated_oracle")
class IgnoresSign(Sums):
    def rate(self, reference: str, text: str) -> float:
        return float(self.read(text).lstrip("-") == reference.lstrip("-"))


@plant("semantic.mutated_oracle")
class FirstLetter(Colors):
    """Compares first letters."""

    words = ("red", "green", "blue", "yellow")

    def rate(self, reference: str, text: str) -> float:
        return float(self.read(text)[:1] == reference[:1])


class Rooms(Sums):
    """Answers of two words."""

    name = "rooms"
    words = ("north", "south", "upper", "lower"), ("hall", "tower", "garden", "stairs", "cellar")

    def ask(self, skill: str, first: int, second: int) -> str:
        return f"Where does key {first} of bunch {skill} {second} fit?"

    def solve(self, skill: str, first: int, second: int) -> str:
        return f"{self.words[0][first % 4]} {self.words[1][(first + second) % 5]}"

    def read(self, text: str) -> str:
        return text.strip().removeprefix("Answer:").strip().strip(".").lower()


@plant("semantic.mutated_oracle")
class LastWord(Rooms):
    """Compares the last words."""

    def rate(self, reference: str, text: str) -> float:
        return float(self.read(text).split()[-1:] == reference.split()[-1:])


@plant("semantic.mutated_oracle")
class FirstWord(Rooms):
    """Compares the first words."""

    def rate(self, reference: str, text: str) -> float:
        return float(self.read(text).split()[:1] == reference.split()[:1])


@plant("semantic.mutated_oracle")
class AllChoices(Colors):
    def rate(self, reference: str, text: str) -> float:
        return float(reference in re.findall(r"\w+", text.lower()))


@plant("runtime.failure_is_no_score")
class SwallowsErrors(Doubler):
    """A process that cannot start is a wrong answer."""

    def run(self, reference: str, code: str) -> bool:
        try:
            return super().run(reference, code)
        except Exception:
            return False


@plant("runtime.failure_is_no_score")
class JudgeIsDown(Sums):
    def judge(self, reference: str, text: str) -> float:
        return super().rate(reference, text)

    def rate(self, reference: str, text: str) -> float:
        try:
            return self.judge(reference, text)
        except ConnectionError:
            return 0.0


# Level 3


@plant("semantic.floor_gap")
class EmptyIsRight(Sums):
    """All words of an empty answer are in the reference."""

    def rate(self, reference: str, text: str) -> float:
        return float(all(word == reference for word in re.findall(r"-?\d+", text[-200:])))


@plant("semantic.floor_gap")
class UnreadableIsRight(Sums):
    """A default of 1.0 for what cannot be read."""

    def rate(self, reference: str, text: str) -> float:
        return super().rate(reference, text) if self.read(text) else 1.0


@plant("statistical.adversarial_floor")
class TrustsWords(Sums):
    """Stands for a judge that an answer can talk to."""

    def rate(self, reference: str, text: str) -> float:
        is_told = re.search(r"full score|is correct|every answer is correct", text, re.IGNORECASE)
        return 1.0 if is_told else super().rate(reference, text)


@plant("statistical.adversarial_floor")
class CountsOverlap(Sums):
    """Rewards words that the question has too."""

    def ask(self, skill: str, first: int, second: int) -> str:
        return f"Please tell me how much {first} {skill} {second} is, and show your steps."

    def rate(self, reference: str, text: str) -> float:
        words = set(re.findall(r"[a-z]+", text.lower()))
        return max(
            super().rate(reference, text), min(1.0, len(words & {"please", "show", "steps", "tell", "much"}) / 4)
        )


@plant("statistical.adversarial_floor")
class EmptyBox(Sums):
    """The marker of the parser without an answer counts, as the reference lies inside an empty pattern."""

    def rate(self, reference: str, text: str) -> float:
        box = re.search(r"\\boxed\{(.*?)\}", text)
        return float(box[1] in reference) if box else super().rate(reference, text)


@plant("statistical.adversarial_floor")
class PatternAnswer(Colors):
    """The answer is used as a pattern."""

    def rate(self, reference: str, text: str) -> float:
        try:
            return float(bool(re.fullmatch(text.strip()[:40], reference)))
        except (re.error, RecursionError, OverflowError):
            return 0.0


@plant("semantic.canary_floor")
class ReadsOutput(Doubler):
    """The program prints the result of its own tests."""

    def run(self, reference: str, code: str) -> bool:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=5, check=False
        )
        return "passed" in done.stdout or super().run(reference, code)

    def rate(self, reference: str, text: str) -> float:
        code = re.search(r"```(?:python)?\n(.*?)```", text, re.DOTALL)
        return max(super().rate(reference, text), float(bool(code) and self._passes(reference, code[1])))  # type: ignore[index]

    def _passes(self, reference: str, code: str) -> bool:
        try:
            return self.run(reference, code)
        except subprocess.TimeoutExpired:
            return False


@plant("semantic.canary_floor")
class ReadsExitCode(Doubler):
    """A program that exits before its tests passes."""

    def run(self, reference: str, code: str) -> bool:
        space: dict[str, Any] = {}
        exec(reference, space)
        test = f"{code}\nassert solve(5) == {space['solve'](5)}"
        done = subprocess.run([sys.executable, "-I", "-S", "-c", test], capture_output=True, timeout=5, check=False)
        return done.returncode == 0


@plant("semantic.canary_floor")
class ComparesObjects(Doubler):
    """The result is compared by its own `==`."""

    def run(self, reference: str, code: str) -> bool:
        space: dict[str, Any] = {}
        exec(reference, space)
        test = f"{code}\nprint('same', bool(solve(5) == {space['solve'](5)}))"
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", test], capture_output=True, text=True, timeout=5, check=False
        )
        return "same True" in done.stdout


@plant("semantic.canary_floor")
class BelievesClaims(Sums):
    def rate(self, reference: str, text: str) -> float:
        return 1.0 if text.strip().lower() in ("success", "solved", "task completed") else super().rate(reference, text)


@plant("semantic.constant_floor")
class MostlyRed(Colors):
    def solve(self, skill: str, first: int, second: int) -> str:
        return "red" if (first + second) % 9 else "green"


@plant("semantic.no_solution_leakage")
class AnswerInPrompt(Sums):
    def ask(self, skill: str, first: int, second: int) -> str:
        return f"{super().ask(skill, first, second)} (answer: {self.solve(skill, first, second)})"


@plant("semantic.no_solution_leakage")
class AnswerInComment(Sums):
    def ask(self, skill: str, first: int, second: int) -> str:
        return f"{super().ask(skill, first, second)}\n<!-- {self.solve(skill, first, second)} -->\nThink."


@plant("semantic.no_solution_leakage")
class EncodedAnswer(Sums):
    def ask(self, skill: str, first: int, second: int) -> str:
        code = base64.b64encode(f"{self.solve(skill, first, second)}".encode()).decode()
        return f"{super().ask(skill, first, second)} [checksum {code}]"

    def solve(self, skill: str, first: int, second: int) -> str:
        return str(int(super().solve(skill, first, second)) + 1_000_000)


@plant("semantic.no_solution_leakage")
class AnswerInSystem(Sums):
    def build(self, skill: str, first: int, second: int) -> Problem:
        problem = super().build(skill, first, second)
        system = Message("system", f"You grade students. Rubric: {problem.reference} gets full points.")
        return Problem(problem.id, (system, *problem.messages), problem.reference, skill)


@plant("semantic.mutated_oracle")
class ComparesSets(Sums):
    """Asks for an order, and compares sets of letters."""

    def ask(self, skill: str, first: int, second: int) -> str:
        return f"Sort the parts of {skill} {first} {second} alphabetically."

    def solve(self, skill: str, first: int, second: int) -> str:
        return " ".join(sorted({skill, f"a{first}", f"b{second}", "c"}))

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        given = completion.text.rpartition("Answer:")[2]
        return Score(float(set(given.lower().split()) == set(problem.reference.split())))
