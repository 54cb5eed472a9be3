"""The contract of every method, as checks for rules of your own."""

from equipoise.testing.checks import NotApplicableError
from equipoise.testing.conformance import (
    CHECKS,
    Check,
    Conformance,
    Outcome,
    RuleError,
    check_rule,
    parametrize_with_checks,
)
from equipoise.testing.hooks import ContractError

__all__ = [
    "CHECKS",
    "Check",
    "Conformance",
    "ContractError",
    "NotApplicableError",
    "Outcome",
    "RuleError",
    "check_rule",
    "parametrize_with_checks",
]
