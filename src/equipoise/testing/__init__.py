"""The contract of every method, as checks for rules of your own."""

from equipoise.testing.checks import NotApplicableError as NotApplicableError
from equipoise.testing.conformance import (
    CHECKS as CHECKS,
    Check as Check,
    Conformance as Conformance,
    Outcome as Outcome,
    RuleError as RuleError,
    check_rule as check_rule,
    parametrize_with_checks as parametrize_with_checks,
)
from equipoise.testing.hooks import ContractError as ContractError
