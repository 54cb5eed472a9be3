#!/usr/bin/env bash
# fluke-fl 0.8.1. The data of clients are divided by Dirichlet shares of each class with distribution "dir", and its
# documented option balanced=True gives all clients equally many samples. A client with too few is then filled up with
# samples that no earlier client has, also with such as later clients own. So many samples are at two or more clients,
# and as many at none, without a word. If clients hold out a share of their samples for tests, samples on which one
# client tests are in the training data of another. With balanced=False each sample is at one client.
# Seen: 10 clients, 2000 samples, beta 0.1: 1667 different samples are at the clients, 333 at none; of the samples that
# clients hold out as a fifth of their own, others train on 74 of 399. Without balance 2000 and none.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check fluke-fl==0.8.1 torch==2.13.0 numpy==2.4.6
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
import numpy as np
import torch

try:  # torchvision may be for another build of PyTorch; fluke only imports it
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
except RuntimeError:
    pass
from fluke.data import DataSplitter

CLIENTS, SAMPLES = 10, 2000
y = torch.from_numpy(np.random.default_rng(0).integers(0, 10, SAMPLES))
seen = {}
for balanced in (False, True):
    np.random.seed(1)
    clients, _ = DataSplitter.label_dirichlet_skew(
        torch.zeros(SAMPLES, 2), y, None, None, CLIENTS, beta=0.1, min_ex_class=0, balanced=balanced
    )
    held_out = [set(own[: len(own) // 5].tolist()) for own in clients]
    trained = [set(own[len(own) // 5 :].tolist()) for own in clients]
    leaked = sum(len(held_out[k] & set().union(*(trained[:k] + trained[k + 1 :]))) for k in range(CLIENTS))
    different = len(set(np.concatenate(clients).tolist()))
    seen[balanced] = different, leaked, sum(map(len, held_out))
    print(f"balanced={balanced}: {different} of {SAMPLES} samples are at a client; {leaked} of {seen[balanced][2]} held out are trained on elsewhere")
assert seen[False][:2] == (SAMPLES, 0), seen
assert seen[True][0] < 0.9 * SAMPLES, seen
assert seen[True][1] > 0.05 * seen[True][2], seen
PY
echo "As found: fluke-fl 0.8.1, balanced Dirichlet shares put samples at several clients, and as many at none."
