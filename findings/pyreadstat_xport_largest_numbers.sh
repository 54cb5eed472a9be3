#!/usr/bin/env bash
# pyreadstat 1.3.7. SAS transport files, which regulators ask for, hold IBM floating-point numbers up to 7.2e75.
# write_xport writes every number from 1e75 on, also 5e75, as the largest of them (7f ff ff ff ff ff ff ff), without an
# error, and read_xport gives infinity. SPSS files of the same frame keep the numbers. Seen: [1e+74, inf, inf, inf].
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check pyreadstat==1.3.7 pandas==2.3.3 numpy==2.4.6
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
import math

import pandas as pd
import pyreadstat

frame = pd.DataFrame({"x": [1e74, 1e75, 5e75, 1e100]})
pyreadstat.write_xport(frame, "a.xpt")
pyreadstat.write_sav(frame, "a.sav")
transport = pyreadstat.read_xport("a.xpt")[0].iloc[:, 0].tolist()
spss = pyreadstat.read_sav("a.sav")[0].iloc[:, 0].tolist()
print(transport, spss)
assert math.isclose(transport[0], 1e74) and transport[1:] == [math.inf] * 3
assert (bytes([0x7F]) + bytes([0xFF] * 7)) * 3 in open("a.xpt", "rb").read()
assert spss == [1e74, 1e75, 5e75, 1e100]
PY
echo "As found: pyreadstat 1.3.7, 1e75 and more is infinite in a SAS transport file."
