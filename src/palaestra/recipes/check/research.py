"""Whether a research task can be worked on, is judged rightly, and pays only for work."""

from __future__ import annotations

import os
import random
import re
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import numpy as np

from palaestra.core.errors import PalaestraError, SandboxError
from palaestra.core.records import Failure, Json
from palaestra.core.settings import short_repr
from palaestra.core.tables import load_table
from palaestra.recipes.check.containment import (
    find_pairs,
    find_secrets,
    find_telling_data,
    list_secrets,
    read_answers,
    read_commands,
    read_hidden,
    read_surroundings,
)
from palaestra.recipes.check.contract import measure_leftovers
from palaestra.recipes.check.elsewhere import call_elsewhere
from palaestra.recipes.check.failures import INJECTIONS, break_functions, find_constant_handlers
from palaestra.recipes.check.records import CheckFinding, env_check, report_fail, report_pass, report_skip, report_warn
from palaestra.recipes.check.scorer import limit
from palaestra.recipes.check.subjects import make_subject
from palaestra.recipes.check.submissions import (
    Files,
    ResearchPart,
    Variants,
    forge_files,
    list_cheats,
    list_equivalent,
    list_idle,
    list_incomplete,
    list_malformed,
    list_payloads,
)
from palaestra.research.judge.evaluation import make_judge, sandbox_for
from palaestra.research.tasks.data import generate_data
from palaestra.research.tasks.task import Grade, InvalidSubmission, JudgeResult, TaskData, load_task, read_files
from palaestra.research.workspace.workspace import submission_files

_MARGIN = 0.25
"""A submission without work fails the check with the reference's gain over the baseline, less this fraction of it."""
_SECONDS = 25.0
_SHORT = 0.5
"""The time limit under which an endless submission is judged."""
_PACKAGED = re.compile(r"sklearn\.datasets import .*load_(?:iris|digits|wine|breast_cancer|diabetes|linnerud)\b")
_ANSWERS = re.compile(r"answer|label|target|solution|expected|truth|right|gold", re.IGNORECASE)


# Level 1: the contract


@env_check("research", "static.manifest")
def check_manifest(part: ResearchPart) -> CheckFinding:
    """The task file is valid, and agrees with its folder and its text"""
    task, limits, starter = part.task, part.task.limits, part.task.starter_files()
    named = [name for name in task.submission.files if name != "*"]
    if not task.baseline and (missing := [name for name in named if name not in starter]):
        return report_fail(f"there is no command for the baseline, and no starter file {', '.join(missing)}")
    doubts = [f"{name} is both required and optional" for name in named if name in task.submission.optional]
    if limits.command_seconds > limits.seconds:
        doubts.append(f"a command may take {limits.command_seconds:g} s, an episode only {limits.seconds:g} s")
    if doubts:
        return report_warn("the task file contradicts itself", *doubts)
    return report_pass(f"{task.metric.name}, {task.metric.direction} is better; {len(starter)} starter files")


@env_check("research", "static.dependency_pinning")
def check_dependencies(part: ResearchPart) -> CheckFinding:
    """Every package that the task's files import is declared"""
    task = part.task
    files = {**task.starter_files(), **{f"reference/{n}": text for n, text in task.reference_files().items()}}
    known = {part for name in files for part in (Path(name).stem, Path(name).parts[0])}
    known |= {"palaestra", *task.dependencies, *sys.stdlib_module_names}
    doubts = [
        f"{name} imports {package}"
        for name, content in files.items()
        if name.endswith(".py") and part.evaluator  # Other formats install their packages in an image.
        for package in sorted(_list_imports(content) - known)
    ]
    if doubts:
        return report_warn("a package is imported and not declared: the task fails where it is missing", *doubts)
    return report_pass("all imported packages are declared")


def _list_imports(source: bytes) -> set[str]:
    names = re.findall(rb"^\s*(?:from\s+(\w+)[\w.]*\s+import\b|import\s+([\w., ]+))", source, re.MULTILINE)
    words = [
        word.split()[0] for first, others in names for word in (first or others).decode().split(",") if word.strip()
    ]
    return {word.partition(".")[0] for word in words}


