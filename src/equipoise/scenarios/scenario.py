"""What a scenario is: the data of the clients, the named test groups, and how images reach the network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from equipoise.data.memory_mapped import Data, Mapped, labels, shape, take
from equipoise.data.samples import OfPeople, Transform
from equipoise.data.transforms import Images as Images
from equipoise.metrics.collaborative import SERVER
from equipoise.metrics.measures import TASKS as TASKS
from equipoise.system import calls, own_code
from equipoise.system.suggestions import unknown

CLASSIFICATION, REGRESSION = TASKS


def kind_of(task: str) -> str:
    """The kind of a task, ``"regression"`` of ``"regression(loss=huber)"``, or what ``"mine.py:Counts"`` is derived from.

    Raises
    ------
    ValueError : there is no such task.
    """
    own = own_code.split(str(task))[0]
    name = getattr(own_code.load(own), "name", None) if own else calls.read(str(task)).name
    if name not in TASKS:
        raise ValueError(unknown("task", str(task), TASKS))
    return name


@dataclass(frozen=True)
class Protocol:
    """The recommended way to train on a scenario.

    Parameters
    ----------
    rounds : > 0, communication rounds.
    epochs : > 0, passes of a client over its data in one round.
    batch_size : > 0, images in a step.
    lr : > 0, learning rate.
    momentum : in [0, 1), of SGD; 0 for other optimizers.
    weight_decay : >= 0.
    participation : in (0, 1], the share of the clients that train in a round.
    steps : >= 1, local steps of a client in one round, whatever the size of its data: then ``epochs`` is not used;
        ``None`` for ``epochs``.
    optimizer : "sgd", "adam" or "adamw".

    Raises
    ------
    ValueError if ``steps`` is below one.
    """

    rounds: int
    epochs: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float
    participation: float = 1.0
    steps: int | None = None
    optimizer: str = "sgd"

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"Protocol: steps must be >= 1, or None for epochs; found {self.steps}.")


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a scenario is, known before any data are made or read.

    Parameters
    ----------
    name, summary : the scenario's name, and one line about it.
    sample : shape of one sample of the clients' data; [C, H, W] of images.
    transform : turns the samples into what the network takes; ``None`` leaves them as they are.
    n_classes : labels lie in 0..n_classes - 1; 0 where they are numbers to predict.
    network : name of the default network.
    network_options : options of the default network.
    protocol : recommended training.
    measures : what is recorded of the global model on every test group, names of ``metrics.MEASURES``.
    has_server_validation : whether the server holds samples that no client trains on, for methods that judge models by them.
    collaborative : whether what a client gets is to be compared with what it would reach alone.
    classes : names of the classes, in the order of their numbers; empty where they have none.
    positive : the name of the class that true-positive rates are about; ``None`` if it was not said.
    task : what labels are: ``"classification"``, whole numbers for classes, or ``"regression"``, float64 to predict; with
        options as the task has them, ``"regression(unit=EUR, loss=huber)"``.
    predicts : what labels mean, in words; empty where their classes say it.
    remark : what else to know of the data, in a sentence.
    """

    name: str
    summary: str
    sample: tuple[int, ...] = ()
    transform: Transform | None
    n_classes: int
    network: str
    network_options: Mapping[str, Any] = field(default_factory=dict)
    protocol: Protocol
    measures: tuple[str, ...] = ("accuracy",)
    has_server_validation: bool = False
    collaborative: bool = False
    classes: tuple[str, ...] = ()
    positive: str | None = None
    task: str = CLASSIFICATION
    predicts: str = ""
    remark: str = ""

    @property
    def outputs(self) -> int:
        """How many outputs a network needs: one for each class, or one for a number."""
        return 1 if kind_of(self.task) == REGRESSION else self.n_classes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample as the network takes it."""
        return self.transform.shape(self.sample) if isinstance(self.transform, Images) else self.sample


@dataclass(frozen=True, kw_only=True)
class Scenario(Description):
    """A description with its data: federated clients and named test groups.

    ``sample`` and ``has_server_validation`` of the description follow from the data.

    Parameters
    ----------
    clients : per client its samples: uint8 images [n, C, H, W] or numbers [n, ...] with labels int64 [n], or float64 [n] in
        regression, and codes of sensitive attributes int64 [n, A], if there are ``attributes``; or ``Mapped``.
    client_names : one per client, such as ``"photo-2"``.
    client_groups : per client the key of ``tests`` that its own data resemble; ``None`` if the clients are alike, and
        the union of all tests is right for each of them.
    tests : named evaluation sets in the order of reports, of the same kind; none while settings are chosen, see :meth:`sealed`.
    manifest : JSON-able record of what the data are and where each client's part came from.
    client_tests : per client its own test samples, or ``None``, where ``tests`` divide them otherwise.
    server_validation : samples that the server holds; ``None`` if it holds none.
    attributes : by the name of each sensitive attribute the names of its values, in the order of their codes.
    tested : by test set, and per client of its own test set, the person of each sample; ``None`` if they are not known.
    people : per client the person of each sample, as of :class:`equipoise.OfPeople`; ``None`` if they are not known.

    Raises
    ------
    ValueError if the parts contradict each other.
    """

    clients: tuple[Data, ...]
    client_names: tuple[str, ...]
    client_groups: tuple[str, ...] | None
    tests: Mapping[str, Data]
    manifest: dict[str, Any]
    client_tests: tuple[Data | None, ...] | None = None
    server_validation: Data | None = None
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    people: tuple[torch.Tensor, ...] | None = None
    tested: tuple[Mapping[str, torch.Tensor], tuple[torch.Tensor | None, ...] | None] | None = None

    def __post_init__(self) -> None:
        for field_name, values in (("client_names", self.client_names), ("client_groups", self.client_groups)):
            if values is not None and len(values) != len(self.clients):
                raise ValueError(
                    f"Scenario {self.name}: {field_name} must have one entry per client: "
                    f"expected {len(self.clients)}, found {len(values)}."
                )
        if self.tests and (strangers := sorted(set(self.client_groups or ()) - set(self.tests))):
            raise ValueError(
                f"Scenario {self.name}: client groups must be test groups ({', '.join(self.tests)}); found {strangers}."
            )
        held = {} if self.server_validation is None else {"server_validation": self.server_validation}
        named = zip(self.client_names, self.clients, strict=True)
        for holder, data in (*named, *self.tests.items(), *held.items()):
            self._check_samples(holder, data)
        object.__setattr__(self, "sample", shape(self.clients[0]))
        object.__setattr__(self, "has_server_validation", self.server_validation is not None)

    def _check_samples(self, holder: str, data: Data) -> None:
        """Require samples of the kind that the task has."""
        dtype = torch.float64 if kind_of(self.task) == REGRESSION else torch.int64
        y = labels(data)
        if not isinstance(data, Mapped):
            x = data[0]
            images = x.dtype == torch.uint8 and x.dim() == 4
            numbers = x.is_floating_point() or x.dtype == torch.int64
            if not (images or numbers) or y.dtype != dtype or y.shape != x.shape[:1]:
                raise ValueError(
                    f"Scenario {self.name}: '{holder}' must have uint8 images [n, C, H, W], or numbers [n, ...], and "
                    f"{str(dtype).removeprefix('torch.')} labels [n]; found {x.dtype} {list(x.shape)} and {y.dtype} {list(y.shape)}."
                )
        right, expected = y.isfinite(), "finite numbers"
        if dtype == torch.int64:
            right, expected = (y >= 0) & (y < self.n_classes), f"in 0..{self.n_classes - 1}"
        if y.numel() == 0 or not right.all():
            raise ValueError(f"Scenario {self.name}: '{holder}' must have at least one label, all {expected}.")

    def sealed(self, *, rewarded: bool = False) -> Scenario:
        """The same without any test data, for the choice of settings; where what clients get counts, that is on the server's validation data."""
        tests = {SERVER: self.server_validation} if rewarded and self.server_validation is not None else {}
        return replace(self, collaborative=rewarded, tests=tests, client_tests=None)

    def leaving(self, client: str) -> Scenario:
        """Leave one client out, and test on its training data only.

        Raises
        ------
        ValueError : there is no such client, or no other.
        """
        if client not in self.client_names or len(self.clients) < 2:
            raise ValueError(f"{client}: expected one of at least two clients; found {', '.join(self.client_names)}.")
        k = self.client_names.index(client)
        others = [m for m in range(len(self.clients)) if m != k]
        return replace(
            self,
            clients=tuple(self.clients[m] for m in others),
            client_names=tuple(self.client_names[m] for m in others),
            people=None if self.people is None else tuple(self.people[m] for m in others),
            client_groups=None,
            client_tests=None,
            collaborative=False,
            tests={client: self.clients[k]},
            tested=None if self.people is None else ({client: self.people[k]}, None),
        )

    @property
    def holders(self) -> tuple[Data | OfPeople, ...]:
        """The clients' samples as :class:`equipoise.Federation` takes them, with their people, if these are known."""
        if self.people is None:
            return self.clients
        return tuple(OfPeople(data, people) for data, people in zip(self.clients, self.people, strict=True))

    @property
    def test_sets(self) -> tuple[Mapping[str, Data | OfPeople], tuple[Data | OfPeople | None, ...] | None]:
        """The test sets, and those of clients, as :class:`equipoise.Federation` takes them, with their people, if these are known."""
        if self.tested is None:
            return self.tests, self.client_tests
        of_sets, of_clients = self.tested
        sets = {name: OfPeople(data, of_sets[name]) for name, data in self.tests.items()}
        if self.client_tests is None or of_clients is None:
            return sets, self.client_tests
        pairs = zip(self.client_tests, of_clients, strict=True)
        return sets, tuple(None if data is None else OfPeople(data, people) for data, people in pairs)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many samples each client has."""
        return tuple(len(labels(data)) for data in self.clients)


# a description, and the function that makes its data from a seed
Described = tuple[Description, Callable[[int], Scenario]]


def choose(given: str | Sequence[str], choices: Collection[str], noun: str, requirement: str) -> tuple[str, ...]:
    """Different values of some ``choices``, at least one, of a list or of one text with "+" between.

    Raises
    ------
    ValueError : they are not; ``noun`` is what one is called, and ``requirement`` the beginning of the sentence.
    """
    values = tuple(given) if isinstance(given, list | tuple) else tuple(str(given).split("+"))
    if wrong := [value for value in values if value not in choices]:
        raise ValueError(unknown(noun, str(wrong[0]), choices))
    if not values or len({*values}) < len(values):
        raise ValueError(f"{requirement}, at least one; found {', '.join(values) or 'none'}.")
    return values


def numbered(groups: Sequence[str]) -> tuple[str, ...]:
    """A name for each client: its group's, and its number among the clients of that group, from 1."""
    return tuple(f"{group}-{1 + list(groups[:k]).count(group)}" for k, group in enumerate(groups))


