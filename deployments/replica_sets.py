"""From Serve's routers to the rest of their process: which replicas each deployment has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

ReplicaSetListener = Callable[[Mapping[str, dict[str, Any]]], None]


class ReplicaSets:
    """The replicas of each engine deployment, as Serve tells the routers of this process: Serve builds those itself and
    gives them nothing of ours.
    """

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, dict[str, Any]]] = {}
        self._listeners: dict[str, ReplicaSetListener] = {}

    def listen(self, deployment: str, listener: ReplicaSetListener) -> None:
        """Have `listener` called with unique id -> metadata, now if the set is known and whenever it is told again.

        It is called in the router's thread.
        """
        self._listeners[deployment] = listener
        if deployment in self._known:
            listener(self._known[deployment])

    def tell(self, deployment: str, replicas: Mapping[str, dict[str, Any]]) -> None:
        self._known[deployment] = replicas
        if deployment in self._listeners:
            self._listeners[deployment](replicas)


IN_THIS_PROCESS = ReplicaSets()
