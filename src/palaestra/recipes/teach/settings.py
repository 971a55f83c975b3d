"""Settings of `palaestra teach` and of its studies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from palaestra.core.settings import check_ranges, setting
from palaestra.envs.lesson.env import REHEARSAL_FRACTION
from palaestra.recipes.settings import (
    CALL_TIMEOUT,
    EngineSettings,
    ExecutorSettings,
    RunSettings,
    check_effects,
    require,
)
from palaestra.tasks.base import Task, TaskHooks, get_hooks

TASK_WRITER = "task"
"""The setting `writer` for the task's own generators."""
STUDY_SETTINGS = ("teacher", "state", "writer", "learning", "start", "keep")
"""Settings that may have several values in a study."""


class LessonAmounts(NamedTuple):
    """Examples in a lesson, and epochs and learning rate of a training; a rate of 0 is the student's own."""

    lesson_size: int
    epochs: int
    learning_rate: float


@dataclass(frozen=True)
class TeachSettings(EngineSettings, ExecutorSettings, RunSettings):
    """Settings of one teach run. The command line's options and `settings.json` have the same names."""

    plugins: tuple[str, ...] = setting((), panel="Run")
    """Files (my_task.py) or modules of your own that register tasks, teachers and others."""
    task: str = setting("math-skills", panel="Task", usual=True, names="tasks")
    """The task: a name, see `palaestra list tasks`, or your own data: FILE, FOLDER or hf:NAME."""
    task_kwargs: Mapping[str, Any] = setting({}, panel="Task")
    """Options of the task, for example scorer=number."""
    validation_tasks: tuple[str, ...] = setting((), panel="Task")
    """Tasks whose validation problems the teacher sees, each NAME or 'NAME option=value ...' (also problems=N,
    skills=A,B, taught=false), or several names separated by commas; empty: the task that is taught."""
    test_tasks: tuple[str, ...] = setting((), panel="Task")
    """Tasks that the gain is measured on, in the same format; empty: the validation tasks."""
    student: str = setting("", panel="Model", usual=True, names="models")
    """The model that learns: a registered name, a folder or a hub id; empty: the embedded model that fits the task."""
    learning: str = setting("supervised", names="students")
    """How the student learns; `palaestra list students` lists the methods."""
    student_kwargs: Mapping[str, Any] = setting({})
    """Options of the learning method."""
    trainer: Literal["palaestra", "llama-factory"] = setting("palaestra")
    """What runs the training: the built-in loop, or LLaMA-Factory, which trains LoRA adapters."""
    trainer_kwargs: Mapping[str, Any] = setting({})
    """Options of LLaMA-Factory: command=PATH, and keys of its YAML file."""
    start: Literal["base", "last"] = setting("base")
    """Where a round's training starts: base (the base model, on all data so far) or last (the last round's weights, on
    the new data)."""
    keep: Literal["last", "best"] = setting("last", panel="Run")
    """Which student is kept and tested: the last round's, or the one with the best validation accuracy, including the
    base model."""
    rehearsal: float = setting(REHEARSAL_FRACTION, low=0, high=0.9, panel="Teacher")
    """Fraction of a training's examples that are the student's own correct answers from before the first lesson,
    against forgetting; 0: none."""
    checkpoints: Literal["kept", "all"] = setting("kept", panel="Run")
    """Which weights stay in the run folder: those of the kept student, or those of every round."""
    teacher: str = setting("skill_tree", panel="Teacher", usual=True, names="teachers")
    """The teacher; `palaestra list teachers` lists them."""
    teacher_kwargs: Mapping[str, Any] = setting({}, panel="Teacher")
    """Options of the teacher."""
    writer: str = setting(TASK_WRITER, panel="Teacher", usual=True)
    """What writes the examples: task (the task's own generators), or a model: openai:MODEL, ADDRESS#MODEL, a folder,
    ..."""
    planner: str = setting("", panel="Teacher")
    """The model that the teacher plans with (skill_tree with policy=model), named like a writer; empty: the writer."""
    prompts: str = setting("", panel="Teacher")
    """A folder with prompt templates that replace the built-in ones of the same names."""
    state: Literal["on", "off"] = setting("on", panel="Teacher")
    """Whether the teacher sees the student's results."""
    references: bool = setting(False, panel="Teacher")
    """Whether the teacher also sees the expected answers of validation problems."""
    quality: Literal["auto", "on", "off"] = setting("auto", panel="Teacher")
    """Whether lessons go through quality checks; auto: if a language model writes them."""
    checks: tuple[str, ...] = setting((), panel="Teacher", names="checks")
    """Only these quality checks; empty: all."""
    verify: str = setting("", panel="Teacher")
    """How to verify answers that the task cannot solve or execute: agreement:N (N answers of the verifier must all
    agree with the writer's); empty: not at all."""
    verifier: str = setting("", panel="Teacher")
    """The model that answers for --verify and classifies skills, named like a writer; empty: the writer."""
    skills: tuple[str, ...] = setting((), panel="Task")
    """Only these skills of the task; empty: all."""
    discover: str = setting("", panel="Teacher")
    """The model that discovers the skills of the problems, named like a writer; empty: the task's own skills."""
    skills_file: str = setting("", panel="Teacher")
    """A file with the skill of each problem: JSON or JSON Lines of problem ids and skills, or the skills.json of a run
    with discover."""
    categories: int = setting(0, low=0, panel="Teacher")
    """Number of skills to discover; 0: the model decides."""
    discover_train: int = setting(0, low=0, panel="Teacher")
    """Train problems per skill for the discovery, in addition to validation problems."""
    rounds: int = setting(3, low=1, panel="Teacher", usual=True)
    """Rounds of lesson, training and evaluation."""
    lesson_size: int = setting(0, low=0, panel="Teacher", usual=True)
    """Examples in one lesson; 0: the task's own number, or 160 if a model writes or there is a budget."""
    budget: int = setting(0, low=0, panel="Teacher")
    """Maximum examples in all lessons; 0: rounds times lesson size."""
    validation: int = setting(12, low=1, panel="Task")
    """Validation problems per skill, which the teacher sees."""
    test: int = setting(25, low=1, panel="Task")
    """Test problems per skill, which the gain is measured on."""
    test_every_round: bool = setting(False, panel="Task")
    """Test the student after every round; the teacher never sees the results."""
    top_up: int = setting(2, low=0, panel="Teacher")
    """How often missing examples of a lesson are ordered again; 0: never."""
    accumulate: int = setting(1, low=1, panel="Teacher")
    """How often the teacher is called for one lesson."""
    answer_tokens: int = setting(0, low=0, panel="Sampling")
    """Maximum tokens of a student's answer; 0: the task's own limit."""
    max_cost: float = setting(0.0, low=0, panel="Limits on model calls", usual=True)
    """Maximum dollars for model calls (writer, verifier, planner, discover); 0: no limit."""
    max_calls: int = setting(0, low=0, panel="Limits on model calls")
    """Maximum number of these calls; 0: no limit."""
    max_tokens: int = setting(0, low=0, panel="Sampling")
    """Maximum tokens of these calls, prompts and completions; 0: no limit."""
    call_timeout: float = setting(CALL_TIMEOUT, above=0, panel="Limits on model calls")
    """Maximum seconds to wait for one answer of a service, including retries."""
    in_flight: int = setting(16, low=1, panel="Limits on model calls")
    """Concurrent calls to a service."""
    cache: str = setting("", panel="Limits on model calls")
    """The file that caches all answers of these models; empty: the user's cache, for all runs."""
    method: Literal["auto", "full", "lora"] = setting("auto", panel="Model")
    """Train all weights or a LoRA adapter; auto: all weights up to 20 M parameters."""
    epochs: int = setting(0, low=0)
    """Epochs of each round's training; 0: the task's own number, or 4 if the lessons do not have the task's own
    size."""
    batch_size: int = setting(0, low=0)
    """Examples in a training batch; 0: 16 with Muon, 8 otherwise."""
    learning_rate: float = setting(0.0, low=0, usual=True)
    """Peak learning rate; 0: 5e-4 for all weights, 7e-4 with Muon, and 2e-4 for LoRA."""
    rank: int = setting(16, low=1, panel="Model")
    """Rank of a LoRA adapter."""
    optimizer: Literal["auto", "adamw", "muon"] = setting("auto", panel="Model")
    """Of all weights; auto: muon for supervised models that read images, otherwise adamw."""
    freeze_vision: bool = setting(True, panel="Model")
    """Train all weights but those of the encoder of images."""
    engine_batch: int = setting(128, low=1, panel="Model")
    """Answers generated in one batch."""
    device: str = setting("", panel="Model", usual=True)
    """The device, for example cuda; empty: a GPU if there is one."""
    threads: int = setting(0, low=0, panel="Model")
    """CPU threads; 0: torch's default."""
    checkpoint_seconds: float = setting(120.0, low=0, panel="Run")
    """Seconds between two checkpoints of a running training."""
    seed: int = setting(0, low=0, panel="Run", usual=True)
    """Seed of problems, lessons and training."""

    def __post_init__(self) -> None:
        check_ranges(self)
        require(
            self.trainer == "palaestra" or self.method != "full",
            "setting 'trainer': LLaMA-Factory trains adapters; set the method to 'auto' or 'lora'",
        )
        require(
            self.trainer != "palaestra" or not self.trainer_kwargs,
            "setting 'trainer_kwargs': these are options of LLaMA-Factory; set 'trainer' to 'llama-factory'",
        )
        require(
            not self.verify or re.fullmatch(r"agreement:[1-9]\d?", self.verify) is not None,
            f"setting 'verify': expected agreement:N with N from 1 to 99; got '{self.verify}'",
        )
        require(not self.verifier or bool(self.verify), "setting 'verifier': set 'verify' too, for example agreement:3")
        require(
            not self.verify or self.quality != "off",
            "setting 'verify': agreement is a quality check; leave 'quality' at auto or on",
        )
        require(
            not self.verify or bool(self.verifier) or self.writer != TASK_WRITER,
            "setting 'verify': the task's own generators write; set 'verifier' to a language model",
        )

    def check_effects(self) -> None:
        """Raise for a setting that has no effect on this run."""
        writes = self.writer != TASK_WRITER
        asks = writes or self.planner or self.verifier or self.discover
        limits = ("max_cost", "max_calls", "max_tokens", "call_timeout", "in_flight", "cache")
        check_effects(
            self,
            (asks, "because no language model is called: no writer, planner, verifier or discover is set", limits),
            (
                self.rank == type(self).rank or self._trains_adapter,
                f"because the method '{self.method}' trains no adapter here; set it to lora",
                ("rank",),
            ),
            (
                (self.optimizer == "auto" and self.freeze_vision) or not self._trains_adapter,
                "because an adapter is trained; set 'method' to full",
                ("optimizer", "freeze_vision"),
            ),
            (self.learning != "practice", "with learning 'practice'", ("optimizer",)),
            (self.state == "on", "because the state is off", ("references",)),
            (self.learning not in ("preference", "practice"), f"with learning '{self.learning}'", ("rehearsal",)),
            (
                writes or self.quality == "on",
                "because the task's own examples are not checked; set 'quality' to on",
                ("checks",),
            ),
        )

    @property
    def _trains_adapter(self) -> bool:
        from palaestra.students.supervised import trains_adapter

        return self.trainer != "palaestra" or trains_adapter(self.student or "nano", self.method)

    @property
    def samples(self) -> int:
        """Answers of the verifier for each question; 0: no verifier."""
        return int(self.verify.partition(":")[2] or 0)

    @property
    def chosen_skills(self) -> tuple[str, ...]:
        """Skills that the teacher is restricted to. Discovered skills already come from problems of `skills`."""
        return () if self.discover or self.skills_file else self.own_skills

    @property
    def own_skills(self) -> tuple[str, ...]:
        """Skills to select from the taught task. A task group selects them itself."""
        return () if self.validation_tasks else self.skills

    def get_amounts(self, task: Task) -> LessonAmounts:
        """The amounts of a run. A task sets its own for lessons of its own generators, which are free."""
        is_own = self.writer == TASK_WRITER and not self.lesson_size and not self.budget
        hooks = get_hooks(task) if is_own else TaskHooks()
        rate = self.learning_rate or hooks.learning_rate
        return LessonAmounts(self.lesson_size or hooks.lesson_size, self.epochs or hooks.epochs, rate)
