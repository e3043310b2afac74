"""Which edges want to hear of a topic: a publication crosses to those only where edges are in processes of their own.

An edge asks with its `Attach`, from before the logic has answered it: whatever comes behind that answer is needed. It
leaves with `Detach`. Both must be told here in the order in which the edge gave them out.
"""

from __future__ import annotations


class Interest:
    def __init__(self) -> None:
        self._edges: dict[str, tuple[int, ...]] = {}
        self._alone: dict[int, tuple[int, ...]] = {}  # one tuple for all topics that only this edge has

    @property
    def topics(self) -> int:
        """Topics that somebody wants."""
        return len(self._edges)

    def ask(self, edge: int, topic: str) -> None:
        edges = self._edges.get(topic)
        if edges is None:
            self._edges[topic] = self._alone.setdefault(edge, (edge,))
        elif edge not in edges:
            self._edges[topic] = (*edges, edge)

    def leave(self, edge: int, topic: str) -> None:
        edges = self._edges.get(topic)
        if edges is None or edge not in edges:
            return
        if len(edges) == 1:
            del self._edges[topic]
        else:
            self._edges[topic] = tuple(other for other in edges if other != edge)

    def gone(self, edge: int) -> None:
        """The edge wants nothing any more."""
        for topic in [topic for topic, edges in self._edges.items() if edge in edges]:
            self.leave(edge, topic)
        self._alone.pop(edge, None)

    def edges(self, topic: str) -> tuple[int, ...]:
        """Those that want the topic."""
        return self._edges.get(topic, ())
