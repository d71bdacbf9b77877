# Needs python3 (3.10 or newer), make and a package registry. `make demo` and `make test` set up what they need.

PYTHON ?= python3
# The torch of the core lane, as pip is asked for it. `==` takes a build such as 2.13.0+cpu where pip finds one;
# `===` takes PyPI's own, as a newcomer's pip does.
TORCH ?= torch==2.13.0
CORE := .venv
COMPOSER := .venv-composer
DOCS := .venv-docs
PAGES := .venv-pages
# By another name, because `make -n` runs the lines that hold $(MAKE).
LANE := $(MAKE)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where it is set, each of the many processes of the tests compiles every module anew.
unexport PYTHONDONTWRITEBYTECODE

# A file goes to one process: its tests share what is costly to set up.
SIDE_BY_SIDE := -n auto --dist loadfile

.PHONY: demo setup check test test-core test-composer test-range test-nightly test-frameworks test-pages fuzz zoo lint typecheck bench docs clean

demo: $(CORE)/.run
	@mkdir -p build
	$(CORE)/bin/fsdp-migrate demo --html build/demo.html

setup: $(CORE)/.dev $(COMPOSER)/.dev

# Both lanes are set up first, side by side, so that a missing package shows before the tests run; then these run so,
# each with one process of tests for a core (the longer core lane has one more): many tests wait for other processes.
# What says nothing of torch is run by the core lane alone.
test:
	$(LANE) -j2 $(CORE)/.dev $(COMPOSER)/.dev
	$(MAKE) lint
	$(CORE)/bin/python tools/run_lanes.py core='$(LANE) test-core' composer='$(LANE) test-composer' \
		types='$(LANE) typecheck'

# The quick one, while you work: what CI says of style and types, and the tests that start no other process and
# are not marked as slow.
check: $(CORE)/.dev
	$(MAKE) lint
	$(CORE)/bin/python tools/run_lanes.py tests='$(CORE)/bin/python -m pytest -q --quick $(SIDE_BY_SIDE)' \
		types='$(LANE) typecheck'

test-core: $(CORE)/.dev
	$(CORE)/bin/python -m pytest $(SIDE_BY_SIDE) --require-s3

test-composer: $(COMPOSER)/.dev
	$(COMPOSER)/bin/python -m pytest $(SIDE_BY_SIDE) --require-composer

# The core lane on every Python that is installed, and on the oldest and the newest torch; hours, and not in CI.
test-range: $(CORE)/.dev
	$(CORE)/bin/python tools/run_range.py $(ONLY)

# The core lane on the newest torch that pip finds above the range, and what that breaks; not in CI. A pre-release, if
# PIP_EXTRA_INDEX_URL or pip's settings name an index that has one.
test-nightly: $(CORE)/.dev
	$(CORE)/bin/python tools/run_range.py torch-newest

# What is claimed of frameworks, against several versions of each; some GB are downloaded, and not in CI.
test-frameworks: $(CORE)/.dev
	$(CORE)/bin/python tools/run_frameworks.py $(ONLY)

# Reports in a real browser, and pictures of them in build/pages; needs a Chromium that is installed, and not in CI.
test-pages: $(CORE)/.dev $(PAGES)/.dev
	$(CORE)/bin/python -m tests.report.pages build/pages
	$(PAGES)/bin/python tools/try_pages.py build/pages

# Draws models, arguments, optimizers and habits, and holds ours against FSDP1, as long as one likes; what differs is
# shrunk and printed. DRAWS, SEED, RANKS (4: 2 x 2), DEVICE (cuda: ranks share it, over gloo), or DRAW='what was printed'; PYTHON_OF_FUZZ=.venv-composer/bin/python
# for torch 2.7.
PYTHON_OF_FUZZ ?= $(CORE)/bin/python
fuzz: $(CORE)/.dev
	$(PYTHON_OF_FUZZ) -m tests.fuzz --draws $(or $(DRAWS),200) --seed $(or $(SEED),0) --ranks $(or $(RANKS),2) \
		--device $(or $(DEVICE),cpu) \
		$(if $(DRAW),--draw '$(DRAW)')

