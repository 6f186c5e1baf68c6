"""An API server in this process, over HTTP: objects, watches, conflicts, and whatever failures a test asks for."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kubernetes.client import ApiClient, Configuration

from exegpt_operator import names
from exegpt_operator.api import _PLURALS

Object = dict[str, Any]
_KINDS = {plural: (version, kind) for kind, (version, plural) in _PLURALS.items()}
_CLUSTER_WIDE = ("namespaces", "nodes")


class ApiServer:
    """Its objects by path, without the version: `<namespace>/<plural>/<name>`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.objects: dict[str, Object] = {}
        self.calls: list[tuple[str, str]] = []  # (HTTP method, path in `objects`)
        self.refuses: dict[
            tuple[str, str], tuple[int, str]
        ] = {}  # (method, plural) -> (status, message)
        self.hangs: set[tuple[str, str]] = set()  # the same, until it ends
        self.is_mute = False  # watches tell nothing any more
        self._events: list[Object] = []
        self._changed = threading.Condition()
        self.is_ending = False

    def client(self) -> ApiClient:
        """A client of it."""
        return ApiClient(Configuration(host=self.url))

    def kubeconfig(self, folder: Path) -> Path:
        """What kubectl's library reads to find it."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": self.url}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "users": [{"name": "it", "user": {"token": "none"}}],
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def put(self, wanted: Mapping[str, Any]) -> Object:
        """Has this object there, with the status that it has; another spec is another generation."""
        plural = _PLURALS[wanted["kind"]][1]
        metadata = wanted["metadata"]
        path = _path(metadata.get("namespace", ""), plural, metadata["name"])
        there = self.objects.get(path)
        if there is None:
            return self.store(path, dict(wanted))
        is_new = there.get("spec") != wanted.get("spec")
        metadata = {**metadata, "generation": there["metadata"]["generation"] + is_new}
        status = {"status": there["status"]} if "status" in there else {}
        return self.store(path, {**status, **wanted, "metadata": metadata})

    def store(self, path: str, wanted: Object) -> Object:
        """Keeps it as the newest version of what is there, and tells watches."""
        with self._changed:
            before = self.objects.get(path)
            version = str(self.num_events + 1)
            old = {} if before is None else before["metadata"]
            metadata = {"uid": f"uid-{version}", "generation": 1} | old | wanted["metadata"]
            made = {**wanted, "metadata": metadata | {"resourceVersion": version}}
            self.objects[path] = made
            kind = "ADDED" if before is None else "MODIFIED"
            self._events.append({"path": path, "type": kind, "object": made})
            self._changed.notify_all()
            return made

    def remove(self, path: str) -> None:
        """Deletes it, and tells watches."""
        with self._changed:
            gone = self.objects.pop(path)
            self._events.append({"path": path, "type": "DELETED", "object": gone})
            self._changed.notify_all()

    def events_after(self, count: int) -> list[Object]:
        """Waits for events beyond the first `count`; may come back with none."""
        with self._changed:
            self._changed.wait(0.1)
            return [] if self.is_mute else self._events[count:]

    @property
    def num_events(self) -> int:
        """As many as there were: the newest resource version."""
        return len(self._events)

    def end(self) -> None:
        """Ends watches."""
        self.is_ending = True


@contextmanager
def serving() -> Iterator[ApiServer]:
    """One that runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    found = ApiServer(f"http://127.0.0.1:{server.server_port}")
    server.api = found  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield found
    finally:
        found.end()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    @property
    def api(self) -> ApiServer:
        found: ApiServer = self.server.api  # type: ignore[attr-defined]
        return found

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Says nothing."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        if (found := _discovered(parts.path)) is not None:
            self._answer(200, found)
            return
        namespace, plural, name, _ = self._asked(parts.path)
        if name:
            self.api.calls.append(("GET", _path(namespace, plural, name)))
        if self._is_refused("GET", plural):
            return
        if name:
            self._object(self.api.objects.get(_path(namespace, plural, name)))
        elif query.get("watch") == "true":
            self._watch(namespace, plural, query)
        else:
            version = str(self.api.num_events)  # before the items: what comes meanwhile is told
            items = [
                each
                for path, each in list(self.api.objects.items())
                if _is_of(path, namespace, plural) and _selected(each, query)
            ]
            self._answer(200, {"items": items, "metadata": {"resourceVersion": version}})

    def do_POST(self) -> None:
        body = self._body()
        namespace, plural, _, _ = self._asked(self.path)
        path = _path(namespace, plural, body["metadata"]["name"])
        self.api.calls.append(("POST", path))
        if self._is_refused("POST", plural):
            return
        if path in self.api.objects:
            self._answer(409, {"message": f"{path} already exists"})
        else:
            self._answer(201, self.api.store(path, body))

    def do_PUT(self) -> None:
        body = self._body()
        namespace, plural, name, _ = self._asked(self.path)
        path = _path(namespace, plural, name)
        self.api.calls.append(("PUT", path))
        if self._is_refused("PUT", plural):
            return
        version = self.api.objects[path]["metadata"]["resourceVersion"]
        if body["metadata"].get("resourceVersion") != version:
            self._answer(409, {"message": "the object has been modified"})
        else:
            self._answer(200, self.api.store(path, body))

    def do_PATCH(self) -> None:
        body = self._body()
        namespace, plural, name, below = self._asked(urlsplit(self.path).path)
        path = _path(namespace, plural, name)
        self.api.calls.append(("PATCH", f"{path}/{below}" if below else path))
        if self._is_refused("PATCH", plural):
            return
        there = self.api.objects.get(path, {"metadata": {}})
        if below == "status":
            self._answer(200, self.api.store(path, {**there, "status": body["status"]}))
        else:
            self._answer(200, self.api.store(path, _merged(there, body)))

    def do_DELETE(self) -> None:
        self._body()
        namespace, plural, name, _ = self._asked(self.path)
        path = _path(namespace, plural, name)
        self.api.calls.append(("DELETE", path))
        if path in self.api.objects:
            self.api.remove(path)
            self._answer(200, {})
        else:
            self._answer(404, {"message": f"{path} not found"})

    def _asked(self, path: str) -> tuple[str, str, str, str]:
        """(namespace, plural, name, what is below it), each empty where it is not named."""
        parts = path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, name, below, *_ = [*parts, "", ""]
        return namespace, plural, name, below

    def _is_refused(self, method: str, plural: str) -> bool:
        while (method, plural) in self.api.hangs and not self.api.is_ending:
            time.sleep(0.05)
        refusal = self.api.refuses.get((method, plural))
        if refusal is not None:
            self._answer(refusal[0], {"message": refusal[1]})
        return refusal is not None

    def _watch(self, namespace: str, plural: str, query: Mapping[str, str]) -> None:
        told = int(query.get("resourceVersion", self.api.num_events))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        try:
            while not self.api.is_ending:
                events = self.api.events_after(told)
                told += len(events)
                for each in events:
                    if _is_of(each["path"], namespace, plural) and _selected(each["object"], query):
                        event = {"type": each["type"], "object": each["object"]}
                        self.wfile.write(json.dumps(event).encode() + b"\n")
                        self.wfile.flush()
        except OSError:
            return  # whoever watched has gone

    def _object(self, found: Object | None) -> None:
        if found is None:
            self._answer(404, {"message": "not found"})
        else:
            self._answer(200, found)

    def _body(self) -> Object:
        found: Object = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        return found

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            return  # whoever asked has gone


