# Everything is in scripts/tasks.py; this file finds a Python that can run it.

ifndef PYTHON
PYTHON := $(shell for each in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done)
endif

ifeq ($(PYTHON),)
$(error Python 3.11 or newer is needed: install it, or say make PYTHON=/path/to/python3)
endif

.DEFAULT_GOAL := help
.PHONY: help demo check test test-long bench docs coverage lock shape words clean

help demo check test test-long docs coverage lock words clean:
	@$(PYTHON) -m scripts.tasks $@

# make shape ARGS=--update
shape:
	@$(PYTHON) -m scripts.tasks shape $(ARGS)

# make bench W=W6 ARGS="--size 1000"
bench:
	@$(PYTHON) -m scripts.tasks bench $(W) $(ARGS)
