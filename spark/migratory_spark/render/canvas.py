"""Drawings to SVG for a page: colours are the page's own variables, text is text, and the same drawing gives the same
bytes.

Matplotlib writes colours as numbers. Here each colour of the page stands for a number that nothing else has, and is put
back as `var(--name)` in the SVG: so one drawing is right in light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

NAMES = (
    "ink", "faint", "grid", "limit", "incident",
    "q1", "q2", "q3", "q4",
    "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8",
)  # fmt: skip
COLOURS = {name: f"#fe{place:02x}d{place % 16:01x}" for place, name in enumerate(NAMES)}
"""The page's variable to the number that stands for it."""
SERIES = [COLOURS[f"s{number}"] for number in range(1, 9)]
QUANTILES = [COLOURS[f"q{number}"] for number in range(1, 5)]

# One hue from nothing to full: right on white and on black. Cells are pixels, which can't follow the page's variables.
HEAT = ListedColormap([(0.16, 0.47, 0.84, (step / 255) ** 0.6) for step in range(256)])

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    # A broker's name is a name, whatever signs are in it.
    "text.parse_math": False,
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": COLOURS["faint"],
    "axes.labelcolor": COLOURS["faint"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.8,
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["faint"],
    "ytick.color": COLOURS["faint"],
    "lines.linewidth": 1.7,
    "legend.frameon": False,
    "legend.fontsize": 10.5,
    "timezone": "UTC",
}
_LONGEST = 28
WIDE, HALF, NARROW = (11.5, 3.9), (7.8, 3.7), (4.7, 3.5)
"""Inches of 72 points: across the page, one of two beside each other, on a telephone. One for all would have letters of
half or twice their size somewhere."""


class Drawing:
    """`with Drawing("latency", WIDE) as drawing: drawing.axes.plot(…)`; then `drawing.svg`."""

    def __init__(self, name: str, size: tuple[float, float]) -> None:
        self.svg = ""
        self._name = f"{name}-{'narrow' if size == NARROW else 'wide'}"
        # Identifiers inside the SVG are hashes of this: several drawings in one page must not share them.
        self._context = rc_context({**_SETTINGS, "svg.hashsalt": self._name})
        self._size = size

    @property
    def narrow(self) -> bool:
        return self._size == NARROW

    def __enter__(self) -> Drawing:
        self._context.__enter__()
        self.figure = Figure(figsize=self._size, dpi=72, layout="constrained")
        self.axes: Axes = self.figure.add_subplot()
        return self

    def __exit__(self, *problem: object) -> None:
        try:
            if problem[0] is None:
                self.svg = _for_the_page(self.figure)
        finally:
            self._context.__exit__(*problem)  # type: ignore[arg-type]

    def legend(self, columns: int) -> None:
        """Above the drawing, where it covers nothing."""
        columns = min(columns, 2 if self.narrow else columns)
        handles, labels = self.axes.get_legend_handles_labels()
        if handles:
            self.figure.legend(handles, labels, loc="outside upper left", ncols=columns, handlelength=1.4)


def _for_the_page(figure: Figure) -> str:
    file = io.StringIO()
    FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    # Sizes come from the page; the background is the page's.
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text)
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text)
    text = re.sub(r'<g id="patch_1">.*?</g>', "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'<g id="patch_2">.*?</g>', "", text, count=1, flags=re.DOTALL)
    for name, number in COLOURS.items():
        text = text.replace(number, f"var(--{name})")
    text = re.sub(r"font: ([0-9.]+)px [^;\"]*", r"font-size: \1px", text)
    return _without_idle_identifiers(text).strip()


def _without_idle_identifiers(text: str) -> str:
    """What nothing refers to would be in the page once per drawing."""
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text))
    return re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)


def series(place: int) -> str:
    return SERIES[place % len(SERIES)]


def short(name: str) -> str:
    """A name for a plot, which a long one, or one of many lines, would leave no room. The tables have it whole."""
    plain = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in name)
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 1]}…"


def broken(starts: Sequence[str], found: dict[str, float | None]) -> list[float]:
    """`found` at each of `starts`, NaN where there is nothing: a line has a hole there, not a bridge."""
    return [float("nan") if (value := found.get(start)) is None else value for start in starts]
