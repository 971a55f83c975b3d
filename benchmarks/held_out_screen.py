"""How many rewordings of held-out problems does the screen catch, and how many honest examples does it drop?

Every held-out problem of a task is reworded in each of the ways of `REWORDINGS` and given to `HeldOut` as an example with its
right solution. Honest examples are new ones of the same skills, and variations of validation problems with other values,
which a teacher that sees them writes. All rewordings are deterministic. `--data FOLDER` adds GSM8K (train.jsonl.gz and
test.jsonl.gz): its train split is honest. `--old FOLDER` times the screen of another checkout on new examples. Ratio: the
CPU time of an example, that of the other checkout over ours; 1 without one.
"""

from __future__ import annotations

import base64
import codecs
import gzip
import json
import os
import random
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from _common import arguments, finish

from palaestra.core.records import Example, ImagePart, Message, Problem, Split, TextPart
from palaestra.core.statistics import wilson_interval
from palaestra.tasks.base import Task, get_split, make_task
from palaestra.tasks.leakage import HeldOut
from palaestra.tasks.readings import IMPLIED, NUMBER_WORDS, SCALES
from palaestra.tasks.tools.library.world import ITEMS, PEOPLE, TOWNS
from palaestra.tasks.tools.plans import Plan
from palaestra.tasks.tools.requests import ToolDraft

