"""What an agent's workspace and the sandbox of a submission show of a research task's secrets, and what its public data tell."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import random
import re
import shlex
import tarfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from palaestra.core.settings import short_repr
from palaestra.core.tables import load_table
from palaestra.recipes.check.submissions import MAX_CHANGE, ResearchPart, read_table
from palaestra.research.tasks.task import read_files

_MIN_BYTES = 24
"""A shorter secret may be anywhere by chance."""
_SHARE = 0.5
"""A file shows a secret if it contains this fraction of its distinctive lines."""
_OWN = ("task.yaml", "task.toml", "instruction.md", "environment/")
"""Files of a task folder that agents may see."""
_SURROUNDINGS = load_table(__file__, "attacks")["surroundings"]
_SYSTEM = ("/proc", "/usr", "/lib*", "*/site-packages")
"""Folders that are not searched. The packages that a task names are."""
_PURE = 0.98
"""Fraction of rows in which a column determines the answer, from which it tells it."""


def list_secrets(part: ResearchPart, split: str = "") -> dict[str, bytes]:
    """The hidden data and the reference; without a split also the evaluator and all else that agents are not given.

    Arguments:
        split: leave out the hidden data of the other split.
    """
    task = part.task
    starter, secrets = task.starter_files(), {f"hidden/{name}": text for name, text in read_hidden(part).items()}
    if split and any(split in name for name in secrets):
        secrets = {name: text for name, text in secrets.items() if split in name}
    for name, content in read_files(task.folder).items():
        inside = name.partition("/")[2]
        is_known = (
            name.startswith(_OWN) or name.endswith(".md") or (name.startswith(f"{task.starter}/") and inside in starter)
        )
        is_shared = starter.get(inside) == content  # A helper that the reference does not change.
        if not is_known and not is_shared and (not split or name.startswith(("reference/", "solution/"))):
            secrets[name] = content
    return secrets


def read_hidden(part: ResearchPart) -> dict[str, bytes]:
    """The hidden files that decide a score: without a copy of the training data, which agents are given."""
    if part.judge.data.hidden is None:
        return {}
    hidden = read_files(part.judge.data.hidden)
    public = {name.rpartition("/")[2] for name in part.read_public()}
    judged = {name for name in hidden if re.search("val|test", name, re.IGNORECASE)}
    copies = {name for name in hidden if "train" in name.lower() and name.rpartition("/")[2] in public}
    return {name: content for name, content in hidden.items() if not judged or name not in copies - judged}


def find_secrets(visible: Mapping[str, bytes], secrets: Mapping[str, bytes], known: Iterable[bytes] = ()) -> list[str]:
    """Where secrets are visible.

    Arguments:
        known: contents that an agent has to work with; their lines are not secret.
    """
    common = {line for content in known for line in _list_pieces(content)}
    pieces = {name: set(_list_pieces(content)) - common for name, content in secrets.items()}
    leaks = []
    for place, packed in visible.items():
        for content in _unpack(packed):
            lines = set(_list_pieces(content))
            for name, secret in secrets.items():
                own, body = pieces[name], secret.strip()
                if len(body) >= _MIN_BYTES and body in content and body not in known:
                    leaks.append(f"{place} contains {name}")
                elif own and sum(map(len, own)) >= 2 * _MIN_BYTES and len(own & lines) >= max(2.0, _SHARE * len(own)):
                    leaks.append(f"{place} contains {len(own & lines)} of {len(own)} distinctive lines of {name}")
    return leaks


def _list_pieces(content: bytes) -> list[bytes]:
    """The longer lines of a text; of a text with few lines, the parts of its JSON value."""
    lines = content.splitlines()
    if len(lines) < 4:
        with suppress(ValueError, RecursionError):
            value = json.loads(content)
            parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
            lines = [json.dumps(part, sort_keys=True).encode() for part in parts]
    return [line.strip() for line in lines if len(line.strip()) >= 10]


def _unpack(content: bytes) -> Iterator[bytes]:
    """A content, and those inside it if it is an archive."""
    yield content
    with suppress(OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, RuntimeError):
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
            yield content
        if content[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                yield from (archive.read(name) for name in archive.namelist())
        elif content[257:262] == b"ustar":
            with tarfile.open(fileobj=io.BytesIO(content)) as files:
                yield from (part.read() for entry in files if (part := files.extractfile(entry)) is not None)


def read_surroundings(part: ResearchPart, secrets: Mapping[str, bytes]) -> tuple[dict[str, bytes], list[str]]:
    """What an agent sees, by place; and the files anywhere in its sandbox that are equal to a secret."""
    with part.open_workspace() as workspace:
        visible = dict(workspace.shell.read_files(workspace.shell.list_files()))
        workspace.execute(f"( {_SURROUNDINGS} ) > /tmp/.surroundings 2>/dev/null; mv /tmp/.surroundings .surroundings")
        output = workspace.shell.read_files([".surroundings"]).get(".surroundings", b"")
        digests = {sha256(content).hexdigest(): name for name, content in secrets.items() if len(content) >= _MIN_BYTES}
        sizes = " -o ".join(f"-size {size}c" for size in sorted({len(content) for content in secrets.values()}))
        skip = " -o ".join(f"-path '{path}'" for path in _SYSTEM)
        match = " ".join(f"-e {digest}" for digest in digests)
        command = f"find / {_list_packages(part)} '(' {skip} ')' -prune -o -type f '(' {sizes} ')' -exec sha256sum {{}} + 2>/dev/null | grep -F {match}"
        lines = workspace.execute(command).text.splitlines() if digests else []
    names = output.split(b"\0")
    visible |= {name.decode(): text for name, text in zip(names[::2], names[1::2], strict=False)}
    equal = [f"{line[66:]} is equal to {digests[line[:64]]}" for line in lines if line[:64] in digests]
    return {**visible, **part.read_public()}, equal


def _list_packages(part: ResearchPart) -> str:
    """The folders of the packages that a task names, which may contain its data."""
    specs = [find_spec(name) for name in part.task.dependencies]
    return shlex.join(dict.fromkeys(str(Path(s.origin).parent) for s in specs if s is not None and s.origin))


def read_commands(part: ResearchPart) -> dict[str, bytes]:
    """What the sandboxes of the submission contained while it was judged, besides the submission."""
    visible: dict[str, bytes] = {}
    for command in part.commands:
        for name, content in command.files.items():
            visible[f"the file {name}"] = content if isinstance(content, bytes) else content.encode()
        for inside, outside in command.read_only.items():
            path = Path(outside)
            files = read_files(path) if path.is_dir() else {"": path.read_bytes()} if path.is_file() else {}
            visible.update({f"the file {inside}/{name}".rstrip("/"): content for name, content in files.items()})
        visible["the arguments of the program"] = shlex.join(command.argv).encode()
        visible["the environment of the program"] = "\n".join(f"{k}={v}" for k, v in command.env.items()).encode()
        visible["the input of the program"] = command.stdin if isinstance(command.stdin, bytes) else b""
    return visible


# Public data that tell the answers of hidden tables


def read_answers(hidden: Mapping[str, bytes]) -> dict[str, dict[str, str]]:
    """The answers by id of each hidden table with two columns or more."""
    answers = {}
    for name in sorted(name for name in hidden if name.endswith(".csv")):
        lines = io.StringIO(hidden[name].decode("utf-8-sig"), newline="")
        rows = [row for row in csv.reader(lines) if len(row) > 1][1:]
        if len(rows) >= 8 and len({row[0] for row in rows}) == len(rows):
            answers[name.rpartition("/")[2]] = {row[0]: row[-1] for row in rows}
    return answers


def find_telling_data(answers: Mapping[str, str], public: Mapping[str, bytes], seed: int) -> list[str]:
    """How public tables tell the answers of one hidden table: in a row, a column, an array or the order of rows."""
    leaks = [
        f"hidden rows: {text}"
        for text in _find_telling_columns(["id"], [[name] for name in answers], [*answers.values()], seed)
    ]
    if order := _describe_order(list(answers.values())):
        leaks.append(f"the hidden rows are {order}")
    tables = {name: rows for name, content in public.items() if (rows := read_table(name, content))}
    leaks += [f"{name} lists the answers in their order" for name in _find_lists(list(answers.values()), public)]
    for name, content in public.items():
        if name.endswith(".npy"):
            with suppress(ValueError, EOFError, OSError):
                array = np.load(io.BytesIO(content), mmap_mode=None)
                if array.ndim == 1 and list(map(str, array.tolist())) == list(answers.values()):
                    leaks.append(f"{name} contains the answers")
        rows = tables.get(name)
        known = [row for row in rows[1:] if row[0] in answers] if rows else []
        if not rows or len(known) < 8:
            continue
        right = [answers[row[0]] for row in known]
        leaks += _find_repeated_rows(name, rows[0], known, tables)
        if order := _describe_order(right):
            leaks.append(f"the rows of {name} are {order}")
        leaks += [f"{name}: {text}" for text in _find_telling_columns(rows[0], known, right, seed)]
    return leaks


def find_pairs(answers: Mapping[str, str], text: str) -> int:
    """How many ids a text shows with their answers; 0 if the answers beside the ids are right by chance."""
    shown = re.findall(r"([\w.-]*\w)(?=[\s,:;=|(\[\"'>]{1,4}([\w.+-]*\w))", text)
    pairs = [(name, value) for name, value in shown if name in answers]
    right = sum(answers[name] == value for name, value in pairs)
    return right if right >= 5 and right >= 0.9 * len(pairs) else 0


def _find_lists(right: Sequence[str], public: Mapping[str, bytes]) -> list[str]:
    """The texts that contain all answers one after the other, with or without separators."""
    separators = re.compile(rb"[\s,;|\[\]\"']+")
    listed = separators.sub(b"", "".join(right).encode())
    if len(listed) < _MIN_BYTES or len(set(right)) < 2:
        return []
    texts = {name: separators.sub(b"", content) for name, content in public.items() if len(content) <= MAX_CHANGE}
    return [name for name, text in texts.items() if listed in text or listed[::-1] in text]


def _find_repeated_rows(
    name: str, head: Sequence[str], rows: Sequence[Sequence[str]], tables: Mapping[str, Sequence[Sequence[str]]]
) -> Iterator[str]:
    """Rows of a table without answers that are in a table with them, under another id."""
    own = {tuple(row[1:]) for row in rows}
    if len(own) < 0.9 * len(rows):
        return  # Rows of few values are equal by chance.
    for other, (title, *more) in tables.items():
        if len(title) > len(head) and set(head[1:]) <= set(title):
            places = [title.index(column) for column in head[1:]]
            count = len(own & {tuple(row[place] for place in places) for row in more})
            if count > 0.2 * len(rows):
                yield f"{count} of {len(rows)} rows of {name} are in {other}, with their answers"


def _find_telling_columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], seed: int
) -> Iterator[str]:
    other = random.Random(seed).sample(right, len(right))
    kinds, is_long = Counter(right), sum(map(len, right)) >= 2 * len(right)
    for place, title in enumerate(head):
        values = [row[place] for row in rows]
        shares = [
            sum(label in value if is_long else label == value for label, value in zip(labels, values, strict=True))
            / len(right)
            for labels in (right, other)
        ]
        groups: dict[str, Counter[str]] = defaultdict(Counter)
        for value, label in zip(values, right, strict=True):
            groups[value][label] += 1
        pure = sum(group.most_common(1)[0][1] for group in groups.values()) / len(right)
        if shares[0] > 0.5 and shares[0] - shares[1] > 0.3:
            yield f"the column '{title}' contains the answer in {shares[0]:.0%} of the rows"
        # Numbers may follow from a number, and a label from many values.
        elif (
            1 < len(kinds) <= 10 and len(groups) <= len(kinds) + 1 and pure >= _PURE > max(kinds.values()) / len(right)
        ):
            yield f"the column '{title}' determines the answer in {pure:.1%} of the rows"


def _describe_order(right: Sequence[str]) -> str:
    """How the order of rows depends on their answers; empty if it does not."""
    kinds = sorted(set(right))
    changes = sum(first != second for first, second in itertools.pairwise(right))
    expected = (len(right) - 1) * (1 - sum((count / len(right)) ** 2 for count in Counter(right).values()))
    if 1 < len(kinds) <= len(right) / 3:
        spread = (expected * (1 - expected / len(right))) ** 0.5
        return f"grouped by their answers, {short_repr(right[0])} first" if changes < expected - 3.5 * spread else ""
    with suppress(ValueError):
        numbers = np.diff(np.array(right, dtype=float))
        if len(right) >= 8 and (numbers >= 0).all() | (numbers <= 0).all():
            return "sorted by their answers"
    return ""
