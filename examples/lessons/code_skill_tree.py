"""Programming, skill tree: every skill opens subskills or moves data among the open ones, within limits.

The policy balances the data among the subskills. Its decisions and their reasons are read from the run's store.

    python examples/lessons/code_skill_tree.py
    python examples/lessons/code_skill_tree.py --teacher openai:gpt-4o-mini --student smollm2
"""

from _shared import arguments, finish

from palaestra import teach
from palaestra.runs.run import Run

options = arguments(__doc__, rounds=2, lesson_size=60, validation=4, test=10, epochs=2, batch_size=4)

result = teach(
    task="code-skills",
    skills=("lists", "strings", "programs"),
    teacher="skill_tree",
    teacher_kwargs={"policy": "balanced", "cap": 0.5, "open_at_once": 1},
    writer=options.teacher,
    student=options.student,
    start="last",
    learning_rate=2e-3 if options.student == "nano" else 0.0,  # nano was not trained on programs
    seed=options.seed,
    out=options.out,
    **options.sizes,
)
with Run.open(result.folder, read_only=True) as run:
    for round_ in run.store.lesson_rounds():
        for decision in run.store.lesson(round_).decisions:
            given = ", ".join(f"{count} x {part}" for part, count in decision.allocation.items())
            print(f"round {round_}: {decision.skill} {decision.action} ({given}): {decision.reason}")
finish(result)
