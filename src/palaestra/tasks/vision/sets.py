"""GQA, NaturalBench, easy-VQA and NLVR, from a folder or from the hub.

A folder is given by `path=`, or found as `$PALAESTRA_DATA/<name>`. Nothing is read before the first
problem is asked for, so that listing tasks and skills needs neither data nor network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from palaestra.core.errors import TaskError
from palaestra.core.records import Completion, Failure, ImagePart, Message, Problem, Score, Split, TextPart
from palaestra.core.seeding import Seeds
from palaestra.tasks.base import check_skills, split_of
from palaestra.tasks.vision.answers import judge
from palaestra.tasks.vision.files import Images, field, find_data, hub_image, hub_rows, read_rows

YES_NO = ("yes", "no")
TRUE_FALSE = ("true", "false")
_NATURAL: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "yes_no": ("Please answer Yes or No.", YES_NO),
    "multiple_choice": ("Please output the letter corresponding to the correct option.", ("A", "B")),
}
_EASY: Mapping[str, tuple[str, ...]] = {
    "colour": ("black", "blue", "brown", "gray", "green", "red", "teal", "yellow"),
    "shape": ("circle", "rectangle", "triangle"),
    "yes_no": YES_NO,
}


@dataclass(frozen=True, slots=True)
class Question:
    """A row of a data set, before its image is read.

    Arguments:
        image: gives the `data:` address when the problem is asked.
        unit: what must stay together when problems are drawn; empty where each stands alone.
    """

    id: str
    text: str
    answer: str
    skill: str
    image: Callable[[], str]
    choices: tuple[str, ...] = ()
    unit: str = ""
    metadata: tuple[tuple[str, str | int], ...] = ()


class VisualSet(ABC):
    """A data set of images with short answers. Subclasses say what their rows mean.

    Arguments:
        path: a folder with the data, or the id of a data set on the hub; empty means `$PALAESTRA_DATA/<name>`
            where that is a folder, else the usual place on the hub, where there is one.
        instruction: a line that follows every question; `None` means the task's own.
    """

    name: str
    folder: str
    hub = ""
    own_instruction = ""
    unit_size = 1
    kinds: tuple[str, ...]

    def __init__(self, path: str = "", instruction: str | None = None) -> None:
        self.path = path
        self.instruction = self.own_instruction if instruction is None else instruction
        self._rows: dict[Split, dict[str, list[Question]]] = {}

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(self.kinds, ())

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        check_skills(self, skills)
        if per_skill % self.unit_size:
            raise TaskError(
                f"{self.name} is asked in whole groups of {self.unit_size}; got {per_skill} problems a skill, "
                f"ask for {-(-per_skill // self.unit_size) * self.unit_size}"
            )
        held = self._held(split)
        found = []
        for skill in skills or self.kinds:
            units: dict[str, list[Question]] = {}
            for question in held.get(skill, ()):
                units.setdefault(question.unit or question.id, []).append(question)
            if len(units) * self.unit_size < per_skill:
                raise TaskError(
                    f"skill '{skill}' of {self.name} has {len(units) * self.unit_size} {split} problems; "
                    f"got a request for {per_skill}; ask for fewer, or leave the skill out"
                )
            order = Seeds(seed).derive(self.name, split, skill).generator().permutation(len(units))
            names = list(units)
            for k in order[: per_skill // self.unit_size]:
                found += [self._problem(question) for question in units[names[int(k)]]]
        return found

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        right, given = judge(completion.text, problem.reference, problem.metadata["choices"])
        return Score(float(right), {"extracted": given, "expected": problem.reference})

    @abstractmethod
    def questions(self, split: Split) -> Iterator[Question]:
        """Every row of `split`; read once."""

    @cached_property
    def place(self) -> Path | str:
        """The folder of the data, or its id on the hub."""
        return find_data(self.name, self.folder, self.path, self.hub)

    def rows(self, file: str, config: str | None = None) -> Iterable[Mapping[str, Any]]:
        """The rows of a file of the folder, or of a split on the hub."""
        if isinstance(self.place, Path):
            return read_rows(self.place, file)
        rows: Iterable[Mapping[str, Any]] = hub_rows(self.name, self.place, file, config)
        return rows

    @cached_property
    def images(self) -> Images:
        assert isinstance(self.place, Path)
        return Images(self.place)

    def picture(self, held: Any, where: str) -> Callable[[], str]:
        """What gives the address of the image `held`: a name in the folder, or a value of the hub's column."""
        if isinstance(self.place, Path):
            return lambda: self.images.url(str(held))
        return lambda: hub_image(held, where)

    def _held(self, split: Split) -> dict[str, list[Question]]:
        if split not in self._rows:
            held: dict[str, list[Question]] = {}
            for question in self.questions(split):
                held.setdefault(question.skill, []).append(question)
            self._rows[split] = held
        return self._rows[split]

    def _problem(self, question: Question) -> Problem:
        text = f"{question.text}\n{self.instruction}" if self.instruction else question.text
        return Problem(
            id=question.id,
            messages=(Message("user", (ImagePart(question.image()), TextPart(text))),),
            reference=question.answer,
            skill=question.skill,
            metadata={"choices": list(question.choices), **dict(question.metadata)},
        )


