"""What NVML says becomes metrics. A stand-in for the module `pynvml`: there has been no GPU to run this on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app import metrics
from deployments.device_stats import DeviceStats, open_devices
from tests.fakes import FakeClock


class FakeNvml:
    """Two devices with handles of their own; counts how often one was asked."""

    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1

    class NVMLError(Exception): ...

    def __init__(self) -> None:
        self.asked = 0
        self.without_pcie = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's names
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802 - as NVML has it
        return f"handle-{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802 - as NVML has it
        assert uuid == "GPU-b"
        return "handle-1"

    def nvmlDeviceGetIndex(self, handle: str) -> int:  # noqa: N802 - as NVML has it
        return int(handle[-1])

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802 - as NVML has it
        self.asked += 1
        return SimpleNamespace(used=10, total=40)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802 - as NVML has it
        return SimpleNamespace(gpu=75, memory=50)

    def nvmlDeviceGetPcieThroughput(self, handle: str, counter: int) -> int:  # noqa: N802 - as NVML has it
        if self.without_pcie:
            raise self.NVMLError("not supported")
        return 3 if counter == self.NVML_PCIE_UTIL_TX_BYTES else 5


def test_ratios_and_bytes() -> None:
    values = DeviceStats(FakeNvml(), "0", 5, FakeClock()).values()
    assert values == {
        metrics.DEVICE_MEMORY_USED: {("0",): 10},
        metrics.DEVICE_MEMORY_TOTAL: {("0",): 40},
        metrics.DEVICE_UTILIZATION: {("0",): 0.75},
        metrics.DEVICE_BANDWIDTH: {("0",): 0.5},
        metrics.DEVICE_PCIE: {("0", "to_device"): 5 * 1024, ("0", "to_host"): 3 * 1024},
    }


@pytest.mark.parametrize(
    ("visible", "devices"), [(None, {"0", "1"}), ("1", {"1"}), ("0,1", {"0", "1"}), ("GPU-b", {"1"})]
)
def test_only_devices_of_this_process_are_told(visible: str | None, devices: set[str]) -> None:
    values = DeviceStats(FakeNvml(), visible, 5, FakeClock()).values()
    assert {index for (index,) in values[metrics.DEVICE_UTILIZATION]} == devices


def test_a_device_is_asked_once_per_period_however_many_want_to_know() -> None:
    nvml, clock = FakeNvml(), FakeClock()
    stats = DeviceStats(nvml, "0", 5, clock)
    for _ in metrics.DEVICE_METRICS:
        stats.values()
    assert nvml.asked == 1
    clock.advance(5)
    stats.values()
    assert nvml.asked == 2


def test_what_a_device_does_not_have_is_left_out() -> None:
    nvml = FakeNvml()
    nvml.without_pcie = True
    values = DeviceStats(nvml, "0", 5, FakeClock()).values()
    assert values[metrics.DEVICE_PCIE] == {} and values[metrics.DEVICE_UTILIZATION] == {("0",): 0.75}


def test_a_machine_without_a_driver_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert open_devices(5) is None
