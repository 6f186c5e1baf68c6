"""One model instance as a line of stages: each serves micro-batches one after the other, in the order they came.

As no micro-batch overtakes another, a step's whole way is known when it begins: on each stage it starts when it has
left the stage before and the stage has served the step before, whichever is later.
"""

from __future__ import annotations

from exegpt_planner.events.records import Recorder, Span, Step
from exegpt_planner.events.stages import Stages
from exegpt_planner.profile_table import StepShape


class Pipeline:
    """The stages of one instance, and when each will be free."""

    def __init__(self, stages: Stages, recorder: Recorder, instance: int = 0) -> None:
        self.stages, self._recorder, self._instance = stages, recorder, instance
        self._free_s = [0.0] * stages.num_stages

    @property
    def free_s(self) -> float:
        """When the first stage will have served all that has begun."""
        return self._free_s[0]

    def serve(
        self, ready_s: float, shape: StepShape, *, micro_batch: int = 0, extra_s: float = 0.0
    ) -> Step:
        """A step that may begin at `ready_s` and takes `extra_s` more on all stages together."""
        now_s, share_s = ready_s, extra_s / self.stages.num_stages
        spans: list[Span] = []
        for stage, free_s in enumerate(self._free_s):
            start_s = max(now_s, free_s)
            now_s = start_s + self.stages.stage_s(stage, shape) + share_s
            self._free_s[stage] = now_s
            spans.append((start_s, now_s))
        step = Step(
            instance=self._instance, micro_batch=micro_batch, shape=shape, spans=tuple(spans)
        )
        self._recorder.step(step)
        return step
