"""What the detector says of observed lengths: a ConfigMap for each side, and annotations that name them.

The law as it was seen, not its moments: of a thousand answers it is the better one to plan by, and no truncated normal
may have those moments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from exegpt_operator import names
from exegpt_operator.actions import Action, Annotate, Apply
from exegpt_operator.observed import HISTOGRAM_FILE, SIDES
from exegpt_planner.manifest import Deployment


def detected(
    deployment: Deployment, observed: Mapping[str, str], annotations: Mapping[str, str]
) -> Iterator[Action]:
    """What makes these the lengths that hold; `observed` is JSON by side, `annotations` those there are."""
    metadata = deployment.metadata
    wanted = {}
    for side, annotation in SIDES.items():
        name = names.observed(metadata.name, side)
        wanted[annotation] = f"histogram={name}"
        yield Apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": name,
                    "namespace": metadata.namespace,
                    "labels": names.labels(metadata.name, "observed"),
                },
                "data": {HISTOGRAM_FILE: observed[side]},
            }
        )
    if any(annotations.get(name) != value for name, value in wanted.items()):
        yield Annotate(wanted)
