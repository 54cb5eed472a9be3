"""What a site or the server brings: a network and its own data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from equipoise.core.task import CLASSIFICATION, Regression, Task as Learnt, task_of
from equipoise.data.batch import Inputs, Kind, Shape
from equipoise.data.samples import Transform
from equipoise.data.transforms import Images
from equipoise.federation import fingerprint, inputs, preparation
from equipoise.federation.trial import Trial
from equipoise.scenarios.shared import SharedSchema
from equipoise.system import own_code

VALUES = "values of sensitive attributes"


@dataclass(frozen=True)
class Task:
    """The network, and what this node knows: a site its own data, the server what it holds itself, if anything.

    Parameters
    ----------
    net : the network, as for :class:`equipoise.Federation`; the same at every node but for its first values, which the
        server's are.
    train : a site's training data, ``(x, y)`` or ``(x, y, s)``, a ``torch.utils.data.Dataset`` or :class:`equipoise.Lazy`; None on the server.
    test : test data ``(x, y)`` or a data set, or several by name. A site's are named after it where they have no name. They
        never leave it. The server needs none; where it has those that the sites name, it tests the global model itself.
    server_validation : the server's validation data, for methods that judge clients by them.
    transform, head, neurons : as for :class:`equipoise.Federation`.
    measures : what is recorded beside accuracy and loss, names of ``metrics.MEASURES``, the same at all nodes: a site gives no others.
    features, classes : different names, of the features in the order of the data, and of the classes in the order of the labels.
    attributes : by the name of each sensitive attribute, in the order of s, the names of its values, in the order of their codes.
    scaling : how features were scaled, in text, numbers, lists and dictionaries. Whoever states any of these four agrees with the
        others that do, or the run does not begin. Only codes of them leave a site.
    task : what the targets mean, as for :class:`equipoise.Federation`; of a regression with centre and scale.
    schema : that of the tables of all sites, see :meth:`of_table`.
    """

    net: nn.Module
    train: Any = None
    test: Any = None
    server_validation: Any = None
    transform: Transform | None = None
    head: str | None = None
    neurons: inputs.Groups | None = None
    measures: tuple[Any, ...] = ("accuracy",)
    features: Sequence[str] | None = None
    classes: Sequence[str] | None = None
    scaling: Any = None
    attributes: Mapping[str, Sequence[str]] | None = None
    task: Any = "classification"
    schema: SharedSchema | None = None

    @staticmethod
    def of_table(net: nn.Module, schema: SharedSchema, data: str | None = None, **more: Any) -> Task:
        """A site's table, by the schema that all sites made; without ``data`` the server's task.

        Parameters
        ----------
        net : of ``len(schema.inputs)`` inputs, with an output for each of ``schema.classes``, or one for numbers to predict.
        schema : the same at every site and the server; what was learnt is compared before the first round.
        data : the table of this site; its columns are matched by name.
        more : as of :class:`Task`.
        """
        train, test = (None, None) if data is None else schema.samples(data)
        names: dict[str, Any] = {"features": schema.inputs, "classes": schema.classes or None}
        names["attributes"] = schema.values or None
        return Task(net, train, test, scaling=schema.coder.as_json(), task=schema.task, schema=schema, **names, **more)

    @property
    def about(self) -> dict[str, Any]:
        """What a bundle says of the data of sites."""
        if self.schema is None:
            return {"scenario": "sites"}
        return {"scenario": "sites", "layout": "a table at each site", "schema": self.schema.coder.as_json()}

    @property
    def common(self) -> dict[str, Any]:
        """What a federation, or a site's part of it, takes by name."""
        return {"transform": self.transform, "head": self.head, "task": self.meaning}

    @property
    def meaning(self) -> Learnt:
        """What the targets mean, see :func:`meaning`."""
        return meaning(self.task)

    def told(self, config: Mapping[str, Any]) -> Task:
        """The same with the task that the run's configuration names, if it names one.

        Raises
        ------
        ValueError : the app's function names another.
        """
        if not (task := config.get("task")):
            return self
        if any(own_code.references(str(task))):
            raise ValueError(
                f"{str(task)[:80]!r}: a site runs no code that a server names. Give it in the app's function, Task(task=...)."
            )
        if task_of(self.task) not in (CLASSIFICATION, task_of(task)):
            raise ValueError(
                f"The run's configuration has task = {task!r}, and the app's function Task(task={str(self.task)!r}). Leave one of them out."
            )
        return replace(self, task=task)

    def agreement(self, trial: Trial, shape: Shape) -> dict[str, str]:
        """The :func:`equipoise.federation.fingerprint.agreement` of this node, whose samples have a ``shape``."""
        stated = {"features": self.features, "classes": self.classes, "scaling": self.scaling}
        if isinstance(self.transform, Images) and self.train is not None:
            stated["grey levels"] = self.transform.levels
        names, own = preparation.recorded_of(self.meaning, self.measures)
        measures = sorted([*names, *map(str, own)])
        task = None if self.meaning == CLASSIFICATION else str(self.meaning)
        values = None if self.attributes is None else [[name, list(names)] for name, names in self.attributes.items()]
        codes = fingerprint.agreement(trial, shape, {**stated, "measures": measures, "task": task, VALUES: values})
        if self.train is None:
            return codes
        return codes | {"sensitive attributes": str(trial.data[0].attributes or "none")}  # in words, as it is no secret

    def tests(self, name: str) -> dict[str, Any]:
        """The test sets by name; one without a name is called ``name``."""
        if self.test is None:
            return {}
        return dict(self.test) if isinstance(self.test, Mapping) else {name: self.test}


def meaning(given: Any) -> Learnt:
    """What targets mean at all nodes.

    Raises
    ------
    ValueError : no task, or a regression whose centre and scale would be those of one site.
    """
    task = task_of(given)
    if isinstance(task, Regression) and None in (task.centre, task.scale):
        raise ValueError(
            "A regression between sites needs a centre and a scale of the targets, the same at all nodes, as no node knows the others': "
            "task='regression(centre=150, scale=80)', about mean and standard deviation."
        )
    return task


TaskFunction = Callable[[Mapping[str, Any], Mapping[str, Any]], Task]  # (node config, run config) -> Task


class Blank(Dataset[tuple[Inputs, int]]):
    """A placeholder for a site's samples on the server: as many, of the same shape and type, random and of class 0."""

    def __init__(self, size: int, kind: Kind) -> None:
        self.size, self.kind = size, kind

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> tuple[Inputs, int]:
        draw = torch.Generator().manual_seed(row)
        made = {name: _random(shape, dtype, draw) for name, shape, dtype in self.kind}
        return made.get("", made), 0


def _random(shape: torch.Size, dtype: torch.dtype, draw: torch.Generator) -> Tensor:
    """Numbers that a network may take."""
    if dtype == torch.int64:  # indices into something, of which the first is always there
        return torch.zeros(shape, dtype=dtype)
    if not dtype.is_floating_point:
        return torch.randint(0, 2 if dtype == torch.bool else 128, shape, generator=draw).to(dtype)
    return torch.randn(shape, generator=draw).to(dtype)
