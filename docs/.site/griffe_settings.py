"""Read the help and the default of fields that `palaestra.core.settings.setting` defines, for the reference."""

from __future__ import annotations

import ast
from typing import Any

import griffe


class Settings(griffe.Extension):
    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **kwargs: Any) -> None:
        call = getattr(node, "value", None)
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "setting" and len(call.args) == 2):
            return
        default, text = call.args
        if isinstance(text, ast.Constant):
            attr.value = ast.unparse(default)
            attr.docstring = griffe.Docstring(str(text.value), parent=attr)
