"""Lengths of the answers since the plan in force: what drift is looked for in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class LengthsSeen:
    """How often each length was seen, tokens. A context's number of entries at most."""

    inputs: Counter[int] = field(default_factory=Counter)
    outputs: Counter[int] = field(default_factory=Counter)

    def note(self, input_tokens: int, output_tokens: int) -> None:
        """One answer that came to its end."""
        self.inputs[input_tokens] += 1
        self.outputs[output_tokens] += 1

    def clear(self) -> None:
        """Begins anew, for another plan."""
        self.inputs.clear()
        self.outputs.clear()
