"""Reads the HTML pages of reports: their words, elements, links and pictures."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from palaestra.report import write_report

VOID = {"meta", "br", "hr", "img", "input", "link"}


class HtmlPage(HTMLParser):
    """The elements of a page with their attributes; fails where tags do not balance."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.markup = markup
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(markup)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.words.append(" ")
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()
        self.words.append(" ")

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        """The text of the page with single spaces."""
        return re.sub(r"\s+", " ", "".join(self.words))

    @property
    def links(self) -> list[str]:
        """The addresses of other pages; links within the page are left out."""
        links = (str(attributes["href"]) for attributes in self.with_attribute("href"))
        return [link for link in links if not link.startswith("#")]

    @property
    def charts(self) -> list[str]:
        """What a screen reader says of each picture."""
        return [attributes["aria-label"] or "" for tag, attributes in self.elements if tag == "svg"]

    def with_attribute(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.elements if name in attributes]

    def chart(self, start: str) -> str:
        (label,) = [label for label in self.charts if label.startswith(start)]
        return label

    def section(self, name: str) -> str:
        """The text of one section."""
        section = re.search(rf'<section id="{name}">(.*?)</section>', self.markup, re.S)
        return HtmlPage(section[1]).text if section else ""


def read_report(folder: Path) -> HtmlPage:
    """Write the report of a run and read it."""
    return HtmlPage(write_report(folder).read_text(encoding="utf-8"))
