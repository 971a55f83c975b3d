"""Write the maximum number of distinct worked examples of the evaluated skills, in the formats of examples.jsonl.

Every skill has several kinds of problems, which are learned separately. Each gets its share; those with longer reasoning,
which are hardest for nano, get a little more.
"""

import json
import random
from collections.abc import Callable

Lesson = tuple[str, str, str]
"""Question, worked steps and answer."""
NAMES = ("Ada", "Ben", "Cleo", "Dion", "Eva", "Finn")
THINGS = ("figs", "nuts", "pears", "shells", "coins", "beads")
HOLDERS = ("bags", "boxes", "jars", "baskets")
MISSING = " Find the missing number."


def addend(r: random.Random) -> Lesson:
    a, b = r.randint(11, 60), r.randint(5, 39)
    question = r.choice((f"What must be added to {b} to reach {a + b}?", f"{b} + ? = {a + b}.{MISSING}"))
    return question, f"{a + b}-{b}={a}", str(a)


def minuend(r: random.Random) -> Lesson:
    a, b = r.randint(11, 60), r.randint(5, 39)
    question = r.choice((f"From which number can you take {b} and keep {a}?", f"? - {b} = {a}.{MISSING}"))
    return question, f"{a}+{b}={a + b}", str(a + b)


def factor(r: random.Random) -> Lesson:
    a, b = r.randint(2, 12), r.randint(2, 9)
    question = r.choice((f"By what must {b} be multiplied to reach {a * b}?", f"{b} * ? = {a * b}.{MISSING}"))
    return question, f"{a * b}/{b}={a}", str(a)


def sequence(sign: str) -> Callable[[random.Random], Lesson]:
    def draw(r: random.Random) -> Lesson:
        a = r.randint(*{"+": (1, 30), "-": (45, 90), "*": (2, 33)}[sign])
        step = r.randint(2, 3) if sign == "*" else r.randint(2, 12)
        terms = [a]
        for _ in range(3):
            terms.append({"+": terms[-1] + step, "-": terms[-1] - step, "*": terms[-1] * step}[sign])
        a, b, c, d = terms
        found = {"+": f"{b}-{a}={step}", "-": f"{a}-{b}={step}", "*": f"{b}/{a}={step}"}[sign]
        asked = r.choice(("What comes next: {}?", "Continue the sequence {}.", "Find the next term of {}."))
        return asked.format(f"{a}, {b}, {c}"), f"{found}. {c}{sign}{step}={d}", str(d)

    return draw


def equal_groups(r: random.Random) -> Lesson:
    a, b, thing = r.randint(2, 9), r.randint(3, 19), r.choice(THINGS)
    return f"{a} {r.choice(HOLDERS)} hold {b} {thing} each. How many {thing}?", f"{a}*{b}={a * b}", str(a * b)


def more_groups(r: random.Random) -> Lesson:
    a, b, c, thing = r.randint(2, 9), r.randint(3, 12), r.randint(2, 20), r.choice(THINGS)
    question = f"{a} {r.choice(HOLDERS)} hold {b} {thing} each, and {c} {thing} lie beside them. How many {thing}?"
    return question, f"{a}*{b}={a * b}. {a * b}+{c}={a * b + c}", str(a * b + c)


def fewer_groups(r: random.Random) -> Lesson:
    a, b, thing = r.randint(2, 9), r.randint(3, 12), r.choice(THINGS)
    c = r.randint(1, a * b - 1)
    question = (
        f"{a} {r.choice(HOLDERS)} hold {b} {thing} each. {r.choice(NAMES)} takes {c} out. How many {thing} remain?"
    )
    return question, f"{a}*{b}={a * b}. {a * b}-{c}={a * b - c}", str(a * b - c)


def change_of_one(r: random.Random) -> Lesson:
    note = r.choice((20, 50, 100))
    price = min(r.randint(3, 48), note - 1)
    question = f"{r.choice(NAMES)} buys a book for {price} and pays with {note}. How much change is due?"
    return question, f"{note}-{price}={note - price}", str(note - price)


def change_of_two(r: random.Random) -> Lesson:
    a, b = r.randint(5, 45), r.randint(5, 45)
    question = f"{r.choice(NAMES)} buys a hat for {a} and a scarf for {b} and pays with 100. How much change is due?"
    return question, f"{a}+{b}={a + b}. 100-{a + b}={100 - a - b}", str(100 - a - b)


