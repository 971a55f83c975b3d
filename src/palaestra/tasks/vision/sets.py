"""GQA, NaturalBench, easy-VQA and NLVR, from a folder or from the hub.

The folder is `path=` or `$PALAESTRA_DATA/<name>`. Data is read on first use, so listing tasks and skills needs neither
data nor network.

NaturalBench (Li et al., 2024) also has accuracies over groups of two questions about two images. A model that ignores the
image gives the same answer for both, and one of them is wrong:

- question accuracy (Q-Acc): the fraction of questions that are right for both images;
- image accuracy (I-Acc): the fraction of images for which both questions are right;
- group accuracy (G-Acc): the fraction of groups in which all four answers are right.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel

from palaestra.core.errors import TaskError
from palaestra.core.records import (
    Attempt,
    Completion,
    Example,
    Failure,
    ImagePart,
    Message,
    Problem,
    Score,
    Split,
    TextPart,
)
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import Mean, rate_interval
from palaestra.core.tables import load_table
from palaestra.tasks.base import TaskHooks, UnusableError, check_skills, get_split, take
from palaestra.tasks.content import read_brief
from palaestra.tasks.sources import Row, Rows, Source, get_field, locate_dataset, read_rows
from palaestra.tasks.vision.answers import judge, normalize_short
from palaestra.tasks.vision.pictures import Datum, Images, Pictures

_YES_NO = ("yes", "no")
_TRUE_FALSE = ("true", "false")
_TABLE = load_table(__file__, "sets")
_NATURAL: Mapping[str, Mapping[str, Any]] = _TABLE["natural"]
_EASY: Mapping[str, tuple[str, ...]] = {kind: tuple(answers) for kind, answers in _TABLE["easy"].items()}


_PLACES = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Question and image of each of the four answers of a group."""
_PAIRED = {
    "question accuracy": (_PLACES[:2], _PLACES[2:]),
    "image accuracy": (_PLACES[::2], _PLACES[1::2]),
    "group accuracy": (_PLACES,),
}
"""The answers that must all be right, for each paired accuracy."""


@dataclass(frozen=True, slots=True)
class Question:
    """A row of a data set, before its image is read.

    Arguments:
        image: returns the `data:` URL of the image.
        unit: the group of problems that are drawn together; empty for single problems.
    """

    id: str
    text: str
    answer: str
    skill: str
    image: Callable[[], str]
    choices: tuple[str, ...] = ()
    unit: str = ""
    metadata: Mapping[str, str | int] = field(default_factory=dict)


