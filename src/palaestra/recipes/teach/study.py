"""A study: `teach` runs over several seeds and several values of settings, compared in one table.

Every run has its own folder below the study's folder and is an ordinary run. A study that was stopped resumes with the
same command: finished runs are read, an unfinished one is resumed.

study.json        the arms (combinations of settings), the seeds, and the settings that all runs share
ARM-seedN/        a run
summary.json      the table, once all runs have ended
report.html       the same as a page
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path

from palaestra.core.errors import EngineError, ExecutorError, LessonError, RunError, SettingsError
from palaestra.core.records import Event, Failure, Json, Listener, Values, ignore
from palaestra.core.statistics import Mean, holm, mean_interval, sign_flip_test, t_test
from palaestra.core.text import mask_settings
from palaestra.executors.base import Resources, open_executor
from palaestra.recipes.progress import RunProgress, announce_start, show_progress
from palaestra.recipes.runs import PERCENT, NotebookResult, hash_models, name_interval
from palaestra.recipes.settings import INLINE, build, resolve_settings, to_plain
from palaestra.recipes.teach import recipe as teach
from palaestra.recipes.teach.settings import STUDY_SETTINGS, TeachSettings
from palaestra.recipes.teach.skills import TeachTasks
from palaestra.recipes.teach.summary import Delivery, add_up, read_delivery, summarize_delivery
from palaestra.runs.files import read_json, storage_errors, write_json
from palaestra.runs.provenance import record_provenance
from palaestra.runs.run import Run, new_folder, read_summary

RECIPE = "study"
PLAN = "study.json"
COSTS = ("cost", "calls", "unmeasured_calls", "prompt_tokens", "completion_tokens", "seconds")

_GAINS, _DIFFERENCES = (-100.0, 100.0), (-200.0, 200.0)
_RANGES = {"before": (0.0, 100.0), "after": (0.0, 100.0), "gain": _GAINS}
"""The ranges of numbers in summaries, which their intervals do not leave. Other numbers are at least 0."""


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
    runs: Mapping[int, Json | None]
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
        values = [float(run[name]) for run in self.runs.values() if run and run[name] is not None]
        return mean_interval(values, *_RANGES.get(name, (0.0, math.inf)))


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
    settings: Values
    several: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Caveats for a comparison of the arms: skills that fell, runs without a gain, and unequal amounts of data."""
        notes = [f"{row.name}: {note}" for row in self.rows for note in _list_notes(row)]
        for seed in self.seeds:
            runs = {row.name: row.runs[seed] for row in self.rows}
            taught = {name: run["examples"] for name, run in runs.items() if run and run["gain"] is not None}
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
    def summary(self) -> Json:
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
            "pairs": [asdict(pair) | _name_interval("difference", pair.difference) for pair in self.pairs],
            "notes": self.notes,
        }

    def run_folder(self, row: StudyArm, seed: int) -> Path:
        """The folder of a run."""
        return self.folder / f"{row.name}-seed{seed}"


def _list_notes(arm: StudyArm) -> Iterator[str]:
    for skill, mean in arm.fell.items():
        change = f"{mean.value:+.1f} [{mean.low:+.1f}, {mean.high:+.1f}] points"
        yield f"{skill} fell over {mean.count} seeds: {change} (t-test corrected for the number of skills)"
    fell = Counter(skill for run in arm.runs.values() if run for skill in run.get("fell", ()))
    for skill, count in sorted(fell.items()):
        yield f"{skill} fell beyond chance in {count} of {len(arm.runs)} runs"
    for cause, count in arm.without_gain.items():
        yield f"no gain: {cause} ({count} of {len(arm.runs)} runs)"
    lessons, reason = arm.lessons, arm.lessons.explain()
    if lessons.delivered < lessons.ordered:
        losses = f"; {reason}" if reason else ""
        yield f"{lessons.delivered} of {lessons.ordered} ordered examples were delivered{losses}"


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
    settings = teach.fill_student(resolve_settings(TeachSettings, settings, {}))
    every = range(settings.seed, settings.seed + seeds)
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    arms = [build(TeachSettings, {**to_plain(settings), **cell}) for cell in cells]
    tasks = [teach.check(arm)[0] for arm in arms]  # Checked before the first run starts.
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
    common = {name: value for name, value in to_plain(settings).items() if name not in ("seed", *grid)}
    planned = [{"name": name, "values": cell} for name, cell in zip(names, cells, strict=True)]
    plan = {"recipe": RECIPE, "seeds": list(every), "arms": planned, "settings": mask_settings(common)}
    write_json(folder / PLAN, plan)
    record_provenance(folder, hash_models(settings.student), ended=(folder / "summary.json").exists())
    rounds = settings.rounds
    facts = {"student": settings.student, "arms": " ".join(names), "seeds": str(seeds), "task": settings.task}
    with show_progress(listener, progress, lambda console: RunProgress(console, rounds)) as listener:
        listener(announce_start(RECIPE, folder, **facts))
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
        runs = {seed: read_summary(folder / f"{arm['name']}-seed{seed}", teach.RECIPE) for seed in plan["seeds"]}
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
    _run(settings, teach.check(settings)[0], folder, ignore)


