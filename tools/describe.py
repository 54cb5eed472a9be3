"""Write the description of the catalogue that the command line reads: src/equipoise/cli/catalogue.json.

Run it after a change of a method, a scenario or a network: python tools/describe.py
"""

from equipoise.cli import description
from equipoise.cli.catalogue import FILE

FILE.write_text(description.as_json(), encoding="utf-8")
print(f"wrote {FILE}")
