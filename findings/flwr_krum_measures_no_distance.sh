#!/usr/bin/env bash
# flwr 1.42.0. Krum selects the client whose model is nearest to the others. Flower computes the squared distance of
# two models as |x|^2 + |y|^2 - 2 x.y, in the common type of their arrays. If all are 32-bit floats, what is below
# about a ten-millionth of |x|^2 is lost in rounding. One large number that the models of all clients share is enough,
# such as the mean platelet count, 250000 per microlitre, by which a model scales its input. All distances are then 0,
# and Krum takes the client at one fixed place of the list, also if the weights of that client are turned around and
# three times as large. MultiKrum and Bulyan select by the same function. The documentation does not mention it.
# Without the number, or with 64-bit floats, Krum takes one of the others.
# Seen: a true squared distance of 61.0 is 0.0; the faulty client is taken in 1 of its 10 places, as by chance, and in
# 0 without the number or with 64 bits.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check flwr==1.42.0 numpy==2.4.6
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
import logging

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Krum
from flwr.serverapp.strategy.multikrum import compute_distances
from flwr.supercore.task_identity import TaskIdentity

logging.disable(logging.INFO)  # Flower's lines about every round
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # Flower sets them when a run begins
CLIENTS = 10
weights = np.random.default_rng(0).normal(0, 0.3, 50)


def models(faulty, scale, kind):
    """One model per client; the weights of the faulty one are turned around and three times as large."""
    noise = np.random.default_rng(1).normal(0, 0.01, (CLIENTS, 50))
    own = [(weights + noise[client]) * (-3 if client == faulty else 1) for client in range(CLIENTS)]
    return [{"scale": np.array(scale, kind), "w": w.astype(kind)} for w in own]


def selected(clients):
    """The client whose model Krum makes the global one."""
    replies = []
    for model in clients:
        record = RecordDict({"arrays": ArrayRecord({name: Array(value) for name, value in model.items()})})
        record["metrics"] = MetricRecord({"num-examples": 1})
        sent = Message(RecordDict({"config": ConfigRecord()}), dst_node_id=1, message_type="train")
        replies.append(Message(record, reply_to=sent))
    arrays, _ = Krum(num_malicious_nodes=1).aggregate_train(1, replies)
    (client,) = [client for client, model in enumerate(clients) if np.array_equal(model["w"], arrays["w"].numpy())]
    return client


def distances(clients):
    return compute_distances([ArrayRecord({name: Array(v) for name, v in model.items()}) for model in clients])


taken = {}
for name, scale, kind in [
    ("platelets, 32 bit", [250000.0, 14.0], np.float32),
    ("platelets, 64 bit", [250000.0, 14.0], np.float64),
    ("no platelets, 32 bit", [14.0], np.float32),
]:
    taken[name] = [selected(models(faulty, scale, kind)) for faulty in range(CLIENTS)]
    wrong = sum(client == faulty for faulty, client in enumerate(taken[name]))
    print(f"{name}: the faulty client is taken in {wrong} of its {CLIENTS} places, taken are {taken[name]}")
    assert wrong == (1 if name == "platelets, 32 bit" else 0)
assert len(set(taken["platelets, 32 bit"])) == 1
clients = models(0, [250000.0, 14.0], np.float32)
true = float(np.sum((clients[0]["w"].astype(float) - clients[1]["w"]) ** 2))
print(f"squared distance of the faulty client and another one: {true:.1f}; by Flower: {distances(clients)[0, 1]}")
assert true > 50
assert not distances(clients).any()
PY
echo "As found: flwr 1.42.0, Krum computes 0 as the distance of 32-bit models that share a large number."
