PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UPPER := tests/engine tests/server tests/bench tests/cli tests/traces tests/lab
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help serve demo test test-core test-optimized lint bench mutants figures clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(VENV)/.stamp ## serve a small real model behind the OpenAI API at port 8000 (ARGS='--port 9000' and so on)
	$(BIN)/radixkv serve $(ARGS)

demo: $(VENV)/.stamp ## start the server, hold a three-turn chat, show what the cache saved, and end
	$(BIN)/radixkv demo

test: $(VENV)/.stamp ## run all tests: the core with 100 % branch coverage and again under python -O, engine and server
	$(MAKE) --jobs=2 --output-sync test-core test-optimized
	$(BIN)/python -m pytest $(UPPER) -m 'not real_model or one_turn'

test-core: $(VENV)/.stamp
	$(BIN)/python -m pytest $(UPPER:%=--ignore=%) --cov

test-optimized: $(VENV)/.stamp
	HYPOTHESIS_PROFILE=quick $(BIN)/python -O -m pytest $(UPPER:%=--ignore=%)

lint: $(VENV)/.stamp ## check the rules (ruff), the format (ruff) and the types (mypy strict)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: ## print how many times faster than SGLang and Dynamo each call is, and what ordering 10,000 waiting requests costs
	bash benchmarks/run.sh
	bash benchmarks/run.sh benchmarks.scheduler

mutants: $(VENV)/.stamp ## plant thousands of small faults in the core and print how many the tests catch (90 % or fail)
	rm -rf mutants && mkdir mutants
	HYPOTHESIS_PROFILE=quick PYTHONPATH=$(CURDIR)/tools PYTEST_PLUGINS=cpu_limit \
		$(BIN)/mutmut run >mutants/run.log 2>&1 || { tail -n 50 mutants/run.log; exit 1; }
	$(BIN)/python tools/mutation_report.py

figures: $(VENV)/.stamp ## make docs/lessons.md's numbers and pictures again
	PYTHONPATH=. $(BIN)/python tools/lessons.py

clean: ## delete everything that make and the tools made
	rm -rf $(VENV) benchmarks/.venv mutants build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable '.[dev]'
	touch $@
