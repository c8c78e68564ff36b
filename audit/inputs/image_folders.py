"""Folders of images, a folder for each class: the one file that imports Pillow."""

import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.inputs.files import InputError, open_regular, read_regular

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
LARGEST_IMAGE = 64 << 20  # bytes of the file
MOST_PIXELS = 50_000_000


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """Images by class.

    Args:
        files: Sorted by class, then by name.
        labels: The class of each, 0..classes-1, shape (files,).
        classes: Names of the class folders, sorted.
    """

    files: Sequence[Path]
    labels: NDArray[np.int64]
    classes: Sequence[str]


def read_image_folder(folder: Path) -> ImageFolder:
    """The images under `folder`/<class>/, without opening them.

    Raises:
        InputError: Fewer than two class folders, one whose name is no UTF-8, a class without images, or something else
            in a class folder.
    """
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if len(classes) < 2:
        raise InputError(f"Expected {folder} to hold a folder of images for each of at least two classes.")
    unnamed = next((name for name in classes if not _is_text(name)), None)
    if unnamed is not None:
        raise InputError(f"Expected the folders of classes in {folder} to have names in UTF-8, not {unnamed!r}.")
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        names = sorted(entry for entry in os.listdir(folder / name) if not entry.startswith("."))
        wrong = next((entry for entry in names if Path(entry).suffix.lower() not in SUFFIXES), None)
        if wrong is not None or not names:
            raise InputError(f"Expected {folder / name} to hold images alone, not {wrong or 'nothing'}.")
        files += [folder / name / entry for entry in names]
        labels += [label] * len(names)
    return ImageFolder(files, np.array(labels, np.int64), classes)


def read_image(path: Path) -> NDArray[np.uint8]:
    """The pixels of an image, shape (height, width) or (height, width, 3).

    Raises:
        InputError: Not an image, or too large a one.
    """
    image_module = _pillow()
    content = read_regular(path, limit=LARGEST_IMAGE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with image_module.open(io.BytesIO(content), formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise InputError(f"Expected {path} to have at most {MOST_PIXELS:,} pixels.")
                return np.asarray(image.convert("L" if image.mode in ("1", "L", "I;16") else "RGB"), np.uint8)
    except InputError:
        raise
    except Exception as error:  # whatever a decoder raises over damaged content
        raise InputError(f"Expected {path} to be an image: {type(error).__name__}: {error}.") from error


def image_bytes(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG file of pixels such as `read_image` returns."""
    stream = io.BytesIO()
    _pillow().fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue()


def file_bytes(path: Path) -> bytes:
    """An image file as it is."""
    with open_regular(path) as file:
        return file.read()


def _is_text(name: str) -> bool:
    """Whether the name of a file can be written into a table."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)  # bytes that are no UTF-8


def _pillow() -> Any:
    from PIL import Image

    return Image
