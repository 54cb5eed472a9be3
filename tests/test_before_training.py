"""What a network, a method and data cannot do together is said before the first round, in the user's words, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import equipoise as eq
from equipoise.core.copies import NetworkError
from helpers import in_one
from run_helpers import equipoise  # noqa: F401 (a fixture)

Call = Callable[..., Any]
Sizes = tuple[int, ...]


def client(n: int, seed: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(seed)), torch.arange(n) % 2


def made(net: nn.Module, sizes: Sizes = (20, 20, 20), method: str = "fedavg", **more: Any) -> eq.Federation:
    return eq.Federation(net, [client(n, k) for k, n in enumerate(sizes)], method, **{"engine": "sequential"} | more)


class Net(nn.Module):
    def __init__(self, forward: Callable[[nn.Module, Tensor], Any], **modules: nn.Module) -> None:
        super().__init__()
        self.a, self.h = nn.Linear(6, 8), nn.Linear(8, 2)
        self.how = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Any:
        return self.how(self, x)


def normed(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), norm, nn.Linear(8, 2))


def images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (6, 1, 1)), nn.Conv2d(6, 4, 1), *layers, nn.Flatten(), nn.Linear(4, 2))


# batches of one sample
@in_one(
    ("net", "sizes", "more", "message"),
    [
        (normed(nn.BatchNorm1d(8)), (20, 20), {"batch_size": 1}, r"^batch_size=1: BatchNorm '1' .* Take batch_size=2 \(--batch-size 2\)"),
        (images(nn.BatchNorm2d(4)), (20, 20), {"batch_size": 1}, "^batch_size=1: BatchNorm '2'"),
        (normed(nn.BatchNorm1d(8)), (1, 20), {}, "^client-0 has one sample, on which BatchNorm '1' .*Leave it out, give it more"),
        (images(nn.BatchNorm2d(4)), (20, 1, 1), {}, "^client-1, client-2 have one sample each.*Leave them out"),
        (normed(nn.BatchNorm1d(8)), (20, 2), {"validation": 0.5}, "^client-1 has one sample"),
        (normed(nn.BatchNorm1d(8)), (1, 20), {"steps": 2}, "^client-0 has one sample"),
    ],
)  # fmt: skip
def test_batches_of_one_sample(net: nn.Module, sizes: Sizes, more: dict[str, Any], message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        made(net, sizes, **more)


class Functional(nn.Module):
    """Normalises over the batch, and no layer says so."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.h = nn.Linear(6, 8), nn.Linear(8, 2)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.h(functional.batch_norm(self.a(x), self.mean, self.var, training=self.training))


def test_a_last_batch_of_one_sample() -> None:
    made(Functional()).fit(1, progress=False)
    with pytest.raises(
        NetworkError, match=r"^client-1 has a batch of one sample, .* \(ValueError: Expected more than 1"
    ):
        made(Functional(), (20, 33))


def test_the_advice_on_batches_of_one_works() -> None:
    made(normed(nn.BatchNorm1d(8)), batch_size=2).fit(1, progress=False)
    made(normed(nn.GroupNorm(2, 8)), (1, 20), batch_size=1).fit(1, progress=False)
    made(normed(nn.BatchNorm1d(8)), (33, 20)).fit(1, progress=False)  # the last sample is left out
    wide = nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(24, 2)
    )
    fed = made(wide, (1, 20), batch_size=1)  # six values of each channel in one sample
    fed.fit(1, progress=False)
    assert "quarantined" not in fed.records[0]


