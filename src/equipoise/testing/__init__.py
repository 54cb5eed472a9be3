"""The contract of every method, as checks for rules of your own."""

from equipoise.testing.checks import NotApplicableError as NotApplicableError
from equipoise.testing.conformance import CHECKS as CHECKS
from equipoise.testing.conformance import Check as Check
from equipoise.testing.conformance import Conformance as Conformance
from equipoise.testing.conformance import Outcome as Outcome
from equipoise.testing.conformance import RuleError as RuleError
from equipoise.testing.conformance import check_rule as check_rule
from equipoise.testing.conformance import parametrize_with_checks as parametrize_with_checks
from equipoise.testing.hooks import ContractError as ContractError
