"""Pictures, skill tree: a bandit over subskills (`policy=ucb`) moves data to the subskills that gain most.

python examples/lessons/vision_skill_tree.py
python examples/lessons/vision_skill_tree.py --teacher openai:gpt-4o-mini --student HuggingFaceTB/SmolVLM-256M-Instruct
"""

from _shared import arguments, finish

from palaestra import teach

options = arguments(
    __doc__, student="nano-vlm", rounds=2, lesson_size=150, validation=20, test=50, epochs=2, batch_size=4
)

result = teach(
    task="vision-skills",
    skills=("odd_one_out",),
    teacher="skill_tree",
    teacher_kwargs={"policy": "ucb", "cap": 1.0},
    writer=options.teacher,
    student=options.student,
    start="last",
    seed=options.seed,
    out=options.out,
    **options.sizes,
)
for skill, row in result.summary["by_skill"].items():
    interval = f"[{row['gain_low']}, {row['gain_high']}]"
    print(
        f"{skill:<12} {row['examples']:>3} examples: {row['before']} -> {row['after']} %, gain {row['gain']} {interval}"
    )
finish(result)
