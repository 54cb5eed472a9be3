#!/usr/bin/env bash
# openpyxl 3.1.5. Excel counts 29 February 1900, which never was, as day 60. from_excel gives 28 February for day 59 and
# for day 60, so two different cells become one date. Day 0 becomes a time of day without a date. Seen: 59 and 60 are
# 1900-02-28, 61 is 1900-03-01.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check openpyxl==3.1.5
cd "$home"
"$home/venv/bin/python" -W ignore - <<'PY'
from datetime import datetime, time

from openpyxl.utils.datetime import from_excel

days = [from_excel(day) for day in (0, 59, 60, 61)]
print(days)
assert days == [time(0, 0), datetime(1900, 2, 28), datetime(1900, 2, 28), datetime(1900, 3, 1)]
PY
echo "As found: openpyxl 3.1.5, days 59 and 60 of Excel are the same date."
