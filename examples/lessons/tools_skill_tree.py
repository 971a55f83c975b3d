"""Tool use, skill tree: the student answers requests by calling typed tools, which are executed.

The short prompt, without descriptions of the tools, fits the embedded student's context of 256 tokens. The script also prints the
fraction of correct calls.

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
    task_kwargs=OPTIONS,
    skills=("clock", "money"),
    teacher="skill_tree",
    teacher_kwargs={"cap": 0.6},
    writer=options.teacher,
    student=options.student,
    start="last",
    learning_rate=2e-3 if options.student == "nano" else 0.0,  # nano was not trained on programs that call tools
    seed=options.seed,
    out=options.out,
    **options.sizes,
)
task = make_task("tools-skills", **OPTIONS)
with Run.open(result.folder, read_only=True) as run:
    for when, phase in (("before", "0/test"), ("after", f"{result.summary['rounds']}/test")):
        for name, mean in task.metrics(run.store.attempts(phase)).items():
            print(f"{name} {when}: {100 * mean.value:.1f} % [{100 * mean.low:.1f}, {100 * mean.high:.1f}]")
finish(result)
