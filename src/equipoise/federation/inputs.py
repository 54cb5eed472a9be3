"""A network and its training and test data, checked to work together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils.data import ConcatDataset, Dataset, TensorDataset

from equipoise.core.copies import NetworkError, copied
from equipoise.core.draws import cohort_size, generator_states, seeded
from equipoise.core.hidden_units import Neurons
from equipoise.core.model import Bound, Model, Stacked, inner
from equipoise.core.observation import observe, require_outputs
from equipoise.core.rates import Layers, RateLike
from equipoise.core.settings import Settings
from equipoise.core.task import CLASSIFICATION, Classification, Task
from equipoise.data import samples
from equipoise.data.batch import Batch, Inputs, Shape, finite, listed, shape_of
from equipoise.data.samples import Absent, Items, Lazy, Samples, Transform, loaded
from equipoise.federation.method import Method
from equipoise.records.meta import REPEATED, TOGETHER
from equipoise.submodels.discovery import find
from equipoise.system import memory as freed, text
from equipoise.system.devices import usable_device
from equipoise.system.ranges import check_whole
from equipoise.system.suggestions import some
from equipoise.system.tree import tree_map

FEW = 20  # clients with tests of their own that are groups; more are tested together
ALL = "all"  # what these are called
Named = Mapping[str, object]  # test sets as the user has them
Reading = Callable[..., Samples | Absent]  # data as the user has them, and a name for errors
Groups = Mapping[str, tuple[Sequence[str], Sequence[str]]]  # hidden units: what makes them, what reads them


@dataclass(frozen=True)
class Frame:
    """The checked inputs of a federation: see :class:`equipoise.Federation`.

    ``data`` are the clients' (``first`` those of the first, loaded); ``reading`` reads more data as theirs were read.
    """

    model: Model
    bound: Bound
    names: tuple[str, ...]
    data: tuple[Samples | Absent, ...]
    first: Samples
    tests: dict[str, Samples]
    client_tests: tuple[Samples | None, ...] | None
    server_validation: Samples | None
    n_classes: int
    n_features: int
    transform: Transform | None
    reading: Reading

    def sensitive(self, given: object, *, away: bool) -> dict[str, tuple[str, ...]]:
        """By the name of each sensitive attribute the names of its values, none where they are not ``given``; clients may be ``away``."""
        held = (self.first, *self.data, *self.tests.values(), *(self.client_tests or ()))
        every = [d for d in held if isinstance(d, Samples) and d.attributes]
        A = max((d.attributes for d in every), default=0)
        if given is None or (away and not A):
            return {f"s[{k}]" if A > 1 else "s": () for k in range(A)}
        by_name = _values_of_attributes(given, A)
        for k, (name, values) in enumerate(by_name.items()):
            codes = max((int(d.s[:, k].max()) for d in every if d.s is not None), default=-1)
            if len({*values}) < max(len(values), codes + 1):
                raise ValueError(
                    f"attributes[{name!r}] must hold a different name for each code from 0 to {codes}; found {', '.join(values) or 'none'}."
                )
        return by_name

    def divided(self, share: float, seed: int) -> tuple[Frame, tuple[Samples | Absent | None, ...]]:
        """The same without what every client holds out, and what that is; None for a client with too few samples."""
        people = samples.at_one_client([d.people for d in self.data])
        parts = [samples.divided(d, share, seed, *each) for d, *each in zip(self.data, self.names, people, strict=True)]
        data = tuple(own for own, _ in parts)
        first = self.first if parts[0][1] is None else loaded(data[0])
        return replace(self, data=data, first=first), tuple(held for _, held in parts)

    def values(self, sensitive: Mapping[str, Sequence[str]]) -> dict[str, int]:
        """The number of values of each sensitive attribute: those that have names, or codes that clients here have."""
        here = [d.s for d in (self.first, *self.data) if isinstance(d, Samples) and d.s is not None]
        return {
            name: len(names) or max((int(s[:, k].max()) + 1 for s in here), default=0)
            for k, (name, names) in enumerate(sensitive.items())
        }

    def require_data_for(self, method: Method) -> None:
        """Require the task, and the validation data, that a method looks at."""
        method.require(self.model.task)
        if "validation" in method.needs and self.server_validation is None:
            raise ValueError(
                f"{method} measures on validation data of the server's own, and this federation has none. "
                "Give server_validation=(x, y), which no client trains on, or choose a scenario that holds some out, such as digits-pow."
            )

    def suit(self, method: Method, settings: Settings, sizes: Mapping[str, int] | None = None) -> None:
        """Require a network from which a method gets what it uses, and batches on which the network can be trained.

        Parameters
        ----------
        method, settings : what would be run.
        sizes : training samples of every client by its name; None: of those here.
        """
        model, fault = self.model, ""
        if method.uses and model.head_name is None:
            fault = f"{method} uses the features that enter the classifier, and the network {_headless(model)}"
        elif "classifier" in method.uses and not model.head[: model.n_params].any():
            fault = (
                f"{method} trains the classifier, and {model.head_name!r} is frozen (requires_grad=False). "
                "Let it be trained, or name another layer: head='NAME', or --head NAME."
            )
        if fault:
            raise NetworkError(fault, harmless=fault)
        if sizes is None:
            sizes = {name: d.size for name, d in zip(self.names, self.data, strict=True)}
        if alone := [name for name, n in sizes.items() if single(model, settings, n)]:
            self._take_one(alone, settings)

    def stacks(self) -> bool:
        """Whether the network can be run for several clients at a time: not where its code reads a number of a tensor, for instance."""
        initial, P = self.model.initial.expand(2, -1), self.model.n_params
        x = self.first.batch(torch.zeros(2, dtype=torch.int64, device=initial.device), None).x
        x = tree_map(lambda leaf: leaf.expand(2, *leaf.shape), x)
        try:
            theta, buffers = initial[:, :P], initial[:, P:].clone()
            Stacked(self.model).gradient(theta, buffers, x, lambda logits, _: logits.sum((-1, -2)))
        except Exception:  # whatever vmap, or the network in it, raises
            return False
        return True

    def _take_one(self, names: Sequence[str], settings: Settings) -> None:
        """Require that the network trains on a batch of one sample, as it would for some clients."""
        model, P = self.model, self.model.n_params
        x = self.first.batch(torch.zeros(1, dtype=torch.int64, device=model.initial.device), None).x
        try:
            with seeded(0):
                parts = model.initial[:P].clone(), model.initial[P:].clone()
                self.bound.gradient(*parts, x, lambda logits, _: logits.sum(1).mean())
        except Exception as error:  # whatever the network raises
            have, each, them = ("have", " each", "them") if len(names) > 1 else ("has", "", "it")
            if not model.batch_norm:
                raise NetworkError(
                    f"{some(names)} {have} a batch of one sample, on which the network cannot be trained "
                    f"({type(error).__name__}: {error}). Let it take one: squeeze() drops its axis, for instance."
                ) from error
            norms = some([repr(n) for n, m in model.net.named_modules() if isinstance(m, _BatchNorm)], 3)
            fault = (
                f"{some(names)} {have} one sample{each}, on which BatchNorm {norms} cannot be trained, as the statistics "
                f"of one sample mean nothing. Leave {them} out, give {them} more samples, or replace BatchNorm by GroupNorm."
            )
            if settings.batch_size == 1:
                fault = (
                    f"batch_size=1: BatchNorm {norms} cannot be trained on batches of one sample, whose statistics mean nothing. "
                    "Take batch_size=2 (--batch-size 2) or more, or replace BatchNorm by GroupNorm."
                )
            raise NetworkError(fault, harmless=fault) from error

    def pooled(self, settings: Settings) -> tuple[Frame, Settings]:
        """The same with one client that has the samples of all, and settings that let it train as much as they do in a round."""
        here = [d for d in self.data if isinstance(d, Samples)]
        kinds = {None if d.content is None else d.content.kind for d in here}
        if len(here) == len(self.data) and len(kinds) == 1 and None not in kinds:
            whole = samples.joined(here)
        elif len(here) == len(self.data) and kinds == {None}:
            A = here[0].attributes
            sets: ConcatDataset[object] = ConcatDataset([d.store for d in here if isinstance(d.store, Dataset)])
            whole = replace(here[0], store=Items(sets, self.model.task.dtype, A))
        else:
            raise ValueError(
                "centralised needs the data of all clients together: all in memory and of one shape, or all data sets; found clients "
                "with data that are loaded when needed, or of several kinds. Leave it out."
            )
        asked = cohort_size(len(self.data), settings.participation)
        steps = None if settings.steps is None else settings.steps * asked
        return replace(self, data=(whole,), names=("all clients",)), replace(settings, steps=steps, participation=1.0)

    def neurons(self, groups: Groups | None = None) -> Neurons:
        """The network's hidden units, checked on a few samples of a client."""
        x = self.first.batch(torch.arange(16, device=self.first.sizes.device) % self.first.size, None).x
        return find(self.model, x, groups)


