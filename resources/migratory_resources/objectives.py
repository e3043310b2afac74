"""Service level objectives in the sense of OpenSLO: a target over occurrences or over time slices, in a window.

Used by the models of both resources and by the SLA pipeline. Decimals stay exact (`Decimal`, text in files), times are
seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, model_validator

from migratory_resources.fields import DnsLabel, Duration, OneOf, PatternText, Percentage, ResourceModel, not_allowed

Kind = Literal["latency", "delivery", "resume", "publish", "availability"]
KINDS: tuple[Kind, ...] = ("latency", "delivery", "resume", "publish", "availability")
Clock = Literal["same", "estimated", "any"]
Period = Literal["day", "week", "month", "quarter", "year"]
ZONE = r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*"
ZONE_FORM = 'a time zone of the tz database, such as "UTC" or "Europe/Bucharest"'
PERIODS: tuple[Period, ...] = ("day", "week", "month", "quarter", "year")

Threshold = Annotated[float, Duration("1ms", "1h")]


def check_zone(zone: str) -> None:
    """Check that the tz database has a time zone of this name.

    :raises PydanticCustomError: it has none.
    """
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise not_allowed(f"{ZONE_FORM}; there is no time zone {zone!r}") from error


class Slices(ResourceModel):
    """The slices of time that an objective counts instead of events.

    A slice is good when the percentile `percentile` of the latencies in it is at or below `threshold` (type latency),
    or when `share` percent of the publications in it are acknowledged (type availability).
    """

    length: Annotated[float, Duration("1s", "1d")] = Field(
        description="Length of one slice; not longer than the window"
    )
    percentile: Annotated[Decimal, Percentage(open_end=True)] | None = Field(
        default=None, description="Type latency: the percentile of a slice's deliveries that is compared to threshold"
    )
    threshold: Threshold | None = Field(
        default=None, description="Type latency: the highest latency of a good slice at that percentile"
    )
    share: Annotated[Decimal, Percentage()] | None = Field(
        default=None, description="Type availability: percent of a slice's publications that must be good"
    )


class WindowSpec(ResourceModel):
    """The time over which an objective is judged, up to the end of the report: rolling, or a calendar period so far.

    Exactly one of `rolling` and `calendar` is given. A calendar period is the day, week (from Monday), month, quarter
    or year of `zone`. An objective without a window is judged over the report's window.
    """

    rolling: Annotated[float, Duration("1m", "366d")] | None = Field(
        default=None, description="Length of a rolling window that ends with the report"
    )
    calendar: Annotated[Period, OneOf(PERIODS)] | None = Field(
        default=None, description="The day, week, month, quarter or year in which the report ends, so far"
    )
    zone: Annotated[str, PatternText(ZONE, 64, ZONE_FORM)] | None = Field(
        default=None, description="Time zone of a calendar window; UTC when not given"
    )

    @model_validator(mode="after")
    def _has_one_kind(self) -> Self:
        """Return the window. Raise PydanticCustomError unless exactly one kind of window is given, a zone only with a
        calendar window, and the zone exists."""
        if (self.rolling is None) == (self.calendar is None):
            raise not_allowed("either rolling or calendar")
        if self.zone is not None and self.calendar is None:
            raise not_allowed("a zone only with calendar: a rolling window has the same length everywhere")
        check_zone(self.zone or "UTC")
        return self


class Objective(ResourceModel):
    """A service level objective: its target is the percent of the counted events that must be good.

    | type | counts | good when |
    | --- | --- | --- |
    | latency | deliveries (or slices) | within `threshold` (or `slices`) |
    | delivery | expected deliveries | delivered, once and in order |
    | resume | reconnects of clients | resumed within `threshold` |
    | publish | gaps in a publisher's acknowledgements | shorter than `threshold` |
    | availability | publications (or slices) | acknowledged |
    """

    name: Annotated[str, DnsLabel(63)] = Field(description="Name, unique among the objectives")
    type: Annotated[Kind, OneOf(KINDS)] = Field(description="The events that are counted")
    target: Annotated[Decimal, Percentage()] = Field(description="Percent of the counted events that must be good")
    threshold: Threshold | None = Field(default=None, description="The longest duration that is good")
    slices: Slices | None = Field(default=None, description="Counts time slices instead of deliveries or publications")
    window: WindowSpec | None = Field(
        default=None, description="The time that is judged; the report's window when not given"
    )
    clock: Annotated[Clock, OneOf(("same", "estimated", "any"))] | None = Field(
        default=None,
        description="Type latency: the deliveries that are counted. same (the default): sender and receiver share a "
        "clock; estimated: across clocks, by an estimate of their offset; any: both",
    )

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        """Return the objective. Raise PydanticCustomError, with all reasons, if the fields do not fit the objective's
        type."""
        if errors := [*self._type_errors()]:
            raise not_allowed("; ".join(errors))
        return self

    def _type_errors(self) -> Iterator[str]:
        """Yield what is allowed instead, for each way in which the fields do not fit the type. Also yield it for slices
        that are longer than a rolling window."""
        if self.type == "latency":
            if (self.threshold is None) == (self.slices is None):
                yield "either threshold or slices, for an objective of type latency"
        elif self.slices is not None and self.type != "availability":
            yield f"slices only for types latency and availability, not for {self.type}"
        elif (self.threshold is None) == (self.type in ("resume", "publish")):
            needs = "a threshold" if self.threshold is None else "no threshold"
            yield f"{needs} for an objective of type {self.type}"
        if self.clock is not None and self.type != "latency":
            yield f"a clock only for type latency, not for {self.type}"
        if (slices := self.slices) is None:
            return
        if self.type == "latency":
            if slices.percentile is None or slices.threshold is None or slices.share is not None:
                yield "slices with a percentile and a threshold and no share, for type latency"
        elif self.type == "availability" and (
            slices.share is None or slices.percentile is not None or slices.threshold is not None
        ):
            yield "slices with a share, and neither percentile nor threshold, for type availability"
        if self.window is not None and self.window.rolling is not None and slices.length > self.window.rolling:
            yield "slices no longer than the window"

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The durations, in seconds, that histograms must have as exact bounds for this objective: its threshold and
        that of its slices, where there is one."""
        return tuple(bound for bound in (self.threshold, self.slices and self.slices.threshold) if bound)

    @property
    def clocks(self) -> tuple[str, ...]:
        """The values of the label `clock` whose deliveries an objective of type latency counts: that of the field
        `clock`, `same` if it is not given, or `same` and `estimated` for `any`."""
        return ("same", "estimated") if self.clock == "any" else (self.clock or "same",)


