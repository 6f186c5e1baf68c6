"""The one module that touches the API server: reads, server-side applies, and little else.

Calls block; the loop makes them in threads. Names and kinds are ours alone, so no discovery is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from kubernetes.client import ApiClient
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
UNREACHED: Final = 503  # as a proxy would say it for an API server that does not answer
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


class ApiRefused(Exception):
    """The API server said no; `str` is its own sentence."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class Api:
    """A client's calls, in the words of this operator."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def get(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """The object, or None."""
        try:
            return self._call("GET", _path(kind, namespace, name))
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
        found = self._call("GET", _path(kind, namespace), query=query)
        api_version = _PLURALS[kind][0]
        items: list[Object] = found["items"]  # which do not say what they are
        return [{"apiVersion": api_version, "kind": kind, **item} for item in items]

    def apply(
        self, wanted: Mapping[str, Any], *, manager: str = FIELD_MANAGER, force: bool = True
    ) -> Object:
        """Server-side apply; without `force` another manager's field is a refusal (409)."""
        metadata = wanted["metadata"]
        path = _path(wanted["kind"], metadata.get("namespace"), metadata["name"])
        return self._patch(path, wanted, manager=manager, force=force)

    def apply_status(self, resource: Mapping[str, Any], status: Mapping[str, Any]) -> Object:
        """The whole status of one of our resources; a resource that is gone meanwhile is a refusal (404)."""
        metadata = resource["metadata"]
        body = {
            "apiVersion": API_VERSION,
            "kind": resource["kind"],
            "metadata": {"name": metadata["name"], "uid": metadata["uid"]},
            "status": status,
        }
        path = _path(resource["kind"], metadata["namespace"], metadata["name"]) + "/status"
        return self._patch(path, body, manager=FIELD_MANAGER, force=True)

    def create(self, wanted: Mapping[str, Any]) -> bool:
        """Creates it; False if it is there already."""
        try:
            namespace = wanted["metadata"].get("namespace")
            self._call("POST", _path(wanted["kind"], namespace), body=wanted)
        except ApiRefused as error:
            if error.status == 409:
                return False
            raise
        return True

    def replace(self, wanted: Mapping[str, Any]) -> Object:
        """Replaces it, if it is still of the resource version that `wanted` names."""
        metadata = wanted["metadata"]
        path = _path(wanted["kind"], metadata.get("namespace"), metadata["name"])
        return self._call("PUT", path, body=wanted)

    def delete(self, kind: str, namespace: str, name: str, *, uid: str | None = None) -> None:
        """Deletes it; nothing happens if it, or this one, is gone."""
        body = {"propagationPolicy": "Background"} | (
            {"preconditions": {"uid": uid}} if uid else {}
        )
        try:
            self._call("DELETE", _path(kind, namespace, name), body=body)
        except ApiRefused as error:
            if error.status not in (404, 409):
                raise

    def _patch(self, path: str, body: Mapping[str, Any], *, manager: str, force: bool) -> Object:
        query = {"fieldManager": manager, "force": str(force).lower()}
        return self._call("PATCH", path, body=body, query=query, content_type=_APPLY)

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        serialised = self._client.param_serialize(
            method=method,
            resource_path=path,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self._client.call_api(*serialised, _request_timeout=TIMEOUT_S)
            data: bytes = response.read()  # type: ignore[no-untyped-call]  # no types in the library
        except HTTPError as error:
            raise ApiRefused(UNREACHED, f"The API server does not answer: {error}") from None
        if not 200 <= response.status < 300:
            raise ApiRefused(response.status, _words(data, str(response.reason)))
        found: Object = json.loads(data)
        return found


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
