"""The check `picture`: the images of an example are readable and show its scene."""

from __future__ import annotations

import json
from collections.abc import Sequence

from palaestra.core.errors import TaskError
from palaestra.core.records import Example, ImagePart
from palaestra.runs.records import from_json
from palaestra.teachers.quality.base import Context
from palaestra.teachers.quality.records import KEPT, CheckResult, Ruling, drop, not_judged

UNREADABLE, IMPOSSIBLE, DIFFERENT = "an image cannot be read", "the scene cannot be drawn", "the image is not the scene"
BLANK = "the image shows nothing"
NO_IMAGE, NO_SCENE = "no image", "no scene to compare with"
IN_WORDS = "painted from words, which cannot be verified"


class Picture:
    """Drops an example whose image is damaged or differs from its scene (`scene` in the metadata).

    An image that was generated from a text (`description`) cannot be verified. It is dropped if it is damaged or has only
    one colour; otherwise it counts as not judged.
    """

    name = "picture"
    rank = 30
    needed = True

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult]:
        return [_judge(example) for example in examples]


def _judge(example: Example) -> CheckResult:
    described = example.metadata.get("scene")
    contents = [m.content for m in example.messages if not isinstance(m.content, str)]
    urls = [part.url for content in contents for part in content if isinstance(part, ImagePart)]
    if not urls:
        return drop(DIFFERENT, "there is a scene and no image") if described else not_judged(NO_IMAGE)
    from palaestra.engines.images import ImageError, load_image
    from palaestra.tasks.vision.render import agrees
    from palaestra.tasks.vision.scene import Scene

    if any(url.startswith(("http://", "https://")) for url in urls):
        return not_judged("an image is on the web")
    try:
        images = [load_image(url) for url in urls]
    except ImageError as error:
        return drop(UNREADABLE, str(error))
    if described is None and example.metadata.get("description"):
        # The last image belongs to the question; earlier ones belong to worked problems.
        plain = all(low == high for low, high in images[-1].getextrema())  # type: ignore[misc]
        return drop(BLANK) if plain else not_judged(IN_WORDS)
    if described is None:
        return CheckResult(Ruling.KEPT, NO_SCENE)
    try:
        scene = from_json(Scene, json.dumps(described))
        return KEPT if agrees(images[-1], scene) else drop(DIFFERENT)
    except (TaskError, ValueError, TypeError) as error:
        return drop(IMPOSSIBLE, str(error).splitlines()[0])
