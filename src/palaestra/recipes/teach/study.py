"""A study: `teach` runs over several seeds and several values of settings, compared in one table.

Every run has its own folder below the study's folder and is an ordinary run. A study that was stopped resumes with the
same command: finished runs are read, an unfinished one is resumed.

study.json        the arms (combinations of settings), the seeds, and the settings that all runs share
ARM-seedN/        a run
summary.json      the table, once all runs have ended
report.html       the same as a page
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from typing import Any

from palaestra.core.errors import EngineError, ExecutorError, LessonError, RunError, SettingsError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.records import Failure
from palaestra.core.secrets import mask_settings
from palaestra.core.statistics import Mean, holm, mean_interval, sign_flip_test, t_test
from palaestra.executors.base import Resources, open_executor
from palaestra.recipes.executor_settings import INLINE
from palaestra.recipes.progress import RunProgress, announce_start, show_progress
from palaestra.recipes.settings import build, resolve_settings, to_plain
from palaestra.recipes.summary import PERCENT, NotebookResult, hash_models
from palaestra.recipes.teach import recipe as teach
from palaestra.recipes.teach.lessons import Delivery, add_up
from palaestra.recipes.teach.settings import STUDY_SETTINGS, TeachSettings
from palaestra.recipes.teach.summary import summarize_verification
from palaestra.recipes.teach.task_groups import TeachTasks
from palaestra.runs.files import read_json, storage_errors, write_json
from palaestra.runs.provenance import record_provenance
from palaestra.runs.run import Run, new_folder

RECIPE = "study"
PLAN = "study.json"
COSTS = ("cost", "calls", "unmeasured_calls", "prompt_tokens", "completion_tokens", "seconds")


@dataclass(frozen=True, slots=True)
class StudyArm:
    """One combination of settings, with the results of its runs.

    Arguments:
        runs: the summary of each run by seed; `None` for a run that has not ended.
        gains: the gains by seed of the runs that measured one.
        gain: the mean of `gains` in points, with a t interval over the seeds.
        ahead: the difference from the first arm's gain, paired by seed; `None` for the first arm.
        failures: attempts without a score in all runs, by cause.
        cost: dollars, calls, calls without a token count, tokens and seconds over all runs.
        lessons: ordered, delivered, dropped and failed examples of all runs.
        unpriced: models whose calls are not part of the dollars.
        without_gain: the runs that ended without a gain, counted by cause.
        tasks: the mean gain on each test task, if there are several.
        fell: the mean gain of each skill that fell over the seeds, by a t-test corrected for the number of skills (Holm).
    """

    name: str
    values: Mapping[str, str]
    runs: Mapping[int, dict[str, Any] | None]
    gains: Mapping[int, float]
    gain: Mean
    ahead: Mean | None
    examples: int
    failures: Mapping[str, int]
    cost: Mapping[str, float]
    lessons: Delivery
    unpriced: tuple[str, ...]
    without_gain: Mapping[str, int]
    tasks: Mapping[str, Mean] = field(default_factory=dict)
    fell: Mapping[str, Mean] = field(default_factory=dict)

    def mean(self, name: str) -> Mean:
        """The mean of a number in the summaries of the runs, with a t interval over the seeds."""
        return mean_interval([float(run[name]) for run in self.runs.values() if run and run[name] is not None])


@dataclass(frozen=True, slots=True)
class ArmPair:
    """The comparison of two arms over the seeds with a gain in both.

    Arguments:
        first, second: the names of the arms.
        difference: the second arm's gain minus the first's, in points, with a t interval.
        p_value: of the paired t-test; `None` with fewer than two seeds.
        adjusted: the p-value adjusted for the number of pairs in the study (Holm).
        exact: the p-value of the sign-flip test, which assumes no distribution; at least 2 / 2^seeds.
    """

    first: str
    second: str
    difference: Mean
    p_value: float | None
    adjusted: float | None
    exact: float


@dataclass(frozen=True, slots=True)
class StudyResult(NotebookResult):
    """A study: its folder, its arms, and its arms compared in pairs.

    Arguments:
        settings: the settings that all runs share.
        several: the settings that the arms differ in.
    """

    folder: Path
    seeds: tuple[int, ...]
    rows: tuple[StudyArm, ...]
    pairs: tuple[ArmPair, ...]
    settings: Mapping[str, Any]
    several: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Caveats for a comparison of the arms: skills that fell, runs without a gain, and unequal amounts of data."""
        notes = []
        for row in self.rows:
            notes += [
                f"{row.name}: {skill} fell over {mean.count} seeds: {mean.value:+.1f} [{mean.low:+.1f}, {mean.high:+.1f}] "
                "points (t-test corrected for the number of skills)"
                for skill, mean in row.fell.items()
            ]
            single = Counter(skill for run in row.runs.values() if run for skill in run.get("fell", ()))
            notes += [
                f"{row.name}: {skill} fell beyond chance in {count} of {len(row.runs)} runs"
                for skill, count in sorted(single.items())
            ]
            for cause, count in row.without_gain.items():
                notes.append(f"{row.name}: no gain: {cause} ({count} of {len(row.runs)} runs)")
            if row.lessons.delivered < row.lessons.ordered:
                reason = row.lessons.explain()
                notes.append(
                    f"{row.name}: {row.lessons.delivered} of {row.lessons.ordered} ordered examples were delivered"
                    + (f"; {reason}" if reason else "")
                )
        for seed in self.seeds:
            taught = {
                row.name: run["examples"]
                for row in self.rows
                if (run := row.runs[seed]) is not None and run["gain"] is not None
            }
            if len(set(taught.values())) > 1:
                amounts = ", ".join(f"{name} {count}" for name, count in taught.items())
                notes.append(f"seed {seed}: the arms were taught on unequal data: {amounts} examples")
        return notes

    @property
    def failed(self) -> int:
        """The number of runs that ended with an error."""
        return sum(bool(run and run.get("error")) for row in self.rows for run in row.runs.values())

    @property
    def ended(self) -> bool:
        return all(run is not None for row in self.rows for run in row.runs.values())

    @property
    def summary(self) -> dict[str, Any]:
        """The contents of `summary.json`. A study of several arms has its gains in `rows`."""
        rows = [_summarize_arm(row) for row in self.rows]
        names = ("before", "after", "gain", "gain_low", "gain_high")
        return {
            "recipe": RECIPE,
            **{name: rows[0][name] if len(rows) == 1 else None for name in names},
            "unit": PERCENT,
            "seconds": sum(row["seconds"] for row in rows),
            "seeds": len(self.seeds),
            "rows": rows,
            "pairs": [
                {
                    "first": pair.first, "second": pair.second, **_name_interval("difference", pair.difference),
                    "p_value": pair.p_value, "adjusted": pair.adjusted, "exact": pair.exact,
                }
                for pair in self.pairs
            ],
            "notes": self.notes,
        }  # fmt: skip

    def run_folder(self, row: StudyArm, seed: int) -> Path:
        """The folder of a run."""
        return self.folder / f"{row.name}-seed{seed}"


