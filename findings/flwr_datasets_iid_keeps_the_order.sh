#!/usr/bin/env bash
# flwr-datasets 0.6.1 with datasets 4.8.5. IidPartitioner takes consecutive rows: it does not shuffle. Of a data set
# sorted by label, as files by class are read, each 'IID' client has one class. Seen: [0 0 0 0], [1 1 1 1], [2 2 2 2].
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check flwr-datasets==0.6.1 datasets==4.8.5 numpy==2.4.6 pandas==2.3.3
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
from datasets import Dataset
from flwr_datasets.partitioner import IidPartitioner

partitioner = IidPartitioner(num_partitions=3)
partitioner.dataset = Dataset.from_dict({"label": [0] * 4 + [1] * 4 + [2] * 4})
labels = [partitioner.load_partition(client)["label"][:] for client in range(3)]
print(labels)
assert labels == [[0] * 4, [1] * 4, [2] * 4]
PY
echo "As found: flwr-datasets 0.6.1, an IID partition of sorted rows gives each client one class."
