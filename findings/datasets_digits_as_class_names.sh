#!/usr/bin/env bash
# datasets 4.8.5. Strings cast to a ClassLabel are looked up among its names; a string of digits that is no name is
# taken for a class number instead. Grades '0', '1', '2' with the names ['2', 'x', 'y']: '2' is found by its name,
# number 0, and '0' is number 0 as well. Two different strings become one class. Seen: [0, 1, 0].
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check datasets==4.8.5 numpy==2.4.6 pandas==2.3.3
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
from datasets import ClassLabel, Dataset

column = Dataset.from_dict({"grade": ["0", "1", "2"]}).cast_column("grade", ClassLabel(names=["2", "x", "y"]))
print(column["grade"][:])
assert column["grade"][:] == [0, 1, 0]
PY
echo "As found: datasets 4.8.5, the strings 0 and 2 become one class."