def study(
    settings: TeachSettings,
    grid: Mapping[str, Sequence[str]],
    seeds: int,
    *,
    out: str | Path = "",
    executor: str = INLINE,
    resources: Resources | None = None,
    listener: Listener | None = None,
    progress: bool = True,
) -> StudyResult:
    """Run `settings` with every combination of `grid` and with `seeds` seeds, and compare the arms.

    Arguments:
        grid: values by the name of a setting; see `STUDY_SETTINGS`.
        seeds: the number of seeds, starting at `settings.seed`.
        out: the folder of the study; empty: a new one below `runs/`.
        executor: where the runs take place: `"inline"`, `"processes:N"` or `"ray:ADDRESS"`. All nodes of a cluster need
            the study's folder at the same path.
        resources: what a worker of a Ray cluster needs.
        listener: receives the progress events, instead of the display on stderr.
        progress: whether to display the progress; `PALAESTRA_PROGRESS=0` also turns the display off.

    Raises:
        SettingsError: a value is invalid, or `grid` names a setting that cannot have several values.
        RunError: the folder contains something else.
        ExecutorError: the workers of some runs died; the same call continues the study.
    """
    if seeds < 1:
        raise SettingsError(f"a study needs at least 1 seed; got {seeds}")
    for name in grid:
        if name not in STUDY_SETTINGS:
            raise SettingsError(f"a study cannot vary '{name}'; it can vary {', '.join(STUDY_SETTINGS)}")
    settings = resolve_settings(TeachSettings, settings, {})
    every = range(settings.seed, settings.seed + seeds)
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    arms = [build(TeachSettings, {**to_plain(settings), **cell}) for cell in cells]
    tasks = [teach.check(arm) for arm in arms]  # Checked before the first run starts.
    for arm, arm_tasks in zip(arms, tasks, strict=True):
        for seed in every[1:]:
            teach.check_problems(replace(arm, seed=seed), arm_tasks)
    folder = Path(out) if out else new_folder(RECIPE)
    names = [_name_arm(cell) or arm.teacher for cell, arm in zip(cells, arms, strict=True)]
    runs = {
        folder / f"{name}-seed{seed}": (replace(arm, seed=seed), arm_tasks)
        for seed in every
        for name, arm, arm_tasks in zip(names, arms, tasks, strict=True)
    }
    if (folder / "settings.json").exists():
        raise RunError(f"{folder} contains a run, not a study; choose another --out")
    for run_folder, (run_settings, _) in runs.items():
        _check_same(run_settings, run_folder)
    with storage_errors(folder, "making the study's folder"):
        folder.mkdir(parents=True, exist_ok=True)
    common = {name: value for name, value in to_plain(settings).items() if name != "seed" and name not in grid}
    planned = [{"name": name, "values": cell} for name, cell in zip(names, cells, strict=True)]
    write_json(
        folder / PLAN, {"recipe": RECIPE, "seeds": list(every), "arms": planned, "settings": mask_settings(common)}
    )
    record_provenance(folder, hash_models(settings.student), ended=(folder / "summary.json").exists())
    rounds = settings.rounds
    with show_progress(listener, progress, lambda console: RunProgress(console, rounds)) as listener:
        listener(
            announce_start(
                RECIPE, folder, student=settings.student, arms=" ".join(names), seeds=str(seeds), task=settings.task
            )
        )
        if executor == INLINE:
            for run_folder, (run_settings, run_tasks) in runs.items():
                _run(run_settings, run_tasks, run_folder, listener)
        else:
            items = [(run_settings, run_folder.absolute()) for run_folder, (run_settings, _) in runs.items()]
            with open_executor(executor) as opened:
                results = opened.map(_run_in_worker, items, dict, resources=resources, listener=listener)
                for done, (outcome, (_, run_folder)) in enumerate(zip(results, items, strict=True), 1):
                    if isinstance(outcome, Failure):
                        raise ExecutorError(f"{run_folder}: {outcome.message}; repeat the command to continue")
                    listener(Event("study", done, len(items), 0, {"text": f"{done}/{len(items)} {run_folder.name}"}))
    result = read_study(folder)
    write_json(folder / "summary.json", result.summary)
    return result


