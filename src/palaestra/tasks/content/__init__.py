"""What tasks consist of besides code: wordings, parts of programs, tools (JSON), and briefs for language models (text).

`briefs/NAME.txt` is one paragraph; its line breaks count as spaces.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


def read_content(name: str) -> Any:
    """The values of `NAME.json`."""
    return json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def read_brief(name: str) -> str:
    """The paragraph in `briefs/NAME.txt`."""
    return " ".join((_FOLDER / "briefs" / f"{name}.txt").read_text(encoding="utf-8").split())
