"""An explanation as it leaves the program (docs/formats.md): of a plan, or of why there is none.

Text, JSON and page are written from it alone, so that they hold the same numbers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from exegpt_planner.bound import Bound
from exegpt_planner.plan import Plan
from exegpt_planner.schedule import Prediction, Reached, Schedule
from exegpt_planner.strict import StrictModel

TOLERANCES = (0.0, 0.02, 0.05)  # the paper's Table 5 has 2 and 5 %; 0: any step the wrong way


class Asked(StrictModel):
    """What was to be planned."""

    model: str  # its name
    dtype: str
    devices: int
    device: str  # as the profile names it
    source: Literal["measured", "analytic"]  # of the step times
    workload: str  # in words
    bound: Bound
    length_tokens: int  # the output length that the bound is about
    strategies: tuple[str, ...]


class StageHolds(StrictModel):
    """What each device of some stages of a unit holds; for WAA, of every encoder and decoder. Bytes."""

    first: int  # stage, from 1
    last: int
    degree: int  # devices, one tensor-parallel group
    layers: int
    encoder_layers: int
    weight_bytes: float
    kv_bytes: float  # held ready for the schedule, activations included where the plan counts them
    kept_bytes: int  # not for weights and KV
    free_bytes: float  # what is left; below 0: lacking
    is_tightest: bool  # it is this stage that the KV capacity comes from


class Part(StrictModel):
    """Of some time, what one kind of work takes."""

    name: str
    seconds: float
    share: float  # of the cycle


class Spent(StrictModel):
    """One phase of a cycle."""

    phase: Literal["encode", "send", "decode", "dispatch", "idle"]
    seconds: float
    share: float
    parts: tuple[Part, ...]  # empty where it cannot be told exactly


class Use(StrictModel):
    """Where the time of one cycle goes, on some stages or workers that are alike."""

    who: str
    devices: int  # of the whole plan that this is about
    cycle_s: float
    spent: tuple[Spent, ...]


class FrontierPoint(StrictModel):
    """The best schedule within one bound."""

    bound_s: float = Field(allow_inf_nan=True)  # inf: none
    is_chosen: bool  # the bound that was asked for
    schedule: Schedule
    queries_per_s: float
    promised_s: float


class Frontier(StrictModel):
    """Throughput against the bound; every point is the answer of a whole search."""

    least_s: float  # the least that a schedule is known to promise
    refuted_s: float  # no schedule keeps this one, just below it
    saturated_s: float  # beyond this bound throughput rises no more
    points: tuple[FrontierPoint, ...]  # by bound, rising


class Ranked(StrictModel):
    """The best of a strategy in one way of sharing out the devices."""

    strategy: str
    units: int | None  # None: of the strategy as a whole
    degree: int | None  # the largest tensor-parallel group
    is_chosen: bool
    schedule: Schedule | None
    prediction: Prediction | None
    reason: str


class Binding(StrictModel):
    """What keeps throughput from rising, and how much of each limit is used."""

    kind: Literal["latency", "memory", "profile", "nothing"]
    latency_used: float  # of the bound; 0 where there is none
    memory_used: float  # of the KV capacity
    profile_used: float | None  # of the profile's reach; None where only the plan is known
    words: str


class SlicePoint(StrictModel):
    """The chosen schedule with one knob changed."""

    value: int
    is_chosen: bool
    queries_per_s: float
    promised_s: float


class Trend(StrictModel):
    """Which way throughput and promise go as a knob rises, and at how many steps of the knob they go the other way."""

    knob: str
    direction: Literal["rises", "falls"]  # both, where the table is well behaved
    num_pairs: int  # of neighbours that were compared
    throughput_against: tuple[int, ...]  # pairs, by TOLERANCES: of the chosen throughput
    promise_against: tuple[int, ...]  # and of the bound; of the promise where there is none
    through_chosen: tuple[SlicePoint, ...]


class MarginPoint(StrictModel):
    """The chosen schedule where answers are longer or shorter than planned."""

    factor: float  # true mean of output lengths over the planned one
    output_mean: float
    length_tokens: int  # the true law's percentile
    promised_s: float | None  # None: not predicted, see `problem`
    queries_per_s: float | None
    memory_used: float | None  # of the KV capacity
    keeps_bound: bool | None
    problem: str | None


class Margin(StrictModel):
    """How wrong the planned mean of output lengths may be."""

    points: tuple[MarginPoint, ...]
    keeps_at: (
        float | None
    )  # the largest factor tried up to which the bound is kept; None: there is no bound
    breaks_at: (
        float | None
    )  # at most 1 % beyond; None: it is kept, or not predicted, up to the last point


class Changed(StrictModel):
    """What would be planned if one thing were different."""

    change: Literal["devices", "bound"]
    devices: int
    bound_s: float = Field(allow_inf_nan=True)
    schedule: Schedule | None
    queries_per_s: float | None
    promised_s: float | None
    problem: str | None  # why there is no schedule


class Explanation(StrictModel):
    """Of a plan."""

    version: Literal["exegpt.explanation/v1"] = "exegpt.explanation/v1"
    feasible: Literal[True] = True
    asked: Asked
    plan: Plan
    stages: tuple[StageHolds, ...]
    uses: tuple[Use, ...]
    binding: Binding
    frontier: Frontier
    ranking: tuple[Ranked, ...]
    trends: tuple[Trend, ...]
    margin: Margin
    changes: tuple[Changed, ...]


class SmallestCluster(StrictModel):
    """The fewest devices of the kind for which there is a schedule."""

    tried: tuple[int, ...]  # numbers of devices, the last one would do unless `schedule` is None
    schedule: Schedule | None
    prediction: Prediction | None


class NoPlan(StrictModel):
    """Of why there is no plan."""

    version: Literal["exegpt.explanation/v1"] = "exegpt.explanation/v1"
    feasible: Literal[False] = False
    asked: Asked
    binds: Literal["latency", "memory"]
    error: str  # what the command ends with
    reached: Reached | None  # the least promise; None where nothing fits
    refuted_s: float | None  # no schedule keeps this bound, just below the best reachable
    stages: tuple[
        StageHolds, ...
    ]  # of the layout that is nearest to fitting, with its smallest schedule
    cluster: SmallestCluster | None  # None: not known for measured profiles


AnyExplanation = Annotated[Explanation | NoPlan, Field(discriminator="feasible")]
ANY_EXPLANATION: TypeAdapter[AnyExplanation] = TypeAdapter(AnyExplanation)
