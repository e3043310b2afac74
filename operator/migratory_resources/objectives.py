"""Service level objectives, as OpenSLO thinks of them: a target over occurrences or over slices of time.

Shared by the cluster resource and the SLA pipeline. Decimals stay exact (`Decimal`, text in files), times are seconds.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from migratory_resources.fields import Duration, Model, Name, Percentage, Words, not_allowed

Kind = Literal["latency", "delivery", "resume", "publish", "availability"]
KINDS: tuple[Kind, ...] = ("latency", "delivery", "resume", "publish", "availability")

Threshold = Annotated[float, Duration("1ms", "1h")]


class Slices(Model):
    """Counts slices of time instead of deliveries: a slice is good when its `percentile` is at or below `threshold`."""

    length: Annotated[float, Duration("1s", "1d")] = Field(description="Of one slice; the window or less")
    percentile: Annotated[Decimal, Percentage(open_end=True)] = Field(description="Of a slice's deliveries")
    threshold: Threshold = Field(description="The longest latency of a good slice at that percentile")


class Objective(Model):
    """One promise and its target, in percent of what its type counts.

    | type | counts | good when |
    | --- | --- | --- |
    | latency | deliveries (or slices) | within `threshold` (or `slices`) |
    | delivery | expected deliveries | delivered, once and in order |
    | resume | reconnects of clients | resumed within `threshold` |
    | publish | gaps in a publisher's acknowledgements | shorter than `threshold` |
    | availability | publications | acknowledged |
    """

    name: Annotated[str, Name(63)] = Field(description="Unlike that of any other objective")
    type: Annotated[Kind, Words(KINDS)] = Field(description="What is counted")
    target: Annotated[Decimal, Percentage()] = Field(description="Percent of what is counted that must be good")
    threshold: Threshold | None = Field(default=None, description="The longest time that is good")
    slices: Slices | None = Field(default=None, description="Counts slices of time instead of deliveries")

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if self.type == "latency":
            if (self.threshold is None) == (self.slices is None):
                raise not_allowed("either threshold or slices, for an objective of type latency")
        elif self.slices is not None:
            raise not_allowed(f"slices only for type latency, not for {self.type}")
        elif (self.threshold is None) == (self.type in ("resume", "publish")):
            needs = "a threshold" if self.threshold is None else "no threshold"
            raise not_allowed(f"{needs} for an objective of type {self.type}")
        return self

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The durations that histograms must have as exact bounds for this objective, in seconds."""
        return tuple(bound for bound in (self.threshold, self.slices and self.slices.threshold) if bound)


DEFAULT_OBJECTIVES: tuple[Objective, ...] = (
    Objective(name="fast", type="latency", threshold="250ms", target="99.9"),  # type: ignore[arg-type]
    Objective(name="complete", type="delivery", target="100"),  # type: ignore[arg-type]
    Objective(name="back", type="resume", threshold="5s", target="99"),  # type: ignore[arg-type]
)
"""What a cluster without objectives of its own is judged by."""
