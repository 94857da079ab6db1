"""Episodes as films: mp4 where OpenCV is installed, which comes with the extra `atari`, else gif."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from slm_lab.errors import RunError

FRAMES_PER_SECOND = 30
LONGEST = 3000  # frames of one film


def write_film(folder: Path, name: str, frames: list[np.ndarray], frames_per_second: int | None = None) -> Path:
    """The file with these (height, width, 3) pictures, bytes in red, green, blue. Raises RunError if it cannot be."""
    rate = frames_per_second or FRAMES_PER_SECOND
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(ImportError):
            return _write_mp4(folder / f"{name}.mp4", frames, rate)
        return _write_gif(folder / f"{name}.gif", frames, rate)
    except OSError as error:
        raise RunError(f"{folder}: the video cannot be written: {error.strerror or error}") from error


def to_rgb(picture: Any) -> np.ndarray:
    """(height, width, 3) bytes of what an env draws. Raises ValueError where it is no picture of bytes."""
    if not isinstance(picture, np.ndarray):
        raise ValueError(f"it gives {type(picture).__name__}, not an array of bytes")
    if picture.ndim == 2:
        picture = picture[..., None]
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] not in (1, 3, 4) or not picture.size:
        raise ValueError(f"it gives {picture.dtype} of shape {picture.shape}, not bytes of (height, width, 3)")
    return picture.repeat(3, axis=2) if picture.shape[2] == 1 else picture[..., :3]


def _write_mp4(file: Path, frames: list[np.ndarray], rate: int) -> Path:
    import cv2

    height, width = frames[0].shape[:2]
    writer = cv2.VideoWriter(str(file), cv2.VideoWriter.fourcc(*"mp4v"), rate, (width, height))
    if not writer.isOpened():
        raise ImportError("this build of OpenCV writes no mp4")
    for frame in frames:
        writer.write(frame[..., ::-1])  # OpenCV wants blue, green, red
    writer.release()
    return file


def _write_gif(file: Path, frames: list[np.ndarray], rate: int) -> Path:
    from PIL import Image

    pictures = [Image.fromarray(frame) for frame in frames]
    pictures[0].save(file, save_all=True, append_images=pictures[1:], duration=max(20, 1000 // rate), loop=0)
    return file
