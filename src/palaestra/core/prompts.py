"""Prompts: Jinja templates in a folder of ours, which a folder of the user's may replace one by one.

    NAME.md.j2           what is said
    NAME.system.md.j2    the system message before it, if there is one

A variable that a template uses and is not given is an error, never nothing.
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
    """The templates, ours and the user's.

    Arguments:
        base: where ours are.
        folder: templates that come before ours, under the same names; what it lacks is ours.

    Raises:
        SettingsError: there is no such folder, or it has a template beside ours that replaces none.
    """

    def __init__(self, base: Path, folder: Path | None = None) -> None:
        self.base, self.folder = base, folder
        self._shared: dict[str, Any] = {}
        if folder is None:
            return
        if not folder.is_dir():
            raise SettingsError(f"there is no folder of prompts {folder}")
        ours = {str(path.relative_to(base)) for path in base.rglob(f"*{SUFFIX}")}
        places = {str(Path(name).parent) for name in ours}
        for path in sorted(folder.rglob(f"*{SUFFIX}")):
            name = str(path.relative_to(folder))
            # A file that begins with _ is a part that other templates include.
            if name not in ours and str(Path(name).parent) in places and not path.name.startswith("_"):
                raise SettingsError(f"the prompt {path} replaces none of ours; {suggest(name, ours)}")

    @cached_property
    def _environment(self) -> Environment:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        folders = [self.folder, self.base] if self.folder is not None else [self.base]
        return Environment(
            loader=FileSystemLoader(folders), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )

    @cached_property
    def _names(self) -> list[str]:
        return sorted(name.removesuffix(SUFFIX) for name in self._environment.list_templates() if name.endswith(SUFFIX))

    def names(self) -> list[str]:
        """The names that can be rendered, for example `"open_ended/write"`."""
        return list(self._names)

    def given(self, **variables: Any) -> Prompts:
        """The same templates, all of which may use these too; what `render` is given comes before them."""
        self._environment  # noqa: B018  (made once, for both: templates are compiled only once)
        other = copy.copy(self)
        other._shared = {**self._shared, **variables}
        return other

    def shared(self, name: str) -> Any:
        """What `given` was given under that name; `None` for nothing."""
        return self._shared.get(name)

    def variables(self, name: str) -> set[str]:
        """The variables that a template needs, those that it asks for whether they are there left out.

        Raises:
            PromptError: as `render`.
        """
        from jinja2 import TemplateError, meta, nodes

        environment = self._environment
        try:
            assert environment.loader is not None
            parsed = environment.parse(environment.loader.get_source(environment, name + SUFFIX)[0])
        except (TemplateError, ValueError, OSError):
            self.render(name)  # Says what is wrong, and where.
            raise
        optional = (
            node.node.name
            for node in parsed.find_all((nodes.Test, nodes.Filter))
            if node.name in ("defined", "undefined", "default", "d") and isinstance(node.node, nodes.Name)
        )
        return meta.find_undeclared_variables(parsed) - set(optional)

    def render(self, name: str, **variables: Any) -> str:
        """The text of a template.

        Raises:
            PromptError: there is no such template, it is no Jinja, or it uses what it was not given; in one line.
        """
        from jinja2 import TemplateError, TemplateNotFound, TemplateSyntaxError, UndefinedError

        variables = {**self._shared, **variables}
        try:
            return self._environment.get_template(name + SUFFIX).render(**variables).strip()
        except TemplateNotFound as error:
            missing = str(error.name or name).removesuffix(SUFFIX)
            raise PromptError(f"there is no prompt '{missing}'; {suggest(missing, self.names())}") from None
        except TemplateSyntaxError as error:
            raise PromptError(f"the prompt {error.filename}, line {error.lineno}: {error.message}") from error
        except UndefinedError as error:
            said = str(error.message)
            variable = re.match(r"'(\w+)' is undefined", said)
            hint = f"; {suggest(variable[1], variables)}" if variable else ""
            raise PromptError(f"the prompt {self._place(name, error)}: {said}{hint}") from error
        except (TemplateError, TypeError, ValueError, ArithmeticError, OSError, RecursionError) as error:
            raise PromptError(f"the prompt {self._place(name, error)}: {type(error).__name__}: {error}") from error

    def messages(self, name: str, **variables: Any) -> tuple[Message, ...]:
        """The messages that ask: the system message where the prompt has one, and what is said."""
        said = Message("user", self.render(name, **variables))
        if f"{name}.system" in self._names:
            return (Message("system", self.render(f"{name}.system", **variables)), said)
        return (said,)

    def _place(self, name: str, error: Exception) -> str:
        """File and line of the template in which an error arose."""
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith(SUFFIX)]
        return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else name
