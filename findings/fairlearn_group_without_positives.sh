#!/usr/bin/env bash
# fairlearn 0.15.0. All predictions are right, but nobody in group b is ill. The true positive rate of b, 0/0, is
# reported as 0, so equalized_odds_difference and equal_opportunity_difference are 1: the most unfair value that exists,
# for a perfect model. Seen: 1.0 and 1.0, rates a 1.0, b 0.0.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check fairlearn==0.15.0 numpy==2.4.6 scikit-learn==1.9.1 pandas==2.3.3
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
from fairlearn.metrics import MetricFrame, equal_opportunity_difference, equalized_odds_difference, true_positive_rate

ill = [1, 0, 1, 0, 0, 0, 0, 0]
group = list("aaaabbbb")
odds = equalized_odds_difference(ill, ill, sensitive_features=group)
opportunity = equal_opportunity_difference(ill, ill, sensitive_features=group)
rates = MetricFrame(metrics=true_positive_rate, y_true=ill, y_pred=ill, sensitive_features=group).by_group.to_dict()
print(odds, opportunity, rates)
assert (odds, opportunity, rates) == (1.0, 1.0, {"a": 1.0, "b": 0.0})
PY
echo "As found: fairlearn 0.15.0, a group without positives makes a perfect model maximally unfair."
