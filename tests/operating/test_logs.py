"""Log lines: one JSON object each, whoever wrote it, and nothing of what is secret."""

from __future__ import annotations

import base64
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from exegpt_operator import logs
from exegpt_operator.planning import Answer
from exegpt_operator.watching import FEWEST_ANSWERS
from operator_bench import PLAN_JSON, TOKEN, Bench

SECRET, PROMPT, VARIABLE = "canary-of-a-secret", "canary-of-a-prompt", "canary-of-a-variable"


class Lines:
    """What was logged."""

    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    root = logging.getLogger()
    handlers, level, kopf = root.handlers[:], root.level, logging.getLogger("kopf.objects").level
    stream = io.StringIO()
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr("threading.excepthook", sys.excepthook)
    logs.configure(stream)
    yield Lines(stream)
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("kopf.objects").setLevel(kopf)


def test_a_line_says_when_what_and_about_which(lines: Lines) -> None:
    of = {"namespace": "nlp", "name": "translate", "uid": "u1", "generation": 3, "planId": "ab"}
    logging.getLogger("exegpt_operator.x").warning(
        "cannot\n%s", "steer", extra={"about": of, "problem": 'said "no"'}
    )
    (line,) = lines.all()
    stamp = line.pop("ts")
    assert len(stamp) == len("2026-11-30T12:00:00.000Z")
    assert stamp.endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "exegpt_operator.x",
        "msg": "cannot\nsteer",
        **of,
        "problem": 'said "no"',
    }


def test_an_exception_is_one_line(lines: Lines) -> None:
    log = logging.getLogger("kopf._core.reactor")
    try:
        raise RuntimeError("so\nit is")
    except RuntimeError:
        log.exception("failed", extra={"k8s_ref": {"name": "translate", "namespace": "nlp"}})
    (line,) = lines.all()
    assert (line["name"], line["namespace"], line["level"]) == ("translate", "nlp", "error")
    assert line["exception"].startswith("Traceback")
    assert "RuntimeError: so\nit is" in line["exception"]


@pytest.mark.parametrize(
    "script", ["raise RuntimeError('no')", "import threading as t; t.Thread(target=lambda: 1/0).start()"]
)  # fmt: skip
def test_what_nobody_caught_is_one_line_too(script: str) -> None:
    script = f"from exegpt_operator import logs; logs.configure(); {script}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr == ""
    (line,) = [json.loads(each) for each in done.stdout.splitlines()]
    assert (line["level"], line["msg"]) == ("critical", "ended by an error that nobody caught")
    assert "Error" in line["exception"]


async def test_nothing_secret_is_in_any_line(bench: Bench, lines: Lines) -> None:
    """Through a whole life, with everything refused once that can be."""
    encoded = base64.b64encode(SECRET.encode()).decode()
    secret = {"kind": "Secret", "metadata": {"name": "hub", "namespace": "nlp"}}
    bench.api.put(secret | {"data": {"token": encoded}})
    reference = {"secretKeyRef": {"name": "hub", "key": "token"}}
    env = [{"name": "HF_TOKEN", "valueFrom": reference}, {"name": "X", "value": VARIABLE}]
    bench.deploy(podTemplate={"env": env})
    bench.api.put(
        {
            "kind": "ConfigMap",
            "metadata": {"name": "prompts", "namespace": "nlp"},
            "data": {"prompt": PROMPT},
        }
    )
    del bench.api.objects["nlp/secrets/translate-token"]
    bench.answer = Answer(inputs="", reason="PlanFailed", message="It was killed.")
    await bench.look(2)
    bench.answer = Answer(inputs="", plan=PLAN_JSON)
    bench.deploy(podTemplate={"env": env}, latencyBound={"seconds": 6.0})
    for method, plural in (("POST", "secrets"), ("PATCH", "statefulsets"), ("POST", "events")):
        bench.api.refuses[method, plural] = (403, "forbidden: exceeded quota")
    await bench.look(3)
    bench.api.refuses.clear()
    bench.start_pods()
    await bench.look(3)
    bench.gateway.answers = bench.gateway.kept = FEWEST_ANSWERS
    await bench.look(2)
    assert bench.condition("Ready") == ("True", "Serving")
    bench.api.refuses["GET", "secrets"] = (500, "etcd is away")
    with pytest.raises(Exception, match="etcd is away") as raised:
        await bench.look()
    logging.getLogger("exegpt_operator.process").error("cannot look", exc_info=raised.value)
    told = {line["msg"] for line in lines.all()}
    assert told >= {"decision", "planning", "refused", "a word is lost", "cannot look"}
    for canary in (TOKEN, SECRET, PROMPT, VARIABLE):
        assert canary not in lines.text
        assert base64.b64encode(canary.encode()).decode() not in lines.text
