"""Prompts as Jinja templates. A user's folder can replace individual templates of the package.

    NAME.md.j2           the user message
    NAME.system.md.j2    the optional system message before it

An undefined variable in a template is an error.
"""

from __future__ import annotations

import copy
import re
import traceback
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import PromptError, SettingsError, suggest
from palaestra.core.records import Message

if TYPE_CHECKING:
    from jinja2 import Environment

SUFFIX = ".md.j2"


class Prompts:
    """A set of prompt templates.

    Arguments:
        base: the folder of the package's templates.
        folder: the user's templates, which take precedence over templates of the same name.

    Raises:
        SettingsError: the folder does not exist, or contains a template with an unknown name.
    """

    def __init__(self, base: Path, folder: Path | None = None) -> None:
        self.base, self.folder = base, folder
        self._bound: dict[str, object] = {}
        if folder is None:
            return
        if not folder.is_dir():
            raise SettingsError(f"the prompt folder {folder} does not exist")
        ours = {str(path.relative_to(base)) for path in base.rglob(f"*{SUFFIX}")}
        places = {str(Path(name).parent) for name in ours}
        for path in sorted(folder.rglob(f"*{SUFFIX}")):
            name = str(path.relative_to(folder))
            # Templates whose names begin with _ are included by others.
            if name not in ours and str(Path(name).parent) in places and not path.name.startswith("_"):
                raise SettingsError(f"{path} does not have the name of a built-in prompt; {suggest(name, ours)}")

    @cached_property
    def _environment(self) -> Environment:
        from jinja2 import FileSystemLoader, StrictUndefined
        from jinja2.sandbox import SandboxedEnvironment

        folders = [self.folder, self.base] if self.folder is not None else [self.base]
        return SandboxedEnvironment(
            loader=FileSystemLoader(folders), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )

    @cached_property
    def _names(self) -> list[str]:
        return sorted(name.removesuffix(SUFFIX) for name in self._environment.list_templates() if name.endswith(SUFFIX))

    def names(self) -> list[str]:
        """Return the names of the prompts, for example `"open_ended/write"`."""
        return list(self._names)

    def bind(self, **variables: object) -> Prompts:
        """Return the same templates with default values for variables. Arguments of `render` take precedence."""
        self._environment  # noqa: B018  (created before the copy, so that templates are compiled only once)
        other = copy.copy(self)
        other._bound = {**self._bound, **variables}
        return other

    def get_bound(self, name: str) -> Any:
        """Return the value of a variable that `bind` has set; `None` if it is not set."""
        return self._bound.get(name)

    def variables(self, name: str) -> set[str]:
        """Return the required variables of a template. Variables that it tests or that have a default are not required.

        Raises:
            PromptError: see `render`.
        """
        from jinja2 import TemplateError, meta, nodes

        environment = self._environment
        try:
            assert environment.loader is not None
            parsed = environment.parse(environment.loader.get_source(environment, name + SUFFIX)[0])
        except (TemplateError, ValueError, OSError):
            self.render(name)  # Raises an error with the line.
            raise
        optional = (
            node.node.name
            for node in parsed.find_all((nodes.Test, nodes.Filter))
            if node.name in ("defined", "undefined", "default", "d") and isinstance(node.node, nodes.Name)
        )
        return meta.find_undeclared_variables(parsed) - set(optional)

    def render(self, name: str, **variables: object) -> str:
        """Render a template to text.

        Raises:
            PromptError: the template does not exist, is not valid Jinja, or uses an undefined variable.
        """
        from jinja2 import TemplateError, TemplateNotFound, TemplateSyntaxError, UndefinedError

        variables = {**self._bound, **variables}
        try:
            return self._environment.get_template(name + SUFFIX).render(**variables).strip()
        except TemplateNotFound as error:
            missing = str(error.name or name).removesuffix(SUFFIX)
            raise PromptError(f"there is no prompt '{missing}'; {suggest(missing, self.names())}") from None
        except TemplateSyntaxError as error:
            raise PromptError(f"the prompt {error.filename}, line {error.lineno}: {error.message}") from error
        except UndefinedError as error:
            message = str(error.message)
            variable = re.match(r"'(\w+)' is undefined", message)
            hint = f"; {suggest(variable[1], variables)}" if variable else ""
            raise PromptError(f"the prompt {self._place(name, error)}: {message}{hint}") from error
        except (TemplateError, TypeError, ValueError, ArithmeticError, OSError, RecursionError) as error:
            raise PromptError(f"the prompt {self._place(name, error)}: {type(error).__name__}: {error}") from error

    def messages(self, name: str, **variables: object) -> tuple[Message, ...]:
        """Render a prompt to messages: the optional system message and the user message."""
        user = Message("user", self.render(name, **variables))
        if f"{name}.system" in self._names:
            return (Message("system", self.render(f"{name}.system", **variables)), user)
        return (user,)

    def _place(self, name: str, error: Exception) -> str:
        """Return the file and line of the template that raised an error."""
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith(SUFFIX)]
        return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else name
