"""A certificate that stands on its own: a plan's proof with all that it rests on, in one file (docs/formats.md).

The file is the canonical JSON of its content on one line, with the content's SHA-256 in it: another byte anywhere is
another content, another hash, or no longer canonical. Free of the search's code, as is what checks it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field

from exegpt_planner.bound import Bound
from exegpt_planner.errors import InvalidSpec, Unavailable
from exegpt_planner.lengths import LengthLaw
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import LlamaSpec, OptSpec, T5Spec
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.proof import Certificate, canonical
from exegpt_planner.schedule import Prediction, Schedule
from exegpt_planner.strict import StrictModel, json_object, parse, write_text
from exegpt_planner.workload import Workload


class Laws(StrictModel):
    """A workload as planning sees it; all arrays by length in tokens, from 0 on."""

    input: tuple[float, ...]  # P(I = k)
    output: tuple[float, ...]  # P(L = k)
    input_mean: tuple[float, ...]  # E[I | L = k]
    input_square: tuple[float, ...]  # E[I**2 | L = k]

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Those of a workload."""
        return cls(
            input=tuple(workload.input.pmf.tolist()),
            output=tuple(workload.output.pmf.tolist()),
            input_mean=tuple(workload.input_mean.tolist()),
            input_square=tuple(workload.input_square.tolist()),
        )

    @property
    def workload(self) -> Workload:
        """The workload of these laws; raises `InvalidSpec` where they are none."""
        lengths = {len(self.output), len(self.input_mean), len(self.input_square)}
        if len(lengths) > 1:
            raise InvalidSpec("workload", [f"arrays of {sorted(lengths)} output lengths"])
        return Workload(
            input=LengthLaw(pmf=np.array(self.input)),
            output=LengthLaw(pmf=np.array(self.output)),
            input_mean=np.array(self.input_mean),
            input_square=np.array(self.input_square),
            source="certificate",
        )


class Memory(StrictModel):
    """Of one device."""

    device_bytes: int = Field(ge=0)
    reserve_bytes: int = Field(ge=0)
    holds_activations: bool  # the reserve does

    @property
    def budget(self) -> MemoryBudget:
        """The same for the planner."""
        return MemoryBudget(**self.model_dump())


class CertificateFile(StrictModel):
    """What was asked, what was answered, and the proof."""

    version: Literal["exegpt.certificate/v1"] = "exegpt.certificate/v1"
    table: ProfileTable
    model: Annotated[LlamaSpec | OptSpec | T5Spec, Field(discriminator="architecture")]
    workload: Laws
    bound: Bound
    memory: Memory
    devices: int = Field(ge=1)
    strategies: tuple[str, ...] = Field(min_length=1)
    length_tokens: int  # that the bound is about
    schedule: Schedule
    prediction: Prediction
    certificate: Certificate

    def text(self) -> str:
        """The file's content, its hash included."""
        content = json.loads(self.model_dump_json())  # infinite numbers are strings
        digest = hashlib.sha256(canonical(content).encode()).hexdigest()
        return canonical({**content, "sha256": digest}) + "\n"

    def write(self, path: Path) -> None:
        """Writes the file, whole or not at all."""
        write_text(path, self.text())


class Checked(StrictModel):
    """What a check of a certificate looked at, and what it found."""

    version: Literal["exegpt.check/v1"] = "exegpt.check/v1"
    schedule: Schedule
    queries_per_s: float
    shapes: int
    spaces: int  # of a strategy on a shape, of WAA on a pair of sides
    searched: int  # of them; the others were bounded as a whole
    leaves: int
    simulated: int  # schedules, as no bound of the checker's settles them
    problems: tuple[str, ...]  # none: the proof holds
    flags: tuple[str, ...]  # no fault, but a larger table or space might hold more


def read_certificate(path: Path) -> CertificateFile:
    """The certificate in a file; raises `InvalidSpec` if a byte of it is not as it was written."""
    try:
        given = path.read_bytes()
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}. Check the path.") from None
    return parse_certificate(given, source=str(path))


def parse_certificate(given: bytes, *, source: str) -> CertificateFile:
    """The certificate that these bytes are."""
    try:
        data = json_object(given.decode("utf-8"), source)
    except UnicodeDecodeError as error:
        raise InvalidSpec(source, [f"not UTF-8 text: {error.reason}"]) from None
    said = data.pop("sha256", None)
    found = parse(CertificateFile, data, source=source)
    text = found.text()
    is_ = json.loads(text)["sha256"]
    if said != is_:
        raise InvalidSpec(
            source,
            [f"changed since it was written: sha256 is {is_}, the file says {said}"],
        )
    if given != text.encode("utf-8"):
        raise InvalidSpec(
            source, ["changed since it was written: not the canonical JSON of its own content"]
        )
    return found
