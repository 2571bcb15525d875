# Everything happens in .venv; `make setup` builds it, and the other verbs do so when it is missing.
PYTHON ?= python3
BIN := .venv/bin
# What training and its report need, and everything that development needs.
READY := .venv/ready
STAMP := .venv/installed

.PHONY: setup train test lint format bench browser clean

setup: $(STAMP)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[train,report]"
	touch $@

$(STAMP): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

train: $(READY)
	$(BIN)/mars compare quickstart-comparison

test: $(STAMP) browser
	$(BIN)/python -m pytest -n auto --dist loadgroup --no-loadscope-reorder

# The tests of the report's page need a browser; without one they are skipped, under CI they fail.
BROWSERS := chromium chromium-browser google-chrome
browser:
	@for name in $(BROWSERS); do if command -v $$name >/dev/null; then exit 0; fi; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq \
		&& DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends \
			chromium fonts-dejavu-core; \
	then exit 0; fi; \
	echo "no browser for the tests of the page: install one of $(BROWSERS), such as with sudo apt-get install chromium"

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP)
	$(BIN)/mars bench

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
