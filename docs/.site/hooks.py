"""What MkDocs does for this site: pages from notebooks, from docstrings and from files outside of `docs/`."""

from __future__ import annotations

import ast
import base64
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "palaestra"
OUTSIDE = {
    "CHANGELOG.md": "CHANGELOG.md",
    "CODE_OF_CONDUCT.md": "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "benchmarks/README.md": "benchmarks.md",
    **{f"src/palaestra/assets/{name}/README.md": f"models/{name}.md" for name in ("nano", "nano_vlm", "nano_coder")},
}
"""Files outside of `docs/` that are pages, with the name of the page."""
ASSETS = ("site.css", "site.js", "iframe-worker.js")
TITLES = {
    "recipes": "Recipes", "envs": "Environments", "rl": "Algorithms", "tasks": "Tasks", "teachers": "Teachers", "rewards": "Rewards",
    "report": "Reports and the viewer", "sandbox": "Sandbox", "integrations": "Integrations", "core": "Records",
}  # fmt: skip
"""Pages of the reference by room."""
SHARED_PAGES = {"view": "report", "research": "recipes"}
"""Rooms that are on the page of another."""
_LINK = re.compile(r"(!?)\[([^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\]\(([^()\s]+)\)")
_CODE = re.compile(r"(^```.*?^```|^~~~.*?^~~~)", re.MULTILINE | re.DOTALL)
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class NotebookFile(File):
    """A page that is a notebook: for MkDocs only names that end in .md are pages."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, name in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    for name in ASSETS:
        content = (Path(__file__).parent / "assets" / name).read_bytes()
        files.append(File.generated(config, f"assets/{name}", content=content))
    for room, exports in list_exports().items():
        files.append(File.generated(config, f"reference/{room}.md", content=write_reference(room, exports)))
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        page, pictures = convert_notebook(Path(str(file.abs_src_path)))
        files.append(NotebookFile.generated(config, file.src_uri, content=page))
        for name, data in pictures.items():
            files.append(File.generated(config, f"{PurePosixPath(file.src_uri).parent}/{name}", content=data))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files outside of `docs/` at their pages. A file without a page becomes its name."""
    places = {name: source for source, name in OUTSIDE.items()}
    uri = page.file.src_uri
    source = places.get(uri, f"docs/{uri}")

    def replace(match: re.Match[str]) -> str:
        mark, text, link = match.groups()
        target, hash_sign, anchor = link.partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = normpath(f"{PurePosixPath(source).parent}/{target}")
        if path in OUTSIDE:
            path = OUTSIDE[path]
        elif path.startswith("docs/"):
            path = path.removeprefix("docs/")
        elif (ROOT / path).exists():
            return text
        else:
            return match[0]
        return f"{mark}[{text}]({relpath(path, str(PurePosixPath(uri).parent))}{hash_sign}{anchor})"

    parts = _CODE.split(markdown)
    return "".join(part if part.startswith(("```", "~~~")) else _LINK.sub(replace, part) for part in parts)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """An empty cell in the head of a table is no header."""
    return re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)


def list_exports() -> dict[str, list[str]]:
    """What `palaestra` and its packages export, by the room whose page shows it."""
    exports: dict[str, list[str]] = {room: [] for room in TITLES}
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    public = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and all(alias.asname for alias in node.names):
            room = node.module.split(".")[1]
            exports[room] += [f"palaestra.{alias.name}" for alias in node.names]
            public |= {alias.name for alias in node.names}
    for path in sorted(PACKAGE.rglob("__init__.py")):
        module = ".".join(("palaestra", *path.parent.relative_to(PACKAGE).parts))
        if path.parent == PACKAGE:
            continue
        room = module.split(".")[1]
        for name in _read_all(path):
            if name not in public:
                exports[SHARED_PAGES.get(room, room)].append(f"{module}.{name}")
    return exports


def _read_all(path: Path) -> list[str]:
    """The names of `__all__` that are our own: some packages also export classes of other libraries."""
    names, others = [], set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = list(ast.literal_eval(node.value))
        elif isinstance(node, ast.ImportFrom) and not str(node.module).startswith("palaestra"):
            others |= {alias.asname or alias.name for alias in node.names}
    return [name for name in names if name not in others]


def write_reference(room: str, exports: list[str]) -> str:
    docstring = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))) or ""
    blocks = "\n\n".join(f"::: {name}" for name in sorted(exports, key=lambda name: (name.count("."), name.lower())))
    return f"# {TITLES[room]}\n\n{docstring.partition(chr(10))[0]}\n\n{blocks}\n"


def convert_notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """Convert a notebook with its stored outputs to Markdown and the pictures that it shows."""
    notebook = nbformat.read(path, as_version=4)
    parts, pictures = [], {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        shell = re.fullmatch(r"%%bash[^\n]*\n(.*)|!(.*)", cell.source, re.DOTALL)
        parts.append(f"```bash\n{shell[1] or shell[2]}\n```" if shell else f"```python\n{cell.source}\n```")
        for number, output in enumerate(_join_streams(cell.get("outputs", ()))):
            text, picture = convert_output(output, f"{path.stem}_{cell.id}_{number}")
            parts.append(text)
            pictures |= picture
    return "\n\n".join(parts) + "\n", pictures


def _join_streams(outputs: Any) -> Iterator[Any]:
    text = ""
    for output in outputs:
        if output.output_type == "stream":
            text += output.text
        else:
            yield output
    if text:
        yield nbformat.v4.new_output("stream", text=text)


def convert_output(output: Any, name: str) -> tuple[str, dict[str, bytes]]:
    """Convert one output of a cell: Markdown, and a picture with its file name."""
    if output.output_type == "stream":
        return _fence(output.text), {}
    data = output.data
    if "image/png" in data:
        return f"![{data.get('text/plain') or 'Figure'}]({name}.png)", {
            f"{name}.png": base64.b64decode(data["image/png"])
        }
    if "image/svg+xml" in data:
        return f"![{data.get('text/plain') or 'Figure'}]({name}.svg)", {f"{name}.svg": data["image/svg+xml"].encode()}
    if "text/html" in data:
        return f'<div class="output">{data["text/html"]}</div>', {}
    return _fence(data["text/plain"]), {}


def _fence(text: str) -> str:
    return f"```text\n{_ANSI.sub('', text).rstrip()}\n```\n{{ .output }}"
