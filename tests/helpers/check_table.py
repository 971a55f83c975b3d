"""Write the tables of `docs/check.md` (levels, checks, and OpenEnv's tests beside ours) and of `docs/diagnose.md` (diseases of runs).

Run it with `python -m tests.helpers.check_table` after a change of checks or diseases.
"""

import re
from pathlib import Path

from palaestra.recipes.check import learnability, recipe  # noqa: F401  (they register checks)
from palaestra.recipes.check.records import ENV_CHECKS, LEVELS, EnvCheck
from palaestra.recipes.diagnosis import DISEASES

DOCS = Path(__file__).parents[2] / "docs"
PAGE, DISEASE_PAGE = DOCS / "check.md", DOCS / "diagnose.md"
PARTS = {"env": "environment", "answers": "texts", "problems": "task", "research": "research task", "trial": "training"}
SUBJECTS = {
    "environment": ("env", "trial"),
    "environment of texts": ("env", "answers", "trial"),
    "task": ("problems", "answers", "trial"),
    "research task": ("research",),
}
"""The parts of each kind of subject."""
_IMAGE = "about a container image, which Palaestra does not build"
_MANIFEST = "about a manifest, which a Gymnasium environment does not have"
_OPERATOR = "for the operator of a hub"
_INSIDE = "an environment runs in a process of the checker, not in a sandbox of its own"
RFC = (
    ("–", 1, "static.manifest", _MANIFEST),
    ("1", 1, "static.reproducible_build", _IMAGE),
    ("2", 1, "hub.layer_isolation", _IMAGE),
    ("3", 1, "static.image_hygiene", _IMAGE),
    ("4", 1, "static.layout", _IMAGE),
    ("5", 0, "", "dropped from the RFC"),
    ("6", 2, "hub.time_to_first_work", _OPERATOR),
    ("7", 0, "", "dropped from the RFC"),
    ("8", 1, "static.sbom", _IMAGE),
    ("8", 1, "hub.cosign_signature", _OPERATOR),
    ("9", 1, "static.oci_labels", _IMAGE),
    ("10", 1, "static.resource_declaration", _MANIFEST),
    ("11", 3, "semantic.resource_envelope", "nothing is declared that could be compared; times are in the report"),
    ("12", 1, "static.timeout_ceiling", _MANIFEST + "; a check that hangs is ended and fails"),
    ("13", 4, "statistical.reward_reachability", ""),
    ("14", 4, "statistical.difficulty_separation", "needs reference models of several strengths"),
    ("15", 4, "statistical.headroom", ""),
    ("16", 4, "statistical.variance_bound", ""),
    ("17", 4, "statistical.training_signal", ""),
    ("18", 2, "runtime.egress_denied", _INSIDE),
    ("19", 2, "runtime.host_containment", _INSIDE),
    ("20", 2, "runtime.resource_bounds", _INSIDE),
    ("21", 2, "runtime.episode_isolation", ""),
    ("22", 2, "runtime.oracle_containment", ""),
    ("23", 2, "runtime.reward_well_formed", ""),
    ("24", 2, "runtime.rubric_introspectable", "about OpenEnv's trees of rubrics"),
    ("25", 3, "semantic.oracle_max", ""),
    ("25", 3, "semantic.floor_gap", ""),
    ("26", 4, "statistical.adversarial_floor", ""),
    ("27", 4, "statistical.gameability_gap", ""),
    ("28", 3, "semantic.canary_floor", ""),
    ("29", 2, "runtime.observation_schema", ""),
    ("30", 3, "semantic.no_solution_leakage", ""),
    ("31", 2, "runtime.state_contract", "about OpenEnv's `state()`, which Gymnasium does not have"),
    ("32", 2, "runtime.trajectory_record", "Palaestra records episodes itself, from any environment"),
    ("33", 2, "runtime.reward_attribution", "about OpenEnv's trees of rubrics"),
    ("34", 2, "runtime.tool_declaration_accuracy", "no check yet"),
    ("35", 2, "runtime.task_declaration_accuracy", ""),
    ("36", 2, "runtime.seed_control", ""),
    ("37", 2, "runtime.episode_determinism", ""),
    ("38", 2, "hub.cross_host_determinism", "needs a second host; `semantic.replayability` uses a second process"),
    ("39", 3, "semantic.verifier_determinism", ""),
    ("40", 3, "semantic.verifier_portability", "part of `semantic.verifier_determinism`, for tasks: a second process with other hashes"),
    ("41", 1, "static.dependency_pinning", "about a package, not an environment"),
    ("42", 1, "static.task_distribution_pinning", _MANIFEST + "; `runtime.seed_control` compares the problems of two processes"),
    ("43", 1, "hub.immutable_versioning", _OPERATOR),
    ("44", 3, "semantic.replayability", ""),
)  # fmt: skip
"""OpenEnv's tests: number, level, id, and why it is missing here, or for other subjects."""


