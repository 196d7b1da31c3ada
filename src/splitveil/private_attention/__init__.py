"""Cross-attention over a private memory: one release, unlimited adaptive queries."""

from splitveil.private_attention.answer import Answer
from splitveil.private_attention.builder import Builder
from splitveil.private_attention.codebook import CodebookFeatures
from splitveil.private_attention.memory import PrivateKV
from splitveil.private_attention.module import PrivateCrossAttention, project_rows
from splitveil.private_attention.nystrom import NystromFeatures
from splitveil.private_attention.polynomial import PolynomialFeatures
from splitveil.private_attention.prior import PublicPrior, PublicRegression
from splitveil.private_attention.report import Report
from splitveil.private_attention.spec import Bounds, PrivacySpec
from splitveil.private_attention.stream import PrivateKVStream
from splitveil.private_attention.tree import DPTreeCrossAttention

__all__ = [
    "Answer",
    "Bounds",
    "Builder",
    "CodebookFeatures",
    "DPTreeCrossAttention",
    "NystromFeatures",
    "PolynomialFeatures",
    "PrivacySpec",
    "PrivateCrossAttention",
    "PrivateKV",
    "PrivateKVStream",
    "PublicPrior",
    "PublicRegression",
    "Report",
    "project_rows",
]