class _VisualSet(TaskHooks, ABC):
    """A data set of images with short answers. Subclasses interpret the rows.

    Arguments:
        path: a folder with the data, or the id of a data set on the hub; empty: `$PALAESTRA_DATA/<name>` if that is a
            folder, otherwise the default on the hub, if there is one.
        instruction: a line that follows every question; `None` means the task's own.
        images: the image generator for lessons that a language model writes, for example `diffusers:MODEL` (see
            `palaestra.tasks.vision.image_generators`); without one, no lessons can be written.
        images_seed: the seed of the image generator.
    """

    name: str
    source: Source
    own_instruction = ""
    unit_size = 1
    kinds: tuple[str, ...]
    closed: Mapping[str, tuple[str, ...]] = {}
    """All possible answers of a kind of question, where they are few."""
    datum: type[BaseModel]
    """Exists only with an image generator. Without one, the task is not a `WritableTask`."""

    def __init__(self, path: str = "", instruction: str | None = None, images: str = "", images_seed: int = 0) -> None:
        self.path = path
        self.instruction = self.own_instruction if instruction is None else instruction
        self._questions: dict[Split, Mapping[str, list[Question]]] = {}
        if images:
            self.pictures = Pictures(images, images_seed)
            self.datum = self.pictures.datum

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(self.kinds, ())

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        """`per_skill` different problems of each skill, or all for `EVERY`.

        The number is rounded down to whole units of `unit_size` problems (the four of a NaturalBench group), at least one.
        """
        check_skills(self, skills)
        whole = max(per_skill // self.unit_size, min(1, per_skill)) * self.unit_size
        problems = []
        for skill in skills or self.kinds:
            units: defaultdict[str, list[Question]] = defaultdict(list)
            for question in self.load_questions(split)[skill]:
                units[question.unit or question.id].append(question)
            names = list(units)
            order = Seeds(seed).derive(self.name, split, skill).generator().permutation(len(names))
            questions = [question for k in order for question in units[names[int(k)]]]
            problems += [self._problem(question) for question in take(questions, whole, self, split, skill)]
        return problems

    def load_questions(self, split: Split) -> Mapping[str, list[Question]]:
        """The questions of a split by skill. A split is read once."""
        if split not in self._questions:
            by_skill: defaultdict[str, list[Question]] = defaultdict(list)
            for question in self.questions(split):
                by_skill[question.skill].append(question)
            self._questions[split] = by_skill
        return self._questions[split]

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        right, given = judge(completion.text, problem.reference, problem.metadata["choices"])
        return Score(float(right), {"extracted": given, "expected": problem.reference})

    def brief(self) -> str:
        return f"{read_brief(self.name)} {self.pictures.brief}"

    def prepare(self, data: Sequence[Datum]) -> None:
        self.pictures.prepare(data)

    def make_example(self, datum: Datum, skill: str, subskill: str) -> Example:
        """The training example of a datum, with the prompt of the data set and the answer alone as response."""
        answer = datum.answer.strip()
        kind = _get_kind(answer, skill, self.closed)
        asked = self.format_prompt(self.format_question(datum.question.strip(), kind))
        return self.pictures.make_example(datum, asked, answer, self.choices(kind, answer), skill, subskill)

    def choices(self, kind: str, answer: str) -> tuple[str, ...]:
        """All possible answers of a question; empty for an open question."""
        return self.closed.get(kind, ())

    def format_question(self, question: str, kind: str) -> str:
        """A question with the instruction of its kind."""
        return question

    def format_prompt(self, question: str) -> str:
        """A question with the instruction of the data set."""
        return f"{question}\n{self.instruction}" if self.instruction else question

    @abstractmethod
    def questions(self, split: Split) -> Iterator[Question]:
        """Every row of `split`; read once."""

    @cached_property
    def place(self) -> Path | str:
        """The folder of the data, or its id on the hub."""
        return locate_dataset(self.source, self.path)

    def rows(self, published: str, config: str = "") -> Rows:
        """The rows of a file of the folder, or of a split on the hub, each with its name for errors."""
        return read_rows(self.source, self.path, published, config)

    @cached_property
    def images(self) -> Images:
        return Images(self.place if isinstance(self.place, Path) else None)

    def picture(self, held: object, where: str) -> Callable[[], str]:
        """A function that reads an image: a file of the folder by name, or the stored value of a table."""
        return partial(self.images.url, held, where)

    def _problem(self, question: Question) -> Problem:
        return Problem(
            id=question.id,
            messages=(Message("user", (ImagePart(question.image()), TextPart(self.format_prompt(question.text)))),),
            reference=question.answer,
            skill=question.skill,
            metadata={"choices": list(question.choices), **question.metadata},
        )


def _get_kind(answer: str, skill: str, closed: Mapping[str, tuple[str, ...]]) -> str:
    """The kind of question of a datum: its skill, or for an unknown skill the first kind with that answer.

    Arguments:
        closed: the possible answers of each kind that has few.

    Raises:
        UnusableError: the answer is impossible for its kind.
    """
    if not closed:
        return skill
    given, kinds = normalize_short(answer), [skill] if skill in closed else list(closed)
    for kind in kinds:
        if given in map(normalize_short, closed[kind]):
            return kind
    possible = dict.fromkeys(choice for kind in kinds for choice in closed[kind])
    raise UnusableError(f"the answer is one of {', '.join(possible)}; got '{answer}'")


class GQA(_VisualSet):
    """GQA (Hudson and Manning, 2019): questions about photographs, with the balanced questions of each split.

    A folder has GQA's own `<split>_balanced_questions.json` and `images/<id>.jpg`. The test split is testdev, because its
    answers are public.
    """

    name, source = "gqa", Source("gqa", "lmms-lab/GQA")
    own_instruction = "Answer the question using a single word or phrase."
    kinds = ("verify", "query", "choose", "logical", "compare")

    def questions(self, split: Split) -> Iterator[Question]:
        part = {Split.TRAIN: "train", Split.VALIDATION: "val", Split.TEST: "testdev"}[split]
        if isinstance(self.place, Path):
            for where, row in self.rows(f"{part}_balanced_questions"):
                yield self._question(where, row, f"{get_field(row, where, 'imageId')}.jpg")
            return
        stored = self.rows(part, f"{part}_balanced_images")
        pictures = {str(get_field(row, where, "id")): row.get("image") for where, row in stored}
        for where, row in self.rows(part, f"{part}_balanced_instructions"):
            name = str(get_field(row, where, "imageId"))
            if name not in pictures:
                raise TaskError(f"{where}: image '{name}' is missing from the data set")
            yield self._question(where, row, pictures[name])

    def _question(self, where: str, row: Row, held: object) -> Question:
        kind = str((row.get("types") or {}).get("structural", "query"))
        text, answer = str(get_field(row, where, "question")), str(get_field(row, where, "answer"))
        closed = self.choices(kind, answer)
        return Question(f"gqa/{get_field(row, where, 'id')}", text, answer, kind, self.picture(held, where), closed)

    def choices(self, kind: str, answer: str) -> tuple[str, ...]:
        return _YES_NO if answer.lower() in _YES_NO else ()


class NaturalBench(_VisualSet):
    """NaturalBench (Li et al., 2024): two questions about two images, four answers per group.

    Problems come in whole groups, and `metrics` computes question, image and group accuracy. The hub has one split;
    the hash of a group decides its split here. A folder has `naturalbench.jsonl` with the columns of the hub and the
    images as file names, or the split `train` of the hub.
    """

    name, source = "naturalbench", Source("naturalbench", "BaiqiL/NaturalBench")
    unit_size = 4
    kinds = tuple(_NATURAL)
    closed: Mapping[str, tuple[str, ...]] = {kind: tuple(own["answers"]) for kind, own in _NATURAL.items()}

    def format_question(self, question: str, kind: str) -> str:
        return f"{question} {_NATURAL[kind]['request']}"

    def metrics(self, attempts: Sequence[Attempt]) -> Mapping[str, Mean]:
        """Question, image and group accuracy; empty if no group is complete.

        A group counts if all four answers were scored. Others are left out, which the counts show. With several samples
        per problem, the first samples form one group, the second ones another, and the value is the mean over these.
        """
        rounds: defaultdict[tuple[str, int], dict[tuple[int, int], bool]] = defaultdict(dict)
        for attempt in attempts:
            if attempt.correct is not None:
                meta = attempt.problem.metadata
                rounds[meta["group"], attempt.sample][meta["question"], meta["image"]] = attempt.correct
        groups: defaultdict[str, list[dict[tuple[int, int], bool]]] = defaultdict(list)
        for (group, _), answers in rounds.items():
            if len(answers) == len(_PLACES):
                groups[group].append(answers)
        metrics = {}
        for name, units in _PAIRED.items() if groups else ():
            pairs = itertools.product(groups.values(), units)
            metrics[name] = rate_interval(
                [fmean(all(answers[place] for place in unit) for answers in samples) for samples, unit in pairs]
            )
        return metrics

    def questions(self, split: Split) -> Iterator[Question]:
        alone = isinstance(self.place, Path) and any(self.place.glob("naturalbench.*"))
        for number, (where, row) in enumerate(self.rows("naturalbench" if alone else "train")):
            group = f"naturalbench/{row.get('Index', number)}"
            if get_split(group) is split:
                yield from self._group(group, where, row)

    def _group(self, group: str, where: str, row: Row) -> Iterator[Question]:
        kind = str(get_field(row, where, "Question_Type", "Question Type")).lower().replace(" ", "_")
        if kind not in _NATURAL:
            raise TaskError(f"{where}: expected the type yes_no or multiple_choice; got '{kind}'")
        for q, i in _PLACES:
            text = self.format_question(str(get_field(row, where, f"Question_{q}")), kind)
            answer, picture = str(get_field(row, where, f"Image_{i}_Question_{q}")), get_field(row, where, f"Image_{i}")
            image = self.picture(picture, where)
            metadata: dict[str, str | int] = {"group": group, "question": q, "image": i}
            yield Question(f"{group}/q{q}i{i}", text, answer, kind, image, self.closed[kind], group, metadata)


class EasyVQA(_VisualSet):
    """easy-VQA (Zhou, 2019): one shape per image, 13 answers.

    The train and validation splits come from the training file. They share no image.
    """

    name, source = "easy-vqa", Source("easy_vqa")
    kinds, closed = tuple(_EASY), _EASY

    def questions(self, split: Split) -> Iterator[Question]:
        file = "test" if split is Split.TEST else "train"
        for number, (where, row) in enumerate(self.rows(file)):
            held = get_field(row, where, "image")
            name = held if isinstance(held, str) else str(row.get("image_id", number))
            if split is not Split.TEST and (get_split(f"easy-vqa|{name}") is Split.TEST) == (split is Split.TRAIN):
                continue
            text, answer = str(get_field(row, where, "question")), str(get_field(row, where, "answer")).lower()
            skill = next((kind for kind, choices in _EASY.items() if answer in choices), "")
            if not skill:
                raise TaskError(f"{where}: expected one of its 13 answers; got '{answer}'")
            image = self.picture(held, where)
            yield Question(f"easy-vqa/{file}/{number}", text, answer, skill, image, _EASY[skill])


class NLVR(_VisualSet):
    """NLVR (Suhr et al., 2017): whether a sentence is true of an image with three boxes.

    The development rows are the validation split. A train split needs a `train` file.
    """

    name, source = "nlvr", Source("nlvr")
    own_instruction = "Is this true or false of the picture? Answer true or false."
    kinds = ("tower", "scatter")
    closed: Mapping[str, tuple[str, ...]] = dict.fromkeys(kinds, _TRUE_FALSE)

    def questions(self, split: Split) -> Iterator[Question]:
        file = {Split.TRAIN: "train", Split.VALIDATION: "dev", Split.TEST: "test"}[split]
        seen: set[str] = set()
        for number, (where, row) in enumerate(self.rows(file)):
            name = f"nlvr/{file}/{row.get('id') or row.get('identifier') or number}"
            label = str(get_field(row, where, "label")).lower()
            if label not in _TRUE_FALSE:
                raise TaskError(f"{where}: expected the label true or false; got '{label}'")
            sentence, image = get_field(row, where, "sentence"), self.picture(get_field(row, where, "image"), where)
            identity = f"{name}/{number}" if name in seen else name
            yield Question(identity, str(sentence), label, _boxes(row), image, _TRUE_FALSE)
            seen.add(name)


def _boxes(row: Row) -> str:
    """`tower` if the boxes have stacked blocks of one size, otherwise `scatter`."""
    boxes = row.get("structured_rep") or []
    items = [item for box in boxes for item in box]
    squares = all(item["type"] == "square" and item["size"] == 20 for item in items)
    stacked = all(len({item["x_loc"] for item in box}) <= 1 for box in boxes)
    return "tower" if items and squares and stacked else "scatter"
