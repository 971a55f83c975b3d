"""Render scenes deterministically.

Everything is drawn without anti-aliasing at four times the size and averaged over blocks, so smooth edges are integer
arithmetic and the same on every machine.
"""

from __future__ import annotations

import base64
import io
import math
from importlib.util import find_spec
from typing import TYPE_CHECKING

from palaestra.core.errors import MissingExtraError
from palaestra.tasks.vision.scene import (
    COLOURS,
    PIE_PARTS,
    RADII,
    SIDE,
    TOP_VALUE,
    Chart,
    Item,
    Scene,
    check_scene,
)

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

FINE = 4
"""Factor by which the drawing is larger than the image."""
PAPER = (250, 250, 250)
GRID_LINE = (205, 205, 205)
INK = (90, 90, 90)
LEFT, FLOOR, STEP = 6, 58, 6
"""The origin of a bar or line chart, and the pixels of one unit of value."""


def need_pillow() -> None:
    """Raise with the install command if Pillow is missing."""
    if find_spec("PIL") is None:
        raise MissingExtraError("pillow", "vision", "drawing and reading images")


def render(scene: Scene) -> Image.Image:
    """Draw `scene`: 64 x 64 pixels, RGB.

    Raises:
        TaskError: the scene is empty or invalid.

    Example:
        >>> picture = render(Scene((Item("square", "red", "large", 24, 24),)))
        >>> picture.size, picture.getpixel((24, 24)) == COLOURS["red"]
        ((64, 64), True)
    """
    need_pillow()
    from PIL import Image, ImageDraw

    check_scene(scene)
    canvas = Image.new("RGB", (SIDE * FINE, SIDE * FINE), PAPER)
    pen = ImageDraw.Draw(canvas)
    for item in scene.items:
        _draw_item(pen, item)
    if scene.chart is not None:
        {"bar": _draw_bars, "line": _draw_line, "pie": _draw_pie}[scene.chart.kind](pen, scene.chart)
    return canvas.reduce(FINE)


def png_url(image: Image.Image) -> str:
    """`image` as a `data:` URL."""
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=9)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def agrees(image: Image.Image, scene: Scene, tolerance: int = 8) -> bool:
    """Whether `image` shows `scene`: the same size, and no pixel off by more than `tolerance` of 255."""
    from PIL import ImageChops

    drawn = render(scene)
    if image.size != drawn.size:
        return False
    extremes = ImageChops.difference(image.convert("RGB"), drawn).getextrema()
    return all(high <= tolerance for _, high in extremes)  # type: ignore[misc]


def _draw_item(pen: ImageDraw.ImageDraw, item: Item) -> None:
    x, y, r = item.x * FINE, item.y * FINE, RADII[item.size] * FINE
    fill = COLOURS[item.colour]
    if item.shape == "circle":
        pen.ellipse((x - r, y - r, x + r - 1, y + r - 1), fill=fill)
    elif item.shape == "square":
        s = r * 0.86  # About the area of the circle, so that the shape does not affect the size.
        pen.rectangle((x - s, y - s, x + s - 1, y + s - 1), fill=fill)
    elif item.shape == "cross":
        arm = r * 0.36
        pen.rectangle((x - r, y - arm, x + r - 1, y + arm - 1), fill=fill)
        pen.rectangle((x - arm, y - r, x + arm - 1, y + r - 1), fill=fill)
    else:
        pen.polygon(_corners(item.shape, x, y, r), fill=fill)


def _corners(shape: str, x: float, y: float, r: float) -> list[tuple[float, float]]:
    if shape == "triangle":
        return [(x, y - r), (x + r, y + 0.86 * r), (x - r, y + 0.86 * r)]
    if shape == "diamond":
        return [(x, y - r), (x + 0.8 * r, y), (x, y + r), (x - 0.8 * r, y)]
    spikes = 5
    return [
        (x + d * math.sin(k * math.pi / spikes), y - d * math.cos(k * math.pi / spikes))
        for k in range(2 * spikes)
        for d in [r if k % 2 == 0 else 0.45 * r]
    ]


def _axes(pen: ImageDraw.ImageDraw) -> None:
    right = (SIDE - 3) * FINE
    for value in range(1, TOP_VALUE + 1):
        y = (FLOOR - value * STEP) * FINE
        pen.rectangle((LEFT * FINE, y, right, y + FINE - 1), fill=GRID_LINE)
    pen.rectangle((LEFT * FINE, FLOOR * FINE, right, (FLOOR + 1) * FINE - 1), fill=INK)
    top = (FLOOR - TOP_VALUE * STEP - 2) * FINE
    pen.rectangle(((LEFT - 1) * FINE, top, LEFT * FINE - 1, (FLOOR + 1) * FINE - 1), fill=INK)


def _draw_bars(pen: ImageDraw.ImageDraw, chart: Chart) -> None:
    _axes(pen)
    room = SIDE - 4 - LEFT
    pitch = room / len(chart.values)
    wide = min(10.0, pitch * 0.64)
    for index, (value, colour) in enumerate(zip(chart.values, chart.colours, strict=True)):
        middle = LEFT + pitch * (index + 0.5)
        left, right = round((middle - wide / 2) * FINE), round((middle + wide / 2) * FINE)
        pen.rectangle((left, (FLOOR - value * STEP) * FINE, right - 1, FLOOR * FINE - 1), fill=COLOURS[colour])


def _draw_line(pen: ImageDraw.ImageDraw, chart: Chart) -> None:
    _axes(pen)
    fill = COLOURS[chart.colours[0]]
    pitch = (SIDE - 14 - LEFT) / (len(chart.values) - 1)
    points = [
        (round((LEFT + 5 + pitch * index) * FINE), (FLOOR - value * STEP) * FINE + FINE // 2)
        for index, value in enumerate(chart.values)
    ]
    pen.line(points, fill=fill, width=2 * FINE, joint="curve")
    r = 2.5 * FINE
    for x, y in points:
        pen.ellipse((x - r, y - r, x + r, y + r), fill=fill)


def _draw_pie(pen: ImageDraw.ImageDraw, chart: Chart) -> None:
    box = (6 * FINE, 6 * FINE, (SIDE - 6) * FINE - 1, (SIDE - 6) * FINE - 1)
    start = 0
    for value, colour in zip(chart.values, chart.colours, strict=True):
        angles = (-90 + 360 * start / PIE_PARTS, -90 + 360 * (start + value) / PIE_PARTS)
        pen.pieslice(box, *angles, fill=COLOURS[colour], outline=PAPER, width=FINE)
        start += value