class Divided(NamedTuple):
    """What is made of samples that were read or drawn.

    Parameters
    ----------
    parts : per client, positions in the training samples.
    tests : as in :class:`Scenario`.
    names, groups : as in :class:`Scenario`; by default names are those of the groups, or ``client``, with numbers.
    held : positions of the server's samples, if it has any.
    train : the training samples, if they are not those that were read or drawn.
    clients : the clients' samples, if they are not the ``parts`` of the training samples.
    checked : the tensors whose checksum goes into the manifest, if they are not those that were drawn.
    recipe : by what; raise its ``version`` whenever a part of it changes.
    """

    parts: Sequence[Sequence[int]]
    tests: Mapping[str, Data] = MappingProxyType({})
    names: Sequence[str] | None = None
    groups: Sequence[str] | None = None
    held: Sequence[int] | None = None
    train: Data | None = None
    clients: Iterable[Data] | None = None
    checked: Mapping[str, torch.Tensor] | None = None
    recipe: Mapping[str, Any] = MappingProxyType({})

    def scenario(self, description: Description, train: Any, manifest: Mapping[str, Any]) -> Scenario:
        """The scenario of the training samples ``train``; the ``manifest`` states where they came from, and each part is added."""
        train = train if self.train is None else self.train
        names = tuple(self.names or numbered(self.groups or ["client"] * len(self.parts)))
        clients = {name: [*map(int, part)] for name, part in zip(names, self.parts, strict=True)}
        held = {} if self.held is None else {"validation": [*map(int, self.held)]}
        return Scenario(
            **vars(description),
            clients=tuple(self.clients or (take(train, part) for part in self.parts)),
            client_names=names,
            client_groups=None if self.groups is None else tuple(self.groups),
            tests=self.tests,
            server_validation=None if self.held is None else take(train, self.held),
            manifest={**manifest, "clients": clients, **held},
        )
