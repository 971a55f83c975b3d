"""What the page of a teach run says of the skills that a model discovered."""

from __future__ import annotations

from dataclasses import dataclass

from palaestra.report.figures import NOTHING, causes, plural
from palaestra.runs.run import Run
from palaestra.teachers.skills import Agreement, Overview, SkillMap, overview
from palaestra.teachers.skills.overview import OWN, TEST

STAGE_NAMES = {
    "names": "the skills of the problems are named",
    "categories": "the names are clustered",
    "assignment": "the problems are assigned",
}


@dataclass(frozen=True, slots=True)
class AgreementRow:
    """How far the categories agree with the task's own skills, on some problems."""

    name: str
    adjusted_rand: str
    mutual_information: str
    purity: str
    problems: int
    left_out: int


@dataclass(frozen=True, slots=True)
class DiscoveryPart:
    """The section on discovered skills.

    Arguments:
        under_way: how far the discovery is, where it is not over.
        file: the skills file that they come from; empty where a model discovered them.
        saw: what the model was shown of a problem.
        has_own: the task has skills of its own to compare with.
        troubles: what the model could not do, in words.
    """

    found: Overview
    under_way: str
    file: str
    saw: str
    has_own: bool
    agreements: tuple[AgreementRow, ...]
    troubles: tuple[str, ...]


def discovery_part(run: Run) -> DiscoveryPart | None:
    """What the store of a run has of a skill discovery; `None` where its skills are the task's own."""
    stages = run.store.skills(SkillMap)
    found = overview(stages)
    if found is None:
        return None
    pairs = (("problems that the categories come from", found.agreement), ("test problems", found.agreement_test))
    return DiscoveryPart(
        found=found,
        under_way="" if found.stage == TEST else STAGE_NAMES[found.stage],
        file=str(run.settings.get("skills_file") or ""),
        saw="questions with their expected answers" if run.settings.get("references") else "questions",
        has_own=OWN in stages,
        agreements=tuple(_row(name, figures) for name, figures in pairs if figures is not None),
        troubles=tuple(_troubles(found)),
    )


def _row(name: str, figures: Agreement) -> AgreementRow:
    def number(value: float | None) -> str:
        return NOTHING if value is None else f"{value:.2f}".replace("-", "−")

    purity = NOTHING if figures.purity is None else f"{100 * figures.purity:.0f} %"
    rand, shared = number(figures.adjusted_rand), number(figures.mutual_information)
    return AgreementRow(name, rand, shared, purity, figures.problems, figures.left_out)


def _troubles(found: Overview) -> list[str]:
    unnamed, unassigned, again = (sum(part.values()) for part in (found.unnamed, found.unassigned, found.reasked))
    said = []
    if unnamed:
        said.append(f"{plural(unnamed, 'problem')} could not be named ({causes(dict(found.unnamed))})")
    if unassigned:
        without = f"{'has' if unassigned == 1 else 'have'} no skill ({causes(dict(found.unassigned))})"
        said.append(f"{plural(unassigned, 'problem')} could not be assigned and {without}")
    if again:
        stages = ", ".join(f"{stage} {count}" for stage, count in found.reasked.items())
        said.append(f"asked again {plural(again, 'time')}, because an answer did not fit ({stages})")
    return said + [f"repaired: {repair}" for repair in found.repairs]
