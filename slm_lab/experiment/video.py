"""Episodes as films: mp4 where OpenCV is installed, which comes with the extra `atari`, else gif."""

from __future__ import annotations

import contextlib
from pathlib import Path

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