def repeated(data: Iterable[Samples | Absent | None], tests: Iterable[Samples | None] = ()) -> list[str]:
    """That several samples of a client, or in a test set, are of one person, in a sentence; nothing where that is not known."""
    held = [d for d in tests if d is not None]
    people = [d.people for d in (*data, *held) if isinstance(d, Samples) and d.people is not None]
    together = held and all(d.people is not None for d in held)
    return [TOGETHER if together else REPEATED] * any(len(np.unique(each)) < len(each) for each in people)


def require_people(method: Method, sensitive: Mapping[str, Sequence[str]], *, here: bool) -> None:
    """Require ``sensitive`` attributes of the samples, if the method treats groups of people; named ones where not all samples are ``here``.

    Raises
    ------
    ValueError : there are none, or the number of their values is not known.
    """
    if "sensitive" not in method.needs:
        return
    if unnamed := [name for name, values in sensitive.items() if not values and not here]:
        raise ValueError(
            f"{method} treats groups of people, and clients whose data are not here may have other values of {some(unnamed)}. "
            'Name the values of every attribute: attributes={"sex": ["f", "m"]}.'
        )
    if not sensitive:
        raise ValueError(
            f"{method} treats groups of people, and these samples have no sensitive attributes. Name the column of the groups "
            "(--set group=NAME), give clients (x, y, s), or choose a scenario that has some: adult, heart."
        )


