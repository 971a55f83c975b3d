"""Level 3: whether the prompt tells the answer, or an agent finds it in its surroundings."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import subprocess
import tempfile
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from palaestra.core.settings import short_repr
from palaestra.envs.base import GymEnv
from palaestra.recipes.check.answers import Answers, Case, EnvAnswers, TaskAnswers, read_messages, send
from palaestra.recipes.check.records import CheckFinding, env_check, report_fail, report_pass, report_skip, report_warn
from palaestra.recipes.check.scorer import is_full, limit, list_solved, spread

_TELLING = r"(?:answer|solution|reference|expected|target|label|gold|ground[ _-]?truth|secret|key|correct|result|hint)"


def _find_places(text: str, answer: str) -> set[str]:
    """The telling places of a text in which an answer stands."""
    bounded = rf"(?<![\w.]){re.escape(answer)}(?![\w]|\.\d)"
    places = set()
    if re.search(
        rf"{_TELLING}s?\b[\"'*_` ]{{0,4}}(?:is|was|[:=>-]|->|\()[\"'*_`\s:=(\[{{]{{0,6}}{bounded}", text, re.IGNORECASE
    ):
        places.add("after a word like 'answer'")
    if any(
        re.search(bounded, part)
        for part in re.findall(r"<!--(.*?)-->|/\*(.*?)\*/|\[//\]: # \((.*?)\)", text, re.DOTALL)
        for part in part
    ):
        places.add("in a comment")
    lines = [line.strip() for line in text.strip().splitlines()]
    if len(lines) > 1 and lines[-1] == answer:
        places.add("as the last line")
    if len(answer) >= 3:
        raw = answer.encode()
        codes = {base64.b64encode(raw).decode().rstrip("="), raw.hex(), *([answer[::-1]] if len(answer) > 6 else [])}
        if any(
            len(code) >= 4 and code != answer and re.search(rf"(?<!\w){re.escape(code)}(?!\w)", text) for code in codes
        ):
            places.add("encoded")
    return places


def _compare_rates(
    texts: Mapping[str, str], secrets: Mapping[str, str], find: Callable[[str, str], set[str]]
) -> Counter[str]:
    """The places in which cases show their own secret much more often than those of others, with their counts."""
    own, control, pairs = Counter[str](), Counter[str](), 0
    keys = [key for key in texts if secrets.get(key, "").strip()]
    for place, key in enumerate(keys):
        own.update(find(texts[key], secrets[key]))
        # Of each case the next few whose secret differs.
        others = [other for other in keys[place + 1 :] + keys[:place] if secrets[other] != secrets[key]][:4]
        pairs += bool(others)
        for other in others:
            for name in find(texts[key], secrets[other]):
                control[name] += 1 / len(others)  # type: ignore[assignment]
    if pairs < 3:
        return Counter()
    limits = {name: max(2.0, 0.3 * len(keys), 2.5 * control[name]) for name in own}
    return Counter({name: count for name, count in own.items() if count >= limits[name]})


def _is_copying(prompt: str) -> bool:
    """Whether a prompt asks for a part of itself, so that it must contain the answer."""
    return bool(
        re.search(
            r"\b(copy|repeat|echo|verbatim|quote|transcribe|say|type|write down|spell|which of)\b",
            prompt,
            re.IGNORECASE,
        )
    )


@env_check("answers", "semantic.no_solution_leakage")
def check_leaks(answers: Answers) -> CheckFinding:
    """The prompt does not tell the answer"""
    cases = {case.key: case for case in answers.cases if case.messages}
    secrets = _get_secrets(answers)
    if not secrets:
        return report_skip("no right answers are known")
    texts = {key: cases[key].prompt for key in secrets if key in cases}
    copying = sum(_is_copying(text) for text in texts.values()) > len(texts) / 2
    leaks = _compare_rates(texts, secrets, _find_places)
    system = {key: "\n".join(m.text for m in cases[key].messages if m.role == "system") for key in texts}
    leaks |= _compare_rates(
        system, secrets, lambda text, answer: {"in the system message"} if _contains(text, answer) else set()
    )
    for name, count in leaks.most_common(1):
        key = next((k for k in texts if name in _find_places(texts[k], secrets[k])), next(iter(texts)))
        evidence = f"case {key}: the answer {short_repr(secrets[key])} in {short_repr(texts[key][-200:])}"
        finding = report_warn if copying else report_fail
        return finding(f"the prompt tells the answer {name}, in {count} of {len(texts)} cases", evidence, cases=count)
    long = [key for key in texts if len(secrets[key]) >= 60 and secrets[key].strip() in texts[key]]
    if len(long) >= max(2, 0.3 * len(texts)):
        return report_warn(
            f"{len(long)} of {len(texts)} prompts contain the whole reference, of at least 60 characters", long[0]
        )
    return report_pass(f"{len(texts)} prompts do not tell the answer", cases=len(texts))


def _contains(text: str, answer: str) -> bool:
    return bool(answer.strip()) and bool(re.search(rf"(?<![\w.-]){re.escape(answer)}(?!\w|\.\d)", text))


def _get_secrets(answers: Answers) -> dict[str, str]:
    """What solves each case: the reference, a short oracle, or an attribute of the environment that solves it."""
    if isinstance(answers, TaskAnswers):
        return {case.key: case.reference.strip() for case in answers.cases if case.reference.strip()}
    solved = {case.key: texts for case, texts, _ in list_solved(answers)}
    secrets = {case.key: case.reference for case in answers.cases if case.key in solved and case.reference}
    for key, texts in solved.items():
        if key not in secrets and len(texts) == 1 and len(texts[0]) <= 200:
            secrets[key] = texts[0]
    return secrets


@env_check("answers", "runtime.oracle_containment")
def check_containment(answers: Answers) -> CheckFinding:
    """The answer is not in reach before the end"""
    if not isinstance(answers, EnvAnswers):
        return report_skip("a model sees only the messages of a problem")
    secrets = _get_secrets(answers)
    cases = [case for case in answers.cases if case.key in secrets]
    shown: dict[str, dict[str, str]] = defaultdict(dict)
    for case in limit(cases):
        for place, text in _read_surroundings(answers, case).items():
            shown[place][case.key] = text
    for place, texts in shown.items():
        leak = _compare_rates(texts, secrets, lambda text, answer: {"the answer"} if _contains(text, answer) else set())
        if leak:
            key = next(key for key in texts if _contains(texts[key], secrets[key]))
            evidence = f"seed {key}: {short_repr(secrets[key])} in {_show_around(texts[key], secrets[key])}"
            count = leak["the answer"]
            return report_fail(
                f"{place} contains the answer before the end, in {count} of {len(texts)} episodes",
                evidence,
                cases=count,
            )
    if telling := _find_telling_reply(answers):
        return report_fail("a reply to any text contains the answer before the end", telling)
    if not cases and (solving := _find_solving_info(answers)):
        return report_fail("info of reset contains a text that is rewarded as the answer", solving)
    earlier = _find_earlier(answers, cases or list(answers.cases))
    if earlier:
        return report_fail("a prompt depends on the episode before", *earlier)
    return (
        report_pass(f"{len(shown)} places do not contain the answer", episodes=len(cases))
        if cases
        else report_skip("no right answers are known")
    )


def _find_telling_reply(answers: EnvAnswers) -> str:
    """How a reply tells the answer, so that an agent which says nothing of use can copy it; empty if none does.

    An episode counts if the right answer still gets its full reward after that reply.
    """
    solved = [(case, texts[0], value) for case, texts, value in list_solved(answers) if len(texts) == 1]
    words = _list_varying_words([text for _, text, _ in solved])
    replies, evidence = dict[str, str](), dict[str, str]()
    for case, text, value in limit(solved):
        reward = answers.score(case, "hello")
        shown = ["\n".join(m.text for m in turn) for turn in reward.replies[: len(reward.replies) - reward.ended]]
        replies[case.key] = "\n".join(shown)
        for turn, reply in enumerate(shown, 1):
            if words[text] and _contains(reply, words[text]):
                if is_full(answers, answers.score(case, ["hello"] * turn + [text]), value):
                    evidence[case.key] = f"seed {case.key}, reply {turn}: {_show_around(reply, words[text])}"
                break
    secrets = {case.key: words[text] for case, text, _ in solved if case.key in replies}
    leaks = _compare_rates(replies, secrets, lambda text, word: {"the answer"} if _contains(text, word) else set())
    return next(iter(evidence.values()), "") if leaks and len(evidence) >= 2 else ""


def _list_varying_words(texts: Sequence[str]) -> dict[str, str]:
    """Each text without the words with which all of them begin and end: of 'code 452' and 'code 17', the numbers."""
    words = [text.split() for text in dict.fromkeys(texts)]
    start = _count_common(words) if len(words) > 1 else 0
    end = _count_common([own[start:][::-1] for own in words]) if len(words) > 1 else 0
    return {text: " ".join(text.split()[start : len(text.split()) - end]) for text in texts}


def _count_common(lists: Sequence[Sequence[str]]) -> int:
    """The number of items with which all lists begin."""
    differences = (n for n, column in enumerate(zip(*lists, strict=False)) if len(set(column)) > 1)
    return next(differences, min(map(len, lists)))


_FORMS = ("{}", "Answer: {}", "[{}]", "\\boxed{{{}}}")
"""Forms in which an entry of `info` is tried as an answer."""
_MAX_ENTRIES = 20


def _find_solving_info(answers: EnvAnswers) -> str:
    """An entry of `info` that is rewarded as an answer more than that of another episode; empty if there is none."""
    entries = {case.key: dict(_list_entries(case.info)) for case in spread(answers.cases, 6)}
    first, *others = entries.values()
    for path in list(first)[:_MAX_ENTRIES]:
        for form in _FORMS if all(path in other for other in others) else ():
            better, pairs = 0, 0
            for case, other in limit(itertools.pairwise(spread(answers.cases, 6))):
                own, control = (form.format(entries[key][path]) for key in (case.key, other.key))
                if own != control:
                    value, usual = (answers.score(case, [text]).value for text in (own, control))
                    if value is not None and usual is not None:  # A failure is no reward.
                        better, pairs = better + (value > usual), pairs + 1
            if pairs >= 3 and better >= 0.8 * pairs:
                return f"{path}, written as {form.format('...')!r}: better than that of another episode in {better} of {pairs}"
    return ""


def _list_entries(info: Any, path: str = "info") -> Iterator[tuple[str, str]]:
    """The short texts and numbers of an `info`, by path."""
    if isinstance(info, Mapping):
        for name, value in info.items():
            yield from _list_entries(value, f"{path}[{name!r}]")
    elif isinstance(info, str | int | float) and not isinstance(info, bool) and 0 < len(str(info)) <= 60:
        yield path, str(info)


def _show_around(text: str, answer: str) -> str:
    match = re.search(re.escape(answer), text)
    start = max(0, match.start() - 60) if match else 0
    return short_repr(text[start : start + 140])


def _read_surroundings(answers: EnvAnswers, case: Case) -> dict[str, str]:
    """What stands around an agent after the reset and one wrong step, by place."""
    env, began, before = answers.env, time.time() - 0.05, dict(os.environ)
    observation, info = env.reset(seed=case.source)
    texts = {
        "info of reset": _dump(info),
        "the state": _dump(getattr(observation, "state", "")),
        "the tools": _dump(_get_tools(env)),
    }
    with suppress(Exception):  # Another check reports it.
        after, _, terminated, truncated, step_info = send(env, "hello")
        if not terminated and not truncated:
            texts["info of a step"] = _dump(step_info)
            texts["the state"] += _dump(getattr(after, "state", ""))
            texts["a reply to a wrong answer"] = "\n".join(
                m.text for m in read_messages(env, after)[len(case.messages) :]
            )
    texts["an environment variable"] = "\n".join(
        value for name, value in os.environ.items() if before.get(name) != value
    )
    texts["a file"] = "\n".join(_read_new_files(began))
    texts["the command line of a process"] = "\n".join(_read_children())
    return texts


def _dump(value: Any) -> str:
    try:
        return json.dumps(value, default=repr, ensure_ascii=False)
    except (TypeError, ValueError):
        return repr(value)


def _get_tools(env: GymEnv) -> Any:
    return getattr(env.unwrapped, "tools", ())


def _read_new_files(began: float) -> Iterator[str]:
    """The texts of files and the histories of repositories that were written since a time, here and in the temporary folder."""
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        for number, path in enumerate(_walk(folder, 2)):
            with suppress(OSError):
                if number > 5000:
                    break
                status = path.stat()
                if status.st_mtime >= began and status.st_size < 100_000 and status.st_uid == os.getuid():
                    yield f"{path}: {_read_text(path)}"


def _read_text(path: Path) -> str:
    """The text of a file, of the files in an archive, or of all commits of a repository."""
    if path.name == ".git":
        command = ["git", "-C", str(path.parent), "log", "--all", "--reflog", "-p", "-n", "100"]
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False).stdout
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return "\n".join(archive.read(name).decode(errors="replace") for name in archive.namelist()[:50])
    return path.read_text(errors="replace")


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if path.name in (".venv", "__pycache__", "node_modules") or path.is_symlink():
                continue
            if path.name == ".git" or path.is_file():
                yield path
            elif path.is_dir() and depth:
                yield from _walk(path, depth - 1)


def _read_children() -> Iterator[str]:
    """The command lines of this process's children."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            if path.read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                yield (path.parent / "cmdline").read_text(errors="replace").replace("\0", " ")


def _find_earlier(answers: EnvAnswers, cases: Sequence[Case]) -> list[str]:
    """How the prompt of an episode differs after other episodes; empty if it does not."""
    for case, other in itertools.pairwise(cases[:5]):
        answers.forget()
        fresh = read_messages(answers.env, answers.env.reset(seed=other.source)[0])
        answers.forget()
        answers.score(case, list(answers.solve(case) or ["1"]))
        later = read_messages(answers.env, answers.env.reset(seed=other.source)[0])
        if later != fresh:
            return [f"seed {other.key} after seed {case.key}: {short_repr(later)}", f"without it: {short_repr(fresh)}"]
    return []
