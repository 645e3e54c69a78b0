"""Verification: every number of the reference, recomputed and compared."""

from disco_torch.verification.verify import Verdict, verify

__all__ = ["Verdict", "verify"]