PER_SKILL = {"math-skills": 25, "tools-skills": 10, "code-skills": 15, "vision-skills": 3}
NUMBER = re.compile(r"(?<![\w.,:/-])\d+(?![\w:/-]|[.,]\d)")
SMALL = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["x", "x", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
NUMERALS = {*NUMBER_WORDS, *SCALES, *IMPLIED}
Reword = Callable[[str], str]


def spell(number: int) -> str:
    if number < 20:
        return SMALL[number]
    if number < 100:
        return TENS[number // 10] + (f"-{SMALL[number % 10]}" if number % 10 else "")
    if number < 1000:
        return f"{SMALL[number // 100]} hundred" + (f" and {spell(number % 100)}" if number % 100 else "")
    if number < 10**6:
        return f"{spell(number // 1000)} thousand" + (f" {spell(number % 1000)}" if number % 1000 else "")
    return str(number)


def to_roman(number: int) -> str:
    if not 0 < number < 4000:
        return str(number)
    out = ""
    for value, sign in zip(
        (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
        ["M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"],
        strict=True,
    ):
        out, number = out + sign * (number // value), number % value
    return out


def with_numbers(write: Callable[[int], str]) -> Reword:
    return lambda text: NUMBER.sub(lambda number: write(int(number[0])), text)


def with_digits(digits: str) -> Reword:
    return lambda text: text.translate(str.maketrans("0123456789", digits))


def reword_fully(text: str) -> str:
    """The text with every word of three letters and more but numbers replaced by another, always by the same one."""
    words = [
        "apple",
        "bridge",
        "cloud",
        "drum",
        "eagle",
        "flute",
        "grove",
        "harbor",
        "ink",
        "jungle",
        "kettle",
        "lamp",
        "mirror",
        "north",
        "opal",
        "pebble",
        "quartz",
        "rope",
    ]
    return re.sub(
        r"[A-Za-z]{3,}",
        lambda word: word[0] if word[0].lower() in NUMERALS else random.Random(word[0].lower()).choice(words),
        text,
    )


def paraphrase(text: str) -> str:
    """The text in other common words, and the last sentence first."""
    for old, new in SYNONYMS.items():
        text = re.sub(rf"\b{old}\b", new, text, flags=re.IGNORECASE)
    sentences = re.split(r"(?<=[.?!])\s+", text)
    return " ".join([sentences[-1], *sentences[:-1]])


SYNONYMS = {
    "how many": "what number of", "how much": "what amount", "what is": "determine", "find": "work out", "buys": "purchases",
    "bought": "purchased", "has": "owns", "gives": "hands", "each": "apiece", "total": "overall", "plus": "added to",
    "minus": "less", "times": "multiplied by", "divided by": "over", "which": "what", "large": "big", "larger": "bigger",
    "smaller": "lesser", "day": "date", "money": "cash", "house": "home", "children": "kids", "costs": "is priced at",
    "pays": "hands over", "does": "will", "makes": "produces", "more": "additional", "left": "remaining", "work": "labor",
    "returns": "gives back", "list": "sequence", "write": "create", "after": "following", "people": "persons",
    "shape": "figure", "colour": "hue", "picture": "image", "number": "count", "convert": "change", "distance": "way",
}  # fmt: skip
TRANSLATED = {
    r"What is (\S+) (?:\+|plus) (\S+?)\?": r"Add \2 to \1.", r"Compute (\S+?)\+(\S+?)\.": r"What do \1 and \2 sum to?",
    r"Add (\S+) and (\S+?)\.": r"\1 plus \2 gives what?", r"What is the sum of (\S+) and (\S+?)\?": r"\2 + \1 = ?",
    r"What is (\S+) (?:-|minus) (\S+?)\?": r"Subtract \2 from \1.", r"Compute (\S+?)-(\S+?)\.": r"\1 less \2?",
    r"What is (\S+) (?:\*|times) (\S+?)\?": r"Multiply \2 by \1.", r"What is (\S+) / (\S+?)\?": r"Divide \1 by \2.",
    r"Multiply (\S+) by (\S+?)\.": r"What is the product of \2 and \1?", r"Divide (\S+) by (\S+?)\.": r"\1 / \2 = ?",
}  # fmt: skip


def translate(text: str) -> str:
    for pattern, other in TRANSLATED.items():
        text = re.sub(pattern, other, text)
    return text


def insert_middle(text: str, inserted: str) -> str:
    words = text.split(" ")
    return " ".join([*words[: len(words) // 2], inserted, *words[len(words) // 2 :]])


LOOKALIKES = str.maketrans("aeopcxiAEOPCX", "аеорсхіАЕОРСХ")
REWORDINGS: dict[str, Reword] = {
    "copy": str,
    "prefix and suffix": lambda text: f"Hello, I am 9 years old. Please solve: {text} Thank you!",
    "inserted number": lambda text: re.sub(r"^(\S+)", r"\1 (in 1 line)", text),
    "inserted words": lambda text: insert_middle(text, "my dear friend"),
    "two inserted numbers": lambda text: insert_middle(f"In 3 steps: {text}", "(page 41)"),
    "spelled-out numbers": with_numbers(spell),
    "digits as words": with_numbers(lambda number: " ".join(SMALL[int(digit)] for digit in str(number))),
    "spaced digits": with_numbers(lambda number: " ".join(str(number))),
    "Arabic-Indic digits": with_digits("٠١٢٣٤٥٦٧٨٩"),
    "Devanagari digits": with_digits("०१२३४५६७८९"),
    "full-width digits": with_digits("０１２３４５６７８９"),
    "circled digits": with_digits("⓪①②③④⑤⑥⑦⑧⑨"),
    "hexadecimal": with_numbers(hex),
    "binary": with_numbers(bin),
    "Roman numerals": with_numbers(to_roman),
    "leading zeros, decimals": with_numbers(lambda number: f"0{number}.00"),
    "LaTeX": lambda text: re.sub(r"\d[\d.,/+*-]*\d|\d", lambda part: "$" + re.sub(r"(\d+)/(\d+)", r"\\frac{\1}{\2}", part[0]).replace("*", r" \times ") + "$", text),
    "homoglyphs": lambda text: text.translate(LOOKALIKES),
    "zero-width characters": lambda text: "\u200b".join(text),
    "capitals": str.upper,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 and a sentence": lambda text: f"Decode and solve: {base64.b64encode(text.encode()).decode()}",
    "hex-encoded text": lambda text: text.encode().hex(),
    "URL-encoded text": urllib.parse.quote,
    "rot13": lambda text: codecs.encode(text, "rot13"),
    "reversed text": lambda text: text[::-1],
    "operators in other words": translate,
    "common synonyms": paraphrase,
    "synonyms and a number": lambda text: f"{paraphrase(text)} Use 2 lines.",
    "other words throughout": reword_fully,
    "other words and a number": lambda text: f"{reword_fully(text)} Use 2 lines.",
    "among other questions": lambda text: f"1) Who wrote Faust?\n2) {text}\n3) Where is Rome?",
    "reworded among others": lambda text: f"1) Who wrote Faust?\n2) {translate(paraphrase(text))}\n3) Where is Rome?",
}  # fmt: skip


def get_question(problem: Problem) -> str:
    question = problem.metadata.get("question")
    return question if isinstance(question, str) else problem.messages[-1].text


def get_solution(problem: Problem) -> str:
    worked = problem.metadata.get("worked")
    if isinstance(worked, str):
        return worked
    code = problem.metadata.get("solution")
    return f"```python\n{code}```" if isinstance(code, str) else f"The answer is {problem.reference}"


def ask(problem: Problem, text: str) -> Example:
    """The example that asks a problem in other words, with its solution and its images."""
    images = (
        ()
        if isinstance(problem.messages[-1].content, str)
        else tuple(p for p in problem.messages[-1].content if isinstance(p, ImagePart))
    )
    content: str | tuple[ImagePart | TextPart, ...] = (*images, TextPart(text)) if images else text
    return Example((Message("user", content),), get_solution(problem), problem.skill)


def reword(problem: Problem, how: Reword) -> Example | None:
    question = get_question(problem)
    text = how(question)
    return None if text == question and how is not str else ask(problem, text)


def hide_in_working(problem: Problem) -> Example:
    """A harmless question whose response works the problem."""
    example = ask(problem, "Invent an exercise and solve it.")
    return replace(example, response=f"Exercise: {get_question(problem)} {get_solution(problem)}")


def show_before(problem: Problem) -> Example:
    """The problem as a worked example before another question."""
    shown = ask(problem, get_question(problem))
    messages = (*shown.messages, Message("assistant", shown.response), Message("user", "Thank you. What is your name?"))
    return replace(shown, messages=messages, response="I am a student.")


def rename_variables(problem: Problem) -> Example | None:
    """Other words throughout, and the program with other names."""
    example = ask(problem, reword_fully(get_question(problem)))
    if "```" not in example.response:
        return None
    code = re.search(r"```python\n(.*?)```", example.response, re.DOTALL)[1]  # type: ignore[index]
    names = set(re.findall(r"def (\w+)", code)) | set(re.findall(r"^\s*(\w+) =", code, re.MULTILINE))
    for name in sorted(names):
        code = re.sub(rf"\b{name}\b", f"{name}_2", code)
    return replace(example, response=f"```python\n{code}```")


def omit_solution(change: Reword) -> Callable[[Problem], Example]:
    """Rewords a problem and answers it wrongly."""
    return lambda problem: replace(ask(problem, change(get_question(problem))), response="I do not know.")


MORE: dict[str, Callable[[Problem], Example | None]] = {
    "hidden in the working": hide_in_working,
    "worked example before": show_before,
    "other words, renamed program": rename_variables,
    "prefix and suffix, no solution": omit_solution(REWORDINGS["prefix and suffix"]),
    "common synonyms, no solution": omit_solution(paraphrase),
}


# Honest examples


def vary_tools(task: Task, problem: Problem, rng: random.Random) -> Example | None:
    """A request with one value changed in the question and in the plan; None if it would be a held-out one."""
    question, plan = get_question(problem), json.dumps(problem.metadata["plan"])
    changes = [(number, str(int(number) + rng.randint(1, 3))) for number in NUMBER.findall(question)]
    for names in (list(TOWNS), list(PEOPLE), list(ITEMS)):
        changes += [(name, rng.choice([n for n in names if n not in question])) for name in names if name in question]
    if not changes:
        return None
    old, new = rng.choice(changes)
    pattern = rf"(?<![\w.:-]){re.escape(old)}(?![\w:-]|\.\d)"
    varied, data = re.sub(pattern, new, question), re.sub(pattern, new, plan)
    if varied == question or data == plan:
        return None
    other = Plan.from_data(json.loads(data))
    if get_split(other.canonical()) is not Split.TRAIN:
        return None
    return task.example(problem.skill, problem.subskill, ToolDraft(varied, other))  # type: ignore[attr-defined,no-any-return]


def vary_math(problem: Problem, rng: random.Random) -> Example | None:
    """A question with one number changed, and another answer."""
    question = get_question(problem)
    numbers = list(NUMBER.finditer(question))
    if not numbers or not problem.reference.isdigit():
        return None
    number, step = rng.choice(numbers), rng.randint(1, 5)
    text = f"{question[: number.start()]}{int(number[0]) + step}{question[number.end() :]}"
    return Example((Message("user", text),), f"Answer: {int(problem.reference) + step}", problem.skill)


def fresh(task: Task, count: int, seed: int) -> list[Example]:
    rng = np.random.default_rng(seed)
    return [example for skill in task.skills() for example in task.write_examples(skill, "", count, rng)]  # type: ignore[attr-defined,no-any-return]


def read_gsm8k(folder: str, name: str) -> list[Problem]:
    with gzip.open(Path(folder) / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [
        Problem(f"{name}/{k}", (Message("user", row["question"]),), row["final"], metadata={"worked": row["answer"]})
        for k, row in enumerate(rows)
    ]


def measure(index: HeldOut, examples: Iterable[Example | None]) -> tuple[int, int]:
    """The number of examples, and of those that the screen drops."""
    given = [example for example in examples if example is not None]
    return len(given), sum(leak is not None for leak in index.find(given))


def material(name: str, data: str, quick: bool) -> tuple[list[Problem], HeldOut, dict[str, list[Example | None]]]:
    """The problems to reword, the screen, and honest examples by kind."""
    rng = random.Random(0)
    if name == "gsm8k":
        test, train = read_gsm8k(data, "test"), read_gsm8k(data, "train")
        train = train[: 1000 if quick else 4000]
        honest: dict[str, list[Example | None]] = {
            "train split": [ask(problem, get_question(problem)) for problem in train],
            "variation of a validation problem": [vary_math(problem, rng) for problem in test],
        }
        return test[: 200 if quick else 300], HeldOut({Split.TEST: test}), honest
    task, count = make_task(name), max(2, PER_SKILL[name] // (5 if quick else 1))
    problems = {split: task.problems(split, count, 0) for split in (Split.VALIDATION, Split.TEST)}
    examples = fresh(task, 40 if quick or name == "vision-skills" else 100, 1)
    honest = {"new examples": list(examples), "new examples without a skill": [replace(e, skill="") for e in examples]}
    if name == "tools-skills":
        several = 1 if quick else 4
        honest["variation of a validation problem"] = [
            vary_tools(task, p, rng) for p in problems[Split.VALIDATION] * several
        ]
        seen = task.problems(Split.TRAIN, count, 3) * several
        honest["variation of a train problem"] = [vary_tools(task, problem, rng) for problem in seen]
    return problems[Split.TEST], HeldOut(problems), honest


TIMER = """
import sys, time
import numpy as np
from palaestra.core.records import Split
from palaestra.tasks.base import make_task
from palaestra.tasks.leakage import HeldOut
task = make_task(sys.argv[1])
index = HeldOut({split: task.problems(split, 20, 0) for split in (Split.VALIDATION, Split.TEST)})
examples = [e for skill in task.skills() for e in task.write_examples(skill, "", 20, np.random.default_rng(1))]
start = time.process_time()
index.find(examples)
print(1000 * (time.process_time() - start) / len(examples))
"""


def time_screen(name: str, source: str) -> float:
    """CPU milliseconds that the screen of a checkout takes for an example of a task."""
    environment = {**os.environ, "PYTHONPATH": source}
    timed = [
        subprocess.run([sys.executable, "-c", TIMER, name], env=environment, capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    return min(float(run.stdout) for run in timed)


def cell(count: int, dropped: int) -> str:
    """A rate with its 95 % interval in percent, and the number of examples; empty without examples."""
    if not count:
        return ""
    low, high = wilson_interval(dropped, count)
    return f"{100 * dropped / count:.1f} [{100 * low:.1f}, {100 * high:.1f}] of {count}"


def table(results: dict[tuple[str, str], tuple[int, int]]) -> str:
    """A Markdown table of the dropped examples by kind and task."""
    names, kinds = dict.fromkeys(name for name, _ in results), dict.fromkeys(kind for _, kind in results)
    lines = [f"| dropped, % | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [
        f"| {kind} | {' | '.join(cell(*results.get((name, kind), (0, 0))) for name in names)} |" for kind in kinds
    ]
    return "\n".join(lines)


def main() -> None:
    options = arguments(
        __doc__ or "",
        threads=1,
        data="the folder of GSM8K",
        old="the folder of another checkout",
        tasks="tasks, separated by commas",
    )
    names = [*PER_SKILL, *(["gsm8k"] if options.data else [])]
    names = [name for name in names if not options.tasks or name in options.tasks.split(",")]
    reworded: dict[tuple[str, str], tuple[int, int]] = {}
    fair: dict[tuple[str, str], tuple[int, int]] = {}
    for name in names:
        problems, index, honest = material(name, options.data, options.quick)
        for how, change in REWORDINGS.items():
            reworded[name, how] = measure(index, [reword(problem, change) for problem in problems])
        for how, make in MORE.items():
            reworded[name, how] = measure(index, [make(problem) for problem in problems])
        for how, examples in honest.items():
            fair[name, how] = measure(index, examples)
    print(f"Reworded problems:\n\n{table(reworded)}\n\nHonest examples:\n\n{table(fair)}\n")
    times = {}
    for name in [name for name in names if name in PER_SKILL]:
        ours = time_screen(name, str(Path(__file__).parents[1] / "src"))
        times[name] = [round(ours, 2), round(time_screen(name, f"{options.old}/src") if options.old else ours, 2)]
        print(f"{name}: {times[name][0]} ms of CPU time per example; the other checkout: {times[name][1]} ms")
    ratio = sum(old for _, old in times.values()) / sum(ours for ours, _ in times.values()) if times else 1.0
    caught, lost = (
        sum(dropped for _, dropped in results.values()) / sum(count for count, _ in results.values())
        for results in (reworded, fair)
    )
    finish("held_out_screen", ratio, caught=round(caught, 4), honest_dropped=round(lost, 5), ms=times)


if __name__ == "__main__":
    main()
