# `make run` and `make test` need only Python 3.11+ and make: they build .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SITES := $(VENV)/.sites
JOBS ?= 2
# bytecode is kept, whatever the environment says: the tests start many processes, and pytest rewrites 8,000 assertions
TESTS := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

.PHONY: help run test test-all seconds test-lowest test-newest check docs dist bench bench-peers bench-gpu bench-flower defaults fuzz faults mutants release clean

help:
	@echo "make run       compare fair methods on real digits and write a report (three minutes, installing included)"
	@echo "make test      the test suite        make test-all  the slow tests too"
	@echo "make test-lowest  on the lowest versions that are promised      make test-newest  on the newest ones there are"
	@echo "make check     formatter, linter, type checker, documentation"
	@echo "make dist      wheel and source archive in dist/, tried in a new environment"
	@echo "make bench     speed, as ratios      make docs      the documentation: site/index.html"
	@echo "make bench-peers  beside other simulators (installs them apart)      make bench-gpu  on a GPU"
	@echo "make bench-flower  through Flower: in one process, on Ray"
	@echo "make mutants   which small faults in the code the tests miss (an hour or more)"
	@echo "make seconds   measures how long tests take, for tests/seconds.json"
	@echo "make fuzz      10,000 changed messages      make faults    faults of real processes, for docs/security.md"
	@echo "make release VERSION=0.2.0  writes, tries, commits and tags a version"
	@echo "make defaults  every method on every scenario that needs no files, for docs/defaults.md (45 minutes)"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Equipoise needs Python 3.11 or newer, found " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 run")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(SITES): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,flower-sim,privacy,medical,excel,mlflow,tensorboard,wandb,measures,notebook,optuna,dask,fast]'
	@touch $@

run: $(STAMP)
	$(BIN)/equipoise quickstart --jobs $(JOBS)

test: $(SITES)
	$(TESTS) -m 'not slow'

test-all: $(SITES)
	$(TESTS)

seconds: $(SITES)
	$(TESTS) -m 'not slow or costly' --junitxml=$(VENV)/seconds.xml
	$(BIN)/python tools/record_seconds.py $(VENV)/seconds.xml

# uv finds the lowest versions; both environments lie beside .venv and are not used by anything else
test-lowest: RESOLUTION = lowest-direct
test-newest: RESOLUTION = highest
test-lowest test-newest: test-%:
	$(PYTHON) -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-$*/bin/uv pip install --quiet --python .venv-$*/bin/python --resolution $(RESOLUTION) --editable '.[dev,flower-sim,privacy,medical,measures,fast]'
	.venv-$*/bin/uv pip list --quiet --python .venv-$*/bin/python
	PYTHONDONTWRITEBYTECODE= .venv-$*/bin/python -m pytest -n $(JOBS) --dist worksteal -m 'not slow' -W default

check: $(SITES)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/describe.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs: $(SITES)
	$(BIN)/python tools/describe.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(SITES)
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv dist/.venv
	dist/.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	cd dist && .venv/bin/equipoise run --method fedheal --rounds 2 --epochs 1 --network 'mlp(hidden=[16])' --runs .runs
	rm -rf dist/.venv dist/.runs

bench: $(SITES)
	$(BIN)/python benchmarks/round.py --write
	$(BIN)/python benchmarks/kernels.py --write
	$(BIN)/python benchmarks/scale.py --write
	$(BIN)/python benchmarks/importance.py --write
	$(BIN)/python benchmarks/images.py --write
	$(BIN)/python benchmarks/recording.py --write
	$(BIN)/python benchmarks/tables.py --write
	$(BIN)/python benchmarks/contribution.py --write

bench-peers: $(STAMP)
	$(BIN)/python benchmarks/peers/run.py --write
	$(BIN)/python benchmarks/peers/whole.py --write

bench-flower: $(SITES)
	$(BIN)/python benchmarks/flower.py --threads 1 --alternations 3 --write

bench-gpu: $(STAMP)
	$(BIN)/python benchmarks/gpu.py --write

defaults: $(STAMP)
	$(BIN)/python tools/defaults.py --jobs $(JOBS)

fuzz: $(SITES)
	$(BIN)/python tools/fuzz_messages.py --messages 10000 --seed 0 --write

faults: $(SITES)
	$(BIN)/python tools/faults.py --write

mutants: $(SITES)
	$(BIN)/python tools/mutate.py

# writes the version, tries everything, and only then commits and tags; nothing is published
release: $(SITES)
	@git diff --quiet HEAD || { echo "make release: commit or undo your changes first."; exit 1; }
	$(BIN)/python tools/release.py $(VERSION)
	$(MAKE) check test dist
	git commit --all --message "Version $(VERSION)"
	git tag "v$(VERSION)"

clean:
	rm -rf $(VENV) .venv-lowest .venv-newest site dist .pytest_cache .mypy_cache .ruff_cache
