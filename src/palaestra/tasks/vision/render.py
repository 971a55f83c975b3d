"""Render scenes deterministically.

Everything is drawn without anti-aliasing at four times the size and averaged over blocks, so smooth edges are integer
arithmetic and the same on every machine.
"""

from __future__ import annotations

import base64
import io
import math
import mimetypes
from importlib.util import find_spec
from typing import TYPE_CHECKING

from palaestra.core.errors import MissingExtraError
from palaestra.tasks.vision.scene import COLORS, PIE_PARTS, RADII, SIDE, TOP_VALUE, Chart, Item, Scene, check_scene

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

_FINE = 4
"""Factor by which the drawing is larger than the image."""
PAPER = (250, 250, 250)
_GRID_LINE = (205, 205, 205)
_INK = (90, 90, 90)
_LEFT, FLOOR, STEP = 6, 58, 6
"""The origin of a bar or line chart, and the pixels of one unit of value."""


def need_pillow() -> None:
    """Raise with the install command if Pillow is missing."""
    if find_spec("PIL") is None:
        raise MissingExtraError("pillow", "vision", "drawing and reading images")


def render_scene(scene: Scene) -> Image.Image:
    """Draw `scene`: 64 x 64 pixels, RGB.

    Raises:
        TaskError: the scene is empty or invalid.

    Example:
        >>> picture = render_scene(Scene((Item("square", "red", "large", 24, 24),)))
        >>> picture.size, picture.getpixel((24, 24)) == COLORS["red"]
        ((64, 64), True)
    """
    need_pillow()
    from PIL import Image, ImageDraw

    check_scene(scene)
    canvas = Image.new("RGB", (SIDE * _FINE, SIDE * _FINE), PAPER)
    pen = ImageDraw.Draw(canvas)
    for item in scene.items:
        _draw_item(pen, item)
    if scene.chart is not None:
        {"bar": _draw_bars, "line": _draw_line, "pie": _draw_pie}[scene.chart.kind](pen, scene.chart)
    return canvas.reduce(_FINE)


def encode_png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=9)
    return file.getvalue()


def png_url(image: Image.Image) -> str:
    """`image` as a `data:` URL."""
    return data_url(encode_png(image))


def data_url(content: bytes, name: str = "") -> str:
    """The bytes of an image file as a `data:` URL. The type follows from the first bytes, or from the name of the file."""
    begins = {b"\x89PNG": "image/png", b"\xff\xd8": "image/jpeg", b"GIF8": "image/gif"}
    kind = next((kind for magic, kind in begins.items() if content.startswith(magic)), "")
    kind = kind or mimetypes.guess_type(name)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def agrees(image: Image.Image, scene: Scene, tolerance: int = 8) -> bool:
    """Whether `image` shows `scene`: the same size, and no pixel off by more than `tolerance` of 255."""
    from PIL import ImageChops

    drawn = render_scene(scene)
    if image.size != drawn.size:
        return False
    extremes = ImageChops.difference(image.convert("RGB"), drawn).getextrema()
    return all(high <= tolerance for _, high in extremes)  # type: ignore[misc]


def _draw_item(pen: ImageDraw.ImageDraw, item: Item) -> None:
    x, y, r = item.x * _FINE, item.y * _FINE, RADII[item.size] * _FINE
    fill = COLORS[item.colour]
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
    right = (SIDE - 3) * _FINE
    for value in range(1, TOP_VALUE + 1):
        y = (FLOOR - value * STEP) * _FINE
        pen.rectangle((_LEFT * _FINE, y, right, y + _FINE - 1), fill=_GRID_LINE)
    pen.rectangle((_LEFT * _FINE, FLOOR * _FINE, right, (FLOOR + 1) * _FINE - 1), fill=_INK)
    top = (FLOOR - TOP_VALUE * STEP - 2) * _FINE
    pen.rectangle(((_LEFT - 1) * _FINE, top, _LEFT * _FINE - 1, (FLOOR + 1) * _FINE - 1), fill=_INK)


def _draw_bars(pen: ImageDraw.ImageDraw, chart: Chart) -> None:
    _axes(pen)
    room = SIDE - 4 - _LEFT
    pitch = room / len(chart.values)
    wide = min(10.0, pitch * 0.64)
    for index, (value, color) in enumerate(zip(chart.values, chart.colours, strict=True)):
        middle = _LEFT + pitch * (index + 0.5)
        left, right = round((middle - wide / 2) * _FINE), round((middle + wide / 2) * _FINE)
        pen.rectangle((left, (FLOOR - value * STEP) * _FINE, right - 1, FLOOR * _FINE - 1), fill=COLORS[color])


def _draw_line(pen: ImageDraw.ImageDraw, chart: Chart) -> None:
    _axes(pen)
    fill = COLORS[chart.colours[0]]
    pitch = (SIDE - 14 - _LEFT) / (len(chart.values) - 1)
    points = [
        (round((_LEFT + 5 + pitch * index) * _FINE), (FLOOR - value * STEP) * _FINE + _FINE // 2)
        for index, value in enumerate(chart.values)
    ]
    pen.line(points, fill=fill, width=2 * _FINE, joint="curve")
    r = 2.5 * _FINE
    for x, y in points:
        pen.ellipse((x - r, y - r, x + r, y + r), fill=fill)


def _draw_pie(pen: ImageDraw.ImageDraw, chart: Chart) -> None:
    box = (6 * _FINE, 6 * _FINE, (SIDE - 6) * _FINE - 1, (SIDE - 6) * _FINE - 1)
    start = 0
    for value, color in zip(chart.values, chart.colours, strict=True):
        angles = (-90 + 360 * start / PIE_PARTS, -90 + 360 * (start + value) / PIE_PARTS)
        pen.pieslice(box, *angles, fill=COLORS[color], outline=PAPER, width=_FINE)
        start += value
