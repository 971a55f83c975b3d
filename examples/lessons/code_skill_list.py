"""Programming, skill list: a share of the lesson for every skill by its wrong programs. Each round goes on from the last.

`TeachSettings` is what the command line's options and the run's `settings.json` are, too; a listener is told of every
step.

    python examples/lessons/code_skill_list.py
    python examples/lessons/code_skill_list.py --teacher openai:gpt-4o-mini --student smollm2
"""

from _shared import arguments, finish

from palaestra import TeachSettings, teach
from palaestra.core.events import Event

options = arguments(__doc__, rounds=2, lesson_size=70, validation=4, test=10, epochs=2, batch_size=4)


def tell(event: Event) -> None:
    """The loss every tenth step, and each report on validation problems."""
    if event.phase == "train" and event.done % 10 == 0:
        print(f"round {event.round}, step {event.done} of {event.total}: loss {event.data['loss']:.2f}")
    elif event.phase == "evaluated validation":
        report = event.data["report"]
        print(f"round {event.round}: {report.correct} of {report.count} validation problems")


settings = TeachSettings(
    task="code-skills",
    skills=("lists", "programs"),
    teacher="skill_list",
    teacher_options=("hypotheses=2",),
    writer=options.teacher,
    student=options.student,
    start="last",
    learning_rate=2e-3 if options.student == "nano" else 0.0,  # It has never seen a program.
    seed=options.seed,
    **options.sizes,
)
finish(teach(settings, out=options.out, listener=tell))
