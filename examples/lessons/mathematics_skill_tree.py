"""Mathematics, skill tree, as a Gymnasium environment: `gymnasium.make`, `reset`, and `step` with a lesson.

Every skill explores or exploits its subskills; the lesson contains the reasons.

    python examples/lessons/mathematics_skill_tree.py
    python examples/lessons/mathematics_skill_tree.py --teacher openai:gpt-4o-mini --student smollm2
"""

import time

import gymnasium
import numpy as np
from _shared import CheckedTeacher, RecordingJournal, arguments, finish_episode, make_folder, open_writer

import palaestra
from palaestra.runs.files import to_json, write_text

SKILLS = ("geometry", "percent", "sequences", "change", "groups", "clock")
options = arguments(__doc__, rounds=2, lesson_size=96, validation=8, test=25)
folder, journal, start = make_folder(options), RecordingJournal(), time.perf_counter()

env = gymnasium.make(
    "palaestra/Lesson-v0",
    task="math-skills",
    student=options.student,
    skills=SKILLS,
    rounds=options.rounds,
    budget=options.rounds * options.lesson_size,
    validation=options.validation,
    test=options.test,
    journal=journal,
    render_mode="ansi",
)
task = env.unwrapped.task
with open_writer(options.teacher, task, "skill_tree") as writer:
    teacher = palaestra.make_teacher("skill_tree", task, SKILLS, writer=writer, policy="response")
    if options.teacher != "task":
        teacher = CheckedTeacher(teacher, env.unwrapped)
    state, info = env.reset(seed=options.seed)
    done = False
    while not done:
        generator = np.random.default_rng((options.seed, state.round))
        lesson = teacher.write(state, min(options.lesson_size, state.budget), generator)
        for decision in lesson.decisions:
            print(f"{decision.skill:<12}{decision.action:<9}{dict(decision.allocation)}  {decision.reason}")
        state, reward, terminated, truncated, info = env.step(lesson)
        done = terminated or truncated
        print(f"reward {reward:+.3f}\n{env.render()}")
        write_text(folder / f"lesson-{state.round}.json", to_json(lesson))
        write_text(folder / f"validation-{state.round}.json", to_json(info["report"]))
finish_episode(journal, state.round, state.examples, time.perf_counter() - start, folder)
