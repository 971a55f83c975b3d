"""Students: models that predict, learn, save and restore."""

from palaestra.core.registry import declare_entry

for _name, _place, _help in (
    ("supervised", "student:SupervisedStudent", "imitates the responses (fine-tuning)"),
    ("preference", "preference:PreferenceStudent", "prefers the responses over its own wrong answers (DPO)"),
    ("practice", "practice:PracticingStudent", "answers the problems itself, rewarded by the scorer (GRPO)"),
):
    declare_entry("palaestra.students", _name, f"palaestra.students.{_place}", _help)
declare_entry(
    "palaestra.cohorts",
    "stacked",
    "palaestra.students.stacked:StackedStudents",
    "small Llama models, by batched products",
)
