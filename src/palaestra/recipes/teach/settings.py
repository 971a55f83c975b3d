"""Settings of `palaestra teach` and of its studies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from palaestra.core.settings import check_ranges, setting
from palaestra.recipes.engine_settings import EngineOptions, EngineSettings
from palaestra.recipes.executor_settings import ExecutorOptions, ExecutorSettings
from palaestra.recipes.metered_engines import CALL_TIMEOUT, CALL_TIMEOUT_HELP
from palaestra.recipes.run_settings import RunOptions, RunSettings
from palaestra.recipes.settings import parse_options, require

TASK_WRITER = "task"
"""The setting `writer` for the task's own generators."""
STUDY_SETTINGS = ("teacher", "state", "writer", "learning", "start", "keep")
"""Settings that may have several values in a study."""


@dataclass(frozen=True)
class TeachSettings(EngineSettings, ExecutorSettings, RunSettings):
    """Settings of one teach run. The command line's options and `settings.json` have the same names."""

    plugins: tuple[str, ...] = setting(
        (), "Files (my_task.py) or modules of your own that register tasks, teachers and others."
    )
    task: str = setting("math-skills", "The task to teach; `palaestra list tasks` lists them.")
    task_options: tuple[str, ...] = setting((), "Options of the task, each as name=value, for example path=FOLDER.")
    validation_tasks: tuple[str, ...] = setting(
        (),
        "Tasks whose validation problems the teacher sees, each NAME or 'NAME option=value ...' (also problems=N, "
        "skills=A,B, taught=false), or several names separated by commas; empty: the task that is taught.",
    )
    test_tasks: tuple[str, ...] = setting(
        (), "Tasks that the gain is measured on, in the same format; empty: the validation tasks."
    )
    student: str = setting("nano", "The model that learns: a registered name, a folder or a hub id.")
    learning: str = setting("supervised", "How the student learns; `palaestra list students` lists the methods.")
    student_options: tuple[str, ...] = setting((), "Options of the learning method, each as name=value.")
    trainer: Literal["palaestra", "llama-factory"] = setting(
        "palaestra", "What runs the training: the built-in loop, or LLaMA-Factory, which trains LoRA adapters."
    )
    trainer_options: tuple[str, ...] = setting(
        (), "Options of LLaMA-Factory, each as name=value: command=PATH, and keys of its YAML file."
    )
    start: Literal["base", "last"] = setting(
        "base",
        "Where a round's training starts: base (the base model, on all data so far) or last (the last round's weights, "
        "on the new data).",
    )
    keep: Literal["last", "best"] = setting(
        "last",
        "Which student is kept and tested: the last round's, or the one with the best validation accuracy, including "
        "the base model.",
    )
    checkpoints: Literal["kept", "all"] = setting(
        "kept", "Which weights stay in the run folder: those of the kept student, or those of every round."
    )
    teacher: str = setting("skill_tree", "The teacher; `palaestra list teachers` lists them.")
    teacher_options: tuple[str, ...] = setting((), "Options of the teacher, each as name=value.")
    writer: str = setting(
        TASK_WRITER,
        "What writes the examples: task (the task's own generators), or a model: openai:MODEL, ADDRESS#MODEL, a folder, ...",
    )
    planner: str = setting(
        "",
        "The model that the teacher plans with (skill_tree with policy=model), named like a writer; empty: the writer.",
    )
    prompts: str = setting("", "A folder with prompt templates that replace the built-in ones of the same names.")
    state: Literal["on", "off"] = setting("on", "Whether the teacher sees the student's results.")
    references: bool = setting(False, "Whether the teacher also sees the expected answers of validation problems.")
    quality: Literal["auto", "on", "off"] = setting(
        "auto", "Whether lessons go through quality checks; auto: if a language model writes them."
    )
    checks: tuple[str, ...] = setting((), "Only these quality checks; empty: all.")
    verify: str = setting(
        "",
        "How to verify answers that the task cannot solve or execute: agreement:N (N answers of the verifier must all "
        "agree with the writer's); empty: not at all.",
    )
    verifier: str = setting(
        "", "The model that answers for --verify and classifies skills, named like a writer; empty: the writer."
    )
    skills: tuple[str, ...] = setting((), "Only these skills of the task; empty: all.")
    discover: str = setting(
        "", "The model that discovers the skills of the problems, named like a writer; empty: the task's own skills."
    )
    skills_file: str = setting(
        "",
        "A file with the skill of each problem: JSON or JSON Lines of problem ids and skills, or the skills.json of a "
        "run with discover.",
    )
    categories: int = setting(0, "Number of skills to discover; 0: the model decides.", low=0)
    discover_train: int = setting(
        0, "Train problems per skill for the discovery, in addition to validation problems.", low=0
    )
    rounds: int = setting(3, "Rounds of lesson, training and evaluation.", low=1)
    lesson_size: int = setting(160, "Examples in one lesson.", low=1)
    budget: int = setting(0, "Maximum examples in all lessons; 0: rounds times lesson size.", low=0)
    validation: int = setting(12, "Validation problems per skill, which the teacher sees.", low=1)
    test: int = setting(25, "Test problems per skill, which the gain is measured on.", low=1)
    test_every_round: bool = setting(False, "Test the student after every round; the teacher never sees the results.")
    top_up: int = setting(2, "How often missing examples of a lesson are ordered again; 0: never.", low=0)
    accumulate: int = setting(1, "How often the teacher is called for one lesson.", low=1)
    answer_tokens: int = setting(0, "Maximum tokens of a student's answer; 0: the task's own limit.", low=0)
    max_cost: float = setting(
        0.0, "Maximum dollars for model calls (writer, verifier, planner, discover); 0: no limit.", low=0
    )
    max_calls: int = setting(0, "Maximum number of these calls; 0: no limit.", low=0)
    max_tokens: int = setting(0, "Maximum tokens of these calls, prompts and completions; 0: no limit.", low=0)
    call_timeout: float = setting(CALL_TIMEOUT, CALL_TIMEOUT_HELP, above=0)
    in_flight: int = setting(16, "Concurrent calls to a service.", low=1)
    cache: str = setting("", "The file that caches all answers of these models; empty: the user's cache, for all runs.")
    method: Literal["auto", "full", "lora"] = setting(
        "auto", "Train all weights or a LoRA adapter; auto: all weights up to 20 M parameters."
    )
    epochs: int = setting(4, "Epochs of each round's training.", low=1)
    batch_size: int = setting(8, "Examples in a training batch.", low=1)
    learning_rate: float = setting(0.0, "Peak learning rate; 0: 5e-4 for all weights and 2e-4 for LoRA.", low=0)
    rank: int = setting(16, "Rank of a LoRA adapter.", low=1)
    engine_batch: int = setting(128, "Answers generated in one batch.", low=1)
    device: str = setting("", "The device, for example cuda; empty: a GPU if there is one.")
    threads: int = setting(0, "CPU threads; 0: torch's default.", low=0)
    checkpoint_seconds: float = setting(120.0, "Seconds between two checkpoints of a running training.", low=0)
    seed: int = setting(0, "Seed of problems, lessons and training.", low=0)

    def __post_init__(self) -> None:
        check_ranges(self)
        require(
            self.trainer == "palaestra" or self.method != "full",
            "setting 'trainer': LLaMA-Factory trains adapters; set the method to 'auto' or 'lora'",
        )
        require(
            self.trainer != "palaestra" or not self.trainer_options,
            "setting 'trainer_options': these are options of LLaMA-Factory; set 'trainer' to 'llama-factory'",
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

    @property
    def samples(self) -> int:
        """Answers of the verifier for each question; 0: no verifier."""
        return int(self.verify.partition(":")[2] or 0)

    def parse(self, name: str) -> dict[str, Any]:
        """Parse `task_options`, `student_options`, `trainer_options` or `teacher_options`."""
        return parse_options(getattr(self, name), name)

    @property
    def chosen_skills(self) -> tuple[str, ...]:
        """Skills that the teacher is restricted to. Discovered skills already come from problems of `skills`."""
        return () if self.discover or self.skills_file else self.own_skills

    @property
    def own_skills(self) -> tuple[str, ...]:
        """Skills to select from the taught task. A task group selects them itself."""
        return () if self.validation_tasks else self.skills

    @property
    def data_budget(self) -> int:
        """Maximum examples in all lessons."""
        return self.budget or self.rounds * self.lesson_size


class TeachOptions(EngineOptions, ExecutorOptions, RunOptions, total=False):
    """The fields of `TeachSettings` as keyword arguments, for editors and type checkers."""

    plugins: Sequence[str]
    task: str | type[Any]
    task_options: Sequence[str]
    validation_tasks: Sequence[str]
    test_tasks: Sequence[str]
    student: str
    learning: str
    student_options: Sequence[str]
    trainer: Literal["palaestra", "llama-factory"]
    trainer_options: Sequence[str]
    start: Literal["base", "last"]
    keep: Literal["last", "best"]
    checkpoints: Literal["kept", "all"]
    teacher: str | type[Any]
    teacher_options: Sequence[str]
    writer: str
    planner: str
    prompts: str
    state: Literal["on", "off"]
    references: bool
    quality: Literal["auto", "on", "off"]
    checks: Sequence[str]
    verify: str
    verifier: str
    skills: Sequence[str]
    discover: str
    skills_file: str
    categories: int
    discover_train: int
    rounds: int
    lesson_size: int
    budget: int
    validation: int
    test: int
    test_every_round: bool
    top_up: int
    accumulate: int
    answer_tokens: int
    max_cost: float
    max_calls: int
    max_tokens: int
    call_timeout: float
    in_flight: int
    cache: str
    method: Literal["auto", "full", "lora"]
    epochs: int
    batch_size: int
    learning_rate: float
    rank: int
    engine_batch: int
    device: str
    threads: int
    checkpoint_seconds: float
    seed: int
