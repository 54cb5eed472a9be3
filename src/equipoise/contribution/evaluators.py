"""Every evaluator by its name, and as text such as ``gtg(between=0.01, within=0.001)``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from equipoise.contribution.completion import ComFedSV, Played
from equipoise.contribution.exact import Alone, Banzhaf, Exact, LeaveOneOut
from equipoise.contribution.game import Evaluator, Game, Values
from equipoise.contribution.rounds import Rounds, sum_of_rounds
from equipoise.contribution.sampled import GTG, Owen, Permutations, SampledBanzhaf, Strata
from equipoise.system import calls
from equipoise.system.ranges import number, setting
from equipoise.system.suggestions import near, unknown
from equipoise.system.text import read_value


@dataclass(frozen=True)
class Auto(Evaluator):
    """The exact Shapley value of few players, and GTG-Shapley of more.

    Parameters
    ----------
    exact : largest number of players whose coalitions are all evaluated.
    """

    exact: int = setting(number(10, 0, 16), "largest number of players with exact values")

    def __call__(self, game: Game, generator: np.random.Generator) -> Values:
        """The values."""
        return (Exact() if game.n <= self.exact else GTG())(game, generator)


EVALUATORS: Mapping[str, Evaluator] = {
    "auto": Auto(), "exact": Exact(), "tmr": Exact(between=0.01), "gtg": GTG(), "comfedsv": ComFedSV(),
    "permutations": Permutations(), "tmc": Permutations(within=0.05), "owen": Owen(), "strata": Strata(),
    "banzhaf": Banzhaf(), "banzhaf-sampled": SampledBanzhaf(), "loo": LeaveOneOut(), "alone": Alone(),
}  # fmt: skip


def read(text: str) -> Evaluator:
    """The evaluator of a name, with options in brackets; a value without a name is that of the first option.

    Raises
    ------
    ValueError : no such evaluator or option, or a value out of its range.
    """
    call = calls.read(text)
    if call.name not in EVALUATORS or not call.complete:
        raise ValueError(unknown("evaluator", text, EVALUATORS))
    evaluator: Any = EVALUATORS[call.name]
    names, values = [f.name for f in fields(evaluator)], dict[str, Any]()
    for key, value in filter(any, call.pairs or ()):
        option = key or next(iter(names), value)
        if option not in names or option in values:
            expected = f"expected {', '.join(names) or 'no option'}, each once"
            raise ValueError(f"evaluator {text!r}: {expected}; found {option!r}.{near(option, names)}")
        values[option] = read_value(value)
    return replace(evaluator, **values)  # type: ignore[no-any-return]


def text_of(evaluator: Evaluator) -> str:
    """The text that :func:`read` reads back: the name, and the options that differ from its defaults; of your own evaluator its ``repr``."""
    usual: Evaluator | None
    name, usual = next(((k, each) for k, each in EVALUATORS.items() if type(each) is type(evaluator)), ("", None))
    if usual is None:
        return repr(evaluator)
    changed = [f"{key}={value}" for key, value in vars(evaluator).items() if value != vars(usual)[key]]
    return f"{name}({', '.join(changed)})" if changed else name


def evaluate(evaluator: Evaluator, n: int, rounds: Played, generator: np.random.Generator) -> Rounds:
    """The values of n clients over rounds, each with the ids of its clients, in the order of the players, and its game."""
    if isinstance(evaluator, ComFedSV):
        return evaluator(n, rounds, generator)
    return sum_of_rounds(n, [(ids, evaluator(game, generator)) for ids, game in rounds])
