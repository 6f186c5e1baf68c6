"""Ten deployments of one operator: all are served, all rest, all follow their lengths."""

from __future__ import annotations

import pytest

from cluster.fleet import PODS, Fleet
from cluster.place import until
from cluster.steps import OperatorProcess, Site

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_ten_at_once(site: Site, operator: OperatorProcess) -> None:
    fleet = Fleet(site, 10)
    fleet.profile()
    for name in fleet.names():
        fleet.apply(name)
    fleet.until_ready()
    pods = {name: site.serving(name) for name in fleet.names()}
    assert {len(each) for each in pods.values()} == {PODS}
    assert len({site.plan_id(name) for name in fleet.names()}) == fleet.size
    assert len(fleet.made_after_s()) == fleet.size

    before = len(site.plane.writes())
    with pytest.raises(AssertionError, match="not a write"):
        until("a write", lambda: fleet.writes(before) > 0, within_s=40)

    for name in fleet.names():
        fleet.annotate(name)
    fleet.until_steered(since=0)
    assert len(fleet.steered_after_s()) == fleet.size
    fleet.until_ready()
    for name in fleet.names():
        assert site.gateway(name).plan_id == site.plan_id(name)
        assert site.serving(name) == pods[name]
