"""Every method between sites is the method of the simulator, bit for bit: models, server's state, clients' states, records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_every_method import CASES as EVERY, SUMS, run

import equipoise as eq
from equipoise.federation.round import one_round
from equipoise.testing.federations import ROUNDS, SIZES, StoppedError, evaluation_sets, remembered, site_differences
from helpers import consortium, others_slow

CASES = [
    (name, kind) for name, kind in EVERY if name not in SUMS
]  # those of one site's side with another's server side
FAST = {  # for each thing that travels or is kept at a site, a method that needs it; the others wait for `make test-all`
    *((name, "mlp") for name in ("moon", "feddyn", "ditto-personal", "fedproto", "fedheal", "fedce", "fedga")),
    *((name, "mlp") for name in ("cgsv", "fedave", "cffl", "dp", "finetune", "scaffold+fedsac(beta=3)")),
    *((name, "batchnorm") for name in ("scaffold", "fedpac+fedbn", "fedsac")),
}
STOPPED = [
    "scaffold",
    "moon",
    "feddyn",
    "ditto-personal",
    "afl",
    "fedga",
    "fedce",
    "fedpac",
    "fedbn",
    "fedsac",
    "cgsv",
    "cffl",
    "finetune",
    "qffl+finetune",
    "dp",
]


def same(simulated: eq.Federation, sites: eq.Federation, states: Path) -> None:
    assert site_differences(simulated, sites, states) == []
    assert not any({"sharpness", "perturbed_loss"} <= record.keys() for record in sites.records)


@pytest.mark.parametrize(
    ("name", "kind"),
    [pytest.param(n, k, id=f"{n}-{k}", marks=[pytest.mark.slow] * ((n, k) not in FAST)) for n, k in CASES],
)
@pytest.mark.share(3)
def test_sites_give_the_same_bits(name: str, kind: str, tmp_path: Path) -> None:
    sites = consortium(name, kind=kind, sizes=SIZES[kind], tests=evaluation_sets(), states=tmp_path)
    sites.fit(ROUNDS, progress=False)
    same(run(name, kind), sites, tmp_path)


def test_representatives_are_cases() -> None:
    assert set(CASES) >= FAST


def test_clients_keep_something() -> None:
    """Otherwise the comparison of what they keep would say nothing."""
    kept = [len(remembered(run(name, kind), 0)) for name, kind in sorted(FAST)]
    assert sum(count > 0 for count in kept) > len(kept) / 4


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in ("scaffold", "fedbn", "fedsac", "cgsv")))
        for name in STOPPED
    ],
)
def test_a_stopped_run_goes_on_with_the_states_of_the_sites(name: str, tmp_path: Path) -> None:
    """The server stops after it has told the sites to train, and before it has written down what they answered."""
    kind = "batchnorm" if name == "fedbn" else "mlp"

    def make() -> eq.Federation:
        return consortium(name, kind=kind, sizes=SIZES[kind], tests=evaluation_sets(), states=tmp_path / "states")

    broken = make()

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            raise StoppedError

    with pytest.raises(StoppedError):
        broken.fit(ROUNDS, directory=tmp_path / "run", progress=False, on_round=stop)
    list(broken.population.sites(_next_job(broken)))  # the sites have trained on; nobody will hear of it
    again = make()
    again.fit(again.resume(tmp_path / "run"), directory=tmp_path / "run", progress=False)
    same(run(name, kind), again, tmp_path / "states")


def _next_job(fed: eq.Federation) -> Any:
    """The job that the server would give out next."""
    jobs: list[Any] = []

    def spy(job: Any) -> Any:
        jobs.append(job)
        raise StoppedError

    with pytest.raises(StoppedError):
        one_round(replace(fed.trial, engine=spy), fed.progress, ROUNDS)
    return jobs[0]


@pytest.mark.parametrize(
    ("name", "kind"),
    others_slow(
        [(name, "mlp") for name in ("fedavg", "scaffold", "fedsac", "cgsv", "fedave", "fedproto", "moon")]
        + [("fedbn", "batchnorm"), ("fedsac", "batchnorm"), ("scaffold+fedbn", "batchnorm")],
        fast=(2, 3, 5, 9),
    ),
)
def test_as_many_bytes_travel_as_the_simulator_counts(name: str, kind: str, tmp_path: Path) -> None:
    """Submodels and rewards really are smaller: what is measured in the messages is what is recorded as sent."""
    settings = {"kind": kind, "sizes": SIZES[kind], "participation": 1.0}
    sites = consortium(name, states=tmp_path, **settings)
    sites.fit(ROUNDS, progress=False)
    private = sites.trial.private
    for record in sites.records[
        1 if private is not None else 0 :
    ]:  # which begin with the first values of what is private
        for way in ("down", "up"):
            assert record["sent"]["train"][way] == record["bytes"][way], (record["round"], way)
    full = sites.records[-1]["bytes"]["full"]
    if name in ("fedsac", "cgsv", "fedave"):
        assert min(sites.records[-1]["bytes"]["down"]) < full
