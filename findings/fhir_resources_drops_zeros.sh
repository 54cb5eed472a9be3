#!/usr/bin/env bash
# fhir.resources 8.3.0. FHIR states that the decimal places of a value matter: 1.10 says how exactly it was measured,
# and systems must keep them. A Quantity that is read from JSON and written again has 1.1 for 1.10, and a time with .100
# seconds gets .100000. Seen: value 1.1.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check fhir.resources==8.3.0 fhir-core==1.1.12
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
from fhir.resources.observation import Observation
from fhir.resources.quantity import Quantity

value = Quantity.model_validate_json('{"value": 1.10, "unit": "mg/dL"}').model_dump_json()
record = {"status": "final", "code": {"text": "creatinine"}, "effectiveDateTime": "2015-02-07T13:28:17.100Z"}
time = Observation(**record).model_dump_json()
print(value, time)
assert '"value":1.1,' in value
assert "13:28:17.100000Z" in time
PY
echo "As found: fhir.resources 8.3.0, the value 1.10 is written as 1.1."
