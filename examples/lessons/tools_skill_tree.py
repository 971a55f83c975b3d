"""Tool use, skill tree: requests that are answered by calling typed tools, which really run.

The short form of the task, with names of tools and no descriptions, fits the embedded student's 256 tokens. Beside the right
answers this counts the calls that were right.

    python examples/lessons/tools_skill_tree.py
    python examples/lessons/tools_skill_tree.py --teacher openai:gpt-4o-mini --student smollm2
"""

from _shared import arguments, finish

from palaestra import make_task, teach
from palaestra.runs.run import Run

OPTIONS = {"prompt": "short", "distractors": 1, "most_calls": 1}
options = arguments(__doc__, rounds=2, lesson_size=100, validation=8, test=25, epochs=4, batch_size=4)

result = teach(
    task="tools-skills",
    task_options=tuple(f"{name}={value}" for name, value in OPTIONS.items()),
    skills=("clock", "money"),
    teacher="skill_tree",
    teacher_options=("cap=0.6",),
    writer=options.teacher,
    student=options.student,
    start="last",
    learning_rate=2e-3 if options.student == "nano" else 0.0,  # It has never seen a program that calls tools.
    seed=options.seed,
    out=options.out,
    **options.sizes,
)
task = make_task("tools-skills", **OPTIONS)
with Run.open(result.folder, read_only=True) as run:
    for when, phase in (("before", "0/test"), ("after", f"{result.summary['rounds']}/test")):
        for name, found in task.metrics(run.store.attempts(phase)).items():
            print(f"{name} {when}: {100 * found.value:.1f} % [{100 * found.low:.1f}, {100 * found.high:.1f}]")
finish(result)
