"""``python -m equipoise``."""

from equipoise.cli.main import main

main()
