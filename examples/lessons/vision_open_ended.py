"""Pictures, open-ended: the teacher orders new pictures with questions for wrong answers of a vision-language student.

A language model as the writer describes scenes, which are then rendered. All lessons go through the quality checks here. One
picture of the lesson is written to the run folder.

    python examples/lessons/vision_open_ended.py
    python examples/lessons/vision_open_ended.py --teacher openai:gpt-4o-mini --student HuggingFaceTB/SmolVLM-256M-Instruct
"""

import base64

from _shared import arguments, finish

from palaestra import teach
from palaestra.core.records import ImagePart
from palaestra.runs.run import Run

options = arguments(
    __doc__, student="nano-vlm", rounds=2, lesson_size=150, validation=20, test=50, epochs=3, batch_size=4
)

result = teach(
    task="vision-skills",
    skills=("pattern",),
    teacher="open_ended",
    writer=options.teacher,
    quality="on",
    student=options.student,
    start="last",
    seed=options.seed,
    out=options.out,
    **options.sizes,
)
with Run.open(result.folder, read_only=True) as run:
    for example in run.store.lesson(1).examples[:1]:
        picture, text = example.messages[0].content
        assert isinstance(picture, ImagePart)
        (result.folder / "taught.png").write_bytes(base64.b64decode(picture.url.partition(",")[2]))
        print(f"taught.png: {text.text} -> {example.response}")
print(f"checks kept {result.summary['delivered']} examples, dropped {result.summary['dropped']}")
finish(result)
