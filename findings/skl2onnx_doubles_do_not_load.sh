#!/usr/bin/env bash
# skl2onnx 1.20.0, scikit-learn 1.9.1, onnxruntime 1.32.0. A scaler and a logistic regression trained on doubles are
# converted from an example of doubles. The graph passes onnx.checker, and onnxruntime refuses to load it: the
# probabilities are doubles, and ZipMap takes floats only. Without ZipMap (options zipmap False) it loads. Seen:
# INVALID_GRAPH.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check skl2onnx==1.20.0 scikit-learn==1.9.1 onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
import numpy as np
import onnx
import onnxruntime
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

x = np.random.default_rng(0).normal(size=(200, 3))
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, x[:, 0] > 0)
graph = to_onnx(model, x[:1])
onnx.checker.check_model(graph)
try:
    onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
except Exception as error:
    print(str(error)[:160])
    assert "ZipMap" in str(error) and "tensor(double)" in str(error)
else:
    raise SystemExit("the graph loads now")
plain = to_onnx(model, x[:1], options={"zipmap": False})
onnxruntime.InferenceSession(plain.SerializeToString(), providers=["CPUExecutionProvider"])
PY
echo "As found: skl2onnx 1.20.0, a converted model of doubles does not load."
