"""Every word that a condition's `reason` may be, with what it means and what to do: docs are made from this.

A closed list: a reason that is not here cannot be written.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a condition is as it is."""

    meaning: str
    remedy: str  # empty where there is nothing to do

    def __new__(cls, value: str, meaning: str, remedy: str = "") -> Reason:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        member.remedy = remedy
        return member

    # all is well, or on its way
    PENDING = "Pending", "Nothing has been looked at yet."
    RECONCILING = (
        "Reconciling",
        "What was asked for is being made; the other conditions say how far it is.",
    )
    SERVING = "Serving", "The plan in force is served."
    SETTLED = "Settled", "Nothing is under way."
    VALID = "Valid", "The spec can mean something."
    PROFILING = "Profiling", "Step times are being measured."
    PROFILED = "Profiled", "Step times are there."
    PLANNING = "Planning", "The planner searches."
    PLANNED = "Planned", "A plan keeps the bound by prediction."
    STARTING = "Starting", "Pods are being scheduled, started, or load weights."
    READY = "Ready", "As many as wanted are ready."
    KEPT = "Kept", "Measured answers keep the bound."
    STABLE = "Stable", "Observed lengths are within the threshold of the planned ones."
    DRIFTED = (
        "Drifted",
        "Observed lengths are beyond the threshold.",
        "Nothing: it is answered after the cool-down.",
    )
    # someone asked for it
    SUSPENDED = "Suspended", "spec.suspend gives the devices back.", "Set spec.suspend to false."
    AWAITING_APPROVAL = (
        "AwaitingApproval",
        "planPolicy is Review and the plan is not approved.",
        "Look at the plan's ConfigMap, then annotate exegpt.dev/approved-plan with its id.",
    )
    DRY_RUN = (
        "DryRun",
        "planPolicy is DryRun: plans are shown and nothing is started.",
        "Set planPolicy to Auto or Review.",
    )
    # the spec
    INVALID_SPEC = (
        "InvalidSpec",
        "The spec contradicts itself or the model.",
        "Correct the field that the message names.",
    )
    MISSING_SECRET = (
        "MissingSecret",
        "A Secret or a key of it that the spec names is not there.",
        "Create it in this namespace.",
    )
    MISSING_CONFIG_MAP = (
        "MissingConfigMap",
        "A ConfigMap that the spec or an annotation names is not there.",
        "Create it in this namespace.",
    )
    MISSING_CLAIM = (
        "MissingClaim",
        "The PersistentVolumeClaim of model.uri is not there.",
        "Create it, or correct model.uri.",
    )
    MALFORMED_ANNOTATION = (
        "MalformedAnnotation",
        "An exegpt.dev/observed-* annotation says nothing that lengths can be; the last plan stays.",
        "Write mean=…,std=…[,max=…][,n=…] in tokens, or histogram=<ConfigMap>, or remove it.",
    )
    # profile and plan
    PROFILE_FAILED = (
        "ProfileFailed",
        "Step times could not be measured.",
        "See the message; then delete the ExeGPTProfile, and it is measured again.",
    )
    INCOMPLETE_PROFILE = (
        "IncompleteProfile",
        "The profile does not reach the steps that the lengths ask for.",
        "Delete the ExeGPTProfile, and it is measured anew for these lengths.",
    )
    INFEASIBLE = (
        "Infeasible",
        "No schedule keeps the bound.",
        "Relax latencyBound.seconds, shorten answers, or add devices, as the message says.",
    )
    MODEL_TOO_LARGE = (
        "ModelTooLarge",
        "The weights leave no room for KV on a device.",
        "Use devices with more memory, a smaller dtype or a smaller model.",
    )
    PLAN_FAILED = (
        "PlanFailed",
        "The planner ended with an error.",
        "See the message and the operator's log; it is tried again every five minutes, and at a change of the spec.",
    )
    # pods
    INSUFFICIENT_GPUS = (
        "InsufficientGPUs",
        "Not all pods fit the cluster; none is held.",
        "Add nodes or free devices; it is tried again by itself.",
    )
    UNSCHEDULABLE = (
        "Unschedulable",
        "A pod fits no node, for another reason than devices.",
        "Correct podTemplate or the nodes, as the scheduler's words say.",
    )
    IMAGE_PULL_ERROR = (
        "ImagePullError",
        "A pod's image cannot be pulled.",
        "Correct the image in the operator's values, or its pull secret.",
    )
    CRASH_LOOP = (
        "CrashLoop",
        "A container ends again and again.",
        "See its log: kubectl logs --previous.",
    )
    OOM_KILLED = (
        "OOMKilled",
        "A container took more memory than its limit.",
        "Raise podTemplate.resources.limits.memory.",
    )
    FORBIDDEN = (
        "Forbidden",
        "Pods or other objects are refused by admission or quota.",
        "See the message; adapt the quota or the policy of the namespace.",
    )
    # serving
    NOT_REACHED = (
        "NotReached",
        "The gateway does not answer the operator.",
        "See the gateway's log and the NetworkPolicies between the namespaces.",
    )
    TRANSFER_FAILED = (
        "TransferFailed",
        "A probe of KV did not get from encoders to decoders.",
        "Let pods reach each other's ports from 7400 on.",
    )
    SELF_TEST_FAILED = (
        "SelfTestFailed",
        "A short query through all workers is not answered.",
        "See the logs of the gateway and the workers; it is asked again by itself.",
    )
    NO_OBSERVATIONS = "NoObservations", "Too few answers were seen to say."
    BROKEN = (
        "Broken",
        "Measured answers break the bound more often than promised.",
        "See exegpt explain; profile again if the machine has changed.",
    )


MISSING = {
    "Secret": Reason.MISSING_SECRET,
    "ConfigMap": Reason.MISSING_CONFIG_MAP,
    "PersistentVolumeClaim": Reason.MISSING_CLAIM,
}
_BY_WORD = {str(reason): reason for reason in Reason}


def reason_of(word: str) -> Reason:
    """The reason that a word stands for; raises `KeyError` for any other."""
    return _BY_WORD[word]