def _headless(model: Model) -> str:
    """That a network has no classifier, and how to name one."""
    others = model.observed.candidates
    if not others:
        return "has none that could be found. Put the layer that makes logits of features into a module of its own, and name it: head='NAME', or --head NAME."
    more = f" (or {', '.join(map(repr, others[1:]))})" if len(others) > 1 else ""
    return f"has no nn.Linear that makes its logits. Name the layer that does: head={others[0]!r}{more}, or --head {others[0]}."


def single(model: Model, settings: Settings, n: int) -> bool:
    """Whether a client with ``n`` samples trains on a batch of one; BatchNorm leaves out the last where there are others."""
    width = settings.batch_size
    return n == 1 or width == 1 or (n % width == 1 and not model.batch_norm)


def frame(
    net: nn.Module,
    clients: Iterable[object],
    settings: Settings,
    names: Sequence[str] | None = None,
    *,
    lr: RateLike = 0.01,
    tests: Mapping[str, object],
    client_tests: Sequence[object] | None = None,
    server_validation: object = None,
    transform: Transform | None = None,
    head: str | None = None,
    memory: int | None = None,
    task: Task = CLASSIFICATION,
) -> Frame:
    """Read all data, and run the network on them once."""
    where = usable_device(settings.device)
    if where.type == "cpu":
        freed.keep()
    _check_arguments(net, tests, transform, memory)
    net = copied(net).to(where)
    dtype = Model(net, head).initial.dtype  # errors of the network come before the data are read
    if any(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) for m in net.modules()):
        dtype = torch.int64  # whole numbers, which it looks up
    reading = partial(samples.read, dtype=dtype, device=where, transform=transform, target=task.dtype)
    clients = _clients(clients)
    called = names_of(clients, names)
    data = _client_samples(reading, clients, called, settings, memory)
    first = loaded(data[0])
    sets = _test_sets(reading, tests)
    own = _own_test_sets(reading, client_tests or (), called)
    model = _rated(_observed(net, head, called[0], first, task.fitted(_targets(data, called, settings))), lr)
    model.bf16 = settings.precision == "bf16"
    held_out = None if server_validation is None else _server_samples(reading, server_validation)
    bound = Bound(model)
    n_classes, n_features = _probe(bound, model, called[0], first)
    like = None if first.shape_and_labels is None else (called[0], first.shape_and_labels[0])
    A = first.attributes
    every: list[tuple[str, Samples | Absent | None]] = [*zip(called, data, strict=True)]
    every += [*((f"test set {n!r}", d) for n, d in sets.items()), *own.items(), ("server_validation", held_out)]
    here = [(name, d) for name, d in every if isinstance(d, Samples)]  # others are checked when they are loaded
    for name, d in here:
        samples.check(d, name, like, n_classes)
    present = {name: d.attributes for name, d in here}
    samples.check_attributes({called[0]: A} | {name: n for name, n in present.items() if name in called})
    samples.check_attributes({name: n for name, n in present.items() if n})  # test sets may have none
    data = tuple(replace(d, like=like, n_classes=n_classes, attributes=A) if isinstance(d, Absent) else d for d in data)
    mine = None if client_tests is None else tuple(own.values())
    freed.give_back()
    return Frame(model, bound, called, data, first, sets, mine, held_out, n_classes, n_features, transform, reading)


