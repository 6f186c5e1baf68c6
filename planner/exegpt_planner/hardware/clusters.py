"""Clusters of equal devices in equal nodes.

Between two devices of different nodes lies one network adapter: nodes of A40, L4 or L40S have one for all their
devices, the others one a device, so the bandwidth counted is a lone transfer's. The ExeGPT paper's clusters
(arXiv 2404.07947, section 7.1): six nodes of eight A40, PCIe 4 inside, 100 Gb InfiniBand between; two nodes of A100
80 GB, eight each (Azure NDm A100 v4), NVLink 3 inside, eight HDR 200 adapters a node between.
"""

from __future__ import annotations

from dataclasses import dataclass

from exegpt_planner.errors import InvalidSpec
from exegpt_planner.hardware.devices import Device, device
from exegpt_planner.hardware.links import EDR, HDR, NDR, Link, peer_link

NODE_DEVICES = 8
# The adapter that leads to another node. A40 and A100: the paper's; the others: of their systems' generation.
BETWEEN = {
    "a40": EDR,
    "a100-40": HDR,
    "a100-80": HDR,
    "l4": EDR,
    "l40s": HDR,
    "h100": NDR,
    "h200": NDR,
    "b200": NDR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal devices, `node_devices` to a node; a cluster smaller than a node is part of one."""

    device: Device
    devices: int
    node_devices: int = NODE_DEVICES
    inside: Link  # between a node's devices
    between: Link  # between devices of different nodes

    def __post_init__(self) -> None:
        problems = []
        if self.devices < 1:
            problems.append(f"devices must be at least 1, not {self.devices}")
        if self.node_devices < 1:
            problems.append(f"node_devices must be at least 1, not {self.node_devices}")
        elif self.devices > self.node_devices and self.devices % self.node_devices:
            problems.append(
                f"{self.devices} devices are no whole number of nodes of {self.node_devices}; "
                "give whole nodes, or another node_devices"
            )
        if problems:
            raise InvalidSpec("cluster", problems)

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return -(-self.devices // self.node_devices)

    @property
    def memory_bytes(self) -> int:
        """Memory of all devices."""
        return self.devices * self.device.memory_bytes


def cluster_of(name: str, devices: int, *, node_devices: int = NODE_DEVICES) -> Cluster:
    """So many devices of this name, with the links their systems usually have."""
    each = device(name)
    return Cluster(
        device=each,
        devices=devices,
        node_devices=node_devices,
        inside=peer_link(each),
        between=BETWEEN[each.name],
    )