# Trains a tiny model of every architecture of transformers under FSDP1 and prepared, and writes docs/models.md; an
# hour, and not in CI. ONLY='llama t5' trains those.
zoo: $(CORE)/.dev
	HF_HUB_OFFLINE=1 $(CORE)/bin/python -m tests.zoo $(ONLY)

lint: $(CORE)/.dev
	$(CORE)/bin/ruff format --check
	$(CORE)/bin/ruff check

typecheck: $(CORE)/.dev
	$(CORE)/bin/python tools/typecheck.py

bench: $(CORE)/.dev
	$(CORE)/bin/python benchmarks/bench_convert.py $(if $(SIZE),--size $(SIZE))
	$(CORE)/bin/python benchmarks/bench_load.py $(if $(SIZE),--size $(SIZE))
	$(CORE)/bin/python benchmarks/bench_start.py
	$(CORE)/bin/python benchmarks/bench_scan.py
	$(CORE)/bin/python benchmarks/bench_step.py
	$(CORE)/bin/python -m tests.forecast
	$(CORE)/bin/python -m torch.distributed.run --standalone --nproc-per-node 2 benchmarks/bench_microbatch.py

# The site, into site/. A link or an anchor that leads nowhere ends it; `make test` finds these too, without mkdocs.
docs: $(DOCS)/.dev
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build

clean:
	rm -rf $(CORE) $(COMPOSER) $(DOCS) $(PAGES) site build .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info

# A stamp says that an installation was finished; one that broke off has none and is done again.
$(CORE)/.run: pyproject.toml constraints/core.txt
	@echo "Setting up $(CORE), once: $(TORCH) and what fsdp-migrate needs. PyPI's build for Linux brings CUDA: some 3 GB are"
	@echo "downloaded (4 minutes at 100 Mbit/s) and 5.3 GB installed. README says how to get along with less ('A smaller"
	@echo "torch'). An environment with torch 2.6 to 2.15 needs none of it: pip install . && fsdp-migrate demo"
	@echo "1 of 2: a virtual environment, some seconds"
	$(call make_venv,$(CORE))
	@echo "2 of 2: pip downloads and installs, and says what"
	@$(CORE)/bin/pip install -e . '$(TORCH)' -c constraints/core.txt
	@echo "Set up. The demo itself takes about a minute on two cores."
	@touch $@

$(CORE)/.dev: $(CORE)/.run
	@echo "Adding the development tools to $(CORE)"
	@$(CORE)/bin/pip install -qq -e '.[dev,dev-s3]' '$(TORCH)' -c constraints/core.txt
	@touch $@

$(COMPOSER)/.dev: pyproject.toml constraints/composer.txt
	@echo "Setting up $(COMPOSER): Composer and torch 2.7. Some 3 GB are downloaded, and 5.4 GB installed."
	$(call make_venv,$(COMPOSER))
	@$(COMPOSER)/bin/pip install -qq -e '.[composer,dev]' -c constraints/composer.txt
	@touch $@

$(DOCS)/.dev: constraints/docs.txt
	@echo "Setting up $(DOCS): mkdocs and its theme, 100 MB, a minute."
	$(call make_venv,$(DOCS))
	@$(DOCS)/bin/pip install -qq -r constraints/docs.txt
	@touch $@

$(PAGES)/.dev:
	@echo "Setting up $(PAGES): playwright, 150 MB, without the browsers that it can download."
	$(call make_venv,$(PAGES))
	@$(PAGES)/bin/pip install -qq 'playwright>=1.50,<2'
	@touch $@

define make_venv
@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("fsdp-migrate needs Python 3.10 or newer")'
@$(PYTHON) -m venv $(1)
endef
