#!/usr/bin/env bash
# datasets 4.8.5. Casting a column of integers to a ClassLabel with two names keeps a 3, in memory and in a Parquet
# file; only int2str raises, when somebody asks for its name. (A string without a name is refused by the same cast.)
# Seen: [0, 1, 3].
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check datasets==4.8.5 numpy==2.4.6 pandas==2.3.3 pyarrow==25.0.1
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
from datasets import ClassLabel, Dataset

data = Dataset.from_dict({"y": [0, 1, 3]}).cast_column("y", ClassLabel(names=["well", "ill"]))
data.to_parquet("y.parquet")
again = Dataset.from_parquet("y.parquet", cache_dir="cache")
print(data["y"][:], again["y"][:], again.features["y"].names)
assert data["y"][:] == again["y"][:] == [0, 1, 3]
assert again.features["y"].names == ["well", "ill"]
try:
    again.features["y"].int2str(3)
except ValueError as error:
    print("int2str(3):", error)
else:
    raise SystemExit("int2str(3) has a name now")
PY
echo "As found: datasets 4.8.5, a ClassLabel of two names holds a 3."
