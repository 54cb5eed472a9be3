#!/usr/bin/env bash
# flwr 1.42.0. A MetricRecord takes the list [1, True]; after the way between two machines, through Flower's own
# protobuf messages, it is [1, 1], and the two records are still equal. So a truth value of a metric exists only until a
# message is sent. Seen: types int and bool before, int and int after.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check flwr==1.42.0
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
from flwr.app import MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

sent = RecordDict({"m": MetricRecord({"flags": [1, True]})})
arrived = recorddict_from_proto(recorddict_to_proto(sent))
types = [[type(value).__name__ for value in record["m"]["flags"]] for record in (sent, arrived)]
print(types, sent == arrived)
assert types == [["int", "bool"], ["int", "int"]]
PY
echo "As found: flwr 1.42.0, True arrives as 1."
