"""Mathematics, skill list, by DataEnvGym's call: an environment, a data generation agent, and a number of iterations.

The folder of `io_provider` gets the lesson and the reports of every iteration.

    python examples/lessons/mathematics_skill_list.py
    python examples/lessons/mathematics_skill_list.py --teacher openai:gpt-4o-mini --student smollm2
"""

import time

from _shared import Checked, Remembering, arguments, finish_episode, folder_of, writer_of

from palaestra import LessonEnv, make_teacher, run_episode

SKILLS = ("geometry", "percent", "sequences", "change", "groups", "clock")
options = arguments(__doc__, rounds=2, lesson_size=96, validation=8, test=25)
folder, journal, start = folder_of(options), Remembering(), time.perf_counter()
most = options.rounds * options.lesson_size

env = LessonEnv(
    "math-skills",
    options.student,
    skills=SKILLS,
    rounds=options.rounds,
    budget=most,
    validation=options.validation,
    test=options.test,
    journal=journal,
)
with writer_of(options.teacher, env.task, "skill_list") as writer:
    agent = make_teacher("skill_list", env.task, SKILLS, writer=writer, hypotheses=2)
    reports = run_episode(
        environment=env,
        data_generation_agent=Checked(agent, env) if options.teacher != "task" else agent,
        io_provider=folder,
        stop_at_num_training_data=most,
        num_iterations=options.rounds,
        data_per_iteration=options.lesson_size,
        seed=options.seed,
    )
for iteration, found in reports.items():
    print(f"iteration {iteration}: {found['validation'].correct} of {found['validation'].count} validation problems")
finish_episode(journal, max(reports), len(env.data), time.perf_counter() - start, folder)