def find_contradictions(objectives: Sequence[Objective]) -> Iterator[tuple[int, str, object, str]]:
    """Yield index, field, value and what is allowed instead, for each objective that contradicts an earlier one: it has
    the same name, or another target though all but name and target are equal."""
    names: set[str] = set()
    first_with_promise: dict[tuple[object, ...], Objective] = {}
    for index, objective in enumerate(objectives):
        if objective.name in names:
            yield index, "name", objective.name, "a name that no other objective has"
        names.add(objective.name)
        # Everything but name and target: the same share of the same events can't have two targets.
        promise = (objective.type, objective.threshold, objective.slices, objective.window, objective.clocks)
        other = first_with_promise.setdefault(promise, objective)
        if other.target != objective.target:
            yield (
                index,
                "target",
                str(objective.target),
                f'"{other.target}", the target of objective {other.name!r} for the same events, or other events',
            )


class ContradictoryObjectives(ValueError):
    """Raised when objectives contradict each other. The message names objectives and fields, one line each."""


def check_objectives(objectives: Sequence[Objective]) -> None:
    """Check that no two objectives have the same name, or different targets for the same events.

    :raises ContradictoryObjectives: two or more do; the message has all contradictions.
    """
    errors = [
        f"objective {objectives[index].name!r}: {field} {value!r} is not allowed; allowed: {allowed}"
        for index, field, value, allowed in find_contradictions(objectives)
    ]
    if errors:
        raise ContradictoryObjectives("\n".join(errors))


DEFAULT_OBJECTIVES: tuple[Objective, ...] = (
    Objective(name="fast", type="latency", threshold="250ms", target="99.9"),  # type: ignore[arg-type]
    Objective(name="complete", type="delivery", target="100"),  # type: ignore[arg-type]
    Objective(name="back", type="resume", threshold="5s", target="99"),  # type: ignore[arg-type]
)
"""The objectives of a cluster that has none of its own."""
