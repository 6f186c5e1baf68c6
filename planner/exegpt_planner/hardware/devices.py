"""Published figures of devices.

Dense tensor-core rates of float16 and bfloat16, which are equal on all of these; memory as the datasheet prints it, in
decimal gigabytes, which is never more than the device reports. Datasheets print NVLink's two directions together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exegpt_planner.named import named

GB = 10**9
TERA = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator."""

    name: str
    tensor_flops_per_s: float  # dense, float16 and bfloat16, float32 accumulation
    memory_bytes: int
    memory_bytes_per_s: float
    pcie: Literal[4, 5]  # generation of its 16 lanes
    nvlink: Literal[3, 4, 5] | None  # generation, where a switch joins a node's devices
    source: str


_ALL = (
    Device(
        name="a40",
        tensor_flops_per_s=149.7 * TERA,
        memory_bytes=48 * GB,
        memory_bytes_per_s=696 * GB,
        pcie=4,
        nvlink=None,  # a bridge joins no more than two
        source="NVIDIA A40 datasheet",
    ),
    Device(
        name="a100-40",
        tensor_flops_per_s=312 * TERA,
        memory_bytes=40 * GB,
        memory_bytes_per_s=1555 * GB,
        pcie=4,
        nvlink=3,
        source="NVIDIA A100 Tensor Core GPU datasheet, SXM4 40 GB",
    ),
    Device(
        name="a100-80",
        tensor_flops_per_s=312 * TERA,
        memory_bytes=80 * GB,
        memory_bytes_per_s=2039 * GB,
        pcie=4,
        nvlink=3,
        source="NVIDIA A100 Tensor Core GPU datasheet, SXM4 80 GB",
    ),
    Device(
        name="l4",
        tensor_flops_per_s=121 * TERA,  # 242 printed with sparsity
        memory_bytes=24 * GB,
        memory_bytes_per_s=300 * GB,
        pcie=4,
        nvlink=None,
        source="NVIDIA L4 datasheet",
    ),
    Device(
        name="l40s",
        tensor_flops_per_s=362.05 * TERA,
        memory_bytes=48 * GB,
        memory_bytes_per_s=864 * GB,
        pcie=4,
        nvlink=None,
        source="NVIDIA L40S datasheet",
    ),
    Device(
        name="h100",
        tensor_flops_per_s=989.5 * TERA,  # 1,979 printed with sparsity
        memory_bytes=80 * GB,
        memory_bytes_per_s=3350 * GB,
        pcie=5,
        nvlink=4,
        source="NVIDIA H100 Tensor Core GPU datasheet, SXM",
    ),
    Device(
        name="h200",
        tensor_flops_per_s=989.5 * TERA,  # 1,979 printed with sparsity
        memory_bytes=141 * GB,
        memory_bytes_per_s=4800 * GB,
        pcie=5,
        nvlink=4,
        source="NVIDIA H200 Tensor Core GPU datasheet, SXM",
    ),
    Device(
        name="b200",
        tensor_flops_per_s=2250 * TERA,
        memory_bytes=180 * GB,
        memory_bytes_per_s=8000 * GB,
        pcie=5,
        nvlink=5,
        source="NVIDIA DGX B200 datasheet (1,440 GB and 64 TB/s for eight); Blackwell datasheet, HGX B200",
    ),
)
DEVICES = {each.name: each for each in _ALL}


def device(name: str) -> Device:
    """The device of this name; raises `InvalidSpec` that lists the names."""
    return named(DEVICES, name, what="device")
