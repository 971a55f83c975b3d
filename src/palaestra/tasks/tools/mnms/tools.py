"""The 33 tools of m&m's (Ma et al., 2024): names, arguments and outputs as published, descriptions of our own.

They are planned with and never called: most are models or services.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlannedTool:
    """A tool that a plan may name.

    Arguments:
        kind: `models`, `images` (image processing) or `services` (public APIs).
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kind: str
    description: str

    @property
    def signature(self) -> str:
        return f"{self.name}({', '.join(self.inputs)}) -> {', '.join(self.outputs)}"


_TABLE = (
    ("models", "text generation", "text", "text", "Continues a text."),
    ("models", "text summarization", "text", "text", "Shortens a text to a few sentences."),
    ("models", "text classification", "text", "text", "Names the class of a text, such as its sentiment."),
    ("models", "question answering", "text question", "text", "Answers a question from a text."),
    ("models", "image generation", "text", "image", "Makes an image from a description."),
    ("models", "image captioning", "image", "text", "Describes an image."),
    ("models", "optical character recognition", "image", "text", "Reads the text in an image."),
    ("models", "image classification", "image", "text", "Names what an image shows."),
    ("models", "image editing", "image prompt", "image", "Changes an image as an instruction says."),
    ("models", "object detection", "image", "image objects", "Finds the objects in an image, with their boxes."),
    ("models", "image segmentation", "image", "image objects", "Finds the objects in an image, with their outlines."),
    ("models", "automatic speech recognition", "audio", "text", "Writes down what is said in an audio file."),
    ("models", "visual question answering", "image question", "text", "Answers a question about an image."),
    ("images", "image crop", "image object", "image", "Cuts an image to the box of an object."),
    ("images", "image crop left", "image", "image", "Keeps the left part of an image."),
    ("images", "image crop right", "image", "image", "Keeps the right part of an image."),
    ("images", "image crop top", "image", "image", "Keeps the top part of an image."),
    ("images", "image crop bottom", "image", "image", "Keeps the bottom part of an image."),
    ("images", "background blur", "image object", "image", "Blurs all of an image but an object."),
    ("images", "color pop", "image object", "image", "Leaves colour in an object only, the rest turns grey."),
    ("images", "count", "objects", "number", "Counts objects."),
    ("images", "tag", "image objects", "image", "Marks objects in an image with their names."),
    ("images", "select object", "objects object_name", "object", "Picks the object of a name."),
    ("images", "emoji", "image object emoji", "image", "Puts an emoji over an object in an image."),
    ("services", "get date fact", "date", "text", "A fact about a day of the year."),
    ("services", "get year fact", "year", "text", "A fact about a year."),
    ("services", "get math fact", "number", "text", "A mathematical fact about a number."),
    ("services", "get trivia fact", "number", "text", "A curious fact about a number."),
    ("services", "love calculator", "first_name second_name", "number", "How well two names go together."),
    ("services", "get location", "city", "lon lat", "The coordinates of a city or an address."),
    ("services", "search movie", "movie_title movie_year", "text", "What is known of a movie."),
    ("services", "get weather", "lon lat", "objects", "The weather forecast at coordinates."),
    ("services", "wikipedia simple search", "text", "text", "The summary of the Wikipedia page that fits best."),
)  # fmt: skip

TOOLS: Mapping[str, PlannedTool] = {
    name: PlannedTool(name, tuple(inputs.split()), tuple(outputs.split()), kind, description)
    for kind, name, inputs, outputs, description in _TABLE
}