@env_check("research", "runtime.starts")
def check_workspace(part: ResearchPart) -> CheckFinding:
    """The judge is made, and two workspaces have the same files: those of the starter folder"""
    expected, states = part.task.starter_files(), []
    for _ in range(2):
        with part.open_workspace() as workspace:
            files = workspace.shell.read_files(workspace.shell.list_files())
            variables = {"environment variables": workspace.execute("env | grep -v '^_=' | sort").output}
            states.append({**part.read_public(), **variables, **files})
    if different := _compare_files(*states):
        return report_fail("two workspaces differ", different, seed=part.seed)
    if different := _compare_files(expected, files):
        return report_fail("the workspace has other files than the starter folder", different)
    return report_pass(f"two workspaces have the same {len(expected)} files", files=len(expected))


def _compare_files(first: Files, second: Files) -> str:
    """The names of files that are not in both with the same content."""
    return ", ".join(sorted(name for name in {**first, **second} if first.get(name) != second.get(name))[:10])


@env_check("research", "static.task_distribution_pinning")
def check_data(part: ResearchPart) -> CheckFinding:
    """The data are the same when they are made again, in another process"""
    task, data = part.task, part.judge.data
    if not task.data or data.public is None or data.hidden is None:
        return report_skip("it has no data")
    if re.search("hidden|read_predictions", part.evaluator) and not any(read_files(data.hidden).values()):
        return report_fail("the hidden folder of the data is empty")
    with tempfile.TemporaryDirectory(prefix="palaestra-check-") as folder:
        if call_elsewhere(make_data, str(task.folder), folder, seconds=100.0) is None:
            return report_warn("the data could not be made again within the time")
        for name, kept in (("public", data.public), ("hidden", data.hidden)):
            if different := _compare_files(read_files(kept), read_files(Path(folder) / name)):
                return report_fail(f"the {name} data differ when they are made again", different, seed=part.seed)
    return report_pass("the data are the same in another process")


def make_data(folder: str, target: str) -> bool:
    """Generate the data of the task in `folder`; another process calls it."""
    _use_random_numbers()
    generate_data(load_task(Path(folder)), Path(target))
    return True


def _use_random_numbers() -> None:
    """Leave the global generators in another state than a new process has."""
    random.seed(97)
    np.random.seed(97)  # noqa: NPY002


@env_check("research", "runtime.baseline_scored")
def check_baseline(part: ResearchPart) -> CheckFinding:
    """The baseline runs, and its submission is scored on both splits"""
    limit, measured = part.task.limits.command_seconds, part.baseline
    scores: Json = {"validation": measured.validation.score, "test": measured.test.score}
    text = f"the baseline scores {scores['validation']:g} and {scores['test']:g}, in {measured.seconds:.1f} s"
    if measured.seconds > 2 * limit:
        return report_fail(f"{text}; a command may take {limit:g} s", **scores)
    return report_pass(text, **scores, seconds=round(measured.seconds, 2))


@env_check("research", "runtime.resource_bounds")
def check_limits(part: ResearchPart) -> CheckFinding:
    """A submission that never ends is ended, and has no score"""
    base, seconds = submission_files(part.baseline), Json()
    if not part.main or not any(part.main in command.files for command in part.commands):
        return report_skip("no code of a submission runs while it is judged")
    shorter = {"evaluation_seconds": _SHORT, "memory": 400 << 20, "processes": 64}
    task = part.task.model_copy(update={"limits": part.task.limits.model_copy(update=shorter)})
    for what, code in load_table(__file__, "attacks")["submissions"]["hangs"].items():
        start = time.monotonic()
        result = make_judge(task, part.sandbox).judge({**base, part.main: code.encode()}, "validation")
        seconds[what] = round(time.monotonic() - start, 1)
        worst = part.task.metric.reward(None, part.baseline.validation.score)
        if isinstance(result, Grade) and part.task.metric.reward(result.score, part.baseline.validation.score) > worst:
            return report_fail(f"a submission that {what} gets the score {result.score:g}", code, **seconds)
        if isinstance(result, Failure):
            return report_warn(
                f"a submission that {what} is a failure of the judge, and so has no reward", result.message
            )
    return report_pass(f"submissions without end are ended after {max(seconds.values()):.1f} s", **seconds)


