"""Step times of this machine, measured once a session, for deployments that would measure them again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.control_plane import ControlPlane
from cluster.place import Place
from cluster.whole import BASE, Cluster, deployment
from exegpt_operator import names
from exegpt_operator.decide_profile import table_name
from exegpt_operator.manifests import profiles
from exegpt_operator.manifests.images import Images
from exegpt_operator.reading import deployment_of

MEASURED_S = 900.0  # on two cores that do other things too


@dataclass(frozen=True, slots=True)
class Measured:
    """A profile's ConfigMap."""

    data: Mapping[str, str]

    @classmethod
    def on(cls, cluster: Cluster, namespace: str) -> Measured:
        """Measures, by a deployment that starts nothing; its profile stays in the namespace."""
        scheduling = {"planPolicy": "DryRun", "strategies": ["RRA", "WAA"]}
        wanted = deployment(namespace, "measure", scheduling=scheduling)
        place = Place(cluster.plane, namespace)
        cluster.plane.apply(wanted)
        place.until_reason("Ready", "DryRun", "measure", within_s=MEASURED_S)
        place.delete("measure")
        return cls(place.get("ConfigMap", table_name(profile_of(wanted)))["data"])

    def for_workers(self, workers: int) -> Measured:
        """As if it had been measured beside so many: for plans that nothing will run."""
        table = json.loads(self.data["table.json"])
        table["key"]["workers"] = workers
        return Measured({**self.data, "table.json": json.dumps(table)})

    def put_on_file(self, plane: ControlPlane, resource: Mapping[str, Any]) -> None:
        """As the profile that this deployment plans by."""
        namespace, name = resource["metadata"]["namespace"], profile_of(resource)
        plane.apply(
            {
                "apiVersion": names.API_VERSION,
                "kind": names.PROFILE,
                "metadata": {"name": name, "namespace": namespace},
                "spec": _spec(resource),
            },
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": table_name(name), "namespace": namespace},
                "data": dict(self.data),
            },
        )


def profile_of(resource: Mapping[str, Any]) -> str:
    """What the profile of a deployment is called."""
    return names.profile(_spec(resource))


def _spec(resource: Mapping[str, Any]) -> dict[str, Any]:
    found, problems = deployment_of(resource)
    assert found is not None, problems
    return profiles.profile_spec(found, Images(runner=BASE, gateway=BASE))
