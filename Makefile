# Everything one does with this repository. `make` alone lists it.
#
#   PYTHON=/path/to/python3.12   the Python to build on (otherwise found by itself)
#   VENV=/path/to/venv           where the environment goes (.venv)
#   WHEELS=DIR                   install from the wheels that `make wheelhouse` has collected, without network
#   SYSTEM_SITE=1                use the PyTorch of your site instead of downloading one

VENV ?= .venv
export PYTHON PYTHONS VENV SYSTEM_SITE WHEELS
# Tests start some hundred processes that import the same modules: their bytecode is kept, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

# The tools run as modules, since a script's first line breaks when its folder moves.
py = "$(VENV)/bin/python"

scripts = .ci/run tools/*.sh $(wildcard solutions/*.sbatch) $(wildcard slurm/*.sh slurm/submit slurm/bin/smallfiles slurm/jobs/* slurm/env/*.sh) \
  $(addprefix slurm/local/,up down status prolog epilog task_prolog lib.sh) \
  $(addprefix storage/local/,up down status server attach lib.sh)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-all check setup setup-dev wheelhouse bench bench-peers lab notebooks kernel site slides preflight release lock mutants clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | while IFS='|' read -r name text; do \
	  printf '%-16s %s\n' "$$name" "$$text"; done

demo: setup ## the whole road on one page: 3,000 images made, packed, verified, measured (DATA=DIR for your own)
	$(py) -m smallfiles demo $(if $(DATA),--data "$(DATA)")

test: setup-dev ## the tests that a change can break (about 25 minutes on two cores)
	$(py) -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not slow" $(PYTEST_ARGS)

test-all: setup-dev ## all tests, thousands of repeats included
	$(py) -m pytest $(PYTEST_ARGS)

COUNT ?= 25
mutants: setup-dev ## list the small changes of modules that their tests do not notice (MODULE=, TESTS=, COUNT=25, SEED=0)
	$(py) tools/mutants.py "$(MODULE)" "$(TESTS)" --count $(COUNT) --seed $(or $(SEED),0)

check: setup-dev ## format, lint, types, shell scripts, spelling
	$(py) -m ruff check .
	$(py) -m ruff format --check .
	$(py) -m mypy
	PATH="$(VENV)/bin:$$PATH" shellcheck -x $(scripts)  # no wheel for ARM: there the system's
	$(py) -m codespell_lib .
	$(py) tools/build_notebooks.py --check
	$(py) tools/lint_notebooks.py

setup: ## make .venv and install the pinned packages (PYTHON=, VENV=, SYSTEM_SITE=1)
	@tools/setup.sh course

setup-dev:
	@tools/setup.sh course,dev,browser,site

EXTRAS ?= course
wheelhouse: ## put all wheels into a folder, for a site without network (WHEELS=wheelhouse, EXTRAS=hdf5,s3 for fewer)
	@tools/setup.sh "$(EXTRAS)" "$(or $(WHEELS),wheelhouse)"

bench: setup ## measure everything on this machine, one after the other (half an hour)
	$(py) -m benchmarks pack
	$(py) -m smallfiles bench read
	$(py) -m benchmarks squashfs --count 5000 --repeats 5
	$(py) -m benchmarks decode
	$(py) -m benchmarks load
	$(py) -m benchmarks stage
	$(py) -m benchmarks slow

OUT ?= results/peers-$(shell date +%F).json
bench-peers: ## ours beside the software of others, in .venv-peers (an hour; DATA=DIR for your images, FLAGS='--count 1000')
	@VENV=.venv-peers tools/setup_peers.sh
	.venv-peers/bin/python -m benchmarks peers $(if $(DATA),"$(DATA)") $(FLAGS) --save $(OUT)

# Its root is the repository, for the notebooks link to the exercises beside their folder.
lab: setup ## open JupyterLab at notebook 00
	@echo 'JupyterLab opens in your browser; if not, open the address below. Control-C, twice, ends it.'
	@exec $(py) -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) --Application.log_level=WARN \
	  --config="$(CURDIR)/tools/jupyter_server_config.py" --ServerApp.root_dir="$(CURDIR)" \
	  --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb

notebooks: setup-dev ## build notebooks, exercises and solutions from their sources
	$(py) tools/build_notebooks.py
	$(py) tools/lint_notebooks.py

kernel: setup ## register the environment as a Jupyter kernel of this user (JupyterHub, Open OnDemand)
	@$(py) tools/register_kernel.py

site: setup-dev ## the course as a web page in site_output/html, all notebooks executed (ten minutes; later runs one)
	$(py) tools/build_site.py $(if $(DRAFT),--no-execute)

release: setup-dev ## sdist, wheel, executed notebooks and slides in dist/; tries the packages on each Python (PYTHONS=, LOWEST=1)
	$(py) tools/release.py $(if $(LOWEST),--lowest)

lock: setup-dev ## resolve the newest versions into requirements.lock
	$(py) -m uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --upgrade \
	  --no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet -o requirements.lock

slides: setup-dev ## slides of each plan of the instructor guide in site_output/slides, with figures and speaker notes
	$(py) tools/build_slides.py

preflight: setup ## all that the week before a course asks, in one report (SITE=NAME with Slurm)
	@$(py) -m helpers.preflight $(SITE)

clean: ## delete what demo, test, check and site wrote (the environment stays)
	rm -rf demo_output test_output site_output dist .pytest_cache .mypy_cache .ruff_cache .hypothesis smallfiles.egg-info
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
