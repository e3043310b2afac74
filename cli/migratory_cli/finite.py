"""Numbers on the command line: click takes "nan" for a number of any range, and "inf" where there is no upper end."""

from __future__ import annotations

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """Of a range, and a number that can be counted with."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is no number to count with.", param, ctx)
        return found