def _targets(data: Sequence[Samples | Absent], names: Sequence[str], settings: Settings) -> list[Tensor]:
    """What clients whose data are in memory train to predict."""
    people = samples.at_one_client([d.people for d in data])
    return [
        samples.trained_on(d.content.y, (settings.validation, settings.seed), name, of_whom)
        for d, name, of_whom in zip(data, names, people, strict=True)
        if isinstance(d, Samples) and d.content is not None
    ]


def _values_of_attributes(given: object, A: int) -> dict[str, tuple[str, ...]]:
    """The names of the values of ``A`` sensitive attributes, by the names of these, as the user gave them."""
    names = (named("attributes", given, "sensitive attributes") or ()) if isinstance(given, Mapping) else ()
    if not isinstance(given, Mapping) or len(names) != A:
        raise ValueError(
            'attributes must name the values of each sensitive attribute s, such as {"sex": ["f", "m"]}; '
            f"the samples have {A}, found {', '.join(names) or 'none'}."
        )
    return {name: named(f"attributes[{name!r}]", given[name], "values") or () for name in names}


def _check_arguments(net: object, tests: object, transform: object, memory: int | None) -> None:
    """Require arguments of the right kinds, before anything is read."""
    _check_network(net)
    if transform is not None and not callable(transform):
        raise TypeError(f"transform must be a function transform(x, shift); found {type(transform).__name__}.")
    if memory is not None:
        check_whole("memory", memory, 0, meaning=" bytes")
    if not isinstance(tests, Mapping):
        raise TypeError(
            f'tests must give each test set a name, such as {{"all": (x, y)}}; found {type(tests).__name__}.'
        )


def names_of(clients: Sequence[object], names: Sequence[str] | None) -> tuple[str, ...]:
    """A different name for each client.

    Raises
    ------
    ValueError : there is no client, or another number of names, or some twice.
    """
    called = named("names", names, "clients") or tuple(f"client-{k}" for k in range(len(clients)))
    if not clients or not len(called) == len(set(called)) == len(clients):
        names_found = f"{len(set(called))} different names" + f" among {len(called)}" * (len(set(called)) < len(called))
        counts = f"{len(clients)} clients and {names_found}"
        raise ValueError(f"A federation needs at least one client, and a different name for each; found {counts}.")
    return called