@env_check("research", "runtime.resources_released")
def check_leftovers(part: ResearchPart) -> CheckFinding:
    """Nothing stays of a closed workspace and of a judged submission"""
    files = submission_files(part.baseline)

    def play() -> None:
        with part.open_workspace() as workspace:
            workspace.execute("sleep 600 >/dev/null 2>&1 & touch /tmp/left; true")
        part.judge.judge(files, "validation")

    growing, leftovers = measure_leftovers(play, 3)
    if os.getcwd() != part.folder:
        return report_fail(f"judging changes the current folder to {os.getcwd()}")
    if growing:
        return report_fail(f"each episode leaves {growing[0]} behind", *growing)
    if leftovers:
        return report_warn("judging leaves files in the temporary folder", ", ".join(leftovers[:5]))
    return report_pass("nothing stays open")


@env_check("research", "runtime.episode_isolation")
def check_isolation(part: ResearchPart) -> CheckFinding:
    """A workspace shows nothing of an earlier episode"""
    mark = f"mark {token_hex(16)} of an earlier episode"
    folders, digest = ". ~ /tmp /dev/shm /data / /opt /logs /tests", part.task.digest()
    with part.open_workspace() as workspace:
        workspace.execute(f"for d in {folders}; do echo '{mark}' > $d/palaestra_mark; done 2>/dev/null")
    files = submission_files(part.baseline)
    part.score({**files, part.main: files[part.main] + f"\n# {mark}\n".encode()} if part.main else files)
    if part.task.digest() != digest:
        return report_fail("judging a submission changes the files of the task")
    search = f"grep -rlsF '{mark}' {folders.replace(' / ', ' ')}; find / -maxdepth 3 -name palaestra_mark 2>/dev/null"
    with part.open_workspace() as workspace:
        places = workspace.execute(search).text.split()
    if places:
        return report_fail("a workspace contains files of an earlier episode", *places[:5])
    return report_pass("a workspace shows nothing of an earlier episode")


# Level 2: the scorer


@env_check("research", "semantic.verifier_determinism")
def check_determinism(part: ResearchPart) -> CheckFinding:
    """The same submission always gets the same score, also in another process"""
    metric, solutions = part.task.metric, {"baseline": part.baseline}
    allowed = metric.spread + 1e-6 * max(1.0, abs(part.baseline.test.score))
    if part.has_reference:
        with suppress(PalaestraError):  # Another check reports it.
            solutions["reference"] = part.reference
    counts = 0
    # The baseline again at the end: an evaluator may keep the best score.
    for name, measured in [*solutions.items(), *[("baseline", part.baseline)][: len(solutions) - 1]]:
        files = submission_files(measured)
        _use_random_numbers()
        scores = [measured.test.score, _get_score(part.score(files))]
        if name == "baseline" and not counts and measured.test.seconds < 4.0:
            scores += filter(None, [call_elsewhere(score_elsewhere, str(part.task.folder), files)])
        counts += len(scores)
        if None in scores or max(scores) - min(scores) > allowed:  # type: ignore[type-var, operator]
            text = f"the {name} is scored {' and '.join(map(str, scores))}"
            return report_fail(f"{text}; declared is a spread of {metric.spread:g}", seed=part.seed)
    return report_pass(f"{counts} scores of {len(solutions)} submissions agree", scores=counts)


def _get_score(result: JudgeResult) -> float | None:
    return result.score if isinstance(result, Grade) else None


def score_elsewhere(folder: str, files: Files) -> float | None:
    """The score of a submission; another process calls it."""
    return _get_score(ResearchPart(make_subject(Path(folder))).score(files))


