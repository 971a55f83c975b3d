"""Pictures, skill list, by DataEnvGym's call, with a student that is put together from its parts.

python examples/lessons/vision_skill_list.py
python examples/lessons/vision_skill_list.py --teacher openai:gpt-4o-mini --student HuggingFaceTB/SmolVLM-256M-Instruct
"""

import time

from _shared import Checked, Remembering, arguments, finish_episode, folder_of, writer_of

from palaestra import LessonEnv, make_task, make_teacher, run_episode
from palaestra.engines import models
from palaestra.learn.students import make_student
from palaestra.learn.supervised import supervision_for

SKILLS = ("pattern", "extreme")
options = arguments(
    __doc__, student="nano-vlm", rounds=2, lesson_size=150, validation=8, test=40, epochs=2, batch_size=4
)
folder, journal, start = folder_of(options), Remembering(), time.perf_counter()
most = options.rounds * options.lesson_size

model = models.load(options.student)
supervision = supervision_for(model.weights, epochs=options.epochs, batch_size=options.batch_size)
student = make_student("supervised", model, supervision, start="last")
env = LessonEnv(
    make_task("vision-skills"),
    student,
    skills=SKILLS,
    rounds=options.rounds,
    budget=most,
    validation=options.validation,
    test=options.test,
    journal=journal,
)
with writer_of(options.teacher, env.task, "skill_list") as writer:
    agent = make_teacher("skill_list", env.task, SKILLS, writer=writer)
    reports = run_episode(
        environment=env,
        data_generation_agent=Checked(agent, env) if options.teacher != "task" else agent,
        io_provider=folder,
        stop_at_num_training_data=most,
        num_iterations=options.rounds,
        data_per_iteration=options.lesson_size,
        seed=options.seed,
    )
student.save(folder / "student")
finish_episode(journal, max(reports), len(env.data), time.perf_counter() - start, folder)
