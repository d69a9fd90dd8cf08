"""Quantities and texts for people, short enough for a line of 80 columns.

Sizes of files are decimal (1 MB is a million bytes), as disks and networks are sold; memory is binary, as it is given.
"""

from __future__ import annotations


def shown_bytes(num_bytes: float) -> str:
    """``812 B``, ``1.4 MB``, ``23 GB``."""
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    digits = 0 if unit == "B" or size >= 99.95 else 1
    return f"{size:,.{digits}f} {unit}"


def shown_memory(num_bytes: int) -> str:
    """``1.5 GiB``, ``320 MiB``."""
    size, unit = (num_bytes / (1 << 30), "GiB") if num_bytes >= 1 << 30 else (num_bytes / (1 << 20), "MiB")
    return f"{size:.3g} {unit}"


def shown_duration(seconds: float) -> str:
    """``0:07``, ``12:30``, ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def cut(text: str, width: int) -> str:
    """At most so many characters of a text; an ellipsis stands for what is left out at its start."""
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def clipped(text: str, width: int) -> str:
    """The first so many characters of a text; an ellipsis follows if that is not all."""
    return text if len(text) <= width else text[:width] + "…"