def _limits(settings: TeachSettings) -> Json:
    return {name: getattr(settings, name) for name in ("max_cost", "max_calls", "max_tokens")}


def _make_arm(
    name: str, values: Mapping[str, str], runs: Mapping[int, Json | None], first: StudyArm | None
) -> StudyArm:
    ended = [summary for summary in runs.values() if summary is not None]
    gains = {seed: float(run["gain"]) for seed, run in runs.items() if run and run["gain"] is not None}
    failures: Counter[str] = Counter()
    for summary in ended:
        failures.update(summary["failures"])
    unscored = "no problem was scored both before and after"
    without_gain = Counter(summary.get("failed") or unscored for summary in ended if summary["gain"] is None)
    return StudyArm(
        name,
        values,
        runs,
        gains,
        gain=mean_interval(list(gains.values()), *_GAINS),
        ahead=None if first is None else mean_interval(_subtract(first.gains, gains), *_DIFFERENCES),
        examples=sum(summary["examples"] for summary in ended),
        failures=dict(sorted(failures.items())),
        cost={name: float(sum(summary[name] for summary in ended)) for name in COSTS},
        lessons=add_up([read_delivery(summary) for summary in ended]),
        unpriced=tuple(sorted({model for summary in ended for model in summary["unpriced"]})),
        without_gain=dict(without_gain),
        tasks={task: mean_interval(values, *_GAINS) for task, values in _list_gains(ended, "test_tasks").items()},
        fell=_find_fallen_skills(ended),
    )


def _list_gains(summaries: Iterable[Values], part: str) -> dict[str, list[float]]:
    """The gains of the runs by skill or by task; a run without a gain has none."""
    gains: dict[str, list[float]] = {}
    for summary in summaries:
        for name, row in summary.get(part, {}).items():
            gains.setdefault(name, []).extend([] if row["gain"] is None else [float(row["gain"])])
    return gains


def _find_fallen_skills(summaries: Sequence[Values]) -> dict[str, Mean]:
    gains = _list_gains(summaries, "by_skill")
    p_values = {skill: p for skill, values in gains.items() if (p := t_test(values)) is not None}
    adjusted = zip(p_values, holm(list(p_values.values())), strict=True)
    means = {skill: mean_interval(gains[skill], *_GAINS) for skill, p in adjusted if p < 0.05}
    return {skill: mean for skill, mean in means.items() if mean.value < 0}


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
            mean_interval(differences, *_DIFFERENCES),
            p_value,
            None if p_value is None else next(adjusted),
            sign_flip_test([Fraction(value).limit_denominator(100) for value in differences]),
        )
        for (first, second, differences), p_value in zip(pairs, p_values, strict=True)
    ]


def _name_arm(cell: Mapping[str, str]) -> str:
    words = (f"{name}_{value}" if name in ("state", "keep") else value for name, value in cell.items())
    return "-".join("".join(sign if sign.isalnum() or sign in "_." else "_" for sign in word) for word in words)


def _summarize_arm(row: StudyArm) -> Json:
    before, after = row.mean("before"), row.mean("after")
    tasks = {task: _name_interval("gain", gain) for task, gain in row.tasks.items()}
    return {
        "name": row.name,
        "values": dict(row.values),
        "before": before.value if before.count else None,
        "after": after.value if after.count else None,
        **_name_interval("gain", row.gain),
        "unit": PERCENT,
        "gains": {str(seed): gain for seed, gain in row.gains.items()},
        **_name_interval("ahead", row.ahead),
        "examples": row.examples,
        **({"tasks": tasks} if tasks else {}),
        "failures": dict(row.failures),
        **row.cost,
        **summarize_delivery(row.lessons),
        "unpriced": list(row.unpriced),
        "fell": {skill: _name_interval("gain", mean) for skill, mean in row.fell.items()},
        "without_gain": dict(row.without_gain),
    }


def _name_interval(name: str, mean: Mean | None) -> Json:
    """A mean and its interval as `name`, `name_low`, `name_high`; `null` if unknown."""
    if mean is None or not mean.count:
        return name_interval(name, None, None, None)
    return name_interval(name, mean.value, *((mean.low, mean.high) if mean.count > 1 else (None, None)))
