"""The code blocks and commands of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FENCE = re.compile(r"^( *)```(\w*)[^\n`]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def name_page(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def list_blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages; those with another title than Palaestra are the code of
    another library."""
    text = page.read_text(encoding="utf-8")
    return [
        re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)
        for match in _FENCE.finditer(text)
        if match[2] in languages and re.search(r'title="(?!Palaestra)', match[0].partition("\n")[0]) is None
    ]


def list_commands(page: Path) -> list[str]:
    """The calls of `palaestra` in the blocks and in the text of a page."""
    lines = "\n".join(list_blocks(page, "bash", "")).replace("\\\n", " ").splitlines()
    commands = [line for line in lines if re.match(r"(?:torchrun .* -m )?palaestra ", line)]
    prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
    commands += [" ".join(text.split()) for text in re.findall(r"`(palaestra [^`]+)`", prose)]
    return [command[command.index("palaestra ") :] for command in commands]
