#!/usr/bin/env bash
# fluke-fl 0.8.1. FedAVGM keeps a momentum vector at the server (Hsu, Qi, Brown 2019). In the first round fluke creates
# the vector, all zeros, and does not add the round's change to it. So the model after the first round is the initial
# one: all clients have trained, their models were sent, and nothing of them is used. Every comparison with FedAVGM is
# one round behind, and a run of one round returns an untrained model. Without momentum, R + 1 rounds of FedAVGM are R
# of FedAVG, bit for bit; they should be R + 1.
# Seen: one round of FedAVG moves the parameters by 0.286, one of FedAVGM by 0.0; four rounds of FedAVGM without
# momentum equal three of FedAVG.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check fluke-fl==0.8.1 torch==2.13.0 numpy==2.4.6
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
import contextlib
import io

import numpy as np
import torch
from torch import nn

try:  # torchvision may be for another build of PyTorch; fluke only imports it
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
except RuntimeError:
    pass
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.fedavgm import FedAVGM
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval

CLIENTS = 4
random = np.random.default_rng(0)
inputs = [torch.from_numpy(random.normal(size=(40, 5)).astype(np.float32)) for _ in range(CLIENTS)]
environment = FlukeENV()
environment.set_device("cpu")
environment.set_inmemory(True)
environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
environment.set_evaluator(ClassificationEval(eval_every=10**9, n_classes=2))


def parameters(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()]).clone()


def trained(kind, rounds, **server):
    """The parameters before and after so many rounds in which all clients take part."""
    environment.set_seed(0)
    torch.manual_seed(0)
    net = nn.Linear(5, 2)
    before = parameters(net)
    loaders = [FastDataLoader(x, (x[:, 0] > 0).long(), num_labels=2, batch_size=8, shuffle=False) for x in inputs]
    client = {
        "batch_size": 8, "local_epochs": 1, "loss": "CrossEntropyLoss", "persistency": False,
        "optimizer": {"name": "SGD", "lr": 0.1}, "scheduler": {"name": "StepLR", "gamma": 1, "step_size": 1},
    }
    data = DataSplitter(DummyDataContainer(loaders, [None] * CLIENTS, None, num_classes=2))
    with contextlib.redirect_stdout(io.StringIO()):
        algorithm = kind(CLIENTS, data, DDict(client=client, server={"weighted": True, **server}, model=net))
        algorithm.run(rounds, 1.0, finalize=False)
    return before, parameters(algorithm.server.model)


moved = {}
for kind, server in ((FedAVG, {}), (FedAVGM, {"momentum": 0.9})):
    before, after = trained(kind, 1, **server)
    moved[kind.__name__] = float((after - before).norm())
    print(f"{kind.__name__}: one round moves the parameters by {moved[kind.__name__]:.3f}")
late, early = trained(FedAVGM, 4, momentum=0.0)[1], trained(FedAVG, 3)[1]
print("four rounds of FedAVGM without momentum equal three of FedAVG:", torch.equal(late, early))
assert moved["FedAVG"] > 0.1, moved
assert moved["FedAVGM"] == 0, moved
assert torch.equal(late, early)
PY
echo "As found: fluke-fl 0.8.1, the first round of FedAVGM changes nothing."