def _client_samples(
    reading: Reading, clients: Sequence[object], names: Sequence[str], settings: Settings, memory: int | None
) -> tuple[Samples | Absent, ...]:
    """The data of all clients, which share ``memory`` bytes: lazy data of one cohort are in memory together, other data of all clients."""
    space = samples.room() if memory is None else memory
    cohort = cohort_size(len(clients), settings.participation)
    return tuple(
        reading(c, name, memory=space // (cohort if isinstance(c, Lazy) else len(clients)))
        for c, name in zip(clients, names, strict=True)
    )


def _test_sets(reading: Reading, tests: Mapping[str, object]) -> dict[str, Samples]:
    """The test sets by their names."""
    names = named("tests", tests, "test sets") or ()
    if len(set(names)) != len(tests):
        raise ValueError(f"Every test set needs a name of its own; found {', '.join(names)}.")
    return {n: loaded(reading(t, f"test set {n!r}")) for n, t in zip(names, tests.values(), strict=True)}


def _own_test_sets(reading: Reading, client_tests: Iterable[object], names: Sequence[str]) -> dict[str, Samples | None]:
    """The test sets that are one client's each, by what errors call it; None where it has none."""
    called = (f"test set of {name}" for name in chain(names, (f"client-{m}" for m in count(len(names)))))
    pairs = zip(called, client_tests, strict=False)
    return {whose: None if given is None else loaded(reading(given, whose)) for whose, given in pairs}


def _server_samples(reading: Reading, given: object) -> Samples:
    """The server's own validation data, whose numbers must be finite."""
    data = loaded(reading(given, "server_validation"))
    if data.content is not None and not finite(data.content.x).all():
        raise ValueError("server_validation holds numbers that are not finite. Correct or leave out these samples.")
    return data


def _rated(model: Model, lr: RateLike) -> Model:
    """The model, where rates of 0 for some layers freeze their tensors."""
    if not isinstance(lr, Layers):
        return model
    net = model.net
    lr.check([n for n, _ in net.named_parameters()])
    if "head" in dict(lr.rates) and model.head_name is None and not any(inner(n, "head") for n in model.names):
        raise ValueError(f"lr has a rate for the classifier, head, and the network {_headless(model)}")
    named_rates = zip(model.names, lr.of(model.names, model.head_name), strict=True)
    frozen = {n for n, rate in named_rates if rate == 0}
    for n, parameter in net.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and n not in frozen)
    return Model(net, model.head_name, model.random, model.observed, model.task)


def own_tests(
    client_tests: Sequence[object] | None,
    tests: Named | None,
    groups: Sequence[str] | None,
    names: Sequence[str] | None,
) -> tuple[list[object] | None, Named | None, Sequence[str] | None]:
    """The test sets that are one client's each, the named ones, and the one of each client.

    Where clients have their own and there are no others, these are theirs, or of many all together.
    """
    if client_tests is None:
        return None, tests, groups
    if isinstance(client_tests, (str, Mapping)) or not isinstance(client_tests, Iterable):
        raise TypeError(
            f"client_tests must be a list with (x, y) or None for each client; found {type(client_tests).__name__}."
        )
    sets = list(client_tests)
    if tests or groups is not None:
        return sets, tests, groups
    called = [f"client-{k}" for k in range(len(sets))] if names is None else list(names)
    given = {name: data for name, data in zip(called, sets, strict=False) if data is not None}
    if len(given) <= FEW:
        return sets, given, called if len(given) == len(called) == len(sets) else None
    pairs = {name: d.tensors if isinstance(d, TensorDataset) else d for name, d in given.items()}
    each = [d if isinstance(d, Dataset) else samples.as_batch(d, name) for name, d in pairs.items()]
    return sets, {ALL: _joined(each)}, None


def _joined(sets: Sequence[Any]) -> Batch | Dataset[Any]:
    """The samples of several test sets: one batch, if all are batches of one kind."""
    batches = [d for d in sets if isinstance(d, Batch)]
    if len(batches) == len(sets) and len({(d.kind, None if d.s is None else d.s.shape[1:]) for d in batches}) == 1:
        return Batch.joined(batches)
    mixed: list[Any] = [d.rows if isinstance(d, Batch) else d for d in sets]
    return ConcatDataset(mixed)


def _observed(net: nn.Module, head: str | None, who: str, data: Samples, task: Task) -> Model:
    """The model, after a run of the network on a client's data."""
    before = generator_states()
    x = _batch(data, who)
    drawn = data.content is not None and generator_states() != before  # by the transform
    with taking(shape_of(x), f"the data of {who}"):
        observed = observe(net, x, head, task)
    return Model(net, observed.head, observed.random or drawn, observed, task)


@contextmanager
def taking(data: Samples | Shape, whose: str) -> Iterator[None]:
    """Turn the error of a network that does not take some data, or inputs of a shape, into one sentence."""
    try:
        yield
    except NetworkError:
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
        about = data.shape_and_labels if isinstance(data, Samples) else (data,)
        shape = "" if about is None else f" of shape {listed(about[0], 1)}"
        raise ValueError(
            f"The network does not take {whose}: an input{shape} gives {type(error).__name__}: {error}"
        ) from error


