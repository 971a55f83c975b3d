"""`vision-skills`: questions about generated images, in 18 skills, with worked reasoning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from palaestra.core.errors import TaskError
from palaestra.core.records import Completion, Example, Failure, ImagePart, Message, Problem, Score, Split, TextPart
from palaestra.runs.files import from_json, to_data
from palaestra.tasks.procedural import Family, ProceduralTask, format_response, make_problem
from palaestra.tasks.vision.answers import judge
from palaestra.tasks.vision.drafts import SKILLS, VisionDraft
from palaestra.tasks.vision.pictures import ABOUT_SCENES, ABOUT_WORDS, ANSWERS, Datum, Pictures
from palaestra.tasks.vision.render import png_url, render_scene
from palaestra.tasks.vision.scene import Scene, check_scene, scene_split
from palaestra.tasks.vision.solving import SceneAnswer, answer_question


class VisionSkills(ProceduralTask[VisionDraft]):
    """Procedural questions about pictures of shapes and charts.

    The scene decides the split, so no scene occurs in two splits.

    Arguments:
        images: the image generator for lessons that a language model writes: `procedural` draws scenes, others
            (`diffusers:MODEL`) read descriptions in words. Problems are always procedural.
        images_seed: the seed of the image generator.

    Example:
        >>> task = VisionSkills()
        >>> problem = task.problems(Split.TEST, per_skill=1, seed=0, skills=["colour"])[0]
        >>> task.score(problem, Completion(text=f"Answer: {problem.reference}")).value
        1.0
    """

    name = "vision-skills"
    max_tokens = 72
    # Many different pictures, each seen once, are forgotten less than few that are seen often.
    lesson_size = 1000
    epochs = 1
    family: Family[VisionDraft] = SKILLS

    def __init__(self, images: str = "procedural", images_seed: int = 0) -> None:
        self.pictures = Pictures(images, images_seed)
        self.datum = self.pictures.datum

    def get_split(self, skill: str, draft: VisionDraft) -> Split:
        return scene_split(draft.scene)

    def key(self, draft: VisionDraft) -> tuple[str, str]:
        return draft.scene.canonical(), draft.question

    def content(self, draft: VisionDraft) -> str:
        return draft.scene.canonical()

    def problem(self, skill: str, subskill: str, draft: VisionDraft) -> Problem:
        # A digest of the scene, not of the file: another version of Pillow may compress the same pixels differently.
        identity = f"{skill}|{subskill}|{draft.question}|{draft.scene.exact()}"
        metadata = {"worked": draft.response, **_describe(draft)}
        return make_problem(skill, subskill, identity, _message(draft), draft.answer, metadata)

    def example(self, skill: str, subskill: str, draft: VisionDraft) -> Example:
        return Example((_message(draft),), draft.response, skill, subskill, draft.answer, _describe(draft))

    def brief(self) -> str:
        about = ABOUT_SCENES if self.pictures.reads_scenes else ABOUT_WORDS
        return f"{about} {self.pictures.brief} {ANSWERS}"

    def prepare(self, data: Sequence[Datum]) -> None:
        self.pictures.prepare(data)

    def make_example(self, datum: Datum, skill: str, subskill: str) -> Example:
        response = format_response([datum.reasoning], datum.answer.strip())
        return self.pictures.make_example(datum, datum.question.strip(), response, datum.choices, skill, subskill)

    def solve(self, example: Example) -> str | None:
        answer = _answer(example)
        return None if answer is None else answer.answer

    def recognize_skill(self, example: Example) -> tuple[str, str] | None:
        answer = _answer(example)
        return None if answer is None else (answer.skill, answer.subskill)

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        right, given = judge(completion.text, problem.reference, problem.metadata["choices"])
        return Score(float(right), {"extracted": given, "expected": problem.reference})


def _describe(draft: VisionDraft) -> dict[str, Any]:
    return {"choices": list(draft.choices), "scene": to_data(draft.scene)}


def _message(draft: VisionDraft) -> Message:
    """The message of a problem: the image, then the question."""
    return Message("user", (ImagePart(png_url(render_scene(draft.scene))), TextPart(draft.question)))


def _answer(example: Example) -> SceneAnswer | None:
    """The answer that the scene of an example determines; `None` for an image from words, or an invalid scene."""
    try:
        scene = from_json(Scene, json.dumps(example.metadata.get("scene")))
        check_scene(scene)
    except (TaskError, ValueError, TypeError):
        return None
    return answer_question(scene, example.messages[-1].text)
