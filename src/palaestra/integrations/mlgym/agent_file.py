"""The agent files of an MLGym checkout (`configs/agents/NAME.yaml`), converted to our settings."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath
from string import Formatter

from pydantic import Field

from palaestra.core.errors import SettingsError, TaskError
from palaestra.core.prompts import SUFFIX
from palaestra.core.records import Json
from palaestra.core.tables import load_table
from palaestra.integrations.research_tasks import ForeignFile
from palaestra.models.registry import cache_folder
from palaestra.research.tasks.task import read_yaml
from palaestra.runs.files import storage_errors

_TEMPLATES, _PARSERS, _COMMANDS, _VARIABLES = (
    load_table(__file__, "names")[name] for name in ("templates", "parsers", "commands", "variables")
)


class Tools(ForeignFile):
    state_command: Json = Field(default_factory=dict)
    command_files: tuple[str, ...] = ()
    env_variables: Json = Field(default_factory=dict)


class AgentFile(ForeignFile):
    """The fields of an agent file that have a counterpart here. Values of its own state command are shown as `n/a`."""

    system_template: str
    task_template: str
    next_step_template: str
    next_step_no_output_template: str = ""
    strategy_template: str = ""
    demonstration_template: str = ""
    format_error_template: str = ""
    output_parser: str = "MLGymThoughtActionParser"
    history_processor: str = "DefaultHistoryProcessor"
    tools: Tools = Tools()


def agent_settings(path: str | Path) -> Json:
    """Return the settings of `palaestra research` for an agent file: parser, history, commands, strategy, prompts.

    The templates are converted and written to a folder in the user's cache.

    Raises:
        SettingsError: the file cannot be read, or names something without a counterpart here.
    """
    try:
        file = read_yaml(AgentFile, Path(path))
    except TaskError as error:
        raise SettingsError(str(error)) from error
    if file.output_parser not in _PARSERS:
        raise SettingsError(f"{path}: unknown output_parser '{file.output_parser}'; known are {', '.join(_PARSERS)}")
    commands = [command for name in file.tools.command_files for command in _COMMANDS.get(PurePosixPath(name).stem, ())]
    return {
        "parser": _PARSERS[file.output_parser],
        "history": _history(path, file.history_processor),
        "commands": ("bash", *dict.fromkeys(commands)) if commands else (),
        "strategy": bool(file.strategy_template),
        "prompts": str(_write_templates(path, file)),
    }


def _history(path: str | Path, name: str) -> tuple[str, ...]:
    if name in ("", "DefaultHistoryProcessor"):
        return ()
    if name == "ClosedWindowHistoryProcessor":
        return ("closed_windows",)
    if count := re.fullmatch(r"Last(\d+)Observations", name):
        return (f"last:{count[1]}",)
    raise SettingsError(f"{path}: unknown history_processor '{name}'")


def _write_templates(path: str | Path, file: AgentFile) -> Path:
    state_names = re.findall(r"\w+", str(file.tools.state_command.get("code", "")))
    constants = {**dict.fromkeys(set(state_names) - _VARIABLES.keys(), "n/a"), **file.tools.env_variables}
    given = {field: text for field in _TEMPLATES if (text := getattr(file, field))}
    templates = {_TEMPLATES[field]: _to_jinja(text, constants, f"{path}, {field}") for field, text in given.items()}
    digest = hashlib.blake2b(repr(sorted(templates.items())).encode(), digest_size=8).hexdigest()
    folder = cache_folder() / "research" / f"agent-{digest}"
    with storage_errors(folder, "storing the templates of an agent file"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in templates.items():
            (folder / f"{name}{SUFFIX}").write_text(text, encoding="utf-8")
    return folder


def _to_jinja(template: str, constants: Json, where: str) -> str:
    """Convert a `str.format` template to Jinja.

    >>> _to_jinja("{WINDOW} lines, {{x}}: {observation}", {"WINDOW": 100}, "a file")
    '100 lines, {x}: {{ observation }}'
    """
    jinja = literal = ""
    try:
        parts = [*Formatter().parse(template), ("", None, None, None)]
    except ValueError as error:
        raise SettingsError(f"{where}: {error}") from error
    for text, name, _, _ in parts:
        literal += text
        if name is None and text:  # An escaped brace ends a part; the text continues.
            continue
        jinja += re.sub(r"\{(?=[{%#])", "{{ '{' }}", literal)  # Braces with a meaning in Jinja.
        literal = ""
        if name is not None and name in constants:
            jinja += str(constants[name])
        elif name in _VARIABLES:
            jinja += f"{{{{ {_VARIABLES[name]} }}}}"
        elif name is not None:
            raise SettingsError(f"{where}: unknown variable '{name}'; known are {', '.join(_VARIABLES)}")
    return jinja
