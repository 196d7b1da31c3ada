"""Attacks and metrics on a client: what leaks, how surely, and when not to believe it."""

from splitveil.evaluation.audit import audit
from splitveil.evaluation.evaluate import evaluate
from splitveil.evaluation.flags import Flag, FlagName
from splitveil.evaluation.play import Progress, TimeUp, Update
from splitveil.evaluation.result import SCHEMA_VERSION, AttackResult, InferenceResult, Result
from splitveil.evaluation.roles import Roles
from splitveil.evaluation.sharing import Claims, prepare, take_part
from splitveil.evaluation.suite import Inquiry, NotPlayed, Suite, Trial
from splitveil.evaluation.suites import SUITES, attribute_probes, cheap, full, releases, standard, suite_named

__all__ = [
    "SCHEMA_VERSION",
    "SUITES",
    "AttackResult",
    "Claims",
    "Flag",
    "FlagName",
    "InferenceResult",
    "Inquiry",
    "NotPlayed",
    "Progress",
    "Result",
    "Roles",
    "Suite",
    "TimeUp",
    "Trial",
    "Update",
    "attribute_probes",
    "audit",
    "cheap",
    "evaluate",
    "full",
    "prepare",
    "releases",
    "standard",
    "suite_named",
    "take_part",
]
