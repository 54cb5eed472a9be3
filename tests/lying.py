"""Clients that lie: what some of them send is changed on its way, in a simulation or between sites in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from flwr.app import Message
from torch import Tensor

import equipoise as eq
from equipoise.core.settings import Settings
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential
from equipoise.federation.method import Method
from equipoise.flower.app import make_client_app
from equipoise.flower.codec import Parcel
from equipoise.flower.grid import InProcessGrid
from equipoise.flower.server.consortium import Consortium, description, federation as of_sites
from equipoise.flower.server.sites import Exchange, Sites
from equipoise.flower.site.task import Task
from equipoise.system.tree import flatten
from helpers import clients, consortium, federation, network

Lies = Callable[[dict[str, Tensor], Tensor], dict[str, Tensor]]  # of what is sent, and of the model received [G]
Bend = Callable[[str, str, Parcel], Parcel]  # of a kind of message, a site's name and its answer


def bent(fed: eq.Federation, bend: Bend) -> eq.Federation:
    """The same federation of sites in this process, whose answers are changed by ``bend``."""
    grid = cast(InProcessGrid, cast(Consortium, fed.population).sites.exchange.grid)
    answered = grid._answered

    def lie(message: Message) -> Message:
        reply = answered(message)
        if reply.has_content():
            site = str(grid.contexts[message.metadata.dst_node_id].node_config["site"])
            reply.content = bend(message.metadata.message_type, site, Parcel.of(reply.content)).records()
        return reply

    grid.__dict__["_answered"] = lie
    return fed


def asked(
    method: str, states: Path, tests: Any, sizes: Sequence[int], measures: Sequence[str] = ("accuracy",), **given: Any
) -> eq.Federation:
    """A federation of sites in this process that alone have test sets, so that the server asks them how its model does."""
    names, settings = [f"client-{m}" for m in range(len(sizes))], Settings(batch_size=8, seed=3, **given)
    server = Task(network(), measures=tuple(measures))
    tasks = {name: replace(server, train=d, test=tests) for name, d in zip(names, clients(sizes), strict=True)}
    nodes = [{"site": name, "state-dir": str(states), "least-group": 1} for name in names]
    grid = InProcessGrid(make_client_app(lambda node, _: tasks[str(node["site"])]), nodes, {})
    told = description(Method.of(method), eq.SGD(0.05), settings, measures, "run")
    sites = Sites(Exchange(grid, told, deadline=1e9))
    sites.gather(len(names), names, 0.0)
    return of_sites(server, sites, method, eq.SGD(0.05), settings=settings)


def liars(where: str, method: Any, lies: Lies, who: Collection[str] = ("client-1",), **given: Any) -> eq.Federation:
    """A federation, ``"simulated"`` or of ``"sites"``, in which the clients ``who`` lie about their trainings.

    ``lies`` is given what such a client sends, its model as ``"model"`` [G] and its reports by their keys, and says what it sends.
    """
    if where == "sites":
        fed = consortium(method, **given)

        def bend(kind: str, site: str, answer: Parcel) -> Parcel:
            if kind != "train" or site not in who or "error" in answer.fields:
                return answer
            names = {name: name.rpartition("/")[2] for name in answer.tensors if name.startswith("reports/")}
            names["model/values"] = "model"
            told = lies({key: answer.tensors[name] for name, key in names.items()}, fed.progress.vector)
            kept = {name: x for name, x in answer.tensors.items() if name not in names}
            return Parcel(answer.fields, kept | {name: told[key] for name, key in names.items() if key in told})

        return bent(fed, bend)

    def engine(job: Job) -> Iterator[Answer]:
        for answer in sequential(job):
            if f"client-{job.ids[answer.rows[0]]}" not in who:
                yield answer
                continue
            sent = {name.rpartition("/")[2]: x[0] for name, x in flatten(answer.reports).items()}
            told = lies({"model": answer.trained[0], **sent}, job.received[answer.rows[0]])
            reports = [{key: told[key][None] for key in of if key in told} for of in answer.reports]
            yield replace(answer, trained=told["model"][None], reports=reports)

    return federation(method, engine=engine, **given)


def longer(times: float, key: str = "model") -> Lies:
    """Send what is ``key`` so many times as long, an update or a report."""

    def lie(sent: dict[str, Tensor], received: Tensor) -> dict[str, Tensor]:
        start = received if key == "model" else torch.zeros_like(sent[key])
        return {**sent, key: start + times * (sent[key] - start)}

    return lie


def saying(value: float, key: str) -> Lies:
    """Report ``value`` in all numbers of ``key``."""
    return lambda sent, received: {**sent, key: torch.full_like(sent[key], value)}


def left_out(fed: eq.Federation) -> dict[str, str]:
    """Who was left out of any round, and the last reason."""
    return {one["name"]: one["reason"] for record in fed.records for one in record.get("quarantined", [])}
