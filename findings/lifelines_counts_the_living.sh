#!/usr/bin/env bash
# lifelines 0.30.3. Tables from R code the status of a survival time as 1 (alive, censored) and 2 (dead), which R's Surv
# understands. KaplanMeierFitter takes both for an event, without a warning, so everybody dies. Seen: survival 0.75,
# 0.5, 0.25, 0.0 where 1, 2/3, 2/3, 0 is right.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check lifelines==0.30.3 numpy==2.4.6 pandas==2.3.3 scipy==1.17.1
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
import warnings

import numpy as np
from lifelines import KaplanMeierFitter

time, status = [1, 2, 3, 4], np.array([1, 2, 1, 2])
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    coded = KaplanMeierFitter().fit(time, status).survival_function_at_times(time).tolist()
right = KaplanMeierFitter().fit(time, status == 2).survival_function_at_times(time).tolist()
print(coded, right, [str(warning.message) for warning in heard])
assert np.allclose(coded, [0.75, 0.5, 0.25, 0.0])
assert np.allclose(right, [1, 2 / 3, 2 / 3, 0])
assert not [warning for warning in heard if "event" in str(warning.message).lower()]
PY
echo "As found: lifelines 0.30.3, a status of 1 and 2 counts everybody as dead."