@in_one(
    ("net", "message"),
    [
        (normed(nn.GroupNorm(8, 8)), "'1', a GroupNorm of 8 groups, normalises single values .*Take fewer groups"),
        (nn.Sequential(nn.Unflatten(1, (6, 1)), nn.LayerNorm(1), nn.Flatten(), nn.Linear(6, 2)), "'1', a LayerNorm over"),
        (nn.Sequential(nn.Unflatten(1, (6, 1)), nn.InstanceNorm1d(6), nn.Flatten(), nn.Linear(6, 2)), "gives ValueError: Expected more than 1"),
        (normed(nn.BatchNorm1d(8, track_running_stats=False)), "client-0 one by one, in evaluation, as BatchNorm '1' keeps no running statistics"),
        (Net(lambda s, x: s.h(s.a(x)).squeeze()), r"for 1 sample it gives \[2\]\. Write flatten\(1\)"),
        (nn.Sequential(nn.Embedding(9, 2, max_norm=1.0), nn.Flatten(), nn.Linear(12, 2)), "parameter '0.weight' .*Leave out max_norm"),
        (Net(lambda s, x: s.h(s.a(x)) if s.training else {"logits": s.h(s.a(x))}), "it gives a dictionary with logits"),
        (nn.Sequential(nn.Linear(7, 2)), r"the data of client-0: an input of shape \[1, 6\] gives RuntimeError"),
        (Net(lambda s, x: {}["key"]), "gives KeyError: 'key'"),
        (nn.Sequential(nn.Linear(6, 8), nn.LazyBatchNorm1d(affine=False), nn.Linear(8, 2)), r"The size of '1.running_mean' is not known .*net\(x\)"),
    ],
)  # fmt: skip
def test_networks_that_cannot_be_trained(net: nn.Module, message: str) -> None:
    data = (
        [(torch.ones(5, 6, dtype=torch.int64), torch.arange(5) % 2)] * 2
        if isinstance(next(net.children()), nn.Embedding)
        else None
    )
    with pytest.raises(ValueError, match=message):
        made(net) if data is None else eq.Federation(net, data)


def test_lazy_layers_work_after_a_call() -> None:
    net = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(2))
    net(client(4, 0)[0])
    made(net).fit(1, progress=False)


# the classifier
class Pooled(nn.Module):
    """Ends in a convolution; a linear layer weighs channels on the way."""

    def __init__(self, weigh: bool) -> None:
        super().__init__()
        self.c, self.g, self.out = (
            nn.Conv1d(1, 8, 3, padding=1),
            nn.Linear(8, 8) if weigh else nn.Identity(),
            nn.Conv1d(8, 2, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.c(x[:, None]))
        return self.out(h * torch.sigmoid(self.g(h.mean(-1)))[:, :, None]).mean(-1)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.unused = nn.Linear(6, 8), nn.Linear(8, 2)
        self.classifier = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.relu(self.features(x)))


class Cosine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.w = nn.Linear(6, 8), nn.Parameter(torch.randn(2, 8, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(functional.normalize(self.e(x)), functional.normalize(self.w))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 8, 3), nn.ReLU(), nn.Conv1d(8, 2, 4), nn.Flatten())


@in_one("method", ["fedpac", "moon", "fedproto", "fedproc", "fedproto+fedheal", "moon+afl"])
@in_one(
    ("net", "todo"),
    [
        (Pooled(True), "head='out', or --head out"),
        (Pooled(False), "head='out'"),
        (convolutional(), "head='3'"),
        (Cosine(), "Put the layer that makes logits"),
    ],
)
def test_rules_that_use_features_need_a_classifier(method: str, net: nn.Module, todo: str) -> None:
    with pytest.raises(NetworkError) as found:
        made(net, method=method)
    assert str(found.value).startswith(f"{method} uses the features that enter the classifier, and the network has n")
    assert todo in str(found.value)
    made(net, method="fedheal")  # which uses none


@in_one(
    ("net", "head"),
    [
        (Pooled(True), "out"),
        (convolutional(), "3"),
        (Deep(), "classifier"),
        (Deep(), None),
        (nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2), nn.LogSoftmax(1)), None),
        (nn.Sequential(nn.Linear(6, 8), nn.utils.parametrizations.weight_norm(nn.Linear(8, 2))), None),
    ],
)
def test_classifiers_are_mixed_where_one_is_named(net: nn.Module, head: str | None) -> None:
    """All of a module's parameters, also of those inside it, and nothing else."""
    fed = made(net, (20, 30, 16), "fedpac", head=head, solver=eq.SGD(0.1))
    fed.fit(2, progress=False)
    name = fed.model.head_name
    one, other = (fed.state_dict(client=m) for m in (0, 1))
    unlike = {n for n in one if not torch.equal(one[n], other[n])}
    assert unlike == {n for n in one if n.startswith(f"{name}.")}
    assert int(fed.model.head.sum()) == sum(p.numel() for n, p in net.named_parameters() if n.startswith(f"{name}."))


