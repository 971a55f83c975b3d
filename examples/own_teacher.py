"""A custom teacher: see docs/write_a_teacher.md."""

from palaestra.core.records import Decision, Lesson
from palaestra.teachers.base import TEACHERS, write_from_task


class ByErrors:
    """Divides the lesson by validation errors. Skills without errors still get a few examples."""

    def __init__(self, task, skills=()):
        self.task = task

    def write(self, state, size, generator):
        weights = {part.name: 1 + part.count - part.correct for part in state.report.slices}
        total = sum(weights.values())
        shares = {name: size * weight // total for name, weight in weights.items()}
        decisions = tuple(
            Decision(part.name, "drill", f"{part.accuracy:.0%} on validation", {"all": shares[part.name]})
            for part in state.report.slices
        )
        allocation = {name: {"": share} for name, share in shares.items()}  # "" means all subskills in turn
        return Lesson(write_from_task(self.task, allocation, generator), decisions)


TEACHERS.register("by_errors", ByErrors, "divides the lesson by validation errors")


if __name__ == "__main__":
    from palaestra import teach

    skills = ("addition", "clock", "geometry", "sequences")
    summary = teach(teacher="by_errors", skills=skills, rounds=1, lesson_size=40, validation=5, test=10).summary
    print(f"{summary['before']} -> {summary['after']} % of {summary['problems']}, examples by skill:")
    print({skill: row["examples"] for skill, row in summary["by_skill"].items() if row["examples"]})
