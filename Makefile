# Needs python3 (3.10 or newer), make and a package registry. `make demo` and `make test` set up what they need.

PYTHON ?= python3
CORE := .venv
COMPOSER := .venv-composer
# By another name, because `make -n` runs the lines that hold $(MAKE).
LANE := $(MAKE)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-core test-composer lint typecheck bench clean

demo: $(CORE)/.run
	$(CORE)/bin/fsdp-migrate demo

# Both lanes are set up first, so that a missing package shows before the tests run; then they run side by side,
# for many tests wait for other processes. What says nothing of torch is run by the core lane alone.
test: $(CORE)/.dev $(COMPOSER)/.dev
	$(MAKE) lint
	$(MAKE) typecheck
	$(CORE)/bin/python tools/run_lanes.py core='$(LANE) test-core' composer='$(LANE) test-composer'

test-core: $(CORE)/.dev
	$(CORE)/bin/python -m pytest --require-s3

test-composer: $(COMPOSER)/.dev
	$(COMPOSER)/bin/python -m pytest --require-composer

lint: $(CORE)/.dev
	$(CORE)/bin/ruff format --check
	$(CORE)/bin/ruff check

typecheck: $(CORE)/.dev
	$(CORE)/bin/python tools/typecheck.py

bench: $(CORE)/.dev
	$(CORE)/bin/python benchmarks/bench_convert.py $(if $(SIZE),--size $(SIZE))
	$(CORE)/bin/python benchmarks/bench_step.py
	$(CORE)/bin/python -m torch.distributed.run --standalone --nproc-per-node 2 benchmarks/bench_microbatch.py

clean:
	rm -rf $(CORE) $(COMPOSER) build .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info

# A stamp says that an installation was finished; one that broke off has none and is done again.
$(CORE)/.run: pyproject.toml constraints/core.txt
	@echo "Setting up $(CORE): torch 2.13"
	$(call make_venv,$(CORE))
	@$(CORE)/bin/pip install -qq -e . -c constraints/core.txt
	@touch $@

$(CORE)/.dev: $(CORE)/.run
	@echo "Adding the development tools to $(CORE)"
	@$(CORE)/bin/pip install -qq -e '.[dev,dev-s3]' -c constraints/core.txt
	@touch $@

$(COMPOSER)/.dev: pyproject.toml constraints/composer.txt
	@echo "Setting up $(COMPOSER): Composer, torch 2.7; several GB"
	$(call make_venv,$(COMPOSER))
	@$(COMPOSER)/bin/pip install -qq -e '.[composer,dev]' -c constraints/composer.txt
	@touch $@

define make_venv
@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("fsdp-migrate needs Python 3.10 or newer")'
@$(PYTHON) -m venv $(1)
endef
