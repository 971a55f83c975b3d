"""Programming, open-ended: the teacher orders a few examples for each of several wrong programs of the student.

Programs run in a sandbox against tests; the outcome of each is in the run's store. The embedded student was not trained
on programs: in two minutes its loss falls, but hardly any of its programs run. `--student` selects another model.

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
    learning_rate=2e-3 if options.student == "nano" else 0.0,  # nano was not trained on programs
    seed=options.seed,
    out=options.out,
    **options.sizes,
)
with Run.open(result.folder, read_only=True) as run:
    for round_, curve in run.store.curves().items():
        print(f"loss of round {round_}: {curve[0][1]:.2f} -> {curve[-1][1]:.2f}")
    for when, phase in (("before", "0/test"), ("after", f"{result.summary['rounds']}/test")):
        outcomes = [attempt.outcome for attempt in run.store.attempts(phase)]
        counts = Counter(o.evidence["outcome"] if isinstance(o, Score) else o.cause for o in outcomes)
        print(f"outcomes of the programs {when}: {dict(counts.most_common())}")
finish(result)