def sort_checks() -> list[EnvCheck]:
    """Every check, by level, part and id: the order of registration depends on what was imported first."""
    return sorted(ENV_CHECKS, key=lambda check: (check.level, list(PARTS).index(check.part), check.check_id))


def list_checks() -> list[tuple[str, ...]]:
    return [(f"`{c.check_id}`", str(c.level), PARTS[c.part], c.title, c.remedy) for c in sort_checks()]


def list_levels() -> list[tuple[str, ...]]:
    rows = []
    for level, name in LEVELS.items():
        cells = []
        for parts in SUBJECTS.values():
            checks = [check for check in ENV_CHECKS if check.level == level and check.part in parts]
            cells.append(f"{len(checks)}, {sum(check.seconds for check in checks):.0f} s" if checks else "–")
            if evaluations := sum(check.evaluations for check in checks):
                cells[-1] += f" and {evaluations} evaluations"
        rows.append((str(level), name, *cells))
    return rows


def list_shared() -> list[tuple[str, ...]]:
    rows = []
    for number, level, name, note in RFC:
        own = [check for check in sort_checks() if check.check_id == name]
        assert own or note, name
        parts = {n: ", ".join(PARTS[check.part] for check in own if check.level == n) for n in LEVELS}
        levels = [f"level {n} {text}" for n, text in parts.items() if text]
        ours = f"**yes**: {'; '.join(levels)}" if levels else ""
        rows.append(
            (number, str(level or "–"), f"`{name}`" if name else "–", "; otherwise ".join(filter(None, (ours, note))))
        )
    return rows


def list_own() -> list[tuple[str, ...]]:
    theirs = {name for _, _, name, _ in RFC}
    own = [check for check in sort_checks() if check.check_id not in theirs]
    return [(f"`{check.check_id}`", str(check.level), PARTS[check.part], check.title) for check in own]


def write_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def list_diseases() -> list[tuple[str, ...]]:
    return [
        (
            d.symptom,
            f"{name.replace('_', ' ')}: {d.threshold}",
            d.meaning,
            re.sub(r"--[a-z-]+( [\w.=]+)?", r"`\g<0>`", ", ".join(d.advice)),
        )
        for name, d in DISEASES.items()
    ]


def write_tables(page: Path) -> str:
    """Return the text of a page with the current tables between its marks."""
    text = page.read_text(encoding="utf-8")
    if page == DISEASE_PAGE:
        tables = {"diseases": write_table(("you see", "finding", "cause", "try"), list_diseases())}
    else:
        tables = {
            "levels": write_table(("level", "name", *SUBJECTS), list_levels()),
            "checks": write_table(("check", "level", "part", "what holds", "remedy"), list_checks()),
            "shared": write_table(("test", "its level", "id", "here"), list_shared()),
            "own": write_table(("check", "level", "part", "what holds"), list_own()),
        }
    for name, table in tables.items():
        pattern = rf"(<!-- table {name} -->\n).*?(\n<!-- end -->)"
        text, count = re.subn(pattern, lambda match, table=table: match[1] + table + match[2], text, flags=re.DOTALL)
        assert count == 1, name
    return text


if __name__ == "__main__":
    for page in (PAGE, DISEASE_PAGE):
        page.write_text(write_tables(page), encoding="utf-8")