def _path(namespace: str, plural: str, name: str) -> str:
    return f"{namespace}/{plural}/{name}"


def _is_of(path: str, namespace: str, plural: str) -> bool:
    of, kind, _ = path.split("/")
    return kind == plural and namespace in ("", of)


def _selected(found: Object, query: Mapping[str, str]) -> bool:
    labels = found["metadata"].get("labels", {})
    wanted = [each.split("=") for each in query.get("labelSelector", "").split(",") if each]
    fields = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return all(labels.get(key) == value for key, value in wanted) and fields in (
        "",
        found["metadata"]["name"],
    )


def _merged(there: Object, body: Object) -> Object:
    metadata = {**there["metadata"], **body["metadata"]}
    for key in ("labels", "annotations"):
        both = {**there["metadata"].get(key, {}), **body["metadata"].get(key, {})}
        metadata |= {key: both} if both else {}
    return {**there, **body, "metadata": metadata}


def _discovered(path: str) -> Object | None:
    """What kopf reads before it watches."""
    versions = sorted({version for version, _ in _KINDS.values()})
    if path == "/version":
        return {"major": "1", "minor": "34"}
    if path == "/api":
        return {"versions": ["v1"]}
    if path == "/apis":
        groups = [version.split("/") for version in versions if "/" in version]
        return {
            "groups": [
                {
                    "name": group,
                    "versions": [{"version": version}],
                    "preferredVersion": {"version": version},
                }
                for group, version in groups
            ]
        }
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if version not in versions:
        return None
    return {
        "resources": [
            {
                "name": plural,
                "singularName": kind.lower(),
                "kind": kind,
                "namespaced": plural not in _CLUSTER_WIDE,
                "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
            }
            for plural, (of, kind) in _KINDS.items()
            if of == version
        ]
    }


def deployment_path(name: str = "translate", namespace: str = "nlp") -> str:
    """Where a deployment lies."""
    return _path(namespace, names.DEPLOYMENTS, name)
