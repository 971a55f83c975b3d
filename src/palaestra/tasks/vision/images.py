"""The images of data sets as `data:` URLs."""

from __future__ import annotations

import base64
import mimetypes
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.core.errors import TaskError
from palaestra.tasks.sources import StoredImage, abbreviate


class Images:
    """The images of a data set: files of its folder by name (below it, below `images/`, in `images.zip`), or stored in its rows.

    Arguments:
        folder: `None` if the data set is on the hub.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._zip: zipfile.ZipFile | None = None

    def url(self, held: Any, where: str) -> str:
        """The image of a row as a `data:` URL with the unchanged bytes of the file.

        Arguments:
            held: the name of a file in the folder, or the stored value of a table.
            where: the name of the row for error messages.

        Raises:
            TaskError: the image does not exist or cannot be read.
        """
        if isinstance(held, str) and self.folder is not None:
            return self._find_by_name(self.folder, held)
        value = held.read() if isinstance(held, StoredImage) else held
        try:
            if isinstance(value, Mapping) and (value.get("bytes") or value.get("path")):
                name = str(value.get("path") or "")
                return data_url(value.get("bytes") or Path(name).read_bytes(), name)
        except OSError as error:
            raise TaskError(f"{where}: its image cannot be read: {error}") from error
        raise TaskError(f"{where}: expected an image; got {abbreviate(value)}")

    def _find_by_name(self, folder: Path, name: str) -> str:
        archive = folder / "images.zip"
        try:
            for file in (folder / name, folder / "images" / name):
                if file.is_file():
                    return data_url(file.read_bytes(), name)
            if self._zip is None and archive.exists():
                self._zip = zipfile.ZipFile(archive)
            if self._zip is not None:
                return data_url(self._zip.read(name), name)
        except KeyError:
            pass
        except (zipfile.BadZipFile, zlib.error, OSError) as error:
            raise TaskError(f"cannot read {name} of {folder}: {error}") from error
        raise TaskError(f"there is no image {name} in {folder}, its images/ or its images.zip")


def data_url(content: bytes, name: str = "") -> str:
    """Bytes of an image file as a `data:` address, with the type that they begin with, or that `name` tells."""
    begins = {b"\x89PNG": "image/png", b"\xff\xd8": "image/jpeg", b"GIF8": "image/gif"}
    kind = next((kind for magic, kind in begins.items() if content.startswith(magic)), "")
    kind = kind or mimetypes.guess_type(name)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
