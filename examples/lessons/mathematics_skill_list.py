"""Mathematics, skill list, with DataEnvGym's call: an environment, a data generation agent, a number of iterations.

The lesson and the reports of every iteration are written to the folder `io_provider`.

    python examples/lessons/mathematics_skill_list.py
    python examples/lessons/mathematics_skill_list.py --teacher openai:gpt-4o-mini --student smollm2
"""

import time

from _shared import CheckedTeacher, RecordingJournal, arguments, finish_episode, make_folder, open_writer

from palaestra import LessonEnv, make_teacher, run_episode

SKILLS = ("geometry", "percent", "sequences", "change", "groups", "clock")
options = arguments(__doc__, rounds=2, lesson_size=96, validation=8, test=25)
folder, journal, start = make_folder(options), RecordingJournal(), time.perf_counter()
budget = options.rounds * options.lesson_size

env = LessonEnv(
    "math-skills",
    options.student,
    skills=SKILLS,
    rounds=options.rounds,
    budget=budget,
    validation=options.validation,
    test=options.test,
    journal=journal,
)
with open_writer(options.teacher, env.task, "skill_list") as writer:
    agent = make_teacher("skill_list", env.task, SKILLS, writer=writer, hypotheses=2)
    reports = run_episode(
        environment=env,
        data_generation_agent=CheckedTeacher(agent, env) if options.teacher != "task" else agent,
        io_provider=folder,
        stop_at_num_training_data=budget,
        num_iterations=options.rounds,
        data_per_iteration=options.lesson_size,
        seed=options.seed,
    )
for iteration, report in reports.items():
    print(f"iteration {iteration}: {report['validation'].correct} of {report['validation'].count} validation problems")
finish_episode(journal, max(reports), len(env.data), time.perf_counter() - start, folder)
