"""Numbers as people write them: four significant digits, units that fit, no false precision.

The name under which a number was recorded says its unit (``num_bytes``, ``seconds``, ``step_time_s``), which is how a
page that knows nothing of the script still writes ``31.2 MB`` and ``4 min 12 s``.
"""

import datetime
import math

_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")


def format_number(number: float, *, digits: int = 4) -> str:
    """``12,345`` for integers; floats to `digits` significant digits, scientific only where that is shorter."""
    if isinstance(number, bool):
        return "true" if number else "false"
    if isinstance(number, int):
        return f"{number:,}" if abs(number) < 10**15 else _scientific(number, digits)
    if not math.isfinite(number):
        return {math.inf: "∞", -math.inf: "−∞"}.get(number, "NaN")
    if number == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(number)))
    if not -4 <= magnitude < 15:
        return _scientific(number, digits)
    text = f"{number:,.{max(0, digits - 1 - magnitude)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scientific(number: float, digits: int) -> str:
    try:
        mantissa, exponent = f"{number:.{digits - 1}e}".split("e")
    except OverflowError:  # an integer beyond the floats
        return f"about 2^{abs(int(number)).bit_length()}"
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def format_bytes(size: float) -> str:
    """``31.2 MB``: decimal units, three digits."""
    size = float(size)
    for unit in _SIZES:
        if abs(size) < 999.5 or unit == _SIZES[-1]:
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 99.95 else f"{size:.1f} {unit}"


def format_seconds(seconds: float | None) -> str:
    """``12 ms``, ``3.42 s``, ``4 min 12 s``, ``2 h 05 min``; a dash when there is none."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if abs(seconds) < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if abs(seconds) < 59.95:
        return f"{seconds:.2f} s" if abs(seconds) < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_time(timestamp: float | None) -> str:
    """``2026-03-01 14:05:09 UTC`` from seconds since the epoch."""
    try:
        when = datetime.datetime.fromtimestamp(timestamp, datetime.UTC) if timestamp is not None else None
    except (OverflowError, ValueError, OSError):
        return "unreadable time"
    return f"{when:%Y-%m-%d %H:%M:%S} UTC" if when else "–"


def format_quantity(name: str, number: float) -> str:
    """A recorded number in the unit that its name states; without one, as it is."""
    if isinstance(number, bool) or not _finite(number):
        return format_number(number)
    name = name.rpartition(".")[2]
    if name == "bytes" or name.endswith("_bytes"):
        return format_bytes(number)
    if name in ("seconds", "time_s") or name.endswith(("_seconds", "_time_s")):
        return format_seconds(number)
    return format_number(number)


def format_count(number: int, noun: str) -> str:
    """``1 file``, ``1,200 files``: nouns whose plural adds an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def label(name: str) -> str:
    """``bits_per_byte`` as a heading: ``bits per byte``; the ``num_`` of a count goes without saying."""
    return name.removeprefix("num_").replace("_", " ").strip() or name


def is_number(value: object) -> bool:
    """An int or float, where a bool is neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False
