"""What moving bytes between devices costs.

    send(n)          = latency + n / bandwidth
    all_reduce(n, d) = 2 (d - 1) latency + 2 (d - 1) / d * n / bandwidth
    all_gather(n, d) =   (d - 1) latency +   (d - 1) / d * n / bandwidth

rings of d devices that pass on an n / d at a time, d - 1 times to reduce and d - 1 to gather. Bandwidths are nominal,
of one direction; latencies are those NCCL's own cost model assumes of a ring's step (Simple protocol,
github.com/NVIDIA/nccl, src/graph/tuning.cc): 3.4 us over NVLink, 5.7 us over PCIe, 9.6 us over a network. Its base
latency is left out, since NCCL picks a quicker protocol for small messages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from exegpt_planner.errors import InvalidSpec
from exegpt_planner.hardware.devices import GB, Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of moving something: once, and for every unit of it."""

    fixed_s: float
    unit_s: float

    def __call__(self, units: float) -> float:
        """Seconds of so many units."""
        return self.fixed_s + self.unit_s * units


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A way between two devices, or between a device and its host's memory."""

    name: str
    bytes_per_s: float  # one direction
    latency_s: float
    source: str

    def __post_init__(self) -> None:
        problems = []
        if not self.bytes_per_s > 0:
            problems.append(f"bytes_per_s must be positive, not {self.bytes_per_s:g}")
        if not self.latency_s >= 0:
            problems.append(f"latency_s must not be negative, not {self.latency_s:g}")
        if problems:
            raise InvalidSpec(f"link {self.name}", problems)

    def at(self, efficiency: float) -> Link:
        """The link with this share of its bandwidth."""
        return replace(self, bytes_per_s=self.bytes_per_s * efficiency)

    def send(self, unit_bytes: float) -> Cost:
        """Until the other end has them; so many bytes a unit."""
        return Cost(fixed_s=self.latency_s, unit_s=unit_bytes / self.bytes_per_s)

    def all_reduce(self, unit_bytes: float, devices: int) -> Cost:
        """A ring's all-reduce of so many bytes a unit, which every device has and gets."""
        return self._ring(2 * (devices - 1), unit_bytes / devices)

    def all_gather(self, unit_bytes: float, devices: int) -> Cost:
        """A ring's all-gather of so many bytes a unit, of which every device has its part."""
        return self._ring(devices - 1, unit_bytes / devices)

    def _ring(self, steps: int, unit_bytes: float) -> Cost:
        return Cost(fixed_s=steps * self.latency_s, unit_s=steps * unit_bytes / self.bytes_per_s)


def _pcie(generation: int, gigatransfers: float) -> Link:
    return Link(
        name=f"PCIe {generation} x16",
        bytes_per_s=16 * gigatransfers * GB / 8 * 128 / 130,
        latency_s=5.7e-6,
        source=f"PCI Express {generation}.0: {gigatransfers:g} GT/s a lane, coded 128b/130b",
    )


def _nvlink(generation: int, both_ways: float, sheet: str) -> Link:
    return Link(
        name=f"NVLink {generation}",
        bytes_per_s=both_ways / 2 * GB,
        latency_s=3.4e-6,
        source=f"NVIDIA {sheet} datasheet: {both_ways:g} GB/s, both directions together",
    )


def _infiniband(name: str, gigabits: float) -> Link:
    return Link(
        name=f"InfiniBand {name} {gigabits:g}",
        bytes_per_s=gigabits / 8 * GB,
        latency_s=9.6e-6,
        source=f"InfiniBand {name}, four lanes: {gigabits:g} Gb/s of data",
    )


PCIE = {4: _pcie(4, 16), 5: _pcie(5, 32)}
NVLINK = {3: _nvlink(3, 600, "A100"), 4: _nvlink(4, 900, "H100"), 5: _nvlink(5, 1800, "DGX B200")}
EDR, HDR, NDR = _infiniband("EDR", 100), _infiniband("HDR", 200), _infiniband("NDR", 400)


def host_link(device: Device) -> Link:
    """The way between the device and its host's memory."""
    return PCIE[device.pcie]


def peer_link(device: Device) -> Link:
    """The way between two of a node's devices: NVLink where they have it, else PCIe."""
    return PCIE[device.pcie] if device.nvlink is None else NVLINK[device.nvlink]
