"""Mathematics, open-ended: the teacher orders a few examples for each of several wrong answers of the student.

`teach` runs the rounds, measures before and after, and writes a run folder that can be resumed and a report.

    python examples/lessons/mathematics_open_ended.py
    python examples/lessons/mathematics_open_ended.py --teacher openai:gpt-4o-mini --student smollm2
"""

from _shared import arguments, finish

from palaestra import teach

options = arguments(__doc__, rounds=2, lesson_size=96, validation=8, test=25, epochs=3)

result = teach(
    task="math-skills",
    skills=("geometry", "percent", "sequences", "change", "groups", "clock"),
    teacher="open_ended",
    teacher_kwargs={"per_error": 4},
    writer=options.teacher,
    student=options.student,
    seed=options.seed,
    out=options.out,
    **options.sizes,
)
finish(result)