@env_check("research", "semantic.oracle_max")
def check_reference(part: ResearchPart) -> CheckFinding:
    """The reference solution beats the baseline on both splits"""
    if not part.has_reference:
        return report_warn("there is no reference solution: nothing shows that the task can be solved")
    metric, own, base = part.task.metric, part.reference, part.baseline
    pairs = {"validation": (own.validation.score, base.validation.score), "test": (own.test.score, base.test.score)}
    evidence = [f"{split}: reference {best:g}, baseline {least:g}" for split, (best, least) in pairs.items()]
    gains = [metric.gain(*pair) for pair in pairs.values()]
    numbers: Json = {"oracle_reward": gains[1], "reference": own.test.score, "seconds": own.seconds}
    if min(gains) <= metric.spread / metric.scale:
        return report_fail(
            f"the reference does not beat the baseline; {metric.direction} is better", *evidence, **numbers
        )
    text = f"the reference is rewarded {gains[1]:.3g}, and made in {own.seconds:.1f} s"
    if not 0.05 <= gains[1] <= 20:
        return report_warn(f"{text}: the metric's scale is far from it", *evidence, **numbers)
    if own.seconds > part.task.limits.command_seconds:
        return report_warn(f"{text}: a command may take {part.task.limits.command_seconds:g} s", **numbers)
    return report_pass(text, **numbers)


@env_check("research", "semantic.equivalent_answers")
def check_equivalent(part: ResearchPart) -> CheckFinding:
    """Other forms of the same solution get the same score, or are rejected"""
    best, count = part.best.test.score, 0
    for what, files in limit(list_equivalent(part), _SECONDS):
        result, count = part.score(files), count + 1
        if isinstance(result, Failure):
            return report_fail(f"{what} breaks the evaluator", result.message)
        if isinstance(result, Grade) and abs(result.score - best) > part.task.metric.spread + 1e-6 * max(1, abs(best)):
            return report_fail(f"{what} gets {result.score:g} instead of {best:g}")
    return (
        report_pass(f"{count} other forms get the same score", forms=count)
        if count
        else report_skip("it has no other forms")
    )


@env_check("research", "runtime.hostile_answers")
def check_malformed(part: ResearchPart) -> CheckFinding:
    """Malformed submissions have no score, or the floor"""
    if part.takes_workspace:
        return report_skip("every workspace is a submission")
    scored, doubts, floor, count = list[str](), list[str](), part.gain(None), 0
    variants = [(list_malformed(part, part.best), max(-0.02, 0.95 * floor))]
    variants += [
        (list_incomplete(part, part.best), 0.9)
    ]  # With half of the answers a score is lower, or they were not missed.
    for (what, files), bar in limit(((entry, bar) for entries, bar in variants for entry in entries), _SECONDS):
        count += 1
        judge = part.make_judge()
        result = judge.judge(files, "test")
        if isinstance(result, Failure) and not judge.exposed:
            doubts.append(f"{what}: the evaluator fails, so that an agent escapes a bad score: {result.message}")
        if isinstance(result, Grade) and (gain := part.gain(result.score)) > bar:
            (scored if gain > 0.1 else doubts).append(f"{what}: scored {result.score:g}")
    if scored:
        return report_fail("a malformed submission gets a score", *scored[:8], count=len(scored))
    if doubts:
        return report_warn("a malformed submission is not rejected", *doubts[:8], count=len(doubts))
    return report_pass(f"{count} malformed submissions are rejected or at the floor", submissions=count)


@env_check("research", "runtime.failure_is_no_score")
def check_failures(part: ResearchPart) -> CheckFinding:
    """A failure of the evaluator is never a score"""
    files, best, lowered, hits = submission_files(part.best), part.best.test.score, list[str](), list[str]()
    lost = ("the sandbox is lost", [(type(part.sandbox), "start")], lambda: SandboxError("injected"))
    for name, targets, error in limit((lost, *INJECTIONS), _SECONDS):
        judge = make_judge(part.task, sandbox_for(part.task))
        with break_functions(name, targets, error) as own_hits:
            result = judge.judge(files, "test")
        hits += own_hits
        if own_hits and isinstance(result, Grade) and abs(result.score - best) > part.task.metric.spread + 1e-6:
            lowered.append(f"{name}: the score is {result.score:g} instead of {best:g} or a failure")
    if part.judge.data.hidden is not None:
        judge = part.make_judge()
        with tempfile.TemporaryDirectory(prefix="palaestra-check-") as empty:
            judge.data = TaskData(judge.data.public, Path(empty))
            result = judge.judge(files, "test")
            if isinstance(result, Grade) and abs(result.score - best) > part.task.metric.spread + 1e-6:
                lowered.append(f"without the hidden data the score is {result.score:g}")
    if lowered:
        return report_fail("a failure becomes a score", *lowered)
    if handlers := find_constant_handlers(part.evaluator, part.task.evaluator):
        return report_warn("a failure may become a score", *handlers)
    return report_pass(f"injected failures ({', '.join(sorted(set(hits))) or 'none is reached'}) never become scores")


