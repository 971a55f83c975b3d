"""Programming, open-ended: for single wrong programs of the student the teacher has a few examples written each.

Programs run in a sandbox against tests; the store of the run says what became of each. The embedded student has never
seen a program: in two minutes its loss falls, and hardly a program of it runs. `--student` names one that knows more.

    python examples/lessons/code_open_ended.py
    python examples/lessons/code_open_ended.py --teacher openai:gpt-4o-mini --student smollm2
"""

from collections import Counter

from _shared import arguments, finish

from palaestra import teach
from palaestra.core.records import Score
from palaestra.runs.run import Run

options = arguments(__doc__, rounds=1, lesson_size=120, validation=10, test=20, epochs=3, batch_size=4)

result = teach(
    task="code-skills",
    skills=("programs",),
    teacher="open_ended",
    writer=options.teacher,
    student=options.student,
    learning_rate=2e-3 if options.student == "nano" else 0.0,  # It has never seen a program.
    seed=options.seed,
    out=options.out,
    **options.sizes,
)
with Run.open(result.folder, read_only=True) as run:
    for round_, curve in run.store.curves().items():
        print(f"loss of round {round_}: {curve[0][1]:.2f} -> {curve[-1][1]:.2f}")
    for when, phase in (("before", "0/test"), ("after", f"{result.summary['rounds']}/test")):
        outcomes = [attempt.outcome for attempt in run.store.attempts(phase)]
        found = Counter(one.evidence["outcome"] if isinstance(one, Score) else one.cause for one in outcomes)
        print(f"what became of the programs {when}: {dict(found.most_common())}")
finish(result)
