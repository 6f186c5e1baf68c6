"""Why pods are not ready, in the words of scheduler and kubelet, the most telling first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from exegpt_operator.reasons import Reason
from exegpt_operator.seen import ContainerSeen, PodSeen

_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
_ORDER = (
    Reason.OOM_KILLED,
    Reason.IMAGE_PULL_ERROR,
    Reason.CRASH_LOOP,
    Reason.MISSING_SECRET,
    Reason.INSUFFICIENT_GPUS,
    Reason.UNSCHEDULABLE,
)
Cause = tuple[Reason, str]


def worst(pods: Sequence[PodSeen], resource_name: str) -> Cause | None:
    """The most telling cause among these pods; None where they are only on their way."""
    found = [cause for pod in pods for cause in _causes(pod, resource_name)]
    return min(found, key=lambda cause: _ORDER.index(cause[0]), default=None)


def _causes(pod: PodSeen, resource_name: str) -> Iterator[Cause]:
    if not pod.is_scheduled and pod.unscheduled_because:
        lacks_devices = f"Insufficient {resource_name}" in pod.unscheduled_because
        reason = Reason.INSUFFICIENT_GPUS if lacks_devices else Reason.UNSCHEDULABLE
        yield reason, f"Pod {pod.name}: {_sentence(pod.unscheduled_because)}"
    for container in pod.containers:
        if not container.is_ready and (why := _of_container(container)) is not None:
            words = container.message or container.waiting or container.ended
            yield why, f"Pod {pod.name}, container {container.name}: {_sentence(words)}"


def _of_container(container: ContainerSeen) -> Reason | None:
    if container.ended == "OOMKilled":
        return Reason.OOM_KILLED
    if container.waiting in _IMAGE:
        return Reason.IMAGE_PULL_ERROR
    if container.waiting == "CreateContainerConfigError":
        return Reason.MISSING_SECRET
    if container.waiting == "CrashLoopBackOff":
        return Reason.CRASH_LOOP
    return None


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith(".") else f"{text}."
