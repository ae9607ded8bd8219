"""How many replicas each path may have when all draw on the same devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.requests import RequestPath

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class SharedBudget:
    """What all engines together may hold. A path's own part of it is in proportion to its replicas' shares.

    Args:
        devices: None is no bound.
        replica_devices: what one replica of each path holds.
        lend_shares: a path may grow into what the others leave free, and gives it back as soon as they want it.
    """

    devices: float | None
    replica_devices: Mapping[RequestPath, float]
    lend_shares: bool

    def ceilings(self, wanted: Mapping[RequestPath, int], least: Mapping[RequestPath, int]) -> dict[RequestPath, int]:
        """The most replicas of each path.

        Args:
            wanted: what each path would have without a budget, `least` or more.
            least: what runs in any case. Where that is more than the path's own part, the others' parts are smaller.
        """
        if self.devices is None:
            return dict(wanted)
        own = self._own_parts(self.devices, least)
        claimed = {path: min(own[path], wanted.get(path, 0) * each) for path, each in self.replica_devices.items()}
        free = self.devices - sum(claimed.values())
        return {
            path: int(((claimed[path] + free) if self.lend_shares else own[path]) / each + _ROUNDING)
            for path, each in self.replica_devices.items()
        }

    def _own_parts(self, devices: float, least: Mapping[RequestPath, int]) -> dict[RequestPath, float]:
        whole = sum(self.replica_devices.values())
        floors = {path: least.get(path, 0) * each for path, each in self.replica_devices.items()}
        others = {path: sum(floors.values()) - floor for path, floor in floors.items()}
        return {
            path: max(floors[path], min(devices * each / whole, devices - others[path]))
            for path, each in self.replica_devices.items()
        }