@in_one(
    ("net", "head", "message"),
    [
        (Pooled(True), "g", r"head='g' is not the classifier: the logits are not made of its output alone\. Give head='out' \(--head out\)\."),
        (Pooled(True), "c", "g.weight, g.bias, out.weight, out.bias are trained after it"),
        (Deep(), "classifier.0", r"classifier.2.weight, classifier.2.bias are trained after it\. Give head='classifier' .* or head='classifier.2'"),
        (Deep(), "unused", "never calls the layer 'unused'"),
        (Deep(), "clasifier", r"has no module 'clasifier' .* Did you mean 'classifier'\? It has: features, unused, classifier"),
    ],
)  # fmt: skip
def test_another_layer_is_no_classifier(net: nn.Module, head: str, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        made(net, head=head)


def test_a_frozen_classifier_is_not_trained() -> None:
    net = Deep()
    for p in net.classifier.parameters():
        p.requires_grad_(False)
    for head in (None, "classifier"):
        with pytest.raises(
            NetworkError, match=r"^fedpac trains the classifier, and 'classifier.*' is frozen \(requires_grad=False\)"
        ):
            made(net, method="fedpac", head=head)
    made(net, method="moon").fit(1, progress=False)  # features are all it uses


def test_a_rate_for_a_classifier_that_is_not_there() -> None:
    lr = "layers(0.01, head=0.1)"
    with pytest.raises(
        ValueError, match=r"lr has a rate for the classifier, head, and the network has no nn.Linear .*head='out'"
    ):
        made(Pooled(True), solver=eq.SGD(lr))
    made(Pooled(True), solver=eq.SGD(lr), head="out").fit(1, progress=False)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning", "ignore:The .grad attribute")
def test_scripts_are_trained() -> None:
    net = torch.jit.script(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)))
    fed = made(net, engine="auto", sizes=(20,) * 4)
    fed.fit(1, progress=False)
    assert "quarantined" not in fed.records[0]


# on the command line
NETS = """
import torch
from torch import nn

class Conv(nn.Module):
    def __init__(self, in_shape, n_classes):
        super().__init__()
        self.c, self.h = nn.Conv2d(in_shape[0], 4, 3, padding=1), nn.Conv2d(4, n_classes, 1)

    def forward(self, x):
        return self.h(torch.relu(self.c(x))).mean((-1, -2))

class Counting(Conv):
    steps = 0

    def forward(self, x):
        self.steps += 1
        return super().forward(x)
"""


def test_the_command_line_says_it_before_it_makes_a_directory(tmp_path: Path, equipoise: Call) -> None:  # noqa: F811
    file = tmp_path / "nets.py"
    file.write_text(NETS)
    tiny = ["--set", "clients=4", "--rounds", 1, "--no-report", "--runs", tmp_path / "runs"]
    for given, expected in (
        (
            ["run", "--method", "fedpac", "--network", f"{file}:Conv"],
            "Name the layer that does: head='h', or --head h.",
        ),
        (["compare", "fedavg", "fedpac", "--network", f"{file}:Conv"], "--head h"),
        (["run", "--network", f"{file}:Counting"], "attribute 'steps' (changed in training)"),
        (["run", "--method", "fedpac", "--network", f"{file}:Conv", "--head", "c"], "Give head='h' (--head h)."),
    ):
        ended = equipoise(*given, *tiny)
        assert (ended.status, ended.out) == (2, "")
        assert expected in ended.err
        assert len(ended.err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()
    assert equipoise("run", "--method", "fedpac", "--network", f"{file}:Conv", "--head", "h", *tiny).status == 0
    assert len(list((tmp_path / "runs").iterdir())) == 1
