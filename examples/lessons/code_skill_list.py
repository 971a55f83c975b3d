"""Programming, skill list: the lesson is divided by the wrong programs of each skill. Each round continues from the last.

`TeachSettings` has the options of the command line and the run's `settings.json`. A listener is called at every step.

    python examples/lessons/code_skill_list.py
    python examples/lessons/code_skill_list.py --teacher openai:gpt-4o-mini --student smollm2
"""

from _shared import arguments, finish

from palaestra import TeachSettings, teach
from palaestra.core.records import Event

options = arguments(__doc__, rounds=2, lesson_size=70, validation=4, test=10, epochs=2, batch_size=4)


def print_progress(event: Event) -> None:
    """Print the loss of every tenth step, and the result of each validation."""
    if event.phase == "train" and event.done % 10 == 0:
        print(f"round {event.round}, step {event.done} of {event.total}: loss {event.data['loss']:.2f}")
    elif event.phase == "evaluated validation":
        report = event.data["report"]
        print(f"round {event.round}: {report.correct} of {report.count} validation problems")


settings = TeachSettings(
    task="code-skills",
    skills=("lists", "programs"),
    teacher="skill_list",
    teacher_kwargs={"hypotheses": 2},
    writer=options.teacher,
    student=options.student,
    start="last",
    learning_rate=2e-3 if options.student == "nano" else 0.0,  # nano was not trained on programs
    seed=options.seed,
    **options.sizes,
)
finish(teach(settings, out=options.out, listener=print_progress))
