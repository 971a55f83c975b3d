"""Copies and rewordings of held-out problems leak; other examples do not."""

import base64
import codecs
import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from palaestra.core.records import Example, ImagePart, Message, Problem, Split, TextPart
from palaestra.tasks.base import make_task
from palaestra.tasks.leakage import HeldOut
from palaestra.tasks.math.task import MathSkills
from palaestra.tasks.texts import normalize

DATA = Path(os.environ.get("PALAESTRA_DATA", "no-such-folder")) / "gsm8k"


def swap_name(text: str) -> str:
    return re.sub(r"\b(Ada|Ben|Cleo|Dion|Eva|Finn)\b", "Zelda", text)


def move_end(text: str) -> str:
    first, second, *rest = text.split()
    return " ".join([*rest, first, second])


REWORDINGS: dict[str, Callable[[str], str]] = {
    "a copy": str,
    "a prefix": lambda text: f"Please answer: {text}",
    "a number": lambda text: f"Question 12: {text}",
    "politeness": lambda text: f"Hello! Could you solve this for me? {text} Thank you very much!",
    "case and punctuation": lambda text: f"{text.upper().rstrip('?.')} !!!",
    "white space": lambda text: re.sub(r"([+*/-])", r" \1 ", text).replace(" ", " \n"),
    "number formats": lambda text: re.sub(r"\b\d{4,}\b", lambda m: f"{int(m[0]):,}", text),
    "decimals": lambda text: re.sub(r"(?<![\d.:/-])(\d+)(?![\d.:/-]|,\d)", r"\1.0", text),
    "a name": swap_name,
    "a name and a prefix": lambda text: f"Please answer: {swap_name(text)}",
    "other words": lambda text: text.replace("What is", "Compute").replace("Find", "Tell me"),
    "another order": move_end,
    "invisible characters": lambda text: "\u200b".join(text),
    "letters that look alike": lambda text: text.translate(str.maketrans("aeopcx", "аеорсх")),
    "accents": lambda text: text.replace("e", "é").replace("a", "a\u0301"),
    "Markdown": lambda text: f"# Exercise\n\n> **{text}**",
    "HTML": lambda text: f"<p><b>{text.replace(' ', '&nbsp;')}</b></p>",
    "JSON": lambda text: json.dumps({"question": text.replace(" ", "\u00a0")}),
    "several questions": lambda text: f"1) Who wrote Faust?\n2) {text}\n3) Where is Rome?",
    "an inserted number": lambda text: re.sub(r"^(\S+)", r"\1 (in 1 line)", text),
    "spaced digits": lambda text: re.sub(r"(?<=\d)(?=\d)", " ", text),
    "Arabic-Indic digits": lambda text: text.translate(str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")),
    "hexadecimal": lambda text: re.sub(r"(?<![\d:/])\d+(?![\d:/])", lambda number: hex(int(number[0])), text),
    "base64": lambda text: f"Solve: {base64.b64encode(text.encode()).decode()}",
    "hex-encoded text": lambda text: text.encode().hex(" "),
    "rot13": lambda text: codecs.encode(text, "rot13"),
    "reversed text": lambda text: text[::-1],
    "two disguises": lambda text: base64.b64encode(codecs.encode(text, "rot13").encode()).decode(),
}


@pytest.fixture(scope="module")
def held_out_problems() -> dict[Split, list[Problem]]:
    task = MathSkills()
    return {Split.VALIDATION: task.problems(Split.VALIDATION, 12, 0), Split.TEST: task.problems(Split.TEST, 25, 0)}


@pytest.fixture(scope="module")
def index(held_out_problems: dict[Split, list[Problem]]) -> HeldOut:
    return HeldOut(held_out_problems)


@pytest.mark.parametrize("how", REWORDINGS)
def test_every_reworded_problem_leaks(how: str, held_out_problems: dict[Split, list[Problem]], index: HeldOut) -> None:
    reworded = [REWORDINGS[how](problem.messages[-1].text) for problem in held_out_problems[Split.TEST]]
    examples = [
        Example((Message("user", text),), str(problem.metadata["worked"]), problem.skill)
        for text, problem in zip(reworded, held_out_problems[Split.TEST], strict=True)
    ]
    repeats = index.find(examples)
    assert [text for text, leak in zip(reworded, repeats, strict=True) if leak is None] == []
    assert {leak.reason for leak in repeats if leak} <= {"repeats a test problem", "repeats a validation problem"}


def test_a_swapped_name_leaks_with_any_response(held_out_problems: dict[Split, list[Problem]], index: HeldOut) -> None:
    texts = [
        problem.messages[-1].text
        for problem in held_out_problems[Split.TEST]
        if swap_name(problem.messages[-1].text) != problem.messages[-1].text
    ]
    assert len(texts) == 33
    for before in ("", "Please answer: "):
        examples = [Example((Message("user", before + swap_name(text)),), "I do not know.") for text in texts]
        assert all(index.find(examples))


@pytest.mark.parametrize("name", ["math-skills", "vision-skills", "tools-skills"])
def test_honest_lessons_lose_nothing(name: str) -> None:
    task = make_task(name)
    held_out_problems = {split: task.problems(split, 6, 0) for split in (Split.VALIDATION, Split.TEST)}
    examples = [e for s in task.skills() for e in task.write_examples(s, "", 10, np.random.default_rng(0))]  # type: ignore[attr-defined]
    assert [leak for leak in HeldOut(held_out_problems).find(examples) if leak] == []


def ask(question: str, response: str = "Answer: 7", skill: str = "") -> Example:
    return Example((Message("user", question),), response, skill)


def make_problem(question: str, reference: str = "7", skill: str = "") -> Problem:
    return Problem("p", (Message("user", question),), reference, skill)


@pytest.mark.parametrize(
    ("question", "example", "leaks"),
    [
        ("What is 3 + 4?", ask("What is four plus three?"), True),
        ("What is 3 + 4?", ask("What is 3 + 4 + 5?", "Answer: 12"), False),
        ("What is 3 + 4?", ask("What is 13 + 4?", "Answer: 17"), False),
        ("What is 3 + 4?", ask("What is 3 - 4?", "Answer: 7"), False),
        ("What is 3 + 4?", ask("What is 4 * 3?", "3+4=7. 4*3=12. Answer: 12"), False),
        ("What is the average of 9, 5?", ask("What is the average of 9, 5, 1?", "Answer: 5"), False),
        ("Which is larger, 7 or 5?", ask("Which is smaller, 7 or 5?", "5<7. Answer: 5"), False),
        ("Which is larger, 7 or 5?", ask("Which one is larger: 5 or 7?"), True),
        ("Is a cat an animal?", ask("Is a dog an animal?", "Answer: no"), False),
        ("Who wrote the long novel about the white whale?", ask("Who wrote the novel about Faust?"), False),
        ("What is 3 + 4?", ask("Write VII as a sum: III + IV"), True),
        ("What is 3 + 4?", ask("Add four (page 91) to three."), True),
        ("What is 3 + 4?", ask(r"Compute \( 3 + 4 \)."), True),
        ("What is 3 + 4?", ask("What is 3/19 + 4/19?", "Answer: 7/19"), False),
        ("What is 3 + 4?", ask("What is 0x3 + 0b100?", "Answer: VII"), True),
        ("What is 3 + 4?", ask("Where is Rome?\nAdd 4 to 3.", "In Italy. 7"), True),
        ("What is 3 + 4?", ask("Invent an exercise.", "Exercise: add 4 to 3. The result is 7."), True),
        (
            "Ada has 16 hens, 3 cats and 44 dogs. How many pets?",
            ask("16, 44 und 3 Tiere, wie viele?", "Answer: 7"),
            True,
        ),
        ("Ada has 16 hens, 3 cats and 44 dogs. How many pets?", ask("Sort 3, 16, 44.", "Answer: 3, 16, 44"), False),
    ],
)
def test_same_and_other_questions(question: str, example: Example, leaks: bool) -> None:
    (leak,) = HeldOut({Split.TEST: [make_problem(question)]}).find([example])
    assert (leak is not None) is leaks


@pytest.mark.parametrize("name", ["Yuki", "Marwick"])
def test_a_request_with_another_plan_is_no_leak(name: str) -> None:
    request = "How old is {} on 2023-08-12, in {} years?"
    program = "```python\na = age_of({!r}, 9)\nanswer(a)\n```"
    held_out = Problem(
        "p", (Message("user", request.format("Chiara", 9)),), "40", metadata={"worked": program.format("Chiara")}
    )
    varied = ask(request.format(name, 9), program.format(name))
    reworded = ask("Tell me the age of Ms C. nine years from August 12th.", "answer(age_of(person='Chiara', years=9))")
    assert [leak is not None for leak in HeldOut({Split.TEST: [held_out]}).find([varied, reworded])] == [
        False,
        True,
    ]


def test_a_program_leaks_under_any_names() -> None:
    solution = "def get_value(numbers):\n    chosen = [x for x in numbers if x > 5]\n    return chosen[::-1]\n"
    held_out = Problem("p", (Message("user", "Write get_value(numbers) that reverses the numbers above 5."),), solution)
    renamed = "```python\ndef f(values: list) -> list:\n    return [v for v in values if v > 5][::-1]\n```"
    examples = [ask("Filter a list.", renamed), ask("Filter a list.", renamed.replace("> 5", "> 6"))]
    assert [leak is not None for leak in HeldOut({Split.TEST: [held_out]}).find(examples)] == [True, False]


def test_frequent_answers_do_not_identify_a_question() -> None:
    questions = [f"Is the animal that we call a {name} able to fly?" for name in ("hen", "cat", "owl", "fox", "bat")]
    problems = [Problem(name, (Message("user", name),), "yes") for name in questions]
    assert HeldOut({Split.TEST: problems}).find([ask(questions[0].replace("hen", "bee"), "yes")]) == [None]


def test_questions_about_other_pictures_do_not_leak() -> None:
    def show(picture: str, question: str, response: str = "") -> Example:
        message = Message("user", (ImagePart(picture), TextPart(question)))
        return Example((message,), response or "Answer: red")

    problem = Problem("p", show("a.png", "What colour is the shape?").messages, "red")
    examples = [
        show("a.png", "Please: what colour is the shape?"), show("a.png", "Which colour does the shape have?"),
        show("b.png", "What colour is the shape?"), show("a.png", "How many corners has it?", "Answer: 3"),
    ]  # fmt: skip
    repeats = HeldOut({Split.TEST: [problem]}).find(examples)
    assert [leak is not None for leak in repeats] == [True, True, False, False]


def test_pictures_are_compared_by_pixels(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    first, other = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
    for name, image in (("a.png", first), ("copy.bmp", first), ("b.png", other)):
        image.save(tmp_path / name)

    def show(*names: str) -> Example:
        parts = (*(ImagePart(str(tmp_path / name)) for name in names), TextPart("What colour is the shape?"))
        return Example((Message("user", parts),), "Answer: red")

    apart = (Message("system", "What colour is the shape?"), Message("user", (ImagePart(str(tmp_path / "a.png")),)))
    index = HeldOut({Split.TEST: [Problem("p", show("a.png").messages, "red")]})
    examples = [show("copy.bmp"), show("b.png", "copy.bmp"), Example(apart, "Answer: red"), show("b.png")]
    assert [leak is not None for leak in index.find(examples)] == [True, True, True, False]


def test_a_question_leaks_in_any_message() -> None:
    question = "Ada has 12 pears and gives 5 of them to Ben. How many pears has she left?"
    half = question.index("gives")
    conversations = [
        ((Message("system", question), Message("user", "Answer it.")), "7"),
        ((Message("user", question[:half]), Message("user", question[half:])), "7"),
        ((Message("user", question[:half]), Message("assistant", "Go on."), Message("user", question[half:])), "7"),
        ((Message("user", "Invent an exercise."),), f"Exercise: {question} 12-5=7"),
        ((Message("user", question[:half]),), f"{question[half:]} 12-5=7"),
        ((Message("user", "Ask."), Message("assistant", question), Message("user", "Now answer.")), "7"),
    ]
    index = HeldOut({Split.TEST: [make_problem(question)]})
    assert all(index.find([Example(messages, response) for messages, response in conversations]))


@pytest.mark.parametrize("response", ["7 is the answer.", "Answer: 7. I hope that this answer helps.", "Seven."])
def test_the_answer_counts_anywhere_in_the_response(response: str) -> None:
    index = HeldOut({Split.TEST: [make_problem("What is the sum of 3 and 4?")]})
    assert all(index.find([ask("Add 3 to 4, please.", response)]))


def test_the_reference_of_an_example_is_its_answer() -> None:
    example = Example((Message("user", "Add 3 to 4, please."),), "See below.", reference="7")
    assert all(HeldOut({Split.TEST: [make_problem("What is the sum of 3 and 4?")]}).find([example]))


def test_a_question_leaks_without_its_instructions() -> None:
    task = make_task("tools-skills")
    problems = task.problems(Split.TEST, 2, 0)
    requests = [problem.messages[-1].text.split("\n\n")[1] for problem in problems]
    assert all(HeldOut({Split.TEST: problems}).find([ask(f"Please: {text}", "I do not know.") for text in requests]))
    names = ("Ada", "Ben", "Cleo", "Dion", "Eva", "Finn", "Gil", "Hal", "Ida", "Jo")
    questions = [f"Why did {name} leave the old house by the sea so early?" for name in names]
    index = HeldOut({Split.TEST: [make_problem(f"Question: {text}\n\nReason step by step.", name) for text, name in zip(questions, names, strict=True)]})  # fmt: skip
    assert all(index.find([ask(text, "I do not know.") for text in questions]))


def test_a_leak_names_the_problem_and_none_of_its_text() -> None:
    index = HeldOut({Split.VALIDATION: [make_problem("What is 3 + 4?")]})
    (leak,) = index.find([ask("Please answer: What is 3 + 4?")])
    assert leak is not None
    assert (leak.split, leak.problem_id, leak.reason) == (Split.VALIDATION, "p", "repeats a validation problem")
    assert "3" not in leak.how
    assert HeldOut({}).find([ask("a")]) == [None]


@pytest.mark.parametrize(
    ("text", "other"),
    [("1,200 nuts", "1200 nuts"), ("1'200 nuts", "1200.00 nuts"), ("twenty-five nuts", "25 nuts"),
     ("two hundred nuts", "200 nuts"), ("7 NUTS.", "seven nuts"), ("1\u202f200 nuts", "1200 nuts"),
     ("one hundred and five nuts", "105 nuts"), ("two thousand three hundred", "2300"), ("one nut", "1 nut"),
     ("three four", "3 4"), ("３，０００ nuts", "3000 nuts"), ("two hundred thousand", "200000"), ("٦٬٠٠٠ nuts", "6000 nuts"),
     ("0xff nuts", "255 nuts"), ("0b101 nuts", "5 nuts"), ("⑫ nuts", "12 nuts"), ("३४ nuts", "34 nuts"),
     ("six point five", "6.5"), ("3.5 million", "3500000"), ("a hundred", "a 100"), (r"\frac{6}{12}", "6/12"),
     (r"3 \times 4", "3 * 4"), ("twentyfive nuts", "25 nuts"), ("1️⃣2️⃣ nuts", "12 nuts")],
)  # fmt: skip
def test_numbers_have_one_form(text: str, other: str) -> None:
    assert normalize(text) == normalize(other)


@pytest.mark.skipif(not DATA.is_dir(), reason="needs GSM8K in PALAESTRA_DATA")
def test_gsm8k_train_leaks_little_and_test_leaks_all() -> None:
    def read(name: str) -> list[dict[str, str]]:
        with gzip.open(DATA / f"{name}.jsonl.gz", "rt") as file:
            return [json.loads(line) for line in file]

    test = read("test")
    index = HeldOut({Split.TEST: [make_problem(row["question"], str(row["final"])) for row in test]})
    assert all(index.find([ask(f"Please answer: {row['question']}", "Well.") for row in test[:300]]))
    honest = [
        leak for leak in index.find([ask(row["question"], row["answer"]) for row in read("train")[:2000]]) if leak
    ]
    assert len(honest) <= 20
