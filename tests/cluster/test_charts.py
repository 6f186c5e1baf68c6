"""Both charts as helm renders them, with each of the values files in charts/exegpt/ci; no cluster is asked."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import binaries
from cluster.required import lacks
from exegpt_operator import main
from exegpt_operator.reading import deployment_of

pytestmark = [pytest.mark.e2e, pytest.mark.smoke, pytest.mark.timeout(1800)]

CHARTS = Path(__file__).parents[2] / "charts"
VALUES = {
    path.stem.removesuffix("-values"): path
    for path in sorted((CHARTS / "exegpt" / "ci").glob("*.yaml"))
}
NAMESPACE, RELEASE = "serving", "mine"
MAY_BE_MOUNTED = {  # under Pod Security *restricted*
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
}  # fmt: skip
WRITES = {"create", "update", "patch", "delete", "deletecollection"}


@dataclass(frozen=True, slots=True)
class Helm:
    """The program, with a home of its own and no cluster."""

    program: Path
    home: Path

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """What it answers."""
        environment = {"HOME": str(self.home), "PATH": os.environ["PATH"]}
        done = subprocess.run(
            [str(self.program), *arguments], env=environment, capture_output=True, text=True
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def template(self, chart: str, *options: str) -> list[dict[str, Any]]:
        """The objects of a release."""
        done = self.run("template", RELEASE, str(CHARTS / chart), "-n", NAMESPACE, *options)
        return [each for each in yaml.safe_load_all(done.stdout) if each]


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Built from source if it is not here yet."""
    if not (binaries.folder() / "helm").exists() and shutil.which("go") is None:
        lacks("there is no Go to build helm with")
    there = binaries.build({"helm": binaries.CONTROL_PLANE["helm"]})
    return Helm(there / "helm", tmp_path_factory.mktemp("helm"))


