"""Drawings as SVG for a page: colors are CSS variables, text stays text, and the same drawing gives the same bytes.

Matplotlib writes colors as numbers. Each color of the page is drawn as a number that nothing else has, which is then
replaced by `var(--name)` in the SVG. So one drawing fits light and dark pages.
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

VARIABLES = (
    "ink", "faint", "grid", "limit", "incident",
    "q1", "q2", "q3", "q4",
    "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8",
)  # fmt: skip
COLORS = {name: f"#fe{number:02x}d{number % 16:01x}" for number, name in enumerate(VARIABLES)}
"""By CSS variable, the color that stands for it while drawing."""
SERIES = [COLORS[f"s{number}"] for number in range(1, 9)]
QUANTILES = [COLORS[f"q{number}"] for number in range(1, 5)]

# One hue from transparent to opaque, for light and dark pages: cells are pixels, which cannot use CSS variables.
HEAT = ListedColormap([(0.16, 0.47, 0.84, (step / 255) ** 0.6) for step in range(256)])

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    # A broker's name may contain `$`.
    "text.parse_math": False,
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": COLORS["faint"],
    "axes.labelcolor": COLORS["faint"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLORS["grid"],
    "grid.linewidth": 0.8,
    "text.color": COLORS["ink"],
    "xtick.color": COLORS["faint"],
    "ytick.color": COLORS["faint"],
    "lines.linewidth": 1.7,
    "legend.frameon": False,
    "legend.fontsize": 10.5,
    "timezone": "UTC",
}
_MAX_NAME = 28
_LEGEND_SIGN, _LEGEND_LINE = 6.5, 45.0
"""Width of a character and of the line beside it in a legend, in points: somewhat more than in the usual fonts."""
WIDE, HALF, NARROW = (11.5, 3.9), (7.8, 3.7), (4.7, 3.5)
"""Sizes in inches of 72 points: across the page, half the page, and on a phone. A single size would scale text to half
or twice its size somewhere."""


class Drawing:
    """A context for one drawing: `with Drawing("latency", WIDE) as drawing: drawing.axes.plot(…)`. After it,
    `drawing.svg` has the SVG text; it is empty before, and after an error.

    Matplotlib's settings are changed in the context and restored after it.

    :param name: identifies the drawing in the page; two sizes of one drawing may have the same name.
    :param size: WIDE, HALF or NARROW.
    """

    def __init__(self, name: str, size: tuple[float, float]) -> None:
        self.svg = ""
        self._name = f"{name}-{'narrow' if size == NARROW else 'wide'}"
        # Identifiers inside the SVG are hashed with this salt: drawings in one page must not share them.
        self._context = rc_context({**_SETTINGS, "svg.hashsalt": self._name})
        self._size = size

    @property
    def narrow(self) -> bool:
        """True if the drawing is for a phone."""
        return self._size == NARROW

    def __enter__(self) -> Drawing:
        """Change Matplotlib's settings, and create `figure` and `axes`."""
        self._context.__enter__()
        self.figure = Figure(figsize=self._size, dpi=72, layout="constrained")
        self.axes: Axes = self.figure.add_subplot()
        return self

    def __exit__(self, *problem: object) -> None:
        """Write the SVG text into `svg` unless there was an error, and restore Matplotlib's settings."""
        try:
            if problem[0] is None:
                self.svg = _to_page_svg(self.figure)
        finally:
            self._context.__exit__(*problem)  # type: ignore[arg-type]

    def legend(self, columns: int) -> None:
        """Draw a legend of the lines with a label above the plot, in at most `columns` columns, and in fewer if the
        labels are too long. Do nothing if no line has a label."""
        handles, labels = self.axes.get_legend_handles_labels()
        if handles:
            width = _LEGEND_LINE + _LEGEND_SIGN * max(map(len, labels))
            columns = max(1, min(columns, int(72 * self._size[0] / width)))
            self.figure.legend(handles, labels, loc="outside upper left", ncols=columns, handlelength=1.4)


def _to_page_svg(figure: Figure) -> str:
    """Return the figure as SVG text for a page: without size, background, metadata, fonts and unused identifiers, and
    with the page's CSS variables as colors."""
    file = io.StringIO()
    FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    # The page sets size and background.
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text)
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text)
    text = re.sub(r'<g id="patch_1">.*?</g>', "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'<g id="patch_2">.*?</g>', "", text, count=1, flags=re.DOTALL)
    for name, number in COLORS.items():
        text = text.replace(number, f"var(--{name})")
    text = re.sub(r"font: ([0-9.]+)px [^;\"]*", r"font-size: \1px", text)
    return _remove_unused_ids(text).strip()


def _remove_unused_ids(text: str) -> str:
    """Return the SVG text without identifiers to which nothing refers: they would occur once per drawing in a page."""
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text))
    return re.sub(r' id="([^"]+)"', lambda match: match[0] if match[1] in used else "", text)


def series_color(number: int) -> str:
    """Return the color of the series with this number, which counts from 0; colors repeat after eight."""
    return SERIES[number % len(SERIES)]


def shorten(name: str) -> str:
    """Return a name for a plot: at most 28 characters, an ellipsis at the end of a longer one, and characters that
    cannot be printed replaced. The tables have the whole name."""
    plain = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in name)
    return plain if len(plain) <= _MAX_NAME else f"{plain[: _MAX_NAME - 1]}…"


def with_gaps(starts: Sequence[str], values: dict[str, float | None]) -> list[float]:
    """Return the value at each of `starts`, NaN if there is none, so that a plotted line has a gap there.

    :param values: values by start; some may be None.
    """
    return [float("nan") if (value := values.get(start)) is None else value for start in starts]
