"""The shares of published peaks that kernels reach.

"datasheet" holds for every device:

gemm 0.6       of the tensor peak in large products: Megatron-LM reports 44 % to 52 % of the A100's for whole training
               steps, communication included (arXiv 2104.04473, table 1)
attention 0.5  of the tensor peak in an encode's attention: FlashAttention-2 reaches 50 % to 73 % in its forward pass
               on an A100 (arXiv 2307.08691)
memory 0.8     of the memory bandwidth in reading weights and KV: assumed
link 0.8       of a link's bandwidth in one direction: NCCL's cost model takes 235 GB/s of NVLink 3's 300
               (github.com/NVIDIA/nccl, src/graph/tuning.cc)

"paper", of the A40 alone, moves three of them until the table gives what follows from the ExeGPT paper's Tables 6 and 7
(arXiv 2404.07947) for OPT-13B on four A40 under task S: an encode of 30.2 ms a query, and a decode iteration of
13.0 ms + 0.189 ms a query at the two pools they stem from, 128 and 224 queries.
"""

from __future__ import annotations

from dataclasses import dataclass

from exegpt_planner.errors import InvalidSpec
from exegpt_planner.named import named


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """Shares of the published peaks, each in (0, 1]."""

    name: str
    gemm: float
    attention: float
    memory: float
    link: float

    def __post_init__(self) -> None:
        shares = {
            "gemm": self.gemm,
            "attention": self.attention,
            "memory": self.memory,
            "link": self.link,
        }
        problems = [
            f"{name} must lie in (0, 1], not {share:g}"
            for name, share in shares.items()
            if not 0 < share <= 1
        ]
        if problems:
            raise InvalidSpec(f"efficiencies {self.name}", problems)


DATASHEET = Efficiencies(name="datasheet", gemm=0.6, attention=0.5, memory=0.8, link=0.8)
PAPER_A40 = Efficiencies(name="paper", gemm=0.677, attention=0.5, memory=0.758, link=0.857)


def calibration(device: str, name: str) -> Efficiencies:
    """A calibration of this device by name; raises `InvalidSpec` that lists those it has."""
    known = {"datasheet": DATASHEET} | ({"paper": PAPER_A40} if device == "a40" else {})
    return named(known, name, what=f"calibration of {device}")