@pytest.fixture(params=VALUES, scope="module")
def values(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def objects(helm: Helm, values: str) -> list[dict[str, Any]]:
    """The operator's chart with one of the files."""
    return helm.template("exegpt", "-f", str(VALUES[values]))


def only(objects: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def pods(objects: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The pods' specs: the operator's, and that of `helm test`."""
    yield only(objects, "Deployment")["spec"]["template"]["spec"]
    yield only(objects, "Pod")["spec"]


def rules(objects: Sequence[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    """What roles of these kinds allow."""
    return [rule for each in objects if each["kind"] in kinds for rule in each["rules"]]


def test_there_are_files_for_what_matters() -> None:
    assert set(VALUES) == {"defaults", "namespaced", "everything"}


def test_lint_has_nothing_to_say(helm: Helm, values: str) -> None:
    helm.run("lint", "--strict", str(CHARTS / "exegpt"), "-f", str(VALUES[values]))
    helm.run("lint", "--strict", str(CHARTS / "exegpt-crds"))


def test_the_definitions_are_those_of_the_repository(helm: Helm) -> None:
    rendered = {each["metadata"]["name"]: each for each in helm.template("exegpt-crds")}
    written = [yaml.safe_load(path.read_text()) for path in (CHARTS.parent / "crds").glob("*.yaml")]
    assert rendered == {each["metadata"]["name"]: each for each in written}


def test_no_two_objects_are_the_same(objects: list[dict[str, Any]]) -> None:
    keys = [
        (
            each["apiVersion"],
            each["kind"],
            each["metadata"].get("namespace"),
            each["metadata"]["name"],
        )
        for each in objects
    ]
    assert len(set(keys)) == len(keys)


def test_every_object_lies_in_the_releases_namespace(objects: list[dict[str, Any]]) -> None:
    outside = {each["kind"] for each in objects if each["metadata"].get("namespace") != NAMESPACE}
    assert outside <= {"ClusterRole", "ClusterRoleBinding"}


def test_no_role_says_all(objects: list[dict[str, Any]]) -> None:
    for rule in rules(objects, "Role", "ClusterRole"):
        assert not any("*" in word for words in rule.values() for word in words), rule


def test_secrets_are_never_listed(objects: list[dict[str, Any]]) -> None:
    found = [
        rule for rule in rules(objects, "Role", "ClusterRole") if "secrets" in rule["resources"]
    ]
    assert [rule["verbs"] for rule in found] == [["get", "create"]]


def test_one_namespace_takes_no_right_beyond_it(helm: Helm) -> None:
    objects = helm.template("exegpt", "-f", str(VALUES["namespaced"]))
    assert not [each["kind"] for each in objects if each["kind"].startswith("Cluster")]
    whole = helm.template("exegpt", "-f", str(VALUES["defaults"]))
    writes = [rule for rule in rules(whole, "ClusterRole") if WRITES & set(rule["verbs"])]
    mine = rules(objects, "Role")
    assert [rule for rule in mine if rule not in rules(whole, "ClusterRole", "Role")] == []
    assert len(mine) < len(rules(whole, "ClusterRole", "Role"))
    assert {"nodes", "namespaces"}.isdisjoint(r for rule in writes for r in rule["resources"])


def test_the_account_is_the_one_that_roles_are_bound_to(objects: list[dict[str, Any]]) -> None:
    account = only(objects, "ServiceAccount")["metadata"]["name"]
    names = {each["metadata"]["name"] for each in objects if each["kind"].endswith("Role")}
    for binding in (each for each in objects if each["kind"].endswith("Binding")):
        assert [each["name"] for each in binding["subjects"]] == [account]
        assert binding["roleRef"]["name"] in names
    assert only(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == account


def test_pods_pass_restricted(objects: list[dict[str, Any]]) -> None:
    for pod in pods(objects):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == 65532
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for volume in pod.get("volumes", []):
            assert volume.keys() - {"name"} <= MAY_BE_MOUNTED
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "hostPort" not in str(container.get("ports"))


def test_mounts_have_their_volumes(objects: list[dict[str, Any]]) -> None:
    for pod in pods(objects):
        volumes = {each["name"] for each in pod.get("volumes", [])}
        mounts = {each["name"] for c in pod["containers"] for each in c.get("volumeMounts", [])}
        assert mounts == volumes


def test_services_and_probes_name_ports_that_there_are(objects: list[dict[str, Any]]) -> None:
    deployment, service = only(objects, "Deployment"), only(objects, "Service")
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    ports = {each["name"] for each in container["ports"]}
    assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports
    probes = [container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]
    assert {each["httpGet"]["port"] for each in probes} <= ports
    for selector in (service["spec"]["selector"], deployment["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= template["metadata"]["labels"].items()
        assert not selector.items() <= only(objects, "Pod")["metadata"]["labels"].items()


def test_the_operator_takes_the_arguments_it_is_given(objects: list[dict[str, Any]]) -> None:
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    _python, flag, module, *arguments = container["command"]
    assert (flag, module) == ("-m", main.__name__)
    options = main._parser().parse_args(arguments)
    assert options.namespace == NAMESPACE
    assert options.runner_image


def test_every_value_arrives(helm: Helm) -> None:
    """Every leaf of the file is somewhere in what is rendered; a value that nothing reads would not be."""
    given = yaml.safe_load(VALUES["everything"].read_text())
    default = yaml.safe_load((CHARTS / "exegpt" / "values.yaml").read_text())
    assert given.keys() == default.keys()
    leaves = set(words(helm.template("exegpt", "-f", str(VALUES["everything"]))))
    said = [word for leaf in leaves for word in (leaf, leaf.partition("=")[2])]
    del given["clusterWide"]
    assert not [word for word in words(given) if word not in said]


def words(value: Any) -> Iterator[str]:
    """The leaves of a document, and the keys of maps of the user's own."""
    match value:
        case dict():
            for each in value.values():
                yield from words(each)
        case list():
            for each in value:
                yield from words(each)
        case _:
            yield str(value)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("clusterwide=true", "additional properties 'clusterwide' not allowed"),
        ("images.worker=a/b:1", "at '/images': additional properties 'worker' not allowed"),
        ("images.pullPolicy=Sometimes", "must be one of 'Always', 'IfNotPresent', 'Never'"),
        ("images.runner=", "at '/images/runner': minLength"),
        ("clusterWide=perhaps", "at '/clusterWide': got string, want boolean"),
        ("resources.request.cpu=1", "at '/resources': additional properties 'request' not allowed"),
    ],
)
def test_what_is_misspelt_is_refused(helm: Helm, setting: str, problem: str) -> None:
    done = helm.run("template", RELEASE, str(CHARTS / "exegpt"), "--set", setting, check=False)
    assert done.returncode != 0
    assert problem in done.stderr


def test_the_definitions_chart_has_nothing_to_set(helm: Helm) -> None:
    chart = str(CHARTS / "exegpt-crds")
    done = helm.run("template", RELEASE, chart, "--set", "keep=true", check=False)
    assert "additional properties 'keep' not allowed" in done.stderr


def test_notes_say_what_to_do_next(helm: Helm, values: str) -> None:
    chart = str(CHARTS / "exegpt")
    options = ["-n", NAMESPACE, "-f", str(VALUES[values]), "--dry-run=client"]
    _, _, notes = helm.run("install", RELEASE, chart, *options).stdout.partition("NOTES:\n")
    scope = f"namespace {NAMESPACE}" if values == "namespaced" else "every namespace"
    assert notes.startswith(f"exegpt looks after {scope}.")
    assert f"helm test {RELEASE} -n {NAMESPACE}" in notes
    example = re.search(r"<<EOF\n(.*?)\n *EOF", notes, re.DOTALL)
    assert example is not None
    _, problems = deployment_of(with_namespace(yaml.safe_load(example[1])))
    assert problems == ()


def with_namespace(resource: dict[str, Any]) -> dict[str, Any]:
    resource["metadata"]["namespace"] = NAMESPACE
    return resource


def test_helm_test_asks_the_operator(objects: list[dict[str, Any]]) -> None:
    pod, service = only(objects, "Pod"), only(objects, "Service")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    port = next(each["port"] for each in service["spec"]["ports"] if each["name"] == "health")
    script = pod["spec"]["containers"][0]["command"][-1]
    assert f"http://{service['metadata']['name']}:{port}/healthz" in script


def test_a_long_release_name_still_fits(helm: Helm) -> None:
    chart = str(CHARTS / "exegpt")
    rendered = helm.run("template", "r" * 53, chart).stdout
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(rendered) if each]
    assert max(map(len, names)) <= 63


@pytest.mark.parametrize("chart", ["exegpt", "exegpt-crds"])
def test_charts_have_the_packages_version(chart: str) -> None:
    about = yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())
    version = importlib.metadata.version("exegpt")
    assert (about["version"], about["appVersion"]) == (version, version)


def test_default_images_have_the_packages_version() -> None:
    images = yaml.safe_load((CHARTS / "exegpt" / "values.yaml").read_text())["images"]
    version = importlib.metadata.version("exegpt")
    assert [images[name] for name in ("operator", "runner", "gateway")] == [
        f"exegpt/{name}:{version}" for name in ("operator", "runner", "gateway")
    ]
