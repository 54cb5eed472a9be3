#!/usr/bin/env bash
# aif360 0.6.1. conditional_demographic_disparity cites Wachter, Mittelstadt and Russell (2021). Their measure is
# about one disadvantaged group, its share of the rejected minus its share of the accepted, within strata such as
# departments; Amazon's smclarify averages it over the strata. The function has no strata. It averages the disparities
# of the protected groups themselves, weighted by their sizes, and these disparities sum to 0. For groups of equal
# size the result is 0, whatever is decided; for two groups it is the disparity of the first times the difference of
# their sizes, as a share of all. The documentation has this formula, but not that it is 0 then.
# Seen: all 50 women rejected and all 50 men accepted is 0.0, where the difference of the acceptance rates is -1 and
# the disparity of women is 1. With 25 men it is 0.33. All 25 men rejected and all 50 women accepted is -0.33.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check aif360==0.6.1 numpy==2.4.6 pandas==2.3.3 scikit-learn==1.9.1 scipy==1.17.1
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
import logging

import numpy as np
import pandas as pd

logging.disable(logging.WARNING)  # about packages that only other parts of aif360 need
from aif360.sklearn.metrics import conditional_demographic_disparity, statistical_parity_difference


def measure(women, men):
    """Both measures, and the disparity of women, of decisions that are 1 for accepted."""
    sex = pd.Index(["woman"] * len(women) + ["man"] * len(men), name="sex")
    decisions = pd.Series([*women, *men], index=sex)
    women_of = [np.mean(sex[decisions == decision] == "woman") for decision in (0, 1)]
    conditional = conditional_demographic_disparity(decisions, prot_attr="sex")
    parity = statistical_parity_difference(decisions, prot_attr="sex", priv_group="man")
    return [round(float(value), 2) for value in (conditional, parity, women_of[0] - women_of[1])]


equal = measure([0] * 50, [1] * 50)
fewer = measure([0] * 50, [1] * 25)
reverse = measure([1] * 50, [0] * 25)
print("disparity by aif360, difference of the rates, disparity of women:", equal, fewer, reverse)
assert equal == [0.0, -1.0, 1.0]
assert fewer == [0.33, -1.0, 1.0]
assert reverse == [-0.33, 1.0, -1.0]
generator = np.random.default_rng(0)
sets = [(generator.random((2, 50)) < generator.random((2, 1))).astype(int) for _ in range(20)]
others = [measure(*decisions) for decisions in sets]
print("20 other sets of decisions: rates differ by up to", max(abs(rate) for _, rate, _ in others), end=", ")
print("disparity by aif360 up to", max(abs(disparity) for disparity, _, _ in others))
assert max(abs(rate) for _, rate, _ in others) > 0.5
assert not any(disparity for disparity, _, _ in others)
PY
echo "As found: aif360 0.6.1, the disparity of groups of equal size is 0 whatever is decided."
