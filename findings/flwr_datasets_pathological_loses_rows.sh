#!/usr/bin/env bash
# flwr-datasets 0.6.1. PathologicalPartitioner draws the classes of each client. Rows of a class that no client drew are
# in no partition, without a warning or an error. Seen: of 12 rows in three classes, three clients with one class each
# hold 8; four rows are gone.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check flwr-datasets==0.6.1 datasets==4.8.5 numpy==2.4.6 pandas==2.3.3
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
import warnings

from datasets import Dataset
from flwr_datasets.partitioner import PathologicalPartitioner

with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    partitioner = PathologicalPartitioner(
        num_partitions=3, partition_by="label", num_classes_per_partition=1, class_assignment_mode="random", seed=1
    )
    partitioner.dataset = Dataset.from_dict({"row": list(range(12)), "label": [0] * 4 + [1] * 4 + [2] * 4})
    rows = sorted(row for client in range(3) for row in partitioner.load_partition(client)["row"][:])
print(len(rows), "of 12 rows are at a client:", rows)
assert rows == list(range(4, 12))
assert not [warning for warning in heard if "class" in str(warning.message).lower()]
PY
echo "As found: flwr-datasets 0.6.1, 4 of 12 rows are at no client."
