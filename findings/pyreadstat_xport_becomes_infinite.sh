#!/usr/bin/env bash
# pyreadstat 1.3.7. SAS transport files, which regulators ask for, hold IBM floating-point numbers up to 7.2e75.
# write_xport takes 1e100 without an error, and read_xport gives infinity; SPSS files of the same frame keep it. Seen:
# [1e+75, inf].
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

frame = pd.DataFrame({"x": [1e75, 1e100]})
pyreadstat.write_xport(frame, "a.xpt")
pyreadstat.write_sav(frame, "a.sav")
transport = pyreadstat.read_xport("a.xpt")[0].iloc[:, 0].tolist()
spss = pyreadstat.read_sav("a.sav")[0].iloc[:, 0].tolist()
print(transport, spss)
assert math.isclose(transport[0], 1e75) and transport[1] == math.inf
assert spss == [1e75, 1e100]
PY
echo "As found: pyreadstat 1.3.7, 1e100 is infinite in a SAS transport file."
