"""Attacks and metrics on a client: what leaks, how surely, and when not to believe it."""

from splitveil.evaluation.audit import audit
from splitveil.evaluation.evaluate import Progress, Update, evaluate
from splitveil.evaluation.flags import BoundLike, Flag, FlagName
from splitveil.evaluation.result import SCHEMA_VERSION, AttackResult, Result
from splitveil.evaluation.roles import Roles
from splitveil.evaluation.suite import SUITES, Suite, Trial, cheap, standard, suite_named

__all__ = [
    "SCHEMA_VERSION",
    "SUITES",
    "AttackResult",
    "BoundLike",
    "Flag",
    "FlagName",
    "Progress",
    "Result",
    "Roles",
    "Suite",
    "Trial",
    "Update",
    "audit",
    "cheap",
    "evaluate",
    "standard",
    "suite_named",
]
