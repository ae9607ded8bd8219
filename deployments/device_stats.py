"""What the driver says of the GPUs of this process, through NVML."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from app import metrics
from app.metrics import Metric
from app.state.tallies import Labels
from deployments.telemetry import Telemetry

logger = logging.getLogger("ray.serve")

Values = dict[Metric, dict[Labels, float]]


class DeviceStats:
    """Asks each device at most once per period, when somebody wants to know.

    A value that a device does not have (PCIe counters of a virtual one) is left out.

    Args:
        nvml: the module `pynvml`, or what stands for it; initialised.
        visible: CUDA_VISIBLE_DEVICES: indexes or UUIDs; None: all devices.
        clock: monotonic seconds.
    """

    def __init__(
        self, nvml: ModuleType | Any, visible: str | None, period_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._nvml = nvml
        self._period_s = period_s
        self._clock = clock
        self._devices = {str(nvml.nvmlDeviceGetIndex(device)): device for device in self._handles(visible)}
        self._asked_at_s = float("-inf")
        self._values: Values = {}

    def register(self, telemetry: Telemetry) -> None:
        def reading(metric: Metric) -> Callable[[], Mapping[Labels, float]]:
            return lambda: self.values().get(metric, {})

        for metric in metrics.DEVICE_METRICS:
            telemetry.observe(metric, reading(metric))

    def values(self) -> Values:
        """By metric and its label values, the device's index first."""
        now_s = self._clock()
        if now_s - self._asked_at_s >= self._period_s:
            self._asked_at_s = now_s
            self._values = self._ask()  # one assignment: another reader's thread sees all of it or nothing
        return self._values

    def _ask(self) -> Values:
        values: Values = {metric: {} for metric in metrics.DEVICE_METRICS}
        for index, device in self._devices.items():
            for read in (self._read_memory, self._read_utilization, self._read_pcie):
                try:
                    read(index, device, values)
                except self._nvml.NVMLError as error:
                    logger.debug("device %s: %s", index, error)
        return values

    def _handles(self, visible: str | None) -> list[Any]:
        if visible is None:
            return [self._nvml.nvmlDeviceGetHandleByIndex(n) for n in range(self._nvml.nvmlDeviceGetCount())]
        names = [name.strip() for name in visible.split(",") if name.strip()]
        return [
            self._nvml.nvmlDeviceGetHandleByIndex(int(name))
            if name.isdigit()
            else self._nvml.nvmlDeviceGetHandleByUUID(name)
            for name in names
        ]

    def _read_memory(self, index: str, device: Any, values: Values) -> None:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(device)
        values[metrics.DEVICE_MEMORY_USED][index,] = memory.used
        values[metrics.DEVICE_MEMORY_TOTAL][index,] = memory.total

    def _read_utilization(self, index: str, device: Any, values: Values) -> None:
        rates = self._nvml.nvmlDeviceGetUtilizationRates(device)  # per cent
        values[metrics.DEVICE_UTILIZATION][index,] = rates.gpu / 100
        values[metrics.DEVICE_BANDWIDTH][index,] = rates.memory / 100

    def _read_pcie(self, index: str, device: Any, values: Values) -> None:
        """The driver watches 20 ms for each."""
        for direction, counter in (
            ("to_device", self._nvml.NVML_PCIE_UTIL_RX_BYTES),
            ("to_host", self._nvml.NVML_PCIE_UTIL_TX_BYTES),
        ):
            kib_per_s = self._nvml.nvmlDeviceGetPcieThroughput(device, counter)
            values[metrics.DEVICE_PCIE][index, direction] = kib_per_s * 1024


def open_devices(period_s: float) -> DeviceStats | None:
    """Of the devices that this process may use. None: no driver, or no device for it."""
    import pynvml

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        pynvml.nvmlInit()
        return DeviceStats(pynvml, visible, period_s) if visible != "" else None
    except pynvml.NVMLError as error:
        logger.debug("no device metrics: %s", error)
        return None