# Level 3: leaks and floors


@env_check("research", "runtime.host_containment")
def check_containment(part: ResearchPart) -> CheckFinding:
    """No code of a submission runs outside a sandbox"""
    count = 0
    with tempfile.TemporaryDirectory(prefix="palaestra-check-") as folder:
        mark = Path(folder) / "mark"
        for what, files in limit(list_payloads(part, mark), _SECONDS):
            part.score(files)
            count += 1
            if mark.exists():
                return report_fail(f"{what} runs in the process of the evaluator, and can do anything on this machine")
    return report_pass(f"{count} submissions with code ran nowhere else", submissions=count)


@env_check("research", "runtime.oracle_containment")
def check_workspace_secrets(part: ResearchPart) -> CheckFinding:
    """A workspace shows nothing of the evaluator, the reference and the hidden data"""
    task, secrets = part.task, list_secrets(part)
    starter = task.starter_files()
    shared = {*task.reference_files(), *task.submission.files, *task.baseline.split()}
    visible, equal = read_surroundings(part, secrets)
    leaks = [*equal, *find_secrets(visible, secrets, [starter[name] for name in shared if name in starter])]
    leaks += [
        f"the environment variable {name} is {value!r}"
        for name, value in task.variables().items()
        if _ANSWERS.search(name) or (len(value) >= 8 and value.encode() in b"".join(task.reference_files().values()))
    ]
    if leaks:
        return report_fail("a workspace shows what an agent must not see", *dict.fromkeys(leaks))
    return report_pass(f"{len(visible)} places show none of {len(secrets)} secret files", places=len(visible))


@env_check("research", "semantic.judging_containment")
def check_judging_secrets(part: ResearchPart) -> CheckFinding:
    """The sandbox in which a submission is judged shows nothing of the hidden data and the reference"""
    files, count = submission_files(part.baseline), 0
    known = [*files.values(), *part.task.starter_files().values()]
    for split in ("validation", "test"):
        part.commands.clear()
        part.score(files, split)
        secrets, count = list_secrets(part, split), count + len(part.commands)
        leaks = find_secrets(read_commands(part), secrets, known)
        hidden = {name for name in secrets if name.startswith("hidden/")}
        shown = {name for name in secrets if any(leak.endswith(f" {name}") for leak in leaks)}
        # A program may be given its inputs as a file, but not all that decides its score.
        if shown - hidden or (hidden and shown >= hidden) or any(_ANSWERS.search(name) for name in shown):
            return report_fail("submitted code can read what decides its score", *dict.fromkeys(leaks))
    return report_pass(f"{count} programs see none of what decides their score", programs=count)