class GQA(VisualSet):
    """GQA (Hudson and Manning, 2019): questions about photographs, with the balanced questions of each split.

    A folder holds GQA's own `<split>_balanced_questions.json` and `images/<id>.jpg`. The test split is
    testdev, whose answers are public.
    """

    name, folder, hub = "gqa", "gqa", "lmms-lab/GQA"
    own_instruction = "Answer the question using a single word or phrase."
    kinds = ("verify", "query", "choose", "logical", "compare")

    def questions(self, split: Split) -> Iterator[Question]:
        part = {Split.TRAIN: "train", Split.VALIDATION: "val", Split.TEST: "testdev"}[split]
        if isinstance(self.place, Path):
            for row in self.rows(f"{part}_balanced_questions"):
                image = self.picture(f"{field(row, self.name, 'imageId')}.jpg", self.name)
                yield self._question(row, image)
            return
        pictures = hub_rows(self.name, self.place, part, f"{part}_balanced_images")
        at = {str(key): k for k, key in enumerate(pictures["id"])}

        def fetch(name: str) -> Callable[[], str]:
            if name not in at:
                raise TaskError(f"gqa: the data set {self.place} has no image '{name}'")
            return lambda: hub_image(pictures[at[name]]["image"], self.name)

        for row in self.rows(part, f"{part}_balanced_instructions"):
            yield self._question(row, fetch(str(field(row, self.name, "imageId"))))

    def _question(self, row: Mapping[str, Any], image: Callable[[], str]) -> Question:
        kind = str((row.get("types") or {}).get("structural", "query"))
        answer = str(field(row, self.name, "answer"))
        closed = YES_NO if answer.lower() in YES_NO else ()
        return Question(
            f"gqa/{field(row, self.name, 'id')}", str(field(row, self.name, "question")), answer, kind, image, closed
        )


