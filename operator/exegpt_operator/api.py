"""The one module that touches the API server: reads, server-side applies, and little else.

Calls block; the loop makes them in threads. Names and kinds are ours alone, so no discovery is needed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from kubernetes.client import ApiClient, ApiException
from urllib3.exceptions import HTTPError

from exegpt_operator.names import (
    API_VERSION,
    DEPLOYMENT,
    DEPLOYMENTS,
    FIELD_MANAGER,
    PROFILE,
    PROFILES,
)

Object = dict[str, Any]

TIMEOUT_S: Final = 20.0
_PLURALS: Final = {
    "ConfigMap": ("v1", "configmaps"),
    "Event": ("v1", "events"),
    "Job": ("batch/v1", "jobs"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "Namespace": ("v1", "namespaces"),
    "Node": ("v1", "nodes"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Pod": ("v1", "pods"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    DEPLOYMENT: (API_VERSION, DEPLOYMENTS),
    PROFILE: (API_VERSION, PROFILES),
}
_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
_METHODS: Final = {
    "get": "GET", "list": "GET", "create": "POST", "apply": "PATCH", "replace": "PUT", "delete": "DELETE",
}  # fmt: skip


class ApiRefused(Exception):
    """The API server said no; `str` is its own sentence."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class ApiSilent(ApiRefused):
    """The API server did not answer; nobody knows whether it has done what it was asked."""

    def __init__(self, message: str) -> None:
        super().__init__(0, f"The API server does not answer: {message}")


Called = Callable[[str, str, str, float], None]  # verb, kind, code or "none", seconds


class Api:
    """A client's calls, in the words of this operator."""

    def __init__(self, client: ApiClient, *, called: Called = lambda *_: None) -> None:
        """`called` is told of every call, in the thread that made it."""
        self._client = client
        self._called = called

    def get(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """The object, or None."""
        try:
            return self._call("get", kind, namespace, name)
        except ApiRefused as error:
            if error.status == 404:
                return None
            raise

    def list(
        self,
        kind: str,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        fields: Mapping[str, str] | None = None,
    ) -> list[Object]:
        """All of them, of a namespace or of the cluster, that have these labels and fields."""
        query = {
            what: ",".join(f"{k}={v}" for k, v in wanted.items())
            for what, wanted in (("labelSelector", labels), ("fieldSelector", fields))
            if wanted
        }
        found = self._call("list", kind, namespace, query=query)
        api_version = _PLURALS[kind][0]
        items: list[Object] = found["items"]  # which do not say what they are
        return [{"apiVersion": api_version, "kind": kind, **item} for item in items]

    def apply(
        self, wanted: Mapping[str, Any], *, manager: str = FIELD_MANAGER, force: bool = True
    ) -> Object:
        """Server-side apply; without `force` another manager's field is a refusal (409)."""
        metadata = wanted["metadata"]
        return self._call(
            "apply",
            wanted["kind"],
            metadata.get("namespace"),
            metadata["name"],
            body=wanted,
            query=_as(manager, force=force),
        )

    def apply_status(self, resource: Mapping[str, Any], status: Mapping[str, Any]) -> Object:
        """The whole status of one of our resources; a resource that is gone meanwhile is a refusal (404)."""
        metadata = resource["metadata"]
        body = {
            "apiVersion": API_VERSION,
            "kind": resource["kind"],
            "metadata": {"name": metadata["name"], "uid": metadata["uid"]},
            "status": status,
        }
        return self._call(
            "apply",
            resource["kind"],
            metadata["namespace"],
            f"{metadata['name']}/status",
            body=body,
            query=_as(FIELD_MANAGER, force=True),
        )

    def create(self, wanted: Mapping[str, Any]) -> bool:
        """Creates it; False if it is there already."""
        try:
            namespace = wanted["metadata"].get("namespace")
            self._call("create", wanted["kind"], namespace, body=wanted)
        except ApiRefused as error:
            if error.status == 409:
                return False
            raise
        return True

    def replace(self, wanted: Mapping[str, Any]) -> Object:
        """Replaces it, if it is still of the resource version that `wanted` names."""
        metadata = wanted["metadata"]
        return self._call(
            "replace", wanted["kind"], metadata.get("namespace"), metadata["name"], body=wanted
        )

    def delete(self, kind: str, namespace: str, name: str, *, uid: str | None = None) -> None:
        """Deletes it; nothing happens if it, or this one, is gone."""
        body = {"propagationPolicy": "Background"} | (
            {"preconditions": {"uid": uid}} if uid else {}
        )
        try:
            self._call("delete", kind, namespace, name, body=body)
        except ApiRefused as error:
            if error.status not in (404, 409):
                raise

    def _call(
        self,
        verb: str,
        kind: str,
        namespace: str | None,
        name: str | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Object:
        begin_s, code = time.monotonic(), "none"
        try:
            status, reason, data = self._exchange(
                verb, _path(kind, namespace, name), body=body, query=query
            )
            code = str(status)
        finally:
            self._called(verb, kind, code, time.monotonic() - begin_s)
        if not 200 <= status < 300:
            raise ApiRefused(status, _words(data, reason))
        found: Object = json.loads(data)
        return found

    def _exchange(
        self,
        verb: str,
        path: str,
        *,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
    ) -> tuple[int, str, bytes]:
        content_type = _APPLY if verb == "apply" else "application/json"
        serialised = self._client.param_serialize(
            method=_METHODS[verb],
            resource_path=path,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self._client.call_api(*serialised, _request_timeout=TIMEOUT_S)
            data: bytes = response.read()  # type: ignore[no-untyped-call]  # no types there
        except (HTTPError, ApiException) as error:  # the latter for TLS
            raise ApiSilent(str(error)) from error
        return response.status, str(response.reason), data


def _as(manager: str, *, force: bool) -> dict[str, str]:
    return {"fieldManager": manager, "force": str(force).lower()}


def _words(data: bytes, reason: str) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return reason


def _path(kind: str, namespace: str | None, name: str | None = None) -> str:
    version, plural = _PLURALS[kind]
    parts = ["/api" if version == "v1" else "/apis", version]
    if namespace is not None:
        parts += ["namespaces", namespace]
    parts.append(plural)
    return "/".join([*parts, *([name] if name is not None else [])])
