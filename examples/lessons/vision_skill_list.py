"""Pictures, skill list, with DataEnvGym's call and a student that is built from its parts.

python examples/lessons/vision_skill_list.py
python examples/lessons/vision_skill_list.py --teacher openai:gpt-4o-mini --student HuggingFaceTB/SmolVLM-256M-Instruct
"""

import time

from _shared import CheckedTeacher, RecordingJournal, arguments, finish_episode, make_folder, open_writer

from palaestra import LessonEnv, make_task, make_teacher, run_episode
from palaestra.models import registry as models
from palaestra.students.registry import make_student
from palaestra.students.supervised import supervision_for

SKILLS = ("pattern", "extreme")
options = arguments(
    __doc__, student="nano-vlm", rounds=2, lesson_size=150, validation=8, test=40, epochs=2, batch_size=4
)
folder, journal, start = make_folder(options), RecordingJournal(), time.perf_counter()
budget = options.rounds * options.lesson_size

model = models.load(options.student)
supervision = supervision_for(model.weights, epochs=options.epochs, batch_size=options.batch_size)
student = make_student("supervised", model, supervision, start="last")
env = LessonEnv(
    make_task("vision-skills"),
    student,
    skills=SKILLS,
    rounds=options.rounds,
    budget=budget,
    validation=options.validation,
    test=options.test,
    journal=journal,
)
with open_writer(options.teacher, env.task, "skill_list") as writer:
    agent = make_teacher("skill_list", env.task, SKILLS, writer=writer)
    reports = run_episode(
        environment=env,
        data_generation_agent=CheckedTeacher(agent, env) if options.teacher != "task" else agent,
        io_provider=folder,
        stop_at_num_training_data=budget,
        num_iterations=options.rounds,
        data_per_iteration=options.lesson_size,
        seed=options.seed,
    )
student.save(folder / "student")
finish_episode(journal, max(reports), len(env.data), time.perf_counter() - start, folder)
