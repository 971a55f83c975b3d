"""Does the pretraining text of the embedded models contain problems of a test set?

Draws conversations from the pretraining corpus of each model and compares them with

- test problems of every procedural task, by the rules of `palaestra.tasks.leakage`: copies, most n-grams of a question, the same
  program. Its rule for other words is counted apart: it compares numbers, and takes any text with 10, 4 and 6 for "10 - 4";
- every text of every row of public data sets (`--data FOLDER` with files `*/*.jsonl.gz`), the questions apart from answers,
  programs and tests: an *overlap* is a sequence of 13 words in normal form; a text of 8 to 12 words counts as a whole. Pictures
  are not compared.

`--examples N` sets the number of conversations per model (2,500). Ratio: repeated problems and overlaps with questions, over all
conversations.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from _common import arguments, finish

from palaestra.core.records import Example, ImagePart, Message, Split, TextPart
from palaestra.core.seeding import Seeds
from palaestra.envs.base import draw_up_to
from palaestra.models.embedded import EMBEDDED
from palaestra.students.pretraining import mix_corpora
from palaestra.tasks.base import make_task
from palaestra.tasks.leakage import HeldOut
from palaestra.tasks.texts import words
from palaestra.tasks.vision.corpus import Shown
from palaestra.tasks.vision.render import png_url, render_scene

TASKS = ("math-skills", "code-skills", "tools-skills", "vision-skills")
QUESTIONS = {"question", "prompt", "text", "problem", "sentence", "chosen", "rejected"}
"""The fields of public data sets that pose a problem."""
LONG, SHORT = 13, 8
"""Words of an n-gram, and of the shortest text that is compared as a whole."""


def to_example(item: Example | Shown) -> Example:
    """A conversation of a corpus; one about a picture with the picture."""
    if isinstance(item, Example):
        return item
    picture = () if item.scene is None else (ImagePart(png_url(render_scene(item.scene))),)
    return Example((Message("user", (*picture, TextPart(item.question))),), item.response, item.skill)


def list_strings(value: object, name: str = "") -> Iterator[tuple[bool, str]]:
    """All texts in a row of a data set, and whether each is a question."""
    if isinstance(value, str):
        yield name in QUESTIONS, value
    elif isinstance(value, list | dict):
        for key, item in value.items() if isinstance(value, dict) else ((name, item) for item in value):
            yield from list_strings(item, key)


class Conversations:
    """Conversations whose sequences of words can be looked up."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.texts, self._places = list[str](), dict[str, int]()
        for place, example in enumerate(examples):
            tokens = words("\n".join([*(message.text for message in example.messages), example.response]))
            self.texts.append(" ".join(tokens))
            for length in (SHORT, LONG):
                self._places.update(dict.fromkeys(split_grams(tokens, length), place))

    def find_overlaps(self, tokens: Sequence[str]) -> set[str]:
        """The sequences of words of a text that a conversation contains."""
        if SHORT <= len(tokens) < LONG:  # It counts as a whole.
            place, whole = self._places.get(" ".join(tokens[:SHORT])), " ".join(tokens)
            return {whole} if place is not None and whole in self.texts[place] else set()
        return {gram for gram in split_grams(tokens, LONG) if gram in self._places}


def split_grams(tokens: Sequence[str], length: int) -> list[str]:
    return [" ".join(tokens[start : start + length]) for start in range(len(tokens) - length + 1)]


def main() -> None:
    options = arguments(__doc__ or "", examples="conversations per model (2,500)", data="a folder of public data sets")
    count, per_skill = int(options.examples or (300 if options.quick else 2500)), 5 if options.quick else 25
    corpora = {
        name: [*map(to_example, islice(mix_corpora(row.corpora, Seeds(0).derive("overlap").generator()), count))]
        for name, row in EMBEDDED.items()
    }
    repeated = 0
    for task in TASKS:
        problems = draw_up_to(per_skill, make_task(task), Split.TEST, 0)
        index = HeldOut({Split.TEST: problems})
        for name, examples in corpora.items():
            kinds = Counter(leak.how for leak in index.find(examples) if leak is not None)
            loose = kinds.pop("the question in other words", 0)
            repeated += kinds.total()
            print(f"{name}, {task}: {len(problems)} problems, repeated {dict(kinds) or 0}, numbers alike {loose}")
    indices = {name: Conversations(examples) for name, examples in corpora.items()}
    for file in sorted(Path(options.data).glob("*/*.jsonl.gz")) if options.data else ():
        rows = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
        texts = [(asks, words(text)) for asks, text in {pair for row in rows for pair in list_strings(row)}]
        for name, index_of_model in indices.items():
            shared: dict[bool, set[str]] = {True: set(), False: set()}
            for asks, tokens in texts:
                shared[asks] |= index_of_model.find_overlaps(tokens)
            repeated += len(shared[True])
            rest = f"{len(shared[False])} in other fields {sorted(shared[False])[:3]}"
            print(f"{name}, {file.parent.name}/{file.name}: {len(rows)} rows, {len(shared[True])} in questions, {rest}")
    finish("corpus_overlap", repeated / (count * len(corpora)), examples=count)


if __name__ == "__main__":
    main()