def read_study(folder: Path) -> StudyResult:
    """Read a study, finished or not.

    Raises:
        RunError: the folder contains no study, or is damaged.
    """
    plan = read_json(folder / PLAN)
    if not isinstance(plan, dict) or not {"seeds", "arms", "settings"} <= set(plan):
        raise RunError(f"the study is damaged: {folder / PLAN} lacks seeds, arms or settings")
    if any("/" in f"{arm['name']}{seed}" for arm in plan["arms"] for seed in plan["seeds"]):
        raise RunError(f"the study is damaged: {folder / PLAN} has a run outside of the folder")
    rows: list[StudyArm] = []
    for arm in plan["arms"]:
        runs = {seed: _read_summary(folder / f"{arm['name']}-seed{seed}") for seed in plan["seeds"]}
        rows.append(_make_arm(arm["name"], arm["values"], runs, rows[0] if rows else None))
    several = tuple(plan["arms"][0]["values"])
    return StudyResult(folder, tuple(plan["seeds"]), tuple(rows), tuple(_compare(rows)), plan["settings"], several)


def _check_same(settings: TeachSettings, folder: Path) -> None:
    """Raise if the folder contains a run with other settings. Call limits may differ, because they may be raised."""
    if (folder / "settings.json").exists():
        with Run.open(folder, read_only=True) as run:
            if {**run.settings, **_limits(settings)} != mask_settings(to_plain(settings)):
                raise RunError(f"{folder} contains a run with other settings; choose another --out")


