# Each target needs nothing but Python 3.11+: it makes .venv if it is missing and installs with the pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test lint format slow docs clean

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,examples]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/disco-torch demo

test: $(VENV)/.installed lint
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

slow: $(VENV)/.installed
	$(BIN)/python -m pytest -q -m slow

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -E -a -W --keep-going -q -b html -d build/doctrees docs build/site
	@echo "the site is in build/site/index.html"

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