def change_of_several(r: random.Random) -> Lesson:
    a, b = r.randint(2, 9), r.randint(3, 10)
    question = f"{r.choice(NAMES)} buys {a} pens at {b} each and pays with 100. How much change is due?"
    return question, f"{a}*{b}={a * b}. 100-{a * b}={100 - a * b}", str(100 - a * b)


def fraction(unit: bool) -> Callable[[random.Random], Lesson]:
    def draw(r: random.Random) -> Lesson:
        bottom, part = r.randint(3, 9), r.randint(2, 15)
        top = 1 if unit else r.randint(2, bottom - 1)
        asked = r.choice(("What is {} of {}?", "Find {} of {}.", "How much is {} of {}?"))
        steps = f"{bottom * part}/{bottom}={part}" + ("" if unit else f". {part}*{top}={part * top}")
        return asked.format(f"{top}/{bottom}", bottom * part), steps, str(part * top)

    return draw


def fraction_sum(r: random.Random) -> Lesson:
    bottom = r.randint(5, 19)
    a = r.randint(1, bottom - 2)
    b = r.randint(1, bottom - 1 - a)
    asked = r.choice(("What is {} + {}?", "Add {} and {}."))
    return asked.format(f"{a}/{bottom}", f"{b}/{bottom}"), f"{a}+{b}={a + b}", f"{a + b}/{bottom}"


def perimeter(r: random.Random) -> Lesson:
    a, b = r.randint(2, 40), r.randint(2, 40)
    question = f"A field is {a} long and {b} wide. What is its perimeter?"
    return question, f"{a}+{b}={a + b}. {a + b}*2={2 * (a + b)}", str(2 * (a + b))


def area(r: random.Random) -> Lesson:
    a, b = r.randint(2, 9), r.randint(3, 25)
    return f"A field is {b} long and {a} wide. What is its area?", f"{b}*{a}={a * b}", str(a * b)


def side(r: random.Random) -> Lesson:
    a, b = r.randint(2, 9), r.randint(3, 25)
    return f"A field of area {a * b} is {a} wide. How long is it?", f"{a * b}/{a}={b}", str(b)


def percent(rate: int, largest: int) -> Callable[[random.Random], Lesson]:
    def draw(r: random.Random) -> Lesson:
        part, divisor = r.randint(2, largest), 100 // rate
        asked = r.choice(
            (f"What is {rate}% of {{}}?", f"Find {rate} percent of {{}}.", f"How much is {rate}% of {{}}?")
        )
        return asked.format(part * divisor), f"{part * divisor}/{divisor}={part}", str(part)

    return draw


def clock(r: random.Random) -> Lesson:
    hour, minute = r.randint(1, 11), r.randint(10, 55)
    wait = r.randint(2, 59)
    total = minute + wait
    question = f"It is {hour}:{minute:02d}. What time is it {wait} minutes later?"
    if total < 60:
        return question, f"{minute}+{wait}={total}", f"{hour}:{total:02d}"
    steps = f"{minute}+{wait}={total}. {total}-60={total - 60}. {hour}+1={hour + 1}"
    return question, steps, f"{hour + 1}:{total - 60:02d}"


SHARES: dict[Callable[[random.Random], Lesson], int] = {
    addend: 6, minuend: 6, factor: 8, sequence("+"): 8, sequence("-"): 8, sequence("*"): 10, equal_groups: 4,
    more_groups: 5, fewer_groups: 5, change_of_one: 6, change_of_two: 7, change_of_several: 7, fraction(True): 6,
    fraction(False): 7, fraction_sum: 7, perimeter: 8, area: 8, side: 8, percent(10, 60): 4, percent(20, 50): 5,
    percent(25, 50): 5, percent(50, 90): 4, clock: 18,
}  # fmt: skip


def main() -> None:
    assert sum(SHARES.values()) == 160
    r, lessons = random.Random(0), dict[str, str]()
    for draw, share in SHARES.items():
        wanted = len(lessons) + share
        while len(lessons) < wanted:
            question, steps, answer = draw(r)
            lessons.setdefault(question, f"{steps}. Answer: {answer}")
    with open("lessons.jsonl", "w", encoding="utf-8") as out:
        for question, response in lessons.items():
            out.write(json.dumps({"question": question, "response": response}) + "\n")


if __name__ == "__main__":
    main()