def _run(settings: TeachSettings, tasks: TeachTasks, folder: Path, listener: Listener) -> None:
    """Start or continue a run. One that ends with an error writes it to its summary; the other runs go on."""
    with suppress(LessonError, EngineError):
        if not (folder / "settings.json").exists():
            Run.check_new(folder)
            teach.start(settings, tasks, folder, listener)
            return
        with Run.open(folder, trust=True) as run:  # Its settings are those of this call.
            if run.summary is None or run.summary.get("error"):
                teach.resume(run, listener=listener, **_limits(settings))


def _run_in_worker(state: object, item: tuple[TeachSettings, Path]) -> None:
    settings, folder = item
    _run(settings, teach.check(settings), folder, ignore)


def _limits(settings: TeachSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in ("max_cost", "max_calls", "max_tokens")}


def _read_summary(folder: Path) -> dict[str, Any] | None:
    if not (folder / "summary.json").exists():
        return None
    summary = read_json(folder / "summary.json")
    if not isinstance(summary, dict) or summary.get("recipe") != teach.RECIPE:
        raise RunError(f"the run folder is damaged: {folder / 'summary.json'} is not the summary of a teach run")
    return summary


def _make_arm(
    name: str, values: Mapping[str, str], runs: Mapping[int, dict[str, Any] | None], first: StudyArm | None
) -> StudyArm:
    ended = {seed: summary for seed, summary in runs.items() if summary is not None}
    gains = {seed: float(summary["gain"]) for seed, summary in ended.items() if summary["gain"] is not None}
    failures: Counter[str] = Counter()
    by_task: dict[str, list[float]] = {}
    for summary in ended.values():
        failures.update(summary["failures"])
        for task, row in summary.get("test_tasks", {}).items():
            by_task.setdefault(task, []).extend([] if row["gain"] is None else [float(row["gain"])])
    without_gain = Counter(
        summary.get("failed") or "no problem was scored both before and after"
        for summary in ended.values()
        if summary["gain"] is None
    )
    return StudyArm(
        name,
        values,
        runs,
        gains,
        gain=mean_interval(list(gains.values())),
        ahead=None if first is None else mean_interval(_subtract(first.gains, gains)),
        examples=sum(summary["examples"] for summary in ended.values()),
        failures=dict(sorted(failures.items())),
        cost={name: float(sum(summary[name] for summary in ended.values())) for name in COSTS},
        lessons=add_up([_read_delivery(summary) for summary in ended.values()]),
        unpriced=tuple(sorted({model for summary in ended.values() for model in summary["unpriced"]})),
        without_gain=dict(without_gain),
        tasks={task: mean_interval(gains) for task, gains in by_task.items()},
        fell=_find_fallen_skills(list(ended.values())),
    )


