"""Formatting of figures for people."""

from collections.abc import Mapping
from datetime import datetime

_UNITS = ("B", "kB", "MB", "GB", "TB")
#: Integers below this are exact as floats.
LARGEST_EXACT = 1e15


def size(num_bytes: float) -> str:
    """Return bytes in decimal units, the usual ones for links: `12.3 MB`."""
    for unit in _UNITS:
        if num_bytes < 1000 or unit == _UNITS[-1]:
            break
        num_bytes /= 1000
    return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"


def share(fraction: float | None) -> str:
    """Return a share in per cent with two digits, or as an integer if that has more: `0.93%`, `102%`."""
    if fraction is None:
        return "-"
    percent = 100 * fraction
    return f"{percent:.0f}%" if abs(percent) >= 9.95 else f"{percent:.2g}%"


def number(value: float | None, digits: int = 3) -> str:
    """Return `value` with that many significant digits; integers stay whole, and None becomes a dash."""
    if value is None:
        return "-"
    return str(int(value)) if float(value).is_integer() and abs(value) < LARGEST_EXACT else f"{value:.{digits}g}"


def settings(values: Mapping[str, float | str]) -> str:
    """Return named values in words: `momentum 0.95, batch size 64`; empty if there are none."""
    texts = {
        name: str(value).lower() if isinstance(value, bool | str) else number(value) for name, value in values.items()
    }
    return ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in texts.items())


def loss(value: float | None) -> str:
    """Return a loss or metric with four decimals, or with four digits if it is very small or large: `3.2e-05`."""
    if value is None:
        return "-"
    size = abs(value)
    if size == 0 or 1e-3 <= size < 10:
        return f"{value:.4f}"
    return f"{value:.0f}" if 1e4 <= size < 1e7 else f"{value:.4g}"


def moment(at: datetime, form: str = "%Y-%m-%d %H:%M") -> str:
    """Return a moment in this machine's time zone, with the zone's name: `2026-01-31 09:30 CET`."""
    return f"{at.astimezone():{form} %Z}"


def age(seconds: float) -> str:
    """Return an age in its largest unit: `40 s`, `12 min`, `3 h`, `5 d`."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
