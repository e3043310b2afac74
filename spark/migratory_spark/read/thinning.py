"""Thinning: leaves out the samples of a rising counter between which a report does not look, where samples are read.

A report adds up increases between the edges of its time grid. While a counter rises, the increases of one interval add
up to the difference between its last sample and the last one before. So of each interval only the last sample is
needed, and each sample that stays says for how many it stands. Samples that tell of anything else stay: falls, values
that are no numbers, repeated times, and both samples around a moment at which a counter may have started again. Uses
numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(slots=True, frozen=True)
class Cells:
    """Intervals of time (cells), of each of which the last sample of a rising counter is enough: cell i ends at
    `edges[i]` (ms since 1970), which belongs to it.

    Some edges are boundaries, moments around which both samples are needed: the last one up to the boundary, and the
    first one after it. `boundaries[i]` is the number of boundaries among the first i edges.
    """

    edges: Ints
    boundaries: Ints

    @classmethod
    def from_moments(cls, edges: npt.ArrayLike, boundaries: npt.ArrayLike) -> Cells:
        """Return the cells between all given moments (ms since 1970, in any order). Moments in `boundaries` become
        boundaries, those in `edges` edges only."""
        hard = np.unique(np.asarray(boundaries, dtype=np.int64))
        every = np.union1d(np.asarray(edges, dtype=np.int64), hard)
        return cls(every, np.concatenate(([0], np.cumsum(np.isin(every, hard)))))


def needed(counts: Ints, times: Ints, values: Floats, cells: Cells) -> npt.NDArray[np.bool_]:
    """Return for each sample of counters whether a report needs it. It needs the first and the last sample of each
    counter, the last one in each cell, and the first one after a boundary. It also needs both samples of a step in
    which the time does not rise, the value falls, or the later value is not finite. Last, it needs negative values and
    the sample after each.

    :param counts: the number of samples of each counter, at least one. The samples of each follow one another in the
        order of time.
    :param times: the time of each sample in ms since 1970.
    """
    rises = (values[1:] >= values[:-1]) & (values[1:] < np.inf) & (times[1:] > times[:-1])
    keep = np.ones(len(times), dtype=bool)
    keep[1:-1] = ~(rises[:-1] & rises[1:])
    cell = np.searchsorted(cells.edges, times, side="left")
    last = np.flatnonzero(cell[1:] != cell[:-1])
    keep[last] = True
    keep[last[cells.boundaries[cell[last]] != cells.boundaries[cell[last + 1]]] + 1] = True
    ends = np.cumsum(counts)
    keep[ends - counts] = keep[ends - 1] = True
    if len(negative := np.flatnonzero(values < 0)):
        keep[negative] = True
        keep[np.minimum(negative + 1, len(keep) - 1)] = True
    return keep
