"""A teacher of one's own: see docs/write_a_teacher.md."""

from palaestra.core.records import Decision, Lesson
from palaestra.teachers.base import TEACHERS, write_from_task


class WeakestFirst:
    """Puts the whole lesson into the three weakest skills."""

    def __init__(self, task, skills=()):
        self.task = task

    def write(self, state, size, generator):
        weakest = sorted((p for p in state.report.slices if p.count), key=lambda part: part.correct / part.count)[:3]
        allocation = {part.name: {"": -(-size // 3)} for part in weakest}  # "" means all subskills in turn
        decisions = tuple(
            Decision(p.name, "drill", f"{p.accuracy:.0%} on validation", {"all": -(-size // 3)}) for p in weakest
        )
        return Lesson(write_from_task(self.task, allocation, generator)[:size], decisions)


TEACHERS.register("weakest_first", WeakestFirst, "the three weakest skills")


if __name__ == "__main__":
    from palaestra import teach

    summary = teach(teacher="weakest_first", rounds=1, lesson_size=60, validation=5, test=8).summary
    print(f"{summary['test_before']} -> {summary['test_after']} %, examples by skill:")
    print({skill: row["examples"] for skill, row in summary["by_skill"].items() if row["examples"]})
