"""docs/reference.md from the resource definitions and the reasons: `python -m exegpt_operator.documents crds`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from exegpt_operator.reasons import Reason

Schema = Mapping[str, Any]

HEAD = """# Reference

Made by `make docs` from `crds/` and `exegpt_operator/reasons.py`; a test compares.
`kubectl explain xd.spec` says the same.
"""


def reference(crds: Sequence[Path]) -> str:
    """The whole page."""
    parts = [HEAD, *(_kind(path) for path in crds), _reasons()]
    return "\n".join(parts)


def _kind(path: Path) -> str:
    definition = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
    (version,) = definition["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    names = definition["names"]
    lines = [
        f"## {names['kind']}",
        "",
        f"`{definition['group']}/{version['name']}`, `{names['plural']}`, short `{names['shortNames'][0]}`. "
        f"{schema['description']}",
        "",
        "| field | type | default | |",
        "|---|---|---|---|",
        *_rows(schema["properties"]["spec"], "spec"),
        *_rows(schema["properties"]["status"], "status"),
        "",
        "Refused at once, in these words:",
        "",
        *(f"- {message}" for message in _rules(schema)),
        "",
    ]
    return "\n".join(lines)


def _rows(node: Schema, path: str) -> Iterator[str]:
    required = node.get("required", ())
    for name, below in node.get("properties", {}).items():
        here = f"{path}.{name}"
        default = "required" if name in required else _shown(below.get("default"))
        yield f"| `{here}` | {_type(below)} | {default} | {below['description']} |"
        yield from _rows(below, here)
        if "items" in below:
            yield from _rows(below["items"], f"{here}[]")


def _type(node: Schema) -> str:
    if "enum" in node:
        return ", ".join(f"`{each}`" for each in node["enum"])
    kind = node.get("type", "string or number")
    if kind == "array":
        return f"list of {_type(node['items'])}"
    if kind == "object" and "additionalProperties" in node:
        return f"map of {_type(node['additionalProperties'])}"
    limits = [
        f"{word} {node[limit]}"
        for word, limit in (("from", "minimum"), ("to", "maximum"))
        if limit in node
    ]
    return " ".join([kind, *limits])


def _shown(value: Any) -> str:
    return "" if value in (None, {}, "") else f"`{value}`"


def _rules(node: Any) -> Iterator[str]:
    """The messages of all rules, each once, in reading order."""
    seen: dict[str, None] = {}
    stack = [node]
    while stack:
        each = stack.pop(0)
        if isinstance(each, Mapping):
            for rule in each.get("x-kubernetes-validations", ()):
                seen.setdefault(rule["message"])
            stack = [*(value for key, value in each.items() if key != "default"), *stack]
        elif isinstance(each, list):
            stack = [*each, *stack]
    yield from seen


def _reasons() -> str:
    rows = [f"| `{reason}` | {reason.meaning} | {reason.remedy} |" for reason in Reason]
    lines = [
        "## Reasons of conditions",
        "",
        "`kubectl get xd` shows Ready's; the message has the cause in the words of scheduler, kubelet or planner.",
        "",
        "| reason | meaning | what to do |",
        "|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference(sorted(Path(sys.argv[1]).glob("*.yaml"))))