class NaturalBench(VisualSet):
    """NaturalBench (Li et al., 2024): two questions about two images, four answers a group.

    `palaestra.tasks.vision.pairs.of_attempts` gives question, image and group accuracy. The hub holds
    one set of groups; its hash decides the split of each. A folder holds `naturalbench.jsonl` with the
    columns of the hub, the images as names of files.
    """

    name, folder, hub = "naturalbench", "naturalbench", "BaiqiL/NaturalBench"
    unit_size = 4
    kinds = ("yes_no", "multiple_choice")

    def questions(self, split: Split) -> Iterator[Question]:
        if isinstance(self.place, Path):
            for number, row in enumerate(self.rows("naturalbench")):
                yield from self._group(number, row, split, partial(self._of_folder, row))
            return
        whole = hub_rows(self.name, self.place, "train")
        # The images weigh a gigabyte: each is read when it is asked about.
        for number, row in enumerate(whole.remove_columns([c for c in ("Image_0", "Image_1") if c in whole.features])):
            yield from self._group(number, row, split, partial(self._of_hub, whole, number))

    def _of_folder(self, row: Mapping[str, Any], image: int) -> str:
        return self.images.url(str(field(row, self.name, f"Image_{image}")))

    def _of_hub(self, rows: Any, number: int, image: int) -> str:
        return hub_image(rows[number].get(f"Image_{image}"), f"{self.name}, row {number}")

    def _group(
        self, number: int, row: Mapping[str, Any], split: Split, picture: Callable[[int], str]
    ) -> Iterator[Question]:
        group = f"naturalbench/{row.get('Index', number)}"
        if split_of(group) is not split:
            return
        kind = str(field(row, group, "Question_Type", "Question Type")).lower().replace(" ", "_")
        if kind not in _NATURAL:
            raise TaskError(f"{group}: expected the type yes_no or multiple_choice; got '{kind}'")
        instruction, choices = _NATURAL[kind]
        for q in (0, 1):
            text = f"{field(row, group, f'Question_{q}')} {instruction}"
            for i in (0, 1):
                answer = str(field(row, group, f"Image_{i}_Question_{q}"))
                yield Question(
                    f"{group}/q{q}i{i}", text, answer, kind, partial(picture, i), choices, group,
                    (("group", group), ("question", q), ("image", i)),
                )  # fmt: skip


class EasyVQA(VisualSet):
    """easy-VQA (Zhou, 2019): one shape a picture, 13 answers.

    The training file gives the train and validation splits, whole images to one or the other.
    """

    name, folder = "easy-vqa", "easy_vqa"
    kinds = tuple(_EASY)

    def questions(self, split: Split) -> Iterator[Question]:
        file = "test" if split is Split.TEST else "train"
        for number, row in enumerate(self.rows(file)):
            held = field(row, f"{self.name} {file} {number}", "image")
            name = str(held) if isinstance(self.place, Path) else str(row.get("image_id", number))
            if split is not Split.TEST and (split_of(f"easy-vqa|{name}") is Split.TEST) == (split is Split.TRAIN):
                continue
            answer = str(field(row, name, "answer")).lower()
            skill = next((kind for kind, choices in _EASY.items() if answer in choices), "")
            if not skill:
                raise TaskError(f"easy-vqa, {file} row {number}: '{answer}' is none of its 13 answers")
            text, image = str(field(row, name, "question")), self.picture(held, name)
            yield Question(f"easy-vqa/{file}/{number}", text, answer, skill, image, _EASY[skill])


class NLVR(VisualSet):
    """NLVR (Suhr et al., 2017): is a sentence true of a picture of three boxes?

    Development rows are the validation split; a train split needs a `train` file.
    """

    name, folder = "nlvr", "nlvr"
    own_instruction = "Is this true or false of the picture? Answer true or false."
    kinds = ("tower", "scatter")

    def questions(self, split: Split) -> Iterator[Question]:
        file = {Split.TRAIN: "train", Split.VALIDATION: "dev", Split.TEST: "test"}[split]
        seen: set[str] = set()
        for number, row in enumerate(self.rows(file)):
            where = f"nlvr/{file}/{row.get('id') or row.get('identifier') or number}"
            held = field(row, where, "image")
            label = str(field(row, where, "label")).lower()
            if label not in TRUE_FALSE:
                raise TaskError(f"{where}: expected the label true or false; got '{label}'")
            sentence, image = str(field(row, where, "sentence")), self.picture(held, where)
            question = Question(where, sentence, label, _boxes(row), image, TRUE_FALSE)
            yield replace(question, id=f"{where}/{number}") if where in seen else question
            seen.add(where)


def _boxes(row: Mapping[str, Any]) -> str:
    """Whether the boxes hold towers of blocks of one size in one column, or scattered shapes."""
    boxes = row.get("structured_rep") or []
    items = [item for box in boxes for item in box]
    stacked = all(i["type"] == "square" and i["size"] == 20 for i in items) and all(
        len({i["x_loc"] for i in box}) <= 1 for box in boxes
    )
    return "tower" if stacked and items else "scatter"
