"""The cluster's fixtures. Without Go the tier says why it skips; with EXEGPT_CLUSTER_REQUIRED that fails."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import binaries, images, steps
from cluster.control_plane import ApiServer, ControlPlane
from cluster.fake_node import FakeNodes
from cluster.measured import Measured
from cluster.node import PAUSE, Node, lacking
from cluster.required import lacks
from cluster.steps import OperatorProcess, Site
from cluster.whole import BASE, DEVICE, SERVING, Cluster

ROOT = Path(__file__).parents[2]
EXISTING = "EXEGPT_TEST_KUBECONFIG"


@pytest.fixture(scope="session", autouse=True)
def orderly_end() -> Iterator[None]:
    """Told to end, the tests end their clusters first."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def programs() -> Path:
    """etcd, API server, controllers, scheduler, kubectl and helm, built from source if they are not here yet."""
    missing = [name for name in binaries.CONTROL_PLANE if not (binaries.folder() / name).exists()]
    if missing and shutil.which("go") is None:
        lacks(f"there is no Go to build {', '.join(missing)} with")
    return binaries.build(binaries.CONTROL_PLANE)


@pytest.fixture(scope="session")
def control_plane(
    programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """An API server with its controllers and our resource definitions, without nodes."""
    _own_clusters_only()
    made = ControlPlane.started(
        tmp_path_factory.mktemp("control-plane") / "run", programs, for_nodes=False
    )
    try:
        made.define(sorted((ROOT / "crds").glob("*.yaml")))
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def api_server(request: pytest.FixtureRequest) -> ApiServer:
    """One with our definitions: of the cluster that EXEGPT_TEST_KUBECONFIG names, or else one of our own."""
    existing = os.environ.get(EXISTING)
    if not existing:
        found: ApiServer = request.getfixturevalue("control_plane")
        return found
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        lacks("there is no kubectl")
    server = ApiServer(binaries=Path(str(kubectl)).parent, kubeconfig=Path(existing))
    server.define(sorted((ROOT / "crds").glob("*.yaml")))
    return server


def _own_clusters_only() -> None:
    if os.environ.get(EXISTING):
        pytest.skip(f"{EXISTING} is set: of that cluster's, only the definitions are tried")


@pytest.fixture(scope="session")
def nodes(control_plane: ControlPlane) -> Iterator[FakeNodes]:
    """One node without a machine, with all the devices that tests want."""
    made = FakeNodes(control_plane)
    try:
        made.add("fake-0", {steps.DEVICE: 1000})
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def operator(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One that looks after all namespaces; a test that ends it starts it again."""
    control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": steps.HOME}})
    kubeconfig = steps.operator_kubeconfig(control_plane)
    steps.free_lease(control_plane)
    made = OperatorProcess(
        kubeconfig, tmp_path_factory.mktemp("operator") / "log", "--cluster-wide"
    )
    made.start()
    yield made
    made.stop()


@pytest.fixture
def site(control_plane: ControlPlane, nodes: FakeNodes) -> Iterator[Site]:
    """A namespace of the test's own; deployments in it are gone afterwards."""
    made = Site.made(control_plane, nodes, f"t-{uuid.uuid4().hex[:8]}")
    yield made
    made.kubectl("delete", "xd", "--all", "--timeout=10s", check=False)


@pytest.fixture(scope="session")
def volume() -> Path:
    """This interpreter, with everything installed and our packages as they are now."""
    installed = sys.prefix.encode() + (ROOT / "constraints.txt").read_bytes()
    folder = Path(f"/var/tmp/exegpt-cluster-{hashlib.sha256(installed).hexdigest()[:10]}")
    images.python_volume(folder, [ROOT / name for name in ("planner", "runner", "cli", "operator")])
    return folder


@pytest.fixture(scope="session")
def weights() -> Path:
    """A folder with the demo model's, readable by anyone."""
    from exegpt_cli.cache import Cache
    from exegpt_cli.demo_model import demo_folder

    source = demo_folder("smollm2-135m-instruct", Cache.of_user(), say=lambda _: None)
    folder = Path("/var/tmp/exegpt-cluster-models")
    model = folder / "smollm2-135m-instruct"
    model.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-ruL", f"{source}/.", str(model)], check=True)
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
    return folder


@pytest.fixture(scope="session")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, volume: Path, weights: Path
) -> Iterator[Cluster]:
    """A control plane and a node, our definitions, and the volumes that pods of ours need."""
    _own_clusters_only()
    if os.geteuid() != 0:
        lacks("a node needs root")
    if reason := lacking():
        lacks(reason)
    programs = binaries.build(binaries.CONTROL_PLANE | binaries.NODE)
    folder = tmp_path_factory.mktemp("cluster")
    archives = [images.pause(folder, PAUSE), images.libraries(folder, BASE, of=_programs(volume))]
    plane = ControlPlane.started(folder / "run", programs, for_nodes=True)
    node = None
    try:
        node = Node.started(plane, images=archives)
        node.advertise(DEVICE, 2)
        yield Cluster(plane, node, volume, weights)
    finally:
        if node is not None:
            node.stop()
        plane.stop()


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Cluster:
    """The charts, in a namespace that admits restricted pods only."""
    cluster.namespace(SERVING)
    cluster.install(SERVING)
    return cluster


@pytest.fixture(scope="session")
def measured(installed: Cluster) -> Measured:
    """Step times of this machine."""
    return Measured.on(installed, SERVING)


def _programs(volume: Path) -> list[Path]:
    """What of the volume has shared libraries of its own to find."""
    return [volume / "bin" / "python3.11", *volume.rglob("*.so"), *volume.rglob("*.so.*")]