def _find_fallen_skills(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Mean]:
    gains: dict[str, list[float]] = {}
    for summary in summaries:
        for skill, row in summary.get("by_skill", {}).items():
            if row["gain"] is not None:
                gains.setdefault(skill, []).append(float(row["gain"]))
    p_values = {skill: p for skill, values in gains.items() if (p := t_test(values)) is not None}
    adjusted = zip(p_values, holm(list(p_values.values())), strict=True)
    means = {skill: mean_interval(gains[skill]) for skill, p in adjusted if p < 0.05}
    return {skill: mean for skill, mean in means.items() if mean.value < 0}


def _read_delivery(summary: Mapping[str, Any]) -> Delivery:
    return Delivery(
        summary["ordered"], summary["delivered"], summary["dropped"], summary["withheld"], summary["writer_failures"],
        asked_again=summary["ordered_again"], verified=summary.get("verification", {}).get("verified", {}),
        examined=summary.get("verification", {}).get("examined", 0), wrong=summary.get("verification", {}).get("wrong", 0),
        skills=summary.get("skills_written", {}),
    )  # fmt: skip


def _subtract(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """The differences by seed. Rounded to remove binary rounding errors."""
    return [round(gain - first[seed], 6) for seed, gain in second.items() if seed in first]


def _compare(rows: Sequence[StudyArm]) -> list[ArmPair]:
    """Compare every arm with each one before it, over the seeds that they share."""
    pairs = [(first, second, _subtract(first.gains, second.gains)) for first, second in combinations(rows, 2)]
    pairs = [pair for pair in pairs if pair[2]]
    p_values = [t_test(differences) for _, _, differences in pairs]
    adjusted = iter(holm([p_value for p_value in p_values if p_value is not None]))
    return [
        ArmPair(
            first.name,
            second.name,
            mean_interval(differences),
            p_value,
            None if p_value is None else next(adjusted),
            sign_flip_test([Fraction(value).limit_denominator(100) for value in differences]),
        )
        for (first, second, differences), p_value in zip(pairs, p_values, strict=True)
    ]


def _name_arm(cell: Mapping[str, str]) -> str:
    words = (f"{name}_{value}" if name in ("state", "keep") else value for name, value in cell.items())
    return "-".join("".join(sign if sign.isalnum() or sign in "_." else "_" for sign in word) for word in words)


def _summarize_arm(row: StudyArm) -> dict[str, Any]:
    before, after = row.mean("before"), row.mean("after")
    return {
        "name": row.name, "values": dict(row.values),
        "before": before.value if before.count else None, "after": after.value if after.count else None,
        **_name_interval("gain", row.gain), "unit": PERCENT,
        "gains": {str(seed): gain for seed, gain in row.gains.items()}, **_name_interval("ahead", row.ahead),
        "examples": row.examples,
        **({"tasks": {task: _name_interval("gain", gain) for task, gain in row.tasks.items()}} if row.tasks else {}),
        "failures": dict(row.failures), **row.cost, "ordered": row.lessons.ordered, "delivered": row.lessons.delivered,
        "dropped": dict(row.lessons.dropped), "withheld": row.lessons.withheld,
        "writer_failures": dict(row.lessons.failures), "ordered_again": row.lessons.asked_again,
        "verification": summarize_verification(row.lessons), "skills_written": dict(row.lessons.skills),
        "unpriced": list(row.unpriced), "fell": {skill: _name_interval("gain", mean) for skill, mean in row.fell.items()},
        "without_gain": dict(row.without_gain),
    }  # fmt: skip


def _name_interval(name: str, mean: Mean | None) -> dict[str, Any]:
    """A mean and its interval as `name`, `name_low`, `name_high`; `null` if unknown."""
    if mean is None or not mean.count:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    low, high = (mean.low, mean.high) if mean.count > 1 else (None, None)
    return {name: mean.value, f"{name}_low": low, f"{name}_high": high}
