#!/usr/bin/env bash
# flwr 1.42.0. Adaptive clipping (Andrew et al., arXiv 1905.03871) raises the clipping norm while fewer updates than
# wanted are within it, and lowers it otherwise. DifferentialPrivacyServerSideAdaptiveClipping cites the paper and
# uses its formula C * exp(-rate * (b - target)), but as b it takes the share of updates that are clipped, and the
# paper the share of those that are not. The norm therefore moves away from its target. From the default start of 0.1
# it shrinks without end if all updates are longer, and the model stops learning; from above all updates it grows
# without end, and the noise with it. The documentation describes the target as the share that should be clipped. That
# changes nothing: if more are clipped than wanted, the norm must rise. It also calls differential privacy a preview.
# The client-side wrapper has the same rule.
# Seen, after 100 rounds of ten updates of the lengths 1 to 10: 4.5e-06 from 0.1 and 2.2e+06 from 100. By the paper's
# rule it is between 5 and 6, at the median, from both.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check flwr==1.42.0 numpy==2.4.6
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
import logging
import math
from types import SimpleNamespace

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity

logging.disable(logging.INFO)  # Flower's lines about every round
LENGTHS, ROUNDS, RATE, TARGET = range(1, 11), 100, 0.2, 0.5  # rate and target are the defaults
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # Flower sets them when a run begins
grid = SimpleNamespace(get_node_ids=lambda: list(LENGTHS))


def reply(message, length):
    update = ArrayRecord({"w": Array(np.array([float(length), 0.0]))})  # the model that was sent is zero
    return Message(RecordDict({"arrays": update, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


def by_flower(norm):
    strategy = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(), noise_multiplier=0.0, num_sampled_clients=10, initial_clipping_norm=norm
    )
    for number in range(1, ROUNDS + 1):
        zero = ArrayRecord({"w": Array(np.zeros(2))})
        messages = strategy.configure_train(number, zero, ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(number, [reply(*pair) for pair in zip(messages, LENGTHS)])
    return strategy.clipping_norm, float(arrays["w"].numpy()[0])


def by_paper(norm):
    for _ in range(ROUNDS):
        within = np.mean([length <= norm for length in LENGTHS])
        norm *= math.exp(-RATE * (within - TARGET))
    return norm


(small, step), (large, _) = by_flower(0.1), by_flower(100.0)
right = [by_paper(0.1), by_paper(100.0)]
print(f"Flower: {small:.2g} from 0.1, {large:.2g} from 100; paper: {right[0]:.2g} and {right[1]:.2g}")
print(f"mean of the clipped updates in round 100, from 0.1: {step:.2g}; of the updates: {np.mean(LENGTHS):.2g}")
assert math.isclose(small, 0.1 * math.exp(-10))
assert math.isclose(large, 100 * math.exp(10))
assert step < 1e-5
assert all(4.9 < norm < 6.1 for norm in right)
PY
echo "As found: flwr 1.42.0, adaptive clipping moves the clipping norm away from its target."
