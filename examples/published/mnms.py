"""Plans of tool calls (m&m's), open-ended or by a list of skills, as in DataEnvGym's `examples/tool_use/`.

`--data` names a folder with the published files (`test_human_verified_filtered.json`, `test_human_verified.json`, `test_raw.json`). An
answer is right if it uses the tools of the published plan in order. The script also prints the F1 metrics of the paper.

    python examples/published/mnms.py open_ended --data data/mnms --teacher openai:gpt-4o
    python examples/published/mnms.py skill_list --data data/mnms --student smollm2
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "lessons"))

from _shared import arguments, finish

from palaestra import make_task, teach
from palaestra.runs.run import Run

KINDS = {"open_ended": {"per_error": 2}, "skill_list": {"hypotheses": 2}}
kind = sys.argv.pop(1) if sys.argv[1:] and sys.argv[1] in KINDS else "open_ended"
options = arguments(
    __doc__, student="smollm2", texts={"data": "", "prompt": "full", "skills": "one_call,two_calls,more_calls"},
    rounds=10, lesson_size=60, validation=40, test=60, epochs=3, batch_size=4, answer_tokens=0,
)  # fmt: skip
task_kwargs = {"prompt": options.prompt} | ({"path": options.data} if options.data else {})

result = teach(
    task="mnms",
    task_kwargs=task_kwargs,
    skills=tuple(options.skills.split(",")),
    teacher=kind,
    teacher_kwargs=KINDS[kind],
    writer=options.teacher,
    student=options.student,
    seed=options.seed,
    out=options.out,
    **options.sizes,
)
task = make_task("mnms", **task_kwargs)
with Run.open(result.folder, read_only=True) as run:
    for when, phase in (("before", "0/test"), ("after", f"{result.summary['rounds']}/test")):
        for name, mean in task.metrics(run.store.attempts(phase)).items():
            print(f"{name} {when}: {100 * mean.value:.1f} % [{100 * mean.low:.1f}, {100 * mean.high:.1f}]")
finish(result)