def _probe(bound: Bound, model: Model, who: str, first: Samples) -> tuple[int, int]:
    """Classes and features of the network, from one sample in evaluation."""
    P = model.n_params
    x = first.batch(torch.zeros(1, dtype=torch.int64, device=model.initial.device), None).x
    blind = [repr(n) for n, m in model.net.named_modules() if isinstance(m, _BatchNorm) and m.running_mean is None]
    why = f", as BatchNorm {some(blind, 3)} keeps no running statistics (track_running_stats=False: leave it out)"
    with taking(shape_of(x), f"the data of {who} one by one, in evaluation{why if blind else ''}"):
        logits, features = bound.forward(model.initial[:P], model.initial[P:].clone(), x)
        require_outputs(logits, 1, train=False, task=model.task)
    _check_task(model.task, logits, torch.zeros(1, dtype=model.task.dtype, device=logits.device))
    model.try_channels_last(tree_map(lambda leaf: leaf.expand(2, *leaf.shape[1:]), x))
    n_classes = logits.shape[1] if isinstance(model.task, Classification) else 0
    return n_classes, features.shape[1]


def _check_task(task: Task, outputs: Tensor, y: Tensor) -> None:
    """Require one loss and one prediction per sample, also of the user's own task."""
    for name, values in (("losses", task.losses(outputs, y)), ("predictions", task.predictions(outputs))):
        if values.shape != y.shape:
            raise ValueError(
                f"{type(task).__name__}.{name} must give one number per sample, of shape {list(y.shape)} for outputs of shape "
                f"{list(outputs.shape)}; found {list(values.shape)}."
            )


def _batch(data: Samples, who: str) -> Inputs:
    """Network inputs of two samples, the first one twice."""
    try:
        return data.batch(torch.zeros(2, dtype=torch.int64, device=data.sizes.device), None).x
    except Exception as error:
        if data.transform is None:
            raise
        raise ValueError(
            f"The transform does not take the data of {who}: transform(x, None) must give a tensor with as many samples as x; "
            f"{type(error).__name__}: {error}"
        ) from error


def _check_network(net: object) -> None:
    """Require a network whose numbers are there."""
    if not isinstance(net, nn.Module):
        shown = f"the class {net.__name__}: write {net.__name__}(...)" if isinstance(net, type) else type(net).__name__
        raise TypeError(f"net must be an nn.Module that gives logits [batch, classes]; found {shown}.")
    for name, x in (*net.named_parameters(), *net.named_buffers()):
        if isinstance(x, (UninitializedParameter, UninitializedBuffer)):
            raise ValueError(
                f"The size of {name!r} is not known yet, because its layer is lazy. Call the network on a batch first, net(x), "
                "or give its layers their sizes."
            )
        if x.is_meta:
            raise ValueError(
                f"{name!r} of the network is on the meta device, where there are no numbers. Build the network on the CPU, "
                "or give it numbers: net.to_empty(device='cpu'), then net.load_state_dict(...)."
            )
        if x.is_complex():
            raise TypeError(f"{name!r} of the network holds complex numbers ({x.dtype}); give a network of real ones.")
        if not x.isfinite().all():
            raise ValueError(f"{name!r} of the network holds NaN or infinity. Give it finite numbers to start from.")


def _clients(clients: object) -> list[object]:
    """The data of each client, in a list."""
    single = isinstance(clients, (list, tuple)) and len(clients) in (2, 3) and all(map(_numbers, clients))
    if single or isinstance(clients, (str, Mapping)) or not isinstance(clients, Iterable) or _numbers(clients):
        kind = "one (x, y)" if single else type(clients).__name__
        more = " Give list(clients.values()) and names=list(clients)." if isinstance(clients, Mapping) else ""
        raise TypeError(f"clients must be a list that holds (x, y) of each client, [(x, y), ...]; found {kind}.{more}")
    return list(clients)


def _numbers(value: object) -> bool:
    return hasattr(value, "shape") and not isinstance(value, Dataset)  # tensors, arrays, tables


def named(what: str, given: Iterable[object] | None, owners: str) -> tuple[str, ...] | None:
    """Names as the user gave them, safe to print; None where none were given.

    Parameters
    ----------
    what : the argument.
    owners : what has these names.
    """
    if given is None:
        return None
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"{what} must be a list with a name for each of the {owners}; found {given!r}.")
    each = list(given)
    for name in each:
        if not isinstance(name, (str, int)):
            raise TypeError(f"{what} must hold text; found {name!r}.")
    return tuple(map(text.name, each))
