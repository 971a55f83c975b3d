"""LiveCodeBench with three teachers, as in DataEnvGym's `examples/livecodebench/`.

`--data` names a folder with the published files (`test.jsonl`, `test2.jsonl`, ...). Problems up to August 2023 are train, those up to
December 2023 validation, and the later ones test. Without a language model (`--teacher task`) lessons are short generated programs.
`keep="best"` tests the student of the round with the best validation accuracy.

    python examples/published/livecodebench.py open_ended --data data/livecodebench --teacher openai:gpt-4o
    python examples/published/livecodebench.py skill_list --data data/livecodebench --teacher openai:gpt-4o --discover openai:gpt-4o
    python examples/published/livecodebench.py skill_tree --data data/livecodebench --teacher openai:gpt-4o --student smollm2
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "lessons"))

from _shared import arguments, finish

from palaestra import teach

KINDS = {
    "open_ended": {"teacher_kwargs": {"per_error": 5}, "rounds": 5},
    "skill_list": {"teacher_kwargs": {"hypotheses": 5}, "rounds": 20},
    "skill_tree": {"teacher_kwargs": {"policy": "alternating", "open_at_once": 2, "cap": 0.5}, "rounds": 10},
}
kind = sys.argv.pop(1) if sys.argv[1:] and sys.argv[1] in KINDS else "open_ended"
options = arguments(
    __doc__,
    student="smollm2",
    texts={"data": "", "discover": "", "skills": "programs,methods"},
    rounds=KINDS[kind]["rounds"], lesson_size=120, validation=40, test=60, epochs=3, batch_size=4, answer_tokens=0,
)  # fmt: skip

finish(
    teach(
        task="livecodebench",
        task_kwargs={"path": options.data} if options.data else {},
        skills=tuple(options.skills.split(",")),
        teacher=kind,
        teacher_kwargs=KINDS[kind]["teacher_kwargs"],
        writer=options.teacher,
        discover=options.discover,
        student=options.student,
        keep="best",
        seed=options.seed,
        out=options.out,
        **options.sizes,
    )
)
