"""Letters to a shop, written by a grammar of ours: each asks for one thing, and speaks of others too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from palaestra.research.judge.tables import write_right, write_table

ROWS = {"train": 4000, "validation": 1500, "test": 2500}

# What is asked for: as something that one wants, and as something that one wants to do.
WISHES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "refund": (
        ("a refund", "my money back", "the price back on my account", "the full amount returned", "reimbursement"),
        ("be paid back", "have the amount returned to my card", "get back what I paid", "be reimbursed", "be refunded"),
    ),
    "replacement": (
        ("a new one", "another one of the same kind", "a replacement", "an exchange", "the same again without a flaw"),
        ("swap it for a new one", "exchange it", "receive a second one in its place", "get the same again in one piece"),
    ),
    "repair": (
        ("a repair", "somebody to look at it", "it fixed", "it mended in your workshop", "this one in working order again"),
        ("have it repaired", "send it in to be mended", "have the old part put right", "let your workshop fix it"),
    ),
    "cancel": (
        ("the order stopped", "a cancellation", "the whole order withdrawn", "nothing sent at all", "out of the contract"),
        ("cancel", "call the order off", "withdraw from the purchase", "stop the parcel before it leaves", "step back"),
    ),
    "invoice": (
        ("the invoice once more", "a bill in our company's name", "a receipt", "a copy of the bill", "the paper for the tax office"),
        ("receive the invoice again", "have a receipt for what I paid", "get a proper bill", "see the invoice corrected"),
    ),
    "address": (
        ("another address on the parcel", "it delivered to my office", "the delivery at my new flat", "a change of address"),
        ("have it sent to my parents instead", "change where it is delivered", "receive it at another place", "move the delivery"),
    ),
}  # fmt: skip
THINGS = (
    "lamp", "kettle", "radio", "coat", "printer", "chair", "camera", "blender", "tent", "clock", "keyboard", "bicycle pump",
)  # fmt: skip
GREETINGS = ("Hello,", "Good morning,", "Dear team,", "Hi there,", "To whom it may concern,", "")
OPENINGS = (
    "I am writing about the {thing} that I ordered on {day}.", "It is about my order {number}.",
    "On {day} I bought a {thing} from you.", "The {thing} of order {number} gives me no peace.",
    "You know me already: order {number}, the {thing}.", "A word about the {thing} from {day}.",
)  # fmt: skip
STORIES = (
    "It arrived late and the box was open.", "It makes a noise that it should not make.", "The colour is not what I saw.",
    "We are moving at the end of the month.", "My card was charged at once.", "I have called twice, and nobody answered.",
    "The parcel has not left your house yet, as I see.", "Our accountant asks me about it every day.", "It worked for a week.",
    "The page says that it is on its way.", "There is a scratch on one side.", "I read your terms with care.",
)  # fmt: skip
CLOSINGS = ("Thank you.", "Best wishes", "I hope to hear from you soon.", "Kind regards", "Thanks in advance!", "")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "the 3rd", "the 12th", "the 28th")
# {want} and {do} are what the letter asks for; {other} and {make} something else.
PLAIN = (
    "What I want is {want}.", "I would like to {do}.", "Please see to it that I get {want}.", "Could I {do}?",
    "I ask you for {want}.", "All I need is {want}.", "Is it possible to {do}?", "I want to {do}.",
)  # fmt: skip
MIXED = (
    "I would rather {do} than {make}.", "Instead of {other} I would take {want}.", "I thought of {other}, but {want} is what I ask for.",
    "Not {other}, but {want}, please.", "Not to {make}: to {do} is my wish.", "I want {want}, not {other}.",
    "At first I wanted to {make}; by now I prefer to {do}.", "I prefer to {do}, although at first I wanted to {make}.",
    "If I cannot {do}, and only then, I would {make}.", "Only if {want} is out of the question, {other} would do.",
    "Your colleague offered me {other}, yet I asked for {want}.", "I asked for {want}, yet your colleague offered me {other}.",
    "You wrote that I could {make}; I insist that I {do}.", "I said no to {other} and I say yes to {want}.",
    "I said yes to {want} and I say no to {other}.", "Nobody asked for {other}: {want} was my wish, and it still is.",
    "{other}? No. {want}? Yes.", "{want}? Yes. {other}? No.", "Before {other} comes up again: I want to {do}.",
    "It is not that I refuse to {do}; I refuse to {make}.", "It is {want} that I wish for and {other} that I do not.",
)  # fmt: skip
BESIDE = (
    "I do not want {other}.", "Last year I asked for {other}, which is settled.", "My neighbour got {other} from you.",
    "Please do not tell me to {make}.", "I never asked to {make}.", "There is no need for {other}.",
    "My wife told me to {make}, but it is not her order.", "With another shop I had to {make}.", "I can do without {other}.",
    "It would make no sense to {make}.", "Others may want {other}.", "Your form only lets me {make}.",
)  # fmt: skip


def make(public: Path, hidden: Path, rng: np.random.Generator) -> None:
    names = list(WISHES)
    count = sum(ROWS.values())
    wishes = [names[k] for k in rng.integers(len(names), size=count)]
    texts = [letter(wish, rng) for wish in wishes]
    ids = [f"m{number:05d}" for number in rng.permutation(90000)[:count] + 10000]
    start = 0
    for split, size in ROWS.items():
        rows = slice(start, start + size)
        start += size
        columns: dict[str, list[str]] = {"id": ids[rows], "text": texts[rows]}
        if split == "train":
            write_table(public / "train.csv", {**columns, "wish": wishes[rows]})
        else:
            write_table(public / f"{split}.csv", columns)
            write_right(hidden, split, ids[rows], wishes[rows])


def letter(wish: str, rng: np.random.Generator) -> str:
    """A letter that asks for `wish`."""

    def one(of: Sequence[str]) -> str:
        return of[int(rng.integers(len(of)))]

    def rarely(of: Sequence[str]) -> str:
        """The later, the rarer."""
        weights = 1.0 / np.arange(1, len(of) + 1)
        return of[int(rng.choice(len(of), p=weights / weights.sum()))]

    def filled(sentence: str) -> str:
        other = one([name for name in WISHES if name != wish])
        values = {
            "want": rarely(WISHES[wish][0]), "do": rarely(WISHES[wish][1]), "other": rarely(WISHES[other][0]),
            "make": rarely(WISHES[other][1]), "thing": thing, "day": one(DAYS), "number": str(rng.integers(1000, 9999)),
        }  # fmt: skip
        done = sentence.format(**values)
        return done[:1].upper() + done[1:]

    thing = one(THINGS)
    asks = filled(one(MIXED)) if rng.random() < 0.75 else filled(one(PLAIN))
    middle = [asks, *(filled(one(BESIDE)) for _ in range(rng.choice(3, p=[0.25, 0.5, 0.25])))]
    middle += [one(STORIES) for _ in range(rng.integers(0, 3))]
    middle = [middle[k] for k in rng.permutation(len(middle))]
    text = " ".join(part for part in (one(GREETINGS), filled(one(OPENINGS)), *middle, one(CLOSINGS)) if part)
    return slipped(text, rng)


def slipped(text: str, rng: np.random.Generator) -> str:
    """With the slips of somebody who types in haste."""

    def word(found: re.Match[str]) -> str:
        letters = list(found.group())
        if len(letters) < 3 or rng.random() > 0.06:
            return found.group()
        k = int(rng.integers(len(letters) - 1))
        kind = rng.integers(4)
        if kind == 0:
            letters[k], letters[k + 1] = letters[k + 1], letters[k]
        elif kind == 1:
            del letters[k]
        elif kind == 2:
            letters.insert(k, letters[k])
        else:
            letters[k] = "abcdefghijklmnopqrstuvwxyz"[int(rng.integers(26))]
        return "".join(letters)

    typed = re.sub(r"[A-Za-z]+", word, text)
    return typed.lower() if rng.random() < 0.3 else typed
