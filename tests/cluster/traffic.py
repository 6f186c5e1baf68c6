"""Queries from inside the cluster, and what of them passes between two pods: nothing leaves the pods' own network."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.place import Place
from cluster.whole import BASE, PYTHON, PYTHON_CLAIM

LOAD = Path(__file__).with_name("load.py")
POD = "client"
MODEL = "smollm2"  # as the example serves it


@dataclass(frozen=True, slots=True)
class Load:
    """A load under way."""

    process: subprocess.Popen[str]

    def result(self, *, within_s: float) -> dict[str, Any]:
        """Waits for the last answer; what load.py prints."""
        out, err = self.process.communicate(timeout=within_s)
        assert self.process.returncode == 0, err
        found: dict[str, Any] = json.loads(out)
        return found


@dataclass(frozen=True, slots=True)
class Client:
    """A pod with the official client, in a namespace: load stays inside the cluster."""

    place: Place

    @classmethod
    def made(cls, place: Place) -> Client:
        """Its pod, running."""
        place.plane.apply(_pod(place.namespace))
        place.kubectl("wait", "--for=condition=Ready", f"pod/{POD}", "--timeout=60s")
        return cls(place)

    def url(self, name: str) -> str:
        """A deployment's endpoint, by its Service."""
        return f"http://{name}.{self.place.namespace}.svc/v1"

    def run(self, script: str) -> str:
        """What a Python script prints there."""
        done = self.place.plane.kubectl(*self._python, given=script, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, name: str, *, tokens: int = 8) -> str:
        """The text of one greedy completion."""
        script = f"""
import openai
client = openai.OpenAI(base_url="{self.url(name)}", api_key="none", max_retries=0)
asked = dict(model="{MODEL}", prompt="The sun is", max_tokens={tokens}, temperature=0)
print(client.completions.create(**asked).choices[0].text)
"""
        return self.run(script)

    def metrics(self, name: str) -> dict[str, float]:
        """The gateway's metrics, labels and all in the name."""
        (gateway,) = self.place.pods("gateway", name)
        script = (
            "import urllib.request as r;"
            f"print(r.urlopen('http://{gateway['status']['podIP']}:8000/metrics').read().decode())"
        )
        lines = self.run(script).splitlines()
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {sample: float(value) for sample, _, value in samples}

    def load(self, name: str, *, streams: int, seconds: float, words: int, tokens: int) -> Load:
        """Keeps so many streams busy for so long."""
        plane = self.place.plane
        command = [str(plane.binaries / "kubectl"), "--kubeconfig", str(plane.kubeconfig)]
        command += [*self._python, self.url(name), MODEL]
        command += [str(number) for number in (streams, seconds, words, tokens)]
        with LOAD.open() as script:
            process = subprocess.Popen(
                command,
                stdin=script,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        return Load(process)

    @property
    def _python(self) -> tuple[str, ...]:
        return ("exec", POD, "-n", self.place.namespace, "-i", "--", PYTHON, "-")


@contextmanager
def counted(source: str, target: str, port: int) -> Iterator[Count]:
    """Counts what one pod's address sends to another's port, in the bridge between them."""
    with _in_the_bridge(source, target, port, "counter name sent") as table:
        yield Count(table)


@contextmanager
def cut_off(source: str, target: str, port: int) -> Iterator[None]:
    """Lets nothing through that one pod's address sends to another's port."""
    with _in_the_bridge(source, target, port, "drop"):
        yield


@contextmanager
def _in_the_bridge(source: str, target: str, port: int, verdict: str) -> Iterator[str]:
    table = f"exegpt_{uuid.uuid4().hex[:8]}"
    rules = f"""
table bridge {table} {{
  counter sent {{ }}
  chain passing {{
    type filter hook forward priority 0;
    ip saddr {source} ip daddr {target} tcp dport {port} {verdict}
  }}
}}
"""
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    try:
        yield table
    finally:
        subprocess.run(["nft", "delete", "table", "bridge", table], check=True)


@dataclass(frozen=True, slots=True)
class Count:
    """A counter of the kernel's."""

    table: str

    def bytes(self) -> int:
        """Of all packets so far, headers counted."""
        command = ["nft", "-j", "list", "counter", "bridge", self.table, "sent"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = [
            each["counter"] for each in json.loads(done.stdout)["nftables"] if "counter" in each
        ]
        return int(found[0]["bytes"])


def _pod(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD, "namespace": namespace},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "client",
                    "image": BASE,
                    "imagePullPolicy": "Never",
                    "command": [PYTHON, "-c", "import signal; signal.pause()"],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": "python", "mountPath": "/opt/exegpt", "readOnly": True}
                    ],
                }
            ],
            "volumes": [
                {
                    "name": "python",
                    "persistentVolumeClaim": {"claimName": PYTHON_CLAIM, "readOnly": True},
                }
            ],
        },
    }