@env_check("research", "semantic.no_solution_leakage")
def check_leakage(part: ResearchPart) -> CheckFinding:
    """Public data, texts and messages do not tell the answers"""
    task, hidden = part.task, read_hidden(part)
    public = {**part.read_public(), **task.starter_files()}
    answers = read_answers(hidden)
    leaks = [text for right in answers.values() for text in find_telling_data(right, public, part.seed)]
    contents = list(hidden.values())
    if any(len(content) > 40 and contents.count(content) > 1 for content in contents):
        leaks.append("the hidden data of the two splits are the same, so that each validation tells the test score")
    source = (task.folder / task.data).read_text(encoding="utf-8") if task.data else ""
    if (loaded := _PACKAGED.search(source)) and not any(path.startswith("sklearn/datasets") for path in task.hide):
        leaks.append(f"{task.data} contains {loaded[0]}, whose data agents have too: hide sklearn/datasets/data")
    texts = {"the description": task.description.encode()}
    for variants in (list_malformed(part, part.baseline), list_incomplete(part, part.baseline)):
        for what, files in limit(variants, _SECONDS / 3):
            if isinstance(result := part.score(files), InvalidSubmission):
                texts[f"the message that {what}"] = result.reason.encode()
    leaks += find_secrets(texts, list_secrets(part), public.values())
    known = _list_words(b" ".join([*public.values(), *submission_files(part.baseline).values()]))
    for name, right in answers.items():
        rare = {value for value in right.values() if len(value) >= 3} - known
        for place, text in texts.items():
            if quoted := sorted(rare & _list_words(text)):
                leaks.append(f"{place} quotes {', '.join(quoted[:3])} of hidden/{name}: {short_repr(text.decode())}")
            if pairs := find_pairs(right, text.decode()):
                leaks.append(
                    f"{place} pairs {pairs} ids of hidden/{name} with their answers: {short_repr(text.decode())}"
                )
    if leaks:
        return report_fail("the answers can be told without work", *dict.fromkeys(leaks), seed=part.seed)
    return report_pass(f"{len(public)} public files and {len(texts)} texts do not tell the answers", texts=len(texts))


def _list_words(text: bytes) -> set[str]:
    return set(re.findall(r"[\w.+-]*\w", text.decode("utf-8", "replace")))


@env_check("research", "semantic.floor_gap")
def check_floor(part: ResearchPart) -> CheckFinding:
    """Submissions without work get less than the reference"""
    return _judge_variants(part, list_idle(part), "a submission without work", 0.5)


@env_check("research", "semantic.canary_floor")
def check_cheats(part: ResearchPart) -> CheckFinding:
    """Forged scores, early exits and patched judges get no more than the baseline"""
    return _judge_variants(part, _list_attacks(part), "a submission that cheats", 0.1)


def _list_attacks(part: ResearchPart) -> Variants:
    """A workspace that overwrites all that it can reach, and submissions that cheat."""
    with part.open_workspace() as workspace:
        if part.task.baseline:
            workspace.execute(part.task.baseline, part.task.limits.command_seconds)
        own = set(part.task.submission.files) | set(part.task.submission.optional)
        workspace.shell.write_files({name: text for name, text in forge_files(part).items() if name not in own})
        workspace.execute(
            "for d in .. ~ /tmp /data /tests /logs /logs/verifier / /opt; do cp -n * $d; done 2>/dev/null"
        )
        files = workspace.submission()
    if isinstance(files, dict):
        yield "a workspace in which everything was overwritten", files
    yield from list_cheats(part)


def _judge_variants(part: ResearchPart, variants: Variants, what: str, doubtful: float) -> CheckFinding:
    """Fail if a variant gains as much as the reference, less the margin. Warn from the fraction `doubtful` on."""
    gains, count = list[tuple[float, str, float]](), 0
    for name, files in limit(variants, _SECONDS):
        result, count = part.score(files), count + 1
        if isinstance(result, Grade) and (gain := part.gain(result.score)) > 0:
            gains.append((gain, name, result.score))
            if gain >= 1 - _MARGIN:
                break
    gains.sort(reverse=True)
    best = gains[0][0] if gains else 0.0
    numbers: Json = {"measured_floor": best, "margin": _MARGIN, "submissions": count}
    evidence = [f"{name}: {score:g}, {gain:.0%} of the reference's gain" for gain, name, score in gains[:5]]
    text = f"{what} gets {best:.0%} of the reference's gain over the baseline"
    if best >= 1 - _MARGIN:
        return report_fail(text, *evidence, seed=part.seed, **numbers)
    if best > doubtful:
        return report_warn(text, *evidence, seed=part.seed, **numbers)
    if not count:
        return report_skip("no such submission can be written for it")
    return report_pass(f"{count} submissions get at most {best:.0%} of the reference's gain", **numbers)
